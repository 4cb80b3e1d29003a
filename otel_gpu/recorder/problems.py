"""Explains errors of SQLite and of files, with a hint for the operator."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from otel_gpu.errors import StoreError
from otel_gpu.recorder.losses import RowLoss

ELSEWHERE = "name a file in a folder that can be written, with --store"
_PRIMARY = 0xFF


class Problem(NamedTuple):
    """Why something failed: a reason to count it by, a text, and a hint."""

    reason: RowLoss
    text: str
    hint: str


_DAMAGED = Problem(
    RowLoss.DAMAGED,
    "it is damaged",
    "the next otel-gpu run that writes it sets it aside and begins a new one",
)
_PROBLEMS = {
    sqlite3.SQLITE_FULL: Problem(
        RowLoss.DISK_FULL,
        "the disk is full",
        "make room on the disk, or give the store less with store.max_bytes",
    ),
    sqlite3.SQLITE_IOERR: Problem(
        RowLoss.DISK_ERROR,
        "the disk reports an error",
        "see the kernel's log, and the disk's free space",
    ),
    sqlite3.SQLITE_READONLY: Problem(
        RowLoss.READ_ONLY,
        "it may not be written",
        "name a file in a folder that can be written, with --store",
    ),
    sqlite3.SQLITE_CANTOPEN: Problem(
        RowLoss.CANNOT_OPEN,
        "it cannot be opened",
        "see the rights of the file and its folder, or run as the user who owns them",
    ),
    sqlite3.SQLITE_PERM: Problem(
        RowLoss.NO_PERMISSION, "that is not permitted", "run as the user who owns the file"
    ),
    sqlite3.SQLITE_BUSY: Problem(
        RowLoss.LOCKED, "another program has locked it", "end that program"
    ),
    sqlite3.SQLITE_LOCKED: Problem(
        RowLoss.LOCKED, "another program has locked it", "end that program"
    ),
    sqlite3.SQLITE_TOOBIG: Problem(RowLoss.TOO_LARGE, "a value in it is too large", ""),
}

# A reader's transaction keeps the log from being emptied.
READER = Problem(RowLoss.READER_IN_THE_WAY, "a reader keeps its log from being emptied", "")
TOO_SMALL = Problem(
    RowLoss.STORE_TOO_SMALL,
    "the store is too small for what is written at once",
    "raise store.max_bytes",
)


class NoSpaceError(Exception):
    """A batch does not fit into the store; ``problem`` is why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.text)
        self.problem = problem


FAILURES = (sqlite3.Error, UnicodeDecodeError, MemoryError)
"""Errors of calls into SQLite. UnicodeDecodeError: content of a damaged file is in the message.
MemoryError: a row claims to be larger than memory."""

# Messages, because the first has the code of any SQL error, and the second has no code.
_DAMAGE = ("malformed database schema", "Could not decode to UTF-8")


def problem_of(error: Exception) -> Problem:
    """Return the problem of an error. Unknown ones have SQLite's own text."""
    if isinstance(error, NoSpaceError):
        return error.problem
    if is_damage(error):
        return _DAMAGED
    code = getattr(error, "sqlite_errorcode", None)
    known = None if code is None else _PROBLEMS.get(code & _PRIMARY)
    return known or Problem(RowLoss.REFUSED, str(error), "")


def is_damage(error: Exception) -> bool:
    """Return whether an error shows that the file is damaged."""
    if isinstance(error, UnicodeDecodeError | MemoryError) or str(error).startswith(_DAMAGE):
        return True
    code = getattr(error, "sqlite_errorcode", None) or 0
    return code & _PRIMARY in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@contextmanager
def explained(path: Path, what: str = "cannot be written", hint: str = "") -> Iterator[None]:
    """Turn errors of SQLite and of files into ``StoreError``; ``hint`` is for errors of files."""
    try:
        yield
    except FAILURES as error:
        problem = problem_of(error)
        raise StoreError(f"{path}: {what}: {problem.text}", hint=problem.hint) from error
    except OSError as error:
        raise StoreError(f"{path}: {what}: {error.strerror}", hint=hint) from error

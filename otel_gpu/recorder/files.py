"""
Opening the files of stores, with checks of their owner, their schema and damage.

A store that is damaged, or of an older version, is set aside: it is renamed to
``NAME.corrupt-UNIXTIME`` or ``NAME.version-N-UNIXTIME``, and a new one is begun. Of each kind only the
latest is kept.
"""

import contextlib
import errno
import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from otel_gpu import __version__
from otel_gpu.errors import StoreError
from otel_gpu.files import safe_files
from otel_gpu.recorder.limits import StoreLimits
from otel_gpu.recorder.lock import Lock, lock_path
from otel_gpu.recorder.problems import ELSEWHERE, FAILURES, explained, is_damage, problem_of
from otel_gpu.recorder.tables import schema
from otel_gpu.recorder.tables.columns import MAX_JSON

_FOLDER_MODE = 0o700
_PAGE_BYTES = 4096
_BUSY_TIMEOUT_S = 1.0
_CACHE_KIB = 8192
_MAX_CHECKED_BYTES = 64 << 20
_MAX_READ_BYTES = 4 * MAX_JSON
# No writer reaches it, and numbers after it still fit SQLite.
_LARGEST_NUMBER = 1 << 62
_OUR_FILES = ("", "-wal", "-shm")

_COPY = "copy it, with the -wal beside it, to a folder that can be written"
_OLDER = (
    "read it with the otel-gpu that wrote it; the next otel-gpu run here sets it aside and "
    "begins a new one"
)
_DAMAGED = "the next otel-gpu run sets it aside and begins a new one"
_OWNER = "run as the user who owns it, or name another file with --store"


_logger = logging.getLogger(__name__)


class _UnusableError(Exception):
    # A store is damaged, or of an older version. ``mark`` becomes part of its new name.

    def __init__(self, why: str, hint: str = _DAMAGED, mark: str = "corrupt") -> None:
        super().__init__(why)
        self.hint, self.mark = hint, mark


def open_writing(
    path: Path, limits: StoreLimits, *, durable: bool
) -> tuple[sqlite3.Connection, Lock, Path]:
    """
    Open a store for writing, or create it. Returns the connection, the lock and the resolved path.

    An unusable store is set aside, with a warning. ``durable``: each batch survives a power cut.

    Raises:
        StoreError: The file is not a store, or is of a later version or another owner; another
            process writes it; or it cannot be written.
    """
    _make_folder(path)
    path = path.parent.resolve() / path.name
    _check_files(path)
    was_ours = lock_path(path).exists()
    if _is_foreign(path, was_ours=was_ours):
        raise StoreError(
            f"{path}: exists and is not a store, so it is not touched",
            hint="name another file, or remove this one",
        )
    lock = Lock(path)
    try:
        try:
            connection = _open(path, limits, lock, durable=durable)
        except _UnusableError as error:
            aside = _set_aside(path, error.mark)
            _logger.warning("%s: %s; it is %s now, and a new one is begun", path, error, aside)
            lock.forget_last()
            connection = _open(path, limits, lock, durable=durable)
    except _UnusableError as error:
        lock.close()
        raise StoreError(f"{path}: {error}") from error
    except BaseException:
        lock.close()
        raise
    return connection, lock, path


def open_reading(path: Path) -> sqlite3.Connection:
    """
    Open a store read-only.

    Raises:
        StoreError: It does not exist, cannot be read, or is of another version.
    """
    with explained(path, "cannot be read", _OWNER):
        if not path.exists():
            hint = "write one with otel-gpu run --store, or name another"
            raise StoreError(f"{path}: no store", hint=hint)
        try:
            with _kept_open(path, "ro") as connection:
                for setting in ("query_only = ON", "trusted_schema = OFF", "cell_size_check = ON"):
                    connection.execute(f"PRAGMA {setting}")
                connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_READ_BYTES)
                _check_schema(connection, path)
        except _UnusableError as error:
            raise StoreError(f"{path}: {error}", hint=error.hint) from error
        except FAILURES as error:
            if is_damage(error) and not lock_path(path).exists():
                text = f"{path}: is not a store, or a damaged copy of one"
                raise StoreError(text, hint="name another file") from error
            if _has_log(path) and not os.access(path.parent, os.W_OK):
                # SQLite creates a file beside the log to read it.
                text = f"{path}: cannot be read: {problem_of(error).text}"
                raise StoreError(text, hint=_COPY) from error
            raise
    return connection


def _make_folder(path: Path) -> None:
    with explained(path.parent, "cannot be created", ELSEWHERE):
        path.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)


def _check_files(path: Path) -> None:
    # SQLite would use a log that another user put there.
    for suffix in _OUR_FILES:
        file = path.with_name(path.name + suffix)
        with explained(file, "cannot be opened", _OWNER):
            try:
                safe_files.check_own_if_there(file)
            except safe_files.UntrustedError as error:
                raise StoreError(f"{file}: {error.strerror}", hint=_OWNER) from error


def _is_foreign(path: Path, *, was_ours: bool) -> bool:
    # Whether a file is not a store. ``was_ours``: a store had this name, so this is damage.
    with explained(path, "cannot be opened"):
        if not path.exists() or path.stat().st_size == 0:
            return False
        try:
            with contextlib.closing(_connect(path, "ro")) as connection:
                (number,) = connection.execute("PRAGMA application_id").fetchone()
        except FAILURES as error:
            if is_damage(error):
                return not was_ours
            raise
    return bool(number != schema.APPLICATION_ID)


def _open(path: Path, limits: StoreLimits, lock: Lock, *, durable: bool) -> sqlite3.Connection:
    is_new = not path.exists() or path.stat().st_size == 0
    with explained(path, hint=ELSEWHERE):
        try:
            if is_new:
                return _begin(path, limits, durable=durable)
            safe_files.make_private(path)
            with _kept_open(path, "rw") as connection:
                _check_place(connection, path)
                _check_schema(connection, path)
                _configure(connection, limits, path, durable=durable)
                connection.execute("PRAGMA trusted_schema = OFF")
                _check_content(connection, path, lock)
        except FAILURES as error:
            if is_damage(error) and not is_new:
                raise _UnusableError(f"is damaged: {error}") from error
            raise
    return connection


def _begin(path: Path, limits: StoreLimits, *, durable: bool) -> sqlite3.Connection:
    facts = {"created_by": f"otel-gpu {__version__}", "created_unix_ns": f"{time.time_ns()}"}
    try:
        os.close(safe_files.open_own(path, os.O_RDWR | os.O_CREAT))
        safe_files.make_private(path)
        with _kept_open(path, "rw") as connection:
            _check_place(connection, path)
            _configure(connection, limits, path, durable=durable)
            schema.create(connection, facts)
    except BaseException:
        # It is empty, and would block the next attempt.
        for suffix in _OUR_FILES:
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        raise
    return connection


@contextlib.contextmanager
def _kept_open(path: Path, mode: str) -> Iterator[sqlite3.Connection]:
    # Closes the connection only on errors.
    connection = _connect(path, mode)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    address = f"{path.absolute().as_uri()}?mode={mode}"
    if mode == "ro" and not _has_log(path) and not os.access(path.parent, os.W_OK):
        # Without a log, and without the right to create one.
        address += "&immutable=1"
    return sqlite3.connect(
        address,
        uri=True,
        timeout=_BUSY_TIMEOUT_S,
        isolation_level=None,
        # One thread creates the writer, another one uses it, never both at once.
        check_same_thread=False,
    )


def _has_log(path: Path) -> bool:
    return any(path.with_name(path.name + suffix).exists() for suffix in _OUR_FILES[1:])


def _configure(
    connection: sqlite3.Connection, limits: StoreLimits, path: Path, *, durable: bool
) -> None:
    execute = connection.execute
    execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    execute("PRAGMA auto_vacuum = INCREMENTAL")
    (mode,) = execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        text = f"{path}: this file system cannot be shared between programs"
        raise StoreError(text, hint="name a file on a local disk, with --store")
    # With NORMAL, commits survive a crash of the program; with FULL, one of the machine.
    execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    execute(f"PRAGMA wal_autocheckpoint = {limits.emptied_bytes // _PAGE_BYTES}")
    execute(f"PRAGMA journal_size_limit = {limits.emptied_bytes}")
    execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    # Some builds overwrite removed content with zeros, which costs as much as writing it.
    execute("PRAGMA secure_delete = OFF")
    execute("PRAGMA cell_size_check = ON")


def _check_place(connection: sqlite3.Connection, path: Path) -> None:
    # SQLite follows a link created after the checks, and reports its target.
    connection.text_factory = bytes
    ((_, _, opened),) = connection.execute("PRAGMA database_list")
    connection.text_factory = str
    if opened != os.fsencode(path):
        raise safe_files.UntrustedError(errno.ELOOP, "is a symbolic link", str(path))


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    (number,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if number != schema.APPLICATION_ID or version < 1:
        raise StoreError(f"{path}: is not a store of otel-gpu", hint="name another file")
    other = f"is a store of version {version}; this otel-gpu uses version {schema.VERSION}"
    if version > schema.VERSION:
        raise StoreError(f"{path}: {other}", hint="upgrade otel-gpu")
    if version < schema.VERSION:
        raise _UnusableError(other, _OLDER, f"version-{version}")
    if not schema.is_ours(connection):
        raise _UnusableError("is damaged: its tables differ from those of a store")


def _check_content(connection: sqlite3.Connection, path: Path, lock: Lock) -> None:
    # The full check is skipped if the last writer ended in order, and for large files, where it takes
    # too long.
    if lock.last.found_damage:
        raise _UnusableError("is damaged, as its last writer found")
    for table in ("chunks", "batches", "meta", "losses", "captures", "processes"):
        connection.execute(f"SELECT * FROM {table} LIMIT 100").fetchall()
    if max(schema.first_numbers(connection).values()) > _LARGEST_NUMBER:
        raise _UnusableError("is damaged: one of its numbers is too large")
    found = connection.execute(
        "SELECT ended_unix_ns FROM writers ORDER BY writer DESC LIMIT 1"
    ).fetchone()
    if (found is None or found[0] is None) and path.stat().st_size <= _MAX_CHECKED_BYTES:
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise _UnusableError(f"is damaged: {verdict}")


def _set_aside(path: Path, mark: str) -> Path:
    target = path.with_name(f"{path.name}.{mark}-{int(time.time())}")
    hint = "remove it, or name another file with --store"
    with explained(path, "cannot be used as it is, nor set aside", hint):
        for older in list(_others_aside(path, mark)):
            older.unlink(missing_ok=True)
        path.with_name(path.name + "-shm").unlink(missing_ok=True)
        # The log is renamed first: left behind, SQLite would use it for the next file.
        for suffix in reversed(_OUR_FILES[:2]):
            source = path.with_name(path.name + suffix)
            if source.exists():
                source.replace(target.with_name(target.name + suffix))
    return target


def _others_aside(path: Path, mark: str) -> Iterator[Path]:
    prefix = f"{path.name}.{mark}-"
    for name in path.parent.iterdir():
        number = name.name.removeprefix(prefix).removesuffix("-wal")
        if name.name.startswith(prefix) and number.isdigit():
            yield name

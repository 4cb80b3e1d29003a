"""
An untrusted SQLite database, opened for reading only.

Only plain tables are read, values have a maximum length, text does not have to be UTF-8, and
all errors of SQLite become one type of error.
"""

# Some facts about reading SQLite files of others
# -----------------------------------------------
#
# SQLite writes when it reads. Opening a file in WAL mode creates files beside it (-wal, -shm),
# also with mode=ro, and they stay. In a folder that is not writable it cannot be opened.
# With immutable=1 it creates no files and takes no locks, but does not read a writer's log.
# So a file without a log beside it is opened as immutable, and one with a log normally. If
# that fails, the log is left out, and a note states that.
#
# The schema is a program. A view, a virtual table or a generated column runs what its
# author wrote when it is read, so none of them is. trusted_schema=OFF keeps functions
# with effects out of what is left, and extensions are never loaded.

import sqlite3
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from otel_gpu.errors import RecordingError

MAX_VALUE_BYTES = 16 << 20
"""No text, blob or row of the database may be longer."""

_MAGIC = b"SQLite format 3\0"
_MAX_TABLES = 1_000
_MAX_MESSAGE = 200
# UnicodeDecodeError: a message of SQLite quotes bytes that are not UTF-8.
# SQLite has no memory for a row that claims to have 2^63 bytes.
_ERRORS = (sqlite3.Error, UnicodeDecodeError, MemoryError)
_LOGS = ("-wal", "-journal")
_PRAGMAS = ("query_only = ON", "trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0")
# Of PRAGMA table_xinfo: an ordinary column is 0, a generated one 2 or 3.
_NAME, _HIDDEN = 1, 6


class SqliteSource:
    """
    A database; ``notes`` are sentences about how it was read.

    Raises:
        RecordingError: It cannot be opened, or is not a SQLite database.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.notes: list[str] = []
        _check_file(path)
        self._connection = self._connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._connection.close()

    def tables(self) -> dict[str, frozenset[str]]:
        """
        Return the plain tables, and the columns of each that hold what was written there.

        Raises:
            RecordingError: The database is damaged.
        """
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'table' LIMIT ?"
        return {
            name: frozenset(
                column[_NAME]
                for column in self.rows("SELECT * FROM pragma_table_xinfo(?)", (name,))
                if column[_HIDDEN] == 0
            )
            for name, sql in list(self.rows(query, (_MAX_TABLES,)))
            if isinstance(name, str) and isinstance(sql, str) and _is_plain(sql)
        }

    def rows(self, query: str, parameters: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """
        Yield the rows of a query.

        Raises:
            RecordingError: The database is damaged.
        """
        with self._explained():
            yield from self._connection.execute(query, parameters)

    def _connect(self) -> sqlite3.Connection:
        uri = f"{self._path.resolve().as_uri()}?mode=ro"
        with self._explained():
            if any(map(_has_content, self._logs())):
                with suppress(*_ERRORS):
                    return _open(uri)
                self.notes.append(
                    "Beside the database is a log of what was written last, which cannot be read "
                    "from here: the latest rows are missing."
                )
            return _open(f"{uri}&immutable=1")

    def _logs(self) -> Iterator[Path]:
        return (self._path.with_name(self._path.name + suffix) for suffix in _LOGS)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except _ERRORS as error:
            # SQLite quotes what it does not like, and that may come from the file.
            message = str(error) or "a value of impossible size"
            what = "".join(c if c.isprintable() else "?" for c in message[:_MAX_MESSAGE])
            raise RecordingError(
                f"{self._path}: is damaged, or of another format: {what}",
                hint="copy it again from its origin; while its writer runs, copy it with "
                "sqlite3 FILE '.backup COPY'",
            ) from error


def require(
    path: Path, tables: Mapping[str, frozenset[str]], needed: Mapping[str, Sequence[str]]
) -> None:
    """
    Check that a database at a path has the columns that are needed, both by table.

    Raises:
        RecordingError: Names all that is missing.
    """
    missing = []
    for table, columns in needed.items():
        if table not in tables:
            missing.append(f"the table {table}")
        elif absent := [column for column in columns if column not in tables[table]]:
            missing.append(f"of the table {table} the columns {', '.join(absent)}")
    if missing:
        raise RecordingError(
            f"{path}: lacks {' and '.join(missing)}",
            hint="it is from another tool, or from an unsupported version",
        )


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _check_file(path: Path) -> None:
    try:
        # A pipe would be waited for.
        if not stat.S_ISREG(path.stat().st_mode):
            raise RecordingError(f"{path}: is not a file")
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise RecordingError(f"{path}: is not a SQLite database")
    except OSError as error:
        raise RecordingError(f"{path}: cannot be read: {error.strerror}") from error


def _open(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    try:
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        # Nothing was read up to here.
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except _ERRORS:
        connection.close()
        raise
    return connection


def _is_plain(sql: str) -> bool:
    return not sql.lstrip().upper().startswith("CREATE VIRTUAL")

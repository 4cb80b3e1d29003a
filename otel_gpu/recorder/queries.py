"""
Read-only queries in SQL, from untrusted callers.

The file is opened read-only, SQLite is set to refuse writes, and an authorizer refuses all but reads
when the statement is prepared. The text, the values, the memory, the time and the answer are limited.
"""

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from otel_gpu.errors import StoreError
from otel_gpu.recorder.files import open_reading
from otel_gpu.recorder.problems import problem_of
from otel_gpu.recorder.tables.columns import MAX_JSON

MAX_ROWS = 1_000_000
_MIB = 1 << 20
_STEPS_BETWEEN_CHECKS = 100
_MAX_VALUE_BYTES = 2 * MAX_JSON
_MEMORY_BYTES = 256 * _MIB
_MAX_COLUMNS = 256

_ENGINE_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: _MAX_VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 20_000,
    sqlite3.SQLITE_LIMIT_COLUMN: _MAX_COLUMNS,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 50_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 32,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_ALLOWED = frozenset(
    {
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_RECURSIVE,
    }
)
# No query needs these. They reach outside, or take long for one value, during which the time limit is
# not checked.
_REFUSED_FUNCTIONS = frozenset(
    {
        *("load_extension", "fts3_tokenizer", "fts5", "fts5_source_id", "rtreecheck", "rtreenode"),
        *("randomblob", "zeroblob", "printf", "format", "trim", "ltrim", "rtrim", "json_patch"),
        *("sqlite_log", "edit", "readfile", "writefile"),
    }
)


class QueryError(StoreError):
    """A query was refused, or failed."""


class QueryLimits(NamedTuple):
    """Limits of an answer: seconds, rows and bytes. Further rows are left out, as ``Answer.cut`` states."""

    time_s: float = 30.0
    rows: int = 1_000
    bytes: int = 8 * _MIB


class Answer(NamedTuple):
    """The result of a query; ``cut`` is why rows were left out, or empty."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    cut: str


def ask(path: Path, sql: str, limits: QueryLimits) -> Answer:
    """
    Run one query: a SELECT, VALUES or WITH statement.

    Raises:
        StoreError: The store cannot be opened.
        QueryError: It is not a query, would write, or exceeds a limit.
    """
    with closing(open_reading(path)) as connection:
        _guard(connection, time.monotonic() + limits.time_s)
        try:
            return _answer(connection, sql, limits)
        except (sqlite3.Error, sqlite3.Warning, MemoryError, OverflowError, ValueError) as error:
            raise _explain(error, limits) from error


def _guard(connection: sqlite3.Connection, deadline_s: float) -> None:
    connection.text_factory = _decode
    execute = connection.execute
    # The views are exactly ours. They read JSON, which SQLite allows only in trusted schemas.
    execute("PRAGMA trusted_schema = ON")
    # In memory, which is limited, not in files.
    execute("PRAGMA temp_store = MEMORY")
    execute(f"PRAGMA hard_heap_limit = {_MEMORY_BYTES}")
    # SQLite sets up the JSON tables at their first use, which the authorizer would refuse.
    execute("SELECT * FROM json_each('[]'), json_tree('[]')").fetchall()
    # SQLite's own functions take time proportional to the product of both lengths.
    connection.create_function("instr", 2, _instr, deterministic=True)
    connection.create_function("replace", 3, _replace, deterministic=True)
    for limit, value in _ENGINE_LIMITS.items():
        connection.setlimit(limit, value)
    connection.set_progress_handler(lambda: time.monotonic() > deadline_s, _STEPS_BETWEEN_CHECKS)
    connection.set_authorizer(_authorize)


def _authorize(action: int, _: str | None, name: str | None, *_others: str | None) -> int:
    if action not in _ALLOWED:
        return sqlite3.SQLITE_DENY
    is_refused = action == sqlite3.SQLITE_FUNCTION and (name or "").lower() in _REFUSED_FUNCTIONS
    return sqlite3.SQLITE_DENY if is_refused else sqlite3.SQLITE_OK


def _instr(text: object, part: object) -> int | None:
    if text is None or part is None:
        return None
    return str(text).find(str(part)) + 1


def _replace(text: object, part: object, other: object) -> str | None:
    if text is None or part is None or other is None:
        return None
    whole, old, new = str(text), str(part), str(other)
    if not old:
        return whole
    if len(whole) + whole.count(old) * (len(new) - len(old)) > _MAX_VALUE_BYTES:
        raise ValueError("too large")
    return whole.replace(old, new)


def _answer(connection: sqlite3.Connection, sql: str, limits: QueryLimits) -> Answer:
    cursor = connection.execute(sql)
    if cursor.description is None:
        raise QueryError("not a query", hint="begin with SELECT or WITH")
    columns = tuple(str(column[0]) for column in cursor.description)
    rows: list[tuple[object, ...]] = []
    size_bytes = 0
    most = min(limits.rows, MAX_ROWS)
    # One at a time, as one row can have a hundred megabytes.
    for row in cursor:
        if len(rows) >= most:
            return Answer(columns, tuple(rows), f"only the first {most:,} rows are shown")
        size_bytes += sum(map(_size, row))
        if size_bytes > limits.bytes:
            cut = f"only {len(rows):,} rows are shown: more than {limits.bytes:,} bytes"
            return Answer(columns, tuple(rows), cut)
        rows.append(row)
    return Answer(columns, tuple(rows), "")


def _size(value: object) -> int:
    return len(value) + 8 if isinstance(value, str | bytes) else 8


def _explain(error: Exception, limits: QueryLimits) -> QueryError:
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(error, QueryError):
        return error
    if code == sqlite3.SQLITE_INTERRUPT:
        return QueryError(
            f"the answer takes longer than {limits.time_s:g} s",
            hint="query less time (seq is fastest), or raise --time-limit-s",
        )
    if code == sqlite3.SQLITE_AUTH:
        return QueryError(
            f"refused: {error}", hint="write one SELECT statement: a store is read-only"
        )
    if isinstance(error, MemoryError) or code == sqlite3.SQLITE_NOMEM:
        return QueryError(
            f"the answer needs more than {_MEMORY_BYTES // _MIB} MiB of memory",
            hint="count or sum in the query, or query less time",
        )
    if code == sqlite3.SQLITE_TOOBIG:
        return QueryError("a value in the query or the answer is too large")
    text = problem_of(error).text
    return QueryError(f"cannot be answered: {text}", hint="otel-gpu query --schema lists columns")


def _decode(data: Sequence[Any]) -> str:
    return bytes(data).decode("utf-8", "replace")

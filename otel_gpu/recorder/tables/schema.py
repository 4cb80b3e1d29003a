"""
The schema of a store, and its version.

A store is created complete and never altered. A writer sets a store of an older version aside, and only
the otel-gpu that wrote it reads it. A store of a later version is refused.
"""

import sqlite3
from collections.abc import Iterator, Mapping
from hashlib import sha256

from otel_gpu.recorder.tables.columns import Table, View
from otel_gpu.recorder.tables.communicators import COMMUNICATOR_TOTALS
from otel_gpu.recorder.tables.lookups import LOOKUPS
from otel_gpu.recorder.tables.memory import MEMORY_TOTALS
from otel_gpu.recorder.tables.side_tables import BOOKS, NAMES, TOTALS
from otel_gpu.recorder.tables.tables import NUMBERED
from otel_gpu.recorder.views.views import VIEWS, meaning_of

VERSION = 16
"""Changes with the SQL; ``tests/unit/recorder/tables/test_schema.py`` has the fingerprint."""
APPLICATION_ID = 0x4F54_4750
"""The application id in the header of the file, which file(1) reads: "OTGP"."""

TABLES: tuple[Table, ...] = (
    *(*NUMBERED, *NAMES, *TOTALS, *MEMORY_TOTALS, *COMMUNICATOR_TOTALS, *LOOKUPS, *BOOKS),
)
TABLE_BY_NAME: Mapping[str, Table] = {table.name: table for table in TABLES}
_GIVE_NUMBERS = (
    *("chunks", "batches", "writers"),
    *("captures", "processes", "devices", "stacks", "waits", "series", "probes"),
)


def statements() -> Iterator[str]:
    """Yield the statements that create tables and views."""
    for table in TABLES:
        yield table.sql()
    for view in VIEWS:
        yield view.sql()


def fingerprint() -> str:
    """Return a hash of the schema."""
    return sha256("\n".join(statements()).encode()).hexdigest()[:16]


def info_rows(connection: sqlite3.Connection) -> Iterator[tuple[str, str, str, str]]:
    """Yield the rows of ``schema_info`` without their position: name, column, meaning, unit."""
    for table in TABLES:
        yield table.name, "", table.meaning, ""
        for column in table.columns:
            yield table.name, column.name, column.meaning, column.unit
    for view in VIEWS:
        yield view.name, "", view.meaning, ""
        for _, name, *_ in connection.execute(f"PRAGMA table_info({view.name})"):
            yield view.name, name, *meaning_of(view, name)


def create(connection: sqlite3.Connection, facts: Mapping[str, str]) -> None:
    """Create tables and views in an empty database, with the rows of tables that never change."""
    connection.execute("BEGIN IMMEDIATE")
    for statement in statements():
        connection.execute(statement)
    for table in LOOKUPS:
        connection.executemany(table.insert(), table.rows)
    info = [(number, *row) for number, row in enumerate(info_rows(connection))]
    connection.executemany(TABLE_BY_NAME["schema_info"].insert(), info)
    meta = {"schema_version": str(VERSION), "schema_fingerprint": fingerprint(), **facts}
    connection.executemany(TABLE_BY_NAME["meta"].insert(), meta.items())
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


def first_numbers(connection: sqlite3.Connection) -> dict[str, int]:
    """Return the first free number of ``seq`` and of each numbered table."""
    largest = {"seq": "SELECT max(last_seq) FROM chunks"}
    for name in _GIVE_NUMBERS:
        largest[name] = f"SELECT max({TABLE_BY_NAME[name].key[0]}) FROM {name}"
    return {
        name: (connection.execute(query).fetchone()[0] or 0) + 1 for name, query in largest.items()
    }


def is_ours(connection: sqlite3.Connection) -> bool:
    """
    Return whether tables and views have exactly the SQL that ``create`` uses.

    The file is untrusted input: another table can have other types, and another view can compute for
    hours.
    """
    found = connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL")
    return dict(found) == _SQL_BY_NAME


_PARTS: tuple[Table | View, ...] = (*TABLES, *VIEWS)
_SQL_BY_NAME = {part.name: part.sql() for part in _PARTS}

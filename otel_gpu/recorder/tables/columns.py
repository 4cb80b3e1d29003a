"""
Columns, tables and views: their meanings, and the SQL that creates them.

The range of a column is written once. SQLite checks the type when a row is written. A reader also checks
the range, because the file is untrusted input.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, NamedTuple

Row = tuple[Any, ...]
"""Values in the order of a table's columns."""

MAX_TEXT = 4_096
"""Maximum characters of a name."""
MAX_JSON = 262_144
"""Maximum characters of a JSON document."""
MAX_INTEGER = (1 << 63) - 1
"""The largest integer of SQLite."""


class ColumnKind(NamedTuple):
    """A type of SQLite with bounds; of text, ``most`` is its length."""

    sql: str
    least: int | None = None
    most: int | None = None


U64 = ColumnKind("INTEGER", 0, MAX_INTEGER)
U32 = ColumnKind("INTEGER", 0, (1 << 32) - 1)
U16 = ColumnKind("INTEGER", 0, (1 << 16) - 1)
U8 = ColumnKind("INTEGER", 0, (1 << 8) - 1)
# Id of a process or thread; negative: an import does not have it.
PID = ColumnKind("INTEGER", -(1 << 31), (1 << 32) - 1)
S64 = ColumnKind("INTEGER", -MAX_INTEGER - 1, MAX_INTEGER)
S32 = ColumnKind("INTEGER", -(1 << 31), (1 << 31) - 1)
# 64 bits of an address, a handle or an id, as a signed number.
WORD = ColumnKind("INTEGER", -MAX_INTEGER - 1, MAX_INTEGER)
REAL = ColumnKind("REAL")
TEXT = ColumnKind("TEXT", 0, MAX_TEXT)
JSON = ColumnKind("TEXT", 0, MAX_JSON)
# A trace id has 16 bytes, a span id 8.
SPAN_ID = ColumnKind("BLOB", 0, 16)


class ColumnClock(StrEnum):
    """The clock of a column of times."""

    MONOTONIC = "CLOCK_MONOTONIC"
    UNIX = "CLOCK_REALTIME"


class Column(NamedTuple):
    """
    One column.

    Attributes:
        meaning: Its meaning, also in ``schema_info``.
        unit: Unit of numbers that have one: ``ns``, ``bytes``.
        made_of: The SQL that computes it from other columns; such a column is not stored.
        is_nullable: Whether it can be NULL; ``meaning`` states what NULL means.
        clock: The clock of times in nanoseconds; None: the column is not a time.
        refers_to: The table that has the key of this name or number; empty: none.
    """

    name: str
    kind: ColumnKind
    meaning: str
    unit: str = ""
    made_of: str = ""
    is_nullable: bool = False
    clock: ColumnClock | None = None
    refers_to: str = ""

    def sql(self) -> str:
        """Return the definition of the column."""
        if self.made_of:
            return f"{self.name} {self.kind.sql} GENERATED ALWAYS AS ({self.made_of}) VIRTUAL"
        return f"{self.name} {self.kind.sql}{'' if self.is_nullable else ' NOT NULL'}"

    def is_sound(self) -> str:
        """Return the SQL condition that a value is in its bounds; empty without bounds."""
        if self.kind in (S64, REAL):
            return ""
        value = self.name if self.kind.sql == "INTEGER" else f"length({self.name})"
        sound = f"{value} BETWEEN {self.kind.least} AND {self.kind.most}"
        return f"({self.name} IS NULL OR {sound})" if self.is_nullable else sound


class Table:
    """
    One table; the first ``key_length`` columns are its primary key.

    A key of one integer is also the position of a row in the file.

    Attributes:
        rows: Rows of a table that never changes.
        stored: The columns that are written, without computed ones.
        key: Names of the columns of its primary key.
        select: The query of its rows, to which a condition can be added. The last value of each row is
            1 if the others are in their bounds.
    """

    def __init__(
        self,
        name: str,
        meaning: str,
        *columns: Column,
        key_length: int = 1,
        rows: Iterable[Row] = (),
    ) -> None:
        self.name, self.meaning, self.columns, self.rows = name, meaning, columns, tuple(rows)
        self.stored = tuple(column for column in columns if not column.made_of)
        self.key = tuple(column.name for column in columns[:key_length])
        self._names = ", ".join(column.name for column in self.stored)
        sound = " AND ".join(filter(None, (column.is_sound() for column in self.stored))) or "1"
        self.select = f"SELECT {self._names}, {sound} FROM {name}"

    def sql(self) -> str:
        """Return the statement that creates the table."""
        columns = ", ".join(column.sql() for column in self.columns)
        if len(self.key) == 1 and self.columns[0].kind.sql == "INTEGER":
            columns = columns.replace(" NOT NULL", " PRIMARY KEY", 1)
            return f"CREATE TABLE {self.name} ({columns}) STRICT"
        key = ", ".join(self.key)
        return f"CREATE TABLE {self.name} ({columns}, PRIMARY KEY ({key})) STRICT, WITHOUT ROWID"

    def insert(self, *, replace: bool = False) -> str:
        """Return the statement that inserts a row; ``replace``: or replaces the one with its key."""
        places = ", ".join("?" * len(self.stored))
        verb = "INSERT OR REPLACE" if replace else "INSERT"
        return f"{verb} INTO {self.name} ({self._names}) VALUES ({places})"


Meaning = str | tuple[str, str]
"""Meaning of a column of a view, or meaning and unit."""


class View:
    """One view; ``columns`` are meanings that differ from ``views.MEANINGS``, by name."""

    def __init__(self, name: str, meaning: str, query: str, /, **columns: Meaning) -> None:
        self.name, self.meaning, self.query, self.columns = name, meaning, query, columns

    def sql(self) -> str:
        """Return the statement that makes it."""
        return f"CREATE VIEW {self.name} AS {' '.join(self.query.split())}"

"""
Columns, tables and views: what is said about each, and the SQL that makes it.

What a column may hold is written down once. SQLite checks the type when a row is
written; a reader checks the range as well, since a file may come from anywhere.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

Row = tuple[Any, ...]
"""Values in the order of a table's columns."""

MAX_TEXT = 4_096
"""Characters of a name."""
MAX_JSON = 262_144
"""Characters of a JSON document."""
MAX_INTEGER = (1 << 63) - 1
"""SQLite's integers are signed."""


class ColumnKind(NamedTuple):
    """What a column may hold: a type of SQLite, and bounds; of text, ``most`` is its length."""

    sql: str
    least: int | None = None
    most: int | None = None


U64 = ColumnKind("INTEGER", 0, MAX_INTEGER)
U32 = ColumnKind("INTEGER", 0, (1 << 32) - 1)
U16 = ColumnKind("INTEGER", 0, (1 << 16) - 1)
U8 = ColumnKind("INTEGER", 0, (1 << 8) - 1)
# Of a process or thread; negative: of an import that does not say it.
PID = ColumnKind("INTEGER", -(1 << 31), (1 << 32) - 1)
S64 = ColumnKind("INTEGER", -MAX_INTEGER - 1, MAX_INTEGER)
S32 = ColumnKind("INTEGER", -(1 << 31), (1 << 31) - 1)
# 64 bits that mean an address, a handle or an id: shown as a signed number.
WORD = ColumnKind("INTEGER", -MAX_INTEGER - 1, MAX_INTEGER)
REAL = ColumnKind("REAL")
TEXT = ColumnKind("TEXT", 0, MAX_TEXT)
JSON = ColumnKind("TEXT", 0, MAX_JSON)
# A trace id has 16 bytes, a span id 8.
SPAN_ID = ColumnKind("BLOB", 0, 16)


class Column(NamedTuple):
    """
    One column.

    Attributes:
        meaning: What it says, for people and for programs that ask ``schema_info``. It may be
            NULL where that says what NULL means.
        unit: Of numbers that have one: ``ns``, ``bytes``.
        made_of: The SQL that computes it from other columns; it takes no room.
    """

    name: str
    kind: ColumnKind
    meaning: str
    unit: str = ""
    made_of: str = ""

    @property
    def optional(self) -> bool:
        """Whether it may be NULL."""
        return "NULL" in self.meaning

    def sql(self) -> str:
        """Return the definition."""
        if self.made_of:
            return f"{self.name} {self.kind.sql} GENERATED ALWAYS AS ({self.made_of}) VIRTUAL"
        return f"{self.name} {self.kind.sql}{'' if self.optional else ' NOT NULL'}"

    def is_sound(self) -> str:
        """Return the SQL condition that a value lies in its bounds; empty if it has none."""
        if self.kind in (S64, REAL):
            return ""
        value = self.name if self.kind.sql == "INTEGER" else f"length({self.name})"
        sound = f"{value} BETWEEN {self.kind.least} AND {self.kind.most}"
        return f"({self.name} IS NULL OR {sound})" if self.optional else sound


class Table:
    """
    One table; the first ``key_length`` columns are its primary key.

    A key of a single integer is also where a row lies in the file.

    Attributes:
        rows: Those of a table that never grows, which says what numbers or words mean.
        stored: The columns that rows are written with.
        key: The names of those that are its primary key.
        select: The query for its rows, to which a condition can be added; the last value of each
            row says whether the others lie in their bounds.
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
        """Return the statement that makes it."""
        columns = ", ".join(column.sql() for column in self.columns)
        if len(self.key) == 1 and self.columns[0].kind.sql == "INTEGER":
            columns = columns.replace(" NOT NULL", " PRIMARY KEY", 1)
            return f"CREATE TABLE {self.name} ({columns}) STRICT"
        key = ", ".join(self.key)
        return f"CREATE TABLE {self.name} ({columns}, PRIMARY KEY ({key})) STRICT, WITHOUT ROWID"

    def insert(self, *, replace: bool = False) -> str:
        """Return the statement that writes a row; ``replace``: also over an older one."""
        places = ", ".join("?" * len(self.stored))
        verb = "INSERT OR REPLACE" if replace else "INSERT"
        return f"{verb} INTO {self.name} ({self._names}) VALUES ({places})"


Meaning = str | tuple[str, str]
"""What a column of a view says, and its unit if it has one."""


class View:
    """One view; ``columns`` are its meanings by name, where they are its own."""

    def __init__(self, name: str, meaning: str, query: str, /, **columns: Meaning) -> None:
        self.name, self.meaning, self.query, self.columns = name, meaning, query, columns

    def sql(self) -> str:
        """Return the statement that makes it."""
        return f"CREATE VIEW {self.name} AS {' '.join(self.query.split())}"

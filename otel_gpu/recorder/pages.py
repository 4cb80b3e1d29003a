"""
Reads rows of a store page by page, and checks their types and bounds.

No transaction stays open between pages, so a slow reader does not keep the writer from writing or
emptying its log. Rows can vanish between pages, when their chunk is removed.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from otel_gpu.recorder.problems import explained
from otel_gpu.recorder.tables.columns import Column, Row
from otel_gpu.recorder.tables.schema import TABLE_BY_NAME

PAGE_ROWS = 2_048
_QUERIES = {table.name: table.select for table in TABLE_BY_NAME.values()}
_ORDERS = {table.name: ", ".join(table.key) for table in TABLE_BY_NAME.values()}
_TYPES = {"INTEGER": int, "REAL": float, "TEXT": str, "BLOB": bytes}


class Pages:
    """
    Reads tables. Each method raises ``StoreError`` if the file cannot be read further.

    ``rejected`` counts invalid rows by table. Only a damaged or forged store has any.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._known: dict[str, set[tuple[type, ...]]] = {}
        self.rejected: Counter[str] = Counter()

    def between(self, table: str, first: int, last: int, condition: str = "1") -> Iterator[Row]:
        """Yield the rows of a table whose key begins with ``seq``, in the order of the key."""
        key, order = TABLE_BY_NAME[table].key, _ORDERS[table]
        where, after = f"{_QUERIES[table]} WHERE", f"({order}) > ({', '.join('?' * len(key))})"
        limits = f"AND seq <= ? AND {condition} ORDER BY {order} LIMIT {PAGE_ROWS}"
        page = self.fetch(f"{where} seq >= ? {limits}", (first, last))
        while page:
            yield from self._valid(table, page)
            if len(page) < PAGE_ROWS:
                return
            page = self.fetch(f"{where} {after} {limits}", (*page[-1][: len(key)], last))

    def where(self, table: str, condition: str, values: Sequence[object] = ()) -> list[Row]:
        """Return the rows that meet a condition, in the order of the key."""
        query = f"{_QUERIES[table]} WHERE {condition} ORDER BY {_ORDERS[table]}"
        return list(self._valid(table, self.fetch(query, values)))

    def fetch(self, query: str, values: Sequence[object] = ()) -> list[Row]:
        """Return all rows of one of our queries, unchecked."""
        with explained(self._path, "cannot be read any further"):
            try:
                return self._connection.execute(query, values).fetchall()
            except sqlite3.OperationalError as error:
                if "decode" not in str(error) or self._connection.text_factory is _decode:
                    raise
                # Text that is not UTF-8 gets replacement characters.
                self._connection.text_factory = _decode
                return self._connection.execute(query, values).fetchall()

    def reject(self, table: str) -> None:
        """Count an invalid row."""
        self.rejected[table] += 1

    def _valid(self, table: str, rows: Sequence[Row]) -> Iterator[Row]:
        known = self._known.setdefault(table, set())
        for row in rows:
            types = tuple(map(type, row))
            if types not in known:
                if not _are_right(types, TABLE_BY_NAME[table].stored):
                    self.reject(table)
                    continue
                known.add(types)
            if row[-1] == 1:
                yield row[:-1]
            else:
                self.reject(table)


def _are_right(types: Sequence[type], columns: Sequence[Column]) -> bool:
    # The last value is 1 if the others are in their bounds; NULL: SQLite could not compare them.
    return types[-1] is int and all(
        found is _TYPES[column.kind.sql] or (column.is_nullable and found is type(None))
        for found, column in zip(types[:-1], columns, strict=True)
    )


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "replace")

"""The first free numbers of a store: none is given out twice."""

import sqlite3

_LARGEST = {
    "seq": "SELECT max(last_seq) FROM chunks",
    "chunk": "SELECT max(chunk) FROM chunks",
    "batch": "SELECT max(batch) FROM batches",
    "writer": "SELECT max(writer) FROM writers",
    "captures": "SELECT max(capture) FROM captures",
    "processes": "SELECT max(process) FROM processes",
    "devices": "SELECT max(cuda_device) FROM devices",
    "stacks": "SELECT max(stack) FROM stacks",
    "series": "SELECT max(series) FROM series",
    "probes": "SELECT max(probe) FROM probes",
}


def first_numbers(connection: sqlite3.Connection) -> dict[str, int]:
    """Return the first free number of rows, chunks, batches, writers, and tables of names."""
    return {
        name: (connection.execute(query).fetchone()[0] or 0) + 1 for name, query in _LARGEST.items()
    }

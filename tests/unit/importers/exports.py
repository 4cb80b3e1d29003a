"""Exports of Nsight Systems, small ones, from the rows that matter to a test."""

import sqlite3
from contextlib import closing

UTC_NS = 1_750_000_000_000_000_000
US = 1_000
PID, MAIN = 144, 144

_TABLES = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, systemClockNs INTEGER",
    "TARGET_INFO_GPU": "id INTEGER, name TEXT, computeMajor INTEGER, computeMinor INTEGER, "
    "smCount INTEGER, totalMemory INTEGER",
    "ThreadNames": "nameId INTEGER NOT NULL, globalTid INTEGER",
    "CUPTI_ACTIVITY_KIND_KERNEL": '"start" INTEGER NOT NULL, "end" INTEGER NOT NULL, deviceId INTEGER, '
    "streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": '"start" INTEGER, "end" INTEGER, deviceId INTEGER, streamId INTEGER, '
    "correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMSET": '"start" INTEGER, "end" INTEGER, deviceId INTEGER, streamId INTEGER, '
    "correlationId INTEGER, globalPid INTEGER, bytes INTEGER, memKind INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": '"start" INTEGER, "end" INTEGER, globalTid INTEGER, '
    "correlationId INTEGER, nameId INTEGER",
    "NVTX_EVENTS": '"start" INTEGER, "end" INTEGER, eventType INTEGER, globalTid INTEGER, text TEXT, textId INTEGER',
}


def whose(pid=PID, tid=0):
    """The number by which an export calls a process, or a thread of it."""
    return (1 << 48) | (pid << 24) | tid


class Export:
    """An export that is being written; rows are added, and ``write`` makes the file."""

    def __init__(self, *, without=()):
        self.rows = {name: [] for name in _TABLES if name not in without}
        self.strings = {}
        # Statements, and rows of the tables that they make.
        self.extra = []
        self.fill = []
        self.add("META_DATA_EXPORT", "EXPORT_PRODUCT_VERSION", "2026.2.1")
        self.add("META_DATA_EXPORT", "EXPORT_SCHEMA_VERSION", "3.25.0")
        self.add("TARGET_INFO_SESSION_START_TIME", UTC_NS, 0)

    def add(self, table, *values):
        """Add a row as it is; nothing where there is no such table."""
        if table in self.rows:
            self.rows[table].append(values)

    def string(self, text):
        """The number of a text."""
        return self.strings.setdefault(text, len(self.strings) + 1)

    def kernel(
        self,
        start_us,
        duration_us,
        correlation=0,
        name="void gemm<float>(int)",
        pid=PID,
        device=0,
        stream=7,
    ):
        """Something that a device computed."""
        start = start_us * US
        self.add("CUPTI_ACTIVITY_KIND_KERNEL", start, start + duration_us * US, device, stream, correlation,
                 whose(pid), self.string(name), self.string("gemm"))  # fmt: skip

    def copy(self, start_us, duration_us, correlation=0, size=4096, way=1, memory=(0, 2)):
        """A copy."""
        start = start_us * US
        self.add("CUPTI_ACTIVITY_KIND_MEMCPY", start, start + duration_us * US, 0, 7, correlation,
                 whose(), size, way, *memory)  # fmt: skip

    def call(
        self, start_us, duration_us, correlation=0, name="cudaLaunchKernel_v7000", pid=PID, tid=MAIN
    ):
        """A call of the runtime."""
        start = start_us * US
        self.add("CUPTI_ACTIVITY_KIND_RUNTIME", start, start + duration_us * US, whose(pid, tid),
                 correlation, self.string(name))  # fmt: skip

    def range(self, start_us, duration_us, text, kind=59, pid=PID):
        """A range of NVTX."""
        start = start_us * US
        self.add("NVTX_EVENTS", start, start + duration_us * US, kind, whose(pid, pid), text, None)

    def write(self, path):
        """Write it all."""
        with closing(sqlite3.connect(path)) as connection, connection:
            for name, rows in self.rows.items():
                connection.execute(f"CREATE TABLE {name} ({_TABLES[name]})")
                if rows:
                    marks = ", ".join("?" * len(rows[0]))
                    connection.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
            if "StringIds" in self.rows:
                pairs = [(number, text) for text, number in self.strings.items()]
                connection.executemany("INSERT INTO StringIds VALUES (?, ?)", pairs)
            for statement in self.extra:
                connection.execute(statement)
            for table, rows in self.fill:
                for row in rows:
                    connection.execute(
                        f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row
                    )
        return path

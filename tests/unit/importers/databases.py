"""Databases as Ingero writes them, from the rows that matter to a test."""

import sqlite3
from contextlib import closing

T0 = 1_774_000_020_000_000_000  # the start of a minute
US = 1_000
MS = 1_000_000
SECOND = 1_000_000_000
PID = 4242

RUNTIME, HOST, DRIVER, NET, GRAPH = 1, 3, 4, 7, 8
OPS = {
    "cudaMalloc": (RUNTIME, 1),
    "cudaFree": (RUNTIME, 2),
    "cudaLaunchKernel": (RUNTIME, 3),
    "cudaMemcpy": (RUNTIME, 4),
    "cudaStreamSync": (RUNTIME, 5),
    "cudaDeviceSync": (RUNTIME, 6),
    "cudaMemcpyAsync": (RUNTIME, 7),
    "cudaMemcpy2D": (RUNTIME, 9),
    "cuLaunchKernel": (DRIVER, 1),
    "cuMemAlloc": (DRIVER, 5),
    "sched_switch": (HOST, 1),
    "process_exec": (HOST, 5),
    "process_exit": (HOST, 6),
    "process_fork": (HOST, 7),
    "net_recv": (NET, 2),
    "graphLaunch": (GRAPH, 4),
}

_EVENTS = """CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, timestamp INTEGER NOT NULL, pid INTEGER NOT NULL,
    tid INTEGER NOT NULL, source INTEGER NOT NULL, op INTEGER NOT NULL, duration INTEGER NOT NULL,
    gpu_id INTEGER NOT NULL DEFAULT 0, arg0 INTEGER NOT NULL DEFAULT 0,
    arg1 INTEGER NOT NULL DEFAULT 0, ret_code INTEGER NOT NULL DEFAULT 0,
    stack_hash INTEGER NOT NULL DEFAULT 0, stack_ips TEXT NOT NULL DEFAULT '',
    cgroup_id INTEGER NOT NULL DEFAULT 0)"""
_TABLES = (
    "CREATE TABLE stack_traces (hash INTEGER PRIMARY KEY, ips TEXT NOT NULL, frames TEXT NOT NULL)",
    "CREATE TABLE causal_chains (id TEXT PRIMARY KEY, summary TEXT NOT NULL)",
    "CREATE TABLE ops (source_id INTEGER, op_id INTEGER, name TEXT, description TEXT)",
    "CREATE TABLE schema_info (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE system_snapshots (id INTEGER PRIMARY KEY, timestamp INTEGER, load_avg REAL)",
    """CREATE TABLE sessions (id INTEGER PRIMARY KEY, started_at INTEGER NOT NULL,
    stopped_at INTEGER NOT NULL DEFAULT 0, gpu_model TEXT NOT NULL DEFAULT '',
    cpu_cores INTEGER NOT NULL DEFAULT 0, ingero_ver TEXT NOT NULL DEFAULT '')""",
    "CREATE TABLE process_names (pid INTEGER PRIMARY KEY, name TEXT NOT NULL, seen_at INTEGER)",
    """CREATE TABLE event_aggregates (bucket INTEGER NOT NULL, source INTEGER NOT NULL,
    op INTEGER NOT NULL, pid INTEGER NOT NULL, count INTEGER NOT NULL, stored INTEGER NOT NULL,
    sum_dur INTEGER NOT NULL, min_dur INTEGER NOT NULL, max_dur INTEGER NOT NULL,
    sum_arg0 INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (bucket, source, op, pid))""",
    """CREATE TABLE cgroup_metadata (cgroup_id INTEGER PRIMARY KEY, container_id TEXT,
    cgroup_path TEXT, pod_name TEXT, namespace TEXT)""",
)
_NEWER = (
    "ALTER TABLE events ADD COLUMN node TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE events ADD COLUMN rank INTEGER",
    "ALTER TABLE events ADD COLUMN comm TEXT NOT NULL DEFAULT ''",
    "CREATE TABLE annotations (id INTEGER PRIMARY KEY, label TEXT)",
)


class Database:
    """
    A database in the making.

    Args:
        path: Where it goes.
        newer: With the columns and tables that later versions added.
    """

    def __init__(self, path, *, newer=False):
        self.path = path
        with closing(sqlite3.connect(path)) as connection:
            for statement in (_EVENTS, *_TABLES, *(_NEWER if newer else ())):
                connection.execute(statement)

    def run(self, statement, *parameters):
        """Do anything to it."""
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute(statement, parameters)
            connection.commit()
        return self

    def insert(self, table, **values):
        """Add a row."""
        names, places = ", ".join(values), ", ".join("?" * len(values))
        return self.run(f"INSERT INTO {table} ({names}) VALUES ({places})", *values.values())

    def event(self, op, timestamp, duration=0, *, pid=PID, tid=None, **values):
        """Add an event; ``timestamp`` is what the tool would write there."""
        source, number = OPS[op] if isinstance(op, str) else op
        return self.insert(
            "events",
            timestamp=timestamp,
            pid=pid,
            tid=pid if tid is None else tid,
            source=source,
            op=number,
            duration=duration,
            **values,
        )

    def counted(self, op, count, stored, sum_dur, *, pid=PID, minute=0, **values):
        """Add a minute of ``event_aggregates``."""
        source, number = OPS[op]
        mean = sum_dur // max(1, count)
        row = {"min_dur": mean, "max_dur": mean} | values
        return self.insert(
            "event_aggregates",
            bucket=T0 + minute * 60 * SECOND,
            source=source,
            op=number,
            pid=pid,
            count=count,
            stored=stored,
            sum_dur=sum_dur,
            **row,
        )

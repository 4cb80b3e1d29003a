"""Where and when a database was made, as far as it says so, and what it calls things."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from otel_gpu.errors import RecordingError
from otel_gpu.importers.ingero.rows import IS_DATED, IS_WANTED, MAX_NAME, START, Events
from otel_gpu.importers.sqlite_source import SqliteSource

_MAX_HOSTS = 100
_MAX_OPS = 1_000
_MAX_TEXT = 200
_TEXTS: Mapping[str, str] = {
    "ingero_ver": "version",
    "gpu_model": "gpu",
    "gpu_driver": "driver",
    "cuda_ver": "cuda",
    "cpu_model": "cpu",
    "kernel": "kernel",
    "os_release": "os",
    "python_ver": "python",
}
_MAX_CPUS = 1_000_000
_LAST_NS = (1 << 63) - 1


class Origin(NamedTuple):
    """
    Where a capture comes from.

    Attributes:
        host: Which host's events are meant; empty: all that there are.
        name: What the host is called; empty where that is not known.
        start_unix_ns: When the capture began: no later than its first event.
        end_unix_ns: When it ended.
        cpus: How many CPUs the host has; 0: not known.
        sessions: How often the tool wrote into the file.
        texts: Versions and models, by what they are of.
        ops: Names of operations, by source and number.
    """

    host: str
    name: str
    start_unix_ns: int
    end_unix_ns: int
    cpus: int
    sessions: int
    texts: Mapping[str, str]
    ops: Mapping[tuple[int, int], str]

    def described(self) -> dict[str, Any]:
        """Return what a reader may want to know of it."""
        described: dict[str, Any] = {"tool": "ingero", **self.texts}
        if self.name:
            described["host"] = self.name
        if self.cpus:
            described["cpus"] = self.cpus
        return described

    def host_facts(self) -> dict[str, Any]:
        """Return ``host`` of a CAPTURE record; what is not known is left out."""
        facts = {"name": self.name, "os_version": self.texts.get("kernel"), "cpus": self.cpus}
        return {key: value for key, value in facts.items() if value}


class _Session(NamedTuple):
    start_unix_ns: int
    end_unix_ns: int
    cpus: int
    texts: Mapping[str, str]


def read_origin(
    path: Path, source: SqliteSource, tables: Mapping[str, frozenset[str]], host: str
) -> Origin:
    """
    Read where a database comes from.

    Raises:
        RecordingError: It holds several hosts, or not the one that is named.
    """
    hosts = _read_hosts(source, tables)
    if host and host not in hosts:
        raise RecordingError(f"{path}: holds nothing of {host}", hint=_list(hosts))
    if len(hosts) > 1 and not host:
        raise RecordingError(f"{path}: holds events of {len(hosts)} hosts", hint=_list(hosts))
    name = host or (hosts[0] if hosts else "")
    is_part = len(hosts) > 1
    first, last = _read_extent(Events(source, tables["events"], host if is_part else ""))
    sessions = _read_sessions(source, tables, host if is_part else "")
    # Of several, the one in which the events begin.
    begun = [session for session in sessions if 0 < session.start_unix_ns <= (first or _LAST_NS)]
    unknown = _Session(first, last, 0, {})
    session = max(begun, key=lambda one: one.start_unix_ns, default=unknown)
    latest = max((session.end_unix_ns for session in sessions), default=0)
    return Origin(
        host if is_part else "",
        name,
        session.start_unix_ns,
        max(session.start_unix_ns, last, latest if len(sessions) == 1 else 0),
        session.cpus,
        len(sessions),
        {**session.texts, **_read_schema_version(source, tables)},
        _read_ops(source, tables),
    )


def _list(hosts: list[str]) -> str:
    if not any(hosts):
        return "it does not say of which hosts it is"
    return f"name one with --host: {', '.join(hosts)}"


def _read_hosts(source: SqliteSource, tables: Mapping[str, frozenset[str]]) -> list[str]:
    if "node" not in tables["events"]:
        return []
    query = f"SELECT DISTINCT substr(node, 1, {MAX_NAME}) FROM events LIMIT {_MAX_HOSTS}"
    return sorted(_clean(node) for (node,) in source.rows(query) if isinstance(node, str))


def _read_extent(events: Events) -> tuple[int, int]:
    """Return when the first row that makes sense began and the last one ended; 0 without any."""
    where = events.where(f"{IS_WANTED} AND {IS_DATED}")
    ((first, last),) = events.select(
        f"SELECT min({START}), max({START} + duration) FROM events {where}"
    )
    return (first, last) if type(first) is int and type(last) is int else (0, 0)


def _read_sessions(
    source: SqliteSource, tables: Mapping[str, frozenset[str]], host: str
) -> list[_Session]:
    columns = tables.get("sessions", frozenset())
    if not {"started_at", "stopped_at"} <= columns or (host and "node" not in columns):
        return []
    texts = [name for name in _TEXTS if name in columns]
    cpus = "cpu_cores" if "cpu_cores" in columns else "0"
    picked = "".join(f", substr({name}, 1, {_MAX_TEXT})" for name in texts)
    where, parameters = ("WHERE node = ?", (host,)) if host else ("", ())
    query = f"SELECT started_at, stopped_at, {cpus}{picked} FROM sessions {where} LIMIT 10000"
    sessions = []
    for start, end, cores, *values in source.rows(query, parameters):
        if type(start) is int and type(end) is int:
            named = zip(texts, values, strict=True)
            said = {_TEXTS[name]: _clean(text) for name, text in named if isinstance(text, str)}
            known = cores if type(cores) is int and 0 < cores < _MAX_CPUS else 0
            sessions.append(
                _Session(start, end, known, {key: text for key, text in said.items() if text})
            )
    return sessions


def _read_schema_version(
    source: SqliteSource, tables: Mapping[str, frozenset[str]]
) -> dict[str, str]:
    if not {"key", "value"} <= tables.get("schema_info", frozenset()):
        return {}
    query = f"SELECT substr(value, 1, {_MAX_TEXT}) FROM schema_info WHERE key = 'version' LIMIT 1"
    versions = [value for (value,) in source.rows(query) if isinstance(value, str)]
    return {"schema": _clean(versions[0])} if versions else {}


def _read_ops(
    source: SqliteSource, tables: Mapping[str, frozenset[str]]
) -> dict[tuple[int, int], str]:
    if not {"source_id", "op_id", "name"} <= tables.get("ops", frozenset()):
        return {}
    query = f"SELECT source_id, op_id, substr(name, 1, {MAX_NAME}) FROM ops LIMIT {_MAX_OPS}"
    return {
        (number, op): _clean(name)
        for number, op, name in source.rows(query)
        if type(number) is int and type(op) is int and isinstance(name, str) and name
    }


def _clean(text: str) -> str:
    # It is shown to people.
    return "".join(c if c.isprintable() else "?" for c in text)

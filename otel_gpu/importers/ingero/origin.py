"""Where and when a database was made, as far as it says so, and what it calls things."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from otel_gpu.errors import RecordingError
from otel_gpu.importers.ingero.rows import IS_DATED, IS_WANTED, LAST_NS, MAX_NAME, START, Database

_MAX_HOSTS = 100
_MAX_OPS = 1_000
_MAX_TEXT = 200
_MAX_SESSIONS = 10_000
_MAX_CPUS = 1_000_000
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


class Origin(NamedTuple):
    """
    Where a capture comes from.

    It began no later than its first event. A ``name`` of the host that is empty and 0 ``cpus`` are
    not known. ``sessions`` is how often the tool wrote into the file, ``texts`` are versions and
    models by what they are of, and ``ops`` names of operations by source and number.
    """

    name: str
    start_unix_ns: int
    end_unix_ns: int
    cpus: int
    sessions: int
    texts: Mapping[str, str]
    ops: Mapping[tuple[int, int], str]

    def described(self) -> dict[str, Any]:
        """Return what a reader may want to know of it."""
        known = {"host": self.name, "cpus": self.cpus}
        return {
            "tool": "ingero",
            **self.texts,
            **{key: fact for key, fact in known.items() if fact},
        }

    def host_facts(self) -> dict[str, Any]:
        """Return ``host`` of a CAPTURE record; what is not known is left out."""
        facts = {"name": self.name, "os_version": self.texts.get("kernel"), "cpus": self.cpus}
        return {key: value for key, value in facts.items() if value}


class _Session(NamedTuple):
    start_unix_ns: int
    end_unix_ns: int
    cpus: int
    texts: Mapping[str, str]


def read_origin(path: Path, whole: Database, host: str) -> tuple[Origin, Database]:
    """
    Return where a database comes from, and what is meant of it.

    Raises:
        RecordingError: It holds several hosts, or not the one that is named.
    """
    hosts = _read_hosts(whole)
    if host and host not in hosts:
        raise RecordingError(f"{path}: holds nothing of {host}", hint=_list(hosts))
    if len(hosts) > 1 and not host:
        raise RecordingError(f"{path}: holds events of {len(hosts)} hosts", hint=_list(hosts))
    database = whole._replace(host=host) if len(hosts) > 1 else whole
    first, last = _read_extent(database)
    sessions = _read_sessions(database)
    # Of several, the one in which the events begin.
    begun = [session for session in sessions if 0 < session.start_unix_ns <= (first or LAST_NS)]
    unknown = _Session(first, last, 0, {})
    session = max(begun, key=lambda one: one.start_unix_ns, default=unknown)
    end_unix_ns = sessions[0].end_unix_ns if len(sessions) == 1 else 0
    origin = Origin(
        host or (hosts[0] if hosts else ""),
        session.start_unix_ns,
        max(session.start_unix_ns, last, end_unix_ns),
        session.cpus,
        len(sessions),
        {**session.texts, **_read_schema_version(database)},
        _read_ops(database),
    )
    return origin, database


def _list(hosts: list[str]) -> str:
    if not any(hosts):
        return "it does not say of which hosts it is"
    return f"name one with --host: {', '.join(hosts)}"


def _read_hosts(database: Database) -> list[str]:
    if not database.has("events", "node"):
        return []
    nodes = database.events(f"DISTINCT substr(node, 1, {MAX_NAME})", rest=f"LIMIT {_MAX_HOSTS}")
    return sorted(_clean(node) for (node,) in nodes if isinstance(node, str))


def _read_extent(database: Database) -> tuple[int, int]:
    # When the first row that makes sense began and the last one ended; 0 without any.
    picked = f"min({START}), max({START} + duration)"
    ((first, last),) = database.events(picked, f"{IS_WANTED} AND {IS_DATED}")
    return (first, last) if type(first) is int and type(last) is int else (0, 0)


def _read_sessions(database: Database) -> list[_Session]:
    table, host = "sessions", database.host
    if not database.has(table, "started_at", "stopped_at", *["node"] * bool(host)):
        return []
    texts = [name for name in _TEXTS if database.has(table, name)]
    cpus = "cpu_cores" if database.has(table, "cpu_cores") else "0"
    picked = "".join(f", substr({name}, 1, {_MAX_TEXT})" for name in texts)
    where, parameters = ("WHERE node = ?", (host,)) if host else ("", ())
    query = f"SELECT started_at, stopped_at, {cpus}{picked} FROM {table} {where}"
    sessions = []
    for start, end, cores, *values in database.source.rows(
        f"{query} LIMIT {_MAX_SESSIONS}", parameters
    ):
        if type(start) is int and type(end) is int:
            named = zip(texts, values, strict=True)
            said = {_TEXTS[name]: _clean(text) for name, text in named if text and _is_text(text)}
            known = cores if type(cores) is int and 0 < cores < _MAX_CPUS else 0
            sessions.append(_Session(start, end, known, said))
    return sessions


def _read_schema_version(database: Database) -> dict[str, str]:
    if not database.has("schema_info", "key", "value"):
        return {}
    query = f"SELECT substr(value, 1, {_MAX_TEXT}) FROM schema_info WHERE key = 'version' LIMIT 1"
    versions = [_clean(value) for (value,) in database.source.rows(query) if _is_text(value)]
    return {"schema": versions[0]} if versions else {}


def _read_ops(database: Database) -> dict[tuple[int, int], str]:
    if not database.has("ops", "source_id", "op_id", "name"):
        return {}
    query = f"SELECT source_id, op_id, substr(name, 1, {MAX_NAME}) FROM ops LIMIT {_MAX_OPS}"
    return {
        (number, op): _clean(name)
        for number, op, name in database.source.rows(query)
        if type(number) is int and type(op) is int and name and _is_text(name)
    }


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _clean(text: str) -> str:
    # It is shown to people.
    return "".join(c if c.isprintable() else "?" for c in text)

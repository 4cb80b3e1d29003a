"""
Who is who: which processes use CUDA or come from such, whose a thread is, what they are called.

Everything is read before the events, which say too little while they come.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from otel_gpu.importers.ingero.ops import EXIT, FORK, HOST, SCHED_SWITCH
from otel_gpu.importers.ingero.rows import IS_CUDA, IS_DATED, MAX_NAME, Events
from otel_gpu.importers.sqlite_source import SqliteSource

MAX_PROCESSES = 4_096
"""Processes that are imported; those with the smallest numbers."""

_MAX_NAMES = 65_536
_MAX_PATH = 1_024
# Of switches, of summaries and, in old versions, of forks, pid and tid are not what they
# are called.
_TELLS_PROCESS = f"NOT (source = {HOST} AND op IN ({SCHED_SWITCH}, {FORK}, 20, 21))"


class Processes:
    """
    What the database knows of processes and threads.

    Attributes:
        pids: The processes that are imported: those that use CUDA, and their children.
        spans: First start and last end of the CUDA calls that have rows, by pid.
        forked: Those of them that a fork was seen to begin, by parent.
        births: When that was, by child.
        exits: When the last thread of a process was seen to end, if the first ended too.
    """

    def __init__(
        self, source: SqliteSource, tables: Mapping[str, frozenset[str]], events: Events
    ) -> None:
        self._events = events
        self._owners: dict[int, int] = {}
        self._known: set[int] = set()
        self._read_threads()
        self.spans = self._read_spans()
        query = f"SELECT DISTINCT pid FROM events {events.where(IS_CUDA)} ORDER BY 1"
        callers = _numbers(events.select(f"{query} LIMIT {MAX_PROCESSES}"))
        self.pids = {pid for (pid,) in callers}
        if "event_aggregates" in tables:
            self._read_counted(source)
        self._follow_forks()
        self.exits = self._read_exits()
        self._names = _read_names(source, tables)
        self._places = self._read_places(source, tables)

    def owner(self, tid: int) -> int | None:
        """Return the process of a thread of which only the number is known; None: not recorded."""
        if tid in self._owners:
            return self._owners[tid]
        return tid if tid in self._known else None

    def is_process(self, pid: int) -> bool:
        """Say whether a number was seen to be a process's, and not that of a thread."""
        return pid in self._known

    def name(self, number: int) -> str:
        """Return what a process or thread is called; empty where that is not known."""
        return self._names.get(number, "")

    def facts(self, pid: int) -> dict[str, Any]:
        """Return what is known of a process, as the body of a PROCESS record has it."""
        return {"comm": self.name(pid)} | self._places.get(pid, {})

    def _read_threads(self) -> None:
        query = f"SELECT DISTINCT pid, tid FROM events {self._events.where(_TELLS_PROCESS)}"
        ambiguous = set()
        for pid, tid in _numbers(self._events.select(f"{query} LIMIT {_MAX_NAMES}")):
            self._known.add(pid)
            if tid != pid and self._owners.setdefault(tid, pid) != pid:
                # The number was used again.
                ambiguous.add(tid)
        for tid in ambiguous | self._known:
            self._owners.pop(tid, None)

    def _read_spans(self) -> dict[int, tuple[int, int]]:
        query = (
            "SELECT pid, min(timestamp), max(timestamp + duration) FROM events "
            f"{self._events.where(f'{IS_CUDA} AND {IS_DATED}')} GROUP BY 1 LIMIT {_MAX_NAMES}"
        )
        return {pid: (first, last) for pid, first, last in _numbers(self._events.select(query))}

    def _read_counted(self, source: SqliteSource) -> None:
        # Of switches, the number is a thread's here too.
        for number, is_cuda in _numbers(
            source.rows(
                f"SELECT DISTINCT pid, {IS_CUDA} FROM event_aggregates "
                f"WHERE {_TELLS_PROCESS} ORDER BY 1 LIMIT {_MAX_NAMES}"
            )
        ):
            self._known.add(number)
            self._owners.pop(number, None)
            if is_cuda and len(self.pids) < MAX_PROCESSES:
                self.pids.add(number)

    def _follow_forks(self) -> None:
        where = self._events.where(f"source = {HOST} AND op = {FORK}")
        query = f"SELECT pid, arg1, max(timestamp) FROM events {where} GROUP BY 1, 2"
        children: dict[int, dict[int, int]] = {}
        for parent, child, born in _numbers(self._events.select(f"{query} LIMIT {_MAX_NAMES}")):
            children.setdefault(self.owner(parent) or parent, {})[child] = born
        self.forked: dict[int, list[int]] = {}
        self.births: dict[int, int] = {}
        waiting = sorted(self.pids)
        for parent in waiting:
            for child, born in children.get(parent, {}).items():
                if child in self._known and len(self.pids) < MAX_PROCESSES:
                    self.forked.setdefault(parent, []).append(child)
                    self.births[child] = born
                    if child not in self.pids:
                        self.pids.add(child)
                        # It is looked at in its turn.
                        waiting.append(child)

    def _read_exits(self) -> dict[int, int]:
        where = self._events.where(f"source = {HOST} AND op = {EXIT}")
        query = (
            f"SELECT pid, max(timestamp), max(tid = pid) FROM events {where} "
            f"GROUP BY 1 LIMIT {_MAX_NAMES}"
        )
        return {
            pid: last for pid, last, is_whole in _numbers(self._events.select(query)) if is_whole
        }

    def _read_places(
        self, source: SqliteSource, tables: Mapping[str, frozenset[str]]
    ) -> dict[int, dict[str, Any]]:
        """Return the cgroups and pods of processes, as the body of a PROCESS record has them."""
        columns = tables.get("cgroup_metadata", frozenset())
        if not {"cgroup_id", "cgroup_path"} <= columns or "cgroup_id" not in tables["events"]:
            return {}
        optional = ("container_id", "pod_name", "namespace")
        texts = ("cgroup_path", *(name for name in optional if name in columns))
        picked = ", ".join(f"substr({name}, 1, {_MAX_PATH})" for name in texts)
        places = {}
        for cgroup, *values in source.rows(
            f"SELECT cgroup_id, {picked} FROM cgroup_metadata LIMIT {_MAX_NAMES}"
        ):
            named = zip(texts, values, strict=True)
            places[cgroup] = {name: text for name, text in named if text and isinstance(text, str)}
        # Of a CUDA call the cgroup is the caller's; of a switch it is that of anybody.
        where = self._events.where(f"{IS_CUDA} AND cgroup_id > 0")
        query = f"SELECT DISTINCT pid, cgroup_id FROM events {where} LIMIT {_MAX_NAMES}"
        return {
            pid: _describe_place(places[cgroup])
            for pid, cgroup in _numbers(self._events.select(query))
            if cgroup in places
        }


def _read_names(source: SqliteSource, tables: Mapping[str, frozenset[str]]) -> dict[int, str]:
    if not {"pid", "name"} <= tables.get("process_names", frozenset()):
        return {}
    query = f"SELECT pid, substr(name, 1, {MAX_NAME}) FROM process_names LIMIT {_MAX_NAMES}"
    return {
        number: name
        for number, name in source.rows(query)
        if type(number) is int and isinstance(name, str)
    }


def _describe_place(place: Mapping[str, str]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if path := place.get("cgroup_path"):
        facts["cgroups"] = [f"0::{path}"]
    if container := place.get("container_id"):
        facts["mountinfo_container_id"] = container
    named = {"pod_name": "k8s.pod.name", "namespace": "k8s.namespace.name"}
    context = {key: place[name] for name, key in named.items() if name in place}
    if context:
        facts["otel_context"] = context
    return facts


def _numbers(rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[int, ...]]:
    return (row for row in rows if all(type(value) is int for value in row))

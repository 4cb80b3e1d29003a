"""
Who is who: which processes use CUDA or come from such, whose a thread is, what they are called.

Everything is read before the events, which say too little while they come.
"""

from collections.abc import Mapping
from typing import Any

from otel_gpu.importers.ingero.ops import EXIT, FORK, HOST, SCHED_SWITCH
from otel_gpu.importers.ingero.rows import IS_CUDA, IS_DATED, MAX_NAME, Database, whole_numbers

MAX_PROCESSES = 4_096
"""Processes that are imported; those with the smallest numbers."""

_MAX_NAMES = 65_536
_MAX_PATH = 1_024
# Of switches, of summaries and, in old versions, of forks, pid and tid are not what they
# are called.
_TELLS_PROCESS = f"NOT (source = {HOST} AND op IN ({SCHED_SWITCH}, {FORK}, 20, 21))"
_LIMIT = f"LIMIT {_MAX_NAMES}"


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

    def __init__(self, database: Database) -> None:
        self._database = database
        self._owners: dict[int, int] = {}
        self._known: set[int] = set()
        self._read_threads()
        times = "min(timestamp), max(timestamp + duration)"
        self.spans = {
            pid: (first, last)
            for pid, first, last in whole_numbers(
                database.events(
                    f"pid, {times}", f"{IS_CUDA} AND {IS_DATED}", f"GROUP BY 1 {_LIMIT}"
                )
            )
        }
        callers = database.events("DISTINCT pid", IS_CUDA, f"ORDER BY 1 LIMIT {MAX_PROCESSES}")
        self.pids = {pid for (pid,) in whole_numbers(callers)}
        if "event_aggregates" in database.tables:
            self._read_counted()
        self._follow_forks()
        ends = database.events(
            "pid, max(timestamp), max(tid = pid)",
            f"source = {HOST} AND op = {EXIT}",
            f"GROUP BY 1 {_LIMIT}",
        )
        self.exits = {pid: last for pid, last, is_whole in whole_numbers(ends) if is_whole}
        self._names = _read_names(database)
        self._places = _read_places(database)

    def owner(self, tid: int) -> int | None:
        """Return the process of a thread of which only the number is known; None: not recorded."""
        return self._owners.get(tid, tid if tid in self._known else None)

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
        ambiguous = set()
        rows = self._database.events("DISTINCT pid, tid", _TELLS_PROCESS, _LIMIT)
        for pid, tid in whole_numbers(rows):
            self._known.add(pid)
            if tid != pid and self._owners.setdefault(tid, pid) != pid:
                # The number was used again.
                ambiguous.add(tid)
        for tid in ambiguous | self._known:
            self._owners.pop(tid, None)

    def _read_counted(self) -> None:
        # Of switches, the number is a thread's here too.
        query = (
            f"SELECT DISTINCT pid, {IS_CUDA} FROM event_aggregates "
            f"WHERE {_TELLS_PROCESS} ORDER BY 1 {_LIMIT}"
        )
        for number, is_cuda in whole_numbers(self._database.source.rows(query)):
            self._known.add(number)
            self._owners.pop(number, None)
            if is_cuda and len(self.pids) < MAX_PROCESSES:
                self.pids.add(number)

    def _follow_forks(self) -> None:
        rows = self._database.events(
            "pid, arg1, max(timestamp)",
            f"source = {HOST} AND op = {FORK}",
            f"GROUP BY 1, 2 {_LIMIT}",
        )
        children: dict[int, dict[int, int]] = {}
        for parent, child, born in whole_numbers(rows):
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


def _read_names(database: Database) -> dict[int, str]:
    if not database.has("process_names", "pid", "name"):
        return {}
    query = f"SELECT pid, substr(name, 1, {MAX_NAME}) FROM process_names {_LIMIT}"
    return {
        number: name
        for number, name in database.source.rows(query)
        if type(number) is int and isinstance(name, str)
    }


def _read_places(database: Database) -> dict[int, dict[str, Any]]:
    # The cgroups and pods of processes, as the body of a PROCESS record has them.
    table = "cgroup_metadata"
    if not database.has(table, "cgroup_id", "cgroup_path") or not database.has(
        "events", "cgroup_id"
    ):
        return {}
    optional = ("container_id", "pod_name", "namespace")
    texts = ("cgroup_path", *(name for name in optional if database.has(table, name)))
    picked = ", ".join(f"substr({name}, 1, {_MAX_PATH})" for name in texts)
    places = {}
    for cgroup, *values in database.source.rows(
        f"SELECT cgroup_id, {picked} FROM {table} {_LIMIT}"
    ):
        named = zip(texts, values, strict=True)
        places[cgroup] = {name: text for name, text in named if text and isinstance(text, str)}
    # Of a CUDA call the cgroup is the caller's; of a switch it is that of anybody.
    rows = database.events("DISTINCT pid, cgroup_id", f"{IS_CUDA} AND cgroup_id > 0", _LIMIT)
    return {
        pid: _describe_place(places[cgroup])
        for pid, cgroup in whole_numbers(rows)
        if cgroup in places
    }


def _describe_place(place: Mapping[str, str]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if path := place.get("cgroup_path"):
        facts["cgroups"] = [f"0::{path}"]
    if container := place.get("container_id"):
        facts["mountinfo_container_id"] = container
    named = {"pod_name": "k8s.pod.name", "namespace": "k8s.namespace.name"}
    if context := {key: place[name] for name, key in named.items() if name in place}:
        facts["otel_context"] = context
    return facts

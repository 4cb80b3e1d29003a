"""Selects the processes that a report names; sums up the others."""

# An ended process gets no more time, so the busiest of the ended are final. The other processes of
# a service are merged into one program with their sums; readers of figures need not distinguish it.

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from itertools import islice

from otel_gpu.enrich.identity.identities import Program
from otel_gpu.report.document import OTHER_PROCESSES_PID, ProcessKey, key_of
from otel_gpu.report.time_buckets import TimeBuckets
from otel_gpu.report.wording.formats import service_of
from otel_gpu.state.capture_state import CaptureState
from otel_gpu.state.time_accounting import MAX_SERIES

MAX_NAMED = 500
"""Processes of a report, besides those that have causal chains."""

_MAX_SERVICES = 100
_OTHERS = "other services"
# Records of a process can come a little after its end.
_LATE = 200
_NEARLY_FULL = 3 * MAX_SERIES // 4


class _Group:
    # The merged processes of a service; the name counts them.

    def __init__(self, number: int, service: str) -> None:
        self._service = service
        self._size = 0
        self._attributes: dict[str, str] = {}
        self.program = Program(
            pid=OTHER_PROCESSES_PID,
            program_ktime_ns=number,
            comm=service,
            start_unix_ns=0,
            attributes=self._attributes,
        )

    def grow(self) -> None:
        self._size += 1
        row = "process" if self._size == 1 else "processes"
        self._attributes["service.name"] = f"{self._size:,} more {row} of {self._service}"


class OtherProcesses:
    """
    Keeps figures of a bounded number of processes, and the sums of the others.

    Args:
        state: Counters by process.
        buckets: Time buckets by process.
    """

    def __init__(self, state: CaptureState, buckets: TimeBuckets) -> None:
        self._state = state
        self._buckets = buckets
        self._ended: dict[ProcessKey, Program] = {}
        self._replaced: set[ProcessKey] = set()
        self._groups: dict[str, _Group] = {}

    def end(self, process: Program, *, is_replaced: bool, named: AbstractSet[ProcessKey]) -> None:
        """
        Record that a program ended.

        Args:
            process: The program.
            is_replaced: Whether another program replaced it.
            named: Programs that keep their figures.
        """
        key = key_of(process)
        self._ended[key] = process
        if is_replaced:
            self._replaced.add(key)
        settled = len(self._ended) - _LATE
        if settled > 2 * MAX_NAMED or (settled > 0 and self._state.accounts.size > _NEARLY_FULL):
            early = dict(islice(self._ended.items(), settled))
            summed = self._sum_up(early, named, min(MAX_NAMED, settled // 2))
            for program in summed | (early.keys() & named):
                del self._ended[program]
                self._replaced.discard(program)

    def close(self, named: AbstractSet[ProcessKey]) -> None:
        """Sum up all but the busiest, at the end of the stream."""
        single = {
            key: one.process
            for key, one in self._state.figures().items()
            if one.process.pid != OTHER_PROCESSES_PID
            and (one.series or any(time.time_ns for time in one.times))
        }
        self._sum_up(single, named, MAX_NAMED)

    def _sum_up(
        self, programs: Mapping[ProcessKey, Program], named: AbstractSet[ProcessKey], most: int
    ) -> set[ProcessKey]:
        call_ns = {
            key: sum(series.aggregate.sum for series in one.calls)
            for key, one in self._state.figures().items()
        }
        ranked = sorted(programs.keys() - named, key=lambda key: (-call_ns.get(key, 0), key))
        callers = self._state.callers()
        groups: dict[ProcessKey, _Group | None] = {}
        for key in ranked[most:]:
            # Forks that only executed another program are left out.
            is_passing = key in self._replaced and key not in callers
            groups[key] = None if is_passing else self._group_of(programs[key])
        into = {key: group.program if group else None for key, group in groups.items()}
        for key in self._buckets.sum_up(into) | self._state.sum_up(into):
            if group := groups[key]:
                group.grow()
        return set(groups)

    def _group_of(self, program: Program) -> _Group:
        service = service_of(program)
        if service not in self._groups and len(self._groups) >= _MAX_SERVICES:
            service = _OTHERS
        return self._groups.setdefault(service, _Group(len(self._groups) + 1, service))

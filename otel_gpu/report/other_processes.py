"""Who of very many processes is named in a report, and who is summed up."""

# What ended adds nothing any more, so that the busiest of the ended are known for good. All
# the others of a service become one image, which has their figures; whoever reads figures
# does not know the difference.

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
"""Processes of a report, beside those that have causal chains."""

_MAX_SERVICES = 100
_OTHERS = "other services"
# Records of a process may come a little after its end.
_LATE = 200
_NEARLY_FULL = 3 * MAX_SERIES // 4


class _Group:
    """Stands for the processes of a service, under a name that says how many they are."""

    def __init__(self, number: int, service: str) -> None:
        self._service = service
        self._size = 0
        self._attributes: dict[str, str] = {}
        self.image = Program(
            pid=OTHER_PROCESSES_PID,
            program_ktime_ns=number,
            comm=service,
            start_unix_ns=0,
            attributes=self._attributes,
        )

    def grow(self) -> None:
        self._size += 1
        noun = "process" if self._size == 1 else "processes"
        self._attributes["service.name"] = f"{self._size:,} more {noun} of {self._service}"


class OtherProcesses:
    """
    Keeps figures of a bounded number of processes, and the sums of the others.

    Args:
        ledger: What was counted, by process.
        slots: What happened when, by process.
    """

    def __init__(self, ledger: CaptureState, slots: TimeBuckets) -> None:
        self._ledger = ledger
        self._slots = slots
        self._ended: dict[ProcessKey, Program] = {}
        self._replaced: set[ProcessKey] = set()
        self._groups: dict[str, _Group] = {}

    def end(self, process: Program, *, is_replaced: bool, named: AbstractSet[ProcessKey]) -> None:
        """
        Take in that an image ended.

        Args:
            process: The image.
            is_replaced: Whether another program took its place.
            named: Images that are to keep their figures.
        """
        key = key_of(process)
        self._ended[key] = process
        if is_replaced:
            self._replaced.add(key)
        settled = len(self._ended) - _LATE
        if settled > 2 * MAX_NAMED or (settled > 0 and self._ledger.accounts.size > _NEARLY_FULL):
            early = dict(islice(self._ended.items(), settled))
            summed = self._sum_up(early, named, min(MAX_NAMED, settled // 2))
            for image in summed | (early.keys() & named):
                del self._ended[image]
                self._replaced.discard(image)

    def close(self, named: AbstractSet[ProcessKey]) -> None:
        """Sum up all but the busiest: nothing follows."""
        single = {
            key: one.process
            for key, one in self._ledger.figures().items()
            if one.process.pid != OTHER_PROCESSES_PID
            and (one.series or any(time.time_ns for time in one.times))
        }
        self._sum_up(single, named, MAX_NAMED)

    def _sum_up(
        self, images: Mapping[ProcessKey, Program], named: AbstractSet[ProcessKey], most: int
    ) -> set[ProcessKey]:
        call_ns = {
            key: sum(series.aggregate.sum for series in one.calls)
            for key, one in self._ledger.figures().items()
        }
        ranked = sorted(images.keys() - named, key=lambda key: (-call_ns.get(key, 0), key))
        callers = self._ledger.callers()
        groups: dict[ProcessKey, _Group | None] = {}
        for key in ranked[most:]:
            # Forks that only went on to run another program are left out.
            is_passing = key in self._replaced and key not in callers
            groups[key] = None if is_passing else self._group_of(images[key])
        into = {key: group.image if group else None for key, group in groups.items()}
        for key in self._slots.sum_up(into) | self._ledger.sum_up(into):
            if group := groups[key]:
                group.grow()
        return set(groups)

    def _group_of(self, image: Program) -> _Group:
        service = service_of(image)
        if service not in self._groups and len(self._groups) >= _MAX_SERVICES:
            service = _OTHERS
        return self._groups.setdefault(service, _Group(len(self._groups) + 1, service))

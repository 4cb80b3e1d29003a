"""The latest counters of the kernel side and figures of the agent, about the capture itself."""

from collections import Counter
from collections.abc import Mapping
from pathlib import PurePath

from otel_gpu.enrich.activities import (
    Activity,
    CaptureActivity,
    CountersActivity,
    ProbesActivity,
    StatusActivity,
)
from otel_gpu.state.differences import grown
from otel_gpu.wire.bodies import AgentStatus

_LOST = "counter_lost_"
_MAX_LIBRARIES = 64


class AgentReadings:
    """
    Keeps the latest readings, and losses of all captures.

    Attributes:
        counters: The kernel side's counters, by their enumerator's name; empty: not read.
        status: The agent's figures.
        first_status: Its first figures, to compute what was used since.
        first_unix_ns: When these were read.
        last_unix_ns: When the latest ones were read.
        libraries: File names of the libraries that have probes, the first 64.
        cpu_share: The share of one CPU that the agent used between the latest two; None: not known.
    """

    def __init__(self) -> None:
        self.counters: Mapping[str, int] = {}
        self.status: AgentStatus = {}
        self.first_status: AgentStatus = {}
        self.first_unix_ns = 0
        self.last_unix_ns = 0
        self.libraries: set[str] = set()
        self.cpu_share: float | None = None
        self._cpu_ns: tuple[int, int] | None = None
        # Losses of earlier captures, and whether this one has counters and figures yet.
        self._earlier: Counter[str] = Counter()
        self._is_counted = self._has_status = False

    def observe(self, activity: Activity) -> None:
        """Add an activity; kinds without readings are ignored."""
        if isinstance(activity, CountersActivity):
            self.counters, self._is_counted = activity.values, True
        elif isinstance(activity, ProbesActivity):
            if len(self.libraries) < _MAX_LIBRARIES:
                self.libraries.add(PurePath(activity.info["library"]).name)
        elif isinstance(activity, CaptureActivity):
            self._earlier.update(self._lost())
            self._is_counted = self._has_status = False
            self._cpu_ns = None
        elif isinstance(activity, StatusActivity):
            self._has_status = True
            if not self.first_status:
                self.first_status, self.first_unix_ns = activity.info, activity.unix_ns
            self.status, self.last_unix_ns = activity.info, activity.unix_ns
            self._observe_cpu(activity.unix_ns)

    def figure(self, name: str) -> int | None:
        """Return one of the agent's figures; None: not known, or not a number."""
        value = self.status.get(name)
        return value if isinstance(value, int) and value >= 0 else None

    def losses(self, rejected: Mapping[str, int]) -> dict[str, int]:
        """
        Return what all captures lost, by reason; only reasons that occurred.

        Args:
            rejected: What could not be decoded, by reason.
        """
        lost = Counter(self._lost()) + self._earlier
        lost.update({f"rejected_{reason}": count for reason, count in rejected.items()})
        return {reason: count for reason, count in sorted(lost.items()) if count}

    def _lost(self) -> dict[str, int]:
        lost: dict[str, int] = {}
        if self._is_counted:
            lost = {
                name.removeprefix(_LOST): count
                for name, count in self.counters.items()
                if name.startswith(_LOST)
            }
        if self._has_status:
            status = self.status
            for kind, counts in (
                ("error", status.get("errors", {})),
                ("skipped", status.get("skipped", {})),
            ):
                lost |= {f"{kind}_{place}": count for place, count in counts.items()}
            lost |= status.get("devices", {}) | status.get("preload", {}) | status.get("files", {})
            lost["still_running"] = self.figure("still_running") or 0
        return {reason: count for reason, count in lost.items() if count}

    def _observe_cpu(self, unix_ns: int) -> None:
        cpu_ns = self.figure("cpu_ns")
        if cpu_ns is None:
            return
        if self._cpu_ns is not None and unix_ns > self._cpu_ns[0]:
            elapsed_ns = unix_ns - self._cpu_ns[0]
            self.cpu_share = grown(cpu_ns, self._cpu_ns[1]) / elapsed_ns
        self._cpu_ns = unix_ns, cpu_ns

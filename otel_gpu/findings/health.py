"""Health: what the agent said about the capture and about itself."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from otel_gpu.enrich.activities import Activity, CaptureActivity, ProbesActivity
from otel_gpu.ledger.agent import AgentReadings

MAX_LIBRARIES = 100
_KIND = "Activity"
_IMPORT = "import"
# What a capture of another tool cannot tell, by the name that it has in the capture.
STATES, DISTRIBUTIONS, FREED = "thread_states", "distributions", "freed_bytes"
_UNKNOWN = {
    STATES: (
        "Whether threads ran, waited for a CPU or were blocked was not recorded: what bounds a "
        "process, what it waited for between its calls and who had the CPU is not known. That no "
        "cause is named does not mean that there was none."
    ),
    DISTRIBUTIONS: (
        "Not every call that was counted was kept: percentiles, what is usual and errors are of "
        "those that were, and slow ones were kept rather than others."
    ),
    FREED: "What was freed is not known: there is no balance of memory.",
}


class Health(AgentReadings):
    """
    Watches activities.

    Attributes:
        capture: How the capture was made; empty: it did not say.
        capture_unix_ns: When it began.
        probes: By library, what was probed in it.
        seen: How many activities there were of each kind.
    """

    def __init__(self) -> None:
        super().__init__()
        self.capture: Mapping[str, Any] = {}
        self.capture_unix_ns = 0
        self.probes: dict[str, Mapping[str, Any]] = {}
        self.seen: Counter[str] = Counter()

    def observe(self, activity: Activity) -> None:
        """Take one activity."""
        super().observe(activity)
        self.seen[type(activity).__name__.removesuffix(_KIND)] += 1
        match activity:
            case CaptureActivity():
                self.capture, self.capture_unix_ns = activity.info, activity.unix_ns
            case ProbesActivity() if len(self.probes) < MAX_LIBRARIES:
                self.probes[str(activity.info.get("library", ""))] = activity.info
            case _:
                pass

    @property
    def is_foreign(self) -> bool:
        """Whether another tool made the capture."""
        return self.capture.get("mode") == _IMPORT

    def lacks(self, what: str) -> bool:
        """Say whether the capture cannot tell something."""
        unknown = self.capture.get("unknown")
        return isinstance(unknown, list | tuple) and what in unknown

    def notes(self, *about: str) -> Iterator[str]:
        """Say what the capture cannot tell, of some things; none are named: of all."""
        for what, text in _UNKNOWN.items():
            if self.lacks(what) and (not about or what in about):
                yield text

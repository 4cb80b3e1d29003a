"""Health: the agent's reports on the capture and on itself."""

from collections import Counter

from otel_gpu.enrich.activities import Activity, CaptureActivity, ProbesActivity
from otel_gpu.state.agent_health import AgentReadings
from otel_gpu.wire.bodies import CaptureFacts, CaptureMode, ProbedLibrary

MAX_LIBRARIES = 100
_KIND = "Activity"


class Health(AgentReadings):
    """
    Collects the health of a capture.

    Attributes:
        capture: Information on how it was made; None: none was recorded.
        capture_unix_ns: Its begin.
        probes: The probes of each library.
        seen: Counts of activities by kind.
    """

    def __init__(self) -> None:
        super().__init__()
        self.capture: CaptureFacts | None = None
        self.capture_unix_ns = 0
        self.probes: dict[str, ProbedLibrary] = {}
        self.seen: Counter[str] = Counter()

    def observe(self, activity: Activity) -> None:
        """Add one activity."""
        super().observe(activity)
        self.seen[type(activity).__name__.removesuffix(_KIND)] += 1
        match activity:
            case CaptureActivity():
                self.capture, self.capture_unix_ns = activity.info, activity.unix_ns
            case ProbesActivity() if len(self.probes) < MAX_LIBRARIES:
                self.probes[activity.info["library"]] = activity.info
            case _:
                pass

    @property
    def is_foreign(self) -> bool:
        """Whether another tool made the capture."""
        return self.capture is not None and self.capture.get("mode") == CaptureMode.IMPORT

"""How far a stream of activities reaches in time."""

from otel_gpu.enrich.activities import END_OF, Activity, CaptureActivity


class Extent:
    """Watches activities; ``start_unix_ns`` and ``end_unix_ns`` are 0 before the first."""

    def __init__(self) -> None:
        self.start_unix_ns = 0
        self.end_unix_ns = 0

    def observe(self, activity: Activity) -> None:
        """Take one activity."""
        unix_ns = END_OF[type(activity)](activity)
        if not self.start_unix_ns or isinstance(activity, CaptureActivity):
            self.start_unix_ns = unix_ns
        self.end_unix_ns = max(self.end_unix_ns, unix_ns)

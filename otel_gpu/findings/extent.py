"""How far a stream of activities reaches in time."""

from otel_gpu.enrich.activities import Activity, CaptureActivity


class Extent:
    """Watches activities; ``start_unix_ns`` and ``end_unix_ns`` are 0 before the first."""

    def __init__(self) -> None:
        self.start_unix_ns = 0
        self.end_unix_ns = 0

    def observe(self, activity: Activity) -> None:
        """Take one activity."""
        unix_ns = _end_of(activity)
        if not self.start_unix_ns or isinstance(activity, CaptureActivity):
            self.start_unix_ns = unix_ns
        self.end_unix_ns = max(self.end_unix_ns, unix_ns)


def _end_of(activity: Activity) -> int:
    for name in ("unix_ns", "end_unix_ns", "seen_unix_ns"):
        unix_ns = getattr(activity, name, None)
        if unix_ns is not None:
            return int(unix_ns)
    raise AssertionError(activity)  # every activity has one of these

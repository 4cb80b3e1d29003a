"""Errors of devices without a watched process: the driver names none."""

from collections.abc import Iterator

from otel_gpu.enrich.activities import Activity, DeviceFaultActivity
from otel_gpu.explain.chains import DeviceTrouble
from otel_gpu.report.document import Window
from otel_gpu.report.wording.formats import describe_trouble

_MAX_KINDS = 32


class UnattributedFaults:
    """Counts such errors by device and XID; bounded."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._counts: dict[tuple[str, int], int] = {}
        self._left_out = 0

    def observe(self, activity: Activity) -> None:
        """Add one activity."""
        if type(activity) is not DeviceFaultActivity:
            return
        event = activity.event
        if activity.process is not None or not self._window.overlaps(
            activity.unix_ns, activity.unix_ns
        ):
            return
        key = (event.bus_id, event.xid)
        if key not in self._counts and len(self._counts) >= _MAX_KINDS:
            self._left_out += event.times
        else:
            self._counts[key] = self._counts.get(key, 0) + event.times

    def notes(self) -> Iterator[str]:
        """Yield a note for each error, by device."""
        for (bus_id, xid), count in sorted(self._counts.items()):
            times = f", {count:,} times" if count > 1 else ""
            text = describe_trouble(DeviceTrouble(bus_id, xid))
            yield f"A device had an error that is of no watched process: {text}{times}."
        if self._left_out:
            yield f"{self._left_out:,} more errors of devices are of no watched process."

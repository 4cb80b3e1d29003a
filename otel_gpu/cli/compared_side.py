"""One side of a comparison, from any kind of file."""

from collections.abc import Callable, Mapping, Sequence

from otel_gpu.enrich.activities import Activity, DeviceTraceActivity
from otel_gpu.report.collector import Collector
from otel_gpu.report.comparison.comparison import Side
from otel_gpu.report.comparison.documents import side_of
from otel_gpu.report.comparison.traces import TraceSide
from otel_gpu.report.document import Window
from otel_gpu.report.source import Source

MakeCollector = Callable[[Mapping[str, int], Window, Sequence[int]], Collector]


def make_side(name: str, source: Source, window: Window, make_collector: MakeCollector) -> Side:
    """Return a window of a source as the side ``name`` of a comparison."""
    if source.has_traces:
        traces = _Traces()
        source.play(window, [traces])
        return traces.found.side(name) or Side(name, faults=("no device did anything in it",))
    collector = make_collector(source.rejected, window, ())
    source.play(window, [collector])
    return side_of(name, collector.finish(source.name, source.notes))


class _Traces:
    def __init__(self) -> None:
        self.found = TraceSide()

    def observe(self, activity: Activity) -> None:
        if isinstance(activity, DeviceTraceActivity):
            self.found.take(activity.trace)

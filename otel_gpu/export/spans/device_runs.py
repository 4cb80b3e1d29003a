"""Imported traces as telemetry: the spans and measurements of each run."""

from collections.abc import Callable, Iterator, Sequence

from otel_gpu.enrich.activities import DeviceTraceActivity
from otel_gpu.enrich.identity.identities import Program
from otel_gpu.enrich.identity.traced_processes import traced_process
from otel_gpu.explain.traces.device_use import DeviceUse, examine
from otel_gpu.export.metrics.device_measures import measure_run
from otel_gpu.export.metrics.points import Measurement
from otel_gpu.export.spans.device_spans import MAX_SPANS, device_pairs, run_spans
from otel_gpu.export.spans.finished import FinishedSpan, Origin


class DeviceRun:
    """
    The device trace of one process, examined.

    Attributes:
        process: The process that recorded it; its start is that of the first device activity.
        end_unix_ns: The end of the last device activity.
    """

    def __init__(self, activity: DeviceTraceActivity, seed: bytes, service_name: str) -> None:
        trace = activity.trace
        self._seed = seed
        self._uses: Sequence[DeviceUse] = examine(trace)
        starts = [use.start_ns for use in self._uses]
        ends = [use.start_ns + use.phases.window_ns for use in self._uses]
        start_unix_ns = max(0, trace.base_unix_ns + min(starts, default=0))
        self.process: Program = traced_process(
            trace, start_unix_ns, seed=seed, service_name=service_name
        )
        self.end_unix_ns = max(start_unix_ns, trace.base_unix_ns + max(ends, default=0))

    def spans(self, origin_of: Callable[[Program], Origin]) -> Iterator[FinishedSpan]:
        """Yield the spans, at most ``MAX_SPANS`` for all processes of the file together."""
        if not self._uses:
            return
        most = max(1, MAX_SPANS // self._uses[0].trace.processes)
        origin = origin_of(self.process)
        uses = self._uses[:most]
        for use in uses:
            yield from run_spans(use, origin, seed=self._seed, most=most // len(uses))

    def measurements(self, bounds_ns: Sequence[int]) -> Iterator[Measurement]:
        """Yield measurements of the run; ``bounds_ns`` are the bounds of duration buckets."""
        for use in self._uses:
            yield from measure_run(use, device_pairs(use), bounds_ns)

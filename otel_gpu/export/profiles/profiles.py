"""
Profiles: CPU samples of one process, collected into requests.

Times are those of the stream, so a replay of a recording makes the same profiles as the capture.
"""

from collections.abc import Callable
from hashlib import blake2b

from otel_gpu.enrich.activities import (
    Activity,
    CountersActivity,
    ExitActivity,
    GapActivity,
    SampleActivity,
)
from otel_gpu.enrich.identity.identities import Program
from otel_gpu.enrich.ids import SpanIds
from otel_gpu.export.profiles.profile_encoder import EncodedProfile, ProcessSample, ProfileEncoder
from otel_gpu.export.spans.finished import Origin

# Of all processes together; at the usual rate those of minutes.
_MOST_SAMPLES = 65_536
# The largest value of a sample.
_MOST_WEIGHT_NS = (1 << 63) - 1
# How long a sample waits for the end of its call or gap.
_SETTLE_NS = 1_000_000_000


class Profiles:
    """
    Makes a profile of each process every ``interval_ns``, and passes it to ``put``.

    A sample links to its CUDA call or gap, if the span of that has been exported by then. A profile
    that would exceed ``most_bytes`` is split.
    """

    observes = frozenset({SampleActivity, GapActivity, ExitActivity, CountersActivity})

    def __init__(
        self,
        seed: bytes,
        origin_of: Callable[[Program], Origin],
        is_exported: Callable[[bytes], bool],
        put: Callable[[EncodedProfile], object],
        *,
        interval_ns: int,
        most_bytes: int,
    ) -> None:
        self._seed = seed
        self._ids = SpanIds(seed)
        self._origin_of = origin_of
        self._is_exported = is_exported
        self._put = put
        self._interval_ns = interval_ns
        self._most_bytes = most_bytes
        self._taken: dict[Program, list[ProcessSample]] = {}
        self._count = 0
        self._made = 0
        self._due_unix_ns = 0

    def observe(self, activity: Activity) -> None:
        """Process an activity, after its own span was sent."""
        if isinstance(activity, SampleActivity):
            self._add(activity)
        elif isinstance(activity, GapActivity):
            self._link(activity)
        elif isinstance(activity, ExitActivity):
            self._make(activity.process)
        elif isinstance(activity, CountersActivity):
            self._advance(activity.unix_ns)

    def flush(self) -> None:
        """Make profiles of all collected samples."""
        for process in tuple(self._taken):
            self._make(process)

    def _advance(self, unix_ns: int) -> None:
        if unix_ns < self._due_unix_ns:
            return
        if self._due_unix_ns:
            settled_unix_ns = unix_ns - min(_SETTLE_NS, self._interval_ns)
            for process in tuple(self._taken):
                self._make(process, settled_unix_ns)
        self._due_unix_ns = unix_ns + self._interval_ns

    def _add(self, activity: SampleActivity) -> None:
        process, event, unix_ns, functions, stack = activity[:5]
        ids = self._ids.around_sample(event)
        weight_ns = min(event.weight_ns, _MOST_WEIGHT_NS)
        taken = ProcessSample(unix_ns, weight_ns, event.tid, event.comm, functions, stack, *ids)
        self._taken.setdefault(process, []).append(taken)
        self._count += 1
        if self._count >= _MOST_SAMPLES:
            self.flush()

    def _link(self, gap: GapActivity) -> None:
        # Samples of a gap come before the end of the gap, so they are matched at its end.
        taken = self._taken.get(gap.process, [])
        for position in range(len(taken) - 1, -1, -1):
            sample = taken[position]
            if sample.unix_ns < gap.start_unix_ns:
                return
            is_inside = sample.unix_ns < gap.end_unix_ns and sample.tid == gap.event.tid
            if is_inside and not sample.span_id:
                taken[position] = sample._replace(trace_id=gap.trace_id, span_id=gap.span_id)

    def _make(self, process: Program, before_unix_ns: int | None = None) -> None:
        taken = self._taken.pop(process, [])
        if before_unix_ns is not None:
            if later := [sample for sample in taken if sample.unix_ns >= before_unix_ns]:
                self._taken[process] = later
            taken = [sample for sample in taken if sample.unix_ns < before_unix_ns]
        self._count -= len(taken)
        encoder: ProfileEncoder | None = None
        for sample in taken:
            if encoder is None:
                encoder = ProfileEncoder(self._origin_of(process))
            is_linked = sample.span_id and self._is_exported(sample.span_id)
            encoder.add(sample if is_linked else sample._replace(span_id=b""))
            if encoder.size_bytes >= self._most_bytes:
                self._finish(process, encoder)
                encoder = None
        if encoder is not None:
            self._finish(process, encoder)

    def _finish(self, process: Program, encoder: ProfileEncoder) -> None:
        self._made += 1
        name = f"{process.pid}/{process.program_ktime_ns}/{self._made}".encode()
        self._put(encoder.encode(blake2b(self._seed + name, digest_size=16).digest()))

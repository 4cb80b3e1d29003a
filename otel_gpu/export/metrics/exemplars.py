"""Exemplars: the recorded calls that duration histograms point at."""

from collections.abc import Callable, Mapping

from opentelemetry.sdk.metrics import Exemplar

from otel_gpu.enrich.activities import CallActivity
from otel_gpu.enrich.identity.identities import DeviceIdentity
from otel_gpu.export.metrics.measures import duration_of
from otel_gpu.export.metrics.points import Attributes
from otel_gpu.wire.probe_table import Api

# Per program. Each has at most 64 octaves; calls fill a dozen.
_MAX_KINDS = 256

# Whether a trace is exported, by its id and the name of one of its spans.
IsSampled = Callable[[bytes, str], bool]
# The fields that distinguish duration points, before names, which can change: number of the API,
# copy kind, status and device. Plain tuples, since every span makes one of each.
_Kind = tuple[int, int, int, int]
# Number, API, duration in nanoseconds, end, trace id, span id: a call with its event takes five times as much.
_Offer = tuple[int, Api, int, int, bytes, bytes]


class ExemplarReservoir:
    """
    Keeps the latest recorded call of every octave of duration, per kind of call.

    An octave is a doubling: the fast, the usual and the very slow calls each keep one, however many
    others there are. A call whose trace is not exported is not kept.
    """

    def __init__(self, is_sampled: IsSampled | None) -> None:
        self._is_sampled = is_sampled
        self._latest: dict[_Kind, dict[int, _Offer]] = {}

    def offer(self, call: CallActivity, number: int) -> None:
        """Offer a recorded call; ``number`` rises, and ``between`` compares with it."""
        event = call.event
        if self._is_sampled is not None and not self._is_sampled(call.trace_id, call.api.name):
            return
        kind = (event.api, event.copy_kind, event.status, event.device)
        if kind not in self._latest and len(self._latest) >= _MAX_KINDS:
            return
        octaves = self._latest.setdefault(kind, {})
        duration_ns = event.end_ktime_ns - event.start_ktime_ns
        octaves[duration_ns.bit_length()] = (
            *(number, call.api, duration_ns, call.end_unix_ns),
            *(call.trace_id, call.span_id),
        )

    def between(
        self, after: int, until: int, devices: Mapping[int, DeviceIdentity]
    ) -> dict[tuple[str, Attributes], list[Exemplar]]:
        """Return the exemplars after one number and up to another, oldest first."""
        found: dict[tuple[str, Attributes], list[Exemplar]] = {}
        for (_, copy_kind, status, device), octaves in self._latest.items():
            newer = sorted(offer for offer in octaves.values() if after < offer[0] <= until)
            if newer:
                api, of_device = newer[0][1], devices.get(device)
                instrument, attributes = duration_of(api, copy_kind, status, of_device)
                key = (instrument.name, attributes)
                found.setdefault(key, []).extend(map(_exemplar, newer))
        return found


def _exemplar(offer: _Offer) -> Exemplar:
    _, _, duration_ns, end_unix_ns, trace_id, span_id = offer
    return Exemplar(
        filtered_attributes={},
        value=duration_ns / 1e9,
        time_unix_nano=end_unix_ns,
        span_id=int.from_bytes(span_id),
        trace_id=int.from_bytes(trace_id),
    )

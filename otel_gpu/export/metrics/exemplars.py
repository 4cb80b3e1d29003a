"""Exemplars: the recorded calls that duration histograms point at."""

from collections.abc import Callable, Mapping

from opentelemetry.sdk.metrics import Exemplar

from otel_gpu.enrich.activities import CallActivity
from otel_gpu.enrich.identity.identities import DeviceIdentity
from otel_gpu.export.metrics.measures import duration_of
from otel_gpu.export.metrics.points import Attributes

# Per program. Each has at most 64 octaves; calls fill a dozen.
_MAX_KINDS = 256

# Whether a trace is exported, by its id and the name of one of its spans.
IsSampled = Callable[[bytes, str], bool]
# The fields that distinguish duration points, before names, which can change: number of the API,
# copy kind, status and device. Plain tuples, since every span makes one of each.
_Kind = tuple[int, int, int, int]
_Offer = tuple[int, CallActivity]


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
        """Offer a recorded call; ``number`` rises, and ``newer_than`` compares with it."""
        event = call.event
        if self._is_sampled is not None and not self._is_sampled(call.trace_id, call.api.name):
            return
        kind = (event.api, event.copy_kind, event.status, event.device)
        if kind not in self._latest and len(self._latest) >= _MAX_KINDS:
            return
        octaves = self._latest.setdefault(kind, {})
        duration_ns = event.end_ktime_ns - event.start_ktime_ns
        octaves[duration_ns.bit_length()] = (number, call)

    def newer_than(
        self, number: int, devices: Mapping[int, DeviceIdentity]
    ) -> dict[tuple[str, Attributes], list[Exemplar]]:
        """Return the exemplars offered after the one with ``number``, oldest first."""
        found: dict[tuple[str, Attributes], list[Exemplar]] = {}
        for (_, copy_kind, status, device), octaves in self._latest.items():
            newer = sorted(offer for offer in octaves.values() if offer[0] > number)
            if newer:
                _, first = newer[0]
                of_device = devices.get(device)
                instrument, attributes = duration_of(first.api, copy_kind, status, of_device)
                key = (instrument.name, attributes)
                found.setdefault(key, []).extend(map(_exemplar, newer))
        return found


def _exemplar(offer: _Offer) -> Exemplar:
    _, call = offer
    event = call.event
    return Exemplar(
        filtered_attributes={},
        value=(event.end_ktime_ns - event.start_ktime_ns) / 1e9,
        time_unix_nano=call.end_unix_ns,
        span_id=int.from_bytes(call.span_id),
        trace_id=int.from_bytes(call.trace_id),
    )

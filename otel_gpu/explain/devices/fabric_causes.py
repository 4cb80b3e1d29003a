"""
Fabric causes: what network adapters counted while a process that uses RDMA waited.

How long a lost packet delayed a collective is not measured: the adapter makes a transfer alone, and
what waits for it waits for the device. So this cause takes no time of an effect. It reports what
was counted in that time, and whether that is more than before.
"""

from collections.abc import Iterator, Mapping

from otel_gpu import wire
from otel_gpu.enrich.activities import FabricActivity
from otel_gpu.enrich.identity.identities import ProcessKey, Program, key_of
from otel_gpu.explain.chains import Cause, Effect, Evidence
from otel_gpu.explain.kinds import CauseKind, EffectKind, EvidenceKind
from otel_gpu.limits.recent import Recent
from otel_gpu.state.fabric import Counted, FabricState
from otel_gpu.wire.port_counters import COUNTERS, Meaning
from otel_gpu.wire.probe_table import Api

_USUAL_FACTOR = 2.0
_MAX_COUNTERS = 4
# Kinds of waits for the device, or for other ranks.
_WAITS = frozenset(
    {
        CauseKind.GPU_WAIT,
        CauseKind.NETWORK,
        CauseKind.GPU_CLOCKS,
        CauseKind.COLLECTIVE_WAIT,
        CauseKind.COLLECTIVE_STUCK,
    }
)
_NETWORK_LAYERS = frozenset({wire.LAYER_NCCL, wire.LAYER_VERBS})
# One of these is enough to report.
_FAULTS = frozenset({Meaning.ERROR, Meaning.LINK_DOWN})


class FabricCauses:
    """Keeps which processes use RDMA, and what adapters count; bounded."""

    def __init__(self, max_programs: int) -> None:
        self._fabric = FabricState()
        self._users: Recent[ProcessKey, None] = Recent(max_programs)

    def observe(self, activity: FabricActivity) -> None:
        """Add a reading."""
        self._fabric.observe(activity)

    def know_user(self, process: Program) -> None:
        """Note that a process made calls of verbs, or has a communicator."""
        self._users[key_of(process)] = None

    def find(self, effect: Effect, api: Api, causes: tuple[Cause, ...]) -> tuple[Cause, ...]:
        """
        Return one cause from the adapters for an effect, or none.

        Args:
            effect: What took long, or hangs.
            api: The call, or the one that the gap delayed.
            causes: The causes so far.
        """
        reported = _reported_by_adapter(effect)
        if key_of(effect.process) not in self._users and not reported:
            return ()
        if api.layer not in _NETWORK_LAYERS and not any(one.kind in _WAITS for one in causes):
            return ()
        end_unix_ns = effect.start_unix_ns + effect.duration_ns
        found = self._fabric.counted(effect.start_unix_ns, end_unix_ns)
        evidence = (*reported, *(_evidence(one) for one in found if _matters(one)))
        return (
            (Cause(kind=CauseKind.NETWORK, time_ns=0, share=0.0, culprit=None, evidence=evidence),)
            if evidence
            else ()
        )


def _reported_by_adapter(effect: Effect) -> tuple[Evidence, ...]:
    if effect.kind != EffectKind.NETWORK_EVENT:
        return ()
    name = f"event-{effect.process.pid}-{effect.tid}-{effect.start_unix_ns}"
    end_unix_ns = effect.start_unix_ns + effect.duration_ns
    return (
        Evidence(
            id=name,
            kind=EvidenceKind.COUNTERS,
            start_unix_ns=effect.start_unix_ns,
            end_unix_ns=end_unix_ns,
            reason=effect.api,
        ),
    )


def _matters(counted: Counted) -> bool:
    return (
        counted.went_down
        or any(COUNTERS[name].meaning in _FAULTS for name in counted.counts)
        or counted.per_s > _USUAL_FACTOR * counted.usual_per_s
    )


def _evidence(counted: Counted) -> Evidence:
    number = f"{counted.adapter}-{counted.port}-{counted.start_unix_ns}"
    counts = ", ".join(_say(counted.went_down, counted.counts))
    return Evidence(
        id=f"{EvidenceKind.COUNTERS}-{number}",
        kind=EvidenceKind.COUNTERS,
        start_unix_ns=counted.start_unix_ns,
        end_unix_ns=counted.end_unix_ns,
        reason=f"{counted.adapter} port {counted.port}: {counts}",
    )


def _say(went_down: bool, counts: Mapping[str, int]) -> Iterator[str]:
    if went_down:
        yield "went down"
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    yield from (f"{count:,} {name}" for name, count in most[:_MAX_COUNTERS])
    if len(most) > _MAX_COUNTERS:
        yield f"{len(most) - _MAX_COUNTERS} other counters"

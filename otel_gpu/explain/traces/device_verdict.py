"""
Device verdicts: what bounds a program, by the time that its device lost.

A device that computes at least 80 % of its window is the bound itself. Otherwise the verdict is
where more than half of the rest went: that is what can be gained, whatever the share of computing.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from otel_gpu.explain.kinds import Bound, TimeClass
from otel_gpu.explain.traces.idle_causes import IdleCause
from otel_gpu.state.traces.device_time import Phases

USEFUL: Final = 0.8
"""The share of computing from which on the device is the bound."""


class LossKind(StrEnum):
    """What a device loses time to."""

    DATA = TimeClass.DATA
    COMMUNICATION = TimeClass.COMMUNICATION
    COPIES = "copies"
    MEMORY = TimeClass.MEMORY
    CPU = TimeClass.CPU
    OTHER = TimeClass.OTHER


_MAJORITY = 0.5
_VERDICTS: Mapping[LossKind, Bound] = {
    LossKind.DATA: Bound.DATA,
    LossKind.COMMUNICATION: Bound.COMMUNICATION,
    LossKind.COPIES: Bound.COPIES,
    LossKind.MEMORY: Bound.MEMORY,
    LossKind.CPU: Bound.CPU,
    LossKind.OTHER: Bound.UNKNOWN,
}
_CLASSES: Mapping[IdleCause, LossKind] = {
    IdleCause.DATA_LOADER: LossKind.DATA,
    IdleCause.SYNC: LossKind.CPU,
    IdleCause.ALLOCATOR: LossKind.MEMORY,
    IdleCause.HOST_OP: LossKind.CPU,
    IdleCause.PYTHON: LossKind.CPU,
    IdleCause.HOST_OTHER: LossKind.OTHER,
    IdleCause.LAUNCH_LATENCY: LossKind.CPU,
    IdleCause.MODULE_LOADING: LossKind.CPU,
    # Work that was launched long before waits for a peer, another stream or an event; which one is
    # not known.
    IdleCause.DEPENDENCY: LossKind.OTHER,
    IdleCause.NOT_RECORDED: LossKind.OTHER,
    IdleCause.NO_LAUNCH: LossKind.OTHER,
    IdleCause.NOISE: LossKind.OTHER,
}


class DeviceVerdict(NamedTuple):
    """
    What bounds a program; ``verdict`` is ``UNKNOWN`` if it is not reliable.

    ``lost_ns`` is the window without computing, by what it was lost to, the most first. ``names``
    are the classes of the verdict: two for ``MIXED``.
    """

    verdict: Bound
    useful: float
    lost_ns: dict[LossKind, int]
    names: tuple[LossKind, ...]


def find_device_verdict(
    phases: Phases, idle_ns: Mapping[IdleCause, int], *, is_reliable: bool
) -> DeviceVerdict:
    """
    Return what bounds a program.

    Args:
        phases: Of the window.
        idle_ns: By cause.
        is_reliable: Whether causes are reliable (``trace_health``).
    """
    lost_ns = dict(sorted(_lost(phases, idle_ns).items(), key=lambda item: -item[1]))
    lost_ns = {name: time_ns for name, time_ns in lost_ns.items() if time_ns}
    useful = phases.compute_ns / phases.window_ns if phases.window_ns else 0.0
    ranked = tuple(lost_ns)
    if not is_reliable or not phases.window_ns:
        return DeviceVerdict(verdict=Bound.UNKNOWN, useful=useful, lost_ns=lost_ns, names=())
    if useful >= USEFUL:
        return DeviceVerdict(verdict=Bound.GPU, useful=useful, lost_ns=lost_ns, names=())
    if lost_ns[ranked[0]] > _MAJORITY * sum(lost_ns.values()):
        return DeviceVerdict(
            verdict=_VERDICTS[ranked[0]], useful=useful, lost_ns=lost_ns, names=ranked[:1]
        )
    return DeviceVerdict(verdict=Bound.MIXED, useful=useful, lost_ns=lost_ns, names=ranked[:2])


def _lost(phases: Phases, idle_ns: Mapping[IdleCause, int]) -> dict[LossKind, int]:
    lost_ns = dict.fromkeys(_VERDICTS, 0)
    lost_ns[LossKind.DATA] = phases.exposed_load_ns
    lost_ns[LossKind.COMMUNICATION] = phases.exposed_communication_ns
    lost_ns[LossKind.COPIES] = phases.exposed_copy_ns - phases.exposed_load_ns
    for cause, time_ns in idle_ns.items():
        lost_ns[_CLASSES[cause]] += time_ns
    return lost_ns

"""
Device verdicts: what bounds a program, by the time that its device lost.

A device that computes at least 80 % of its window is the bound itself. Otherwise the verdict is
where more than half of the rest went: that is what can be gained, whatever the share of computing.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from otel_gpu.explain.accounting.verdicts import MIXED, UNKNOWN
from otel_gpu.explain.traces.idle_causes import IdleCause
from otel_gpu.state.traces.device_time import Phases

USEFUL: Final = 0.8
"""The share of computing from which on the device is the bound."""

DATA, COMMUNICATION, COPIES, MEMORY, CPU, OTHER = (
    "data", "communication", "copies", "memory", "cpu", "other",
)  # fmt: skip
GPU_BOUND: Final = "gpu-bound"
_MAJORITY = 0.5
_VERDICTS: Mapping[str, str] = {
    DATA: "data-bound",
    COMMUNICATION: "communication-bound",
    COPIES: "copy-bound",
    MEMORY: "allocation-bound",
    CPU: "cpu-bound",
    OTHER: UNKNOWN,
}
_CLASSES: Mapping[IdleCause, str] = {
    IdleCause.DATA_LOADER: DATA,
    IdleCause.SYNC: CPU,
    IdleCause.ALLOCATOR: MEMORY,
    IdleCause.HOST_OP: CPU,
    IdleCause.PYTHON: CPU,
    IdleCause.HOST_OTHER: OTHER,
    IdleCause.LAUNCH_LATENCY: CPU,
    IdleCause.MODULE_LOADING: CPU,
    # Work that was launched long before waits for a peer, another stream or an event; which one is
    # not known.
    IdleCause.DEPENDENCY: OTHER,
    IdleCause.NOT_RECORDED: OTHER,
    IdleCause.NO_LAUNCH: OTHER,
    IdleCause.NOISE: OTHER,
}


class DeviceVerdict(NamedTuple):
    """
    What bounds a program; ``verdict`` is ``unknown`` if it is not reliable.

    ``lost_ns`` is the window without computing, by what it was lost to, the most first. ``names``
    are the classes of the verdict: two for ``mixed``.
    """

    verdict: str
    useful: float
    lost_ns: dict[str, int]
    names: tuple[str, ...]


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
        return DeviceVerdict(UNKNOWN, useful, lost_ns, ())
    if useful >= USEFUL:
        return DeviceVerdict(GPU_BOUND, useful, lost_ns, ())
    if lost_ns[ranked[0]] > _MAJORITY * sum(lost_ns.values()):
        return DeviceVerdict(_VERDICTS[ranked[0]], useful, lost_ns, ranked[:1])
    return DeviceVerdict(MIXED, useful, lost_ns, ranked[:2])


def _lost(phases: Phases, idle_ns: Mapping[IdleCause, int]) -> dict[str, int]:
    lost_ns = dict.fromkeys(_VERDICTS, 0)
    lost_ns[DATA] = phases.exposed_load_ns
    lost_ns[COMMUNICATION] = phases.exposed_communication_ns
    lost_ns[COPIES] = phases.exposed_copy_ns - phases.exposed_load_ns
    for cause, time_ns in idle_ns.items():
        lost_ns[_CLASSES[cause]] += time_ns
    return lost_ns

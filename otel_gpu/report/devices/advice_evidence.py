"""Evidence of advice: shares of a window, and ids of rows."""

import re
from collections.abc import Callable, Iterator
from typing import Final

from otel_gpu.explain.traces.device_use import DeviceUse
from otel_gpu.explain.traces.idle_causes import IdleCause
from otel_gpu.report.devices.types import Advice
from otel_gpu.report.wording.formats import format_duration
from otel_gpu.state.traces.kernel_kinds import KernelKind

MAX_EVIDENCE: Final = 5
# Operators, kernels and Python functions of PyTorch, and marks of its profiler.
_TORCH = re.compile(
    r"aten::|(?:void )?at::native|torch[/._]|c10d?::|autograd::|ProfilerStep#|nn\.Module|triton_(?:poi|red|per|tem)_"
)

Rule = Callable[[str, DeviceUse], Iterator[Advice]]
"""Takes the id of a device's row and the use of the device."""


def share_of(use: DeviceUse, time_ns: float) -> float:
    """Return a time as a share of the window."""
    return time_ns / use.phases.window_ns if use.phases.window_ns else 0.0


def gap_ids(name: str, use: DeviceUse, *causes: IdleCause, named: str = "") -> tuple[str, ...]:
    """Return ids of the longest gaps of some causes."""
    found = [
        f"{name}/gap/{number}"
        for number, gap in enumerate(use.gaps)
        if gap.place.cause in causes and named in gap.place.name
    ]
    return tuple(found[:MAX_EVIDENCE]) or (name,)


def kernel_ids(name: str, use: DeviceUse, kind: KernelKind | None, words: str = "") -> tuple[str, ...]:  # fmt: skip
    """Return ids of the longest kernels of a kind, or with a pattern in their names."""
    pattern = re.compile(words, re.IGNORECASE)
    found = [
        f"{name}/kernel/{number}"
        for number, one in enumerate(use.work.kernels[:100])
        if kind in (None, one.kind) and pattern.search(one.name)
    ]
    return tuple(found[:MAX_EVIDENCE]) or (name,)


def operation_ids(name: str, use: DeviceUse, *names: str) -> tuple[str, ...]:
    """Return ids of the operators of some names."""
    found = [
        f"{name}/operation/{number}"
        for number, one in enumerate(use.work.operations[:100])
        if one.name in names
    ]
    return tuple(found[:MAX_EVIDENCE]) or (name,)


def knows_torch(use: DeviceUse) -> bool:
    """Return whether a program uses PyTorch, so that its settings apply."""
    return any(_TORCH.match(name) for name in use.trace.names)


def longest_place(use: DeviceUse, *causes: IdleCause) -> str:
    """Return the host activity that the device waited for longest, as a sentence."""
    for place, time_ns in use.places:
        if place.cause in causes and (place.name or place.python):
            python = f", in {place.python}" if place.python and place.python != place.name else ""
            return (
                f" Most of it ({format_duration(time_ns)}) in {place.name or place.python}{python}."
            )
    return ""

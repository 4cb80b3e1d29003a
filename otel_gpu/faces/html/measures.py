"""What is charted over time: how it is read from a slot, and how it is told."""

from collections.abc import Callable
from typing import NamedTuple

from otel_gpu.faces.html.phrases import API, CPU, GPU, MEMORY
from otel_gpu.findings.model import Slot
from otel_gpu.findings.words import format_share

LOST = "lost"
"""The tone of lost time, which is of no kind of cause."""

_NS_PER_S = 1e9


class Measure(NamedTuple):
    """
    One chart: what is drawn of a slot, and how the largest is told.

    ``is_share`` measures are drawn against the whole of the time, others against the
    largest of them.
    """

    name: str
    tone: str
    about: str
    value_of: Callable[[Slot], float]
    tell: Callable[[float], str]
    is_share: bool = False


def rate_of(count: float, slot: Slot) -> float:
    """How often something happened in a second."""
    return count / (length_of(slot) / _NS_PER_S)


def length_of(slot: Slot) -> int:
    """How long a slot is, in nanoseconds; never nothing."""
    return max(1, slot.end_unix_ns - slot.start_unix_ns)


def _share_of(duration_ns: float, slot: Slot) -> float:
    return duration_ns / length_of(slot)


def _tell_rate(rate: float) -> str:
    return f"{rate:,.0f} per second"


MEASURES = (
    Measure(
        "Lost", LOST, "Time lost by slow calls and gaps, as a share of the time",
        lambda slot: _share_of(slot.lost_ns, slot), format_share, is_share=True,
    ),
    Measure(
        "Calls", API, "CUDA calls", lambda slot: rate_of(slot.calls, slot), _tell_rate
    ),
    Measure(
        "GPU wait", GPU, "Time in calls that wait for the GPU, as a share of the time",
        lambda slot: _share_of(slot.synchronize_ns, slot), format_share, is_share=True,
    ),
    Measure(
        "Run queue", CPU, "Time that threads were ready to run and did not, as a share of the time",
        lambda slot: _share_of(slot.run_queue_ns, slot), format_share, is_share=True,
    ),
    Measure(
        "Alloc + free", MEMORY, "Time in calls that allocate or free, as a share of the time",
        lambda slot: _share_of(slot.allocate_ns, slot), format_share, is_share=True,
    ),
)  # fmt: skip

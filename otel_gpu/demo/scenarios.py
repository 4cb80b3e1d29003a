"""The scenarios by name, and what each does."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

from otel_gpu.demo import busy, injections, memory, neighbour, steady
from otel_gpu.demo.loop import Trainer

FOLDER = Path(__file__).parent
RECORDINGS = FOLDER / "recordings"
# A scenario is over in about a second. Trends and counters are read more often than that.
CAPTURE_ENVIRONMENT = {"OTEL_GPU_CAPTURE_SNAPSHOT_INTERVAL_S": "0.2"}
CAPTURE_FLAGS = ("--spans=full", "--summary=never")


class Scenario(NamedTuple):
    """
    One way to be slow.

    ``is_fair``: not as a real-time task. ``has_neighbour``: needs a program that is not watched.
    ``is_steady``: slow, or healthy, all the time. ``has_allocator``: it is about the device's memory, which
    is as large as ``memory.DEVICE_BYTES``.
    """

    name: str
    about: str
    run: Callable[[Trainer], None]
    is_fair: bool = False
    is_pinned: bool = True
    is_steady: bool = False
    has_neighbour: bool = False
    has_allocator: bool = False

    def surroundings(self) -> AbstractContextManager[dict[str, str]]:
        """Start what it needs beside it; the environment that it finds that by."""
        if self.has_neighbour:
            return neighbour.started()
        device = {"STUB_DEVICE_BYTES": str(memory.DEVICE_BYTES)}
        return nullcontext(device if self.has_allocator else {})

    @property
    def recording(self) -> Path:
        """The recording of it that comes with the package."""
        return RECORDINGS / f"{self.name}.otelgpu"


SCENARIOS = {
    scenario.name: scenario
    for run, options in (
        (injections.clean, {}),
        (injections.preemption, {}),
        (injections.late_wakeup, {}),
        # Quotas are not for real-time tasks.
        (injections.cpu_quota, {"is_fair": True}),
        (injections.lock, {}),
        (injections.gil, {}),
        (injections.starved_loader, {}),
        (injections.disk, {}),
        # Its children begin on its CPU and would take it away.
        (injections.large_fork, {"is_pinned": False}),
        (injections.memory_limit, {}),
        (injections.stopped, {}),
        (injections.gpu_wait, {}),
        (injections.gpu_backpressure, {}),
        (injections.first_call, {}),
        # Real-time tasks may not have a CPU for this long.
        (injections.allocator_churn, {"is_fair": True}),
        (injections.two_causes, {}),
        *((run, {}) for run in busy.SUDDEN),
        *((run, {"is_fair": True, "is_steady": True}) for run in (*busy.ALWAYS, *steady.ALONE)),
        *(
            (run, {"is_fair": True, "is_steady": True, "has_neighbour": True})
            for run in steady.WITH_NEIGHBOUR
        ),
        *(
            (run, {"is_fair": True, "has_allocator": True})
            for run in (*memory.FAILING, *memory.LOSING, *memory.HEALTHY)
        ),
    )
    for scenario in [
        Scenario(run.__name__.replace("_", "-"), (run.__doc__ or "").rstrip("."), run, **options)
    ]
}

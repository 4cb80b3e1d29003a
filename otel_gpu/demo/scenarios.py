"""The scenarios by name, one for each class of causes, and what each does."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from otel_gpu.demo import busy, injections, memory
from otel_gpu.demo.loop import Function, Helper, Trainer, compute

FOLDER = Path(__file__).parent
RECORDINGS = FOLDER / "recordings"
# A scenario is over in about a second. Trends and counters are read more often than that.
CAPTURE_ENVIRONMENT = {"OTEL_GPU_CAPTURE_SNAPSHOT_INTERVAL_S": "0.2"}
CAPTURE_FLAGS = ("--spans=full", "--summary=never")


class Scenario(NamedTuple):
    """
    One way to be slow.

    ``is_fair``: not as a real-time task.
    ``has_allocator``: it is about the device's memory, which is as large as ``memory.DEVICE_BYTES``.
    ``lines`` is where the loop is while it loses time, by the kind of what it loses it to.
    """

    name: str
    about: str
    run: Callable[[Trainer], None]
    is_fair: bool = False
    is_pinned: bool = True
    has_allocator: bool = False
    lines: Mapping[str, Function] = {}

    def prepared_host(self) -> AbstractContextManager[dict[str, str]]:
        """Start what it needs beside it; the environment that it finds that by."""
        device = {"STUB_DEVICE_BYTES": str(memory.DEVICE_BYTES)}
        return nullcontext(device if self.has_allocator else {})

    @property
    def recording(self) -> Path:
        """The recording of it that comes with the package."""
        return RECORDINGS / f"{self.name}.otelgpu"

    @property
    def program(self) -> Path:
        """The program that is captured."""
        return FOLDER / "trainer.py"


def name_and_about(run: Callable[[Trainer], None]) -> tuple[str, str]:
    """Return the name of a scenario, and in a sentence what its function does."""
    return run.__name__.replace("_", "-"), (run.__doc__ or "").rstrip(".")


_OPTIONS: Mapping[Callable[[Trainer], None], dict[str, Any]] = {
    injections.clean: {},
    injections.preemption: {"lines": {"run_queue": Trainer.launch}},
    # Quotas are not for real-time tasks.
    injections.cpu_quota: {"is_fair": True, "lines": {"run_queue": Trainer.launch}},
    injections.lock: {},
    injections.gil: {},
    injections.starved_loader: {"lines": {"ipc": Helper.await_report}},
    busy.slow_python: {"is_fair": True},
    injections.memory_limit: {},
    injections.stopped: {"lines": {"stopped": compute}},
    injections.gpu_wait: {},
    # Real-time tasks may not have a CPU for this long.
    injections.allocator_churn: {"is_fair": True},
    memory.memory_fragmentation: {"is_fair": True, "has_allocator": True},
    injections.two_causes: {"lines": {"run_queue": Trainer.launch}},
}
SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(*name_and_about(run), run, **options) for run, options in _OPTIONS.items()
    )
}

"""The scenarios by name, one for each class of causes."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from otel_gpu.demo import busy, injections, memory_scenarios
from otel_gpu.demo.loop import Function, Helper, Trainer, compute

FOLDER = Path(__file__).parent
RECORDINGS = FOLDER / "recordings"
# A scenario takes about a second, so trends and counters must be read more often than that.
CAPTURE_ENVIRONMENT = {"OTEL_GPU_CAPTURE_SNAPSHOT_INTERVAL_S": "0.2"}
CAPTURE_FLAGS = ("--spans=full", "--summary=never")


class Scenario(NamedTuple):
    """
    One cause of slowness, and how to run it.

    ``is_fair``: its loop is not a real-time task.
    ``has_allocator``: it uses device memory, of ``memory_scenarios.DEVICE_BYTES``.
    ``lines``: the function where the loop loses time, by kind of cause.
    """

    name: str
    about: str
    run: Callable[[Trainer], None]
    is_fair: bool = False
    is_pinned: bool = True
    has_allocator: bool = False
    lines: Mapping[str, Function] = {}

    def prepared_host(self) -> AbstractContextManager[dict[str, str]]:
        """Start what the scenario needs; yield the environment variables for it."""
        device = {"STUB_DEVICE_BYTES": str(memory_scenarios.DEVICE_BYTES)}
        return nullcontext(device if self.has_allocator else {})

    @property
    def recording(self) -> Path:
        """The path of its recording in the package."""
        return RECORDINGS / f"{self.name}.otelgpu"

    @property
    def program(self) -> Path:
        """The path of the program to capture."""
        return FOLDER / "trainer.py"


def name_and_about(run: Callable[[Trainer], None]) -> tuple[str, str]:
    """Return the name and the description of a scenario, from its function."""
    return run.__name__.replace("_", "-"), (run.__doc__ or "").rstrip(".")


_OPTIONS: Mapping[Callable[[Trainer], None], dict[str, Any]] = {
    injections.clean: {},
    injections.preemption: {"lines": {"run_queue": Trainer.launch}},
    # Quotas do not apply to real-time tasks.
    injections.cpu_quota: {"is_fair": True, "lines": {"run_queue": Trainer.launch}},
    injections.lock: {},
    injections.gil: {},
    injections.starved_loader: {"lines": {"ipc": Helper.await_report}},
    busy.slow_python: {"is_fair": True},
    injections.memory_limit: {},
    injections.stopped: {"lines": {"stopped": compute}},
    injections.gpu_wait: {},
    # The kernel limits how long real-time tasks have a CPU.
    injections.allocator_churn: {"is_fair": True},
    memory_scenarios.memory_fragmentation: {"is_fair": True, "has_allocator": True},
    injections.two_causes: {"lines": {"run_queue": Trainer.launch}},
}
SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(*name_and_about(run), run, **options) for run, options in _OPTIONS.items()
    )
}

"""All scenarios: those of the demo, and those that only tests run."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from otel_gpu.demo.busy import slow_python
from otel_gpu.demo.loop import Trainer, compute, sleep
from otel_gpu.demo.scenarios import SCENARIOS as DEMO
from otel_gpu.demo.scenarios import Scenario, name_and_about
from tests.scenarios import busy, injections, memory, neighbour, steady

FOLDER = Path(__file__).parent
RECORDINGS = FOLDER / "recordings"


class ExtraScenario(Scenario):
    """A scenario that is not in the package."""

    __slots__ = ()

    def prepared_host(self) -> AbstractContextManager[dict[str, str]]:
        """Start what it needs beside it, also a program that is not watched."""
        if self.run in steady.WITH_NEIGHBOUR:
            return neighbour.started()
        return super().prepared_host()

    @property
    def recording(self) -> Path:
        """The recording of it."""
        return RECORDINGS / f"{self.name}.otelgpu"

    @property
    def program(self) -> Path:
        """The program that is captured."""
        return FOLDER / "trainer.py"


_FAIR = {"is_fair": True}
_MEMORY = {"is_fair": True, "has_allocator": True}
_OPTIONS: Mapping[Callable[[Trainer], None], dict[str, Any]] = {
    injections.late_wakeup: {"lines": {"run_queue": sleep}},
    injections.disk: {},
    # Its children begin on its CPU and would take it away.
    injections.large_fork: {"is_pinned": False},
    injections.gpu_backpressure: {},
    injections.first_call: {},
    **{run: {} for run in busy.SUDDEN},
    **dict.fromkeys((*busy.ALWAYS, *steady.ALONE, *steady.WITH_NEIGHBOUR), _FAIR),
    # Its thread is woken by the disk, and has to have a CPU at once on a busy machine.
    steady.checkpoint: {},
    busy.busy_loader: {**_FAIR, "lines": {"ipc": steady.wait_for_loader}},
    steady.steady_loader: {**_FAIR, "lines": {"ipc": steady.wait_for_loader}},
    steady.steady_contention: {**_FAIR, "lines": {"run_queue": compute}},
    steady.noisy_neighbour: {**_FAIR, "lines": {"run_queue": compute}},
    steady.long_synchronize: {**_FAIR, "lines": {"run_queue": sleep}},
    steady.steady_sleep: {**_FAIR, "lines": {"sleep": sleep}},
    **dict.fromkeys((*memory.FAILING, *memory.LOSING, *memory.HEALTHY), _MEMORY),
}
MORE: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        ExtraScenario(*name_and_about(run), run, **options) for run, options in _OPTIONS.items()
    )
}
SCENARIOS: Mapping[str, Scenario] = {**DEMO, **MORE}
LINES = [name for name, scenario in SCENARIOS.items() if scenario.lines]
"""Those of which it is known on which line the loop loses time."""
STEADY = {
    name_and_about(run)[0]
    for run in (slow_python, *busy.ALWAYS, *steady.ALONE, *steady.WITH_NEIGHBOUR)
}
"""Those that are slow, or healthy, all the time."""

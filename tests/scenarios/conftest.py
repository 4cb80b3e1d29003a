"""Fixtures of the scenario tests: the programs, built once."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_gpu.demo.build import build
from tests.scenarios.all_scenarios import SCENARIOS
from tests.scenarios.explained_runs import ExplainedRun, capture, explain


@pytest.fixture(scope="session")
def run_scenario(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ExplainedRun]:
    """
    Run a scenario by name, and explain it.

    Tests that judge different things of a scenario share a run of it; ``number`` asks for another,
    and ``way`` for one whose hot calls are counted by ``probes`` or by the ``preload`` library.
    """
    folder = tmp_path_factory.mktemp("scenarios")
    built: dict[tuple[bool, Path], list[str]] = {}

    @functools.cache
    def run(name: str, _: int, way: str) -> ExplainedRun:
        scenario = SCENARIOS[name]
        needs = scenario.has_allocator, scenario.program
        if needs not in built:
            built[needs] = build(scenario, folder)
        recording: Path = folder / f"{way}-{scenario.recording.name}"
        truth = capture(scenario, [*built[needs][:-1], name], recording, way)
        return ExplainedRun(truth, explain(recording))

    return lambda name, number=0, way="probes": run(name, number, way)

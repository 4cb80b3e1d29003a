"""Fixtures of the scenario tests: the programs, built once."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_gpu.demo.build import build
from otel_gpu.demo.scenarios import SCENARIOS
from tests.scenarios.blame import Blame, capture, explain


@pytest.fixture(scope="session")
def run_scenario(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Blame]:
    """
    Run a scenario by name, and explain it.

    Tests that judge different things of a scenario share a run of it; ``number`` asks for another,
    and ``way`` for one whose hot calls are counted by ``probes`` or by its own ``door``.
    """
    folder = tmp_path_factory.mktemp("scenarios")
    built: dict[bool, list[str]] = {}

    @functools.cache
    def run(name: str, _: int, way: str) -> Blame:
        scenario = SCENARIOS[name]
        if scenario.has_allocator not in built:
            built[scenario.has_allocator] = build(scenario, folder)
        recording: Path = folder / f"{way}-{scenario.recording.name}"
        truth = capture(scenario, [*built[scenario.has_allocator][:-1], name], recording, way)
        return Blame(truth, explain(recording))

    return lambda name, number=0, way="probes": run(name, number, way)

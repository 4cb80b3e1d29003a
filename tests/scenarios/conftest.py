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

    Tests that judge different things of a scenario share a run of it; ``number`` asks for another.
    """
    folder = tmp_path_factory.mktemp("scenarios")
    built: dict[bool, list[str]] = {}

    @functools.cache
    def run(name: str, _: int) -> Blame:
        scenario = SCENARIOS[name]
        if scenario.has_allocator not in built:
            built[scenario.has_allocator] = build(scenario, folder)
        recording: Path = folder / scenario.recording.name
        truth = capture(scenario, [*built[scenario.has_allocator][:-1], name], recording)
        return Blame(truth, explain(recording))

    return lambda name, number=0: run(name, number)

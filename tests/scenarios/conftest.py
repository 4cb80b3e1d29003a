"""Fixtures of the scenario tests: the programs, built once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from otel_gpu.demo.build import build
from otel_gpu.demo.scenarios import SCENARIOS
from tests.scenarios.blame import Blame, capture, explain


@pytest.fixture(scope="session")
def run_scenario(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Blame]:
    """Run a scenario by name, and explain it."""
    folder = tmp_path_factory.mktemp("scenarios")
    built: list[str] = []

    def run(name: str) -> Blame:
        scenario = SCENARIOS[name]
        if not built:
            built.extend(build(scenario, folder))
        recording: Path = folder / scenario.recording.name
        truth = capture(scenario, [*built[:-1], name], recording)
        return Blame(truth, explain(recording))

    return run

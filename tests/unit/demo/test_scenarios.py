"""The table of scenarios against what there is of them."""

import pytest

from otel_gpu.demo.scenarios import RECORDINGS, SCENARIOS


def test_every_scenario_says_what_it_does() -> None:
    """The list that users choose from is made of the docstrings of what is done."""
    assert all(one.about and not one.about.endswith(".") for one in SCENARIOS.values())
    assert {path.stem for path in RECORDINGS.glob("*.otelgpu")} == set(SCENARIOS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_recording_of_a_scenario_is_small(name: str) -> None:
    """Every user downloads all of them."""
    assert 0 < SCENARIOS[name].recording.stat().st_size < 100_000

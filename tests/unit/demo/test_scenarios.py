"""The table of scenarios against the programs that run them."""

import re

import pytest

from otel_gpu.demo.scenarios import FOLDER, SCENARIOS


def test_every_scenario_of_the_program_is_in_the_table() -> None:
    """Each name in the C program can be asked for, and each name in the table is in a program."""
    source = (FOLDER / "scenarios.c").read_text(encoding="utf-8")
    table = source.rpartition("scenarios[] = {")[2]
    in_c = set(re.findall(r'\{"([a-z-]+)", \w+', table))

    assert in_c | {"gil"} == SCENARIOS.keys()
    assert {name for name in SCENARIOS if SCENARIOS[name].program == "scenarios.c"} == in_c


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_recording_of_a_scenario_is_small(name: str) -> None:
    """Every user downloads all of them."""
    assert 0 < SCENARIOS[name].recording.stat().st_size < 100_000

"""The first rows of a report say what the scenario did, at any width."""

import re

import pytest

from otel_gpu import cli
from otel_gpu.demo.scenarios import SCENARIOS

# What caused it, where the loop lost the time, and the advice that helps.
TRUTH = {
    "clean": ("Nothing went wrong", "", ""),
    "preemption": ("hog (1868) took its CPU away", "Trainer.launch", "CPUs of its own"),
    "cpu-quota": ("used up its CPU quota", "Trainer.launch", "Raise cpu.max"),
    "lock": ("a lock of holder (3033/3068)", "Trainer.launch", "Find the sleep"),
    "gil": ("Python's GIL, held by holder (3110/3119)", "Trainer.synchronize", "Find the sleep"),
    "starved-loader": ("hog (3207) kept from running", "Helper.await_report", "the other load"),
    "slow-python": ("The program worked on the CPU", "tokenise", "Make the lines faster"),
    "memory-limit": ("Memory was short", "Trainer.launch", "Raise the memory limit"),
    "stopped": ("stopped by a signal", "Trainer.launch", "Find the sender of SIGSTOP"),
    "gpu-wait": ("It waited for the GPU", "Trainer.synchronize", "profile the kernels"),
    "allocator-churn": ("Device memory was allocated and freed", "_allocate", "Allocate once"),
    "memory-fragmentation": ("in holes that were too small", "gather", "expandable_segments"),
    "two-causes": ("hog (3770) took its CPU away", "Trainer.launch", "CPUs of its own"),
}


def test_each_scenario_has_its_truth():
    """A scenario without one would not be tested."""
    assert TRUTH.keys() == SCENARIOS.keys()


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", TRUTH)
def test_the_first_eight_rows_name_cause_line_and_advice(name, width, monkeypatch, capsys):
    """Rows fit the terminal, and what they say is whole."""
    monkeypatch.setenv("COLUMNS", str(width))
    assert cli.main(["explain", str(SCENARIOS[name].recording)]) == 0

    printed = capsys.readouterr().out
    answer = printed.split("\n\n")[0].splitlines()
    assert len(answer) <= 8
    assert all(len(row) <= width for row in answer)
    said = re.sub(r"\s+", " ", " ".join(answer))
    assert all(part in said for part in TRUTH[name])

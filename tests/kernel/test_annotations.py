"""``otel-gpu annotate``: said by what a program runs, by itself and from outside, and who may."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.agent import ROOT, Agent, losses, otel_gpu
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries

# Whoever annotates is heard by every agent of the host.
pytestmark = [pytest.mark.kernel, pytest.mark.alone(among="kernel")]

SCRIPT = ROOT / "tests" / "workloads" / "annotated.py"
AS_NOBODY = """
import os, sys
from otel_gpu.annotations import pack_pairs
from otel_gpu.instrumentation.marks import annotate_function
function, text = annotate_function(), pack_pairs(["job=18"])
os.setuid(65534)
function(int(sys.argv[1]), text, len(text))
"""
HEARD, UNHEARD, MISUSED = 0, 1, 2


def test_what_is_said_holds_for_the_program_around(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """By a command in a shell of its own; another process is not its to name."""
    file = tmp_path / "annotated.rec"
    command = [sys.executable, SCRIPT, stubs.runtime]
    with Agent(
        receiver, command, flags=["--record", str(file)], env={"PYTHONPATH": str(ROOT)}
    ) as agent:
        line = agent.next_line()
        agent.wait()

    # That it is about a process that is not watched is nothing that it knows.
    assert line["codes"] == [HEARD, HEARD, HEARD, MISUSED]
    assert losses(receiver) == {"annotation": 1}
    (row,) = json.loads(otel_gpu("explain", file, "--json").stdout)["steps"]
    (slow,) = [one for one in row["slow"] if one["number"] == line["slow"]]
    assert slow["annotations"] == {"epoch": "3", "phase": "warm-up", "batch": "7"}


def test_one_from_outside_is_heard_while_an_agent_runs(
    receiver: OtlpReceiver, tmp_path: Path
) -> None:
    """By who owns the process; before and after, nobody listens."""
    file = tmp_path / "outside.rec"
    said = ("annotate", "job=17", "--pid")
    command = [sys.executable, "-c", "import os; print(os.getpid(), flush=True); input()"]
    with Agent(receiver, command, flags=["--record", str(file)], stdin=subprocess.PIPE) as agent:
        pid = agent.next_line()
        assert otel_gpu(*said, pid).returncode == HEARD
        # Whoever is nobody may say what he likes.
        subprocess.run([sys.executable, "-c", AS_NOBODY, str(pid)], cwd=ROOT, check=True)
        agent.send_line()
        agent.wait()
    assert otel_gpu(*said, pid).returncode == UNHEARD

    parsed = otel_gpu("parse", file, "--kind", "annotation").stdout.splitlines()
    assert [(f" {pid}/{pid} " in line, 'text="job=17"' in line) for line in parsed] == [
        (True, True)
    ]
    assert losses(receiver) == {"annotation": 1}

"""
A stop for probes ends when any process lets the program go on, such as another agent.

Two agents wait for each other for a while. The slower one counts a program that went on before its
probes stood. A frozen agent is as slow as one can be.
"""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import NamedTuple

import pytest

from otel_gpu.capture.probes.missed_starts import MissedStart
from tests.kernel.agent import Agent, calls, losses, state_of, wait_until
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, copy_of_runtime, workload

pytestmark = pytest.mark.kernel

CALLS = 101
MISSED = {"not_watched_from_start": 1}
# The inner agent is a program of Python, too, whose stacks can change while they are read.
OTHER_LOSSES = {"python_frames"}
# On a machine that is busy enough, an agent is late once in a while.
TRIES = 5
# Becomes its arguments when it gets a line.
WAITS = ("sh", "-c", 'echo $$; read line; exec "$@"', "sh")
INNER = (
    *("env", "-u", "OTEL_EXPORTER_OTLP_ENDPOINT", "COLUMNS=1000", sys.executable),
    *("-m", "otel_gpu", "run", "--summary", "always", "--"),
)


def program(mode: str, *libraries: str | Path) -> list[str]:
    return list(map(str, (workload("first_call"), mode, CALLS, *libraries)))


def test_an_agent_under_an_agent_counts_every_call_and_so_does_the_other(
    stubs: StubLibraries,
) -> None:
    """Both stop the program; it goes on when the probes of both stand, or the slower one counts it."""
    for _ in range(TRIES):
        with OtlpReceiver() as receiver:
            command = [*INNER, *program("direct", stubs.runtime)]
            with Agent(receiver, command, flags=["--summary", "never"]) as agent:
                finished = agent.wait()
            pid = finished.lines[0]["pid"]
            outer, lost = calls(receiver, "cudaMalloc", pid), losses(receiver)

        lost = {reason: count for reason, count in lost.items() if reason not in OTHER_LOSSES}
        rows = re.findall(rf"\({pid}\) +cudaMalloc +([0-9,]+) ", finished.stderr)
        is_inner_late = f"({pid}): " in finished.stderr
        assert lost == MISSED or (outer, lost) == (CALLS, {})
        assert is_inner_late or rows == [str(CALLS)]
        assert is_inner_late != ("lost: nothing" in finished.stderr)
        if not lost and not is_inner_late:
            return
    pytest.fail(f"one of the agents was late {TRIES} times")


class Frozen(NamedTuple):
    """A frozen agent, and a process that it watches."""

    agent: Agent
    pid: int

    def wait_for_stop(self, condition: Callable[[str], bool]) -> None:
        """Wait until the program is stopped, and its command line and maps contain what they have to."""

        def stands() -> bool:
            folder = Path(f"/proc/{self.pid}")
            text = (
                f"{folder.joinpath('cmdline').read_text()}\n{folder.joinpath('maps').read_text()}"
            )
            return state_of(self.pid) == "T" and condition(text)

        wait_until(stands, "the stop")

    def let_go_on(self) -> None:
        """Do what another agent would."""
        os.kill(self.pid, signal.SIGCONT)


@contextmanager
def frozen(receiver: OtlpReceiver, command: list[str], *before: str) -> Iterator[Frozen]:
    """Run a command, and freeze its agent before the command becomes a program of CUDA."""
    whole = [*before, *WAITS, *command]
    flags, wide = ("--summary", "always"), {"COLUMNS": "1000"}
    with Agent(receiver, whole, flags=flags, env=wide, stdin=PIPE) as agent:
        pid = agent.next_line()
        agent.signal(signal.SIGSTOP)
        wait_until(lambda: state_of(agent.process.pid) == "T", "the agent's stop")
        agent.send_line()
        yield Frozen(agent, pid)


def test_a_program_that_ended_before_the_slower_agent_saw_it_is_counted(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """The outer agent is frozen until the inner one has let the program go on, and it has ended."""
    with frozen(receiver, program("direct", stubs.runtime), *INNER) as (agent, pid):
        assert agent.next_line() == {"pid": pid, "cudaMalloc": CALLS}
        wait_until(lambda: state_of(pid) in {None, "Z"}, "the program's end")
        agent.signal(signal.SIGCONT)
        finished = agent.wait()

    assert finished.returncode == 0
    assert re.findall(rf"\({pid}\) +cudaMalloc +([0-9,]+) ", finished.stderr) == [str(CALLS)]
    assert "lost: nothing" in finished.stderr
    assert calls(receiver, "cudaMalloc", pid) == 0
    assert losses(receiver).keys() - OTHER_LOSSES == MISSED.keys()
    assert losses(receiver)["not_watched_from_start"] == 1
    assert f"({pid}): {MissedStart.LET_GO}, {stubs.runtime}" in finished.stderr


def test_a_program_at_its_next_stop_did_not_stand_still_since_the_last(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """It called its first library while the agent was frozen, and stops for the second one."""
    first, second = stubs.runtime, copy_of_runtime(tmp_path)
    with frozen(receiver, program("copies", first, second)) as stopped:
        stopped.wait_for_stop(lambda text: str(first) not in text.partition("\n")[2])
        stopped.let_go_on()
        stopped.wait_for_stop(lambda text: str(first) in text.partition("\n")[2])
        stopped.let_go_on()
        stopped.wait_for_stop(lambda text: str(second) in text.partition("\n")[2])
        stopped.agent.signal(signal.SIGCONT)
        finished = stopped.agent.wait()

    assert finished.returncode == 0
    assert calls(receiver, "cudaMalloc", stopped.pid) == CALLS
    assert losses(receiver) == MISSED
    assert f"({stopped.pid}): {MissedStart.LET_GO}, {first}" in finished.stderr


def test_a_program_that_became_another_one_is_counted(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """When the agent can look, the process is the next program, at the stop for the same library."""
    library = str(stubs.runtime)
    with frozen(receiver, program("exec_thread", library)) as stopped:
        for mode in ("exec_thread", "direct"):
            for is_mapped in (False, True):
                stopped.wait_for_stop(
                    lambda text, mode=mode, is_mapped=is_mapped: (
                        f"\0{mode}\0" in text and (library in text.partition("\n")[2]) == is_mapped
                    )
                )
                if mode != "direct" or not is_mapped:
                    stopped.let_go_on()
        stopped.agent.signal(signal.SIGCONT)
        finished = stopped.agent.wait()

    assert finished.returncode == 0
    assert calls(receiver, "cudaMalloc", stopped.pid) == CALLS
    assert losses(receiver) == MISSED

"""On which device a thread works, although no probe stands where its program asks that."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from otel_gpu.capture.probes.device_queries import SEEN_FOR_S
from tests.kernel.agent import (
    CALL_DURATION,
    Agent,
    calls,
    environment_for,
    losses,
    points,
    through,
    total,
)
from tests.receiver import OtlpReceiver
from tests.stubs.build import WORKLOADS, StubLibraries

pytestmark = pytest.mark.kernel

ROUNDS = 1009
PROGRAM = WORKLOADS / "which_device.py"


def command_of(stubs: StubLibraries) -> list[str]:
    return [sys.executable, str(PROGRAM), str(stubs.runtime), str(stubs.driver)]


def hits(receiver: OtlpReceiver) -> int:
    """How often a probe at an entry fired for a watched process."""
    return total(receiver, "otel_gpu.probe.hits", otel_gpu__probe__type="entry")


def queries(receiver: OtlpReceiver, pid: int) -> dict[object, int]:
    """How often the event was queried on each device."""
    return {
        key.attribute("cuda.device.index"): point.point.count
        for key, point in receiver.metrics().items()
        if key.name == CALL_DURATION
        and key.pid == pid
        and key.attribute("gpu.cuda.api") == "cudaEventQuery"
    }


@pytest.mark.parametrize("way", ["probes", "preload"])
def test_who_says_nothing_works_on_the_first_device_and_who_does_on_that(
    receiver: OtlpReceiver, stubs: StubLibraries, way: str
) -> None:
    """To ask is no call that counts; of a context that the program makes current itself, nothing is known."""
    with through(way), Agent(receiver, command_of(stubs), stdin=subprocess.PIPE) as agent:
        pid = agent.next_line()["pid"]
        for line in ("", "1009", "context", "13"):
            agent.send_line(line)
            assert agent.next_line() == line
        agent.process.stdin.close()
        agent.wait()

    assert queries(receiver, pid) == {0: ROUNDS, None: 13}
    assert calls(receiver, "cuCtxSetCurrent", pid) == 1
    assert points(receiver, CALL_DURATION, pid, gpu__cuda__api="cudaGetDevice") == []
    assert losses(receiver) == {}


@contextmanager
def program_on(device: int, stubs: StubLibraries) -> Iterator[subprocess.Popen[str]]:
    """A program that has said which device it works on."""
    with subprocess.Popen(
        command_of(stubs),
        env=environment_for(None),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout
        program.stdout.readline()
        ask(program, str(device))
        yield program
        program.kill()


def ask(program: subprocess.Popen[str], line: str) -> None:
    assert program.stdin
    assert program.stdout
    program.stdin.write(f"{line}\n")
    program.stdin.flush()
    assert json.loads(program.stdout.readline()) == line


def test_what_a_thread_said_before_is_learned_where_it_asks(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """For some seconds; then to ask costs the program no trap."""
    with (
        program_on(1, stubs) as program,
        Agent(receiver, flags=["--pid", str(program.pid)]) as agent,
    ):
        receiver.wait_for(lambda: points(receiver, "otel_gpu.coverage"))
        ask(program, str(ROUNDS))
        receiver.wait_for(lambda: calls(receiver, "cudaEventQuery", program.pid) == ROUNDS)
        # The first call may come before anything was asked.
        assert queries(receiver, program.pid) == {1: ROUNDS}
        assert hits(receiver) > ROUNDS
        time.sleep(SEEN_FOR_S + 2)
        before = hits(receiver)
        ask(program, "13")
        receiver.wait_for(lambda: calls(receiver, "cudaEventQuery", program.pid) == ROUNDS + 13)
        agent.signal(2)
        agent.wait()

    assert queries(receiver, program.pid) == {1: ROUNDS + 13}
    assert hits(receiver) - before == 13
    assert points(receiver, CALL_DURATION, program.pid, gpu__cuda__api="cudaGetDevice") == []
    assert losses(receiver) == {}

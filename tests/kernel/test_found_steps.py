"""Steps of programs that tell nobody: found to the call, or said to be unknown."""

import json
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from otel_gpu import wire
from otel_gpu.capture.bpf.programs import Programs
from otel_gpu.capture.processes.command import Command
from otel_gpu.capture.record_headers import header_of
from otel_gpu.capture.recording import read_recording
from otel_gpu.capture.session import Session
from otel_gpu.config import load
from otel_gpu.wire.decoder import decode
from otel_gpu.wire.events import Counters, Status
from otel_gpu.wire.marks import Step
from tests.kernel.agent import Agent
from tests.stubs.build import WORKLOADS, StubLibraries

pytestmark = pytest.mark.kernel


class Captured(NamedTuple):
    """What a program said of itself, and what was found."""

    pid: int
    logged: list[Any]
    found: list[Step]
    state: dict[str, int]
    lost: int


def capture(stubs: StubLibraries, folder: Path, what: str, **more: Any) -> Captured:
    file = folder / "steps.rec"
    command = [sys.executable, WORKLOADS / "periodic.py", stubs.runtime, what]
    with Agent(None, command, flags=["--record", str(file)], **more) as agent:
        (line,) = agent.wait().lines
    return read(file, line)


def read(file: Path, line: dict[str, Any]) -> Captured:
    return read_records((one for batch in read_recording(file) for one in batch), line)


def read_records(records: Iterable[bytes], line: dict[str, Any]) -> Captured:
    rejected: Counter[str] = Counter()
    events = list(decode(records, rejected))
    assert rejected == {}
    (*_, status) = (one.info for one in events if isinstance(one, Status))
    (*_, counters) = (one.values for one in events if isinstance(one, Counters))
    return Captured(
        line["pid"],
        line["steps"],
        [one for one in events if isinstance(one, Step)],
        status["steps"],
        counters[wire.COUNTER_STEPS_RATE_LIMITED]
        + counters[wire.COUNTER_STEP_THREADS_RATE_LIMITED],
    )


def assert_same(captured: Captured, *, first: int = 1) -> None:
    """Each step, between the same two calls as the program says, without a kind, and nothing else."""
    assert captured.lost == 0
    assert len(captured.found) == len(captured.logged)
    for step, logged in zip(captured.found, captured.logged, strict=True):
        before_ns, start_ns, last_ns, end_ns = logged
        assert before_ns < step.start_ktime_ns <= start_ns
        assert last_ns < step.end_ktime_ns <= end_ns
        assert step.kind == wire.STEP_UNKNOWN
        assert (step.pid, step.tid, step.source) == (captured.pid, captured.pid, wire.STEP_FOUND)
        assert step.confidence_percent >= 80
    numbers = [step.number for step in captured.found]
    assert numbers == list(range(first, first + len(numbers)))
    assert captured.state == {"found": 1}


@pytest.mark.usefixtures("counted_by")
@pytest.mark.parametrize("what", ["loop", "epochs", "evaluations", "serve"])
def test_steps_of_a_loop_are_found_to_the_call(
    stubs: StubLibraries, tmp_path: Path, what: str
) -> None:
    """An evaluation every 50 steps is no part of any, or has steps of its own; so have two kinds in turn."""
    assert_same(capture(stubs, tmp_path, what))


def test_steps_are_whole_where_the_kernel_did_not_tell_of_the_end(
    stubs: StubLibraries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And there is an end. When the last step ended, nobody knows then."""
    said = tmp_path / "said.json"
    program = [sys.executable, str(WORKLOADS / "periodic.py"), str(stubs.runtime), "loop", "53"]
    command = Command(["sh", "-c", 'exec "$@" > ' + shlex.quote(str(said)), "sh", *program])
    config = load(None, {}, {})
    with Programs(config, watch_all=False) as programs:
        attach = programs.bpf.attach
        monkeypatch.setattr(
            programs.bpf, "attach", lambda name: name == "sched_process_exit" or attach(name)
        )
        records = [
            record
            for batch in Session(programs, config, command=command).batches()
            for record in batch
        ]

    captured = read_records(records, json.loads(said.read_bytes()))
    assert_same(captured._replace(logged=captured.logged[:-1]))
    headers = map(header_of, records)
    assert [one.pid for one in headers if one.kind == wire.RECORD_EXIT] == [command.pid]


def test_random_calls_have_no_steps(stubs: StubLibraries, tmp_path: Path) -> None:
    """And it is said why."""
    captured = capture(stubs, tmp_path, "wander")

    assert captured.found == []
    assert captured.state == {"no_iterations": 1}


def test_steps_of_a_loop_that_runs_already_are_found(stubs: StubLibraries, tmp_path: Path) -> None:
    """All of them, from the first one on whose calls were seen, and the return of the call before."""
    file = tmp_path / "steps.rec"
    command = [sys.executable, WORKLOADS / "periodic.py", stubs.runtime, "loop", "3001"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        flags = ["--pid", str(program.pid), "--record", str(file)]
        with Agent(None, flags=flags) as agent:
            text, _ = program.communicate()
            agent.wait()

    captured = read(file, json.loads(text))

    found = captured.found
    if found[0].start_ktime_ns > captured.logged[-len(found)][1]:
        found = found[1:]
    assert len(found) > 100
    assert_same(
        captured._replace(found=found, logged=captured.logged[-len(found) :]),
        first=found[0].number,
    )


def test_nothing_is_looked_for_if_nobody_wants_it(stubs: StubLibraries, tmp_path: Path) -> None:
    """One option turns it off."""
    captured = capture(stubs, tmp_path, "loop", env={"OTEL_GPU_STEPS_FIND": "false"})

    assert (captured.found, captured.state, captured.lost) == ([], {}, 0)

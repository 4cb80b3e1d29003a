"""Calls that had begun before the capture: open for an unknown time, and with their place."""

import os
import re
import signal

import pytest

from tests.kernel.agent import FIRST, Agent, calls, losses, otel_gpu, points, spans
from tests.kernel.sampling import Subject
from tests.kernel.test_thread_dumps import SCRIPT, hung, was_stopped
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, workload

pytestmark = pytest.mark.kernel

API = "cudaStreamSynchronize"
OPEN = "gpu.cuda.call.open"
AGE = "gpu.cuda.call.open.age"
MORE = 7
# Later than the call, which is only ever looked at as one of those that began before.
LATE = {"OTEL_GPU_CAPTURE_OPEN_CALL_LIMIT_S": "600"}


@pytest.mark.parametrize(
    ("how", "apis"), [("spin", {API}), ("driver", {API, "cuStreamSynchronize"})]
)
def test_a_call_that_began_before_is_open(
    receiver: OtlpReceiver, stubs: StubLibraries, how: str, apis: set[str]
) -> None:
    """A span names it, its thread and its line, a gauge its age; and nothing counts it."""
    with (
        hung(stubs, how) as subject,
        Agent(receiver, flags=("--pid", str(subject.pid)), env=LATE, inside=FIRST),
    ):
        found = receiver.wait_for(
            lambda: (of := spans(receiver, OPEN, subject.pid)) and len(of) >= len(apis) and of
        )
        ages = receiver.wait_for(lambda: points(receiver, AGE, subject.pid, gpu__cuda__api=API))
        assert not was_stopped(subject.pid)
        assert not calls(receiver, API, subject.pid)
        about = subject.about

    assert {span.attributes["gpu.cuda.api"] for span in found} == apis
    for span in found:
        assert span.attributes["otel_gpu.call.began_before_capture"] is True
        assert span.attributes["otel_gpu.thread.tid"] == about["tid"]
        assert span.attributes["code.function.name"] == "step"
        assert span.attributes["code.file.path"] == str(SCRIPT)
        assert span.attributes["code.line.number"] == about["step"]
        assert span.span.end_time_unix_nano - span.span.start_time_unix_nano >= 1_000_000_000
    assert ages[0].point.as_double >= 1


def see_more_calls(receiver: OtlpReceiver, subject: Subject) -> None:
    """Capture a program that hung before, lets go of its call, makes more of them, and is killed."""
    flags = ("--pid", str(subject.pid), "--spans", "full")
    with Agent(receiver, flags=flags, env=LATE, inside=FIRST) as agent:
        receiver.wait_for(lambda: spans(receiver, OPEN, subject.pid))
        assert subject.ask("") == {"calls": MORE}
        receiver.wait_for(lambda: calls(receiver, API, subject.pid) >= MORE)
        os.kill(subject.pid, signal.SIGKILL)
        agent.wait()


def test_its_return_is_no_call(receiver: OtlpReceiver, stubs: StubLibraries) -> None:
    """What is called after it is counted, to the call; of the one itself no duration is made up."""
    with hung(stubs, "line") as subject:
        see_more_calls(receiver, subject)

        assert calls(receiver, API, subject.pid) == MORE
        made = spans(receiver, API, subject.pid)
        assert len(made) == MORE
        assert all("otel_gpu.call.began_before_capture" not in span.attributes for span in made)
        # Another capture of this file, by whoever tests beside us, shows its return: see below.
        assert losses(receiver).keys() <= {"no_entry"}


def test_its_return_has_no_entry_where_somebody_else_probed_it(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """A return that another capture waits for comes to all that have come meanwhile."""
    with (
        OtlpReceiver() as theirs,
        Subject((workload("steady"), stubs.runtime, "100", "60")) as other,
        Agent(theirs, flags=("--pid", str(other.pid)), inside=FIRST),
    ):
        theirs.wait_for(lambda: calls(theirs, API, other.pid))
        with hung(stubs, "line") as subject:
            see_more_calls(receiver, subject)
            assert calls(receiver, API, subject.pid) == MORE
        assert losses(receiver) == {"no_entry": 1}


def test_top_shows_it_with_its_line(stubs: StubLibraries) -> None:
    """In two seconds, and not that no call was seen."""
    with hung(stubs, "spin") as subject:
        pid = subject.pid
        done = otel_gpu("top", "--once", "--interval", "2", "--pid", pid, inside=FIRST)
        about = subject.about

    assert done.returncode == 0, done.stderr
    assert "No CUDA call was seen yet" not in done.stdout
    assert "calls that do not return: 1\n" in done.stdout
    shown = (
        rf"^ *≥ [\d.]+ s  {API} in hung.py \({pid}\) at hung.py:{about['step']} step, "
        rf"thread {about['tid']} \S+, began before the capture$"
    )
    assert re.search(shown, done.stdout, re.MULTILINE), done.stdout


def test_calls_of_a_program_that_works_are_none(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """A thousand calls a second: whatever was open when the capture began has returned."""
    with Subject((workload("steady"), stubs.runtime, "1000", "60")) as subject:
        flags = ("--pid", str(subject.pid), "--duration", "3")
        with Agent(receiver, flags=flags, env=LATE, inside=FIRST) as agent:
            finished = agent.wait()

    assert finished.returncode == 0, finished.stderr
    assert calls(receiver, API, subject.pid) > 0
    assert spans(receiver, OPEN, subject.pid) == []
    # Probes of returns are placed before those of entries: a call that begins in between has none.
    assert losses(receiver).keys() <= {"no_entry"}

"""Span times are the wall clock's, and a step of that clock corrupts none of them."""

import ctypes
import errno
import os
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.kernel.agent import CALL_DURATION, FIRST, Agent, losses, points, spans
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, workload

pytestmark = pytest.mark.kernel

API = "cudaStreamSynchronize"
MILLISECOND_NS = 1_000_000
FULL = ("--spans", "full")


def assert_within_a_millisecond(receiver: OtlpReceiver, lines: list[dict]) -> None:
    """
    Each span lies between the clock readings around its call, give or take 1 ms.

    A preemption can part a reading from the call, so only the best start has to be
    near; but no span may reach over the readings.
    """
    found = {
        span.attributes["gpu.cuda.stream"]: span.span
        for span in spans(receiver, API, lines[0]["pid"])
    }
    assert sorted(found) == sorted(line["stream"] for line in lines)
    distances_ns = []
    for line in lines:
        span = found[line["stream"]]
        assert span.start_time_unix_nano >= line["before_unix_ns"] - MILLISECOND_NS
        assert span.end_time_unix_nano <= line["after_unix_ns"] + MILLISECOND_NS
        distances_ns.append(abs(span.start_time_unix_nano - line["before_unix_ns"]))
    assert min(distances_ns) < MILLISECOND_NS


def test_spans_lie_between_the_clock_readings_of_the_program(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """The program's own CLOCK_REALTIME readings bracket each span within 1 ms."""
    command = [workload("durations"), stubs.runtime, "spin", *["2000000"] * 7]
    with Agent(receiver, command, flags=FULL, inside=FIRST) as agent:
        lines = agent.wait().lines

    assert_within_a_millisecond(receiver, lines)


class Timex(ctypes.Structure):
    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("tv_sec", ctypes.c_long),
        ("tv_usec", ctypes.c_long),
        ("rest", ctypes.c_byte * 128),
    )


ADJ_SETOFFSET = 0x0100
STEP_MS = 250


def step_clock(milliseconds: int) -> None:
    step = Timex(modes=ADJ_SETOFFSET)
    step.tv_sec, remainder_ms = divmod(milliseconds, 1000)
    step.tv_usec = remainder_ms * 1000
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.adjtimex(ctypes.byref(step)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@pytest.fixture
def stepped_clock() -> Iterator[None]:
    # The wall clock cannot be namespaced: every process of the host sees the step.
    if "OTEL_GPU_TEST_STEP_CLOCK" not in os.environ and os.environ.get("CI") != "true":
        pytest.skip("stepping the host's clock by 250 ms needs OTEL_GPU_TEST_STEP_CLOCK=1")
    try:
        step_clock(0)
    except OSError as error:
        if error.errno == errno.EPERM:
            pytest.skip("the clock may not be set here (CAP_SYS_TIME)")
        raise
    stepped = []
    yield lambda: (stepped.append(True), step_clock(STEP_MS))
    if stepped:
        step_clock(-STEP_MS)


@pytest.mark.alone
def test_a_clock_step_moves_later_spans_and_no_earlier_ones(
    receiver: OtlpReceiver, stubs: StubLibraries, stepped_clock
) -> None:
    """Spans before the step keep their times; soon after it, spans follow the new clock."""
    before, settling, after = ["20000000"] * 5, ["100000000"] * 25, ["20000000"] * 5
    command = [
        workload("durations"),
        stubs.runtime,
        "sleep",
        *before,
        "step",
        *settling,
        *after,
    ]
    with Agent(receiver, command, flags=FULL, inside=FIRST, stdin=subprocess.PIPE) as agent:
        lines = []
        while "step" not in (line := agent.next_line()):
            lines.append(line)
        stepped_clock()
        agent.send_line()
        finished = agent.wait()
    lines = [line for line in finished.lines if "step" not in line]

    found = {
        span.attributes["gpu.cuda.stream"]: span.span
        for span in spans(receiver, API, lines[0]["pid"])
    }
    assert len(found) == 35
    for line in (*lines[:5], *lines[-5:]):
        span = found[line["stream"]]
        assert span.start_time_unix_nano >= line["before_unix_ns"] - MILLISECOND_NS
        assert span.end_time_unix_nano <= line["after_unix_ns"] + MILLISECOND_NS
    for line in lines:
        span = found[line["stream"]]
        duration_ns = span.end_time_unix_nano - span.start_time_unix_nano
        assert line["asked_ns"] - MILLISECOND_NS <= duration_ns
        assert duration_ns <= line["elapsed_ns"] + MILLISECOND_NS


def test_an_agent_in_a_time_namespace_dates_what_it_sees_by_the_kernel_s_clock(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Its own clocks are a day ahead there, and those of BPF programs are not."""
    inside = ("unshare", "--time", "--monotonic", "86413", "--boottime", "86413")
    if subprocess.run([*inside, "true"], check=False, capture_output=True).returncode:
        pytest.skip("unshare or the kernel has no time namespaces")
    before_ns = time.time_ns()
    command = [workload("first_call"), "direct", "7", stubs.runtime]
    with Agent(receiver, command, flags=["--spans", "full"], inside=inside) as agent:
        (line,) = agent.wait().lines
    after_ns = time.time_ns()

    found = spans(receiver, "cudaMalloc", line["pid"])
    assert len(found) == 7
    for one in found:
        assert before_ns < one.span.start_time_unix_nano < one.span.end_time_unix_nano < after_ns
        assert "process.executable.path" in one.resource
    for point in points(receiver, CALL_DURATION, line["pid"]):
        assert before_ns < point.point.time_unix_nano < after_ns
    assert losses(receiver) == {}

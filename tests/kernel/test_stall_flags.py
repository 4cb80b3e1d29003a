"""What the kernel side marks in a wait: that a CPU was taken away, a quota that caused it, and stops."""

import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from otel_gpu import wire
from otel_gpu.capture.bpf.programs import Programs
from otel_gpu.capture.recording import read_recording
from otel_gpu.config import load
from otel_gpu.enrich.activities import StallActivity, TimesActivity
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.wire.decoder import decode
from tests.kernel.agent import Agent, wait_until
from tests.stubs.build import StubLibraries, workload

pytestmark = pytest.mark.kernel

BUSY = [sys.executable, "-c", "while True: pass"]
SLEEPING = [sys.executable, "-c", "import time\nwhile True: time.sleep(0.005)"]
CONFIG = load(None, {"OTEL_GPU_SPANS_STALL_FLOOR_MS": "1"}, {})
WAITS = 7
# So little that a busy machine gives it at once.
QUOTA_US, PERIOD_US = 1_000, 100_000


@contextmanager
def quota() -> Iterator[Path]:
    """Make a cgroup with a CPU quota, in whichever hierarchy has the controller."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text("utf-8").splitlines()]
    old = [Path(m[1]) for m in mounts if m[2] == "cgroup" and "cpu" in m[3].split(",")]
    new = [Path(m[1]) for m in mounts if m[2] == "cgroup2"]
    new = [root for root in new if "cpu" in (root / "cgroup.subtree_control").read_text().split()]
    if not old + new:
        pytest.skip("no cgroup hierarchy has the cpu controller")
    group = (old + new)[0] / f"otel-gpu-test-{os.getpid()}"
    group.mkdir()
    try:
        if old:
            (group / "cpu.cfs_period_us").write_text(f"{PERIOD_US}")
            (group / "cpu.cfs_quota_us").write_text(f"{QUOTA_US}")
        else:
            (group / "cpu.max").write_text(f"{QUOTA_US} {PERIOD_US}")
        yield group
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "leaving the cgroup")
        group.rmdir()


def throttled_periods(group: Path) -> int:
    """Return how often the kernel says that the quota was used up."""
    [count] = re.findall(r"^nr_throttled (\d+)$", (group / "cpu.stat").read_text(), re.MULTILINE)
    return int(count)


def waits_of(
    pid: int,
    flag: int,
    switch_type: int = wire.SWITCH_INVOLUNTARY,
    meanwhile: Callable[[], object] = lambda: None,
) -> Sequence[int]:
    """Return the flags of a process's next waits of a type, until enough have the flag."""
    flags: list[int] = []
    with Programs(CONFIG, watch_all=False) as programs:
        programs.processes.watch(pid, 0)
        programs.bpf.attach(programs.wake_program)
        programs.bpf.attach(programs.switch_program)

        def are_enough() -> bool:
            meanwhile()
            for record in programs.events.read():
                if int.from_bytes(record[:2], "little") != wire.RECORD_STALL:
                    continue
                wait = wire.STALL_RECORD.named(record)
                if wait["switch_type"] == switch_type:
                    flags.append(wait["flags"])
            return sum(value & flag == flag for value in flags) >= WAITS

        wait_until(are_enough, f"waiting for a CPU {WAITS} times")
    return flags


@contextmanager
def two_busy(cpu: int) -> Iterator[Sequence[subprocess.Popen[bytes]]]:
    """Run two processes that want the same CPU all the time."""
    with ExitStack() as stack:
        processes = []
        for _ in range(2):
            process = stack.enter_context(subprocess.Popen(BUSY))
            stack.callback(process.kill)
            os.sched_setaffinity(process.pid, {cpu})
            processes.append(process)
        yield processes


def test_a_wait_that_a_quota_caused_is_marked_and_no_other() -> None:
    """
    A quota takes the CPU from a busy process; without one, another process does.

    Kernels before 6.18 do not say so of a thread, and then nothing is marked.
    """
    version = re.match(r"(\d+)\.(\d+)", platform.release())
    assert version
    mark = wire.STALL_THROTTLED if (int(version[1]), int(version[2])) >= (6, 18) else 0
    with quota() as group, two_busy(max(os.sched_getaffinity(0))) as (busy, other):
        preempted = waits_of(busy.pid, 0)
        other.kill()
        (group / "cgroup.procs").write_text(str(busy.pid))
        throttled = waits_of(busy.pid, mark)
        periods = throttled_periods(group)

    assert not any(flags & wire.STALL_THROTTLED for flags in preempted)
    assert all(flags & wire.STALL_PREEMPTED for flags in (*preempted, *throttled))
    marked = sum(bool(flags & wire.STALL_THROTTLED) for flags in throttled)
    # It waits to the end of the period, and maybe longer.
    assert marked >= WAITS if mark else not marked
    assert marked <= periods


def test_a_stop_is_marked_by_the_state_of_the_thread_and_no_other_wait_is() -> None:
    """Whatever it was in, and whether or not its stack is seen when it goes on."""
    with subprocess.Popen(BUSY) as busy, subprocess.Popen(SLEEPING) as sleeping:

        def stop() -> None:
            busy.send_signal(signal.SIGSTOP)
            time.sleep(0.005)
            busy.send_signal(signal.SIGCONT)

        try:
            stopped = waits_of(busy.pid, wire.STALL_STOPPED, wire.SWITCH_VOLUNTARY, stop)
            slept = waits_of(sleeping.pid, 0, wire.SWITCH_VOLUNTARY)
        finally:
            busy.kill()
            sleeping.kill()

    assert sum(bool(flags & wire.STALL_STOPPED) for flags in stopped) >= WAITS
    assert not any(flags & (wire.STALL_STOPPED | wire.STALL_PREEMPTED) for flags in slept)


def test_a_stop_by_the_agent_is_marked(tmp_path: Path, stubs: StubLibraries) -> None:
    """A wrapped process is stopped when it has mapped a CUDA library, and the agent ends that."""
    path = tmp_path / "stopped.otelgpu"
    flags = ("--record", str(path), "--summary", "never")
    floor = {"OTEL_GPU_SPANS_STALL_FLOOR_MS": "0.1"}
    command = [str(workload("steady")), str(stubs.runtime), "1000", "1"]
    with Agent(None, command, flags=flags, env=floor) as agent:
        agent.wait()
        agent_pid = agent.process.pid

    records = [record for batch in read_recording(path) for record in batch]
    activities = list(Enricher().enrich(decode(records, Counter())))
    stalls = [activity for activity in activities if isinstance(activity, StallActivity)]
    stops = [activity.event for activity in stalls if activity.reason == "capture"]
    assert stops
    assert not [activity for activity in stalls if activity.reason == "stopped"]
    # The account has it as ours as well: no report says that the program was stopped.
    readings = [activity for activity in activities if isinstance(activity, TimesActivity)]
    times = {(one.reason, one.process.pid): one for reading in readings for one in reading.times}
    stopped_ns = {reason: one.ended_ns for (reason, _), one in times.items()}
    assert stopped_ns["capture"] > 0
    assert "stopped" not in stopped_ns
    assert {stop.waker_pid for stop in stops} == {agent_pid}
    assert all(stop.flags & wire.STALL_AGENT for stop in stops)

"""The agent ends in time, whatever waits in the rings, and what was counted is exact all the same."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_gpu import wire
from otel_gpu.capture import ending
from otel_gpu.capture.bpf.programs import Programs
from otel_gpu.capture.losses import AgentLoss
from otel_gpu.capture.session import Session
from otel_gpu.config import load
from otel_gpu.demo.clocks import unqueued_ns
from otel_gpu.procfs.proc_files import stat_fields
from otel_gpu.wire.decoder import decode
from otel_gpu.wire.events import CudaCall, Status
from otel_gpu.wire.readings import Aggregates
from tests.kernel.agent import Agent, calls, seconds_to_end
from tests.kernel.storms import counted, storm
from tests.kernel.test_shares import API, AS_ANOTHER
from tests.kernel.test_tenants import (
    AS_NOBODY,
    CALLS,
    ENDS_WITHIN_S,
    make_calls,
    open_folder,
    program,
)
from tests.receiver import WAIT_TIMEOUT_S, OtlpReceiver
from tests.stubs.build import StubLibraries

pytestmark = pytest.mark.kernel

# Their probes take the kernel 10 s to take away, 16 at a time.
COPIES = 400
MAPS_DELETED_COPIES = """
import mmap, os, sys
kept, content = [], open(sys.argv[1], "rb").read()
for number in range(int(sys.argv[3])):
    path = f"{sys.argv[2]}/libcudart.so.{number}"
    with open(path, "wb") as file:
        file.write(content)
    with open(path, "rb") as file:
        kept.append(mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC))
    os.unlink(path)
print("ready", flush=True)
sys.stdin.read()
"""
STORMS_S = 8.0
# Twice a second, as other tests have it, the agent would do little else than send all these programs.
EVERY_FIVE_SECONDS = {"OTEL_METRIC_EXPORT_INTERVAL": "5000"}


def test_records_that_are_not_read_any_more_are_counted(
    stubs: StubLibraries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There was no time for any of them, and each call is in the last reading of the counts."""
    monkeypatch.setattr(ending, "_READS_S", 0.0)
    config = load(None, {}, {"spans.mode": "full"})
    with (
        program(CALLS, stubs.runtime) as calling,
        Programs(config, watch_all=False) as programs,
    ):
        session = Session(programs, config, pids=[calling.pid])
        batches = session.batches()
        next(batches)
        make_calls(calling, 1009)
        session.stop()
        records = [record for batch in batches for record in batch]

    rejected: Counter[str] = Counter()
    events = list(decode(records, rejected))
    made = {
        key: one.counted
        for event in events
        if isinstance(event, Aggregates)
        for key, one in event.series
        if (key.pid, key.metric) == (calling.pid, wire.METRIC_CALL_DURATION)
    }
    (*_, status) = (one.info for one in events if isinstance(one, Status))
    assert not any(isinstance(one, CudaCall) for one in events)
    assert sum(made.values()) == 1009
    assert status["files"][AgentLoss.END_UNREAD] >= 1
    assert rejected == {}


def test_a_storm_of_programs_keeps_no_agent_from_its_end(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """It goes on meanwhile, and fills the rings again; all calls of another user's program count."""
    with (
        program(CALLS, stubs.runtime, inside=AS_ANOTHER) as other,
        Agent(receiver, flags=["--all"], env=EVERY_FIVE_SECONDS) as agent,
        subprocess.Popen(
            [*AS_NOBODY, *storm(stubs, 100_000, 2, 1, 0, "opened,linked,chained")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        ) as storming,
    ):
        try:
            receiver.wait_for(lambda: len(counted(receiver)) > 53)
            make_calls(other, 10_007)
            time.sleep(STORMS_S)
            assert storming.poll() is None
            # The storm is on the same CPUs.
            took_s = seconds_to_end(agent)
            finished = agent.wait()
        finally:
            os.killpg(storming.pid, signal.SIGKILL)

    assert finished.returncode == 0
    assert calls(receiver, API, other.pid) == 10_007
    assert took_s < ENDS_WITHIN_S


def wait_for_child(agent: Agent) -> None:
    """Wait until nothing is left of what the agent said that a child still does."""
    text = r"still taken away \(.*\), by process (\d+), which then ends"
    if found := re.search(text, agent.wait().stderr):
        wait_for(lambda: stat_fields(f"/proc/{found[1]}")[:1] in ([], [b"Z"]))


def test_many_files_with_probes_keep_no_agent_from_its_end(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """They are copies of a library that are deleted already; another user's program is counted."""
    with (
        open_folder() as folder,
        program(CALLS, stubs.runtime, inside=AS_ANOTHER) as other,
    ):
        folder.chmod(0o777)
        arguments = (stubs.runtime, folder, COPIES)
        with (
            program(MAPS_DELETED_COPIES, *arguments, inside=AS_NOBODY) as hostile,
            Agent(receiver, flags=[f"--pid={hostile.pid}", f"--pid={other.pid}"]) as agent,
        ):
            receiver.wait_for(receiver.metrics)
            make_calls(other, 10_007)
            receiver.wait_for(lambda: calls(receiver, API, other.pid) == 10_007)
            make_calls(other, 1009)
            took_s = seconds_to_end(agent)
            wait_for_child(agent)

    assert agent.process.returncode == 0
    assert calls(receiver, API, other.pid) == 11_016
    assert took_s < ENDS_WITHIN_S


def text_of(pid: int, library: Path) -> list[bytes]:
    """The code of a library as a process has it, with the breakpoints of its probes."""
    found = []
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if line.endswith(str(library)) and " r-xp " in line:
                start, end = (int(address, 16) for address in line.split()[0].split("-"))
                found.append(os.pread(memory.fileno(), end - start, start))
    return found


@pytest.mark.parametrize("multi", [True, False])
def test_a_capture_leaves_no_probe_behind(
    stubs: StubLibraries, tmp_path: Path, multi: bool
) -> None:
    """Where the kernel takes them away one after the other, which takes 20 s, the end does not wait."""
    library = Path(shutil.copy(stubs.runtime, tmp_path))
    config = load(None, {}, {})
    with program(CALLS, library) as calling:
        before = text_of(calling.pid, library)
        with Programs(config, watch_all=False, multi=multi) as programs:
            session = Session(programs, config, pids=[calling.pid])
            batches = session.batches()
            next(batches)
            next(batches)
            probed = text_of(calling.pid, library)
            session.stop()
            assert list(batches)
            asked_ns = unqueued_ns()
        took_s = (unqueued_ns() - asked_ns) / 1e9
        if multi:
            wait_for(lambda: text_of(calling.pid, library) == before)
        assert before
        assert before != probed
    assert took_s < ENDS_WITHIN_S


def wait_for(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WAIT_TIMEOUT_S
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.05)

"""Programs that forge the memory in which the preload library counts: they cost little, and others nothing."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from otel_gpu import wire
from otel_gpu.wire.probe_table import APIS
from tests.kernel.agent import (
    Agent,
    calls,
    losses,
    otel_gpu,
    seconds_to_end,
    total,
    wait_until,
)
from tests.kernel.test_tenants import (
    AS_NOBODY,
    CALLS,
    ENDS_WITHIN_S,
    make_calls,
    open_folder,
    program,
)
from tests.preloaded import LIBRARY
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries

pytestmark = pytest.mark.kernel

AS_SOMEBODY = ("setpriv", "--reuid=65533", "--regid=65533", "--clear-groups")
FORGED = 8
_LIBRARY_SOURCE = """
void otel_gpu_preload_thread(void *slot, void *memory) {}
void otel_gpu_preload_call(void) {}
void otel_gpu_preload_gap(void) {}
"""
# Shares a memory with all of its slots in use with as many processes as it is told to.
_FORGES = """
import ctypes, fcntl, mmap, os, struct, sys
library, runtime, content, count = *sys.argv[1:4], int(sys.argv[4])
ctypes.CDLL(library)
runtime = ctypes.CDLL(runtime)
size, header, first, step, series, tid_at, begun_at = map(int, sys.argv[5:12])
memory = os.memfd_create("otel_gpu_preload", os.MFD_ALLOW_SEALING)
os.ftruncate(memory, size)
rows = open(content, "rb").read()
os.pwrite(memory, rows[:header], 0)
for number, at in enumerate(range(first, first + 1024 * step, step), 1):
    os.pwrite(memory, struct.pack("<I", number), at + tid_at)
    os.pwrite(memory, struct.pack("<I", 64), at + begun_at)
    os.pwrite(memory, rows[header:], at + series)
fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
going_on, ends = os.pipe()
children = []
for _ in range(count):
    child = os.fork()
    if not child:
        os.close(ends)
        kept = mmap.mmap(memory, size)
        runtime.cudaStreamSynchronize(None)
        os.read(going_on, 1)
        os._exit(0)
    children.append(child)
print("ready", flush=True)
print(*children, flush=True)
sys.stdin.read()
"""


def write_header(path: Path) -> Path:
    """Write the header of a memory in which no thread has counted anything."""
    path.write_bytes(
        wire.PRELOAD_HEADER.build(
            magic=wire.PRELOAD_MAGIC,
            version=wire.PRELOAD_VERSION,
            size_bytes=wire.PRELOAD_BYTES,
            start_ktime_ns=1 << 62,
        )
    )
    return path


def forged_content(path: Path, *, is_plausible: bool, start_ktime_ns: int) -> Path:
    """Write a header and the series of a thread, of numbers that a program could have or of random ones."""
    header = wire.PRELOAD_HEADER.build(
        magic=wire.PRELOAD_MAGIC,
        version=wire.PRELOAD_VERSION,
        size_bytes=wire.PRELOAD_BYTES,
        start_ktime_ns=start_ktime_ns,
        slots_begun=wire.PRELOAD_SLOTS,
        common_begun=wire.PRELOAD_COMMON_SERIES,
    )
    keys = (
        wire.PRELOAD_KEY.build(
            metric=wire.METRIC_CALL_DURATION, api=APIS[number].number, status=number, device=number
        )
        for number in range(wire.PRELOAD_SLOT_SERIES)
    )
    rest = wire.PRELOAD_SERIES.size - wire.PRELOAD_KEY.size
    numbers = b"\1\0\0\0\0\0\0\0" * (rest // 8) if is_plausible else os.urandom(rest)
    path.write_bytes(header + b"".join(key + numbers for key in keys))
    return path


def forging(folder: Path, runtime: Path, content: Path) -> tuple[object, ...]:
    """Return the arguments of a program that forges memories."""
    source, library = folder / "forged.c", folder / "otel_gpu_preload.forged.so"
    source.write_text(_LIBRARY_SOURCE)
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", library], check=True)
    return (
        *(library, runtime, content, FORGED),
        *(
            wire.PRELOAD_BYTES,
            wire.PRELOAD_HEADER.size,
            wire.PRELOAD_SLOTS_OFFSET,
            wire.PRELOAD_SLOT_BYTES,
        ),
        wire.PRELOAD_SLOT_BYTES - wire.PRELOAD_SLOT_SERIES * wire.PRELOAD_SERIES.size,
        *map(wire.PRELOAD_SLOT.offset_of, ("tid", "series_begun")),
    )


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process has taken, without that of its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def share_taken(pid: int, for_s: float) -> float:
    """Return the share of a CPU that a process takes from now on, for so many seconds."""
    before_s, begun_s = cpu_s(pid), time.monotonic()
    time.sleep(for_s)
    return (cpu_s(pid) - before_s) / (time.monotonic() - begun_s)


@pytest.mark.parametrize(
    ("is_plausible", "start_ktime_ns"),
    [(False, 1), (False, 1 << 62), (True, 1 << 62)],
    ids=["older than their programs", "nonsense", "plausible"],
)
def test_forged_memories_take_a_share_of_the_agent_and_others_are_counted(
    receiver: OtlpReceiver,
    stubs: StubLibraries,
    tmp_path: Path,
    *,
    is_plausible: bool,
    start_ktime_ns: int,
) -> None:
    """Read three times a second each took the agent's whole CPU, and it ended 17 s late."""
    file = tmp_path / "forged.rec"
    with open_folder() as folder:
        library = Path(shutil.copy(LIBRARY, folder))
        content = forged_content(
            folder / "content", is_plausible=is_plausible, start_ktime_ns=start_ktime_ns
        )
        with (
            program(_FORGES, *forging(folder, stubs.runtime, content), inside=AS_NOBODY) as hostile,
            program(
                CALLS, stubs.runtime, inside=("env", f"LD_PRELOAD={library}", *AS_SOMEBODY)
            ) as other,
        ):
            assert hostile.stdout is not None
            forged = [int(pid) for pid in hostile.stdout.readline().split()]
            flags = [f"--pid={pid}" for pid in (*forged, other.pid)]
            flags += ["--record", str(file)]
            with Agent(receiver, flags=flags) as agent:
                receiver.wait_for(lambda: total(receiver, "otel_gpu.overhead.time"))
                before_s, begun_s = cpu_s(agent.process.pid), time.monotonic()
                for made in (1009, 503, 211):
                    make_calls(other, made)
                    time.sleep(2.0)
                taken = (cpu_s(agent.process.pid) - before_s) / (time.monotonic() - begun_s)
                late_s = seconds_to_end(agent)
                finished = agent.wait()

    assert finished.returncode == 0
    assert calls(receiver, "cudaStreamSynchronize", other.pid) == 1009 + 503 + 211
    assert late_s < ENDS_WITHIN_S
    assert taken < 0.2
    # Each is named with its process and user, on the terminal and in the report.
    lost = losses(receiver)
    unread = sum(lost.pop(reason, 0) for reason in ("preload_unread", "preload_rejected"))
    assert (lost, unread > 0) == ({}, True)
    by_the_agent = [
        f"of process {pid} of user 65534 is not read" in finished.stderr for pid in forged
    ]
    report = otel_gpu("explain", file).stdout
    in_the_report = [f"({pid}) of user 65534" in report for pid in forged]
    assert sum(by_the_agent) == sum(in_the_report) == unread


# Shares a memory in which each of 16 threads has made as many calls as are kept, in any order; and says
# again and again that they are other threads, which have made others.
_FORGES_DETECTORS = """
import ctypes, fcntl, mmap, os, random, struct, sys, threading, time
library, runtime, content, count = *sys.argv[1:4], int(sys.argv[4])
ctypes.CDLL(library)
runtime = ctypes.CDLL(runtime)
size, first, step, calls_at, calls, launch, wait = map(int, sys.argv[5:12])
tid_at, pid_at, kept_at, area_at = map(int, sys.argv[12:16])
memory = os.memfd_create("otel_gpu_preload", os.MFD_ALLOW_SEALING)
os.ftruncate(memory, size)
os.pwrite(memory, open(content, "rb").read(), 0)
fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
going_on, ends = os.pipe()
children = []
for _ in range(count):
    child = os.fork()
    if not child:
        os.close(ends)
        kept = mmap.mmap(memory, size)
        runtime.cudaStreamSynchronize(None)
        os.read(going_on, 1)
        os._exit(0)
    children.append(child)
places = range(first, first + 16 * step, step)
def renew():
    tid = 100
    while True:
        begun_ns = time.monotonic_ns()
        made = b"".join(
            struct.pack("<QIHBB", begun_ns + at, 0, symbol, (launch, wait)[symbol & 1], 0)
            for at, symbol in enumerate(random.choices(range(16), k=calls))
        )
        for at in places:
            tid += 1
            os.pwrite(memory, made, at + calls_at)
            for place, number in ((kept_at, calls), (area_at, 1), (pid_at, 1), (tid_at, tid)):
                os.pwrite(memory, struct.pack("<I", number), at + place)
        time.sleep(1)
threading.Thread(target=renew, daemon=True).start()
print("ready", flush=True)
print(*children, flush=True)
sys.stdin.read()
"""


def test_forged_calls_in_which_steps_are_looked_for_take_a_share_of_the_agent(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Each search took seconds, and there was always another one to make."""
    launch, wait = (
        next(api.number for api in APIS if api.name == name)
        for name in ("cudaLaunchKernel", "cudaStreamSynchronize")
    )
    with open_folder() as folder:
        library, _, content, count, *_ = forging(
            folder, stubs.runtime, write_header(folder / "content")
        )
        arguments = (
            *(library, stubs.runtime, content, count),
            *(wire.PRELOAD_BYTES, wire.PRELOAD_DETECTORS_OFFSET, wire.PRELOAD_DETECTOR_BYTES),
            *(wire.PRELOAD_DETECTOR.offset_of("calls"), wire.DETECTOR_CALLS, launch, wait),
            *map(wire.STEP_DETECTOR.offset_of, ("tid", "pid", "kept", "area")),
        )
        with (
            program(_FORGES_DETECTORS, *arguments, inside=AS_NOBODY) as hostile,
            program(CALLS, stubs.runtime, inside=AS_SOMEBODY) as other,
        ):
            assert hostile.stdout is not None
            pids = [*map(int, hostile.stdout.readline().split()), other.pid]
            with Agent(receiver, flags=[f"--pid={pid}" for pid in pids]) as agent:
                receiver.wait_for(lambda: total(receiver, "otel_gpu.steps.threads.rate_limited"))
                make_calls(other, 1009)
                receiver.wait_for(
                    lambda: calls(receiver, "cudaStreamSynchronize", other.pid) == 1009
                )
                # What may be spent at once is spent first, and nothing for long after that.
                pid = agent.process.pid
                wait_until(lambda: share_taken(pid, 2.0) < 0.2, "the end of searches")
                taken = share_taken(pid, 8.0)
                assert seconds_to_end(agent) < ENDS_WITHIN_S
                finished = agent.wait()

    assert finished.returncode == 0
    assert taken < 0.2
    assert "the order of its calls of process " in finished.stderr

"""Many short processes: every call counts, and nothing is kept of a process that is gone."""

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.kernel.agent import (
    LOST,
    Agent,
    bpf_objects,
    bpftool,
    calls,
    environment_for,
    losses,
    points,
    wait_until,
)
from tests.kernel.storms import API, DELTA, counted, storm, waiting_storm
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, workload

pytestmark = pytest.mark.kernel

MODES = "linked,opened,forked,chained,threaded,killed,exiting,reused,idle"
BY_PROCESS = {
    "processes": "key",
    "threads": "value.pid",
    "interpreters": "key",
    "aggregates": "key.pid",
    "thread_times": "key.pid",
    "allocations": "key.pid",
}
REPLACED = """
import _ctypes, ctypes, json, os, shutil, sys
source, place = sys.argv[1:]
for _ in range(13):
    shutil.copy(source, place + ".new")
    os.replace(place + ".new", place)
    cuda = ctypes.CDLL(place)
    [cuda.cudaDeviceSynchronize() for _ in range(7)]
    _ctypes.dlclose(cuda._handle)
print(json.dumps({"pid": os.getpid()}))
"""
UNMAPPED = """
import _ctypes, ctypes, json, os, sys, threading
first, second = map(ctypes.CDLL, sys.argv[1:])
first.stub_set(b"cudaStreamSynchronize", b"hang=1")
inside = [threading.Thread(target=first.cudaStreamSynchronize, args=(None,)) for _ in range(3)]
[thread.start() for thread in inside]
while first.stub_calls(b"cudaStreamSynchronize") < 3:
    pass
[first.cudaDeviceSynchronize() for _ in range(7)]
_ctypes.dlclose(first._handle)
# The preload library keeps the functions that it has found.
assert (sys.argv[1] in open("/proc/self/maps").read()) == ("LD_PRELOAD" in os.environ)
[second.cudaDeviceSynchronize() for _ in range(11)]
print(json.dumps({"pid": os.getpid()}), flush=True)
sys.stdin.readline()
os._exit(3)
"""
THREADS = """
import ctypes, json, os, sys, threading
cuda = ctypes.CDLL(sys.argv[1])
threading.stack_size(1 << 16)
count = 1009
all_made, end = threading.Barrier(count + 1), threading.Event()
def make():
    [cuda.cudaDeviceSynchronize() for _ in range(7)]
    all_made.wait()
    end.wait()
threads = [threading.Thread(target=make) for _ in range(count)]
[thread.start() for thread in threads]
all_made.wait()
print(json.dumps({"pid": os.getpid()}), flush=True)
sys.stdin.readline()
end.set()
[thread.join() for thread in threads]
"""
FULL = {f"{what}_full" for what in ("processes", "threads", "series", "times", "allocations")}


def counted_of(receiver: OtlpReceiver, pids: set[int]) -> int:
    made = counted(receiver)
    return sum(made[pid] for pid in pids)


def lost(receiver: OtlpReceiver) -> dict[str, int]:
    found: Counter[str] = Counter()
    for key, point in receiver.points():
        if key.name == LOST:
            found[str(key.attribute("reason"))] += point.point.as_int or int(point.point.as_double)
    return {reason: count for reason, count in found.items() if count}


def map_of(agent: Agent, name: str) -> int:
    (number,) = (
        number
        for number in bpf_objects("map", agent.process.pid)
        if bpftool("map", "show", "id", str(number))[0]["name"] == name
    )
    return number


def held(agent: Agent, pids: set[int]) -> dict[str, int]:
    """Return how many entries the agent's maps hold of processes, by map."""
    found = {}
    for number in bpf_objects("map", agent.process.pid):
        (shown,) = bpftool("map", "show", "id", str(number))
        if shown["name"] not in BY_PROCESS:
            continue
        first, _, last = BY_PROCESS[shown["name"]].partition(".")
        dumped = bpftool("map", "dump", "id", str(number))
        # One that was deleted under the dump has an error in its place.
        entries = [entry["formatted"][first] for entry in dumped if "formatted" in entry]
        owners = [entry[last] if last else entry for entry in entries]
        found[shown["name"]] = sum(owner in pids for owner in owners)
    assert found.keys() == BY_PROCESS.keys()
    return found


def test_every_call_of_short_processes_counts_however_they_begin_and_end(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """
    Executed, forked, chained, threaded, killed or exiting in a call, and with a pid used before.
    """
    with Agent(receiver, storm(stubs, 63, 4, 7, 1000, MODES), env=DELTA) as agent:
        finished = agent.wait()

    *children, total = finished.lines
    assert finished.returncode == 0
    assert total["processes"] == len(children) == 63
    assert counted_of(receiver, {child["pid"] for child in children}) == total[API] == 7 * 22 * 7
    assert lost(receiver) == {"exit_inside_call": total["unfinished"]}
    assert total["unfinished"] == 14


@pytest.mark.alone(among="kernel")
def test_nothing_is_kept_of_processes_that_are_gone(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """
    An agent that watches everything counts each call of 180 processes, and then holds nothing
    of them: no process, thread, series, time or allocation.
    """
    with (
        waiting_storm(storm(stubs, 180, 20, 7, 1000, MODES)) as process,
        Agent(receiver, flags=("--all",), env=DELTA) as agent,
    ):
        parent = json.loads(process.stdout.readline())["parent"]
        receiver.wait_for(lambda: calls(receiver, "cudaFree", parent))
        process.stdin.write("\n")
        *children, total = [json.loads(line) for line in process.stdout]
        pids = {child["pid"] for child in children} | {parent}
        wait_until(lambda: not any(held(agent, pids).values()), "freeing the maps")
        agent.signal(signal.SIGINT)
        finished = agent.wait()

    assert finished.returncode == 0
    assert counted_of(receiver, pids) == total[API] == 20 * 22 * 7
    # Events of other programs of the machine can fill the ring.
    assert not lost(receiver).keys() & {*FULL, "lifecycle_ring_full"}


def test_a_storm_of_processes_at_once_costs_no_call(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """200 processes that begin together are all seen, to their last call."""
    with Agent(receiver, storm(stubs, 200, 200, 7, 1000, "linked,opened"), env=DELTA) as agent:
        finished = agent.wait()

    *children, total = finished.lines
    assert counted_of(receiver, {child["pid"] for child in children}) == total[API] == 1400
    assert lost(receiver) == {}


@pytest.mark.alone(among="preload")
def test_more_processes_than_there_is_room_for_are_counted_as_lost(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """The map of processes is full; the agent goes on and says so."""
    env = {"OTEL_GPU_CAPTURE_MAX_PROCESSES": "16"}
    with (
        waiting_storm(storm(stubs, 61, 61, 7, 300_000, "linked")) as process,
        Agent(receiver, flags=("--all",), env=env) as agent,
    ):
        parent = json.loads(process.stdout.readline())["parent"]
        receiver.wait_for(lambda: calls(receiver, "cudaFree", parent))
        process.stdin.write("\n")
        receiver.wait_for(lambda: losses(receiver).get("processes_full"))
        process.stdout.read()
        agent.signal(signal.SIGINT)
        finished = agent.wait()

    assert finished.returncode == 0
    assert "not updated" not in finished.stderr


def test_more_threads_than_there_is_room_for_are_counted_as_lost(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Of 101 threads that a process has when it begins to be watched, three quarters of 64 are followed."""
    script = (
        "import ctypes, sys, threading\n"
        "cuda = ctypes.CDLL(sys.argv[1])\n"
        "end = threading.Event()\n"
        "[threading.Thread(target=end.wait, daemon=True).start() for _ in range(101)]\n"
        "print(flush=True)\n"
        "sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(stubs.runtime)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        env = {"OTEL_GPU_CAPTURE_MAX_THREADS": "64"}
        with Agent(receiver, flags=("--pid", str(process.pid)), env=env) as agent:
            receiver.wait_for(lambda: losses(receiver).get("threads_full"))
            agent.signal(signal.SIGINT)
            finished = agent.wait()
        process.stdin.close()

    assert finished.returncode == 0
    # The rest is for the threads of other users.
    assert losses(receiver)["threads_full"] == 102 - 48


def test_allocations_that_find_no_room_are_counted(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Of 70,001 that live at once, 65,536 are kept."""
    with Agent(receiver, storm(stubs, 1, 1, 70_001, 0, "linked")) as agent:
        finished = agent.wait()

    assert finished.lines[-1][API] == 70_001
    assert losses(receiver) == {"allocations_full": 70_001 - 65_536}


def test_a_free_of_what_was_not_seen_to_be_allocated_is_counted(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Its bytes are not known. To free nothing is no loss."""
    script = (
        "import ctypes, sys\n"
        "cuda = ctypes.CDLL(sys.argv[1])\n"
        "free = cuda.cudaFree\n"
        "free.argtypes = [ctypes.c_void_p]\n"
        "[free(0x7000 + number) for number in range(7)]\n"
        "[free(None) for _ in range(5)]\n"
    )
    with Agent(receiver, [sys.executable, "-c", script, str(stubs.runtime)]) as agent:
        finished = agent.wait()

    assert finished.returncode == 0
    assert losses(receiver) == {"unknown_free": 7}


def test_threads_by_the_thousand_are_followed_and_forgotten(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """1,027 threads one after the other, 13 at once: each call counts, none finds no room."""
    env = DELTA | {"OTEL_GPU_CAPTURE_MAX_THREADS": "64"}
    with Agent(receiver, storm(stubs, 79, 2, 7, 0, "threaded"), env=env) as agent:
        finished = agent.wait()

    *children, total = finished.lines
    assert counted_of(receiver, {child["pid"] for child in children}) == total[API] == 79 * 13 * 7
    assert lost(receiver) == {}


def test_a_library_that_is_replaced_on_disk_is_probed_each_time(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """Thirteen files under one name, each closed and unmapped before the next is opened."""
    command = [sys.executable, "-c", REPLACED, stubs.runtime, tmp_path / "libcudart.so.12"]
    with Agent(receiver, command) as agent:
        (line,) = agent.wait().lines

    assert calls(receiver, "cudaDeviceSynchronize", line["pid"]) == 13 * 7
    assert losses(receiver) == {}


def test_an_end_that_the_kernel_did_not_report_is_noticed(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """
    The map has no entry of the process any more, and no record said so: its last series are
    read, and the capture of it ends.
    """
    command = [workload("steady"), stubs.runtime, "1000", "60"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment_for(None)) as steady:
        try:
            with Agent(receiver, flags=("--pid", str(steady.pid))) as agent:
                receiver.wait_for(lambda: calls(receiver, "cudaStreamSynchronize", steady.pid))
                key = [str(byte) for byte in steady.pid.to_bytes(4, sys.byteorder)]
                bpftool("map", "delete", "id", str(map_of(agent, "processes")), "key", *key)
                finished = agent.wait()
        finally:
            steady.kill()

    assert finished.returncode == 0
    assert finished.stderr.count("Traceback") == 0


def test_a_library_unmapped_with_calls_open_costs_these_calls_alone(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """
    Three threads are inside calls of it for good: they hang, and are lost when the process ends.
    """
    libraries = [tmp_path / name / "libcudart.so.12" for name in ("first", "second")]
    for library in libraries:
        library.parent.mkdir()
        shutil.copy(stubs.runtime, library)
    env = {"OTEL_GPU_CAPTURE_OPEN_CALL_LIMIT_S": "0.5"}
    command = [sys.executable, "-c", UNMAPPED, *libraries]
    with Agent(receiver, command, env=env, stdin=subprocess.PIPE) as agent:
        pid = agent.next_line()["pid"]
        receiver.wait_for(lambda: points(receiver, "gpu.cuda.call.open.age", pid))
        agent.send_line()
        finished = agent.wait()

    assert finished.returncode == 3
    assert calls(receiver, "cudaDeviceSynchronize", pid) == 7 + 11
    assert calls(receiver, "cudaStreamSynchronize", pid) == 0
    assert losses(receiver) == {"exit_inside_call": 3}
    assert "Traceback" not in finished.stderr


def test_a_thousand_threads_of_one_process_are_followed_at_once(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Each call of each counts, and none is kept when they have ended."""
    command = [sys.executable, "-c", THREADS, stubs.runtime]
    # A thousand first calls at once, each with its stack, are more than the ring holds.
    env = {"OTEL_GPU_STACKS_ENABLED": "false"}
    with Agent(receiver, command, env=env, stdin=subprocess.PIPE) as agent:
        pid = agent.next_line()["pid"]
        assert held(agent, {pid})["threads"] == 1009 + 1
        agent.send_line()
        finished = agent.wait()

    assert finished.returncode == 0
    assert calls(receiver, "cudaDeviceSynchronize", pid) == 1009 * 7
    assert losses(receiver) == {}

"""What all programs have together is divided: one user's programs take no other's away."""

import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from otel_gpu.wire.blocks import BlockStack
from tests.kernel.agent import (
    Agent,
    calls,
    losses,
    otel_gpu,
    points,
    seconds_to_end,
    spans,
    total,
)
from tests.kernel.test_blocks import events_of
from tests.kernel.test_tenants import (
    AS_NOBODY,
    CALLS,
    ENDS_WITHIN_S,
    make_calls,
    open_folder,
    program,
    read_line,
)
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, allocator, many_statuses

pytestmark = pytest.mark.kernel

# Of the unit file.
MEMORY_LIMIT_KIB = 512 << 10
AS_ANOTHER = ("setpriv", "--reuid=65533", "--regid=65533", "--clear-groups")
API = "cudaStreamSynchronize"
# Runs a program for each line of its input, which is that program's one argument, to its end.
LAUNCHES = """
import subprocess, sys
print("ready", flush=True)
for argument in sys.stdin:
    child = subprocess.Popen([*sys.argv[1:], argument.strip()], stdout=subprocess.DEVNULL)
    child.wait()
    print(child.pid, flush=True)
"""
# Runs a program once there is something to read, which the program reads.
BECOMES_PARENT = """
import os, subprocess, sys
print("ready", flush=True)
os.read(0, 1)
subprocess.run(sys.argv[1:])
"""
MAKES_CALLS = """
import ctypes, sys
runtime = ctypes.CDLL(sys.argv[1])
for _ in range(int(sys.argv[2])):
    runtime.cudaStreamSynchronize(None)
"""
# Maps as many files as the program says that are named as libraries of CUDA.
MAPS_MANY = """
import mmap, os, sys, time
mapped = []
for number in range(int(sys.argv[2])):
    path = f"{sys.argv[1]}/libcudart.so.{number}"
    with open(path, "wb") as file:
        file.write(b"x" * 64)
    with open(path, "rb") as file:
        mapped.append(mmap.mmap(file.fileno(), 64, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC))
print("ready", flush=True)
time.sleep(600)
"""
# Makes calls in as many threads at a time as a line of its input says.
CALLS_IN_THREADS = """
import ctypes, sys, threading
runtime = ctypes.CDLL(sys.argv[1])
def call():
    runtime.cudaStreamSynchronize(None)
    released.wait()
print("ready", flush=True)
for count in sys.stdin:
    released = threading.Event()
    threads = [threading.Thread(target=call) for _ in range(int(count))]
    for thread in threads:
        thread.start()
    print("done", flush=True)
"""
# Has as many children at a time as a line of its input says, each of which makes calls.
CALLS_IN_CHILDREN = """
import ctypes, os, sys, time
runtime = ctypes.CDLL(sys.argv[1])
print("ready", flush=True)
for count in sys.stdin:
    for _ in range(int(count)):
        if not os.fork():
            runtime.cudaStreamSynchronize(None)
            time.sleep(600)
    print("done", flush=True)
"""


# Has as many children as a line of its input says, which make 97 calls each at the same time.
FLOODS_IN_CHILDREN = """
import ctypes, os, sys, time
runtime = ctypes.CDLL(sys.argv[1])
print("ready", flush=True)
for count in sys.stdin:
    reading, writing = os.pipe()
    for _ in range(int(count)):
        if not os.fork():
            os.read(reading, 1)
            for _ in range(97):
                runtime.cudaStreamSynchronize(None)
            time.sleep(600)
    os.write(writing, bytes(int(count)))
    print("done", flush=True)
"""


# Has blocks of device memory, each of them from another function, as many as a line of its input says.
ALLOCATES = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.c10_malloc.restype = ctypes.c_void_p
library.c10_malloc.argtypes = [ctypes.c_int, ctypes.c_size_t]
print("ready", flush=True)
for count in sys.stdin:
    for number in range(int(count)):
        exec(f"def place_{number}(): return library.c10_malloc(0, 512)\\nplace_{number}()")
    print("done", flush=True)
"""


# Asks for a device as often as a line of its input says; each answer is told to the agent.
ASKS = """
import ctypes, sys
runtime, answer = ctypes.CDLL(sys.argv[1]), ctypes.create_string_buffer(4096)
print("ready", flush=True)
for count in sys.stdin:
    for _ in range(int(count)):
        runtime.cudaGetDeviceProperties(answer, 0)
    print("done", flush=True)
"""


@contextmanager
def launcher(*command: object) -> Iterator[subprocess.Popen[str]]:
    """Another user's program that runs a command later, with a number behind it."""
    python = shutil.which("python3", path="/usr/bin:/bin")
    assert python
    with program(LAUNCHES, python, "-c", MAKES_CALLS, *command, inside=AS_ANOTHER) as launching:
        yield launching


def launch(launching: subprocess.Popen[str], count: int) -> int:
    """Have a program make so many calls, and return its pid when it has ended."""
    assert launching.stdin is not None
    launching.stdin.write(f"{count}\n")
    launching.stdin.flush()
    return int(read_line(launching))


def end(agent: Agent) -> None:
    """The agent ends in time, and never had more memory than its unit lets it have."""
    status = Path(f"/proc/{agent.process.pid}/status").read_text()
    (peak,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    assert seconds_to_end(agent) < ENDS_WITHIN_S
    assert agent.wait().returncode == 0
    assert int(peak) < MEMORY_LIMIT_KIB


def notes_on(user: str, file: Path) -> list[str]:
    """What the report of a recording says of a user's share."""
    lines = otel_gpu("report", file).stdout.splitlines()
    return [line.strip() for line in lines if f"of user {user} used up its share" in line]


def test_a_program_with_too_many_series_takes_no_other_program_its_series(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """Each call has a status of its own; what finds no place is counted, and whose it is is said."""
    file = tmp_path / "series.rec"
    with (
        program(CALLS, many_statuses(6007), inside=AS_NOBODY) as hostile,
        program(CALLS, stubs.runtime, inside=AS_ANOTHER) as other,
        Agent(
            receiver,
            flags=[f"--pid={hostile.pid}", f"--pid={other.pid}", "--record", str(file)],
        ) as agent,
    ):
        receiver.wait_for(receiver.metrics)
        make_calls(hostile, 12_011)
        make_calls(other, 1531)
        receiver.wait_for(lambda: calls(receiver, API, other.pid) == 1531)
        end(agent)

    # Half of the series are the program's, and the time that it waits takes none of them.
    assert losses(receiver)["series_full"] in range(12_011 - 2 * 2048, 12_011 - 2 * 2000)
    (note,) = notes_on("nobody", file)
    assert f"({hostile.pid})" in note
    assert f"{losses(receiver)['series_full']:,} calls are not counted" in note
    assert not notes_on("65533", file)


def test_a_program_with_too_many_files_takes_no_other_program_its_probes(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """Another user's program comes later, with a library that no other program maps."""
    file = tmp_path / "files.rec"
    with (
        open_folder() as folder,
        open_folder() as writable,
    ):
        writable.chmod(0o777)
        runtime = folder / stubs.runtime.name
        shutil.copy(stubs.runtime, runtime)
        command = ("/usr/bin/python3", "-c", CALLS, runtime)
        with (
            program(MAPS_MANY, writable, 4201, inside=AS_NOBODY) as hostile,
            program(BECOMES_PARENT, *command, inside=AS_ANOTHER) as other,
            Agent(
                receiver,
                flags=[f"--pid={hostile.pid}", f"--pid={other.pid}", "--record", str(file)],
            ) as agent,
        ):
            receiver.wait_for(receiver.metrics)
            assert other.stdin is not None
            other.stdin.write("\n")
            other.stdin.flush()
            assert read_line(other) == "ready"
            receiver.wait_for(
                lambda: points(receiver, "otel_gpu.coverage", otel_gpu__library__path=str(runtime))
            )
            make_calls(other, 1163)
            receiver.wait_for(lambda: calls(receiver, API) == 1163)
            end(agent)

    # The first calls of the other one could have come before its library had probes.
    lost = losses(receiver)
    unread = lost.pop("file_unread", 0)
    assert lost == {"not_watched_from_start": 2}
    if unread:
        # On a slow machine, reading so many uses up the share of the agent's time before that of files.
        used_up = "its share of our time, or that of its user, is used up"
        assert (
            f"({hostile.pid}) of user 65534, some of its files" in otel_gpu("report", file).stdout
        )
        assert used_up in otel_gpu("report", file).stdout
    else:
        (note,) = notes_on("nobody", file)
        assert f"({hostile.pid})" in note
        assert "files got no probes" in note


def test_a_program_with_too_many_threads_takes_no_other_program_its_threads(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    file = tmp_path / "threads.rec"
    with (
        program(CALLS_IN_THREADS, stubs.runtime, inside=AS_NOBODY) as hostile,
        launcher(stubs.runtime) as launching,
        Agent(
            receiver,
            flags=[f"--pid={hostile.pid}", f"--pid={launching.pid}", "--record", str(file)],
            env={"OTEL_GPU_CAPTURE_MAX_THREADS": "64"},
        ) as agent,
    ):
        receiver.wait_for(receiver.metrics)
        make_calls(hostile, 151)
        pid = launch(launching, 1009)
        receiver.wait_for(lambda: calls(receiver, API, pid) == 1009)
        end(agent)

    assert calls(receiver, API, hostile.pid) in range(16, 33)
    assert losses(receiver)["threads_full"] >= 151 - 33
    (note,) = notes_on("nobody", file)
    assert f"({hostile.pid})" in note
    assert "threads are not followed" in note


def test_a_user_with_too_many_processes_takes_no_other_user_theirs(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """However many they are, some are left for others; those that end make room again."""
    file = tmp_path / "processes.rec"
    with (
        program(CALLS_IN_CHILDREN, stubs.runtime, inside=AS_NOBODY) as hostile,
        launcher(stubs.runtime) as launching,
        Agent(
            receiver,
            flags=[f"--pid={hostile.pid}", f"--pid={launching.pid}", "--record", str(file)],
            env={"OTEL_GPU_CAPTURE_MAX_PROCESSES": "32"},
        ) as agent,
    ):
        receiver.wait_for(receiver.metrics)
        make_calls(hostile, 61)
        made = {launch(launching, count): count for count in (211, 223, 227, 229, 233, 239, 241)}
        receiver.wait_for(
            lambda: all(calls(receiver, API, pid) == count for pid, count in made.items())
        )
        end(agent)
        subprocess.run(["pkill", "-KILL", "-P", str(hostile.pid)], check=False)

    assert losses(receiver)["processes_full"] >= 61 - 32
    (note,) = notes_on("nobody", file)
    assert "all programs of user nobody" in note
    assert "processes are not watched" in note


def test_a_program_that_fills_a_ring_takes_no_other_program_its_start(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """
    While the agent stands still, one program sends more than the ring holds, and another one begins.

    That it does, and with which library, is known when the agent goes on.
    """
    file = tmp_path / "ring.rec"
    with open_folder() as folder:
        runtime = folder / stubs.runtime.name
        shutil.copy(stubs.runtime, runtime)
        command = ("/usr/bin/python3", "-c", CALLS, runtime)
        with (
            program(ASKS, stubs.runtime, inside=AS_NOBODY) as hostile,
            program(BECOMES_PARENT, *command, inside=AS_ANOTHER) as other,
            Agent(
                receiver,
                flags=[f"--pid={hostile.pid}", f"--pid={other.pid}", "--record", str(file)],
            ) as agent,
        ):
            receiver.wait_for(receiver.metrics)
            agent.signal(signal.SIGSTOP)
            make_calls(hostile, 20_011)
            assert other.stdin is not None
            other.stdin.write("\n")
            other.stdin.flush()
            assert read_line(other) == "ready"
            agent.signal(signal.SIGCONT)
            receiver.wait_for(
                lambda: points(receiver, "otel_gpu.coverage", otel_gpu__library__path=str(runtime))
            )
            make_calls(other, 1171)
            receiver.wait_for(lambda: calls(receiver, API) == 1171)
            end(agent)

    assert calls(receiver, "cudaGetDeviceProperties", hostile.pid) == 20_011
    lost = losses(receiver)
    assert lost["lifecycle_ring_full"] > 10_000
    (note,) = notes_on("nobody", file)
    assert f"({hostile.pid})" in note
    assert f"{lost['lifecycle_ring_full']:,} forks, execs, ends" in note


def test_a_program_that_fills_the_queue_of_the_exporter_takes_no_other_program_its_spans(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """While the receiver is away, one program makes more spans than have room; another makes few in between."""
    file = tmp_path / "queue.rec"
    environment = {
        "OTEL_GPU_SPANS_MODE": "full",
        "OTEL_GPU_SPANS_RATE_PER_PROCESS": "1000000",
        "OTEL_GPU_EXPORT_QUEUE_BYTES": str(1 << 20),
        "OTEL_GPU_EXPORT_BATCH_BYTES": str(1 << 18),
    }
    with (
        OtlpReceiver() as away,
        program(CALLS, stubs.runtime, inside=AS_NOBODY) as hostile,
        program(CALLS, stubs.runtime, inside=AS_ANOTHER) as other,
        Agent(
            receiver,
            flags=[f"--pid={hostile.pid}", f"--pid={other.pid}", "--record", str(file)],
            env=environment | {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": away.grpc_endpoint},
        ) as agent,
    ):
        receiver.wait_for(receiver.metrics)
        away.stop()
        make_calls(hostile, 5_003)
        receiver.wait_for(lambda: total(receiver, "otel_gpu.spans.dropped") > 1_000)
        make_calls(other, 53)
        receiver.wait_for(lambda: calls(receiver, API, other.pid) == 53)
        make_calls(hostile, 5_009)
        receiver.wait_for(lambda: total(receiver, "otel_gpu.spans.dropped") > 6_000)
        away.start()
        away.wait_for(lambda: len(spans(away, API, other.pid)) == 53)
        end(agent)

    (note,) = [note for note in notes_on("nobody", file) if "export queue" in note]
    assert f"({hostile.pid})" in note
    assert not notes_on("65533", file)


def test_a_user_whose_programs_make_many_spans_has_a_rate_of_them(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """Each program keeps to its own rate, and all together to eight times that; another user has its own."""
    file = tmp_path / "rate.rec"
    environment = {"OTEL_GPU_SPANS_MODE": "full", "OTEL_GPU_SPANS_RATE_PER_PROCESS": "101"}
    with (
        program(FLOODS_IN_CHILDREN, stubs.runtime, inside=AS_NOBODY) as hostile,
        program(CALLS, stubs.runtime, inside=AS_ANOTHER) as other,
        Agent(
            receiver,
            flags=[f"--pid={hostile.pid}", f"--pid={other.pid}", "--record", str(file)],
            env=environment,
        ) as agent,
    ):
        receiver.wait_for(receiver.metrics)
        make_calls(hostile, 31)
        make_calls(other, 37)
        receiver.wait_for(lambda: calls(receiver, API) == 31 * 97 + 37)
        end(agent)
        subprocess.run(["pkill", "-KILL", "-P", str(hostile.pid)], check=False)

    assert len(spans(receiver, API, other.pid)) == 37
    limited = total(receiver, "otel_gpu.spans.rate_limited", reason="rate")
    assert limited > 0
    named = re.findall(r"([\d,]+) spans were rate-limited", "".join(notes_on("nobody", file)))
    assert sum(int(count.replace(",", "")) for count in named) == limited
    assert not notes_on("65533", file)


def test_a_program_with_too_many_stacks_of_blocks_takes_no_other_user_theirs(
    receiver: OtlpReceiver, tmp_path: Path
) -> None:
    """In a minute there is room for some; a quarter of it is left for users that had none yet."""
    file = tmp_path / "blocks.rec"
    environment = {"OTEL_GPU_MEMORY_BLOCKS": "all", "OTEL_GPU_MEMORY_STACKS_PER_SECOND": "1"}
    with (
        program(ALLOCATES, allocator(), inside=AS_NOBODY) as hostile,
        program(ALLOCATES, allocator(), inside=AS_ANOTHER) as other,
        Agent(
            receiver,
            flags=[f"--pid={hostile.pid}", f"--pid={other.pid}", "--record", str(file)],
            env=environment,
        ) as agent,
    ):
        receiver.wait_for(receiver.metrics)
        make_calls(hostile, 701)
        make_calls(other, 7)
        receiver.wait_for(lambda: total(receiver, "otel_gpu.block_stacks.rate_limited"))
        end(agent)

    sent = Counter(event.pid for event in events_of(file) if isinstance(event, BlockStack))
    assert sent[other.pid] == 7
    assert sent[hostile.pid] in range(400, 460)
    limited = int(total(receiver, "otel_gpu.block_stacks.rate_limited"))
    (note,) = notes_on("nobody", file)
    assert f"({hostile.pid})" in note
    assert f"{limited:,} stacks of blocks of device memory were not taken" in note
    assert not notes_on("65533", file)

"""Threads that are looked at while they do whatever they do, and that did it before."""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from otel_gpu.cli.thread_dump import dump_threads
from otel_gpu.config import Config
from otel_gpu.procfs.mapped_files import thread_ids
from otel_gpu.report.stacks.thread_dump import ThreadsReport, make_threads_document
from otel_gpu.wire.frames import Frame, FrameType
from tests.kernel.agent import FIRST, otel_gpu, wait_until
from tests.kernel.sampling import Subject
from tests.kernel.test_quickstart import NO_CAPABILITIES
from tests.pythons.interpreters import ONE_OF_EACH, interpreter
from tests.schemas import LOOKS
from tests.stubs.build import WORKLOADS, StubLibraries, workload

pytestmark = pytest.mark.kernel

SCRIPT = WORKLOADS / "hung.py"
THREADS = 200
STEP = "step"
NS_PER_S = 1_000_000_000
BUSY = """
import threading
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
def work():
    while True:
        fib(18)
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
print("{}", flush=True)
work()
"""


@contextmanager
def hung(
    stubs: StubLibraries, how: str, threads: int = 0, python: str = "this"
) -> Iterator[Subject]:
    """A program that hangs already when it is looked at."""
    command = (*interpreter(python).command, SCRIPT, stubs.runtime, how, str(threads))
    with Subject(command) as subject:
        yield subject


def was_stopped(pid: int) -> bool:
    """Whether a child of ours was stopped, or went on after that, since it began."""
    flags = os.WSTOPPED | os.WCONTINUED | os.WNOHANG
    return os.waitid(os.P_PID, pid, flags) is not None


def thread_of(document: Mapping[str, Any], tid: int) -> Mapping[str, Any]:
    [thread] = [thread for thread in document["threads"] if thread["tid"] == tid]
    return thread


def names(document: Mapping[str, Any], thread: Mapping[str, Any]) -> list[str]:
    return [frame["function"] for frame in document["stacks"][thread["stack"]]["frames"]]


def python_frames(report: ThreadsReport, tid: int) -> list[Frame]:
    [thread] = [thread for thread in report.threads if thread.tid == tid]
    assert thread.stack is not None
    return [frame for frame in thread.stack.frames if frame.kind == FrameType.PYTHON]


def test_a_call_that_spins_is_seen_with_its_line(stubs: StubLibraries) -> None:
    """The thread is on a CPU, and in the call, whose line is known; nobody was stopped."""
    with hung(stubs, "spin") as subject:
        done = otel_gpu("stacks", "--now", "--json", "--pid", subject.pid, inside=FIRST)
        assert not was_stopped(subject.pid)
        about = subject.about

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    LOOKS.validate(document)
    thread = thread_of(document, about["tid"])
    assert thread["cuda_calls"] == ["cudaStreamSynchronize"]
    assert thread["state"] in ("on_cpu", "run_queue")
    stack = document["stacks"][thread["stack"]]
    assert stack["place"]["line"] == about["step"]
    assert stack["place"]["file"] == str(SCRIPT)
    functions = names(document, thread)
    inner = functions.index("cudaStreamSynchronize")
    assert functions[inner:].index(STEP) < functions[inner:].index("train")
    assert document["unreadable"] == 0


def test_a_call_that_waits_in_the_driver_is_seen_with_its_line(stubs: StubLibraries) -> None:
    """Both layers of the call are there, and the kernel's stack, and since when it waits."""
    with hung(stubs, "driver") as subject:
        tid = subject.about["tid"]
        wait_until(lambda: is_asleep(subject.pid, tid), "waiting in the driver")
        report = dump_threads(Config(), [subject.pid])
        assert not was_stopped(subject.pid)
        about = subject.about

    document = make_threads_document(report)
    thread = thread_of(document, tid)
    assert thread["cuda_calls"] == ["cudaStreamSynchronize", "cuStreamSynchronize"]
    assert thread["state"] == "blocked"
    assert thread["exact"]
    assert any("pause" in function for function in thread["kernel_stack"])
    assert 0 <= thread["time_in_state_ns"] < 600 * NS_PER_S
    assert document["stacks"][thread["stack"]]["complete"]
    assert document["stacks"][thread["stack"]]["place"]["line"] == about["step"]
    functions = names(document, thread)
    assert [functions.index(name) for name in (*reversed(thread["cuda_calls"]), STEP)] == sorted(
        functions.index(name) for name in (*thread["cuda_calls"], STEP)
    )


def is_asleep(pid: int, tid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/task/{tid}/stat").read_text(encoding="utf-8")
    except OSError:  # gone meanwhile
        return False
    return stat.rpartition(")")[2].split()[0] == "S"


def test_200_threads_are_looked_at_at_once(stubs: StubLibraries) -> None:
    """Each has its function and line, none was stopped, and it took less than a second."""
    with hung(stubs, "driver", THREADS) as subject:
        pid = subject.pid
        wait_until(lambda: all_idle(pid), "all waiting")
        done = otel_gpu("stacks", "--now", "--json", "--pid", pid, inside=FIRST)
        assert not was_stopped(pid)
        about = subject.about

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    places = [document["stacks"][thread["stack"]].get("place") for thread in document["threads"]]
    found = [place for place in places if place and place["function"] == "idle"]
    expected = [(str(SCRIPT), about["idle"])] * THREADS
    assert [(place["file"], place["line"]) for place in found] == expected
    assert document["unreadable"] == document["incomplete"] == 0
    assert document["took_ns"] < NS_PER_S


def all_idle(pid: int) -> bool:
    tids = thread_ids(pid)
    return len(tids) > THREADS and all(is_asleep(pid, tid) for tid in tids)


@pytest.mark.parametrize("python", ["this", *ONE_OF_EACH])
def test_frames_of_every_python_are_seen(stubs: StubLibraries, python: str) -> None:
    """The same walk as of a thread that comes by itself, through the memory of another one."""
    with hung(stubs, "driver", 1, python) as subject:
        tid, pid = subject.about["tid"], subject.pid
        wait_until(lambda: is_asleep(pid, tid), "waiting in the driver")
        report = dump_threads(Config(), [pid])
        line = subject.about["step"]

    frames = python_frames(report, tid)
    assert [frame.function for frame in frames] == ["step", "train", "<module>"]
    assert frames[0].line == line
    assert {frame.file for frame in frames} == {str(SCRIPT)}


def test_threads_that_run_have_only_frames_of_their_own() -> None:
    """Their stacks change while they are looked at, and what is seen is said to be a moment old."""
    with Subject((sys.executable, "-c", BUSY)) as subject:
        reports = [dump_threads(Config(), [subject.pid]) for _ in range(10)]
        assert not was_stopped(subject.pid)

    threads = [thread for report in reports for thread in report.threads]
    assert all(thread.is_late for thread in threads if thread.state == "on_cpu")
    seen = {
        frame.function.rpartition(".")[2]
        for thread in threads
        if thread.stack
        for frame in thread.stack.frames
        if frame.kind == FrameType.PYTHON
    }
    threading = {"run", "_bootstrap_inner", "_bootstrap"}
    assert {"fib", "work", "<module>"} <= seen <= {"fib", "work", "<module>", *threading}


def test_native_threads_are_seen(stubs: StubLibraries) -> None:
    """A program without Python: who hangs, in what, and who waits for that."""
    with Subject((workload("hang"), stubs.runtime)) as subject:
        about = subject.about
        wait_until(lambda: is_asleep(subject.pid, about["tid"]), "hanging")
        done = otel_gpu("stacks", "--now", "--pid", subject.pid)

    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split("\n\n")[1:3]
    assert f"   stuck ({about['tid']}) for " in first
    assert "in cudaStreamSynchronize\n" in first
    assert "     cudaStreamSynchronize (libcudart.so.12)\n     hang (hang)\n" in first
    assert f"   hang ({about['pid']}) for " in second
    assert "     main (hang)\n" in second


def test_a_hostile_name_is_printed_safely(stubs: StubLibraries, tmp_path: Path) -> None:
    """A program may be called whatever it wants, and so are its threads and its frames."""
    program = os.fsdecode(bytes(tmp_path) + b"/\x1b[31m\n\xff\xe2\x80\xae")
    shutil.copy(workload("hang"), program)
    with Subject((program, stubs.runtime)) as subject:
        text = otel_gpu("stacks", "--now", "--pid", subject.pid)
        document = otel_gpu("stacks", "--now", "--json", "--pid", subject.pid)

    assert text.returncode == document.returncode == 0
    # A line break would make more lines of it, and the text of each is safe.
    assert all(line.isprintable() for line in text.stdout.split("\n"))
    assert all(line.isprintable() for line in document.stdout.split("\n"))
    assert "\\x1b[31m\\n" in text.stdout
    threads = json.loads(document.stdout)["threads"]
    assert any(thread["name"].startswith("\x1b[31m\n") for thread in threads)


def test_what_cannot_be_looked_at_is_said() -> None:
    """A process that is not there, a thread of the kernel, no process, and a capture."""
    assert "no process 4194305" in otel_gpu("stacks", "--now", "--pid", 4194305).stderr
    kernel = otel_gpu("stacks", "--now", "--pid", kernel_thread())
    assert kernel.returncode == 1
    assert "has no visible thread" in kernel.stderr
    for wrong in ((), ("--all",), ("--pid", os.getpid(), "--duration", "3")):
        done = otel_gpu("stacks", "--now", *wrong)
        assert done.returncode == 2
        assert "error: --now " in done.stderr
    folded = otel_gpu("stacks", "--now", "--folded", "--pid", os.getpid())
    assert folded.returncode == 2
    assert "has no --folded" in folded.stderr


def kernel_thread() -> int:
    """The number of kthreadd, whose threads have no memory of their own."""
    for entry in Path("/proc").glob("[0-9]*"):
        if not (entry / "cmdline").read_bytes() and entry.name != "1":
            return int(entry.name)
    pytest.skip("no thread of the kernel is seen here")


def test_missing_capabilities_are_said() -> None:
    """The error names them."""
    done = otel_gpu("stacks", "--now", "--pid", os.getpid(), inside=NO_CAPABILITIES)

    assert done.returncode == 1
    assert "CAP_BPF" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_kernel_without_btf_is_said() -> None:
    """And what else there is to do."""
    env = {"OTEL_GPU_CAPTURE_LOADER": "bcc"}
    done = otel_gpu("stacks", "--now", "--pid", os.getpid(), env=env)

    assert done.returncode == 1
    assert "no thread dump on a kernel without BTF" in done.stderr
    assert "hint: " in done.stderr

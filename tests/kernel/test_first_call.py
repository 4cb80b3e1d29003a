"""Under ``run -- CMD`` no call is missed, not even the first after a dlopen."""

import sys
from pathlib import Path

import pytest

from tests.kernel.agent import Agent, calls, losses
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, copy_of_runtime, workload, workload_with_runtime

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize("mode", ["direct", "threaded", "forked", "executed"])
def test_the_first_call_after_dlopen_is_counted(
    receiver: OtlpReceiver, stubs: StubLibraries, mode: str
) -> None:
    """A call made right after dlopen counts, in the program, a thread, a child or a new program."""
    with Agent(receiver, [workload("first_call"), mode, "7", stubs.runtime]) as agent:
        finished = agent.wait()

    assert finished.returncode == 0
    assert calls(receiver, "cudaMalloc", finished.lines[0]["pid"]) == 7
    assert losses(receiver) == {}


def test_a_thread_that_executes_a_program_begins_a_new_image(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Calls before and after an exec by a thread that is not the first all count."""
    command = [workload("first_call"), "exec_thread", "7", stubs.runtime]
    with Agent(receiver, command) as agent:
        lines = agent.wait().lines
    (pid,) = {line["pid"] for line in lines}

    every_image = [
        point.point.count
        for key, point in receiver.points()
        if key.name == "gpu.cuda.call.duration" and key.pid == pid
    ]
    assert len(lines) == 2
    assert set(every_image) == {7}
    assert losses(receiver) == {}


def test_many_short_processes_lose_no_call(receiver: OtlpReceiver, stubs: StubLibraries) -> None:
    """31 programs, several at a time, each call once it has opened the library."""
    one = f"{workload('first_call')} direct 7 {stubs.runtime}"
    with Agent(receiver, ["sh", "-c", f"seq 31 | xargs -P 4 -I{{}} {one}"]) as agent:
        lines = agent.wait().lines

    assert len({line["pid"] for line in lines}) == 31
    assert {calls(receiver, "cudaMalloc", line["pid"]) for line in lines} == {7}
    assert losses(receiver) == {}


def test_a_child_of_python_is_watched(receiver: OtlpReceiver, stubs: StubLibraries) -> None:
    """Python starts children with vfork, which shares memory until the exec."""
    script = "import subprocess, sys; subprocess.run(sys.argv[1:], check=True)"
    program = [workload("first_call"), "direct", "7", stubs.runtime]
    with Agent(receiver, [sys.executable, "-c", script, *program]) as agent:
        pid = agent.wait().lines[0]["pid"]

    assert calls(receiver, "cudaMalloc", pid) == 7


def test_a_copy_of_the_library_is_another_library(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """Two files with the same content are two places to probe; each call counts once."""
    copy = copy_of_runtime(tmp_path)
    with Agent(receiver, [workload("first_call"), "copies", "7", stubs.runtime, copy]) as agent:
        pid = agent.wait().lines[0]["pid"]

    assert calls(receiver, "cudaMalloc", pid) == 14


def test_a_hard_link_is_the_same_library(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """A second name of one file is probed once; no call counts twice."""
    # A hard link must be on the same file system, so it lies next to the library.
    link = stubs.runtime.with_name(f"libcudart-{tmp_path.name}.so")
    link.hardlink_to(stubs.runtime)
    try:
        with Agent(receiver, [workload("first_call"), "copies", "7", stubs.runtime, link]) as agent:
            pid = agent.wait().lines[0]["pid"]
    finally:
        link.unlink()

    assert calls(receiver, "cudaMalloc", pid) == 14


def test_a_library_that_came_with_the_program_is_probed_before_main(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """A preloaded library needs no dlopen, and its calls count from the first on."""
    command = ["env", f"LD_PRELOAD={stubs.runtime}", workload("first_call"), "preloaded", "7"]
    with Agent(receiver, command) as agent:
        pid = agent.wait().lines[0]["pid"]

    assert calls(receiver, "cudaMalloc", pid) == 7


def test_a_runtime_linked_into_the_program_is_probed_at_its_exec(
    receiver: OtlpReceiver,
) -> None:
    """A program that exports the CUDA symbols itself needs no library to be seen."""
    with Agent(receiver, [workload_with_runtime("first_call"), "preloaded", "7"]) as agent:
        pid = agent.wait().lines[0]["pid"]

    assert calls(receiver, "cudaMalloc", pid) == 7


def test_calls_of_a_shells_grandchild_are_counted(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Descendants are watched however deep they are."""
    inner = f"{workload('first_call')} direct 7 {stubs.runtime}; true"
    with Agent(receiver, ["sh", "-c", f"sh -c '{inner}'; true"]) as agent:
        pid = agent.wait().lines[0]["pid"]

    assert calls(receiver, "cudaMalloc", pid) == 7


def test_a_deleted_library_is_still_probed(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """A library whose file is gone after mapping is reached through the process."""
    copy = copy_of_runtime(tmp_path)
    script = (
        "import ctypes, os, sys, json\n"
        "path, other = sys.argv[1:]\n"
        "os.rename(path, other)\n"
        "library = ctypes.CDLL(other)\n"
        "os.unlink(other)\n"
        "[library.cudaDeviceSynchronize() for _ in range(7)]\n"
        "print(json.dumps({'pid': os.getpid()}))\n"
    )
    other = tmp_path / "libcudart-moved.so"
    with Agent(receiver, [sys.executable, "-c", script, copy, other]) as agent:
        pid = agent.wait().lines[0]["pid"]

    assert calls(receiver, "cudaDeviceSynchronize", pid) == 7


def test_a_library_that_takes_the_place_of_a_closed_one_is_noticed(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """The dynamic linker reuses its memory after dlclose; the next library is a new one still."""
    copies = [copy_of_runtime(tmp_path / str(number)) for number in range(5)]
    with Agent(receiver, [workload("reopen"), "close", "7", *copies]) as agent:
        (line,) = agent.wait().lines

    assert calls(receiver, "cudaMalloc", line["pid"]) == line["cudaMalloc"] == 35
    assert losses(receiver) == {}


def test_a_library_that_is_closed_and_opened_again_keeps_its_probes(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Probes belong to the file, so they outlive its mapping."""
    command = [workload("reopen"), "close", "7", *[stubs.runtime] * 3]
    with Agent(receiver, command) as agent:
        (line,) = agent.wait().lines

    assert calls(receiver, "cudaMalloc", line["pid"]) == line["cudaMalloc"] == 21


def test_a_library_in_a_namespace_of_its_own_is_noticed(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """What dlmopen loads is in no list but its own, and its first call counts all the same."""
    copies = [copy_of_runtime(tmp_path / str(number)) for number in range(2)]
    with Agent(receiver, [workload("reopen"), "namespace", "7", *copies]) as agent:
        (line,) = agent.wait().lines

    assert calls(receiver, "cudaMalloc", line["pid"]) == line["cudaMalloc"] == 14

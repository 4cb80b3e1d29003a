"""Under ``run -- CMD`` no call is missed, not even the first after a dlopen."""

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.kernel.agent import Agent, calls, losses
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, copy_of_runtime, workload, workload_with_runtime

pytestmark = pytest.mark.kernel

# A library whose file is gone after mapping.
DELETED = """
import ctypes, os, sys, json
path, other = sys.argv[1:]
os.rename(path, other)
library = ctypes.CDLL(other)
os.unlink(other)
[library.cudaMalloc(ctypes.byref(ctypes.c_void_p()), 256) for _ in range(7)]
print(json.dumps({"pid": os.getpid(), "cudaMalloc": 7}))
"""
CHILD = "import subprocess, sys; subprocess.run(sys.argv[1:], check=True)"


def programs_in(folder: Path) -> Iterator[tuple[str, Sequence[str | Path]]]:
    """
    Programs by what they do, each with libraries that none before it had: where the agent knows
    one, a call is not the first.
    """
    first_call, reopen = workload("first_call"), workload("reopen")
    made = (copy_of_runtime(folder / str(number)) for number in range(1000))
    for mode in ("direct", "threaded", "forked", "executed", "exec_thread"):
        yield mode, (first_call, mode, "7", next(made))
    yield "child of Python", (sys.executable, "-c", CHILD, first_call, "direct", "7", next(made))
    inner = shlex.join(map(str, (first_call, "direct", "7", next(made))))
    yield "grandchild", ("sh", "-c", f"sh -c '{inner}; true'; true")
    yield "copy", (first_call, "copies", "7", next(made), next(made))
    library = next(made)
    link = library.with_name("libcudart-linked.so")
    link.hardlink_to(library)
    yield "hard link", (first_call, "copies", "7", library, link)
    yield "preloaded", ("env", f"LD_PRELOAD={next(made)}", first_call, "preloaded", "7")
    yield "deleted", (sys.executable, "-c", DELETED, next(made), folder / "libcudart-moved.so")
    yield "replaced", (reopen, "close", "7", *(next(made) for _ in range(5)))
    yield "opened again", (reopen, "close", "7", *[next(made)] * 3)
    yield "namespace", (reopen, "namespace", "7", next(made), next(made))


class Ran(NamedTuple):
    """What programs said that ran one after the other, and who was told of them."""

    said: Mapping[str, Sequence[Mapping[str, Any]]]
    receiver: OtlpReceiver


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """Each program, under one agent."""
    programs = dict(programs_in(tmp_path_factory.mktemp("libraries")))
    script = ["set -e"]
    for name, command in programs.items():
        script += [f"echo {shlex.quote(json.dumps(name))}", shlex.join(map(str, command))]
    with OtlpReceiver() as receiver:
        with Agent(receiver, ["sh", "-c", "\n".join(script)]) as agent:
            finished = agent.wait()
        assert finished.returncode == 0, finished.stderr
        said: dict[str, list[Mapping[str, Any]]] = {}
        for line in map(json.loads, finished.stdout.splitlines()):
            if isinstance(line, str):
                said[line] = []
            else:
                said[[*said][-1]].append(line)
        assert said.keys() == programs.keys()
        yield Ran(said, receiver)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        *((mode, 7) for mode in ("direct", "threaded", "forked", "executed")),
        # Python starts children with vfork, which shares memory until the exec.
        ("child of Python", 7),
        ("grandchild", 7),
        # Two files with the same content are two places to probe, and two names of one are one.
        ("copy", 14),
        ("hard link", 14),
        # It needs no dlopen.
        ("preloaded", 7),
        # Its file is reached through the process.
        ("deleted", 7),
        # The dynamic linker reuses the memory after dlclose; the next library is a new one still.
        ("replaced", 35),
        # Probes belong to the file, so they outlive its mapping.
        ("opened again", 21),
        # What dlmopen loads is in no list but its own.
        ("namespace", 14),
    ],
)
def test_every_call_counts_from_the_first_on(ran: Ran, name: str, made: int) -> None:
    """However the library came, and whichever process, thread or program makes the call."""
    (line,) = ran.said[name]

    assert line["cudaMalloc"] == made
    assert calls(ran.receiver, "cudaMalloc", line["pid"]) == made
    assert losses(ran.receiver) == {}


def test_a_thread_that_executes_a_program_begins_a_new_image(ran: Ran) -> None:
    """Calls before and after an exec by a thread that is not the first all count."""
    lines = ran.said["exec_thread"]
    (pid,) = {line["pid"] for line in lines}

    every_image = [
        point.point.count
        for key, point in ran.receiver.points()
        if key.name == "gpu.cuda.call.duration" and key.pid == pid
    ]
    assert len(lines) == 2
    assert set(every_image) == {7}


@pytest.mark.parametrize("mode", ["direct", "executed"])
def test_the_command_itself_is_seen_from_its_first_call_on(
    receiver: OtlpReceiver, stubs: StubLibraries, mode: str
) -> None:
    """A call made right after dlopen counts, in the program or in a new one."""
    with Agent(receiver, [workload("first_call"), mode, "7", stubs.runtime]) as agent:
        finished = agent.wait()

    assert finished.returncode == 0
    assert calls(receiver, "cudaMalloc", finished.lines[0]["pid"]) == 7
    assert losses(receiver) == {}


def test_a_library_that_came_with_the_command_is_probed_before_main(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """A preloaded library needs no dlopen, and its calls count from the first on."""
    command = ["env", f"LD_PRELOAD={stubs.runtime}", workload("first_call"), "preloaded", "7"]
    with Agent(receiver, command) as agent:
        pid = agent.wait().lines[0]["pid"]

    assert calls(receiver, "cudaMalloc", pid) == 7


@pytest.mark.usefixtures("counted_by")
def test_a_runtime_linked_into_the_command_is_probed_at_its_exec(receiver: OtlpReceiver) -> None:
    """A program that exports the CUDA symbols itself needs no library to be seen."""
    with Agent(receiver, [workload_with_runtime("first_call"), "preloaded", "7"]) as agent:
        pid = agent.wait().lines[0]["pid"]

    assert calls(receiver, "cudaMalloc", pid) == 7


def test_many_short_processes_lose_no_call(receiver: OtlpReceiver, stubs: StubLibraries) -> None:
    """31 programs, several at a time, each call once it has opened the library."""
    one = f"{workload('first_call')} direct 7 {stubs.runtime}"
    with Agent(receiver, ["sh", "-c", f"seq 31 | xargs -P 4 -I{{}} {one}"]) as agent:
        lines = agent.wait().lines

    assert len({line["pid"] for line in lines}) == 31
    assert {calls(receiver, "cudaMalloc", line["pid"]) for line in lines} == {7}
    assert losses(receiver) == {}

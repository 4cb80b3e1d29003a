"""Merged stacks of real programs: every frame of Python, in its place among native ones."""

import contextlib
import itertools
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from otel_gpu.capture.recording import read_recording
from otel_gpu.errors import RecordingError
from otel_gpu.stacks.python.interpreter_functions import is_left_out
from otel_gpu.wire.decoder import decode
from otel_gpu.wire.events import CudaCall, Event, OpenCall, Stall
from otel_gpu.wire.frames import Frame, FrameType
from otel_gpu.wire.readings import Status
from otel_gpu.wire.symbol_records import UserStack
from tests.kernel.agent import END_TIMEOUT_S, Agent, through, together, wait_until
from tests.kernel.test_waited_for import was_read
from tests.pythons.interpreters import NAMES, ONE_OF_EACH, find, interpreter
from tests.pythons.missing import Missing
from tests.stubs.build import WORKLOADS, StubLibraries, library

pytestmark = pytest.mark.kernel

SCRIPT = WORKLOADS / "merged.py"
TIMES = 100
# Below every chain but those of threads.
ALL = ("run # runs", "<module> # all")
# By chain: its frames of Python, innermost first, below "allocate # allocates". Where a frame
# is of the workload, what follows its name is the comment of its current line.
CHAINS: Mapping[str, Sequence[str]] = {
    "nested": (
        "nested.<locals>.inner # in inner",
        "nested.<locals>.middle # in middle",
        "nested # in nested",
        *ALL,
    ),
    "method": (
        "Model.static # in static",
        "Model.build # in build",
        "Model.layer # in layer",
        "Model.forward # in forward",
        "method # in method",
        *ALL,
    ),
    "slots": ("Model.__enter__ # in enter", "Model.__call__ # enters", "slots # in slots", *ALL),
    "attribute": ("Model.__getattr__ # in getattr", "attribute # in attribute", *ALL),
    "prop": ("Model.size # in size", "prop # in prop", *ALL),
    "comprehension": (
        "comprehension.<locals>.<listcomp> # in comprehension",
        "comprehension # in comprehension",
        *ALL,
    ),
    "generator": ("batches # in batches", "generator # in generator", *ALL),
    "generator_of_c": (
        "batches # in batches",
        "generator_of_c.<locals>.<genexpr> # in generator of c",
        "generator_of_c # in generator of c",
        *ALL,
    ),
    "coroutine": (
        "copy # in copy",
        "train # in train",
        "Handle._run (events.py)",
        "BaseEventLoop._run_once (base_events.py)",
        "BaseEventLoop.run_forever (base_events.py)",
        "BaseEventLoop.run_until_complete (base_events.py)",
        "coroutine # in coroutine",
        *ALL,
    ),
    "decorated": ("decorated # in decorated", "decorated_by.<locals>.wrapper # in wrapper", *ALL),
    "lambdas": ("lambdas.<locals>.<lambda> # in lambdas", "lambdas # in lambdas", *ALL),
    "from_sorted": ("from_sorted.<locals>.<lambda> # in sorted", "from_sorted # in sorted", *ALL),
    "from_ctypes": ("from_ctypes # in ctypes", *ALL),
    "from_qsort": ("from_qsort.<locals>.compare # in compare", "from_qsort # in qsort", *ALL),
    "from_sqlite": ("from_sqlite.<locals>.row # in row", "from_sqlite # in sqlite", *ALL),
    "from_end_of_object": ("Tensor.__del__ # in del", "from_end_of_object # in end", *ALL),
    "from_except": ("from_except # in except", *ALL),
    "from_exec": ("<module> (<string>)", "from_exec # in exec", *ALL),
    "from_thread": (
        "Thread.run (threading.py)",
        "Thread._bootstrap_inner (threading.py)",
        "Thread._bootstrap (threading.py)",
    ),
    "c_thread": ("c_thread.<locals>.<lambda> # in c thread",),
    "native": ("native # in native", *ALL),
    "native_qsort": ("native_qsort # in native qsort", *ALL),
}
# These call cudaMalloc from C.
NATIVE_CHAINS = ("native", "native_qsort")
# Room for the stacks of all calls, however slow a busy machine reads them.
ENVIRONMENT = {
    "OTEL_GPU_CAPTURE_RING_BUFFER_BYTES": str(256 << 20),
    "OTEL_GPU_SPANS_RATE_PER_PROCESS": "100000",
}
FIRST_WITH_QUALIFIED_NAMES = (3, 11)
FIRST_WITH_INLINE_COMPREHENSIONS = (3, 12)


class Run(NamedTuple):
    """What the recording of merged.py says of its chains: one stack per call."""

    minor: tuple[int, int]
    stacks: Mapping[str, Sequence[UserStack]]
    status: Mapping[str, int]


def events_of(recording: Path) -> Iterator[Event]:
    rejected: Counter[str] = Counter()
    for batch in read_recording(recording):
        yield from decode(batch, rejected)
    assert not rejected


def with_stacks(events: Sequence[Event]) -> Iterator[tuple[Event, UserStack]]:
    """The events that name a stack, each with it."""
    told: dict[int, UserStack] = {}
    for event in events:
        if isinstance(event, UserStack):
            told[event.stack] = event
        elif getattr(event, "user_stack", 0):
            yield event, told[event.user_stack]


@pytest.fixture(scope="module")
def run_of(stubs: StubLibraries, tmp_path_factory) -> Callable[[str], Run]:
    """Runs merged.py with an interpreter, once for all tests."""

    @cache
    def run(name: str) -> Run:
        return run_merged(name, stubs, tmp_path_factory.mktemp("run"))

    return run


def run_merged(name: str, stubs: StubLibraries, folder: Path) -> Run:
    python = interpreter(name)
    recording = folder / "run.otelgpu"
    command = [*python.command, SCRIPT, stubs.runtime, library("native"), str(TIMES)]
    flags = ("--record", str(recording), "--spans", "full", "--otlp-file", os.devnull)
    with Agent(None, command, flags=flags, env=ENVIRONMENT, stdin=subprocess.PIPE) as agent:
        line = agent.next_line(END_TIMEOUT_S)
        wait_until(lambda: was_read(recording, line["ktime_ns"]), "a reading after the calls")
        agent.send_line()
        agent.wait()
    return read_run(python.minor, line["chains"], list(events_of(recording)))


def read_run(minor: tuple[int, int], chains: dict[str, int], events: Sequence[Event]) -> Run:
    names = {number: name for name, number in chains.items()}
    stacks: dict[str, list[UserStack]] = {name: [] for name in chains}
    for event, stack in with_stacks(events):
        if isinstance(event, CudaCall) and event.size_bytes >= 1000:
            stacks[names[event.size_bytes // 1000]].append(stack)
    statuses = [event.info for event in events if isinstance(event, Status)]
    return Run(minor, stacks, statuses[-1]["stacks"])


def shown(frame: Frame, script: Path = SCRIPT) -> str:
    if frame.file != str(script):
        return f"{frame.function} ({Path(frame.file).name})"
    line = script.read_text().splitlines()[frame.line - 1]
    return f"{frame.function} # {line.rpartition('# ')[2]}"


def python_frames(stack: UserStack, script: Path = SCRIPT) -> list[str]:
    return [shown(frame, script) for frame in stack.frames if frame.kind == FrameType.PYTHON]


def expected_of(chain: str, minor: tuple[int, int]) -> list[str]:
    frames = list(CHAINS[chain])
    if chain not in NATIVE_CHAINS:
        frames.insert(0, "allocate # allocates")
    if minor >= FIRST_WITH_INLINE_COMPREHENSIONS:
        frames = [frame for frame in frames if "<listcomp>" not in frame]
    if minor < FIRST_WITH_QUALIFIED_NAMES:
        frames = [
            " ".join((name.rpartition(".")[2], *rest))
            for name, *rest in (frame.split(" ") for frame in frames)
        ]
    return frames


def between(stack: UserStack, inner: str, outer: str) -> list[Frame]:
    """The frames between those of two functions."""
    names = [frame.function.rpartition(".")[2] for frame in stack.frames]
    start = names.index(inner)
    return list(stack.frames[start + 1 : names.index(outer, start)])


def modules(frames: Sequence[Frame]) -> list[str]:
    """The modules that frames are of, each as often as one begins."""
    return [module for module, _ in itertools.groupby(frame.module for frame in frames)]


@pytest.mark.parametrize("name", NAMES)
def test_every_frame_of_python(name, run_of):
    """
    File, qualified name and current line of each, for 100 calls of each of 22 chains, while
    another thread keeps the interpreter busy; all of them complete, and none is lost.
    """
    run = run_of(name)

    for chain, stacks in run.stacks.items():
        assert len(stacks) == TIMES, chain
        expected = expected_of(chain, run.minor)
        for stack in set(stacks):
            assert stack.frames[0].function == "cudaMalloc"
            assert python_frames(stack) == expected, chain
            assert (stack.python, stack.native) == ("ok", "eh_frame"), chain
            assert stack.complete, (chain, stack)
    assert run.status["without_sample"] == run.status["rejected"] == 0


def test_stacks_of_probes_at_entries_are_those_of_probes_at_sites(run_of, stubs, tmp_path):
    """The same frames of the same calls, wherever in its function a probe is."""
    with through("entries"):
        at_entries = run_merged("this", stubs, tmp_path)

    def functions(run: Run) -> dict[str, set[tuple[str, ...]]]:
        return {
            chain: {tuple(frame.function for frame in stack.frames) for stack in stacks}
            for chain, stacks in run.stacks.items()
        }

    assert functions(at_entries) == functions(run_of("this"))
    assert all(stack.complete for stacks in at_entries.stacks.values() for stack in stacks)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_library_without_frame_pointers(name, run_of):
    """Three functions deep and optimised: all of them, in their order, and then the script."""
    for stack in set(run_of(name).stacks["native"]):
        assert [(frame.function, frame.module) for frame in stack.frames[:4]] == [
            ("cudaMalloc", "libcudart.so.12"),
            ("native_inner", "libnative.so"),
            ("native_middle", "libnative.so"),
            ("native_outer", "libnative.so"),
        ]
        # Where ctypes is a part of a stripped interpreter, nothing shows between the two.
        foreign = between(stack, "native_outer", "native")
        assert [frame.kind for frame in foreign] == [FrameType.NATIVE] * len(foreign)
        assert "libnative.so" not in modules(foreign)
        assert not any(is_left_out(frame.function) for frame in foreign)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_real_library(name, run_of):
    """The C library's qsort, between two functions of C and between two of Python."""
    stacks = run_of(name).stacks
    for stack in set(stacks["native_qsort"]):
        sorting = between(stack, "native_compare", "native_sort")
        assert [frame.function for frame in stack.frames[:3]] == [
            "cudaMalloc",
            "native_inner",
            "native_compare",
        ]
        assert modules(sorting) == ["libc.so.6"]
        assert sorting[-1].function.startswith("qsort")
    for stack in set(stacks["from_qsort"]):
        called = between(stack, "compare", "from_qsort")
        assert [frame.kind for frame in called] == [FrameType.NATIVE] * len(called)
        assert modules(called).count("libc.so.6") == 1
        (sort,) = (frame for frame in called if frame.function.startswith("qsort"))
        assert sort.module == "libc.so.6"


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_another_real_library(name, run_of):
    """SQLite, which calls Python for each row: a library of a distribution, stripped."""
    stacks = run_of(name).stacks.get("from_sqlite")
    if stacks is None:
        pytest.skip("libsqlite3.so.0 is not there for this interpreter")
    for stack in set(stacks):
        called = between(stack, "row", "from_sqlite")
        assert [frame.kind for frame in called] == [FrameType.NATIVE] * len(called)
        sqlite = [frame for frame in called if frame.module.startswith("libsqlite3")]
        assert modules(called).count(sqlite[0].module) == 1
        assert sqlite[-1].function == "sqlite3_exec"


def test_stacks_are_few_and_walked_once(run_of):
    """
    2,200 calls have as many stacks as there are chains, or a few more, and most of them were
    known when they came.
    """
    run = run_of("this")
    ids = {stack.stack for stacks in run.stacks.values() for stack in stacks}

    assert len(CHAINS) <= len(ids) < 2 * len(CHAINS)
    assert run.status["memo_hits"] > 0.8 * run.status["resolved"]


def test_waits(stubs: StubLibraries, tmp_path):
    """Where a thread waits outside of CUDA, inside of a call, and in one that never returns."""
    script = WORKLOADS / "waits.py"
    recording = tmp_path / "run.otelgpu"
    python = interpreter("this")
    with Agent(
        None,
        [*python.command, script, stubs.runtime],
        flags=("--record", str(recording), "--spans", "full", "--otlp-file", os.devnull),
        env={"OTEL_GPU_CAPTURE_OPEN_CALL_LIMIT_S": "0.3"},
    ) as agent:
        lines = {line["what"]: line for line in (agent.next_line() for _ in range(3))}
        wait_until(lambda: has_open_call(recording), "an open call in the recording")
        os.kill(lines["hang"]["pid"], signal.SIGKILL)
        agent.wait()

    events = list(events_of(recording))
    stacks = {
        type(event): {
            tuple(python_frames(stack, script))
            for named, stack in with_stacks(events)
            if type(named) is type(event) and named.tid == lines["hang"]["tid"]
        }
        for event in events
    }
    # On a busy machine it has waited as long for other things, before its own code ran.
    waited = {
        tuple(frames): stack
        for stall, stack in with_stacks(events)
        if isinstance(stall, Stall) and stall.end_ktime_ns - stall.start_ktime_ns > 250_000_000
        if (frames := python_frames(stack, script))
    }
    pausing = waited["pause # pauses", "outer # in outer", "<module> # pause"]
    locking = waited["callback # locks", "inside # calls", "outer # in outer", "<module> # call"]
    assert "poll" in pausing.frames[0].function
    assert (pausing.complete, locking.complete) == (True, True)
    # The call that it waits in is on the stack by itself.
    assert "cudaDeviceSynchronize" in [frame.function for frame in locking.frames]
    assert stacks[OpenCall] == {("hang # hangs", "outer # in outer", "<module> # hang")}
    hanging = next(stack for named, stack in with_stacks(events) if isinstance(named, OpenCall))
    assert "cudaStreamSynchronize" in [frame.function for frame in hanging.frames]


def has_open_call(recording: Path) -> bool:
    try:
        return any(isinstance(event, OpenCall) for event in events_of(recording))
    except RecordingError:  # it is being written
        return False


@pytest.fixture(scope="module")
def last_call_of(stubs: StubLibraries, tmp_path_factory) -> Callable[[str], UserStack]:
    """The stack of the only call of last_words.py by an interpreter; one agent saw them all."""

    @cache
    def stacks() -> Mapping[str, UserStack]:
        recording = tmp_path_factory.mktemp("run") / "run.otelgpu"
        commands = {}
        for name in ONE_OF_EACH:
            with contextlib.suppress(Missing):
                command = [*find(name).command, WORKLOADS / "last_words.py"]
                commands[name] = ({}, [*command, stubs.runtime, library("native")])
        flags = ("--record", str(recording), "--spans", "full", "--otlp-file", os.devnull)
        with Agent(None, together(commands), flags=flags) as agent:
            agent.wait()
        told = with_stacks(list(events_of(recording)))
        calls = [stack for call, stack in told if isinstance(call, CudaCall)]
        return dict(zip(commands, calls, strict=True))

    def stack(name: str) -> UserStack:
        interpreter(name)
        return stacks()[name]

    return stack


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_process_that_dies_right_after_its_call(name, last_call_of):
    """Its stack is complete, although its code is gone."""
    stack = last_call_of(name)

    assert [frame.function for frame in stack.frames[:4]] == [
        "cudaMalloc",
        "native_inner",
        "native_middle",
        "native_outer",
    ]
    in_python = [frame for frame in stack.frames if frame.kind == FrameType.PYTHON]
    assert [(frame.function, frame.file, frame.line) for frame in in_python[:2]] == [
        ("last", "gone.py", 2),
        ("<module>", "gone.py", 5),
    ]
    assert stack.complete

"""Samples in, records of stacks out."""

import ctypes
import json
import os
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu import wire
from otel_gpu.procfs.mapped_files import FileId, MappedFile
from otel_gpu.stacks.resolver import MAX_SENT
from otel_gpu.stacks.symbols.native_names import Symbols
from otel_gpu.stacks.symbols.symbol_cache import SymbolCache
from otel_gpu.stacks.user_stacks import UserStacks
from otel_gpu.wire.frames import NativeStack
from tests.unit.stacks.records import (
    IMAGE_KTIME_NS,
    STACK_POINTER,
    block_stack,
    code,
    cpu_sample,
    cuda_call,
    sample,
    stall,
    user_stack_of,
)

PID = os.getpid()
LIBC = ctypes.CDLL(None)
QSORT, ABS, GETPID, LOOP = (
    ctypes.cast(function, ctypes.c_void_p).value
    for function in (LIBC.qsort, LIBC.abs, LIBC.getpid, LIBC.toupper)
)
PLACE = (QSORT + 5, STACK_POINTER, 0, 0)
# A return address, a word that the walk does not read, and so on; 0 is the end.
WORDS = (ABS + 4, 111, GETPID + 4, 222, 0)
SOURCE = compile("def step():\n  pass\nstep()\n", "train.py", "exec")
STEP = SOURCE.co_consts[0]


def of_libc(**values):
    return sample(**({"pid": PID, "place": PLACE, "words": WORDS} | values))


class Walker:
    """Walks frames of two words: the return address, and one that nobody reads."""

    def __init__(self):
        self.walks = 0
        self.uses_fp = True

    def unwind(self, registers, stack, find, returns: Mapping[int, int]):
        self.walks += 1
        words = memoryview(stack)[: len(stack) // 8 * 8].cast("Q")
        addresses, positions = [registers.instruction_pointer], []
        for position in range(0, len(words), 2):
            place = registers.stack_pointer + 8 * position
            positions.append(position)
            address = returns.get(place, words[position])
            if not address:
                return NativeStack(
                    tuple(addresses), True, "eh_frame", tuple(positions), self.uses_fp
                )
            addresses.append(address)
        return NativeStack(tuple(addresses), False, "eh_frame", tuple(positions))

    def unwind_to(self, _tails, registers, stack, find):
        return self.unwind(registers, stack, find, {}), None, ()


class Names:
    """Names a few functions, which have 16 bytes each; one is said to be the interpreter's."""

    malformed = 0

    def name(self, mapping, address):
        for start, name in (
            (QSORT, "qsort"),
            (ABS, "abs"),
            (GETPID, "getpid"),
            (LOOP, "_PyEval_EvalFrameDefault"),
        ):
            if start <= address < start + 16:
                return name, address - start
        return None

    def close(self):
        pass


class Told:
    """The records that came out, and what they say."""

    def __init__(self):
        self.walker = Walker()
        self.names = Names()
        self.stacks = UserStacks(lambda _pid: IMAGE_KTIME_NS, self.walker, self.names)
        self.bodies = {}

    def take(self, *taken):
        for record in taken:
            self.stacks.take(record)

    def resolve(self, record):
        """Return the id in the record that comes out last, and remember what was told."""
        *told, named = self.stacks.resolve(record)
        for stack in told:
            kind, _, size, *_ = wire.RECORD_HEADER.unpack_from(stack)
            assert (kind, size) == (wire.RECORD_USER_STACK, len(stack))
            body = json.loads(stack[wire.RECORD_HEADER.size :])
            self.bodies[body["stack"]] = body
        assert len(named) == len(record)
        return user_stack_of(named)

    def call(self, taken, **values):
        """Take a sample of this process and resolve the call that has it."""
        self.take(taken)
        return self.resolve(cuda_call(1_000, pid=PID, **values))

    def functions(self, stack):
        return [frame[1] for frame in self.bodies[stack]["frames"]]


@pytest.fixture(scope="module")
def real():
    """All parts as they are, but nothing is kept on disk."""
    stacks = UserStacks(lambda _pid: IMAGE_KTIME_NS, symbols=Symbols(SymbolCache(None)))
    yield stacks
    stacks.close()


@pytest.fixture
def told():
    told = Told()
    yield told
    told.stacks.close()


def test_a_call_gets_the_id_of_its_stack(told):
    """The stack is told before the call, which is otherwise as it was."""
    told.take(code(7, STEP, pid=PID), of_libc(python=[(7, 0, 1)], status=wire.PYTHON_COMPLETE))
    record = cuda_call(1_000, pid=PID)

    *before, named = told.stacks.resolve(record)

    (body,) = [json.loads(told_record[wire.RECORD_HEADER.size :]) for told_record in before]
    fields = wire.CUDA_CALL_RECORD.fields
    old = dict(zip(fields, wire.CUDA_CALL_RECORD.unpack(record), strict=True))
    new = dict(zip(fields, wire.CUDA_CALL_RECORD.unpack(named), strict=True))
    assert new == old | {"user_stack": body["stack"]}
    assert 0 < body["stack"] < 1 << 63
    frames = [tuple(frame[:5]) for frame in body["frames"]]
    assert frames == [
        ("native", "cudaMalloc", "", 0, ""),
        ("native", "qsort", "", 0, "libc.so.6"),
        ("native", "abs", "", 0, "libc.so.6"),
        ("native", "getpid", "", 0, "libc.so.6"),
        ("cpython", "step", "train.py", 1, ""),
    ]
    assert (body["native"], body["python"]) == ("eh_frame", "ok")
    assert body["complete"] is False  # there is a run of Python, and no loop for it


def test_an_id_depends_on_nothing_but_what_the_stack_shows(told):
    """This stack has this id, in every process, on every host, in every run."""
    told.take(code(7, SOURCE, pid=PID), code(8, STEP, pid=PID))

    stack = told.call(sample(pid=PID, place=(0, 0, 0, 0), python=[(8, 0, 0), (7, 0, 1)]), api=17)

    assert told.bodies[stack]["frames"] == [
        ["native", "cudaFree", "", 0, "", 0],
        ["native", "", "", 0, "", 0],
        ["cpython", "step", "train.py", 1, "", 0],
        ["cpython", "<module>", "train.py", 0, "", 0],
    ]
    assert stack == 6_319_993_595_098_682_128


def test_the_same_stack_is_told_once_and_not_walked_again(told):
    """The second call has the same registers, and the same words where the walk read some."""
    first = told.call(of_libc())
    second = told.call(of_libc(words=(ABS + 4, 333, GETPID + 4, 444, 0)))

    assert first == second
    assert told.walker.walks == 1
    assert len(told.bodies) == 1
    assert told.stacks.counts["memo_hits"] == 1
    assert told.stacks.counts["resolved"] == 2
    assert told.stacks.counts["distinct"] == 1


@pytest.mark.parametrize(
    "change",
    [
        {"words": (GETPID + 4, 111, GETPID + 4, 222, 0)},
        {"words": (ABS + 4, 111, 0)},
        {"place": (ABS + 5, STACK_POINTER, 0, 0)},
        {"place": (QSORT + 5, STACK_POINTER + 16, 0, 0)},
        {"place": (QSORT + 5, STACK_POINTER, 1, 0)},
        {"place": (QSORT + 5, STACK_POINTER, 0, 1)},
        {"returns": [(STACK_POINTER, QSORT + 9)]},
        {"python": [(7, 0, 1)]},
        {"status": wire.PYTHON_BROKEN},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_a_walk_depends_on_makes_it_another(told, change):
    """A word, a register, a replaced return address, a frame of Python: it is walked again."""
    told.take(code(7, STEP, pid=PID))
    told.call(of_libc())
    told.call(of_libc(**change))

    assert told.walker.walks == 2
    assert told.stacks.counts["memo_hits"] == 0


def test_a_frame_pointer_that_was_not_used(told):
    """A variable is in that register: the walk is the same."""
    told.walker.uses_fp = False
    for variable in range(10):
        told.call(of_libc(place=(QSORT + 5, STACK_POINTER, variable, 0)))

    assert told.walker.walks == 1


def test_another_api_makes_another_stack(told):
    """The API is the innermost frame."""
    malloc, free = told.call(of_libc()), told.call(of_libc(), api=17)

    assert malloc != free
    assert told.functions(malloc)[:2] == ["cudaMalloc", "qsort"]
    assert told.functions(free)[:2] == ["cudaFree", "qsort"]


def tick(told, **values):
    """Take a sample of this process and resolve the tick that has it."""
    told.take(of_libc(**values))
    return told.resolve(cpu_sample(1_000, pid=PID))


def test_ticks_in_the_same_functions_have_the_same_stack(told):
    """Wherever in them they are; it is told once, and merged once."""
    first = tick(told)
    others = {
        tick(told, place=(QSORT + 9, STACK_POINTER, 0, 0)),
        tick(told, place=(QSORT, STACK_POINTER, 0, 0)),
        tick(told, words=(ABS + 9, 111, GETPID + 8, 222, 0)),
    }

    assert others == {first}
    assert told.functions(first) == ["qsort", "abs", "getpid"]
    assert told.stacks.counts["distinct"] == 1
    assert told.stacks.counts["memo_hits"] == 3
    assert told.stacks.counts["resolved"] == 4


def test_a_tick_is_in_the_function_that_it_interrupts(told):
    """At its first instruction too; whoever called it was left before the return address."""
    assert told.functions(tick(told, words=(ABS + 1, 111, 0)))[:2] == ["qsort", "abs"]
    assert told.functions(tick(told, words=(ABS, 111, 0)))[:2] == ["qsort", ""]


@pytest.mark.parametrize(
    "change",
    [
        {"words": (GETPID + 4, 111, GETPID + 4, 222, 0)},
        {"words": (ABS + 4, 111, 0)},
        {"place": (ABS + 5, STACK_POINTER, 0, 0)},
        {"python": [(7, 0, 1)]},
        {"status": wire.PYTHON_BROKEN},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_a_tick_shows_makes_it_another_stack(told, change):
    told.take(code(7, STEP, pid=PID))

    assert tick(told) != tick(told, **change)
    assert told.stacks.counts["memo_hits"] == 0


def test_lines_of_python_distinguish_ticks(told):
    """The line is what a sample is for; instructions of one line are one place."""
    source = compile("def work():\n  a = 1; b = 2\n  c = 3\n", "train.py", "exec").co_consts[0]
    told.take(code(9, source, pid=PID))
    by_line = {}
    for offset in range(2, len(source.co_code) - 2, 2):
        stack = tick(told, python=[(9, offset, 1)])
        (line,) = [frame[3] for frame in told.bodies[stack]["frames"] if frame[1] == "work"]
        by_line.setdefault(line, set()).add(stack)

    assert by_line.keys() == {2, 3}
    assert all(len(stacks) == 1 for stacks in by_line.values())


@pytest.mark.parametrize(
    ("verdict", "function"), [(True, "work"), (False, "getpid"), (None, "getpid")]
)
def test_ticks_wait_until_their_interpreter_is_known(verdict, function):
    """For as long as it is in doubt, and no longer than the capture; a call does not wait."""
    source = compile("def work(): pass\n", "train.py", "exec").co_consts[0]
    trust = [None]
    stacks = UserStacks(
        lambda _pid: IMAGE_KTIME_NS, Walker(), Symbols(SymbolCache(None)), lambda _image: trust[0]
    )
    python = {"python": [(9, 2, 1)], "place": (GETPID, STACK_POINTER, 0, 0), "words": (0,)}
    try:
        stacks.take(code(9, source, pid=PID))
        stacks.take(of_libc(**python))
        assert stacks.resolve(cpu_sample(1_000, pid=PID)) == ()
        assert list(stacks.release()) == []
        trust[0] = verdict
        told, tick_record = stacks.release(is_last=verdict is None)
        stacks.take(of_libc(**python))
        call_told, _ = stacks.resolve(cuda_call(1_000, pid=PID))
    finally:
        stacks.close()

    assert tick_record.startswith(wire.RECORD_CPU_SAMPLE.to_bytes(2, "little"))
    assert function.encode() in told
    assert (b"work" in told) == (b"work" in call_told) == (verdict is True)
    assert list(stacks.release()) == []


def test_processes_share_stacks(told):
    """What a child does as its parent did has the same id, and is not told again."""
    child = 4_194_304
    stack = told.call(of_libc())
    told.stacks.processes.inherit((PID, IMAGE_KTIME_NS), (child, IMAGE_KTIME_NS))
    told.take(of_libc(pid=child))

    assert told.resolve(cuda_call(1_000, pid=child)) == stack
    assert told.walker.walks == 2
    assert told.stacks.counts["distinct"] == 1


def test_a_call_was_left_before_its_address(told):
    """
    A call returns to the instruction after it, which may be of the next function; a thread
    that waits goes on at its address itself. Both show where they are in their library.
    """
    call = told.call(of_libc(place=(QSORT, STACK_POINTER, 0, 0), words=(0,)))
    told.take(of_libc(place=(QSORT, STACK_POINTER, 0, 0), words=(0,)))
    waits = told.resolve(stall(1_000, pid=PID))

    assert told.functions(call) == ["cudaMalloc", ""]
    assert told.functions(waits) == ["qsort"]
    (_, before), (at,) = told.bodies[call]["frames"], told.bodies[waits]["frames"]
    assert before[5] == at[5] - 1
    assert 0 < at[5] < QSORT


def test_the_library_of_the_call(told):
    """Where the process maps one CUDA runtime, the call names it."""
    cudart = MappedFile(PID, FileId(8, 1), 0x1000, 0x2000, "/opt/cuda/libcudart.so.12")
    told.stacks.processes.learn((PID, IMAGE_KTIME_NS), [cudart])

    stack = told.call(of_libc())

    assert told.bodies[stack]["frames"][0] == ["native", "cudaMalloc", "", 0, "libcudart.so.12", 0]


def test_a_library_that_was_loaded_meanwhile(told):
    """Addresses may mean something else then: the walk is made again."""
    told.stacks.processes.learn((PID, IMAGE_KTIME_NS), [])
    told.call(of_libc())
    library = MappedFile(PID, FileId(8, 1), 0x1000, 0x2000, "/opt/extension.so")
    told.stacks.processes.learn((PID, IMAGE_KTIME_NS), [library])
    told.call(of_libc())

    assert told.walker.walks == 2


def test_code_that_was_made_at_run_time(told):
    """
    A stack through code that is no file's is believed for five seconds; where that code is
    says nothing, as it is another place each time.
    """
    anywhere = of_libc(words=(0x1234_5678, 0, 0))
    stack = told.call(anywhere, ktime_ns=1_000)
    told.call(anywhere, ktime_ns=4_000_000_000)
    assert told.walker.walks == 1

    told.call(anywhere, ktime_ns=6_000_000_000)
    assert told.walker.walks == 2
    assert told.bodies[stack]["frames"][2] == ["native", "", "", 0, "", 0]


def test_a_walk_that_ended_early(told):
    """May have met a library that was not known yet: it is believed for a second."""
    early = of_libc(words=(ABS + 4, 111))
    told.call(early, ktime_ns=1_000)
    told.call(early, ktime_ns=900_000_000)
    assert told.walker.walks == 1

    told.call(early, ktime_ns=1_100_000_000)
    assert told.walker.walks == 2


def test_a_name_that_is_not_known_may_become_known(told):
    """A stack with a function without a name is believed for a minute."""
    nameless = of_libc(words=(QSORT + 20, 0, 0))
    told.call(nameless, ktime_ns=1_000)
    told.call(nameless, ktime_ns=59_000_000_000)
    assert told.walker.walks == 1

    told.call(nameless, ktime_ns=61_000_000_000)
    assert told.walker.walks == 2


def test_code_objects_that_come_late(told):
    """A stack with Python code that is not known yet is not remembered as what it is."""
    unknown = told.call(of_libc(python=[(7, 0, 1)]))
    told.take(code(7, STEP, pid=PID))
    known = told.call(of_libc(python=[(7, 0, 1)]))

    assert told.functions(unknown)[-1] == ""
    assert told.functions(known)[-1] == "step"


def test_a_loop_without_a_frame(told):
    """
    Two frames that stand for callers in C, one after the other, have a loop without a
    frame between them.
    """
    told.take(code(7, STEP, pid=PID))
    words = (LOOP + 4, 111, ABS + 4, 222, LOOP + 8, 333, GETPID + 4, 444, 0)
    first, second = STACK_POINTER + 8 * 3, STACK_POINTER + 8 * 7

    stack = told.call(of_libc(words=words, python=[(first, 0, 2), (7, 0, 1), (second, 0, 2)]))

    assert told.functions(stack) == ["cudaMalloc", "qsort", "abs", "step", "getpid"]
    assert told.bodies[stack]["complete"]


def test_no_sample_no_stack(told):
    """A call whose sample was lost has no stack, and is counted; one that had none is not."""
    assert told.resolve(cuda_call(1_000)) == 0
    assert told.resolve(cuda_call(0)) == 0
    assert told.resolve(stall(1_000)) == 0

    assert told.stacks.counts["without_sample"] == 2
    assert told.stacks.counts["resolved"] == 0


def test_a_sample_of_another_thread_is_not_its(told):
    """Tokens are unique within a thread only."""
    told.take(of_libc(tid=44))

    assert told.resolve(cuda_call(1_000, pid=PID)) == 0


def test_a_wait_that_is_named_twice(told):
    """A stall of its own, and later an interval of a call: both have the stack."""
    told.take(of_libc())
    first = told.resolve(stall(1_000, pid=PID))
    second = told.resolve(stall(1_000, pid=PID, ktime_ns=3_000))

    assert first == second != 0
    assert told.walker.walks == 1
    assert told.stacks.counts["without_sample"] == 0


def test_a_wait_has_no_call_on_top(told):
    """What it waits in is on the stack itself."""
    told.take(of_libc())

    stack = told.resolve(stall(1_000, pid=PID))

    assert told.functions(stack) == ["qsort", "abs", "getpid"]
    assert told.bodies[stack]["complete"]


def test_a_call_that_has_not_returned(told):
    """The sample that the kernel side keeps of the thread's latest wait is its stack."""
    image = (PID, IMAGE_KTIME_NS)
    stack, before = told.stacks.resolve_open(of_libc(token=900), image, 43, 500)
    again, nothing = told.stacks.resolve_open(of_libc(token=950), image, 43, 500)

    assert stack == again != 0
    assert (len(before), len(nothing)) == (1, 0)


@pytest.mark.parametrize(
    "kept",
    [b"", of_libc(token=499), of_libc(tid=44), of_libc(program_ktime_ns=78), of_libc(pid=PID + 1)],
    ids=["nothing", "older", "thread", "image", "process"],
)
def test_a_wait_that_is_not_of_the_call(told, kept):
    """One before the call, or of whoever had that place in the map before, is not its stack."""
    assert told.stacks.resolve_open(kept, (PID, IMAGE_KTIME_NS), 43, 500) == (0, ())


def test_samples_that_nobody_names_are_dropped_by_age(told):
    """After a minute."""
    second_ns = 1_000_000_000
    told.take(of_libc(token=1), of_libc(token=2))
    told.take(of_libc(token=1 + 60 * second_ns))

    assert told.stacks.counts["unused"] == 1
    assert told.resolve(stall(1, pid=PID)) == 0
    assert told.resolve(stall(2, pid=PID)) != 0


def test_samples_that_nobody_names_are_dropped_by_size(told):
    """Of 300 samples with 32 KiB of stack each, as many are kept as fit 4 MiB."""
    for token in range(300):
        told.take(of_libc(token=token, room=32768))

    assert told.stacks.counts["unused"] == 300 - 127
    assert told.resolve(stall(299, pid=PID)) != 0


def test_a_stack_that_was_not_named_for_long_is_told_again(told):
    """Whoever listens does not have to remember more stacks than we do."""
    first = told.call(of_libc())
    for number in range(MAX_SENT):
        told.call(sample(pid=PID, place=(0, 0, 0, 0), python=[(7, 2 * number, 1)]))
        told.take(code(7, compile("0", f"{number}.py", "exec"), pid=PID))
    before = told.stacks.counts["distinct"]

    assert told.call(of_libc()) == first
    assert told.stacks.counts["distinct"] == before + 1


def test_a_process_that_ended(told):
    """Its last records find what was known of it, and some time later nothing is kept."""
    stack = told.call(of_libc())
    told.stacks.processes.end((PID, IMAGE_KTIME_NS))
    assert told.call(of_libc(words=(ABS + 4, 0, 0))) not in (0, stack)

    told.stacks.drop_ended(1e12)
    nameless = told.call(of_libc(words=(0,)))
    assert told.functions(nameless) == ["cudaMalloc", "qsort"]


def test_samples_of_a_process_that_ended_go_with_it(told):
    """Nobody will name them; those of other processes stay."""
    told.take(of_libc(token=1), of_libc(token=2, pid=PID + 1))
    told.stacks.processes.end((PID, IMAGE_KTIME_NS))
    told.stacks.drop_ended(1e12)

    assert told.stacks.counts["unused"] == 1
    assert told.resolve(stall(1, pid=PID)) == 0
    assert told.resolve(stall(2, pid=PID + 1)) != 0


def test_a_wait_that_was_named_is_forgotten_by_age(told):
    """After a minute, by the samples that came since."""
    told.take(of_libc(token=1))
    assert told.resolve(stall(1, pid=PID)) != 0
    told.take(of_libc(token=1 + 60_000_000_000))
    told.stacks.drop_ended()

    assert told.resolve(stall(1, pid=PID)) == 0


def test_code_objects_of_an_image_that_no_process_is_any_more(told):
    """The last ones may come when all else of the image is gone, and no end is reported then."""
    told.take(code(7, STEP, pid=PID))
    told.stacks.end_others({PID: IMAGE_KTIME_NS})
    told.stacks.drop_ended(1e12)
    known = told.functions(told.call(of_libc(python=[(7, 0, 1)])))
    told.stacks.end_others({})
    told.stacks.drop_ended(1e12)

    assert "step" in known
    assert "step" not in told.functions(told.call(of_libc(python=[(7, 0, 1)])))


def test_records_that_are_not_understood(told):
    """Are counted, and do no harm."""
    told.take(b"\x09\x00", of_libc()[:79], b"\x0a\x00garbage")

    assert told.stacks.counts["rejected"] == 2
    assert told.stacks.counts["code_rejected"] == 1


def test_names_that_are_given_up_are_counted(told):
    """
    378 code objects of 66,476 bytes each fit 24 MiB; of the first 22 nothing is known any more.
    """
    source = compile("", "f.py", "exec").replace(
        co_name="f", co_qualname="f", co_linetable=b"\xff" * 16384
    )
    for line in range(1, 401):
        told.take(code(line, source.replace(co_firstlineno=line), pid=PID))

    assert told.stacks.counts["code_forgotten"] == 22
    assert told.stacks.counts["code_rejected"] == 0


def test_lines_of_perf_maps_that_name_nothing_are_counted(told):
    """They are found while functions are named."""
    assert told.stacks.counts["perf_map_malformed"] == 0
    told.names.malformed = 3

    assert told.stacks.counts["perf_map_malformed"] == 3


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=400), st.binary(min_size=2048, max_size=2400), st.booleans())
def test_hostile_samples(start, middle, is_call):
    """Whatever is in a sample of a living process, it gives a stack or none."""
    told = Told()
    honest = of_libc()
    header = honest[: wire.RECORD_HEADER.size]
    told.take(header + (start + middle + middle)[: len(honest) + 500])
    record = cuda_call(1_000, pid=PID) if is_call else stall(1_000, pid=PID)

    stack = told.resolve(record)

    assert 0 <= stack < 1 << 63
    assert stack in told.bodies or stack == 0
    told.stacks.close()


CODE = st.sampled_from([QSORT, ABS + 4, GETPID, LOOP + 9])
WORD = st.one_of(
    CODE,
    st.integers(STACK_POINTER - 16, STACK_POINTER + 400),
    st.integers(0, (1 << 64) - 1),
    st.sampled_from([0, 1 << 63, (1 << 64) - 1]),
)


@settings(max_examples=200, deadline=None)
@given(
    place=st.tuples(st.one_of(CODE, WORD), WORD, WORD, WORD),
    words=st.lists(WORD, max_size=40),
    returns=st.lists(st.tuples(WORD, WORD), max_size=8),
    python=st.lists(st.tuples(WORD, st.integers(0, (1 << 32) - 1), st.integers(0, 3)), max_size=20),
    status=st.integers(0, 9),
)
def test_hostile_samples_and_the_real_parts(real, place, words, returns, python, status):
    """Neither does the unwinder come to harm, nor whoever names what it found."""
    record = sample(
        pid=PID, place=place, words=words, returns=returns, python=python, status=status
    )
    real.take(record)

    *before, named = real.resolve(cuda_call(1_000, pid=PID))

    assert 0 < user_stack_of(named) < 1 << 63
    for told_record in before:
        body = json.loads(told_record[wire.RECORD_HEADER.size :])
        assert body["stack"] == user_stack_of(named)
        assert len(body["frames"]) <= 256


def test_a_block_was_allocated_where_its_call_would_return(told):
    """Its key says who asked for it: no API is on top, and the caller's call is before its address."""
    told.take(of_libc(place=(QSORT, STACK_POINTER, 0, 0)))
    told.take(of_libc(token=1_001))

    before = told.resolve(block_stack(1_000, pid=PID))
    inside = told.resolve(block_stack(1_001, pid=PID))

    assert told.functions(before)[0] == ""
    assert told.functions(inside)[0] == "qsort"


START = GETPID + 9


@pytest.mark.parametrize(
    ("addresses", "complete", "is_apart"),
    [
        # Behind the two of the chain: nothing, or where a thread or process begins.
        ((1, ABS, GETPID), True, True),
        ((1, ABS, GETPID, START), True, True),
        ((1, ABS, GETPID, START, 16), True, True),
        ((1, ABS, GETPID, START, START, START, START), True, False),
        # A function is left out, in the middle or in the end, or nobody knows.
        ((1, 16, ABS, GETPID), True, False),
        ((1, ABS, 16, GETPID), True, False),
        ((1, ABS, GETPID, 16), True, False),
        ((1, ABS, GETPID, 16, START), True, False),
        ((1, ABS), True, False),
        ((1, ABS, GETPID), False, False),
    ],
)
def test_a_chain_of_frame_pointers_tells_stacks_apart_if_it_is_all_of_one(
    told, addresses, complete, is_apart
):
    """All that is behind it may be of the C library, and one function of the program before all."""
    words = (STACK_POINTER + 16, ABS, 0, GETPID)
    place = (1, STACK_POINTER, STACK_POINTER, 0)
    told.walker.unwind = lambda *_, **_named: NativeStack(addresses, complete, "eh_frame")
    told.take(of_libc(words=words, place=place, status=wire.PYTHON_NO_THREAD))
    told.take(of_libc(token=1_001, words=words, place=place, status=wire.PYTHON_COMPLETE))

    assert told.stacks.tells_stacks_apart(block_stack(1_000, pid=PID)) is is_apart
    # Where there is Python, its frames do. And of what is lost, nothing is known.
    assert told.stacks.tells_stacks_apart(block_stack(1_001, pid=PID))
    assert told.stacks.tells_stacks_apart(block_stack(1_002, pid=PID))

"""The table of user stacks, and where in a program a stack was."""

import pytest

from otel_gpu.enrich import stack_table as stacks
from otel_gpu.enrich.identity.identities import CallStack
from otel_gpu.enrich.stack_table import StackTable, find_place
from otel_gpu.limits.caches import Caches
from otel_gpu.stacks.resolver import MAX_SENT
from otel_gpu.stacks.user_stacks import _MAX_NAMED
from otel_gpu.wire.frames import Frame
from otel_gpu.wire.symbol_records import UserStack

MAIN = Frame("cpython", "main", "/app/train.py", 102)
STEP = Frame("cpython", "step", "/app/train.py", 74)
EMPTY = Frame("native", "at::empty", module="libtorch.so")


def told(stack, *frames):
    return UserStack(1, stack, frames, True, "eh_frame", "ok")


CUT = Frame("cut", "31 frames left out")


def native(function, module):
    return Frame("native", function, module=module)


def python(function, file="/app/train.py", line=7):
    return Frame("cpython", function, file, line)


def test_a_stack_is_found_by_its_id():
    """All that was said of it, and its place."""
    table = StackTable()
    table.learn(UserStack(1, 9, (EMPTY, STEP, MAIN), False, "frame_pointer", "cut"))

    assert table.find(9) == CallStack(9, (EMPTY, STEP, MAIN), False, "frame_pointer", "cut", STEP)
    assert table.find(8) is None
    assert table.find(0) is None


def test_equal_frames_are_kept_once():
    """Most stacks share most of their frames."""
    table = StackTable()
    table.learn(told(1, STEP, MAIN))
    table.learn(told(2, EMPTY, Frame(*STEP), Frame(*MAIN)))

    assert table.find(1).frames[1] is table.find(2).frames[2]


def test_texts_of_frames_are_kept_once():
    """Frames of one function differ by their lines, and those of one library by their functions."""
    table = StackTable()
    # As JSON brings them.
    table.learn(
        told(1, *(Frame("cpython", *map(text, ("step", "/app/train.py")), n) for n in (1, 2)))
    )
    table.learn(told(2, *(Frame("native", name, "", 0, text("libtorch.so")) for name in "ab")))
    (first, second), (one, other) = table.find(1).frames, table.find(2).frames

    assert first.function is second.function
    assert first.file is second.file
    assert one.module is other.module


def text(text):
    """An object of its own."""
    return "".join(list(text))


def test_a_stack_that_is_told_again_is_the_new_one():
    """A recording may use an id twice; the latest holds."""
    table = StackTable()
    table.learn(told(1, STEP, MAIN))
    first = table.find(1)
    table.learn(told(1, MAIN))

    assert table.find(1).frames == (MAIN,)
    assert first.frames == (STEP, MAIN)


def test_what_was_not_named_for_the_longest_time_is_forgotten(monkeypatch):
    """Naming keeps a stack, for calls as for reasons; only the number of others counts."""
    monkeypatch.setattr(stacks, "MAX_STACKS", 3)
    table = StackTable()
    for number in (1, 2, 3):
        table.learn(told(number, STEP))
    table.find(1)
    table.rules_of(2)
    table.learn(told(4, STEP))

    assert [number for number in range(5) if table.find(number)] == [1, 2, 4]


def test_the_agent_forgets_sooner():
    """
    It tells a stack again after this many others; waits name theirs twice, the second time
    without being counted by it.
    """
    assert stacks.MAX_STACKS >= stacks.LEAST_STACKS >= MAX_SENT + _MAX_NAMED


def test_the_agents_own_table_shrinks_to_what_it_needs(monkeypatch):
    """Where memory is short those go that were not named for the longest time, with their names."""
    caches = Caches()
    monkeypatch.setattr(stacks, "CACHES", caches)
    monkeypatch.setattr(stacks, "LEAST_STACKS", 60)
    table = StackTable()
    for number in range(1, 101):
        table.learn(told(number, python(f"f{number}")))
    caches.keep_within(50_000)

    kept = [number for number in range(1, 101) if table.find(number)]
    assert kept == list(range(101 - len(kept), 101))
    assert 60 <= len(kept) < 70
    assert len(table._frames) == len(kept)
    caches.keep_within(1_000)
    assert len(table._stacks) == 60


def test_a_writer_that_forgets_as_many_is_never_misunderstood(monkeypatch):
    """
    Whoever tells a stack again after as many others as the table holds has every stack
    found: the agent does so.
    """
    monkeypatch.setattr(stacks, "MAX_STACKS", 16)
    table = StackTable()
    remembered = []
    for number in range(5_000):
        stack = 1 + (number * number * 7 + number // 3) % 29
        if stack in remembered:
            remembered.remove(stack)
        else:
            table.learn(told(stack, python(f"f{stack}")))
        remembered.append(stack)
        del remembered[:-16]
        assert table.find(stack).frames[0].function == f"f{stack}"


def test_long_names_are_bounded_together(monkeypatch):
    """A forged recording of ever new names costs no more memory than the limit."""
    monkeypatch.setattr(stacks, "_MAX_CHARACTERS", 10_000)
    table = StackTable()
    for number in range(1, 1_001):
        table.learn(told(number, python(f"{number:500}"), STEP))
        assert table._characters <= 10_000
        assert table.find(number) is not None

    assert len(table._stacks) < 20
    assert table._characters >= sum(len(frame.function) for frame in table._frames)


def test_names_of_forgotten_stacks_do_not_count(monkeypatch):
    """What is known is kept as long as it fits, whatever was there before."""
    monkeypatch.setattr(stacks, "_MAX_CHARACTERS", 10_000)
    monkeypatch.setattr(stacks, "MAX_STACKS", 3)
    table = StackTable()
    for number in range(1, 1_001):
        table.learn(told(number, python(f"{number:500}")))

    assert [number for number in range(1_001) if table.find(number)] == [998, 999, 1000]


def test_a_cleared_table_knows_nothing():
    """Another capture has its own stacks."""
    table = StackTable()
    table.learn(told(1, STEP))
    table.clear()

    assert table.find(1) is None
    assert table._characters == 0


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        ((native("cudaMalloc", "libcudart.so.12"), EMPTY, STEP, MAIN), STEP),
        ((STEP, MAIN), STEP),
        # Frozen into a program.
        (
            (
                python("Condition.wait", "threading.py", 327),
                python("Queue.get", "queue.py", 171),
                python("train", "waiter.py", 15),
                python("<module>", "waiter.py", 19),
            ),
            python("train", "waiter.py", 15),
        ),
        (
            (
                python(
                    "Connection._recv", "/usr/lib/python3.11/multiprocessing/connection.py", 378
                ),
                python("_find_and_load", "<frozen importlib._bootstrap>", 1176),
                python("forward", "/venv/lib/python3.11/site-packages/torch/nn/linear.py", 114),
                MAIN,
            ),
            python("forward", "/venv/lib/python3.11/site-packages/torch/nn/linear.py", 114),
        ),
        (
            (python("wait", "/usr/lib/python3.11/threading.py", 320), native("f", "libx.so")),
            python("wait", "/usr/lib/python3.11/threading.py", 320),
        ),
        (
            (
                native("cuMemAlloc_v2", "libcuda.so.535.104.05"),
                native("cudaMalloc", "libcudart-9335f6a2.so.12"),
                native("cublasCreate_v2", "libcublas.so.12"),
                native("ffi_call", "libffi.so.8.1.2"),
                native("_call", "_ctypes.cpython-311-x86_64-linux-gnu.so"),
                native("clock_nanosleep", "libc.so.6"),
                native("allocate", "trainer"),
                native("main", "trainer"),
                native("__libc_start_main", "libc.so.6"),
            ),
            native("allocate", "trainer"),
        ),
        ((native("", "libcustom.so"), native("main", "trainer")), native("", "libcustom.so")),
        (
            (native("recurse", "trainer"), CUT, native("main", "trainer")),
            native("recurse", "trainer"),
        ),
    ],
)
def test_the_place_is_the_innermost_code_of_the_program(frames, place):
    """
    Python's first frame that is not the standard library's; without Python, the first that is
    no CUDA, ctypes or C library.
    """
    assert find_place(frames) == place


@pytest.mark.parametrize(
    "frames",
    [
        (),
        (native("cudaMalloc", "libcudart.so.12"),),
        # Python that is not known: what called it is not where it was.
        (python("", "", 0), STEP),
        (native("_PyEval_EvalFrameDefault", "python3.11"), native("main", "embedder")),
        (native("PyObject_Call", "libpython3.12.so.1.0"), native("main", "embedder")),
        # The frames that would tell were left out.
        (native("cudaMalloc", "libcudart.so.12"), CUT, STEP),
        (native("recurse", "libx.so"), CUT, STEP),
        # Made at run time, and nobody said what it is.
        (Frame("native", "", address=0x7F00_0000_1000), native("main", "trainer")),
    ],
)
def test_a_place_that_is_not_known_is_none(frames):
    """No frame is better than one that only looks like the right one."""
    assert find_place(frames) is None


def test_python_is_found_behind_a_native_frame_without_a_name():
    """Code of a JIT compiler does not hide the Python that called it."""
    assert find_place((Frame("native", "", address=1), STEP)) == STEP

"""Python frames among native ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu import wire
from otel_gpu.stacks.merging import MAX_FRAMES, merge
from otel_gpu.stacks.python.interpreter_functions import LEFT_OUT
from otel_gpu.wire.frames import Frame, FrameType, MergedStack, NativeStack, PythonStack

LIBPYTHON = "libpython3.11.so.1.0"
CUDA_MALLOC = Frame(FrameType.NATIVE, "cudaMalloc", module="libcudart.so.12")
# What runs a script, from its module's loop on outwards.
START = [
    ("PyEval_EvalCode", LIBPYTHON),
    ("run_eval_code_obj", LIBPYTHON),
    ("run_mod", LIBPYTHON),
    ("pyrun_file", LIBPYTHON),
    ("_PyRun_SimpleFileObject", LIBPYTHON),
    ("Py_RunMain", LIBPYTHON),
    ("Py_BytesMain", LIBPYTHON),
    ("__libc_start_call_main", "libc.so.6"),
    ("__libc_start_main_impl", "libc.so.6"),
    ("_start", "python3.11"),
]
SHOWN_START = [
    "__libc_start_call_main (libc.so.6)",
    "__libc_start_main_impl (libc.so.6)",
    "_start (python3.11)",
]


def interpreter(*functions):
    return [(function, LIBPYTHON) for function in functions]


def merged(
    natives,
    runs,
    *,
    complete=True,
    status=wire.PYTHON_COMPLETE,
    closed=True,
    call=None,
    places=(),
):
    """
    Merge native (function, module) pairs with runs of Python functions, innermost first.

    ``closed`` is false when the outermost run's end was not seen. If there are ``places``,
    each native frame has 16 bytes of the stack, the innermost those from 1600 on.
    """
    frames = [
        Frame(FrameType.NATIVE, function, module=module, address=0x1000 + position)
        for position, (function, module) in enumerate(natives)
    ]
    tops = tuple(1600 + 16 * position for position in range(len(frames))) if places else ()
    walk = NativeStack(tuple(range(len(frames))), complete, "eh_frame", stack_pointers=tops)
    python_frames, entries = [], []
    for run in runs:
        python_frames += [Frame(FrameType.PYTHON, name, "train.py", line) for name, line in run]
        entries.append(len(python_frames) - 1)
    if not closed:
        entries.pop()
    python = PythonStack(tuple(python_frames), tuple(entries), status, tuple(places))
    return merge(walk, frames, python, call)


def shown(stack: MergedStack) -> list[str]:
    return [
        f"{frame.function}:{frame.line}"
        if frame.kind == FrameType.PYTHON
        else f"{frame.function} ({frame.module})"
        for frame in stack.frames
    ]


def test_a_call_from_an_extension():
    """A reader sees the script, the extension and the CUDA call, and who started it all."""
    stack = merged(
        [
            ("allocate", "extension.so"),
            ("extension_allocate", "extension.so"),
            *interpreter("cfunction_vectorcall_FASTCALL", "PyObject_Vectorcall"),
            *interpreter("_PyEval_EvalFrameDefault", "_PyEval_Vector"),
            *START,
        ],
        [[("step", 7), ("<module>", 12)]],
        call=CUDA_MALLOC,
    )

    assert shown(stack) == [
        "cudaMalloc (libcudart.so.12)",
        "allocate (extension.so)",
        "extension_allocate (extension.so)",
        "step:7",
        "<module>:12",
        *SHOWN_START,
    ]
    assert (stack.complete, stack.native, stack.python) == (True, "eh_frame", "ok")


def test_before_3_11_every_python_function_has_a_loop():
    """Each loop is replaced by one frame, and what leads from one to the next is left out."""
    stack = merged(
        [
            ("extension_allocate", "extension.so"),
            *interpreter("cfunction_vectorcall_FASTCALL", "_PyEval_EvalFrameDefault"),
            *interpreter("_PyEval_EvalFrame", "_PyFunction_Vectorcall"),
            *interpreter("_PyEval_EvalFrameDefault.cold", "function_code_fastcall"),
            *interpreter("call_function", "_PyEval_EvalFrameDefault"),
            *START,
        ],
        [[("inner", 3)], [("middle", 6)], [("<module>", 9)]],
    )

    assert shown(stack) == [
        "extension_allocate (extension.so)",
        "inner:3",
        "middle:6",
        "<module>:9",
        *SHOWN_START,
    ]
    assert stack.complete


def test_a_callback_through_ctypes_and_the_c_library():
    """Python → ctypes → libffi → qsort → libffi → ctypes → Python (as 3.13 does it)."""
    stack = merged(
        [
            *interpreter("PyObject_Vectorcall", "_PyEval_EvalFrameDefault"),
            *interpreter("PyObject_Vectorcall"),
            ("_CallPythonObject", "_ctypes.so"),
            ("closure_fcn", "_ctypes.so"),
            ("", "libffi.so.8"),
            ("msort_with_tmp", "libc.so.6"),
            ("qsort_r", "libc.so.6"),
            ("ffi_call", "libffi.so.8"),
            ("_ctypes_callproc", "_ctypes.so"),
            ("PyCFuncPtr_call", "_ctypes.so"),
            *interpreter("_PyObject_MakeTpCall", "_PyEval_EvalFrameDefault", "_PyEval_Vector"),
            *START,
        ],
        [[("compare", 4)], [("sort", 9), ("<module>", 11)]],
        call=CUDA_MALLOC,
    )

    assert shown(stack) == [
        "cudaMalloc (libcudart.so.12)",
        "compare:4",
        "_CallPythonObject (_ctypes.so)",
        "closure_fcn (_ctypes.so)",
        " (libffi.so.8)",
        "msort_with_tmp (libc.so.6)",
        "qsort_r (libc.so.6)",
        "ffi_call (libffi.so.8)",
        "_ctypes_callproc (_ctypes.so)",
        "PyCFuncPtr_call (_ctypes.so)",
        "sort:9",
        "<module>:11",
        *SHOWN_START,
    ]
    assert stack.complete


def test_a_generator_that_c_resumes():
    """sum() resumes a generator: its frame runs in a loop of its own, below it is sum's."""
    stack = merged(
        [
            ("extension_allocate", "extension.so"),
            *interpreter("cfunction_call", "_PyEval_EvalFrameDefault", "gen_send_ex2"),
            *interpreter("gen_iternext", "builtin_sum_impl", "cfunction_vectorcall_FASTCALL"),
            *interpreter("PyObject_Vectorcall", "_PyEval_EvalFrameDefault", "_PyEval_Vector"),
            *START,
        ],
        [[("batches", 5)], [("<module>", 20)]],
    )

    assert shown(stack) == [
        "extension_allocate (extension.so)",
        "batches:5",
        f"builtin_sum_impl ({LIBPYTHON})",
        "<module>:20",
        *SHOWN_START,
    ]


def test_a_task_of_asyncio():
    """asyncio's extension sends to the coroutine, whose await stays in one loop."""
    stack = merged(
        [
            *interpreter("_PyEval_EvalFrameDefault", "gen_send_ex2", "PyGen_am_send"),
            ("task_step_impl", "_asyncio.so"),
            ("TaskStepMethWrapper_call", "_asyncio.so"),
            *interpreter("_PyObject_MakeTpCall", "context_run", "_PyEval_EvalFrameDefault"),
            *START,
        ],
        [[("copy", 2), ("train", 5)], [("_run", 84), ("run_once", 1936), ("<module>", 9)]],
    )

    assert shown(stack) == [
        "copy:2",
        "train:5",
        "task_step_impl (_asyncio.so)",
        "TaskStepMethWrapper_call (_asyncio.so)",
        "_run:84",
        "run_once:1936",
        "<module>:9",
        *SHOWN_START,
    ]


def test_a_thread_of_python():
    """How the interpreter starts a thread is left out, how the C library does is not."""
    stack = merged(
        [
            *interpreter("_PyEval_EvalFrameDefault", "method_vectorcall", "thread_run"),
            *interpreter("pythread_wrapper"),
            ("start_thread", "libc.so.6"),
            ("clone3", "libc.so.6"),
        ],
        [[("load", 3), ("run", 975), ("_bootstrap", 995)]],
    )

    assert shown(stack) == [
        "load:3",
        "run:975",
        "_bootstrap:995",
        "start_thread (libc.so.6)",
        "clone3 (libc.so.6)",
    ]
    assert stack.complete


@pytest.mark.parametrize(
    ("status", "name"), [(wire.PYTHON_NONE, "none"), (wire.PYTHON_NO_THREAD, "no_thread")]
)
def test_a_thread_without_python(status, name):
    """A thread that C started, or a program without an interpreter, has native frames only."""
    stack = merged(
        [("worker", "engine.so"), ("start_thread", "libc.so.6"), ("clone3", "libc.so.6")],
        [],
        status=status,
        call=CUDA_MALLOC,
    )

    assert shown(stack) == [
        "cudaMalloc (libcudart.so.12)",
        "worker (engine.so)",
        "start_thread (libc.so.6)",
        "clone3 (libc.so.6)",
    ]
    assert (stack.complete, stack.python) == (True, name)


def test_an_interpreter_that_nobody_knows():
    """Loops whose frames cannot be read stay as they are: a stack with a hole says so."""
    natives = [
        ("extension_allocate", "extension.so"),
        *interpreter("cfunction_call", "_PyEval_EvalFrameDefault", "PyEval_EvalCode"),
    ]

    stack = merged(natives, [], status=wire.PYTHON_NONE)

    assert shown(stack) == [f"{function} ({module})" for function, module in natives]
    assert not stack.complete


def test_python_alone():
    """Where the native walk takes no step, the frames of Python follow what is known."""
    frames = (
        Frame(FrameType.PYTHON, "step", "train.py", 7),
        Frame(FrameType.PYTHON, "<module>", "train.py", 9),
    )

    stack = merge(
        NativeStack((), complete=False, method="none"),
        (),
        PythonStack(frames, (1,), wire.PYTHON_COMPLETE),
        CUDA_MALLOC,
    )

    assert stack == MergedStack((CUDA_MALLOC, *frames), complete=False, native="none", python="ok")


def test_tail_calls_of_3_14():
    """
    The function of an instruction and the loop that began are one loop, also where the
    instruction calls the next loop directly.
    """
    stack = merged(
        [
            ("extension_allocate", "extension.so"),
            ("_TAIL_CALL_CALL_BUILTIN_O.llvm.77", "python3.14"),
            ("_PyEval_EvalFrameDefault", "python3.14"),
            ("_TAIL_CALL_CALL_KW", "python3.14"),
            ("_PyEval_EvalFrameDefault", "python3.14"),
            ("_PyEval_Vector", "python3.14"),
            ("_start", "python3.14"),
        ],
        [[("inner", 3)], [("<module>", 9)]],
    )

    assert shown(stack) == [
        "extension_allocate (extension.so)",
        "inner:3",
        "<module>:9",
        "_start (python3.14)",
    ]
    assert stack.complete


def test_two_loops_with_nothing_between_them():
    """Where all that was between called its successor last, two loops follow each other."""
    stack = merged(
        interpreter("_PyEval_EvalFrameDefault", "_PyEval_EvalFrameDefault"),
        [[("inner", 3)], [("<module>", 9)]],
    )

    assert shown(stack) == ["inner:3", "<module>:9"]
    assert stack.complete


def test_a_run_without_frames():
    """
    The outermost frame of a run is gone while what it held is freed: its loop shows nothing,
    and what it called is above what called it.
    """
    natives = [
        ("tensor_dealloc", "extension.so"),
        *interpreter("_Py_Dealloc", "clear_thread_frame", "_PyEval_EvalFrameDefault"),
        *interpreter("PyObject_Vectorcall"),
        ("closure_fcn", "_ctypes.so"),
        *interpreter("_PyObject_MakeTpCall", "_PyEval_EvalFrameDefault", "PyEval_EvalCode"),
    ]

    told = merged(natives, [[], [("outer", 9), ("<module>", 11)]])
    untold = merged(natives, [[("outer", 9), ("<module>", 11)]])

    assert shown(told) == [
        "tensor_dealloc (extension.so)",
        "closure_fcn (_ctypes.so)",
        "outer:9",
        "<module>:11",
    ]
    assert told.complete
    assert shown(untold) == [
        "tensor_dealloc (extension.so)",
        f"_PyEval_EvalFrameDefault ({LIBPYTHON})",
        "closure_fcn (_ctypes.so)",
        "outer:9",
        "<module>:11",
    ]
    assert not untold.complete


def test_a_native_walk_that_ends_early():
    """
    What fits from the inside is merged; the rest of Python follows, and nothing claims that
    the stack is complete.
    """
    stack = merged(
        [
            *interpreter("_PyEval_EvalFrameDefault", "PyObject_Vectorcall"),
            ("qsort_r", "libc.so.6"),
            ("ffi_call", "libffi.so.8"),
        ],
        [[("compare", 4)], [("sort", 9), ("main", 11)], [("<module>", 20)]],
        complete=False,
    )

    assert shown(stack) == [
        "compare:4",
        "qsort_r (libc.so.6)",
        "ffi_call (libffi.so.8)",
        "sort:9",
        "main:11",
        "<module>:20",
    ]
    assert not stack.complete


def test_a_stripped_interpreter():
    """Functions without a name say nothing, once every loop has been found by its own."""
    stack = merged(
        [
            ("extension_allocate", "extension.so"),
            ("", "python3.11"),
            ("PyObject_Vectorcall", "python3.11"),
            ("_PyEval_EvalFrameDefault", "python3.11"),
            ("", "python3.11"),
            ("", "libc.so.6"),
            ("_start", "python3.11"),
        ],
        [[("step", 7), ("<module>", 12)]],
    )

    assert shown(stack) == [
        "extension_allocate (extension.so)",
        "step:7",
        "<module>:12",
        " (libc.so.6)",
        "_start (python3.11)",
    ]
    assert stack.complete


def test_a_loop_without_a_name():
    """
    Where a complete walk lacks a loop, it is one of the interpreter's functions that have no
    name: Python goes there, marked as incomplete.
    """
    stack = merged(
        [
            ("extension_allocate", "extension.so"),
            ("", "python3.11"),
            ("", "python3.11"),
            ("__libc_start_call_main", "libc.so.6"),
        ],
        [[("step", 7), ("<module>", 12)]],
    )

    assert shown(stack) == [
        "extension_allocate (extension.so)",
        "step:7",
        "<module>:12",
        " (python3.11)",
        " (python3.11)",
        "__libc_start_call_main (libc.so.6)",
    ]
    assert not stack.complete


def test_a_loop_is_where_its_variable_is():
    """
    The native frame that has the place of a run on its part of the stack is the loop,
    whatever its name; an instruction's function above it belongs to it.
    """
    natives = [
        ("extension_allocate", "extension.so"),
        ("_TAIL_CALL_CALL", "python3.14"),
        ("_PyEval_Vector", "python3.14"),
        ("callback", "extension.so"),
        ("", "python3.14"),
        ("", "python3.14"),
        ("_start", "python3.14"),
    ]

    stack = merged(
        natives,
        [[("inner", 3)], [("outer", 7), ("<module>", 9)]],
        places=(1600 + 16 * 2 + 8, 1600 + 16 * 4),
    )

    assert shown(stack) == [
        "extension_allocate (extension.so)",
        "inner:3",
        "callback (extension.so)",
        "outer:7",
        "<module>:9",
        "_start (python3.14)",
    ]
    assert stack.complete


def test_a_loop_that_is_not_where_its_variable_is():
    """Where names and places contradict each other, the stack does not claim to be complete."""
    natives = [
        *interpreter("_PyEval_EvalFrameDefault"),
        ("callback", "extension.so"),
        *interpreter("PyEval_EvalCode"),
        ("_start", "python3.11"),
    ]

    right = merged(natives, [[("<module>", 9)]], places=(1608,))
    wrong = merged(natives, [[("<module>", 9)]], places=(1600 + 16 * 3,))

    assert right.complete
    assert not wrong.complete
    assert shown(right) == shown(wrong)


@pytest.mark.parametrize("tops", [(1, 2), (3, 2, 1)])
def test_stack_pointers_that_cannot_be(tops):
    """Too few of them, or some that do not grow, say nothing."""
    frames = [Frame(FrameType.NATIVE, name) for name in ("f", "_PyEval_EvalFrameDefault", "g")]

    stack = merge(
        NativeStack((1, 2, 3), True, "eh_frame", stack_pointers=tops),
        frames,
        PythonStack((Frame(FrameType.PYTHON, "<module>"),), (0,), wire.PYTHON_COMPLETE, (1,)),
    )

    assert [frame.function for frame in stack.frames] == ["f", "<module>", "g"]


@pytest.mark.parametrize(
    ("status", "name"), [(wire.PYTHON_CUT, "cut"), (wire.PYTHON_BROKEN, "broken")]
)
def test_python_frames_that_end_early(status, name):
    """Loops beyond the last frame of Python that is known stay as they are."""
    stack = merged(
        [
            *interpreter("_PyEval_EvalFrameDefault", "PyObject_Vectorcall"),
            ("callback", "extension.so"),
            *interpreter("_PyEval_EvalFrameDefault", "PyObject_Vectorcall"),
            ("callback", "extension.so"),
            *interpreter("_PyEval_EvalFrameDefault"),
        ],
        [[("compare", 4)], [("outer", 9), ("beyond", 11)]],
        status=status,
        closed=False,
    )

    assert shown(stack) == [
        "compare:4",
        "callback (extension.so)",
        "outer:9",
        "beyond:11",
        "callback (extension.so)",
        f"_PyEval_EvalFrameDefault ({LIBPYTHON})",
    ]
    assert (stack.complete, stack.python) == (False, name)


def test_the_interpreter_with_perf_support():
    """The trampolines that it makes for perf are left out; other code made at run time is not."""
    stack = merged(
        [
            ("kernel_42", ""),
            *interpreter("_PyEval_EvalFrameDefault"),
            ("py::step:/srv/train.py", ""),
            *interpreter("_PyEval_EvalFrameDefault"),
            ("py::<module>:/srv/train.py", ""),
        ],
        [[("step", 7)], [("<module>", 12)]],
    )

    assert shown(stack) == ["kernel_42 ()", "step:7", "<module>:12"]
    assert stack.complete


def test_functions_of_other_modules_stay():
    """A library may call a function as the interpreter calls one of its own."""
    stack = merged(
        [("run_mod", "engine.so"), *interpreter("run_mod", "_PyEval_EvalFrameDefault")],
        [[("<module>", 1)]],
    )

    assert shown(stack) == ["run_mod (engine.so)", "<module>:1"]


@pytest.mark.parametrize("function", sorted(" ".join(LEFT_OUT.values()).split()), ids=str)
def test_what_is_left_out(function):
    """
    Each entry of the table is left out, also a part or a copy of it; what ends in a star
    stands for all that begin so, what does not for nothing else.
    """
    star = function.endswith("*")
    name = function.rstrip("*")

    stack = merged(
        interpreter(
            name, f"{name}.constprop.0", f"{name}_more", f"a_{name}", "_PyEval_EvalFrameDefault"
        ),
        [[("<module>", 1)]],
    )

    more = [] if star else [f"{name}_more ({LIBPYTHON})"]
    assert shown(stack) == [*more, f"a_{name} ({LIBPYTHON})", "<module>:1"]


@pytest.mark.parametrize(
    "function",
    [
        "list_sort_impl",
        "builtin_sorted",
        "map_next",
        "bounded_lru_cache_wrapper",
        "gc_collect_main",
        "take_gil",
        "PyEval_RestoreThread",
        "time_sleep",
        "_imp_create_dynamic",
        "Py_FinalizeEx",
    ],
)
def test_what_stays(function):
    """Functions that a program calls by name, the GIL, garbage collection and the end stay."""
    stack = merged(interpreter(function, "_PyEval_EvalFrameDefault"), [[("<module>", 1)]])

    assert shown(stack) == [f"{function} ({LIBPYTHON})", "<module>:1"]


def test_a_deep_stack_loses_its_middle():
    """Of 1,000 frames, 128 innermost and 127 outermost are left, and one that says so."""
    run = [(f"f{depth}", depth + 1) for depth in range(1_000)]

    stack = merged(interpreter("_PyEval_EvalFrameDefault"), [run])

    assert len(stack.frames) == MAX_FRAMES == 256
    assert [frame.function for frame in stack.frames[126:130]] == [
        "f126",
        "f127",
        "745 frames left out",
        "f873",
    ]
    assert stack.frames[128] == Frame(FrameType.CUT, "745 frames left out")
    assert stack.frames[-1].function == "f999"


def test_256_frames_are_all_kept():
    """A stack that fits is not cut."""
    run = [(f"f{depth}", depth + 1) for depth in range(256)]

    stack = merged(interpreter("_PyEval_EvalFrameDefault"), [run])

    assert [frame.function for frame in stack.frames] == [f"f{depth}" for depth in range(256)]


def test_names_cannot_do_harm():
    """
    Escape sequences, line feeds, overrides of the writing direction and halves of pairs
    become signs of replacement; a long name ends with an ellipsis after 512 characters.
    """
    hostile = "\x1b[2Jrm\n\x00\x9b\u202eevil\ud800é😀"
    stack = merge(
        NativeStack((1,), complete=True, method="eh_frame"),
        [Frame(FrameType.NATIVE, hostile, hostile, 0, hostile, 0x10)],
        PythonStack(
            (Frame(FrameType.PYTHON, "x" * 10_000, "y" * 513, -5),), (0,), wire.PYTHON_COMPLETE
        ),
    )

    clean = "\ufffd[2Jrm\ufffd\ufffd\ufffd\ufffdevil\ufffdé😀"
    assert stack.frames == (
        Frame(FrameType.NATIVE, clean, clean, 0, clean, 0x10),
        Frame(FrameType.PYTHON, "x" * 511 + "…", "y" * 511 + "…"),
    )


FRAMES = st.builds(
    Frame,
    kind=st.just(FrameType.NATIVE),
    function=st.sampled_from(
        ["", "f", "_PyEval_EvalFrameDefault", "_TAIL_CALL_POP", "PyObject_Call", "py::f"]
    ),
    module=st.sampled_from(["", "a.so", "python3"]),
)


@given(
    st.lists(FRAMES, max_size=20),
    st.integers(0, 20),
    st.lists(st.integers(-5, 25), max_size=8),
    st.integers(0, 5),
    st.booleans(),
    st.lists(st.integers(0, 30), max_size=20),
    st.lists(st.integers(0, 30), max_size=20),
)
def test_no_frame_of_python_is_ever_lost(natives, count, entries, status, complete, tops, places):
    """Whatever two walks say, all Python frames are there once, in their order."""
    frames = tuple(Frame(FrameType.PYTHON, f"f{number}", line=1) for number in range(count))

    stack = merge(
        NativeStack(tuple(range(len(natives))), complete, "eh_frame", stack_pointers=tuple(tops)),
        natives,
        PythonStack(frames, tuple(entries), status, tuple(places)),
    )

    assert tuple(frame for frame in stack.frames if frame.kind == FrameType.PYTHON) == frames
    assert complete or not stack.complete

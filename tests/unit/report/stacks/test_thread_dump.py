"""All threads of a process: which stand together, and how they are told."""

import io

from rich.console import Console

from otel_gpu.enrich.identity.identities import CallStack
from otel_gpu.report.render.text.thread_dump import write_threads
from otel_gpu.report.stacks.thread_dump import (
    ThreadNow,
    ThreadsReport,
    group_threads,
    make_threads_document,
)
from otel_gpu.wire.frames import Frame, FrameType
from otel_gpu.wire.thread_states import ThreadState
from tests.schemas import LOOKS

PLACE = Frame(FrameType.PYTHON, "step", "train.py", 31)
STACK = CallStack(7, (PLACE,), True, "eh_frame", "ok", PLACE)
WAITS = ThreadNow(
    *(42, 43, "worker", ThreadState.BLOCKED, "lock", True, 1_500_000_000, False),
    *((), STACK, ("futex_wait",)),
)
RUNS = WAITS._replace(
    tid=50,
    state=ThreadState.ON_CPU,
    reason="",
    is_late=True,
    kernel_functions=(),
    time_in_state_ns=None,
)


def report(*threads: ThreadNow, notes: tuple[str, ...] = ()) -> ThreadsReport:
    return ThreadsReport({42: "python"}, 1, 2_000_000, threads, notes)


def text_of(found: ThreadsReport) -> str:
    console = Console(file=io.StringIO(), width=160, highlight=False)
    write_threads(found, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_threads_that_do_the_same_stand_together():
    """Those in a call come first, then what runs, waits to run, and waits; large groups first."""
    others = [WAITS._replace(tid=44), WAITS._replace(tid=45, reason="sleep")]
    queued = WAITS._replace(tid=46, state=ThreadState.RUN_QUEUE, reason="")
    calling = WAITS._replace(tid=47, calls=("cudaMalloc",))

    groups = group_threads([others[1], WAITS, others[0], queued, RUNS, calling])

    assert [[thread.tid for thread in group] for group in groups] == [
        [47],
        [50],
        [46],
        [43, 44],
        [45],
    ]


def test_the_text_says_what_each_group_does():
    """State, reason and age of each, the stack once, and what runs is not as it was."""
    many = [WAITS._replace(tid=100 + number) for number in range(9)]
    deaf = WAITS._replace(tid=60, is_interruptible=False, calls=("cudaFree", "cuMemFree"))

    text = text_of(report(*many, RUNS, deaf))

    assert "python (42): 11 threads, looked at in 2 ms; none was stopped\n" in text
    assert "9 threads blocked (lock)\n   worker (100) for 1.5 s\n" in text
    assert "   and 1 thread more\n     futex_wait (kernel)\n     step (train.py:31)\n" in text
    assert "1 thread on a CPU, seen as of when it last entered the kernel\n   worker (50)\n" in text
    assert "1 thread blocked (lock), which no signal ends, in cudaFree > cuMemFree\n" in text


def test_what_is_missing_is_said():
    """Threads without a stack, stacks without their end, and notes."""
    cut = STACK._replace(id=8, complete=False, python="cut")
    found = report(
        WAITS._replace(stack=None), WAITS._replace(tid=44, stack=cut), notes=("no \x1b names",)
    )

    text, document = text_of(found), make_threads_document(found)

    assert "     … its stack could not be read …\n" in text
    assert "     … incomplete: native eh_frame, python cut …\n" in text
    assert "- 1 thread could not be read\n- no \\x1b names\n" in text
    assert (document["unreadable"], document["incomplete"]) == (1, 1)
    assert document["threads"][0]["stack"] is None
    LOOKS.validate(document)


def test_the_document_has_each_stack_once():
    """Threads name it by its id; what is not known is null."""
    document = make_threads_document(report(WAITS, WAITS._replace(tid=44), RUNS))

    LOOKS.validate(document)
    assert list(document["stacks"]) == ["0000000000000007"]
    assert {thread["stack"] for thread in document["threads"]} == {"0000000000000007"}
    assert document["threads"][2]["time_in_state_ns"] is None
    assert [thread["exact"] for thread in document["threads"]] == [True, True, False]

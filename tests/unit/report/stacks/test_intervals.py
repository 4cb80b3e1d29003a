"""Graphs of the time of threads: exact shares, all of it, and what each frame is."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from otel_gpu.report.document import Window
from otel_gpu.report.render.folded import folded_line
from otel_gpu.report.render.text.stacks import coverage, write_stacks
from otel_gpu.report.stacks import top_stacks
from otel_gpu.report.stacks.document import make_stacks_document
from otel_gpu.report.stacks.folding import fold
from otel_gpu.report.stacks.top_stacks import CALLED, CPU, OFF_CPU, WAITED, WALL, StackMeasure
from otel_gpu.wire import CONTEXT_GAP, CONTEXT_SYNCHRONIZE
from otel_gpu.wire.frames import Frame
from tests.activities import (
    MAIN_FRAME,
    MALLOC_FRAME,
    PATTERN_FRAME,
    SECOND,
    T0,
    call,
    call_stack,
    image,
    sample,
    stall,
)
from tests.schemas import STACKS
from tests.unit.report.busy_threads import (
    ALLOCATING,
    LOADER,
    MS,
    SHARES,
    TRAINER,
    at,
    busy,
    report_of,
)

UNKNOWN = "… stack not known …"


def folded(report):
    """Weights in milliseconds by the path from the process inwards, functions only."""
    return {
        tuple(frame.text.split(" (")[0] for frame in stack.frames): stack.weight / MS
        for stack in fold(report.rows, StackMeasure.TIME)
    }


def text_of(report):
    printed = io.StringIO()
    write_stacks(report, Console(file=printed, width=200, highlight=False), 20)
    return printed.getvalue()


def test_samples_have_exact_shares():
    """Of a thread with known shares, each function has its own, to the nanosecond."""
    report = report_of(kind=CPU, threads=["loader"])

    total = report.total()
    assert {
        row.stack.frames[0].function: row.time_ns * 100 / total for row in report.rows
    } == SHARES
    assert [row.stack.frames[0].function for row in report.rows] == list(SHARES)


def test_a_graph_of_cpus_has_all_of_their_time():
    """The kernel above the program, the CUDA call among the frames, and what has no stack as such."""
    paths = folded(report_of(kind=CPU))

    main = ("trainer", "<module>")
    assert paths == {
        (*main, "resize"): 500,
        (*main, "decode"): 250,
        (*main, "shuffle"): 150,
        (*main, "log"): 70,
        (*main, "flush"): 30,
        (*main, "fragmentation_pattern", "cudaMalloc", "handle_mm_fault", "clear_page"): 40,
        ("trainer", UNKNOWN): 60,
    }


def test_a_graph_of_waits_has_their_reasons_as_leaves():
    """A wait for a CPU is one of its own: the thread was blocked before, and ready then."""
    paths = folded(report_of(kind=OFF_CPU))

    waiting = ("trainer", "<module>", "log", "pipe_read")
    assert paths == {
        (*waiting, "[ipc]"): 300,
        (*waiting, "[run_queue]"): 50,
        ("trainer", UNKNOWN, "[driver]"): 50,
    }


def test_wall_is_both_of_them():
    """Each path of one or the other, with its time."""
    wall, cpu, off_cpu = (folded(report_of(kind=kind)) for kind in (WALL, CPU, OFF_CPU))

    assert wall == cpu | off_cpu
    assert sum(wall.values()) == 1_100 + 400


def test_the_call_is_a_frame_where_the_stack_lacks_it():
    """Outside of the library's own frames, and never twice; also by the name of its symbol."""
    inside = Frame("native", "", module="libcudart.so.12", address=0x77)
    driver = Frame("native", "", module="libcuda.so.1", address=0x88)
    app = Frame("native", "main", module="app")
    symbol = Frame("native", "cuMemAlloc_v2", module="libcuda.so.1")
    made = [
        sample(
            TRAINER, SECOND, MS, stack=call_stack(1, (driver, inside, app)), in_call="cudaMalloc"
        ),
        sample(TRAINER, SECOND, MS, stack=call_stack(2, (app,)), in_call="cudaFree"),
        sample(TRAINER, SECOND, MS, stack=call_stack(3, (symbol, app)), in_call="cuMemAlloc"),
        sample(TRAINER, SECOND, MS, in_call="cudaMalloc"),
        # Between two calls the API is that of the one before.
        sample(
            TRAINER,
            SECOND,
            MS,
            stack=call_stack(4, (app,)),
            in_call="cudaFree",
            context=CONTEXT_GAP,
        ),
    ]

    assert set(folded(report_of(*made, kind=CPU))) == {
        ("trainer", "main", "cudaMalloc", "??", "??"),
        ("trainer", "main", "cudaFree"),
        ("trainer", "main", "cuMemAlloc_v2"),
        ("trainer", UNKNOWN, "cudaMalloc"),
        ("trainer", "main"),
    }


def test_a_wait_inside_a_call_is_in_it():
    """And one of which it is not known what it was says so."""
    made = [
        stall(TRAINER, SECOND, SECOND + MS, SECOND + MS, reason="driver", call_api=5),
        stall(TRAINER, SECOND, SECOND + MS, SECOND + MS, reason=""),
    ]

    assert set(folded(report_of(*made, kind=OFF_CPU))) == {
        ("trainer", UNKNOWN, "cudaStreamSynchronize", "[driver]"),
        ("trainer", UNKNOWN, "[off_cpu]"),
    }


def test_a_window_holds_what_of_a_wait_is_in_it():
    """And the samples of the time between its ends."""
    window = Window(T0 + 12 * SECOND, T0 + 13 * SECOND + 320 * MS)

    paths = folded(report_of(window=window))

    waiting = ("trainer", "<module>", "log", "pipe_read")
    assert paths[(*waiting, "[ipc]")] == 300
    assert paths[(*waiting, "[run_queue]")] == 20
    assert sum(paths.values()) == 100 + 320


@pytest.mark.parametrize(
    ("chosen", "time_ms"),
    [
        ({"pids": [42]}, 1_500),
        ({"pids": [1]}, 0),
        ({"threads": ["43"]}, 1_000),
        ({"threads": ["load*"]}, 1_000),
        ({"threads": ["load"]}, 0),
        ({"threads": ["*"]}, 1_500),
        ({"names": ["ipc"]}, 300),
        ({"names": ["cudaMalloc"]}, 40),
    ],
)
def test_what_is_added_up_can_be_chosen(chosen, time_ms):
    """By process, by thread, by what a wait was for, and by the call that a thread was in."""
    assert report_of(**chosen).total() == time_ms * MS


def test_threads_that_are_chosen_are_kept_apart():
    """Each has a frame of its own, below its process."""
    report = report_of(kind=CPU, threads=["*"])

    stacks = list(fold(report.rows, StackMeasure.TIME))
    assert {stack.frames[1].text for stack in stacks} == {"loader (43)", "trainer (42)"}
    assert "on_cpu of trainer (42), loader (43): 50 samples, 500 ms (45 %)" in text_of(report)
    document = make_stacks_document(report, 1)
    STACKS.validate(document)
    assert document["stacks"][0]["thread"] == {"tid": 43, "name": "loader"}


def test_calls_and_waits_of_a_thread_can_be_chosen_too():
    """What all threads made was counted of the process, so it says nothing about one."""
    made = [
        call(TRAINER, "cudaMalloc", SECOND, MS, stack=ALLOCATING),
        call(TRAINER, "cudaMalloc", SECOND, 2 * MS, stack=ALLOCATING, **LOADER),
        stall(TRAINER, SECOND, SECOND + MS, SECOND + MS, reason="io", stack=ALLOCATING, **LOADER),
    ]

    calls = report_of(*made, kind=CALLED, threads=["loader"])
    assert (calls.total(), calls.counted) == (2 * MS, None)
    assert report_of(*made, kind=WAITED, threads=["trainer"]).total() == 0


def test_what_a_graph_is_made_of_is_said():
    """How many samples and waits, what the kernel counted, and what was rate-limited."""
    assert coverage(report_of(kind=CPU)) == (
        "102 samples of threads on CPUs, which stand for 1.1 s; counted: 1.15 s. Shares are estimates. "
        "1 without a stack are drawn as such."
    )
    assert coverage(report_of(kind=OFF_CPU)) == (
        "Waits that became spans: 3. Shorter waits are not listed, and threads that had nothing to do "
        "waited too. 1 without a stack are drawn as such."
    )
    text = text_of(report_of())
    assert "102 samples of threads on CPUs" in text
    assert "Waits that became spans: 3." in text
    assert (
        "9 ticks of busy threads without a sample of their own, to keep to a limit: the samples that "
        "were taken stand for more." in text
    )
    assert "No samples of threads" not in text


def test_without_samples_wall_is_said_to_be_no_more_than_waits():
    """As of a capture that was made without them."""
    waits = [one for one in busy() if type(one).__name__ == "StallActivity"]

    assert "this is time off the CPU only" in text_of(report_of(*waits))


def test_the_document_has_the_same():
    """With the account of the kernel beside the samples."""
    document = make_stacks_document(report_of(kind=CPU), 20)

    STACKS.validate(document)
    assert (document["of"], document["by"]) == ("cpu", "time")
    assert document["coverage"] == {
        "with_stack": 101,
        "without_stack": 1,
        "stand_for": 102,
        "counted": None,
        "samples": 102,
        "on_cpu_ns": 1_100 * MS,
        "counted_on_cpu_ns": 1_150 * MS,
    }
    assert document["stacks"][-1]["frames"][:2] == [
        {"type": "cpython", "function": "flush", "file": "/app/load.py", "line": 104},
        {"type": "cpython", "function": "<module>", "file": "/app/train.py", "line": 102},
    ]
    waits = make_stacks_document(report_of(kind=OFF_CPU), 1)
    STACKS.validate(waits)
    assert waits["stacks"][0]["frames"][0] == {"type": "wait", "function": "[ipc]"}
    assert waits["coverage"]["with_stack"] == 2


def test_there_is_room_for_so_many_samples(monkeypatch):
    """What is left out is said, and is in no figure."""
    monkeypatch.setattr(top_stacks, "MAX_ROWS", 2)

    report = report_of(kind=CPU)

    assert report.total() == report.on_cpu_ns == 750 * MS
    assert "27 samples found no room" in report.notes[-1]


kernel = st.lists(st.sampled_from(["schedule", "do_wait", "vfs_read"]), max_size=3).map(tuple)
places = st.one_of(
    st.none(),
    st.integers(1, 4).map(lambda number: at("log", number)),
    st.just(call_stack(9, (MALLOC_FRAME, PATTERN_FRAME, MAIN_FRAME), complete=False)),
)
processes = st.sampled_from([image(42, 1), image(77, 1, "server")])
samples = st.builds(
    lambda process, weight_ns, functions, stack, api: sample(
        process, SECOND, weight_ns, functions=functions, stack=stack, in_call=api
    ),
    processes,
    st.integers(0, 10**12),
    kernel,
    places,
    st.sampled_from([None, "cudaMalloc", "cudaStreamSynchronize"]),
)
stalls = st.builds(
    lambda process, blocked_ns, queued_ns, functions, stack, reason: stall(
        process, SECOND, SECOND + blocked_ns, SECOND + blocked_ns + queued_ns,
        functions=functions, stack=stack, reason=reason if blocked_ns else "",
    ),
    processes,
    st.integers(0, 10**10),
    st.integers(0, 10**10),
    kernel,
    places,
    st.sampled_from(["ipc", "io", "unknown"]),
)  # fmt: skip


@given(st.lists(samples | stalls, max_size=30))
def test_a_graph_weighs_what_it_is_made_of(made):
    """Whatever was sampled and waited for: nothing is lost on the way, and nothing is there twice."""
    on_cpu = sum(getattr(one.event, "weight_ns", 0) for one in made)
    off_cpu = sum(
        one.end_unix_ns - one.start_unix_ns for one in made if hasattr(one, "end_unix_ns")
    )

    totals = {kind: report_of(*made, kind=kind) for kind in (CPU, OFF_CPU, WALL)} if made else {}
    for kind, expected in ((CPU, on_cpu), (OFF_CPU, off_cpu), (WALL, on_cpu + off_cpu)):
        if made:
            report = totals[kind]
            lines = map(folded_line, fold(report.rows, StackMeasure.TIME))
            assert report.total() == expected
            assert sum(int(line.rpartition(" ")[2]) for line in lines) == expected


def test_a_sample_of_a_synchronize_is_in_it():
    """A thread that spins there is on a CPU, inside the call."""
    made = sample(TRAINER, SECOND, MS, in_call="cudaStreamSynchronize", context=CONTEXT_SYNCHRONIZE)

    assert set(folded(report_of(made, kind=CPU))) == {("trainer", UNKNOWN, "cudaStreamSynchronize")}

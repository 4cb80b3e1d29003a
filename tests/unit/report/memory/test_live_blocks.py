"""Memory of live captures in the document: rows by layer, readings, holders, growth, failures."""

from io import StringIO

import pytest
from rich.console import Console

from otel_gpu import wire
from otel_gpu.explain.explainer import Explainer
from otel_gpu.report.collector import Collector
from otel_gpu.report.document import Window
from otel_gpu.report.json_form import make_document
from otel_gpu.report.render.text.document import write_text
from otel_gpu.wire.frames import Frame
from tests.activities import (
    MS,
    SECOND,
    T0,
    blocks,
    call,
    call_stack,
    calls,
    capture,
    holder,
    image,
    line_stack,
    out_of_memory,
    snapshot,
    status,
    thread_time,
    times,
    totals,
)
from tests.schemas import REPORT

MIB = 1 << 20
TRAINER = image()
# Each tenth call takes longer than all before it.
LONGER = [MS if at % 10 else at * MS for at in range(1, 71)]
CACHE, STEP = line_stack(61, "remember"), line_stack(40)


def document(*activities, window=None, pids=()):
    collector = Collector(Explainer(), window=window or Window(), pids=pids)
    started = capture()
    started.info["settings"] = {"memory_blocks": "large"}
    for activity in (started, *activities):
        collector.observe(activity)
    made = collector.finish("test")
    REPORT.validate(make_document(made))
    return made


def leaking(first=1, last=40):
    """A cache that takes 8 MiB in each second, beside steps that come and go."""
    for at in range(first, last):
        live = at * 8 * MIB + (at % 3) * 50 * MIB
        cache, step = holder(at * 8 * MIB, at), holder((at % 3) * 50 * MIB, 1, at * 50 * MIB, at)
        said = totals(live, live + 20 * MIB, frees=at * 10, allocations=at * 11, unequal=1)
        yield blocks(TRAINER, at, said, [(1, cache, CACHE), (2, step, STEP)])


FAILED = out_of_memory(
    TRAINER,
    40,
    64 * MIB,
    stack=STEP,
    reserved_bytes=420 * MIB,
    allocated_bytes=400 * MIB,
    device_free_bytes=2 * MIB,
    device_total_bytes=422 * MIB,
)


def text_of(made):
    console = Console(width=200, file=StringIO())
    write_text(made, console)
    return console.file.getvalue()


def test_a_row_says_what_a_framework_holds_and_who_holds_it():
    """Its totals are the allocator's own words; who holds them is by line."""
    (row,) = document(*leaking()).memory

    assert (row.pid, row.device, row.layer, row.blocks) == (42, 0, "framework", "large")
    assert (row.live_bytes, row.reserved_bytes) == (312 * MIB, 332 * MIB)
    assert [(one.line, one.size_bytes, one.blocks) for one in row.end_holders] == [
        (61, 312 * MIB, 39)
    ]
    assert [(one.size_bytes, one.blocks) for one in row.files] == [(312 * MIB, 39)]
    assert [one.line for one in row.churn] == [40, 61]
    assert [(one.line, one.size_bytes) for one in row.holders] == [(61, 304 * MIB), (40, 100 * MIB)]
    assert row.peak_unix_ns == T0 + 38 * SECOND
    assert row.coverage == pytest.approx(1 - 1 / (39 * 21))
    assert (len(row.readings), row.readings[-1].live_bytes) == (39, 312 * MIB)
    assert (row.stuck_bytes, row.segments) == (None, None)
    # What grows is said; it is no alarm before anything failed.
    assert [(one.line, one.full_in_s) for one in row.growth] == [(61, None)]
    assert row.growth[0].bytes_per_s == pytest.approx(8 * MIB)
    assert row.alarms == row.advice == ()


def test_a_request_that_failed_is_in_its_row_and_an_incident():
    """All faces tell of one judgement."""
    made = document(*leaking(), FAILED)
    (row,) = made.memory
    (incident,) = made.incidents

    (failed,) = row.ooms
    assert (failed.line, failed.cause, failed.unix_ns) == (40, "leak", T0 + 40 * SECOND)
    assert row.alarms == ("A request for 67.1 MB failed in train.py:40 step: leak.",)
    assert row.advice == incident.advice
    assert (incident.severity, incident.causes[0].kind) == ("high", "leak")
    (chain,) = make_document(made)["chains"]
    assert chain["failure"]["cause"] == "leak"
    assert chain["failure"]["leaks"][0]["line"] == 61
    # It goes on for nine steps more, and what is left of the device is known now.
    assert row.capacity_bytes == 422 * MIB
    assert row.growth[0].full_in_s == pytest.approx((422 - 312) / 8, rel=0.01)


def test_the_text_says_what_failed_and_what_to_do():
    """A person reads what was asked for, what there was, and whose line it is."""
    text = text_of(document(*leaking(), FAILED))

    assert "A request for 67.1 MB failed in train.py:40 step: leak." in text
    assert "Let go of what train.py:61 remember allocates" in text
    assert "train.py:40 step asked for 67.1 MB of device 0; the device had 2.1 MB free" in text
    assert "HIGH: trainer (42) ran out of memory: train.py:40 step asked for 67.1 MB" in text
    assert "train.py:61 remember: 8.39 MB more in each second" in text


def test_what_runtime_and_driver_gave_is_rows_of_their_own():
    """The layers hold the same memory: nothing is added up."""
    made = document(
        *leaking(),
        snapshot(
            40,
            calls(TRAINER, "cudaMalloc", [MS] * 3, size_bytes=420 * MIB),
            calls(TRAINER, "cudaFree", [MS], size_bytes=20 * MIB),
            calls(TRAINER, "cuMemAlloc", [MS], size_bytes=5 * MIB),
            calls(TRAINER, "cuMemAlloc", [MS], size_bytes=420 * MIB, nested=1),
        ),
    )

    assert [(row.layer, row.live_bytes, row.allocations) for row in made.memory] == [
        ("framework", 312 * MIB, 39 * 11),
        ("runtime", 400 * MIB, 3),
        ("driver", 5 * MIB, 1),
    ]
    assert [row.peak_bytes for row in made.memory[1:]] == [400 * MIB, 5 * MIB]


def test_what_calls_took_is_read_over_time():
    """Frees are taken off; the most of all readings is the peak that is known."""
    made = document(
        *(
            snapshot(
                at,
                calls(TRAINER, "cudaMalloc", [MS] * at, size_bytes=at * 10 * MIB),
                calls(TRAINER, "cudaFree", [MS] * freed, size_bytes=freed * 10 * MIB),
            )
            for at, freed in ((1, 1), (5, 1), (6, 6))
        )
    )
    (row,) = made.memory

    readings = [(one.unix_ns - T0, one.live_bytes) for one in row.readings]
    assert readings == [(SECOND, 0), (5 * SECOND, 40 * MIB), (6 * SECOND, 0)]
    assert (row.peak_bytes, row.live_bytes) == (40 * MIB, 0)


def test_calls_that_allocate_are_told_in_windows_of_thirty_seconds():
    """Calls, mean, most and bytes of each, as an investigation wants them."""
    readings = [
        snapshot(
            at,
            calls(TRAINER, "cudaMalloc", LONGER[:at], size_bytes=at * MIB),
            calls(TRAINER, "cudaFree", [MS] * (at // 2 + 1)),
            calls(TRAINER, "cudaMalloc", [MS], status=2),
        )
        for at in range(10, 71, 10)
    ]
    made = document(*readings)
    (row,) = made.memory

    windows = [(one.start_unix_ns - T0, one.calls, one.size_bytes) for one in row.windows]
    assert windows == [
        (0, 30, 30 * MIB),
        (30 * SECOND, 30, 30 * MIB),
        (60 * SECOND, 10, 10 * MIB),
    ]
    assert [one.max_ns for one in row.windows] == [30 * MS, 60 * MS, 70 * MS]
    assert sum(one.frees for one in row.windows) == 36
    assert row.windows[-1].end_unix_ns == made.end_unix_ns
    assert "Memory of device 0, process 42: calls that allocate" in text_of(made)


def test_calls_that_cost_time_are_alarms_with_their_numbers():
    """Where such calls are an incident, the row says which they were and what to do."""
    stack = call_stack(
        5,
        (Frame("native", "c10::emptyCache()", module="libc10_cuda.so"), *line_stack(74).frames),
    )
    made = document(
        blocks(TRAINER, 0.5, totals(64 * MIB)),
        times(1, thread_time(TRAINER, wire.STATE_ON_CPU, wire.CONTEXT_CALL, MS)),
        *(
            call(TRAINER, "cudaFree", (1_000 + 40 * n) * MS, 20 * MS, stack=stack)
            for n in range(50)
        ),
        snapshot(11, calls(TRAINER, "cudaFree", [20 * MS] * 50)),
        times(11, thread_time(TRAINER, wire.STATE_ON_CPU, wire.CONTEXT_CALL, 2 * SECOND)),
    )
    (row,) = (row for row in made.memory if row.layer == "runtime")

    assert made.incidents[0].causes[0].kind == "empty_cache"
    (alarm,), (advice,) = row.alarms, row.advice
    assert alarm.startswith(
        "50 calls from train.py:74 step took 1 s, 20 ms on average and at most 20"
    )
    assert "empty_cache() in train.py:74 step: 50 segments that it released" in advice


def test_what_is_freed_past_the_allocator_has_no_advice_of_its_own():
    """The line that allocates is the one to change."""
    lines = (("cudaMalloc", line_stack(74)), ("cudaFree", line_stack(75)))
    made = document(
        blocks(TRAINER, 0.5, totals(64 * MIB)),
        times(1, thread_time(TRAINER, wire.STATE_ON_CPU, wire.CONTEXT_CALL, MS)),
        *(
            call(TRAINER, api, (1_000 + 40 * n) * MS, 20 * MS, stack=stack, size_bytes=MIB)
            for n in range(50)
            for api, stack in lines
        ),
        snapshot(11, *(calls(TRAINER, api, [20 * MS] * 50) for api, _ in lines)),
        times(11, thread_time(TRAINER, wire.STATE_ON_CPU, wire.CONTEXT_CALL, 2 * SECOND)),
    )
    (row,) = (row for row in made.memory if row.layer == "runtime")

    assert len(row.alarms) == 2
    assert row.advice == (
        (
            "Allocate once what train.py:74 step allocates 50 times past the allocator (52.4 MB in all), or "
            "take it from the allocator."
        ),
    )


def test_a_window_and_a_choice_of_processes_hold_for_memory_too():
    """Readings are those of the window; who was not asked for has no row."""
    window = Window(T0 + 10 * SECOND, T0 + 20 * SECOND)
    (row,) = document(*leaking(), window=window).memory

    assert (row.readings[0].unix_ns, row.readings[-1].unix_ns) == (
        T0 + 10 * SECOND,
        T0 + 20 * SECOND,
    )
    assert row.live_bytes == (20 * 8 + 2 * 50) * MIB
    assert document(*leaking(), pids=[7]).memory == ()


def test_the_part_of_a_process_has_its_own_memory():
    """The rows of others are not told again with each."""
    other = image(43, name="server")
    made = document(
        blocks(TRAINER, 1, totals(MIB)),
        blocks(other, 1, totals(MIB)),
        snapshot(1, calls(TRAINER, "cudaMalloc", [MS]), calls(other, "cudaMalloc", [MS])),
    )
    part = made.of_process(other)

    assert {row.pid for row in made.memory} == {42, 43}
    assert [(row.pid, row.layer) for row in part.memory] == [(43, "framework"), (43, "runtime")]


def test_what_is_not_known_of_a_peak_is_said():
    """Readings are made now and then; what lay between two of them has no holders."""
    said = totals(50 * MIB, peak_allocated_bytes=90 * MIB, unequal=3, allocations=70, frees=30)
    made = document(blocks(TRAINER, 1, said, [(1, holder(50 * MIB), STEP)]))
    notes = [note for note in made.notes if note.startswith("Memory of device 0 of process 42")]

    assert made.memory[0].peak_bytes == 90 * MIB
    assert "94.4 MB was between two readings" in notes[0]
    assert "3 reports" in notes[1]


def test_blocks_that_were_too_many_are_said_to_be_followed_in_windows():
    """A reader is to know that who holds memory is not known of all the time."""
    followed = document(status(1, blocks={"pauses": 0, "paused_ms": 0})).notes
    paused = document(status(1, blocks={"pauses": 3, "paused_ms": 12_000})).notes

    (note,) = {*paused} - {*followed}
    assert "3 times they were not followed for a while, 12 s in all" in note


def test_a_healthy_program_raises_nothing():
    """Nearly all that is free lies in holes: an index of 0.98 is no alarm."""
    said = totals(9_800 * MIB, 10_000 * MIB)
    made = document(
        *(blocks(TRAINER, at, said, [(1, holder(9_800 * MIB), STEP)]) for at in range(1, 30))
    )
    (row,) = made.memory

    assert (row.alarms, row.advice, row.growth, row.ooms) == ((), (), (), ())
    assert made.incidents == ()

"""Adding up stacks, and the text and the document that tell of them."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from otel_gpu import wire
from otel_gpu.report.json_form import to_text
from otel_gpu.report.render.folded import folded_line
from otel_gpu.report.render.html.flamegraph import draw_flamegraph
from otel_gpu.report.render.speedscope import speedscope_document
from otel_gpu.report.render.text.stacks import write_stacks
from otel_gpu.report.stacks import top_stacks as stacks
from otel_gpu.report.stacks.document import make_stacks_document
from otel_gpu.report.stacks.folding import fold
from otel_gpu.wire.frames import Frame
from tests.activities import SECOND, call, call_stack, capture, counters, stall
from tests.schemas import STACKS
from tests.unit.report.stack_samples import EVIL, LAUNCH, MALLOC, MS, TRAINER, report_of, training


def rows_of(report):
    return [
        (row.process.pid, row.name, row.stack.id, row.seen, row.calls, row.time_ns, row.size_bytes)
        for row in report.rows
    ]


def text_of(report, limit=20):
    printed = io.StringIO()
    write_stacks(report, Console(file=printed, width=100, highlight=False), limit)
    return printed.getvalue()


def test_calls_are_added_up_by_process_api_and_stack():
    """A sampled call counts as often as it was sampled from, in calls, time and bytes."""
    report = report_of()

    assert rows_of(report) == [
        (42, "cudaMalloc", 1, 2, 2, 7 * MS, 300),
        (42, "cudaLaunchKernel", 2, 1, 1000, 5 * MS, 0),
        (77, "cudaMalloc", 1, 1, 1, MS, 50),
    ]
    assert (report.seen, report.without_stack, report.stand_for) == (4, 1, 1003)
    assert report.counted == 1503
    assert report.total() == 13 * MS


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("time", ["cudaMalloc", "cudaLaunchKernel", "cudaMalloc"]),
        ("calls", ["cudaLaunchKernel", "cudaMalloc", "cudaMalloc"]),
        ("bytes", ["cudaMalloc", "cudaMalloc", "cudaLaunchKernel"]),
    ],
)
def test_what_has_most_comes_first(by, names):
    """Of the measure that was asked for."""
    assert [row.name for row in report_of(by=by).rows] == names


def test_a_call_that_was_chosen_for_more_than_the_sample_stands_for_itself():
    """Slow calls are all seen, so none of them stands for another."""
    both = {"choices": wire.CHOICE_SAMPLED | wire.CHOICE_SLOW, "weight": 1}
    report = report_of(call(TRAINER, "cudaMalloc", SECOND, MS, stack=MALLOC, **both))

    assert rows_of(report) == [(42, "cudaMalloc", 1, 1, 1, MS, 0)]


def test_a_process_or_an_api_can_be_chosen():
    """What was counted is then of these alone, too."""
    server = report_of(pids=[77])
    launches = report_of(names=["cudaLaunchKernel"])

    assert rows_of(server) == [(77, "cudaMalloc", 1, 1, 1, MS, 50)]
    assert (server.counted, server.without_stack) == (1, 0)
    assert rows_of(launches) == [(42, "cudaLaunchKernel", 2, 1, 1000, 5 * MS, 0)]
    assert (launches.counted, launches.without_stack) == (1500, 1)


def test_calls_inside_others_are_parts_of_them():
    """They are told when they are asked for by name."""
    nested = call(TRAINER, "cuMemAlloc", SECOND, MS, stack=MALLOC, parent_start_ktime_ns=SECOND - 1)

    assert report_of(nested).rows == ()
    assert rows_of(report_of(nested, names=["cuMemAlloc"])) == [(42, "cuMemAlloc", 1, 1, 1, MS, 0)]
    assert report_of(*training(), names=["cuLaunchKernel"]).counted == 1500


def test_waits_are_added_up_by_what_they_were_for():
    """The time in which the thread could not run; being ready is no wait."""
    waits = (
        stall(TRAINER, SECOND, SECOND + 5 * MS, SECOND + 9 * MS, reason="queue", stack=LAUNCH),
        stall(TRAINER, 2 * SECOND, 2 * SECOND + MS, 3 * SECOND, reason="lock", stack=LAUNCH),
        stall(TRAINER, 3 * SECOND, 3 * SECOND, 4 * SECOND, stack=LAUNCH),
        stall(TRAINER, 4 * SECOND, 5 * SECOND, 6 * SECOND, reason="io"),
    )
    report = report_of(*waits, *training(), kind="waits")

    assert rows_of(report) == [
        (42, "queue", 2, 1, 1, 5 * MS, 0),
        (42, "lock", 2, 1, 1, MS, 0),
    ]
    assert (report.seen, report.without_stack, report.counted) == (2, 1, None)


def test_what_is_not_known_is_said():
    """Losses by reason, and in words what keeps the sums from being complete."""
    report = report_of(
        call(TRAINER, "cudaMalloc", SECOND, MS, stack=call_stack(1, complete=False)),
        counters(7, lost_sample=2, lost_python=1, spans_rate_limited=5, samples_rate_limited=3),
        rejected={"short": 1, "bad_json": 0},
    )

    assert report.losses == {"python": 1, "rejected_short": 1, "sample": 2}
    assert report.notes[1:] == (
        (
            "The stacks of 1 call are incomplete: their outer ends are not known, so that one place "
            "can be listed more than once."
        ),
        ("5 spans rate-limited: where these calls and waits were is not known."),
        "3 stacks not taken, to keep to a limit.",
    )


def test_there_is_room_for_so_many_stacks(monkeypatch):
    """A recording of ever new stacks does not fill the memory; what is left out is counted."""
    monkeypatch.setattr(stacks, "MAX_ROWS", 3)
    made = [
        call(TRAINER, "cudaMalloc", n * SECOND, MS, stack=call_stack(1 + n % 5)) for n in range(20)
    ]
    report = report_of(*made)

    assert len(report.rows) == 3
    assert report.seen == 12
    assert "8 calls found no room" in report.notes[-1]


def test_the_text_tells_what_stands_for_what():
    """Sampled calls are estimates and say so; exact is what the kernel counted."""
    assert text_of(report_of(), limit=2).splitlines()[:19] == [
        "train.otelgpu: 6 s",
        (
            "Of calls that became spans: 4 with a stack, 1 without; sampled ones count as often as "
            "they were sampled from, so these stand for 1,003 calls. Counted: 1,503 calls."
        ),
        "",
        "1. cudaMalloc of trainer (42): 2 calls, 7 ms (54 %), 300 B",
        "     cudaMalloc (libcudart.so.12)",
        "     at::native::empty_cuda (libtorch_cuda.so)",
        "     fragmentation_pattern (/app/train.py:74)",
        "     <module> (/app/train.py:102)",
        "",
        "2. cudaLaunchKernel of trainer (42): about 1,000 calls, about 5 ms (38 %)",
        "     cudaLaunchKernel (libcudart.so.12)",
        "     <module> (/app/train.py:102)",
        "",
        "and 1 stack more: 8 % of the time",
        "",
        "- Calls that were made inside other CUDA calls are parts of those, and not listed.",
    ]


def test_an_empty_report_can_be_shown():
    """A capture in which nothing was chosen says so in every form."""
    report = report_of(capture())

    assert "0 with a stack, 0 without." in text_of(report)
    STACKS.validate(make_stacks_document(report, 20))
    assert list(fold(report.rows, "time")) == []
    assert "<svg" in draw_flamegraph([], "time")


def test_the_document_is_as_the_schema_says():
    """And holds all that the text does."""
    document = make_stacks_document(report_of(), 2)

    STACKS.validate(document)
    first, second = document["stacks"]
    assert document["coverage"] == {
        "with_stack": 4,
        "without_stack": 1,
        "stand_for": 1003,
        "counted": 1503,
    }
    assert (document["of"], document["by"], document["stacks_left_out"]) == ("calls", "time", 1)
    assert second == {
        "id": "0000000000000002",
        "pid": 42,
        "service_name": "trainer",
        "name": "cudaLaunchKernel",
        "seen": 1,
        "stand_for": 1000,
        "time_ns": 5 * MS,
        "bytes": 0,
        "complete": True,
        "native": "eh_frame",
        "python": "ok",
        "frames": [
            {"type": "cuda", "function": "cudaLaunchKernel", "module": "libcudart.so.12"},
            {"type": "cpython", "function": "<module>", "file": "/app/train.py", "line": 102},
        ],
        "place": {"type": "cpython", "function": "<module>", "file": "/app/train.py", "line": 102},
    }
    assert [frame["function"] for frame in first["frames"]][-1] == "<module>"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["of"], "spans"),
        (["by"], "weight"),
        (["more"], 1),
        (["coverage", "counted"], -1),
        (["stacks", 0, "id"], "1"),
        (["stacks", 0, "frames", 0, "type"], "jvm"),
        (["stacks", 0, "seen"], 1.5),
    ],
)
def test_the_schema_refuses_what_is_no_such_document(path, value):
    """The schema says something: each of these departures is found."""
    document = make_stacks_document(report_of(), 20)
    inside = document
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = value

    assert not STACKS.is_valid(document)


names = st.text(max_size=6) | st.sampled_from(EVIL)


@given(
    st.lists(
        st.builds(
            Frame,
            st.sampled_from(["cpython", "native", "kernel", "cut"]),
            names,
            names,
            st.integers(0, 3),
            names,
            st.integers(0, 2**64 - 1),
        ),
        max_size=4,
    )
)
def test_any_stack_can_be_shown_in_every_form(frames):
    """As valid JSON, as one line, as text that steers no terminal."""
    process = TRAINER
    report = report_of(call(process, "cudaFree", SECOND, MS, stack=call_stack(1, tuple(frames))))

    document = make_stacks_document(report, 20)
    STACKS.validate(json.loads(to_text(document)))
    assert {c for c in to_text(document) + text_of(report) if not c.isprintable()} == {"\n"}
    (line,) = map(folded_line, fold(report.rows, "time"))
    assert line.isprintable()
    assert line.count(";") == len(frames)
    json.dumps(speedscope_document(report)).encode()

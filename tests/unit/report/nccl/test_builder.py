"""Communicators in the document, and what text, page and assistant make of them."""

import json
from io import StringIO
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from rich.console import Console

import otel_gpu.report
from otel_gpu import wire
from otel_gpu.explain.explainer import Explainer
from otel_gpu.mcp.tools.collectives import get_collectives
from otel_gpu.report.collector import Collector
from otel_gpu.report.document import Window
from otel_gpu.report.json_form import make_document
from otel_gpu.report.nccl.builder import MAX_COMMUNICATORS, bus_factor
from otel_gpu.report.render.html.page import make_page
from otel_gpu.report.render.text.document import write_text
from tests.activities import MS, SECOND, T0, calls, capture, image, snapshot, thread_time, times
from tests.communicator_activities import ALL_REDUCE, ID, collectives, ranks, reading
from tests.unit.explain.nccl.test_collectives import hanging
from tests.unit.explain.streams import START

SCHEMA = json.loads(Path(otel_gpu.report.__file__).with_name("schema.json").read_text())
GB = 1_000_000_000


def document(*activities, window=None, pids=()):
    """What is to be learned of a stream; it is as the schema says."""
    collector = Collector(Explainer(), window=window or Window(), pids=pids)
    for activity in (capture(), *activities):
        collector.observe(activity)
    made = collector.finish("test")
    Draft202012Validator(SCHEMA).validate(make_document(made))
    return made


def shown(made):
    """The text of a document."""
    console = Console(file=StringIO(), width=250)
    write_text(made, console)
    return console.file.getvalue()


def reduced(process, at_s, count, *, rank=0, rank_count=4, size_bytes=GB, each_ns=50 * MS, **more):
    """A rank that did so many collectives of a size, each in flight for so long."""
    made = collectives([START + n * SECOND // 10 for n in range(count)])
    values = {
        "completed": count,
        "waited_ns": count * each_ns,
        "operations": {wire.COLLECTIVE_ALL_REDUCE: (count, count * size_bytes)},
        "rank": rank,
        "rank_count": rank_count,
    }
    return reading(process, at_s, made, **(values | more))


def test_a_hang_stands_first_with_who_is_missing():
    """The state, the words and the figures of each rank; the same in JSON, text, page and tool."""
    well = reduced(image(7), 101, 3, identity=ID + 1, rank_count=1)
    made = document(well, *hanging([5, 5, 4, 5]))
    row = made.communicators[0]
    written = make_document(made)["communicators"][0]
    told = get_collectives.function(served=Study(made), limit=16)["communicators"][0]

    assert (row.id, row.rank_count, row.absent, row.state) == (f"{ID:016x}", 4, 0, "rank_missing")
    assert "not called by rank 2" in row.waiting
    assert [(one.rank, one.called, one.completed, one.pending) for one in row.ranks] == [
        *((0, 5, 4, 1), (1, 5, 4, 1), (2, 4, 4, 0), (3, 5, 4, 1)),
    ]
    assert row.ranks[0].last == "all_reduce of 1,024 float32 (sum)"
    assert row.ranks[0].waited_for_others_ns > 15 * SECOND
    assert row.ranks[2].kept_others_waiting_ns > 3 * 15 * SECOND
    assert (row.ranks[0].pending_ns, row.ranks[2].pending_ns) == (
        pytest.approx(19 * SECOND, rel=0.1),
        None,
    )
    assert written["waiting"] == told["waiting"] == row.waiting
    assert written["ranks"][2]["process"] == "1002-5000000000"
    assert told["ranks"].as_value()["rows"][2][:3] == [2, 1002, "trainer"]
    assert "waited in a collective for <span" in make_page(made)
    for face in (shown(made), make_page(made)):
        assert f"communicator {ID:016x}: 4 ranks; a rank is missing" in face
        assert "not called by rank 2" in face
    assert [one.state for one in made.communicators] == ["rank_missing", "running"]


class Study:
    """What a tool is asked about."""

    def __init__(self, document):
        self.document = document


def test_bandwidth_is_at_least_what_the_fastest_rank_did():
    """1 GB in 50 ms is 20 GB/s; of four ranks each link has 1.5 times that. The slower one waited."""
    first, second = ranks(2)
    made = document(
        reduced(first, 102, 10, rank_count=4),
        reduced(second, 102, 10, rank=1, each_ns=80 * MS),
    )

    (row,) = made.communicators

    assert row.algorithm_bytes_per_s == pytest.approx(20 * GB)
    assert row.bus_bytes_per_s == pytest.approx(30 * GB)
    assert row.absent == 2
    assert "at least 20 GB/s, on the bus 30 GB/s" in shown(made)


def test_what_is_not_known_to_be_done_adds_no_bandwidth():
    """Of ten calls five are done, in the time of five."""
    made = document(reduced(image(7), 102, 10, completed=5, completions=5, waited_ns=250 * MS))

    (row,) = made.communicators

    assert row.algorithm_bytes_per_s == pytest.approx(20 * GB)


@pytest.mark.parametrize(
    ("operation", "factor"),
    [
        (wire.COLLECTIVE_ALL_REDUCE, 1.75),
        (wire.COLLECTIVE_ALL_GATHER, 0.875),
        (wire.COLLECTIVE_REDUCE_SCATTER, 0.875),
        (wire.COLLECTIVE_ALL_TO_ALL, 0.875),
        (wire.COLLECTIVE_BROADCAST, 1),
        (wire.COLLECTIVE_REDUCE, 1),
    ],
)
def test_factors_are_those_of_nccl_tests(operation, factor):
    """Of eight ranks."""
    assert bus_factor(operation, 8) == factor


def test_the_part_of_one_rank_counts_for_all():
    """all_gather of 1 GB of each of four ranks is 4 GB, of which three quarters come in."""
    made = document(
        reduced(
            image(7), 102, 10, operations={wire.COLLECTIVE_ALL_GATHER: (10, 10 * GB)}, rank_count=4
        )
    )

    (row,) = made.communicators

    assert row.algorithm_bytes_per_s == pytest.approx(80 * GB)
    assert row.bus_bytes_per_s == pytest.approx(60 * GB)


def test_a_window_has_what_was_called_in_it():
    """Numbers are of the whole; calls, bytes and time in flight are of the window."""
    process = image(7)
    made = document(
        reduced(process, 101, 10),
        reduced(process, 102, 25),
        reduced(process, 103, 40),
        window=Window(T0 + round(101.5 * SECOND), T0 + round(102.5 * SECOND)),
    )

    (row,) = made.communicators
    (rank,) = row.ranks

    assert (rank.called, rank.completions, rank.in_flight_ns) == (25, 15, 15 * 50 * MS)
    assert [(one.operation, one.calls, one.size_bytes) for one in rank.calls] == [
        ("all_reduce", 15, 15 * GB)
    ]


def test_one_process_has_its_communicators():
    """With the other ranks of them, as they cannot be understood without."""
    first, second = ranks(2)
    alone = image(7)
    found = [
        reduced(first, 101, 3, rank_count=2),
        reduced(second, 101, 3, rank=1, rank_count=2),
        reduced(alone, 101, 3, identity=ID + 1, rank_count=1),
    ]

    made = document(*found, pids=[1001])
    whole = document(*found)

    assert [len(row.ranks) for row in made.communicators] == [2]
    assert [row.id for row in whole.of_process(alone).communicators] == [f"{ID + 1:016x}"]


def test_what_is_not_known_is_said():
    """Graphs, communicators from before the capture, and bandwidths that are a bound."""
    made = document(
        reduced(image(7), 101, 3, captured=12, flags=wire.COMMUNICATOR_LATE, identity=0)
    )

    notes = " ".join(made.notes)

    assert "12 collectives became part of graphs" in notes
    assert "1 communicator had been made before the capture began" in notes
    assert "bandwidths are lower bounds" in notes
    assert make_document(made)["communicators"][0]["id"] is None


def test_a_capture_without_nccl_says_nothing_of_it():
    """No section, and no note."""
    made = document(snapshot(10, calls(image(), "cudaLaunchKernel", [MS])))

    assert made.communicators == ()
    assert "ollective" not in shown(made) + " ".join(made.notes)


def test_many_communicators_are_cut_and_counted():
    """What was waited in longest is kept."""
    made = document(
        *(
            reduced(image(number), 101, 1, identity=number, rank_count=1)
            for number in range(1, MAX_COMMUNICATORS + 8)
        )
    )

    assert len(made.communicators) == MAX_COMMUNICATORS
    assert "7 communicators not listed" in " ".join(made.notes)


def test_who_mostly_waits_for_other_ranks_is_bound_by_communication():
    """Of ten seconds it waited for the device for eight, six of them for a rank that came late."""
    first, second = ranks(2)
    made = []
    for at_s in range(11, 21):
        moments = [at * SECOND for at in range(10, at_s)]
        late = [moment + 600 * MS for moment in moments]
        for rank, (process, when) in enumerate([(first, moments), (second, late)]):
            made.append(reading(process, at_s, collectives(when), rank=rank, rank_count=2))
    account = [
        times(
            at_s,
            *(
                thread_time(process, wire.STATE_ON_CPU, context, share * (at_s - 10) * SECOND // 10)
                for process in (first, second)
                for context, share in ((wire.CONTEXT_SYNCHRONIZE, 8), (wire.CONTEXT_GAP, 2))
            ),
        )
        for at_s in (10, 20)
    ]

    found = document(account[0], *made, account[1])

    verdicts = {one.process.pid: one.verdict for one in found.processes}
    (shares,) = [one.verdict_shares for one in found.processes if one.process.pid == 1000]
    assert verdicts == {1000: "communication-bound", 1001: "gpu-bound"}
    assert shares["communication"] == pytest.approx(0.6, abs=0.02)
    assert shares["gpu"] == pytest.approx(0.2, abs=0.02)


def test_numbers_from_outside_are_no_words():
    """What no version of NCCL has is said as a number."""
    odd = ALL_REDUCE._replace(operation=200, datatype=77, reduction=9, root=3)
    made = document(reading(image(7), 101, collectives([START], odd), rank=-1, rank_count=0))

    (row,) = made.communicators

    assert row.ranks[0].last == "operation 200 of 1,024 of type 77 (reduction 9), root 3"
    assert (row.ranks[0].rank, row.rank_count, row.absent) == (None, None, None)
    assert shown(made)

"""How far ranks are with their collectives, as metrics and log records."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu import cli, wire
from otel_gpu.config import Config
from otel_gpu.export.exports import open_exports
from otel_gpu.export.metrics.collectives import (
    MAX_COMMUNICATORS,
    PendingCollectives,
    measure_collectives,
)
from otel_gpu.options import ExportConfig
from otel_gpu.wire.communicators import Signature
from tests.activities import SECOND, capture, counters, ended, image
from tests.backends import fleet
from tests.collectives import ALL_REDUCE, FLOAT32, rank_of

TRAINER = image(name="train.py")
COMM = ("gpu.nccl.comm", "0000000000000abc")
RANK = ("gpu.nccl.rank", 0)
PLACE = (COMM, RANK)
CALLED = (*PLACE, ("gpu.nccl.state", "called"))
COMPLETED = (*PLACE, ("gpu.nccl.state", "completed"))


def sent(tmp_path, *activities):
    """All that a file got: requests of metrics and of logs."""
    path = tmp_path / "sent.jsonl"
    config = dataclasses.replace(Config(), export=ExportConfig(otlp_file=str(path)))
    with open_exports(config, {}, live=False) as exports:
        for activity in (capture(), *activities):
            exports.observe(activity)
    return [json.loads(line) for line in path.read_text().splitlines()]


def metrics_of(tmp_path, *activities):
    """The points of the process, by name and attributes."""
    return {
        (metric["name"], *attributes_of(point)): value_of(point)
        for request in sent(tmp_path, *activities)
        for resource in request.get("resourceMetrics", ())
        for scope in resource["scopeMetrics"]
        if scope["scope"]["name"] == "otel_gpu.nccl"
        for metric in scope["metrics"]
        for data in (metric[kind] for kind in ("sum", "gauge") if kind in metric)
        for point in data["dataPoints"]
    }


def logs_of(tmp_path, *activities):
    """The log records, with the service that each is of."""
    return [
        (dict(attributes_of(resource["resource"]))["service.name"], scope["scope"]["name"], record)
        for request in sent(tmp_path, *activities)
        for resource in request.get("resourceLogs", ())
        for scope in resource["scopeLogs"]
        for record in scope["logRecords"]
    ]


def attributes_of(one):
    pairs = ((pair["key"], pair["value"]) for pair in one.get("attributes", ()))
    return [
        (key, int(v["intValue"]) if "intValue" in v else next(iter(v.values()))) for key, v in pairs
    ]


def value_of(point):
    return float(point.get("asInt", point.get("asDouble")))


def test_each_count_is_exact(tmp_path):
    """On the resource of the process, by communicator, rank and operation."""
    two = {
        wire.COLLECTIVE_ALL_REDUCE: (1_000_003, 4 * 1_000_003),
        wire.COLLECTIVE_BROADCAST: (7, 448),
    }
    reading = rank_of(
        TRAINER,
        9,
        7,
        8,
        completed=1,
        completed_at_s=8.5,
        operations=two,
        waited_ns=1_500_000_001,
        completions=1_000_009,
        failed=2,
        async_error=6,
        rank=3,
    )
    place = (COMM, ("gpu.nccl.rank", 3))

    found = metrics_of(tmp_path, reading, counters(10))
    signature = found.pop(("gpu.nccl.signature", *place))
    assert signature == int(signature) > 0
    assert found == {
        ("gpu.nccl.collectives", *place, ("gpu.nccl.operation", "all_reduce")): 1_000_003,
        ("gpu.nccl.collectives", *place, ("gpu.nccl.operation", "broadcast")): 7,
        ("gpu.nccl.bytes", *place, ("gpu.nccl.operation", "all_reduce")): 4 * 1_000_003,
        ("gpu.nccl.bytes", *place, ("gpu.nccl.operation", "broadcast")): 448,
        ("gpu.nccl.wait.time", *place): 1.500000001,
        ("gpu.nccl.completions", *place): 1_000_009,
        ("gpu.nccl.errors", *place, ("error.type", "_OTHER")): 2,
        ("gpu.nccl.errors", *place, ("error.type", "ncclRemoteError")): 1,
        ("gpu.nccl.sequence", *place, ("gpu.nccl.state", "called")): 2,
        ("gpu.nccl.sequence", *place, ("gpu.nccl.state", "completed")): 1,
        ("gpu.nccl.pending", *place): 1,
        ("gpu.nccl.pending.age", *place): 2,
    }


def test_what_is_pending_grows_older_without_another_reading(tmp_path):
    """A hung rank is read no more, as nothing of it changes; the time goes on."""
    reading = rank_of(TRAINER, 9, 7, 8, completed=1, completed_at_s=7.5)

    assert metrics_of(tmp_path, reading, counters(70))["gpu.nccl.pending.age", *PLACE] == 62


def test_one_that_never_asked_is_as_old_as_its_last_call(tmp_path):
    """It may be done with the others for long, and nobody knows up to which."""
    found = metrics_of(tmp_path, rank_of(TRAINER, 9, 1, 2, 8), counters(10))

    assert found["gpu.nccl.pending", *PLACE] == 3
    assert found["gpu.nccl.pending.age", *PLACE] == 2
    assert COMPLETED not in {key[1:] for key in found}


def test_what_is_not_remembered_is_as_old_as_what_is(tmp_path):
    """Of 40 pending the kernel side knows 16."""
    reading = rank_of(TRAINER, 45, *range(1, 42), completed=1, completed_at_s=1.5)

    found = metrics_of(tmp_path, reading, counters(50))
    assert found["gpu.nccl.pending", *PLACE] == 40
    assert found["gpu.nccl.pending.age", *PLACE] == 50 - 26


def test_nothing_is_pending_where_all_is_done(tmp_path):
    """The gauges stay, at 0."""
    found = metrics_of(tmp_path, rank_of(TRAINER, 9, 7, completed=1, completed_at_s=8), counters(9))

    assert found["gpu.nccl.pending", *PLACE] == 0
    assert found["gpu.nccl.pending.age", *PLACE] == 0
    assert found["gpu.nccl.sequence", *CALLED] == found["gpu.nccl.sequence", *COMPLETED] == 1


@pytest.mark.parametrize(
    "other",
    [
        ALL_REDUCE._replace(elements=(1 << 20) - 1),
        ALL_REDUCE._replace(datatype=9),
        ALL_REDUCE._replace(reduction=1),
        Signature(wire.COLLECTIVE_BROADCAST, 1 << 20, FLOAT32, 255, 0),
        Signature(wire.COLLECTIVE_BROADCAST, 1 << 20, FLOAT32, 255, 1),
    ],
)
def test_calls_that_ask_for_other_things_have_other_signatures(tmp_path, other):
    """And those that ask for the same have the same, whatever process asks."""
    mine = metrics_of(tmp_path, rank_of(TRAINER, 9, 7), counters(9))
    same = metrics_of(tmp_path, rank_of(image(pid=43), 9, 8), counters(9))
    differs = metrics_of(tmp_path, rank_of(TRAINER, 9, 7, signature=other), counters(9))

    name = ("gpu.nccl.signature", *PLACE)
    assert mine[name] == same[name] != differs[name]


def test_one_that_was_made_before_it_was_watched_has_no_numbers(tmp_path):
    """Its first call that was seen is not that of the other ranks; what is pending is known."""
    late = rank_of(TRAINER, 9, 7, id=0, rank=-1, flags=wire.COMMUNICATOR_LATE)

    found = metrics_of(tmp_path, late, counters(10))
    assert {key[0] for key in found} == {
        "gpu.nccl.collectives",
        "gpu.nccl.bytes",
        "gpu.nccl.pending",
        "gpu.nccl.pending.age",
    }
    assert found["gpu.nccl.pending",] == 1
    assert found["gpu.nccl.collectives", ("gpu.nccl.operation", "all_reduce")] == 1


@pytest.mark.parametrize("flag", [wire.COMMUNICATOR_ABORTED, wire.COMMUNICATOR_DESTROYED])
def test_one_that_is_gone_keeps_its_counts_and_waits_for_nothing(tmp_path, flag):
    """What was pending then never ends."""
    found = metrics_of(tmp_path, rank_of(TRAINER, 9, 7, flags=flag), counters(10))

    assert {key[0] for key in found} == {"gpu.nccl.collectives", "gpu.nccl.bytes"}


def test_a_process_that_ended_waits_for_nothing(tmp_path):
    """Its counts are exported once more."""
    found = metrics_of(tmp_path, rank_of(TRAINER, 9, 7), ended(TRAINER, 10), counters(11))

    assert {key[0] for key in found} == {"gpu.nccl.collectives", "gpu.nccl.bytes"}


def test_those_that_are_gone_make_room(tmp_path):
    """Of a process that makes communicators without end the latest are known."""
    gone = {"flags": wire.COMMUNICATOR_DESTROYED}
    made = [rank_of(TRAINER, 9, 7, handle=n, id=n, **gone) for n in range(1, MAX_COMMUNICATORS + 9)]

    found = metrics_of(tmp_path, *made, counters(10))
    comms = {dict(key[1:])["gpu.nccl.comm"] for key in found}
    assert comms == {f"{n:016x}" for n in range(9, MAX_COMMUNICATORS + 9)}


def test_those_for_which_there_is_no_room_are_counted(tmp_path):
    """None of the others can go, as they are in use."""
    made = [rank_of(TRAINER, 9, 7, handle=n, id=n) for n in range(1, MAX_COMMUNICATORS + 4)]

    dropped = [
        (attributes_of(point), value_of(point))
        for request in sent(tmp_path, *made, counters(10))
        for resource in request.get("resourceMetrics", ())
        for scope in resource["scopeMetrics"]
        for metric in scope["metrics"]
        if metric["name"] == "otel_gpu.series.dropped"
        for point in metric["sum"]["dataPoints"]
    ]
    assert ([("reason", "communicators")], 3.0) in dropped


def test_what_is_pending_for_too_long_is_a_warning(tmp_path):
    """With all that tells which one it is, on all ranks alike."""
    reading = rank_of(TRAINER, 9, 7, 8, completed=1, completed_at_s=7.5, rank=2)

    ((service, scope, record),) = logs_of(tmp_path, reading, counters(9.9), counters(10))
    assert (service, scope) == ("train.py", "otel_gpu.nccl")
    assert record["eventName"] == "gpu.nccl.pending"
    assert (record["severityNumber"], record["severityText"]) == (13, "WARN")
    assert int(record["timeUnixNano"]) == capture().unix_ns + 10 * SECOND
    assert not {"traceId", "spanId"} & record.keys()
    assert dict(attributes_of(record)) == {
        "gpu.nccl.comm": "0000000000000abc",
        "gpu.nccl.rank": 2,
        "gpu.nccl.rank_count": 4,
        "gpu.nccl.number": 2,
        "gpu.nccl.operation": "all_reduce",
        "gpu.nccl.elements": 1 << 20,
        "gpu.nccl.datatype": "float32",
        "gpu.nccl.reduction": "sum",
        "gpu.nccl.called": 2,
        "gpu.nccl.completed": 1,
        "gpu.nccl.pending.time": 2,
    }


def test_the_same_collective_is_said_once_and_the_next_one_again(tmp_path):
    """However often it is looked at, and whatever else is called meanwhile."""
    asked = {"completed": 1, "completed_at_s": 1.5}
    first = rank_of(TRAINER, 9, 1, 2, **asked), counters(10), counters(11)
    more = rank_of(TRAINER, 12, 1, 2, 12, **asked), counters(30)
    later = rank_of(TRAINER, 31, 1, 2, 12, completed=2, completed_at_s=31), counters(32)
    done = rank_of(TRAINER, 33, 1, 2, 12, completed=3, completed_at_s=33), counters(99)

    records = logs_of(tmp_path, *first, *more, *later, *done)
    assert [dict(attributes_of(record))["gpu.nccl.number"] for _, _, record in records] == [2, 3]


def test_nothing_is_said_of_a_rank_that_goes_on_calling(tmp_path):
    """A program that asks what is done once a minute waits for nothing in between."""
    asked = {"completed": 1, "completed_at_s": 1}
    steps = [
        (rank_of(TRAINER, at_s, *range(1, at_s + 1), **asked), counters(at_s + 0.9))
        for at_s in range(2, 60)
    ]

    assert logs_of(tmp_path, *(activity for step in steps for activity in step)) == []


@pytest.mark.parametrize(
    "end", [ended(TRAINER, 9.5), rank_of(TRAINER, 9.5, 7, flags=wire.COMMUNICATOR_ABORTED)]
)
def test_nothing_is_said_of_what_nobody_waits_for_any_more(tmp_path, end):
    """Neither of a process that ended nor of a communicator that is gone."""
    assert logs_of(tmp_path, rank_of(TRAINER, 8.9, 8), end, counters(60)) == []


def test_what_is_not_known_of_a_call_is_not_said(tmp_path):
    """Of a collective that is no longer remembered only its number is; of late ones not even that."""
    old = rank_of(TRAINER, 45, *range(1, 42), completed=1, completed_at_s=1.5)
    late = rank_of(image(pid=43), 45, 7, id=0, rank=-1, flags=wire.COMMUNICATOR_LATE)

    one, two = (
        dict(attributes_of(record)) for *_, record in logs_of(tmp_path, old, late, counters(50))
    )
    assert one["gpu.nccl.number"] == 2
    assert "gpu.nccl.operation" not in one
    assert two["gpu.nccl.operation"] == "all_reduce"
    assert not {"gpu.nccl.number", "gpu.nccl.comm", "gpu.nccl.rank"} & two.keys()


def test_a_replay_of_a_node_gives_each_rank_its_own_counts(tmp_path):
    """From records to OTLP: all ranks of eight that one agent watched, each with its job."""
    agents, _ = fleet.record(tmp_path)
    path = tmp_path / "sent.jsonl"
    assert cli.main(["replay", str(agents[4].now), "--otlp-file", str(path)]) == 0
    wanted = {
        (job.name, rank): fleet.readings(job, rank)[1].called
        for job in fleet.JOBS
        for rank in range(job.ranks)
        if fleet.node_of(job, rank) == 4 and (job.id, rank) not in fleet.CAPTURES
    }

    found = {}
    for line in path.read_text().splitlines():
        for resource in json.loads(line).get("resourceMetrics", ()):
            of = dict(attributes_of(resource["resource"]))
            for scope in resource["scopeMetrics"]:
                for metric in scope["metrics"]:
                    if metric["name"] == "gpu.nccl.collectives":
                        (point,) = metric["sum"]["dataPoints"]
                        found[of["otel_gpu.job.name"], of["otel_gpu.rank"]] = value_of(point)
    assert len(found) == len(wanted) == 11
    assert found == wanted


numbers = st.integers(0, (1 << 63) - 1)
small = st.integers(-(1 << 31), (1 << 31) - 1)
signatures = st.builds(
    Signature, st.integers(0, 255), numbers, st.integers(0, 255), st.integers(0, 255), small
)


@settings(max_examples=100, deadline=None)
@given(
    st.fixed_dictionaries(
        dict.fromkeys(("called", "completed", "waited_ns", "completions", "failed"), numbers)
        | dict.fromkeys(("rank", "rank_count", "device", "async_error"), small)
        | {
            "id": st.integers(0, (1 << 64) - 1),
            "flags": st.integers(0, (1 << 32) - 1),
            "operations": st.dictionaries(st.integers(0, 15), st.tuples(numbers, numbers)),
        }
    ),
    signatures,
    st.lists(st.integers(0, 100), max_size=20),
    st.none() | st.integers(0, 100),
    st.integers(0, 200),
)
def test_no_reading_is_too_strange(values, signature, calls, completed_at_s, now_s):
    """What a forged recording says becomes numbers and texts, whatever it is."""
    asked = {"signature": signature, "completed_at_s": completed_at_s}
    reading = rank_of(TRAINER, 50, *calls, **asked, **values)
    pending = PendingCollectives(2.0)

    known = {reading.handle: reading}
    for measurement in measure_collectives(known, capture().unix_ns + now_s, is_alive=True):
        assert measurement.value >= 0
    for _, log in [*pending.observe(reading), *pending.observe(counters(now_s))]:
        assert all(isinstance(value, str | int | float) for _, value in log.attributes)

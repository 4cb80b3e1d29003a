"""The JSON document: the contract of ``explain --json``."""

import json
import re

import pytest

from otel_gpu import wire
from otel_gpu.enrich.activities import PressureActivity
from otel_gpu.report.collector import Collector
from otel_gpu.report.document import Window
from otel_gpu.report.json_form import make_document, to_text
from otel_gpu.wire.frames import Frame
from otel_gpu.wire.probe_table import LAYER_NAMES
from tests import schemas
from tests.activities import (
    SECOND,
    T0,
    aggregate,
    call_stack,
    calls,
    capture,
    counters,
    image,
    series,
    snapshot,
)
from tests.schemas import REPORT
from tests.unit.report.samples import (
    HOG,
    MS,
    FakeExplainer,
    feeding,
    incident,
    preempted,
    times,
    with_stacks,
)

TRAINER = image(42, 1)


def document_of(explainer, *activities, **kwargs):
    collector = Collector(explainer, **kwargs)
    for activity in (capture(), *activities):
        collector.observe(activity)
    return make_document(collector.finish("train.otelgpu"))


def full_document():
    first = with_stacks(preempted(TRAINER, SECOND, "c1"))
    second = preempted(TRAINER, 2 * SECOND, "c2")
    gap = second.effect._replace(kind="slow_gap", api="cudaMemcpy", span_id=b"")
    second = second._replace(effect=gap)
    return document_of(
        FakeExplainer(
            late=[first, second],
            incidents=[incident(first, second)],
        ),
        feeding(1, TRAINER),
        snapshot(1, calls(TRAINER, "cudaMalloc", [2_000] * 10, size_bytes=77)),
        times(2, TRAINER, (1, 0, "", 5, 2)),
        snapshot(2, calls(TRAINER, "cudaFree", [2_000], size_bytes=7)),
        snapshot(2, series(TRAINER, wire.METRIC_ELAPSED_TIME, aggregate([3_000]))),
        PressureActivity(T0 + SECOND, {"load1": 1.5}),
        counters(3, lost_ring_full=1),
    )


@pytest.mark.parametrize("validator", schemas.ALL)
def test_a_schema_is_one(validator):
    """A schema with a mistake would let anything pass."""
    validator.check_schema(validator.schema)


def test_a_document_with_everything_is_as_the_schema_says():
    """Every part is there, and nothing that the schema does not know."""
    document = full_document()

    REPORT.validate(document)
    assert {part for part in document if not document[part]} == {
        "advice",
        "communicators",
        "devices",
        "examples",
        "steps",
        "uncovered",
    }


def test_an_empty_document_is_as_the_schema_says():
    """A capture that saw nothing has a document too."""
    REPORT.validate(document_of(FakeExplainer()))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["schema_version"], 1),
        (["window", "start_unix_ns"], 1.5),
        (["more"], 1),
        (["apis", 0, "calls"], -1),
        (["apis", 0, "layer"], "kernel"),
        (["chains", 0, "effect", "kind"], "slow"),
        (["chains", 0, "effect", "span_id"], "XYZ"),
        (["chains", 0, "causes", 0, "culprit"], {}),
        (["chains", 0, "causes", 1, "via"], []),
        (["incidents", 0, "severity"], "HIGH"),
        (["losses", "ring_full"], 0),
        (["chains", 0, "effect", "stack"], "ab"),
        (["stacks"], {}),
        (["stacks", "ab"], {}),
        (["stacks", "00000000000000ab", "native"], "guessed"),
        (["stacks", "00000000000000ab", "frames", 0, "type"], "jvm"),
        (["stacks", "00000000000000ab", "frames", 0, "line"], 0),
    ],
)
def test_the_schema_refuses_what_is_no_such_document(path, value):
    """The schema says something: each of these departures is found."""
    document = full_document()
    inside = document
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = value

    assert not REPORT.is_valid(document)


def test_a_chain_is_told_whole():
    """Effect, causes with culprits and evidence, hops below their cause, and the rest."""
    assert full_document()["chains"][0] == {
        "id": "c1",
        "effect": {
            "kind": "slow_call",
            "api": "cudaLaunchKernel",
            "pid": 42,
            "process": "42-1",
            "tid": 42,
            "comm": "trainer",
            "start_unix_ns": T0 + SECOND,
            "duration_ns": 10 * MS,
            "excess_ns": 10 * MS - 4_000,
            "trace_id": "74" * 16,
            "span_id": "7373737373737373",
            "stack": "9c1fb4e17d2a6b03",
        },
        "causes": [
            {
                "kind": "preemption",
                "time_ns": 7 * MS,
                "share": 0.7,
                "culprit": {"pid": 900, "tid": 901, "comm": "cc1plus"},
                "evidence": ["c1-rq"],
            },
            {
                "kind": "ipc",
                "time_ns": MS,
                "share": 0.1,
                "culprit": {"pid": 42, "tid": 43, "comm": "pt_data_worker"},
                "evidence": ["c1-b"],
                "stack": "00000000000000ab",
                "via": [
                    {
                        "kind": "run_queue",
                        "time_ns": MS // 2,
                        "share": 0.05,
                        "culprit": {"pid": 900, "tid": 901, "comm": "cc1plus"},
                        "evidence": ["c1-w"],
                    }
                ],
            },
        ],
        "unexplained_ns": 2 * MS,
        "severity": "medium",
    }


def test_a_stack_is_told_once():
    """Under its id, innermost frame first, without what is not known of a frame."""
    assert full_document()["stacks"] == {
        "00000000000000ab": {
            "complete": False,
            "native": "eh_frame",
            "python": "ok",
            "frames": [
                {
                    "type": "cpython",
                    "function": "Queue.get",
                    "file": "/usr/lib/python3.11/queue.py",
                    "line": 180,
                },
                {"type": "cpython", "function": "step", "file": "/app/train.py", "line": 40},
            ],
            "place": {"type": "cpython", "function": "step", "file": "/app/train.py", "line": 40},
        },
        "9c1fb4e17d2a6b03": {
            "complete": True,
            "native": "eh_frame",
            "python": "ok",
            "frames": [
                {
                    "type": "cuda",
                    "function": "cudaMalloc",
                    "module": "libcudart.so.12",
                    "address": 0x1200,
                },
                {
                    "type": "native",
                    "function": "at::native::empty_cuda",
                    "module": "libtorch_cuda.so",
                    "address": 0x99,
                },
                {
                    "type": "cpython",
                    "function": "fragmentation_pattern",
                    "file": "/app/train.py",
                    "line": 74,
                },
                {"type": "cpython", "function": "<module>", "file": "/app/train.py", "line": 102},
            ],
            "place": {
                "type": "cpython",
                "function": "fragmentation_pattern",
                "file": "/app/train.py",
                "line": 74,
            },
        },
    }


def test_a_deep_stack_loses_its_middle():
    """A document of a thousand chains stays one that can be read."""
    frames = tuple(Frame("cpython", f"f{number}", "/a.py", 1) for number in range(200))
    chain = preempted(TRAINER, SECOND)
    effect = chain.effect._replace(stack=call_stack(1, frames))
    document = document_of(FakeExplainer(late=[chain._replace(effect=effect)]))

    REPORT.validate(document)
    told = document["stacks"]["0000000000000001"]["frames"]
    assert len(told) == 64
    assert told[42] == {"type": "cut", "function": "137 frames left out"}
    assert (told[0]["function"], told[-1]["function"]) == ("f0", "f199")


def test_without_stacks_a_document_says_nothing_of_them():
    """What was written before there were any is as it was."""
    document = document_of(FakeExplainer(late=[preempted(TRAINER, SECOND)]))

    assert "stacks" not in document
    assert "stack" not in document["chains"][0]["effect"]


def test_evidence_stands_once_under_its_id():
    """Whatever a cause rests on can be looked up, with who had the CPU and who ended the wait."""
    document = full_document()

    named = {
        name
        for chain in document["chains"]
        for cause in chain["causes"]
        for one in (cause, *cause.get("via", ()))
        for name in one["evidence"]
    }
    assert set(document["evidence"]) == named
    assert document["evidence"]["c1-b"] == {
        "id": "c1-b",
        "kind": "blocked",
        "start_unix_ns": T0 + SECOND + 8 * MS,
        "end_unix_ns": T0 + SECOND + 9 * MS,
        "culprit": None,
        "waker": {"pid": 42, "tid": 43, "comm": "pt_data_worker"},
        "reason": "ipc",
        "functions": ["pipe_read", "vfs_read", "ksys_read", "do_syscall_64"],
        "span_id": "",
        "stack": "00000000000000ab",
        "is_cpu_idle": False,
    }


def test_rows_name_their_process():
    """By its pid, and by the image under it: a pid can run one program after the other."""
    document = full_document()

    assert [(row["pid"], row["process"]) for row in document["off_cpu"]] == [(42, "42-1")]
    assert {(row["context"], row["state"]) for row in document["off_cpu"]} == {("gap", "run_queue")}
    assert document["time_buckets"][0]["process"] is None
    assert {row["process"] for row in document["time_buckets"][1:]} == {None, "42-1"}


def test_a_long_name_is_whole_in_the_document():
    """What is short on a screen is found again by its whole name."""
    whole = "void at::masked_fill_kernel<" + "float, " * 80 + "int>(int)"
    chain = preempted(TRAINER, SECOND)
    frame = Frame("native", whole, module="libtorch_cuda.so")
    effect = chain.effect._replace(stack=call_stack(1, (frame,)))
    document = document_of(FakeExplainer(late=[chain._replace(effect=effect)]))

    assert document["stacks"]["0000000000000001"]["frames"][0]["function"] == whole


def test_every_chain_that_an_incident_names_is_listed():
    """Whoever follows an id finds a chain; the number of effects is told besides."""
    explainer = FakeExplainer(
        late=[preempted(TRAINER, SECOND, "known")],
        incidents=[
            incident(preempted(TRAINER, SECOND, "known"), preempted(TRAINER, 2 * SECOND, "gone"))
        ],
    )

    (told,) = document_of(explainer)["incidents"]

    assert (told["chains"], told["effects"]) == (["known"], 2)


def test_a_process_without_an_account_is_unknown():
    """No verdict is a verdict too, and the command is readable."""
    named = image(42, 1)
    named.attributes["process.command_args"] = ("python3", "train.py")
    document = document_of(
        FakeExplainer(), snapshot(1, calls(named, "cudaFree", [1])), window=Window(T0, T0 + SECOND)
    )

    assert document["processes"] == [
        {
            "pid": 42,
            "process": "42-1",
            "service_name": "trainer",
            "command": "python3 train.py",
            "start_unix_ns": T0 + 1,
            "places": {},
            "verdict": "unknown",
            "verdict_shares": {},
            "budget_ns": {},
            "time_tree": None,
        }
    ]


def test_the_text_of_a_document_is_safe_to_print_and_says_the_same():
    """JSON allows characters that a terminal obeys; we escape them, and parsers undo it."""
    chain = preempted(TRAINER, SECOND)
    name = "\x9b2J\x1b]0;owned\x07\u202e\ud800😀é"
    cause = chain.causes[0]._replace(culprit=HOG._replace(comm=name))
    document = document_of(FakeExplainer(late=[chain._replace(causes=(cause,))]))

    text = to_text(document)

    assert {c for c in text if not c.isprintable()} == {"\n"}
    assert "😀é" in text
    assert re.search(r"\\u009b2J\\u001b\]0;owned\\u0007\\u202e\\ud800", text)
    assert json.loads(text) == document


def test_calls_of_each_layer_have_a_place_in_the_document():
    """Of NCCL and of verbs, too."""
    layer = REPORT.schema["$defs"]["api_totals"]["properties"]["layer"]

    assert set(layer["enum"]) == set(LAYER_NAMES.values())

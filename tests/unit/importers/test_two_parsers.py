"""What is strict JSON is parsed at once, and anything else event by event: nobody can tell which it was."""

import gzip
import json
import math
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import DecodeError

from otel_gpu.errors import RecordingError
from otel_gpu.importers import open_capture
from otel_gpu.importers.torch_trace import rows, scanner
from otel_gpu.options import Config
from otel_gpu.wire.device_activity import DeviceActivities, HostOperations
from tests.unit.importers.traces import T0_US, call, host, kernel, step, trace, write

REAL = os.environ.get("OTEL_GPU_TEST_TORCH_DATA", "")
SHAPES = {"Input Dims": [[4, 8], [[8, 4], []]], "Input type": ["float", "é"]}
MANY = [
    {"ph": "M", "name": "thread_name", "pid": 100, "tid": 100, "ts": 0, "args": {"name": "main"}},
    step(1, 0, 5_000),
    *(
        event
        for number in range(1, 40)
        for event in (
            host("aten::mm", 100 * number, 20, **SHAPES),
            call("cudaLaunchKernel", 100 * number + 5, 4, number),
            kernel(100 * number + 30, 40.25, number, f"gemm{number % 5}", bytes=7 * number),
            {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": number, "pid": 1, "tid": 1, "ts": T0_US},
        )
    ),
    kernel(4_500, 30, 77, "ncclKernel", **{"Collective name": "allreduce", "Seq": 3, "In msg nelems": 9, "dtype": "Float"}),
]  # fmt: skip
TEXTS = [json.dumps(trace(MANY), indent=1), json.dumps(trace(MANY)), json.dumps(MANY)]


def columns(table):
    return {name: getattr(table, name) for name in type(table).__slots__}


def read(path):
    """All that is read of a trace, and of what was not; or why it is none."""
    with open_capture("torch-trace", path, Config()) as capture:
        try:
            *_, found = capture.events()
        except RecordingError as error:
            return str(error)
        made = found.trace
        assert isinstance(made.activities, DeviceActivities)
        assert isinstance(made.host, HostOperations)
        return {
            **made._asdict(),
            "names": list(made.names),
            "shapes": list(made.shapes),
            "activities": columns(made.activities),
            "host": columns(made.host),
            "taken": capture.counts.taken,
            "left_out": capture.counts.left_out,
        }


@pytest.fixture
def both(monkeypatch):
    """What both parsers read of a file."""

    def of(path):
        with monkeypatch.context() as patch:
            patch.setattr(scanner, "decode", refuse)
            singly = read(path)
        return read(path), singly

    return of


def refuse(_):
    raise DecodeError


@pytest.mark.parametrize("text", TEXTS, ids=["indented", "in-one-line", "a-list-alone"])
def test_nearly_all_is_parsed_at_once(tmp_path, monkeypatch, text):
    """Else both would agree for another reason."""
    singly = Counter()

    def counted(parsed):
        singly["events"] += 1
        return rows_of(parsed)

    rows_of = scanner.event_of
    monkeypatch.setattr(scanner, "event_of", counted)

    found = read(write(tmp_path / "trace.json", text))

    assert found["taken"]["activities of devices"] == 40
    assert singly["events"] <= 2


def test_one_that_is_not_strict_costs_those_beside_it_only(tmp_path, monkeypatch):
    """What is parsed twice is bounded, not the whole file."""
    singly = Counter()
    event_of = scanner.event_of
    monkeypatch.setattr(scanner, "AT_ONCE_CHARACTERS", 2_000)
    monkeypatch.setattr(
        scanner, "event_of", lambda parsed: singly.update(["events"]) or event_of(parsed)
    )
    text = TEXTS[0].replace('"gemm3"', '"ge\tmm3"', 1)

    found = read(write(tmp_path / "trace.json", text))

    assert found["taken"]["activities of devices"] == 40
    assert 1 < singly["events"] < 20


harms = st.lists(
    st.tuples(
        st.integers(0, len(TEXTS[0])),
        st.integers(0, 40),
        st.sampled_from(
            ["", "}", "{", '"', "\\", "[", "]", ",", ":", "NaN", "-Infinity", "1e999", "1e-999", "-", "-0", "01",
             "\x00", "\x1f", "\x7f", "\ufffd", "\u2028", "\U0001f600", '"\\ud800"', '"\\ud83d\\ude00"', '"\\g"',
             '{"ph": "X"}', "null", "true", str(1 << 63), str(1 << 64), str(-(1 << 63) - 1), "9" * 400,
             "0.1", "1.0", "1E3", "1669783687464181.123", "9007199254740993", "[[[[]]]]", "},{", "}{", "},\n  {",
             '"args": 5', '"args": {"device": "0"}, ', '"Input Dims": {}, ', '"Input Dims": [NaN], ', '"ts": "5", ']
        ),
    ),
    min_size=1,
    max_size=5,
)  # fmt: skip


@given(st.sampled_from(TEXTS), harms, st.sampled_from([40, 200, 1_000, 1 << 16]))
@settings(
    max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_whatever_is_wrong_both_read_the_same(tmp_path, both, monkeypatch, text, harms, at_once):
    """The same rows in the same order, and the same damage."""
    monkeypatch.setattr(scanner, "AT_ONCE_CHARACTERS", at_once)
    for at, cut, put in harms:
        text = text[:at] + put + text[at + cut :]

    at_once, singly = both(write(tmp_path / "trace.json", text))

    assert repr(at_once) == repr(singly)


VALUES = [None, True, "5", "stream 7", [1], {"a": 1}, 1e400, -1, 0, 2.5, 1 << 70, "x" * 600]


@given(
    st.lists(
        st.tuples(
            st.integers(0, len(MANY) - 1),
            st.sampled_from(["ts", "dur", "pid", "tid", "name", "cat", "args", "ph"]),
            st.sampled_from(VALUES),
        ),
        max_size=8,
    ),
    st.dictionaries(
        st.sampled_from(["device", "stream", "correlation", "bytes", "blocks per SM", "Collective name", "Seq", "seq",
                         "est. achieved occupancy %", "Input Dims", "Input type", "Group size", "dtype"]),
        st.sampled_from(VALUES), max_size=6,
    ),
)  # fmt: skip
@settings(
    max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_any_value_is_read_alike(tmp_path, both, changes, arguments):
    """In any place of any event."""
    made = [dict(one) for one in MANY]
    for at, key, value in changes:
        made[at][key] = value
    made += [kernel(9_000, 5, **arguments), host("aten::add", 9_000, 5, **arguments)]

    at_once, singly = both(write(tmp_path / "trace.json", trace(made)))

    assert repr(at_once) == repr(singly)


def test_null_is_as_if_nothing_stood_there(tmp_path):
    """Of what an event needs and of what it may say."""
    made = [kernel(10, 5, device=None, stream=None), *(kernel(20, 5) for _ in range(3))]
    made[0] |= {"pid": 3, "tid": "stream 9"}
    made[1]["ts"] = None
    made[2]["name"] = None
    made[3] |= {"ts": math.inf, "dur": None}

    found = read(write(tmp_path / "trace.json", trace(made)))

    assert list(found["activities"]["devices"]) == [3]
    assert list(found["activities"]["streams"]) == [9]
    assert found["rejected"] == {"events without what they need": 3}


def test_shapes_are_known_again_by_their_text(tmp_path, monkeypatch):
    """As many of them as there is room for, and the others are parsed again."""
    monkeypatch.setattr(rows, "_MAX_SHAPES", 1)
    shapes = [[[1]], [[2]], [[ 1 ]], [[2]], []]  # fmt: skip
    made = [
        host("aten::mm", 10 * at, 5, **{"Input Dims": shape}) for at, shape in enumerate(shapes)
    ]

    found = read(write(tmp_path / "trace.json", trace(made)))

    assert found["shapes"] == ["", "[[1]] ", "[[2]] "]
    assert list(found["host"]["shapes"]) == [1, 2, 1, 2, 0]


@pytest.mark.skipif(not REAL, reason="needs OTEL_GPU_TEST_TORCH_DATA: a folder of real artefacts")
def test_real_traces_are_read_alike(both):
    """Of all versions of torch that there are traces of."""
    found = [path for path in Path(REAL).rglob("*.json*") if is_trace(path)]
    assert found
    for path in found:
        at_once, singly = both(path)
        assert repr(at_once) == repr(singly), path


def is_trace(path):
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as stream:
        return b'"traceEvents"' in stream.read(1 << 20)

"""Stacks of Ingero as stacks of ours."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu import wire
from otel_gpu.config import Config
from otel_gpu.decode.decoder import decode
from otel_gpu.decode.events import CudaCall, Stall
from otel_gpu.decode.referents import UserStack
from otel_gpu.enrich.activities import CallActivity
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.importers import open_capture
from otel_gpu.importers.ingero import stack_samples as stacks
from otel_gpu.importers.ingero.stack_samples import read_frames
from otel_gpu.records import json_record
from otel_gpu.stacks.frames import MAX_TEXT, Frame
from tests.unit.importers.databases import MS, SECOND, T0, Database

PYTHON = [
    {"pf": "/app/layers.py", "pfn": "forward", "pl": 124},
    {"pf": "/app/t.py", "pfn": "<module>"},
]
NATIVE = [{"s": "_ZN2at6native5emptyEl+0x1e3", "f": "libtorch.so"}, {"i": "0x7f", "f": "libc10.so"}]
FRAMES = (
    Frame("native", "at::native::empty(long)", module="libtorch.so"),
    # The address is one in the process, which says nothing about the library.
    Frame("native", "", module="libc10.so"),
    # 124 is where the function begins, which is no place on a stack.
    Frame("cpython", "forward", "/app/layers.py"),
    Frame("cpython", "<module>", "/app/t.py"),
)


@pytest.fixture
def database(tmp_path):
    return Database(tmp_path / "x.db")


def read(database):
    """All events, and the account."""
    with open_capture("ingero", database.path, Config()) as capture:
        return list(capture.events()), capture.tally


def keep(database, stack_hash, items):
    text = items if isinstance(items, str) else json.dumps(items)
    database.insert("stack_traces", hash=stack_hash, ips="", frames=text)


def told(database):
    """Stacks, and the ids that calls have, in the order of the stream."""
    events, _ = read(database)
    return [
        event if isinstance(event, UserStack) else event.user_stack
        for event in events
        if isinstance(event, UserStack | CudaCall | Stall)
    ]


def test_native_frames_come_first_and_have_names():
    """The tool writes the Python functions, which called them, before them."""
    assert read_frames(json.dumps([*PYTHON, *NATIVE])) == (
        FRAMES[0]._replace(function="_ZN2at6native5emptyEl"),
        *FRAMES[1:],
    )


def test_a_call_has_its_stack(database):
    """
    It is told before the first call that names it, and says how it was found: by frame
    pointers, which end early, and with Python that may be of another moment.
    """
    keep(database, -5, [*PYTHON, *NATIVE])
    database.event("cudaMalloc", T0 + SECOND, MS, stack_hash=-5)
    database.event("cudaMalloc", T0 + 2 * SECOND, MS, stack_hash=-5)

    first, *calls = told(database)

    number = first.stack
    assert first == UserStack(
        T0 + SECOND + MS, number, FRAMES, complete=False, native="frame_pointer", python="cut"
    )
    assert calls == [number, number]


@pytest.mark.parametrize(
    ("items", "native", "python"),
    [(NATIVE, "frame_pointer", "none"), (PYTHON, "none", "cut")],
)
def test_what_a_stack_lacks_is_said(database, items, native, python):
    """That there are no frames of Python does not mean that there was none."""
    keep(database, 1, items)
    database.event("cudaMalloc", T0 + SECOND, MS, stack_hash=1)

    stack, _ = told(database)

    assert (stack.native, stack.python, stack.complete) == (native, python, False)


def test_equal_stacks_have_equal_ids(database):
    """The tool's hashes are of addresses, which are others in every process."""
    for number in (1, 2):
        keep(database, number, PYTHON)
    keep(database, 3, NATIVE)
    for number in (1, 2, 3):
        database.event("cudaMalloc", T0 + number * SECOND, MS, stack_hash=number)

    one, first, second, other, third = told(database)

    assert (first, second, third) == (one.stack, one.stack, other.stack)
    assert one.stack != other.stack


def test_what_it_becomes_is_what_a_recording_could_hold(database):
    """A stack that is written into a recording is read back as it is."""
    keep(database, 1, [*PYTHON, *NATIVE, {"s": "x" * 5_000}, {"pfn": "\ud800\x00", "pf": "/a"}])
    database.event("cudaMalloc", T0 + SECOND, MS, stack_hash=1)
    stack, _ = told(database)
    body = {
        "stack": stack.stack,
        "complete": stack.complete,
        "native": stack.native,
        "python": stack.python,
        "frames": stack.frames,
    }

    record = json_record(wire.RECORD_USER_STACK, stack.ktime_ns, body)

    assert list(decode([record], {})) == [stack]
    assert max(len(frame.function) for frame in stack.frames) == MAX_TEXT


def test_enrich_knows_the_stacks_of_calls(database):
    """All rooms after it take it for a stack like any other."""
    keep(database, 1, [*PYTHON, *NATIVE])
    database.event("cudaMalloc", T0 + SECOND, MS, stack_hash=1)
    events, _ = read(database)

    (call,) = [a for a in Enricher().enrich(events) if isinstance(a, CallActivity)]

    assert call.stack.frames == FRAMES
    assert call.stack.place == FRAMES[2]


def test_every_row_is_counted_once(database):
    """Taken, rejected, or of no call that was taken; a call whose stack is not there has none."""
    keep(database, 1, PYTHON)
    keep(database, 2, "{")
    keep(database, 3, NATIVE)
    keep(database, 4, NATIVE)
    for number, stack_hash in enumerate((1, 1, 2, 2, 99, 0)):
        database.event("cudaMalloc", T0 + number * SECOND, MS, stack_hash=stack_hash)

    events, tally = read(database)

    assert [bool(e.user_stack) for e in events if isinstance(e, CudaCall)] == [True] * 2 + [
        False
    ] * 4
    assert tally.taken["stacks of functions"] == 1
    assert tally.rejected == {"bad_stack": 1}
    assert tally.left_out == {"stacks of functions: of no call that was taken": 2}


def test_a_time_off_the_cpu_has_no_stack(database):
    """Where a row of one has a hash, what it was waiting for is still not known."""
    keep(database, 1, PYTHON)
    database.event("cudaMalloc", T0 + SECOND, 9 * MS)
    database.event("sched_switch", T0 + SECOND + 5 * MS, MS, stack_hash=1)

    assert told(database) == [0, 0]


def test_a_stack_that_may_be_forgotten_is_told_again(database, monkeypatch):
    """Whoever reads the events remembers the latest ones only."""
    monkeypatch.setattr(stacks, "_MAX_SENT", 2)
    for number in (1, 2, 3):
        keep(database, number, [{"s": f"f{number}"}])
    for place, number in enumerate((1, 2, 1, 3, 1, 2)):
        database.event("cudaMalloc", T0 + place * SECOND, MS, stack_hash=number)

    names = [one.frames[0].function for one in told(database) if isinstance(one, UserStack)]

    assert names == ["f1", "f2", "f3", "f2"]
    assert read(database)[1].taken["stacks of functions"] == 3


def test_only_so_many_stacks_are_taken(database, monkeypatch):
    """The rest is counted as left out."""
    monkeypatch.setattr(stacks, "MAX_STACKS", 2)
    for number in (1, 2, 3):
        keep(database, number, [{"s": f"f{number}"}])
        database.event("cudaMalloc", T0 + number * SECOND, MS, stack_hash=number)

    events, tally = read(database)

    assert sum(isinstance(event, UserStack) for event in events) == 2
    assert tally.left_out == {"stacks of functions: of no call that was taken": 1}


@pytest.mark.parametrize(
    "table",
    [
        "CREATE TABLE stack_traces (hash INTEGER, ips TEXT, frames TEXT)",
        "CREATE TABLE stack_traces (hash INTEGER PRIMARY KEY, frames TEXT) WITHOUT ROWID",
        "CREATE TABLE stack_traces (hash INTEGER PRIMARY KEY)",
        "CREATE VIEW stack_traces AS SELECT 1 AS hash, '[]' AS frames",
    ],
)
def test_a_table_of_another_make_has_no_stacks(database, table):
    """One without the key would be looked through from end to end for every call."""
    database.run("DROP TABLE stack_traces")
    database.run(table)
    if "frames TEXT" in table:
        database.insert("stack_traces", hash=7, frames=json.dumps(PYTHON))
    database.event("cudaMalloc", T0 + SECOND, MS, stack_hash=7)

    assert told(database) == [0]


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "null", "7", '{"s": "f"}', "[" * 100_000, '[{"s": 1, "f": null}]'),
        *("[[], 3, {}]", json.dumps([{"s": "f"}] * 300), json.dumps([{"s": "f" * 300_000}])),
        *(None, 7, b"[]"),
    ],
)
def test_what_is_no_stack_has_no_frames(text):
    """The value may be anything; one with more frames than a thread can have is none."""
    assert read_frames(text) == ()


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["s", "f", "i", "pf", "pfn", "pl", "x"]),
            st.one_of(st.text(max_size=20), st.integers(), st.none(), st.lists(st.integers())),
        )
    )
)
def test_frames_are_made_of_what_is_text(items):
    """Whatever else is in a frame is not looked at, and no frame is empty."""
    for frame in read_frames(json.dumps(items)):
        assert frame.function or frame.file or frame.module
        assert frame.kind in ("native", "cpython")
        assert (frame.line, frame.address) == (0, 0)

"""Timelines as Chrome trace events: what is drawn is what the format asks for, and nothing is lost."""

import io
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.report.render import perfetto
from otel_gpu.report.render.perfetto import PerfettoFile
from otel_gpu.report.timeline.tracks import Arrow, Instant, Level, Slice, Track
from tests.unit.report.render.chrome_trace import check

T0 = 1_750_000_000_123_456_789
TRACK = Track(4242, "trainer", 4243, "python")


def drawn(draw):
    """The events of a timeline that ``draw`` draws, and the file that drew it."""
    stream = io.StringIO()
    file = PerfettoFile(stream, T0)
    draw(file)
    file.close("x.otelgpu", ["a note"], {"ring_full": 3})
    document = json.loads(stream.getvalue())
    return check(document), document, file


def named(events, phase):
    return [event for event in events if event["ph"] == phase]


def test_an_empty_timeline_is_one():
    """A recording in which nothing happened still opens."""
    events, document, _ = drawn(lambda _: None)

    assert events == []
    assert document["otherData"]["losses"] == {"ring_full": 3}
    assert document["otherData"]["notes"] == ["a note"]


def test_times_are_exact():
    """To the nanosecond, from the origin that the file names."""
    events, document, _ = drawn(
        lambda file: file.ended(Slice(TRACK, "cudaMalloc", "cuda", T0 + 1, T0 + 1_235))
    )

    (found,) = named(events, "X")
    origin = int(document["otherData"]["origin_unix_ns"])
    assert origin + round(found["ts"] * 1_000) == T0 + 1
    assert found["dur"] == 1.234
    assert (found["pid"], found["tid"]) == (4242, 4243)
    assert {event["name"]: event["args"] for event in named(events, "M")} == {
        "process_name": {"name": "trainer"},
        "thread_name": {"name": "python (4243)"},
        "thread_sort_index": {"sort_index": 4243},
    }


def test_all_phases_are_whole():
    """An arrow from one thread to another, a moment and a counter."""

    def draw(file):
        source = file.ended(Slice(TRACK, "a", "c", T0, T0 + 10))
        target = file.ended(Slice(TRACK._replace(thread=7), "b", "c", T0 + 5, T0 + 30))
        file.arrow(Arrow("then", "cause", source, T0, target, T0 + 29))
        file.instant(Instant(TRACK, "incident", "incident", T0, {"do": ["this", "that"]}))
        file.level(Level(0, "host", "load", T0, {"threads": 1.5}))

    events, _, file = drawn(draw)

    (start,), (end,) = named(events, "s"), named(events, "f")
    assert (start["tid"], end["tid"], end["bp"]) == (4243, 7, "e")
    assert named(events, "i")[0]["args"] == {"do": ["this", "that"]}
    assert named(events, "C")[0]["args"] == {"threads": 1.5}
    assert file.written == {"slices": 2, "arrows": 1, "instants": 1, "counter values": 1}


intervals = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 20)).map(lambda one: (one[0], one[0] + one[1])),
    max_size=60,
)


@given(intervals)
def test_whatever_ends_in_order_lies_in_each_other_or_beside(found):
    """No slice is lost, and none lies across another one of its row."""

    def draw(file):
        for start, end in sorted(found, key=lambda one: (one[1], -one[0])):
            assert file.ended(Slice(TRACK, "x", "c", T0 + start, T0 + end))

    events, _, _ = drawn(draw)
    assert len(named(events, "X")) == len(found)


@given(intervals)
def test_whatever_begins_in_order_lies_in_each_other_or_beside(found):
    """The same of what is sorted by its start."""

    def draw(file):
        for start, end in sorted(found, key=lambda one: (one[0], -one[1])):
            assert file.began(Slice(TRACK, "x", "c", T0 + start, T0 + end))

    events, _, _ = drawn(draw)
    assert len(named(events, "X")) == len(found)


@given(intervals, st.booleans())
def test_no_order_makes_a_file_wrong(found, began):
    """What comes in no order at all, as clocks of others have it, is drawn beside or counted."""

    def draw(file):
        for start, end in found:
            slice_ = Slice(TRACK, "x", "c", T0 + start, T0 + end)
            (file.began if began else file.ended)(slice_)

    events, _, file = drawn(draw)
    assert len(named(events, "X")) + sum(file.left_out.values()) == len(found)


def test_calls_that_nest_stay_on_their_thread():
    """The driver's call ends first, and lies in the runtime's."""

    def draw(file):
        for start, end in [(2, 4), (5, 6), (1, 8), (9, 10)]:
            file.ended(Slice(TRACK, "x", "c", T0 + start, T0 + end))

    events, _, _ = drawn(draw)
    assert {event["tid"] for event in named(events, "X")} == {4243}


def test_too_many_across_each_other_are_counted(monkeypatch):
    """Rows beside a thread are bounded, and what found no room is said."""
    monkeypatch.setattr(perfetto, "MAX_LANES", 2)

    def draw(file):
        for at in range(5):
            file.began(Slice(TRACK, "x", "c", T0 + at, T0 + 10 + at))

    events, document, _ = drawn(draw)
    assert len(named(events, "X")) == 2
    assert document["otherData"]["notes"][1].startswith("3 slices")


@pytest.mark.parametrize("text", ["\x1b[2J\u202e", "</script>", '"},{"ph":"X"', "\ud800"])
def test_names_of_others_are_inert(text):
    """Nothing that a traced program chose is obeyed by a terminal, or ends the text."""

    def draw(file):
        track = Track(1, text, 2, text)
        file.ended(Slice(track, text, "c", T0, T0 + 1, {"stack": [text]}))
        file.instant(Instant(track, text, "c", T0, {"x": text}))

    events, _, _ = drawn(draw)
    assert len(events) == 5
    assert "\x1b" not in json.dumps(events, ensure_ascii=False)
    assert "\u202e" not in json.dumps(events, ensure_ascii=False)


def test_times_before_the_origin_are_moved_to_it():
    """Readers drop what is before the beginning of time."""
    events, _, _ = drawn(lambda file: file.ended(Slice(TRACK, "x", "c", 5, T0)))

    assert named(events, "X")[0]["ts"] == 0


def test_memory_is_bounded():
    """Of a million slices no more is kept than of a few thousand."""

    class Nowhere(io.StringIO):
        def write(self, text):
            return len(text)

    file = PerfettoFile(Nowhere(), T0)
    for at in range(10_000):
        file.ended(Slice(TRACK, "x", "c", T0 + at * 10, T0 + at * 10 + 5))
    tracemalloc.start()
    try:
        for at in range(10_000, 60_000):
            file.ended(Slice(TRACK, "x", "c", T0 + at * 10, T0 + at * 10 + 5))
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()

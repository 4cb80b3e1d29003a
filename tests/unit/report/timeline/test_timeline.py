"""A timeline that fits on a page: what is long stays, what is short is added up, nothing is lost uncounted."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.report.timeline.timeline import (
    MAX_DEPTH,
    MAX_LANES,
    MAX_MARKS,
    MAX_ROWS,
    WAITS,
    TimelineDrawing,
)
from otel_gpu.report.timeline.tracks import Arrow, ArrowEnd, Instant, Level, Slice, Track

T0 = 1_750_000_000_123_456_789
THREAD = Track(4242, "trainer", 4243, "python")
STREAM = Track(1 << 30, "device 0 (x.json)", 7, "stream 7", is_device=True)


def slices(track, *spans, category="cuda"):
    return [Slice(track, f"{start}", category, T0 + start, T0 + end) for start, end in spans]


def drawn(*ended, began=(), most=1_000):
    drawing = TimelineDrawing(most)
    for one in ended:
        drawing.ended(one)
    for one in began:
        drawing.began(one)
    return drawing.finish()


def lanes(timeline):
    """By group and row, the names of the items in each lane."""
    return {
        (group.name, row.track.thread_name, row.track.role): [
            [item.name for item in lane] for lane in row.lanes
        ]
        for group in timeline.groups
        for row in group.rows
    }


def test_what_fits_stays_as_it_is():
    """To the nanosecond, with what it is called."""
    timeline = drawn(*slices(THREAD, (0, 1), (5, 1_235)))

    assert [tuple(item) for item in timeline.items()] == [
        (T0, T0 + 1, "0", "cuda", 1, 1, 1),
        (T0 + 5, T0 + 1_235, "5", "cuda", 1, 1_230, 1_230),
    ]
    assert (timeline.device_quantum_ns, timeline.thread_quantum_ns, timeline.left_out) == (0, 0, 0)


def test_what_lies_in_something_is_a_lane_lower():
    """In whichever order it comes: by starts, or a call after those in it."""
    by_start = slices(THREAD, (0, 100), (10, 40), (20, 30), (50, 60), (100, 110))
    by_end = slices(THREAD, (20, 30), (10, 40), (50, 60), (0, 100), (100, 110))

    expected = {("trainer (4242)", "python", ""): [["0", "100"], ["10", "50"], ["20"]]}
    assert lanes(drawn(began=by_start)) == expected
    assert lanes(drawn(*by_end)) == expected


def test_waits_stand_in_a_row_of_their_own():
    """They lie in calls and between them, and would hide these."""
    timeline = drawn(*slices(THREAD, (0, 50), category="wait"), *slices(THREAD, (0, 60)))

    assert lanes(timeline) == {
        ("trainer (4242)", "python", ""): [["0"]],
        ("trainer (4242)", "python", WAITS): [["0"]],
    }


def test_devices_come_first_and_are_one_by_their_name():
    """Steps, idle time and streams come from two sources that number processes differently."""
    steps = STREAM._replace(process=STREAM.process + 9, thread=-3, thread_name="steps")
    timeline = drawn(
        *slices(THREAD, (0, 500)), began=slices(STREAM, (0, 9)) + slices(steps, (0, 5))
    )

    assert [(group.name, group.is_device) for group in timeline.groups] == [
        ("device 0 (x.json)", True),
        ("trainer (4242)", False),
    ]
    assert [row.track.thread_name for row in timeline.groups[0].rows] == ["steps", "stream 7"]


def test_a_process_has_one_name():
    """Its service is known to calls, and to chains only what the kernel calls it."""
    other = THREAD._replace(process_name="python", role="why")

    timeline = drawn(*slices(THREAD, (0, 50)), *slices(other, (0, 6)))

    assert [group.name for group in timeline.groups] == ["trainer (4242)"]


def test_only_incidents_are_marked():
    """And no more of them than can be told apart."""
    drawing = TimelineDrawing()
    for number in range(MAX_MARKS + 7):
        drawing.instant(Instant(THREAD, f"{number}", "incident", T0 - number))
    drawing.instant(Instant(THREAD, "exit", "process", T0))
    drawing.level(Level(0, "host", "load", T0, {"threads": 1.5}))
    drawing.arrow(Arrow("then", "cause", ArrowEnd(1, 1), T0, ArrowEnd(1, 2), T0))

    timeline = drawing.finish()

    assert len(timeline.marks) == MAX_MARKS
    assert [mark.name for mark in timeline.marks[-2:]] == ["1", "0"]
    assert timeline.groups == ()


def test_what_is_short_is_added_up_and_what_is_long_stays():
    """However much there is: the long one keeps its name, and the others their number and time."""
    long = Slice(STREAM, "long", "kernel", T0 + 5_000_000, T0 + 9_000_000)
    short = [
        Slice(STREAM, f"k{n % 3}", "kernel", T0 + at, T0 + at + 100 + n % 3)
        for n, at in enumerate((*range(0, 5_000_000, 500), *range(9_000_000, 14_000_000, 500)))
    ]

    timeline = drawn(began=[*short[:10_000], long, *short[10_000:]], most=500)

    items = list(timeline.items())
    assert len(items) <= 500
    assert timeline.device_quantum_ns > 0 == timeline.thread_quantum_ns
    (found,) = (item for item in items if item.name == "long")
    assert (found.start_unix_ns, found.end_unix_ns, found.times) == (*long[3:5], 1)
    assert sum(item.times for item in items) == 20_001
    assert sum(item.busy_ns for item in items) == 4_000_000 + sum(
        100 + n % 3 for n in range(20_000)
    )
    assert {item.name for item in items if item.times > 2} == {"k2"}
    assert all(item.longest_ns == 102 for item in items if item.times > 2)


spans = st.lists(
    st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 30), st.integers(0, 2)), max_size=200
)


@given(spans, st.booleans())
def test_nothing_is_lost_uncounted(found, is_begin):
    """
    Whatever comes, in any order: so many items at most, all of it is in one or counted as left out,
    and an item reaches from its first to its last.
    """
    drawing = TimelineDrawing(100)
    made = [
        Slice(THREAD._replace(thread=thread), "x", "c", T0 + start, T0 + start + length)
        for start, length, thread in found
    ]
    for one in made:
        (drawing.began if is_begin else drawing.ended)(one)

    timeline = drawing.finish()

    items = list(timeline.items())
    assert len(items) <= 100
    assert sum(item.times for item in items) + timeline.left_out == len(made)
    if not timeline.left_out:
        assert sum(item.busy_ns for item in items) == sum(one[4] - one[3] for one in made)
        assert min((item.start_unix_ns for item in items), default=0) == min(
            (one.start_unix_ns for one in made), default=0
        )
    for item in items:
        assert item.longest_ns <= item.end_unix_ns - item.start_unix_ns
        assert item.times > 1 or item.end_unix_ns - item.start_unix_ns == item.busy_ns


def test_rows_with_most_to_see_are_kept():
    """Thousands of short threads leave room for the one that did something."""
    drawing = TimelineDrawing(1_000)
    drawing.ended(*slices(THREAD, (0, 10_000)))
    for thread in range(1, 3_001):
        drawing.ended(*slices(THREAD._replace(thread=5_000 + thread), (thread, thread + 10)))

    timeline = drawing.finish()

    rows = [row for group in timeline.groups for row in group.rows]
    assert len(rows) == MAX_ROWS
    assert rows[0].track == THREAD
    assert timeline.left_out == 3_001 - MAX_ROWS


def test_a_picture_is_not_higher_than_a_screen_can_scroll():
    """Deep stacks of many threads: the busiest rows fill it, and the rest is counted."""
    drawing = TimelineDrawing(10_000)
    for thread in range(20):
        for depth in range(MAX_DEPTH + 6):
            drawing.began(*slices(THREAD._replace(thread=thread), (depth, 1_000 - depth + thread)))

    timeline = drawing.finish()

    found = [row.lanes for group in timeline.groups for row in group.rows]
    assert sum(map(len, found)) <= MAX_LANES
    assert {len(one) for one in found} == {MAX_DEPTH}
    drawn_things = sum(item.times for item in timeline.items())
    assert drawn_things + timeline.left_out == 20 * (MAX_DEPTH + 6)


@pytest.mark.parametrize("start", [-(1 << 70), 0, 1 << 70])
def test_no_clock_is_too_wrong(start):
    """Times of any size are dealt with in bounded work."""
    made = [
        Slice(THREAD, "x", "c", start + n, start + n + 1 + (sys.maxsize << n)) for n in range(60)
    ]

    assert len(list(drawn(*made, most=10).items())) <= 60

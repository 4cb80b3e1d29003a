from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.enrich.ids import NO_SEED, SpanIds, capture_seed
from otel_gpu.wire.events import ThreadContext
from otel_gpu.wire.marks import Range
from tests.unit.export import samples

IDS = SpanIds(b"capture1")


def test_ids_are_those_of_every_replay():
    """Ids depend on the record and the capture alone, so they can be written down."""
    trace_id, span_id, parent_span_id = IDS.of_call(samples.call().event)

    seed = capture_seed(samples.CAPTURE.unix_ns, samples.CAPTURE.info)
    assert seed.hex() == "d517fe5b0258d2cb"
    assert trace_id.hex() == "e2a2da4fc25924805cdc600a76910e3b"
    assert span_id.hex() == "58c207f34c89b46a"
    assert parent_span_id == b""


def test_a_capture_of_a_host_that_nobody_knows_has_a_seed():
    """An importer may know nothing of the host; the moment alone has to do."""
    seeds = {capture_seed(1, {}), capture_seed(2, {}), capture_seed(1, {"host": {}}), NO_SEED}

    assert len(seeds) == 3


def test_another_capture_gives_other_ids():
    """The same pid and clock value on another boot is not the same call."""
    event = samples.call().event

    assert not set(IDS.of_call(event)[:2]) & set(SpanIds(b"capture2").of_call(event)[:2])


def test_all_that_happens_inside_a_call_shares_its_trace():
    """Nested calls, stalls, forks and reports of an open call join the outermost call."""
    outer = samples.call(start_ktime_ns=1_000, root_start_ktime_ns=1_000)
    inner = samples.call(
        api=samples.CU_MEM_ALLOC,
        start_ktime_ns=1_200,
        parent_start_ktime_ns=1_000,
        root_start_ktime_ns=1_000,
        depth=1,
    )
    inside = [
        inner,
        samples.stall(call_start_ktime_ns=1_200, root_start_ktime_ns=1_000),
        samples.fork(call_start_ktime_ns=1_200, root_start_ktime_ns=1_000),
        samples.open_call(start_ktime_ns=1_200, root_start_ktime_ns=1_000),
    ]

    assert {activity.trace_id for activity in inside} == {outer.trace_id}
    assert [activity.parent_span_id for activity in inside] == [
        outer.span_id,
        inner.span_id,
        inner.span_id,
        inner.span_id,
    ]
    assert outer.parent_span_id == b""


def test_what_happens_outside_calls_is_a_trace_of_its_own():
    """A stall or fork outside calls has no parent and a trace that no other has."""
    outside = [
        samples.stall(start_ktime_ns=5, call_start_ktime_ns=0, root_start_ktime_ns=0),
        samples.stall(start_ktime_ns=6, call_start_ktime_ns=0, root_start_ktime_ns=0),
        samples.fork(start_ktime_ns=7),
        samples.gap(start_ktime_ns=8),
    ]

    assert len({activity.trace_id for activity in outside}) == 4
    assert {activity.parent_span_id for activity in outside} == {b""}


def test_a_stall_in_a_gap_is_a_child_of_the_gap():
    """The gap comes after it, and its id is known already; it may be in the application's trace."""
    ids = SpanIds(b"capture1")
    gap = samples.gap(start_ktime_ns=3_000).event
    inside = samples.stall(
        start_ktime_ns=3_500, call_start_ktime_ns=0, root_start_ktime_ns=3_000
    ).event

    trace_id, span_id, parent_id = ids.of_gap(gap)
    assert (ids.of_stall(inside)[0], ids.of_stall(inside)[3]) == (trace_id, span_id)
    assert parent_id == b""
    ids.learn(ThreadContext(9_000, *gap[1:4], 3_000, b"T" * 16, b"S" * 8, 1))
    assert ids.of_gap(gap) == (b"T" * 16, span_id, b"S" * 8)
    assert (ids.of_stall(inside)[0], ids.of_stall(inside)[3]) == (b"T" * 16, span_id)


def test_a_stall_outside_of_calls_and_gaps_is_in_the_span_of_its_thread():
    """And keeps its own ids: links to it lead there in either case."""
    ids = SpanIds(b"capture1")
    outside = samples.stall(
        start_ktime_ns=5_000, call_start_ktime_ns=0, root_start_ktime_ns=0
    ).event
    before = ids.of_stall(outside)

    ids.learn(ThreadContext(9_000, *outside[1:4], 5_000, b"T" * 16, b"S" * 8, 1))

    assert before[3] == b""
    assert ids.of_stall(outside) == (b"T" * 16, *before[1:3], b"S" * 8)


def test_a_range_has_the_ids_that_its_program_gave_it():
    """What lies in it was published with them; where there are none, it has some all the same."""
    ids = SpanIds(b"capture1")
    made = (9, 1, 2, 3, 5, b"T" * 16, b"S" * 8, b"P" * 8, 3, 0, 0, "forward", "", "loop")
    event = Range(*made)
    forged = event._replace(trace_id=bytes(16), span_id=bytes(8))

    assert ids.of_range(event) == (b"T" * 16, b"S" * 8, b"P" * 8)
    trace_id, span_id, parent_id = ids.of_range(forged)
    assert any(trace_id)
    assert any(span_id)
    assert parent_id == b""


def test_spans_of_one_moment_have_different_ids():
    """A call, both spans of a stall, a fork, a gap and each look at an open call differ."""
    start = {"start_ktime_ns": 1_000}
    stall = samples.stall(**start)
    found = {
        samples.call(**start).span_id,
        stall.span_id,
        stall.run_queue_span_id,
        samples.fork(**start).span_id,
        samples.gap(**start).span_id,
        samples.open_call(ktime_ns=11, **start).span_id,
        samples.open_call(ktime_ns=12, **start).span_id,
    }

    assert len(found) == 7


def test_time_that_was_not_has_no_span():
    """A thread that was preempted was not blocked; one may find a CPU at once."""
    preempted = samples.stall(start_ktime_ns=5, runnable_ktime_ns=5, end_ktime_ns=9)
    prompt = samples.stall(start_ktime_ns=5, runnable_ktime_ns=9, end_ktime_ns=9)

    assert (preempted.span_id, len(preempted.run_queue_span_id)) == (b"", 8)
    assert (len(prompt.span_id), prompt.run_queue_span_id) == (8, b"")


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_every_possible_record_has_ids(number, program_ktime_ns, start_ktime_ns):
    """No value of a field stands in the way of an id, and an id has its length."""
    activity = samples.call(
        pid=number, tid=number, program_ktime_ns=program_ktime_ns, start_ktime_ns=start_ktime_ns
    )

    assert (len(activity.trace_id), len(activity.span_id)) == (16, 8)


def test_what_an_application_says_is_the_parent_of_what_follows():
    """The outermost call, and all in it, are in the application's trace; other calls are not."""
    ids = SpanIds(b"capture1")
    outer = samples.call(start_ktime_ns=1_000, root_start_ktime_ns=1_000).event
    inner = samples.call(
        api=samples.CU_MEM_ALLOC, start_ktime_ns=1_200, parent_start_ktime_ns=1_000,
        root_start_ktime_ns=1_000, depth=1,
    ).event  # fmt: skip
    other = samples.call(start_ktime_ns=5_000, root_start_ktime_ns=5_000).event
    key = (outer.program_ktime_ns, outer.pid, outer.tid)
    ids.learn(ThreadContext(2_000, *key, 1_000, b"T" * 16, b"S" * 8, 1))

    trace_id, span_id, parent_id = ids.of_call(outer)
    assert (trace_id, parent_id) == (b"T" * 16, b"S" * 8)
    assert span_id == SpanIds(b"capture1").of_call(outer)[1]
    assert ids.of_call(inner)[::2] == (b"T" * 16, span_id)
    assert ids.of_call(other) == SpanIds(b"capture1").of_call(other)


def test_contexts_of_an_endless_stream_are_bounded():
    """Each comes right before what it is of."""
    ids = SpanIds(b"capture1")
    for number in range(10_000):
        ids.learn(ThreadContext(number, 1, 1, 1, number, b"T" * 16, b"S" * 8, 1))

    assert len(ids._around) <= 4096

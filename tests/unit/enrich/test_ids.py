from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.enrich.ids import NO_SEED, SpanIds, capture_seed
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
    seeds = {capture_seed(1, {}), capture_seed(2, {}), capture_seed(1, {"host": 5}), NO_SEED}

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
def test_every_possible_record_has_ids(number, image_ktime_ns, start_ktime_ns):
    """No value of a field stands in the way of an id, and an id has its length."""
    activity = samples.call(
        pid=number, tid=number, image_ktime_ns=image_ktime_ns, start_ktime_ns=start_ktime_ns
    )

    assert (len(activity.trace_id), len(activity.span_id)) == (16, 8)

from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.enrich import ids
from tests.unit.export import samples

SEED = b"capture1"


def test_ids_are_those_of_every_replay():
    """Ids depend on the record and the capture alone, so they can be written down."""
    event = samples.call().event

    assert ids.capture_seed(samples.CAPTURE).hex() == "d517fe5b0258d2cb"
    assert ids.trace_id_of(SEED, event).hex() == "e2a2da4fc25924805cdc600a76910e3b"
    assert ids.span_id_of(SEED, event).hex() == "58c207f34c89b46a"


def test_another_capture_gives_other_ids():
    """The same pid and clock value on another boot is not the same call."""
    event = samples.call().event

    assert ids.trace_id_of(SEED, event) != ids.trace_id_of(b"capture2", event)
    assert ids.span_id_of(SEED, event) != ids.span_id_of(b"capture2", event)


def test_all_that_happens_inside_a_call_shares_its_trace():
    """Nested calls, stalls, forks and reports of an open call join the outermost call."""
    outer = samples.call(start_ktime_ns=1_000, root_start_ktime_ns=1_000).event
    inner = samples.call(
        api=samples.CU_MEM_ALLOC,
        start_ktime_ns=1_200,
        parent_start_ktime_ns=1_000,
        root_start_ktime_ns=1_000,
        depth=1,
    ).event
    inside = [
        inner,
        samples.stall(call_start_ktime_ns=1_200, root_start_ktime_ns=1_000).event,
        samples.fork(call_start_ktime_ns=1_200, root_start_ktime_ns=1_000).event,
        samples.open_call(start_ktime_ns=1_200, root_start_ktime_ns=1_000).event,
    ]

    traces = {ids.trace_id_of(SEED, event) for event in (outer, *inside)}
    parents = [ids.parent_span_id_of(SEED, event) for event in inside]

    assert len(traces) == 1
    assert parents == [
        ids.span_id_of(SEED, outer),
        ids.span_id_of(SEED, inner),
        ids.span_id_of(SEED, inner),
        ids.span_id_of(SEED, inner),
    ]
    assert ids.parent_span_id_of(SEED, outer) == b""


def test_what_happens_outside_calls_is_a_trace_of_its_own():
    """A stall or fork outside calls has no parent and a trace that no other has."""
    first = samples.stall(start_ktime_ns=5, call_start_ktime_ns=0, root_start_ktime_ns=0).event
    second = samples.stall(start_ktime_ns=6, call_start_ktime_ns=0, root_start_ktime_ns=0).event
    fork = samples.fork(start_ktime_ns=7).event

    assert len({ids.trace_id_of(SEED, event) for event in (first, second, fork)}) == 3
    assert [ids.parent_span_id_of(SEED, event) for event in (first, second, fork)] == [b""] * 3


def test_spans_of_one_moment_have_different_ids():
    """A call, both spans of a stall, a fork and each look at an open call differ."""
    start = {"start_ktime_ns": 1_000}
    stall = samples.stall(**start).event
    found = {
        ids.span_id_of(SEED, samples.call(**start).event),
        ids.span_id_of(SEED, stall),
        ids.run_queue_span_id(SEED, stall),
        ids.span_id_of(SEED, samples.fork(**start).event),
        ids.span_id_of(SEED, samples.open_call(ktime_ns=11, **start).event),
        ids.span_id_of(SEED, samples.open_call(ktime_ns=12, **start).event),
    }

    assert len(found) == 6


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_every_possible_record_has_ids(number, image_ktime_ns, start_ktime_ns):
    """No value of a field stands in the way of an id, and an id has its length."""
    event = samples.call(
        pid=number, tid=number, image_ktime_ns=image_ktime_ns, start_ktime_ns=start_ktime_ns
    ).event

    assert len(ids.trace_id_of(SEED, event)) == 16
    assert len(ids.span_id_of(SEED, event)) == 8

"""Allocator churn: what calls that allocate and free lose, by why they were made and by line."""

import pytest

from otel_gpu import wire
from otel_gpu.explain.explainer import Explainer
from otel_gpu.explain.kinds import CauseKind
from otel_gpu.wire.frames import Frame
from tests.activities import (
    MAIN_FRAME,
    MS,
    SECOND,
    blocks,
    call,
    call_stack,
    calls,
    capture,
    image,
    snapshot,
    thread_time,
    times,
    totals,
)

MIB = 1 << 20
TRAINER = image()
ALLOCATOR = Frame("native", "raw_alloc", module="libc10_cuda.so")
EMPTY = Frame(
    "native",
    "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::emptyCache(unsigned long)",
    module="libc10_cuda.so",
)


def at_line(line, *native):
    frames = (*native, Frame("cpython", "step", "/app/train.py", line), MAIN_FRAME)
    return call_stack(0x700 + line + len(native), frames)


def stream(made, *, counted, seconds=10, allocator=True, on_cpu_ns=2 * SECOND):
    """
    Calls, and what was counted of them, in a window that a feeder thread lives through.

    ``made`` are (API, start in ms, length in ms, stack); ``counted`` are (API, lengths in ms).
    """
    yield capture()
    if allocator:
        yield blocks(TRAINER, 0.5, totals(64 * MIB))
    begin = [thread_time(TRAINER, wire.STATE_ON_CPU, wire.CONTEXT_CALL, MS)]
    yield times(1, *begin)
    yield snapshot(1, *(calls(TRAINER, api, [1]) for api, _ in counted))
    for api, start_ms, length_ms, stack in made:
        start = SECOND + start_ms * MS
        yield call(TRAINER, api, start, length_ms * MS, stack=stack, size_bytes=32 * MIB)
    end = 1 + seconds
    yield snapshot(
        end, *(calls(TRAINER, api, [1, *(n * MS for n in lengths)]) for api, lengths in counted)
    )
    yield times(
        end, thread_time(TRAINER, wire.STATE_ON_CPU, wire.CONTEXT_CALL, on_cpu_ns + MS, count=9)
    )


def churn(activities):
    explainer = Explainer()
    for activity in activities:
        explainer.push(activity)
    explainer.close()
    found = [(one, one.causes[0]) for one in explainer.incidents() if one.causes and one.chronic]
    return {cause.kind: (incident, cause) for incident, cause in found}, explainer


def cycle(count=50, native=EMPTY):
    """The cache is given back and taken anew, 10 ms each."""
    for number in range(count):
        yield "cudaFree", 40 * number, 10, at_line(74, native)
        yield "cudaMalloc", 40 * number + 20, 10, at_line(40, ALLOCATOR)


COUNTED = (("cudaFree", [10] * 50), ("cudaMalloc", [10] * 50))


def test_what_an_emptied_cache_costs_is_all_that_is_counted():
    """What was given back is taken anew: both are lost, in the line that empties the cache."""
    found, explainer = churn(stream(list(cycle()), counted=COUNTED))
    incident, cause = found[CauseKind.EMPTY_CACHE]

    assert cause.time_ns == pytest.approx(SECOND, rel=0.01)
    assert cause.share == pytest.approx(0.5, rel=0.01)
    assert cause.evidence[0].stack.place.line == 74
    assert incident.severity == "high"
    assert incident.processes == (TRAINER,)
    assert "torch.cuda.empty_cache()" in incident.advice[0]
    (one,) = explainer.churn.churn_of((TRAINER.pid, TRAINER.program_ktime_ns))
    assert (one.kind, one.place.line, one.calls, one.frees) == (CauseKind.EMPTY_CACHE, 74, 50, 50)
    assert (one.time_ns, one.max_ns) == (500 * MS, 10 * MS)


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        (
            Frame("cpython", "empty_cache", "/usr/lib/torch/cuda/memory.py", 170),
            CauseKind.EMPTY_CACHE,
        ),
        (Frame("cpython", "empty_cache", "/app/train.py", 170), CauseKind.ALLOCATION_RETRY),
        (Frame("native", "emptyCacheOfMine"), CauseKind.ALLOCATION_RETRY),
        (Frame("native", "c10_empty_cache"), CauseKind.EMPTY_CACHE),
    ],
)
def test_only_the_framework_s_own_function_empties_its_cache(frame, kind):
    """A program may have a function of the same name."""
    stack = call_stack(77, (ALLOCATOR, frame, Frame("cpython", "step", "/app/train.py", 74)))
    made = [("cudaFree", 40 * number, 20, stack) for number in range(50)]
    found, _ = churn(stream(made, counted=[("cudaFree", [20] * 50)]))

    assert list(found) == [kind]


def test_where_few_calls_are_chosen_all_of_them_count():
    """Ten in a hundred say whose time it is; how long it was is counted."""
    found, _ = churn(stream(list(cycle(5)), counted=COUNTED))

    assert found[CauseKind.EMPTY_CACHE][1].time_ns == pytest.approx(SECOND, rel=0.01)


def test_a_cache_that_is_given_back_for_want_of_memory_is_a_retry():
    """The allocator frees only where the device had no more."""
    found, _ = churn(stream(list(cycle(native=ALLOCATOR)), counted=COUNTED))

    assert list(found) == [CauseKind.ALLOCATION_RETRY]


@pytest.mark.parametrize(
    ("allocator", "kinds"), [(True, [CauseKind.ALLOCATOR_BYPASS]), (False, [])]
)
def test_calls_past_the_allocator_are_known_where_there_is_one(allocator, kinds):
    """A program without a framework allocates by itself: that is no bypass."""
    made = [("cudaMalloc", 40 * number, 20, at_line(9)) for number in range(50)]
    found, _ = churn(stream(made, counted=[("cudaMalloc", [20] * 50)], allocator=allocator))

    assert list(found) == kinds


def test_each_reason_has_its_own_part_of_the_time():
    """Calls of two reasons are told apart; nothing counts twice."""
    own = [("cudaMalloc", 3_000 + 40 * number, 20, at_line(9)) for number in range(50)]
    counted = (("cudaFree", [10] * 50), ("cudaMalloc", [10] * 50 + [20] * 50))
    found, _ = churn(stream([*cycle(), *own], counted=counted))

    both = [found[kind][1].time_ns for kind in (CauseKind.EMPTY_CACHE, CauseKind.ALLOCATOR_BYPASS)]
    assert both == [pytest.approx(SECOND, rel=0.01)] * 2


def test_an_allocator_that_grows_is_no_churn():
    """It takes what it did not have, once."""
    made = [("cudaMalloc", 40 * number, 20, at_line(40, ALLOCATOR)) for number in range(50)]
    found, _ = churn(stream(made, counted=[("cudaMalloc", [20] * 50)]))

    assert found == {}


def test_what_costs_little_is_no_incident():
    """A twentieth of the time, and 50 ms in a second, are the least."""
    found, _ = churn(
        stream(list(cycle(5)), counted=[("cudaFree", [2] * 5), ("cudaMalloc", [2] * 5)])
    )

    assert found == {}


def test_calls_inside_others_are_part_of_those():
    """A driver call of a runtime call is not told again."""
    explainer = Explainer()
    explainer.push(blocks(TRAINER, 0.5, totals(MIB)))
    inner = call(TRAINER, "cuMemAlloc", SECOND, MS, stack=at_line(9), parent_start_ktime_ns=7)
    explainer.push(inner)

    assert explainer.churn.churn_of((TRAINER.pid, TRAINER.program_ktime_ns)) == ()

"""Parents from outside, and steps, as a store has them: a window's spans are those of the live export."""

import pytest

from otel_gpu import wire
from otel_gpu.enrich.activities import CallActivity, ContextActivity
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.enrich.marks import RangeActivity, StepActivity
from otel_gpu.recorder.limits import StoreLimits
from otel_gpu.wire.events import Capture, Clock, Fork, Gap, ProcessSeen, Range, Step, ThreadContext
from otel_gpu.wire.probe_table import APIS
from tests.activities import SECOND, T0, call, capture, image
from tests.unit.recorder.stores import ask, read, without_images, write

MS = 1_000_000
PID, TID, IMAGE = 42, 43, 5 * SECOND
COUNT = 997
# Many chunks, and batches that end between a context and its call.
SMALL = StoreLimits(batch_rows=7, chunk_span_ns=SECOND)
API = next(api.number for api in APIS if api.name == "cudaMalloc")


def ids_of(number):
    return number.to_bytes(16), number.to_bytes(8)


def one_call(start_ns, **values):
    made = call(image(PID, IMAGE), "cudaMalloc", start_ns, MS).event
    return made._replace(tid=TID, **values)


def events():
    """Calls with a call inside, each second one in a span; gaps, forks, stalls and steps between."""
    yield Capture(0, capture().info)
    yield Clock(0, T0)
    yield ProcessSeen(IMAGE, IMAGE, PID, {"comm": "train"})
    for number in range(1, COUNT + 1):
        start = 10 * SECOND + number * 20 * MS
        if number % 2:
            yield ThreadContext(start + 3 * MS, IMAGE, PID, TID, start, *ids_of(number), 1)
        inner = {"parent_start_ktime_ns": start, "root_start_ktime_ns": start, "depth": 1}
        yield one_call(start + 10, end_ktime_ns=start + 20, **inner)
        yield one_call(start, end_ktime_ns=start + MS, root_start_ktime_ns=start)
        if number % 3 == 0:
            gap = start + 2 * MS
            yield ThreadContext(gap, IMAGE, PID, TID, gap, *ids_of(number + 5_000), 1)
            yield Gap(gap + MS, IMAGE, PID, TID, gap, 0, 0, -1, 0, 0, API, API, 2, "train")
        if number % 5 == 0:
            fork = start + 4 * MS
            yield ThreadContext(fork, IMAGE, PID, TID, fork, *ids_of(number + 9_000), 0)
            yield Fork(fork, IMAGE, PID, TID, fork, fork, 0, 0, 9_000 + number, "train")
        if number % 7 == 0:
            own = ids_of(number) if number % 2 else (b"", b"")
            yield Step(
                *(start + MS, IMAGE, PID, TID, start, number, 0, *own, 1, wire.STEP_REPORTED),
                *(100, wire.STEP_TRAINING, "naïve ☃", "train"),
            )
        if number % 11 == 0:
            parent_id = ids_of(number)[1] if number % 2 else b""
            yield Range(
                *(start + 6 * MS, IMAGE, PID, TID, start, *ids_of(number + 20_000), parent_id),
                *(TID + number % 2, 0, number % 3, "forward ☃", "solver", "train"),
            )


@pytest.fixture(scope="module")
def live():
    return list(Enricher().enrich(events()))


@pytest.fixture(scope="module")
def path(live, tmp_path_factory):
    return write(tmp_path_factory.mktemp("store") / "store.db", live, SMALL)


def test_all_that_was_written_has_its_ids_again(live, path):
    """Contexts, calls in them, calls inside these; and none where there is none."""
    found = read(path)

    assert list(map(without_images, found)) == list(map(without_images, live))
    spans = [one for one in found if isinstance(one, CallActivity)]
    assert sum(one.trace_id == ids_of(n // 2 + 1)[0] for n, one in enumerate(spans)) == 2 * (
        (COUNT + 1) // 2
    )


@pytest.mark.parametrize("start_s", [12.001, 15.5, 20.0, 23.456])
def test_a_window_has_the_parents_of_the_live_export(live, path, start_s):
    """Also where a context is in the chunk before."""
    start_ns = T0 + int(start_s * SECOND)
    wanted = {one.span_id: one for one in live if hasattr(one, "parent_span_id")}

    found = [one for one in read(path, start_ns, start_ns + SECOND) if hasattr(one, "span_id")]

    assert len(found) > 100
    for one in found:
        assert without_images(one) == without_images(wanted[one.span_id])


def test_steps_and_contexts_can_be_asked_for(live, path):
    """By their numbers and the ids of their spans."""
    steps = [one.event for one in live if isinstance(one, StepActivity)]
    contexts = sum(isinstance(one, ContextActivity) for one in live)

    ranges = [one.event for one in live if isinstance(one, RangeActivity)]

    assert len(ranges) == COUNT // 11
    assert ask(path, "SELECT name, domain, start_tid, span_id FROM ranges ORDER BY seq") == [
        (one.name, one.domain, one.start_tid, one.span_id) for one in ranges
    ]
    assert ask(path, "SELECT count(*) FROM thread_contexts") == [(contexts,)]
    assert ask(path, "SELECT number, trace_id, kind, source, name FROM v_steps ORDER BY seq") == [
        (one.number, one.trace_id.hex(), "training", "program", "naïve ☃") for one in steps
    ]

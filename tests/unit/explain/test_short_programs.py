"""What is no incident in a program that is over soon after it began."""

import pytest

from otel_gpu.explain.explainer import Explainer
from otel_gpu.wire.events import CudaCall
from tests.activities import SECOND, T0, ended, image
from tests.unit.explain.streams import HOG, MS, START, explain, preempted, slow, slow_gap, usual

BEGAN = START - 10 * MS
SHORT = image(50, BEGAN, "helper")
AT_ONCE = {"process": SHORT, "tid": 50}


def ends(after_ms, process=SHORT):
    return ended(process, (process.program_ktime_ns + after_ms * MS) / SECOND)


def healthy(process=SHORT, tid=50):
    """A first allocation, a copy, a wait for the device, and the program's own work between."""
    at_once = {"process": process, "tid": tid}
    yield slow("cudaMalloc", duration_ms=8, **at_once)
    yield slow_gap(duration_ms=4, start=START + 8 * MS, **at_once)
    yield slow("cudaMemcpy", duration_ms=3, start=START + 12 * MS, **at_once)
    yield slow("cudaStreamSynchronize", duration_ms=6, start=START + 15 * MS, **at_once)
    yield slow("cudaStreamSynchronize", duration_ms=7, start=START + 21 * MS, **at_once)


def test_a_healthy_short_program_is_no_incident():
    """Its calls are over a millisecond long, and nothing says that others are not."""
    chains, explainer = explain(*healthy(), ends(40))

    assert chains == []
    assert explainer.incidents() == []


def test_the_same_of_a_program_that_goes_on_is_told():
    """What a service does at its start, and never again, is worth a word."""
    chains, _ = explain(*healthy())

    assert len(chains) == 5


def test_a_short_program_that_lost_time_to_the_host_is_an_incident():
    """Half a dozen times its own work is lost to another thread on its CPU."""
    [chain], _ = explain(
        slow("cudaMemcpy", duration_ms=10, **AT_ONCE),
        preempted(10, 60, process=SHORT, tid=50, **HOG),
        slow("cudaMemcpy", duration_ms=70, run_queue_ns=60 * MS, start=START + 10 * MS, **AT_ONCE),
        ends(150),
    )

    assert (chain.severity, chain.causes[0].kind) == ("medium", "preemption")


@pytest.mark.parametrize(("duration_ms", "effects"), [(10, 0), (80, 1)])
def test_what_is_unusual_in_a_short_program_matters_from_some_time_on(duration_ms, effects):
    """A first allocation that took 80 ms where others take none is worth a word, 10 ms are not."""
    chains, _ = explain(
        slow("cudaMalloc", duration_ms=duration_ms, **AT_ONCE),
        usual(api="cudaMalloc", duration_ns=50_000, process=SHORT),
        ends(200),
    )

    assert [chain.causes[0].kind for chain in chains] == ["first_call"] * effects


def test_failures_of_a_short_program_are_told():
    """That it was over soon may be the reason why somebody looks."""
    chains, _ = explain(slow("cudaMalloc", duration_ms=1, status=2, **AT_ONCE), ends(20))

    assert [chain.effect.kind for chain in chains] == ["failed_call"]


def sizes_of(explainer):
    """How much the parts of an explainer keep, by their names."""
    parts = {
        "accounts": explainer._baselines.state.accounts.items(),
        "baselines": explainer._baselines._programs,
        "stalls": explainer._timeline._stalls._tracks,
        "calls": explainer._timeline._calls._tracks,
        "tids": explainer._timeline._calls._tids,
        "run_queues": explainer._timeline._run_queues,
        "ended": explainer._exits._ended,
        "closed": explainer._incidents._closed,
        "pending": explainer._pending,
    }
    return {name: len(part) for name, part in parts.items()}


def test_what_is_known_of_a_process_goes_soon_after_it():
    """A host that runs short programs for days keeps those of the last seconds."""
    explainer = Explainer(keeps_closed=False)
    for number in range(300):
        process = image(1000 + number, BEGAN + number * SECOND // 10, "helper")
        for activity in (*healthy(process, process.pid), usual(process=process)):
            later = number * SECOND // 10
            moved = activity
            if isinstance(getattr(activity, "event", None), CudaCall):
                event = activity.event
                event = event._replace(
                    start_ktime_ns=event.start_ktime_ns + later,
                    end_ktime_ns=event.end_ktime_ns + later,
                )
                moved = activity._replace(
                    event=event,
                    start_unix_ns=activity.start_unix_ns + later,
                    end_unix_ns=activity.end_unix_ns + later,
                )
            list(explainer.push(moved))
        list(explainer.push(ends(40, process)))
    last = explainer.now_unix_ns

    kept = sizes_of(explainer)
    # Six seconds, ten processes a second.
    assert all(size <= 5 * 61 for size in kept.values()), kept
    assert kept["ended"] <= 61
    list(explainer.push(ended(image(9, last - T0), (last - T0 + 10 * SECOND) / SECOND)))
    assert {name for name, size in sizes_of(explainer).items() if size} <= {"ended"}

"""Who kept the threads that feed a GPU from going on, as counters."""

import pytest

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import Culprit
from otel_gpu.enrich.thread_times import NO_WAIT
from otel_gpu.export.metrics.stalls import MAX_NAMED, Stalls
from tests.activities import SECOND, image, thread_time

GAP = (wire.STATE_BLOCKED, wire.CONTEXT_GAP)
LOADER, WORKER = Culprit(5, 5, "loader"), Culprit(5, 6, "worker")


def waited(seconds, wait, *, state=GAP, reason="ipc"):
    return thread_time(image(), *state, seconds * SECOND, reason=reason)._replace(
        ended_ns=seconds * SECOND, wait=wait
    )


def values(stalls):
    return {
        tuple(value for _, value in measurement.attributes): measurement.value / SECOND
        for measurement in stalls.measurements()
    }


@pytest.fixture
def stalls():
    return Stalls()


def test_the_last_one_of_a_chain_is_the_culprit(stalls):
    """With what it did meanwhile; without a chain it is whoever had the CPU."""
    worked = NO_WAIT._replace(who=LOADER, end=WORKER, end_state=wire.STATE_ON_CPU)
    slept = worked._replace(end_state=wire.STATE_BLOCKED, end_reason="sleep")
    hog = NO_WAIT._replace(who=Culprit(9, 0, "hog"))
    stalls.take(
        [
            waited(3, worked),
            waited(2, slept),
            waited(4, hog, state=(wire.STATE_RUN_QUEUE, wire.CONTEXT_GAP), reason=""),
            waited(1, NO_WAIT),
        ]
    )

    assert values(stalls) == {
        ("ipc", "worker", "host"): 3,
        ("ipc", "worker", "sleep"): 2,
        ("run_queue", "hog"): 4,
        ("ipc",): 1,
    }


def test_work_and_waits_for_the_device_are_no_stalls(stalls):
    """Nor are waits that have not ended, of which nobody knows who will end them."""
    stalls.take(
        [
            waited(1, NO_WAIT, state=(wire.STATE_ON_CPU, wire.CONTEXT_GAP), reason=""),
            waited(
                1, NO_WAIT, state=(wire.STATE_BLOCKED, wire.CONTEXT_SYNCHRONIZE), reason="driver"
            ),
            waited(1, NO_WAIT)._replace(ended_ns=0),
        ]
    )

    assert values(stalls) == {}


def test_the_largest_have_names_and_no_counter_falls(stalls):
    """One that finds no room is among the others, and stays there."""
    hogs = [NO_WAIT._replace(who=Culprit(n, 0, f"hog{n}")) for n in range(MAX_NAMED + 2)]
    stalls.take([waited(100 - n, hog) for n, hog in enumerate(hogs)])
    before = values(stalls)
    stalls.take([waited(200 + n, hog) for n, hog in enumerate(hogs)])
    after = values(stalls)

    assert before["ipc", "other"] == 100 - MAX_NAMED + 100 - MAX_NAMED - 1
    assert ("ipc", f"hog{MAX_NAMED}") not in after
    assert sum(after.values()) == sum(range(200, 200 + MAX_NAMED + 2))
    assert all(after[name] >= seconds for name, seconds in before.items())


def test_a_later_culprit_is_counted_from_its_first_wait(stalls):
    """As long as there are names left."""
    small = waited(1, NO_WAIT._replace(who=LOADER))
    stalls.take([small])
    stalls.take([waited(1, NO_WAIT._replace(who=LOADER)), waited(5, NO_WAIT)])

    assert values(stalls) == {("ipc", "loader"): 1, ("ipc",): 5}

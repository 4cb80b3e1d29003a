"""Phases: what takes the time of a slot, said so that nobody wonders."""

import pytest

from otel_gpu.report.document import TimeBucket
from otel_gpu.report.wording.phases import phase_of
from tests.activities import SECOND, T0


def slot(**values):
    names = ("calls", "call_ns", "synchronize_ns", "allocate_calls", "allocate_ns", "run_queue_ns")
    return TimeBucket(None, T0, T0 + SECOND, **(dict.fromkeys((*names, "lost_ns"), 0) | values))


@pytest.mark.parametrize(
    ("values", "phase"),
    [
        ({"calls": 9}, "steady"),
        ({}, "no calls"),
        ({"lost_ns": SECOND // 4}, "stalled 25 %"),
        ({"lost_ns": SECOND}, "stalled 100 %"),
        # Two threads and a half that are slow at once are no percentage of a second.
        ({"lost_ns": 2.41 * SECOND}, "stalled, 2.4 threads at a time"),
        ({"calls": 9, "synchronize_ns": 4 * SECOND}, "waiting for the GPU, 4.0 threads at a time"),
        ({"calls": 9, "allocate_ns": SECOND // 2}, "allocating 50 %"),
        # What lies across the edge of a slot makes no second thread.
        ({"lost_ns": 1.001 * SECOND}, "stalled 100 %"),
    ],
)
def test_a_phase_is_a_share_of_the_time_that_passed(values, phase):
    """Or as many threads as did it at a time, where that is more than all of it."""
    assert str(phase_of(slot(**values))) == phase

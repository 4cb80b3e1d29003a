"""Steps: a histogram of all, and spans of those that were slow and have none."""

import pytest

from otel_gpu import wire
from otel_gpu.config import Config
from otel_gpu.export.metrics.points import HistogramLayout
from otel_gpu.export.metrics.steps import StepHistograms, bucket_of
from otel_gpu.wire.histogram_layout import DURATION_OFFSET, DURATION_SCALE, duration_bounds_ns
from tests.activities import MS, SECOND, image, step

TRAINER = image()
EXPONENTIAL = HistogramLayout(DURATION_SCALE, DURATION_OFFSET, None)
EXPLICIT = HistogramLayout(0, 0, (MS, 10 * MS, 100 * MS))


@pytest.mark.parametrize("duration_ns", [0, 1, 7, 999, MS, 3_141_592, SECOND + 1, 1 << 62])
def test_a_step_is_in_the_bucket_that_the_kernel_would_take(duration_ns):
    """The first bound that is not below it."""
    bounds = duration_bounds_ns(Config())
    wanted = next((n for n, bound in enumerate(bounds) if duration_ns <= bound), len(bounds))

    assert abs(bucket_of(duration_ns, EXPONENTIAL) - wanted) <= (duration_ns < 10)


def test_explicit_bounds_are_inclusive():
    assert [bucket_of(ns, EXPLICIT) for ns in (0, MS, MS + 1, 100 * MS, SECOND)] == [0, 0, 1, 2, 3]


def test_kinds_and_sources_are_apart():
    """What program and agent say is not added up; a kind that is not known yet is unknown."""
    steps = StepHistograms()
    for number in range(17):
        steps.add(step(TRAINER, number, number * SECOND, (number + 1) * MS), EXPLICIT)
    steps.add(step(TRAINER, 1, 0, MS, source=wire.STEP_FOUND), EXPLICIT)
    steps.add(step(TRAINER, 1, 0, MS, kind=99, source=99), EXPLICIT)

    found = {one.attributes: one.value for one in steps.measurements()}

    told = found[("gpu.step.kind", "training"), ("gpu.step.source", "program")]
    assert (told.counted, told.min, told.max) == (17, MS, 17 * MS)
    assert told.sum == sum(range(1, 18)) * MS
    assert told.buckets[:4] == (1, 9, 7, 0)
    assert [one.counted for one in found.values()] == [17, 1, 1]

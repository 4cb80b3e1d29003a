"""Which waits for a CPU were a quota's doing."""

import pytest

from otel_gpu import wire
from otel_gpu.enrich.activities import PressureActivity
from otel_gpu.explain.event_timeline import EventTimeline
from otel_gpu.explain.quotas import Quotas
from otel_gpu.explain.settings import Settings
from tests.activities import T0
from tests.unit.explain.streams import HOG, MS, START, preempted, throttled

IDLE = {"flags": wire.STALL_IDLE_CPU}
MARKED = HOG | {"flags": wire.STALL_THROTTLED}


def quotas_of(*readings, stalls=()):
    timeline = EventTimeline(Settings())
    for stall in stalls:
        timeline.add_stall(stall)
    quotas = Quotas(timeline)
    for reading in readings:
        quotas.observe(reading)
    return quotas


@pytest.mark.parametrize(
    ("at_ms", "length_ms", "expected"),
    [
        (100, 100, True),
        (-100, 200, False),
        (900, 200, True),
        (1100, 800, False),
        (1100, 1000, True),
        (-200, 100, False),
        (3100, 100, False),
    ],
)
def test_throttling_is_known_between_the_readings_around_a_wait(at_ms, length_ms, expected):
    """What was throttled before or after it says nothing about it."""
    stall = preempted(at_ms, length_ms, **IDLE)
    readings = [throttled(1000 * n, 1, throttled_ms=ms) for n, ms in enumerate((1, 900, 900, 2000))]

    quotas = quotas_of(*readings, stalls=[stall])

    assert quotas.is_throttled(stall) == expected


def test_the_quotas_own_time_says_which_waits_behind_another_thread_are_its():
    """
    Who is throttled leaves the CPU to somebody, who is not to blame for as long as that lasts.
    """
    stalls = [preempted(at_ms, ms, **HOG) for at_ms, ms in ((0, 4), (10, 41), (60, 4), (80, 45))]

    quotas = quotas_of(throttled(-100, 1), throttled(500, 3, throttled_ms=84), stalls=stalls)

    assert [quotas.is_throttled(stall) for stall in stalls] == [False, True, False, True]


def test_one_reading_of_a_cgroup_proves_nothing():
    """What it was throttled for since it exists may have been at any time, also before the wait."""
    nothing = throttled(-100, 0)._replace(info={"cgroups": {}})
    stall = preempted(0, 40, **IDLE)

    quotas = quotas_of(nothing, throttled(500, 3, throttled_ms=40), stalls=[stall])

    assert not quotas.is_throttled(stall)


def test_throttling_that_was_read_before_the_wait_ended_is_not_of_the_wait():
    """No reading followed, so that it is not known whether it went on."""
    stall = preempted(400, 200, **IDLE)

    quotas = quotas_of(throttled(0, 1), throttled(500, 2, throttled_ms=300), stalls=[stall])

    assert not quotas.is_throttled(stall)


def test_a_wait_on_an_idle_cpu_is_not_a_quotas_that_was_hardly_used_up():
    """The quota took 4 ms, so that something else took most of the 80; not so of the 6."""
    stalls = [preempted(0, 80, **IDLE), preempted(100, 6, **IDLE), preempted(200, 5, **IDLE)]

    quotas = quotas_of(throttled(-100, 1), throttled(500, 2, throttled_ms=4), stalls=stalls)

    assert [quotas.is_throttled(stall) for stall in stalls] == [False, True, False]


def test_waits_on_an_idle_cpu_are_the_quotas_before_waits_behind_a_hog():
    """The hog had the CPU for longer, and nobody had it in the other wait."""
    behind_a_hog, idle = preempted(0, 60, **HOG), preempted(100, 50, **IDLE)

    quotas = quotas_of(
        throttled(-100, 1), throttled(500, 2, throttled_ms=50), stalls=[behind_a_hog, idle]
    )

    assert quotas.is_throttled(idle)
    assert not quotas.is_throttled(behind_a_hog)


def test_a_throttling_that_goes_on_is_not_counted_yet():
    """Two waits of the same length, and the time of one: it is the one that is over."""
    over = preempted(100, 40, **HOG)
    going_on = preempted(480, 41, **HOG)

    quotas = quotas_of(throttled(0, 1), throttled(500, 2, throttled_ms=40), stalls=[over, going_on])

    assert quotas.is_throttled(over)


def test_a_hog_is_not_excused_by_a_quota_that_was_hardly_used_up():
    """The quota took a millisecond, and the hog forty."""
    stall = preempted(0, 40, **HOG)

    quotas = quotas_of(throttled(-100, 1), throttled(500, 3, throttled_ms=1), stalls=[stall])

    assert not quotas.is_throttled(stall)


@pytest.mark.parametrize(
    "info",
    [{}, {"cgroups": {}}, {"cgroups": {"/pod": {"pids": [42]}}}],
)
def test_readings_that_are_not_understood_say_nothing(info):
    """A later version may say it differently."""
    strange = PressureActivity(T0 + START + 500 * MS, info)

    quotas = quotas_of(throttled(-100, 1), strange)

    assert not quotas.is_throttled(preempted(0, 40, **IDLE))


def test_a_wait_that_the_kernel_marks_is_the_quotas_without_readings():
    """A thread that a quota put aside leaves its CPU to another one, which is not to blame."""
    marked, behind_a_hog = preempted(0, 40, **MARKED), preempted(100, 40, **HOG)

    quotas = quotas_of(stalls=[marked, behind_a_hog])

    assert quotas.is_throttled(marked)
    assert not quotas.is_throttled(behind_a_hog)


def test_of_two_waits_behind_a_hog_the_marked_one_is_the_quotas():
    """The quota took 40 ms, and only one of the waits can have been those."""
    behind_a_hog, marked = preempted(0, 42, **HOG), preempted(100, 41, **MARKED)

    quotas = quotas_of(
        throttled(-100, 1), throttled(500, 2, throttled_ms=40), stalls=[behind_a_hog, marked]
    )

    assert quotas.is_throttled(marked)
    assert not quotas.is_throttled(behind_a_hog)


def test_a_hog_is_not_excused_by_the_beginning_of_a_wait():
    """The thread was put aside for 5 ms, and then waited for 75 more behind somebody."""
    stall = preempted(0, 80, **MARKED)

    quotas = quotas_of(throttled(-100, 1), throttled(500, 2, throttled_ms=5), stalls=[stall])

    assert not quotas.is_throttled(stall)

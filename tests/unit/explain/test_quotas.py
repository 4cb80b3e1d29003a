"""Which waits for a CPU were a quota's doing."""

import pytest

from otel_gpu import wire
from otel_gpu.enrich.activities import PressureActivity
from otel_gpu.explain.quotas import Quotas
from otel_gpu.explain.settings import Settings
from otel_gpu.explain.timeline import Timeline
from tests.activities import T0
from tests.unit.explain.streams import HOG, MS, START, preempted, throttled

IDLE = {"flags": wire.STALL_IDLE_CPU}


def quotas_of(*readings, stalls=()):
    timeline = Timeline(Settings())
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
        (900, 200, True),
        (1100, 800, False),
        (1100, 1000, True),
        (-200, 100, False),
        (3100, 100, False),
    ],
)
def test_throttling_is_known_between_the_readings_around_a_wait(at_ms, length_ms, expected):
    """
    What was throttled before or after it says nothing about it.
    """
    quotas = quotas_of(throttled(0, 1), throttled(1000, 2), throttled(2000, 2), throttled(3000, 5))

    assert quotas.is_throttled(preempted(at_ms, length_ms, **IDLE)) == expected


def test_the_quotas_own_time_says_which_waits_behind_another_thread_are_its():
    """
    Who is throttled leaves the CPU to somebody, who is not to blame.
    """
    stalls = [preempted(at_ms, ms, **HOG) for at_ms, ms in ((0, 4), (10, 41), (60, 4), (80, 45))]

    quotas = quotas_of(throttled(-100, 1), throttled(500, 3, throttled_ms=84), stalls=stalls)

    assert [quotas.is_throttled(stall) for stall in stalls] == [True, True, False, True]


@pytest.mark.parametrize(("throttled_ms", "expected"), [(300, True), (30_000, False)])
def test_a_cgroup_that_was_not_watched_before_may_be_an_old_one(throttled_ms, expected):
    """
    What it was throttled for altogether has to fit between the readings.
    """
    nothing = throttled(-100, 0)._replace(info={"cgroups": {}})
    stall = preempted(0, 40, **IDLE)

    quotas = quotas_of(nothing, throttled(500, 3, throttled_ms=throttled_ms), stalls=[stall])

    assert quotas.is_throttled(stall) == expected


def test_a_throttling_that_goes_on_is_not_counted_yet():
    """
    Two waits of the same length, and the time of one: it is the one that is over.
    """
    over = preempted(100, 40, **HOG)
    going_on = preempted(480, 41, **HOG)

    quotas = quotas_of(throttled(0, 1), throttled(500, 2, throttled_ms=40), stalls=[over, going_on])

    assert quotas.is_throttled(over)


def test_a_hog_is_not_excused_by_a_quota_that_was_hardly_used_up():
    """
    The quota took a millisecond, and the hog forty.
    """
    stall = preempted(0, 40, **HOG)

    quotas = quotas_of(throttled(-100, 1), throttled(500, 3, throttled_ms=1), stalls=[stall])

    assert not quotas.is_throttled(stall)


@pytest.mark.parametrize(
    "info",
    [{}, {"cgroups": None}, {"cgroups": {"/pod": 3}}, {"cgroups": {"/pod": {"pids": [42]}}}],
)
def test_readings_that_are_not_understood_say_nothing(info):
    """
    A later version may say it differently.
    """
    strange = PressureActivity(T0 + START + 500 * MS, info)

    quotas = quotas_of(throttled(-100, 1), strange)

    assert not quotas.is_throttled(preempted(0, 40, **IDLE))

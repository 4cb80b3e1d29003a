"""How bad an incident is, and the words that say why."""

import pytest

from otel_gpu.explain.settings import Settings
from otel_gpu.explain.severity import at_most, judge, judge_chronic
from tests.unit.explain.streams import HOG, MS, SECOND, START, explain, preempted, slow, usual

LIMITS = Settings()


@pytest.mark.parametrize(
    ("lost_ms", "excess_ms", "window_s", "severity", "reason"),
    [
        (0, 400, 0, "low", "no fault of the host: it waited for the device"),
        (1, 400, 0, "low", "no fault of the host, but for 1 ms of it: it waited for the device"),
        (19, 19, 0, "low", "19 ms lost to the host in 1 effect, less than 20 ms"),
        (24, 100, 0, "low", "24 ms lost to the host in 1 effect of 100 ms lost, less than 25 %"),
        (26, 100, 0, "medium", "26 ms lost to the host in 1 effect, less than 100 ms"),
        (
            101,
            400,
            0,
            "medium",
            "101 ms lost to the host in 1 effect of 400 ms lost, less than 50 %",
        ),
        (199, 199, 20, "medium", "199 ms lost to the host in 1 effect, less than 1 % of 20 s"),
        (201, 201, 20, "high", "201 ms lost to the host in 1 effect"),
        (400, 400, 0, "high", "400 ms lost to the host in 1 effect"),
    ],
)
def test_severity_follows_lost_time_and_says_which_bound_it_missed(
    lost_ms, excess_ms, window_s, severity, reason
):
    """Each bound, on both of its sides."""
    judged = judge(lost_ms * MS, excess_ms * MS, window_s * SECOND, LIMITS, "gpu_wait")

    assert judged == (severity, reason)


def test_a_chronic_cause_says_its_share():
    """Of the time of the feeding threads, and of its own work that it is nobody's fault."""
    feeding = "of the time of the launching threads"

    assert judge_chronic(600 * MS, 1000 * MS, LIMITS) == ("high", f"60 % {feeding}")
    assert judge_chronic(150 * MS, 3000 * MS, LIMITS) == (
        "medium",
        f"5 % {feeding}, less than 10 %",
    )
    assert judge_chronic(15 * MS, 100 * MS, LIMITS) == ("low", f"15 % {feeding}, less than 20 ms")
    own = at_most(judge_chronic(600 * MS, 1000 * MS, LIMITS), "medium", "host_work")
    assert own == ("medium", f"no fault of the host: it is the program's own work, 60 % {feeding}")
    little = at_most(judge_chronic(300 * MS, 1000 * MS, LIMITS), "low", "sleep")
    assert little == ("low", f"no fault of the host: the program chose to sleep, 30 % {feeding}")


def test_the_reason_is_that_of_the_severity():
    """One stall that is nearly all of a process's time is high; ten small ones of a minute are not."""
    long = [preempted(0, 390, **HOG), slow(duration_ms=400, run_queue_ns=390 * MS)]
    small = [
        part
        for n in range(3)
        for part in (
            preempted(0, 9, start=START + n * SECOND, **HOG),
            slow(duration_ms=10, start=START + n * SECOND, run_queue_ns=9 * MS),
        )
    ]

    (one,) = explain(usual(), *long)[1].incidents()
    (other,) = explain(usual(), *small)[1].incidents()

    assert (one.severity, one.severity_reason) == ("high", "390 ms lost to the host in 1 effect")
    assert (other.severity, other.severity_reason) == (
        "medium",
        "27 ms lost to the host in 3 effects, less than 100 ms",
    )

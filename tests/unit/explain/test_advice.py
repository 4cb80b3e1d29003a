"""What to do, and in which order."""

import pytest

from otel_gpu.enrich.identity.identities import Culprit
from otel_gpu.enrich.known_work import ADVICE, WorkKind
from otel_gpu.explain.advice import (
    COUNTED_ADVICE,
    FAILED_ADVICE,
    LINES_ADVICE,
    advise,
    advise_failed,
)
from otel_gpu.explain.chains import Cause, Evidence
from otel_gpu.explain.kinds import EvidenceKind
from otel_gpu.explain.ranking import Added, added_to
from otel_gpu.explain.rules import RULE_BY_KIND
from otel_gpu.state.code_lines import NO_LINES
from tests.unit.explain.streams import MS
from tests.unit.report.test_lines import lines_at

HOG, LOADER = Culprit(900, 900, "hog"), Culprit(77, 77, "loader")
STEP = lines_at(("step", 7, 9))


def cause(kind, time_ms, *via, culprit=None, lines=NO_LINES):
    return Cause(kind, time_ms * MS, time_ms / 100, culprit, (), via, lines=lines)


def advised(*causes, lost_ms=100, usual_ms=0, kind=None):
    """The kinds whose advice is given, in their order."""
    texts = {rule.advice: rule.kind for rule in RULE_BY_KIND.values()}
    texts |= {LINES_ADVICE: "lines", COUNTED_ADVICE: "counted", FAILED_ADVICE: "failed"}
    texts |= {text: str(work) for work, text in ADVICE.items()}
    added = added_to(causes, usual_ms * MS)
    added.sort(key=lambda one: one.cause is not causes[0])
    return [texts[text] for text in advise(added, kind or causes[0].kind, lost_ms * MS)]


@pytest.mark.parametrize(
    ("causes", "expected"),
    [
        # A hog has the loader's CPU: more workers would be starved, too.
        ([cause("ipc", 100, cause("run_queue", 97), cause("unexplained", 3))], ["run_queue"]),
        ([cause("ipc", 100, cause("io", 95), cause("run_queue", 5))], ["io"]),
        # The worker works all the time: make it faster, and then have more of them.
        ([cause("ipc", 100, cause("host_work", 90, lines=STEP))], ["lines", "ipc"]),
        # What is left of the wait is not known, or its own.
        (
            [cause("ipc", 100, cause("run_queue", 70), cause("unexplained", 30))],
            ["run_queue", "ipc"],
        ),
        ([cause("ipc", 100, cause("run_queue", 40), cause("io", 60))], ["io", "run_queue"]),
        # Each hop of a path, from its end.
        (
            [
                cause(
                    "collective_wait",
                    100,
                    cause("ipc", 98, cause("run_queue", 96, culprit=HOG), culprit=LOADER),
                )
            ],
            ["run_queue"],
        ),
        ([cause("lock", 100, cause("sleep", 99))], ["sleep", "lock"]),
        # The GIL: what its holder does must go to another process, not to another thread.
        ([cause("gil", 100, cause("host_work", 99, lines=STEP))], ["gil"]),
        (
            [
                cause(
                    "gil",
                    100,
                    cause("host_work", 99, lines=lines_at(("f", 7, 3), work=WorkKind.GC)),
                )
            ],
            ["gc", "gil"],
        ),
        # Of two that are behind it, the larger one first: most of the time it held the GIL at work.
        (
            [cause("gil", 100, cause("host_work", 70, lines=STEP), cause("run_queue", 30))],
            ["gil", "run_queue"],
        ),
        (
            [cause("gil", 100, cause("host_work", 30, lines=STEP), cause("run_queue", 70))],
            ["run_queue", "gil"],
        ),
        # Less than a fifth of what was lost.
        ([cause("cpu_quota", 85), cause("gpu_backpressure", 15)], ["cpu_quota"]),
        (
            [cause("cpu_quota", 79), cause("gpu_backpressure", 21)],
            ["cpu_quota", "gpu_backpressure"],
        ),
        (
            [cause("ipc", 100, cause("run_queue", 19), cause("host_work", 81, lines=STEP))],
            ["lines", "ipc"],
        ),
        # It leads, however little it is.
        (
            [cause("run_queue", 15), *(cause(kind, 10) for kind in ("io", "lock", "gil"))],
            ["run_queue"],
        ),
        # None twice.
        (
            [cause("run_queue", 50, culprit=HOG), cause("run_queue", 50, culprit=LOADER)],
            ["run_queue"],
        ),
    ],
)
def test_the_deepest_cause_comes_first_and_small_ones_get_no_advice(causes, expected):
    """As the path says it, from its end to its beginning."""
    assert advised(*causes) == expected


def test_what_is_usual_is_no_part_of_what_was_lost():
    """Half of the call is the wait for the device that it always is."""
    causes = [cause("run_queue", 50), cause("gpu_wait", 50)]

    assert advised(*causes, lost_ms=55, usual_ms=45) == ["run_queue"]
    assert advised(*causes, lost_ms=100) == ["run_queue", "gpu_wait"]


def test_what_was_counted_comes_last_though_it_took_no_time():
    """How much of the wait it is, nobody knows."""
    counters = (Evidence("c", EvidenceKind.COUNTERS, 0, 1, reason="7 lost"),)
    counted = Cause("network", 0, 0.0, None, counters)

    assert advised(cause("gpu_wait", 100), counted) == ["gpu_wait", "counted"]


def test_an_incident_whose_leading_kind_is_no_cause_says_so_first():
    """As of an effect of which nothing is known."""
    assert advised(cause("run_queue", 30), kind="unexplained") == ["unexplained", "run_queue"]


def test_of_calls_that_failed_the_failure_comes_first_and_only_faults_follow():
    """What they usually wait for is beside the point."""
    causes = [cause("gpu_wait", 60), cause("preemption", 30), cause("lock", 5)]
    added = [Added(one.time_ns, one) for one in causes]

    assert advise_failed(added, "gpu_wait", 100 * MS) == (
        FAILED_ADVICE,
        RULE_BY_KIND["preemption"].advice,
    )

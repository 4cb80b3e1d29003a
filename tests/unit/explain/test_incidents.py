"""Effects of the same cause, put together."""

import pytest

from otel_gpu import wire
from otel_gpu.explain import rules
from otel_gpu.explain.advice import FAILED_ADVICE, IDLE_CPU_ADVICE
from otel_gpu.explain.explainer import Explainer
from otel_gpu.explain.settings import Settings
from tests.activities import SECOND, T0, capture, image
from tests.unit.explain.streams import (
    HOG,
    MS,
    START,
    TRAINER,
    WORKER,
    explain,
    in_ms,
    off_cpu,
    preempted,
    slow,
    slow_gap,
    throttled,
    usual,
    usual_gap,
    woken_by,
)


def hit(at_s, lost_ms=60, process=TRAINER, pid=900):
    """A call that a hog slowed down, and its stall."""
    start = START + round(at_s * SECOND)
    return [
        preempted(0, lost_ms, start=start, process=process, culprit_pid=pid, culprit_tid=pid + 1),
        slow(duration_ms=lost_ms + 1, start=start, process=process, run_queue_ns=lost_ms * MS),
    ]


def test_effects_of_one_culprit_are_one_incident():
    """It says what was lost altogether, to whom, and what to do."""
    _, explainer = explain(usual(), *hit(0), *hit(1), *hit(2))

    (incident,) = explainer.incidents()
    assert incident.effects == 3
    assert incident.lost_ns == 180 * MS
    assert in_ms(incident.causes) == [("preemption", 180), ("gpu_wait", 3)]
    assert incident.causes[0].culprit.pid == 900
    assert incident.causes[0].share == pytest.approx(180 / 183)
    assert incident.unexplained_ns == 0
    assert incident.severity == "high"
    assert incident.advice == (rules.RULE_BY_KIND["preemption"].advice,)
    assert incident.start_unix_ns == T0 + START
    assert incident.end_unix_ns == T0 + START + 2 * SECOND + 61 * MS
    assert len(incident.chains) == 3


def test_calls_that_failed_get_advice_about_failures():
    """Nobody is told to profile kernels that were never launched; a hog is told of all the same."""
    start = START + 5 * SECOND
    failed = slow(start=start, duration_ms=0.002, status=2, choices=wire.CHOICE_FAILED)
    hog, call = hit(10)
    call = call._replace(event=call.event._replace(status=2))

    _, explainer = explain(usual(), failed, hog, call)

    assert {incident.causes[0].kind: incident.advice for incident in explainer.incidents()} == {
        "gpu_wait": (FAILED_ADVICE,),
        "preemption": (FAILED_ADVICE, rules.RULE_BY_KIND["preemption"].advice),
    }


def test_another_culprit_another_process_or_a_pause_make_another_incident():
    """What is put together has the same cause, in the same window of time."""
    other = image(43, name="other")
    stream = [
        *(usual(), usual(process=other)),
        *(*hit(0), *hit(1, pid=800), *hit(2, process=other), *hit(14)),
    ]

    _, explainer = explain(*stream)

    incidents = explainer.incidents()
    assert len(incidents) == 4
    assert {incident.effects for incident in incidents} == {1}
    assert len({incident.id for incident in incidents}) == 4


def test_little_loss_is_not_high():
    """All of the excess is the hog's, and it cost a twentieth of a second."""
    _, explainer = explain(usual(), *hit(0, lost_ms=50))

    assert [incident.severity for incident in explainer.incidents()] == ["medium"]


def test_loss_is_measured_against_its_stretch_of_time():
    """A tenth of a second lost in a minute is a nuisance."""
    stream = [part for n in range(10) for part in hit(6 * n, lost_ms=15)]

    _, explainer = explain(usual(), *stream)

    (incident,) = explainer.incidents()
    assert incident.lost_ns == 150 * MS
    assert incident.severity == "medium"


def test_what_counts_is_set():
    """An operator who cares about less says so."""
    _, explainer = explain(
        usual(), *hit(0, lost_ms=50), settings=Settings(high_lost_ns=10 * MS, high_window_share=0)
    )

    assert [incident.severity for incident in explainer.incidents()] == ["high"]


def test_the_fault_leads_although_the_device_took_longer():
    """A call that waits for the GPU anyway is put down to what was added to that."""
    _, explainer = explain(
        usual(duration_ns=100 * MS),
        *[
            part
            for n in range(2)
            for part in (
                preempted(100, 140, start=START + n * SECOND, **HOG),
                preempted(250, 70, start=START + n * SECOND, **HOG),
                slow(duration_ms=400, start=START + n * SECOND, run_queue_ns=210 * MS),
            )
        ],
    )

    (incident,) = explainer.incidents()
    assert in_ms(incident.causes) == [("preemption", 420), ("gpu_wait", 380)]
    assert incident.lost_ns == 600 * MS


@pytest.mark.parametrize(
    ("throttled_ms", "advice"),
    [(0, IDLE_CPU_ADVICE), (80, rules.RULE_BY_KIND["cpu_quota"].advice)],
)
def test_a_wait_on_an_idle_cpu_gets_the_advice_of_what_kept_it(throttled_ms, advice):
    """A quota, if that was used up meanwhile; else not the quota's advice, and not a hog's."""
    _, explainer = explain(
        usual(),
        throttled(-500, 3),
        preempted(10, 80, flags=wire.STALL_IDLE_CPU),
        slow(run_queue_ns=80 * MS),
        throttled(500, 4, throttled_ms=throttled_ms),
    )

    (incident,) = explainer.incidents()
    assert incident.advice[0] == advice


def test_waits_for_a_cpu_that_was_mostly_busy_get_the_advice_about_its_load():
    """Of two waits without a culprit the longer one says what to do."""
    _, explainer = explain(
        usual(),
        preempted(10, 20, flags=wire.STALL_IDLE_CPU),
        preempted(40, 50),
        slow(run_queue_ns=70 * MS),
    )

    (incident,) = explainer.incidents()
    assert in_ms(incident.causes) == [("run_queue", 70), ("gpu_wait", 30)]
    assert incident.advice[0] == rules.RULE_BY_KIND["run_queue"].advice


def test_causes_of_causes_are_put_together_too():
    """Each wait for the worker was a wait for the hog, and the advice is about the hog first."""
    stream = []
    for n in range(2):
        start = START + n * SECOND
        stream += [
            off_cpu(0, 0, 150, process=WORKER, start=start, **HOG),
            off_cpu(0, 200, reason="ipc", start=start, **woken_by(WORKER)),
            slow_gap(200, start=start, blocked_ns=200 * MS),
        ]

    _, explainer = explain(usual_gap(), *stream)

    (incident,) = explainer.incidents()
    (cause,) = incident.causes
    assert (cause.kind, cause.time_ns) == ("ipc", 400 * MS)
    assert in_ms(cause.via) == [("run_queue", 300), ("unexplained", 100)]
    # There is nothing to do about what was not seen.
    assert incident.advice == tuple(
        rules.RULE_BY_KIND[kind].advice for kind in ("run_queue", "ipc")
    )


def test_incidents_come_in_the_order_of_what_they_cost():
    """The first one is worth reading first."""
    _, explainer = explain(usual(), *hit(0, lost_ms=50), *hit(1, lost_ms=500, pid=800))

    assert [incident.lost_ns for incident in explainer.incidents()] == [500 * MS, 50 * MS]


def test_an_incident_is_handed_out_once_when_it_is_over():
    """Ten seconds after its last effect nothing more is expected of it."""
    explainer = Explainer()
    for activity in (capture(), usual(), *hit(0)):
        list(explainer.push(activity))

    list(explainer.push(throttled(9_000, 0)))
    before = list(explainer.closed_incidents())
    list(explainer.push(throttled(15_000, 0)))
    after = list(explainer.closed_incidents())

    assert before == []
    assert [incident.effects for incident in after] == [1]
    assert list(explainer.closed_incidents()) == []
    assert explainer.incidents() == after


def test_the_worst_chains_of_an_incident_are_kept():
    """Its sums are of all of them."""
    stream = [part for n, ms in enumerate([30, 90, 60]) for part in hit(n, lost_ms=ms)]

    _, explainer = explain(usual(), *stream, settings=Settings(max_chains=2))

    (incident,) = explainer.incidents()
    assert [chain.effect.duration_ns // MS for chain in incident.chains] == [91, 61]
    assert (incident.effects, incident.lost_ns) == (3, 180 * MS)
    assert explainer.given_up == {"chains": 1}


def test_the_least_incidents_are_given_up_and_counted():
    """A stream without end has incidents without end."""
    stream = [part for n in range(5) for part in hit(20 * n, lost_ms=20 + n)]

    _, explainer = explain(usual(), *stream, settings=Settings(max_incidents=2))

    assert [incident.lost_ns // MS for incident in explainer.incidents()] == [24, 23]
    assert explainer.given_up == {"incidents": 3}


def test_an_incident_that_closes_at_once_has_its_chain():
    """It began before the one that is open, and there is room for one."""
    explainer = Explainer(Settings(max_incidents=1))
    for activity in (capture(), usual(), *hit(0.2, pid=901), *hit(0, pid=902)):
        list(explainer.push(activity))

    list(explainer.push(throttled(4_000, 0)))

    (incident,) = explainer.closed_incidents()
    assert (incident.effects, len(incident.chains)) == (1, 1)

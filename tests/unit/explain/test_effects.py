"""Which calls and gaps are effects, and by how much they are too long."""

import signal

import pytest

from otel_gpu import wire
from tests.activities import APIS_BY_NAME, SECOND, open_call
from tests.unit.explain.streams import (
    MS,
    START,
    TRAINER,
    chain_of,
    explain,
    in_ms,
    readings_of,
    slow,
    slow_gap,
    usual,
    usual_gap,
)


def test_the_excess_is_over_the_median_of_the_series():
    """100 ms where 10 ms are usual are 90 ms too many."""
    chain = chain_of(usual(duration_ns=10 * MS), slow(duration_ms=100))

    assert chain.effect.kind == "slow_call"
    assert chain.effect.duration_ns == 100 * MS
    assert chain.effect.excess_ns == 90 * MS


def test_an_effect_names_the_span_that_shows_it():
    """The chain can be put below it without any lookup."""
    activity = slow()

    effect = chain_of(usual(), activity).effect

    assert effect.trace_id == activity.trace_id
    assert effect.span_id == activity.span_id
    assert (effect.api, effect.tid, effect.comm) == ("cudaStreamSynchronize", 42, "trainer")


def test_a_gap_is_named_by_the_call_that_it_delayed():
    """What the device waited for is the launch after the gap."""
    effect = chain_of(usual_gap(), slow_gap()).effect

    assert (effect.kind, effect.api) == ("slow_gap", "cudaLaunchKernel")


@pytest.mark.parametrize(
    ("median_ms", "duration_ms"),
    [(40, 100), (0.01, 0.9)],
    ids=["under three medians", "under the floor"],
)
def test_what_is_usual_is_no_effect(median_ms, duration_ms):
    """Slow means three medians, and a time that matters."""
    chains, _ = explain(
        usual(duration_ns=round(median_ms * MS)), slow(duration_ms=round(duration_ms * 1000) / 1000)
    )

    assert chains == []


def test_a_call_that_only_the_baseline_sample_chose_is_no_effect():
    """It stands for others, and is not blamed for being looked at."""
    chains, _ = explain(usual(), slow(choices=wire.CHOICE_SAMPLED))

    assert chains == []


def test_every_call_of_a_full_capture_is_measured_by_its_median():
    """It was chosen for no reason of its own."""
    chains, _ = explain(
        usual(duration_ns=10 * MS),
        slow(duration_ms=100, choices=wire.CHOICE_FULL),
        slow(duration_ms=20, choices=wire.CHOICE_FULL, start=START + SECOND),
    )

    assert [chain.effect.duration_ns for chain in chains] == [100 * MS]


def test_without_a_median_the_kernel_sides_word_is_taken():
    """Under twenty calls nothing is usual yet, so all of the time counts."""
    few = usual(count=19)

    chains, _ = explain(few, slow(), slow(choices=wire.CHOICE_FULL, start=START + SECOND))

    assert [chain.effect.excess_ns for chain in chains] == [100 * MS]


def test_the_median_is_taken_when_the_effect_settles():
    """A reading that comes a second later still says what is usual."""
    chains, _ = explain(slow(), usual(duration_ns=90 * MS, at_s=101))

    assert chains == []


def test_copies_are_compared_with_copies_of_their_own_kind():
    """From the device is not to the device."""
    kinds = {"copy_kind": wire.COPY_DEVICE_TO_HOST}
    usual_copy = readings_of("cudaMemcpy", [90 * MS] * 50, 10)

    chain = chain_of(usual_copy, slow("cudaMemcpy", **kinds))

    assert chain.effect.excess_ns == 100 * MS


def test_a_call_inside_another_is_part_of_that_ones_chain():
    """The runtime's call and the driver's below it are one effect."""
    chains, _ = explain(
        usual(),
        slow("cuStreamSynchronize", parent_start_ktime_ns=START - 1),
        slow("cudaStreamSynchronize"),
    )

    assert [chain.effect.api for chain in chains] == ["cudaStreamSynchronize"]


def test_a_failed_call_is_an_effect_however_fast():
    """That it failed is worth a chain; that it lost no time keeps it low."""
    chain = chain_of(usual(), slow(duration_ms=0.002, status=2, choices=wire.CHOICE_FAILED))

    assert (chain.effect.kind, chain.severity) == ("failed_call", "low")


def test_a_hung_call_is_told_at_once_and_only_once():
    """It is reported again and again; the first report makes the chain."""
    reports = [
        open_call(TRAINER, "cudaStreamSynchronize", START, START + n * SECOND) for n in (10, 11, 12)
    ]

    chains, explainer = explain(*reports)

    assert [(chain.effect.kind, chain.effect.duration_ns) for chain in chains] == [
        ("hung_call", 10 * SECOND)
    ]
    assert in_ms(chains[0].causes) == [("gpu_wait", 10_000)]
    assert [incident.lost_ns for incident in explainer.incidents()] == [12 * SECOND]


def test_a_hung_call_that_returns_counts_once():
    """From then on it is a slow call, and what was said of it while it hung is replaced."""
    report = open_call(TRAINER, "cudaStreamSynchronize", START, START + 10 * SECOND)

    chains, explainer = explain(usual(), report, slow(duration_ms=15_000))

    assert [chain.effect.kind for chain in chains] == ["hung_call", "slow_call"]
    (incident,) = explainer.incidents()
    assert (incident.effects, incident.lost_ns) == (1, 14_999 * MS)


def test_a_hung_call_that_a_signal_ends_is_both():
    """That is how most hangs end: what it hung in is what there is to know."""
    report = open_call(TRAINER, "cudaStreamSynchronize", START, START + 10 * SECOND)
    status = wire.STATUS_KILLED + signal.SIGKILL
    end = slow(duration_ms=15_000, status=status, choices=wire.CHOICE_FAILED)

    chains, explainer = explain(usual(), report, end)

    assert [chain.effect.kind for chain in chains] == ["hung_call", "killed_call"]
    told = {one.chains[0].effect.kind: one for one in explainer.incidents()}
    assert {kind: one.lost_ns for kind, one in told.items()} == {
        "hung_call": 10 * SECOND,
        "killed_call": 0,
    }
    assert in_ms(told["hung_call"].causes) == [("gpu_wait", 10_000)]


def test_an_unknown_api_is_an_effect_like_any_other():
    """A recording of a later version has calls that the table lacks."""
    activity = slow()
    strange = APIS_BY_NAME["cudaMalloc"]._replace(number=191, name="cudaNovel", family=99)

    chain = chain_of(activity._replace(event=activity.event._replace(api=191), api=strange))

    assert chain.effect.api == "cudaNovel"

"""What is explained under a budget: of each second what lost most, chosen before any cause is looked for."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import Culprit
from otel_gpu.enrich.thread_times import NO_WAIT
from otel_gpu.explain.chain_builder import ChainBuilder
from otel_gpu.explain.explainer import Explainer
from otel_gpu.explain.settings import Settings
from tests.activities import SECOND, T0, capture, image
from tests.unit.explain.streams import (
    MS,
    START,
    WORKER,
    account,
    explain,
    off_cpu,
    readings_of,
    slow,
    slow_gap,
    snapshot,
    time_of,
    usual,
    woken_by,
)

PER_SECOND = 7
SETTINGS = Settings(effects_per_second=PER_SECOND)
QUICK, SLUGGISH = "cudaStreamSynchronize", "cudaMemcpy"


def of_user(user, pid):
    process = image(pid)
    return replace(process, attributes={**process.attributes, "process.owner": user})


def effects_of_a_second(count, at=START):
    """Calls of two series, one of which usually takes 40 ms; no two lost the same."""
    step = SECOND // (count + 1)
    for number in range(count):
        start = at + number * step
        if number % 2:
            yield slow(QUICK, 5 + number, start=start, tid=1_000 + number)
        else:
            yield slow(SLUGGISH, 125 + number, start=start, tid=1_000 + number)


def usual_of_both():
    quick = usual(api=QUICK, duration_ns=MS)
    return snapshot(10, *quick.series, *usual(api=SLUGGISH, duration_ns=40 * MS).series)


def explained(stream, settings):
    explainer = Explainer(settings)
    chains = []
    for activity in (capture(), usual_of_both(), *stream):
        chains += explainer.push(activity)
    chains += explainer.close()
    return chains, explainer.take_left_out()


def lost_most(chains, count):
    seconds = {}
    for chain in chains:
        end_unix_ns = chain.effect.start_unix_ns + chain.effect.duration_ns
        seconds.setdefault(end_unix_ns // SECOND, []).append(chain)
    return {
        chain.id
        for found in seconds.values()
        for chain in sorted(found, key=lambda one: -one.effect.excess_ns)[:count]
    }


@pytest.mark.parametrize("order", [None, 0, 1, 2])
def test_what_lost_most_is_explained_whatever_its_series(order):
    """Time over the median counts, not duration; the rest is counted, and nothing twice."""
    stream = []
    for second in range(5):
        made = list(effects_of_a_second(97, START + second * SECOND))
        if order is not None:
            random.Random(order).shuffle(made)  # noqa: S311 -- the same order every time
        stream += made
    every, nothing = explained(stream, Settings())
    chosen, left_out = explained(stream, SETTINGS)

    assert nothing == {}
    assert len(every) == 485
    assert {chain.id for chain in chosen} == lost_most(every, PER_SECOND)
    assert len(chosen) + left_out.total() == 485


def test_a_user_whose_program_floods_takes_no_other_user_its_explanations():
    """Each has as much of a second as the others, and what it needs no more of is theirs; who was cut is counted."""
    hostile, other = of_user("nobody", 500), of_user("alice", 600)
    flood = [slow(QUICK, 400 + n, process=hostile, start=START + n, tid=n) for n in range(499)]
    few = [slow(QUICK, 30 + n, process=other, start=START + 870 * MS, tid=n) for n in range(3)]
    explainer = Explainer(replace(SETTINGS, effects_per_second=11))
    stream = (capture(), usual(hostile), usual(other), *flood, *few)
    chains = [chain for activity in stream for chain in explainer.push(activity)]
    chains += explainer.close()

    assert Counter(chain.effect.process for chain in chains) == {hostile: 8, other: 3}
    longest = [chain for chain in chains if chain.effect.process is hostile]
    assert {chain.effect.duration_ns for chain in longest} == {n * MS for n in range(891, 899)}
    assert explainer.take_left_out() == {"rate": 499 - 8}
    assert explainer.take_cut() == {hostile: 499 - 8}


def test_who_is_alone_is_not_cut():
    """The budget is all its own; what goes beyond is counted, and no share."""
    slow_ones = [slow(QUICK, 5 + n, start=START, tid=n) for n in range(97)]
    explainer = Explainer(SETTINGS)
    for activity in (capture(), usual_of_both(), *slow_ones):
        explainer.push(activity)
    explainer.close()

    assert explainer.take_left_out() == {"rate": 97 - PER_SECOND}
    assert not explainer.take_cut()


def test_what_is_left_out_costs_no_search_for_causes(monkeypatch):
    """However many waits there are in a second, so many are looked into, and no more."""
    looked_into = []
    explain_one = ChainBuilder.explain

    def count(self, candidate):
        looked_into.append(candidate)
        return explain_one(self, candidate)

    monkeypatch.setattr(ChainBuilder, "explain", count)
    storm = [slow_gap(2, start=START + number * 500_000, tid=number % 3) for number in range(9_973)]
    chains, left_out = explained(storm, SETTINGS)

    seconds = {(gap.event.end_ktime_ns + T0) // SECOND for gap in storm}
    assert len(looked_into) == len(chains) == PER_SECOND * len(seconds)
    assert left_out == {"rate": 9_973 - len(chains)}


def test_only_effects_are_counted_as_left_out():
    """Of calls that took no longer than usual there is nothing to explain."""
    usual_ones = [slow(SLUGGISH, 41, start=START + n * MS, tid=n) for n in range(50)]
    chains, left_out = explained([*usual_ones, *effects_of_a_second(11)], SETTINGS)

    assert (len(chains), left_out) == (PER_SECOND, {"rate": 11 - PER_SECOND})


def test_of_each_kind_of_failure_one_is_explained_first():
    """A call that failed lost nothing, and is worse than many that were slow."""
    failures = [
        slow("cudaMalloc", 0, start=START + n * MS, tid=n, status=2 + n % 2) for n in range(101)
    ]
    slow_ones = [slow(QUICK, 5 + n, start=START, tid=n) for n in range(97)]
    chains, left_out = explained([*slow_ones, *failures], SETTINGS)

    failed = [chain for chain in chains if chain.effect.kind == "failed_call"]
    assert (len(chains), len(failed)) == (PER_SECOND, 2)
    assert left_out == {"rate": 198 - PER_SECOND}


def test_failures_of_network_adapters_are_explained_before_those_of_calls():
    """They take no time, and are perhaps why the calls fail."""
    said = [
        slow("ibv_get_async_event", 0, start=START + n * MS, tid=1, status=10 + n % 2)
        for n in range(5)
    ]
    slow_ones = [slow(QUICK, 5 + n, start=START, tid=n) for n in range(97)]
    chains, _ = explained([*slow_ones, *said], SETTINGS)

    kinds = Counter(chain.effect.kind for chain in chains)
    assert kinds == {"network_event": 5, "slow_call": PER_SECOND - 5}


def test_one_trace_has_room_for_sixteen():
    """Others do not suffer for it."""
    of_one = bytes(15) + b"x"
    stream = [
        one._replace(trace_id=of_one) if number < 40 else one
        for number, one in enumerate(
            slow(QUICK, 100 - number, start=START + number, tid=number) for number in range(60)
        )
    ]
    chains, left_out = explained(stream, replace(SETTINGS, effects_per_second=30))

    traces = [chain.effect.trace_id for chain in chains]
    assert traces.count(of_one) == 16
    assert len(chains) == 30
    assert left_out == {"trace_full": 24, "rate": 6}


def test_one_that_is_late_is_decided_with_the_next():
    """What was decided is not decided again, and what comes after it is not lost."""
    stream = [
        *effects_of_a_second(11),
        readings_of(QUICK, [MS], at_s=200),
        slow(QUICK, 500, start=START, tid=5_000),
    ]
    chains, left_out = explained(stream, SETTINGS)

    assert chains[-1].effect.tid == 5_000
    assert (len(chains), left_out) == (PER_SECOND + 1, {"rate": 11 - PER_SECOND})


def test_memory_is_bounded():
    """Of one second no more wait than can be explained, of all no more than there is room for."""
    stream = [
        slow_gap(2, start=START + second * SECOND // 2 + n * MS, tid=n)
        for second in range(20)
        for n in range(400)
    ]
    explainer = Explainer(replace(SETTINGS, max_pending=20, settle_ns=10 * SECOND))
    for activity in (capture(), usual_of_both(), *stream):
        explainer.push(activity)
        assert len(explainer._pending) <= 20

    assert explainer.given_up["settled_early"] > 0


def waits(readings):
    """A loader that is waited for again and again, in every gap; the account knows of all of them."""
    loader = Culprit(WORKER.pid, WORKER.pid, "worker")
    wait = NO_WAIT._replace(api=1, who=loader, end=loader, end_state=wire.STATE_ON_CPU)
    for second in range(readings):
        waited_ms = 800 * second
        yield account(
            100 + second,
            time_of(wire.STATE_BLOCKED, wire.CONTEXT_GAP, waited_ms, "ipc")._replace(
                ended_ns=waited_ms * MS, wait=wait
            ),
            time_of(wire.STATE_ON_CPU, wire.CONTEXT_CALL, 200 * second),
        )
        for number in range(100 if second < readings - 1 else 0):
            start = START + second * SECOND + number * 10 * MS
            yield off_cpu(0, 8, reason="ipc", start=start, **woken_by(WORKER))
            yield slow_gap(8, start=start, blocked_ns=8 * MS)


def test_totals_by_cause_are_those_of_all_effects():
    """What no effect tells of is in the account, and is found there: to the nanosecond."""
    lost_ns, effects = [], []
    for settings in (Settings(), SETTINGS):
        _, explainer = explain(*waits(31), settings=settings)
        totals = Counter()
        for incident in explainer.incidents():
            totals[incident.causes[0].kind] += incident.lost_ns
        lost_ns.append(totals)
        effects.append(sum(incident.effects for incident in explainer.incidents()))

    assert lost_ns == [{"ipc": 24 * SECOND}] * 2
    assert effects == [3_000, 30 * PER_SECOND]

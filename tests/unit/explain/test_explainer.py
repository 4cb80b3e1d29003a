"""What holds for every stream of activities."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_gpu import wire
from otel_gpu.enrich.activities import PressureActivity
from otel_gpu.explain import rules
from otel_gpu.explain.explainer import Explainer
from otel_gpu.explain.settings import Settings
from tests.activities import T0, calls, capture, ended, image, open_call, snapshot, status
from tests.unit.explain.streams import (
    HOG,
    MS,
    START,
    TRAINER,
    WORKER,
    account,
    explain,
    fork_by,
    off_cpu,
    preempted,
    slow,
    slow_gap,
    throttled,
    time_of,
    usual,
    usual_gap,
    woken_by,
)

PROCESSES = [TRAINER, TRAINER, TRAINER, WORKER, image(42, 9)]
REASONS = [
    *("lock", "gil", "queue", "io", "ipc", "sleep", "page_fault", "reclaim", "mmap_lock"),
    *("child_wait", "stopped", "driver", "unknown", "", "a reason of a later version"),
]
APIS = ["cudaStreamSynchronize", "cudaLaunchKernel", "cudaMalloc", "cudaMemcpy", "cuMemFree"]
milliseconds = st.integers(0, 40) | st.integers(0, 200) | st.integers(-3000, 3000)
lengths = st.integers(0, 40) | st.integers(0, 200) | st.integers(0, 2000)
u64 = st.integers(0, 2**64 - 1)
totals = st.integers(0, 2**64 - 1) | st.integers(0, 2000 * MS)
processes = st.sampled_from(PROCESSES)
tids = st.sampled_from([42, 42, 43, 77])


@st.composite
def stalls(draw):
    other = draw(st.none() | processes)
    fields = {"tid": draw(tids), "flags": draw(st.integers(0, 7))}
    fields["switch_type"] = draw(st.integers(0, 3))
    fields["call_api"] = draw(st.integers(0, 191))
    fields["call_start_ktime_ns"] = draw(st.sampled_from([0, START]))
    if other is not None:
        fields |= woken_by(other, draw(tids)) | HOG
    return off_cpu(
        draw(milliseconds),
        draw(lengths),
        draw(lengths),
        process=draw(processes),
        reason=draw(st.sampled_from(REASONS)),
        **fields,
    )


@st.composite
def crooked_stalls(draw):
    event = {"tid": draw(tids), "switch_type": 1}
    stall = off_cpu(0, 1, 1, process=draw(processes), reason="lock", **event)
    times = {name: draw(u64) for name in ("start_ktime_ns", "runnable_ktime_ns", "end_ktime_ns")}
    return stall._replace(event=stall.event._replace(**times))


@st.composite
def slow_calls(draw):
    return slow(
        draw(st.sampled_from(APIS)),
        draw(lengths),
        draw(processes),
        START + draw(milliseconds) * MS,
        tid=draw(tids),
        blocked_ns=draw(totals),
        run_queue_ns=draw(totals),
        choices=draw(st.integers(0, 63)),
        status=draw(st.sampled_from([0, 0, 2])),
    )


@st.composite
def slow_gaps(draw):
    return slow_gap(
        draw(lengths),
        draw(processes),
        START + draw(milliseconds) * MS,
        draw(tids),
        blocked_ns=draw(totals),
        run_queue_ns=draw(totals),
    )


@st.composite
def backward_calls(draw):
    call = draw(slow_calls())
    return call._replace(event=call.event._replace(end_ktime_ns=draw(u64)), end_unix_ns=draw(u64))


@st.composite
def open_calls(draw):
    return open_call(
        draw(processes),
        draw(st.sampled_from(APIS)),
        START + draw(milliseconds) * MS,
        START + draw(milliseconds) * MS,
        tid=draw(tids),
        blocked_ns=draw(totals),
    )


counts = st.integers(0, 1 << 63)
# What is refused by the decoder is tested with it; what is missing is not.
loads = st.fixed_dictionaries(
    {},
    optional={
        "nr_throttled": counts,
        "throttled_ns": counts,
        "pids": st.lists(st.sampled_from([42, 43])),
    },
)
pressures = st.builds(
    lambda at_ms, info: PressureActivity(T0 + START + at_ms * MS, info),
    milliseconds,
    st.fixed_dictionaries({}, optional={"cgroups": st.dictionaries(st.just("/pod"), loads)}),
)
activities = st.one_of(
    stalls(),
    stalls(),
    crooked_stalls(),
    slow_calls(),
    slow_gaps(),
    backward_calls(),
    open_calls(),
    pressures,
    st.builds(throttled, milliseconds, st.integers(0, 5)),
    st.builds(fork_by, tids, milliseconds, lengths),
    st.builds(usual, processes, st.sampled_from(APIS), st.integers(1, 20 * MS)),
    st.builds(usual_gap, processes, st.integers(1, 20 * MS)),
    st.builds(
        lambda *time: account(100, time_of(*time)),
        st.integers(0, 4),
        st.integers(0, 4),
        lengths,
        st.sampled_from(REASONS),
        processes,
    ),
    st.just(snapshot(101, calls(TRAINER, "cudaMalloc", [MS]))),
    st.sampled_from([ended(TRAINER, 200), status(100), capture()]),
)
streams = st.lists(activities, max_size=25)
many_examples = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])


def assert_parts_fit(causes, whole_ns):
    assert all(cause.time_ns > 0 for cause in causes)
    assert sum(cause.time_ns for cause in causes) <= whole_ns
    for cause in causes:
        assert cause.kind in rules.KINDS
        assert 0 < cause.share <= 1
        assert_parts_fit(cause.via, cause.time_ns)


@many_examples
@given(streams)
def test_the_parts_of_every_chain_sum_to_its_whole(stream):
    """Whatever comes, in whatever order: nothing is counted twice, nothing is lost."""
    chains, explainer = explain(*stream)

    for chain in chains:
        duration_ns = chain.effect.duration_ns
        assert chain.unexplained_ns >= 0
        assert sum(cause.time_ns for cause in chain.causes) + chain.unexplained_ns == duration_ns
        assert 0 <= chain.effect.excess_ns <= duration_ns
        assert_parts_fit(chain.causes, duration_ns)
    for incident in explainer.incidents():
        assert incident.lost_ns >= 0
        whole_ns = sum(cause.time_ns for cause in incident.causes) + incident.unexplained_ns
        assert_parts_fit(incident.causes, whole_ns)


@many_examples
@given(streams)
def test_a_stream_is_always_explained_in_the_same_way(stream):
    """Nothing but the stream decides."""
    first_chains, first = explain(*stream)
    again_chains, again = explain(*stream)

    assert first_chains == again_chains
    assert first.incidents() == again.incidents()


@many_examples
@given(streams)
def test_tight_limits_stop_nothing(stream):
    """What finds no room is counted, and the rest still fits."""
    tight = Settings(
        max_pending=1,
        max_intervals=2,
        max_thread_intervals=1,
        max_series=1,
        max_processes=1,
        max_incidents=1,
        max_chains=1,
        max_evidence=1,
        max_depth=1,
    )

    chains, explainer = explain(*stream, settings=tight)

    assert len(explainer.incidents()) <= 1
    for chain in chains:
        assert_parts_fit(chain.causes, chain.effect.duration_ns)


def test_every_effect_has_a_chain_of_its_own():
    """Ids tell chains apart, and do not change from run to run."""
    chains, _ = explain(
        usual(), usual_gap(), slow_gap(), slow(start=START + 100 * MS), slow(tid=43)
    )

    assert [chain.id for chain in chains] == [
        f"slow_gap-42-42-{START}",
        f"slow_call-42-42-{START + 100 * MS}",
        f"slow_call-42-43-{START}",
    ]


def test_an_effect_waits_for_what_belongs_to_it():
    """Its chain comes out a moment of the stream's time later."""
    explainer = Explainer()
    for activity in (capture(), usual(), preempted(0, 90, **HOG)):
        assert list(explainer.push(activity)) == []

    assert list(explainer.push(slow(run_queue_ns=90 * MS))) == []
    assert list(explainer.push(throttled(3_000, 0))) == []
    assert [chain.effect.kind for chain in explainer.push(throttled(3_100, 0))] == ["slow_call"]
    assert list(explainer.close()) == []


def test_chains_that_nobody_takes_are_not_lost_to_the_incidents():
    """Taking an activity in does not depend on what is done with the chains."""
    explainer = Explainer()
    for activity in (capture(), usual(), preempted(0, 90, **HOG), slow(run_queue_ns=90 * MS)):
        explainer.push(activity)
    explainer.close()

    assert [incident.effects for incident in explainer.incidents()] == [1]


def test_a_clean_run_has_no_incident():
    """Calls and gaps that vary as they always do are nobody's fault."""
    stream = [usual(duration_ns=10 * MS), usual_gap(duration_ns=2 * MS)]
    for n in range(100):
        start = START + n * 20 * MS
        stream += [
            off_cpu(0, 12, 0.05, reason="driver", start=start, **HOG),
            slow(duration_ms=12 + n % 5, start=start, blocked_ns=12 * MS, choices=wire.CHOICE_FULL),
            slow_gap(2 + n % 3, start=start + 17 * MS, choices=wire.CHOICE_FULL),
        ]

    chains, explainer = explain(*stream)

    assert chains == []
    assert explainer.incidents() == []


def test_effects_beyond_the_limit_are_settled_early_and_counted():
    """A storm of slow calls costs bounded memory."""
    stream = [slow(duration_ms=2, start=START + n * 3 * MS) for n in range(20)]

    chains, explainer = explain(*stream, settings=Settings(max_pending=5))

    assert len(chains) == 20
    assert explainer.given_up == {"settled_early": 15}

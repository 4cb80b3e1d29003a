"""What is behind each class that a verdict names."""

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import Culprit
from otel_gpu.explain.accounting.bounds import with_bounds
from otel_gpu.explain.accounting.verdicts import find_verdicts
from otel_gpu.explain.chains import Cause, Incident
from otel_gpu.explain.code_locations import CodeLocations
from otel_gpu.explain.settings import Settings
from otel_gpu.report.time_tree import describe_bound
from otel_gpu.report.wording.sentences import plain
from otel_gpu.state.capture_state import CaptureState
from tests.unit.explain.accounting.test_time_tree import waited
from tests.unit.explain.streams import MS, TRAINER, WORKER, account, sampled, stack_at, time_of

GAP, SYNC, CALL = wire.CONTEXT_GAP, wire.CONTEXT_SYNCHRONIZE, wire.CONTEXT_CALL
ON_CPU, RUN_QUEUE, BLOCKED = wire.STATE_ON_CPU, wire.STATE_RUN_QUEUE, wire.STATE_BLOCKED
HOG, OTHER = Culprit(900, 0, "hog"), Culprit(901, 0, "make")
HOLDER = Culprit(42, 43, "saver")


def bounds_of(*times, samples=(), incidents=()):
    """What a verdict names: class and words."""
    places, state = CodeLocations(16), CaptureState()
    for sample in samples:
        places.observe(sample)
    state.observe(account(1, *times))
    (verdict,) = find_verdicts(state.figures().values(), Settings(), places)
    verdict = with_bounds(verdict, incidents)
    return verdict.verdict, [(one.name, plain(describe_bound(one))) for one in verdict.bounds]


def incident(*causes, process=TRAINER):
    lost_ns = sum(cause.time_ns for cause in causes)
    return Incident("1", "high", 0, 1, lost_ns, causes, 0, (), (), 1, process=process)


def cause(kind, time_ms, culprit=None, via=()):
    return Cause(kind, time_ms * MS, 0.5, culprit, (), via)


def test_whose_fault_it_is_that_it_had_no_cpu():
    """The one that had it, however much the program's own code ran."""
    found = bounds_of(
        waited(ON_CPU, GAP, 300),
        waited(RUN_QUEUE, GAP, 600, who=HOG),
        waited(RUN_QUEUE, SYNC, 100, who=OTHER),
        samples=sampled({stack_at("step"): 9}, 0),
    )

    assert found == (
        "cpu-starved",
        [
            ("starved", "hog (900) had the CPU"),
            ("cpu", "in pictures.py:7 step: 100 % of 9 samples"),
        ],
    )


def test_of_many_who_had_the_cpu_the_one_that_had_it_longest_is_named_with_its_part():
    """No single one is at fault, and it is not said that one is."""
    many = [waited(RUN_QUEUE, GAP, 100, who=Culprit(pid, 0, "cc1")) for pid in range(800, 806)]
    found = bounds_of(*many, waited(RUN_QUEUE, GAP, 200, who=HOG))

    assert found == ("cpu-starved", [("starved", "hog (900) had the CPU for 25 % of it")])


def test_effects_say_who_it_was_where_the_account_does_not():
    """Of recordings of before, and of quotas, which no account of times knows."""
    old = (time_of(RUN_QUEUE, CALL, 700), time_of(ON_CPU, SYNC, 300))
    by_hog = incident(cause("preemption", 500, HOG), cause("run_queue", 100, OTHER))
    by_quota = incident(cause("cpu_quota", 600), cause("preemption", 50, HOG))
    little = incident(cause("preemption", 200, HOG))
    of_another = incident(cause("preemption", 700, HOG), process=WORKER)
    stopped = (time_of(BLOCKED, CALL, 700, "stopped"), time_of(ON_CPU, SYNC, 300))

    said = [
        bounds_of(*old, incidents=[one])[1][0] for one in (by_hog, by_quota, little, of_another)
    ]
    assert said == [
        ("starved", "hog (900) had the CPU"),
        ("starved", "CPU quota used up"),
        ("starved", ""),
        ("starved", ""),
    ]
    assert bounds_of(*stopped, incidents=[incident(cause("stopped", 690, HOG))]) == (
        "stopped",
        [("stopped", "until hog (900) let it go on"), ("gpu", "")],
    )


def test_a_quota_is_named_where_no_thread_had_the_cpu():
    """The account saw that nobody had it; the quota is why."""
    found = bounds_of(waited(RUN_QUEUE, GAP, 900), incidents=[incident(cause("cpu_quota", 800))])

    assert found == ("cpu-starved", [("starved", "CPU quota used up")])


def test_a_path_ends_at_what_dominates_and_never_at_who_has_samples():
    """The holder slept nearly all of the time; the two samples of its work are beside the point."""
    found = bounds_of(
        waited(
            BLOCKED,
            CALL,
            380,
            "lock",
            who=HOLDER,
            end=HOLDER,
            end_state=BLOCKED,
            end_reason="sleep",
        ),
        waited(BLOCKED, CALL, 2, "lock", who=HOLDER, end=HOLDER, end_state=ON_CPU),
        samples=sampled({stack_at("reply"): 2}, 0, tid=43, context=wire.CONTEXT_OTHER),
    )

    assert found == ("lock-bound", [("lock", "for saver (42/43), which slept")])


def test_lines_none_of_which_has_most_of_the_work_are_not_named():
    """Three with a third each: none of them is where the time went."""
    samples = sampled({stack_at(name): 3 for name in ("read", "crop", "flip")}, 0)

    assert bounds_of(time_of(ON_CPU, GAP, 900), samples=samples) == ("cpu-bound", [("cpu", "")])


def test_what_was_waited_for_behind_it_is_known_of_effects_too():
    """A loader of a recording without an account of waits, which a hog kept from running."""
    behind = cause("ipc", 600, Culprit(77, 77, "loader"), (cause("run_queue", 590, HOG),))
    found = bounds_of(
        time_of(BLOCKED, GAP, 650, "ipc"), time_of(ON_CPU, SYNC, 350), incidents=[incident(behind)]
    )

    assert found[1][0] == ("data", "for loader (77), which waited for a CPU")

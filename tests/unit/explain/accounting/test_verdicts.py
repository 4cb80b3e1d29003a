"""What bounds a process."""

import pytest

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import Culprit
from otel_gpu.enrich.thread_times import NO_WAIT
from otel_gpu.explain.accounting.verdicts import STATES, budget_of, find_verdicts
from otel_gpu.explain.code_locations import CodeLocations
from otel_gpu.explain.settings import Settings
from otel_gpu.state.capture_state import CaptureState
from tests.activities import calls, snapshot
from tests.unit.explain.streams import (
    MS,
    TRAINER,
    WORKER,
    account,
    sampled,
    stack_at,
    time_of,
)

GAP, SYNC, CALL, OTHER = (
    wire.CONTEXT_GAP,
    wire.CONTEXT_SYNCHRONIZE,
    wire.CONTEXT_CALL,
    wire.CONTEXT_OTHER,
)
ON_CPU, RUN_QUEUE, BLOCKED = wire.STATE_ON_CPU, wire.STATE_RUN_QUEUE, wire.STATE_BLOCKED


def verdicts_of(*activities):
    state = CaptureState()
    for activity in activities:
        state.observe(activity)
    return find_verdicts(state.figures().values(), Settings())


def verdict_of(*activities):
    (verdict,) = verdicts_of(*activities)
    return verdict


@pytest.mark.parametrize(
    ("state", "context", "reason", "part"),
    [
        (ON_CPU, SYNC, "", "gpu_wait"),
        (ON_CPU, CALL, "", "api"),
        (ON_CPU, GAP, "", "host"),
        (RUN_QUEUE, SYNC, "", "run_queue"),
        (RUN_QUEUE, GAP, "", "run_queue"),
        (BLOCKED, SYNC, "driver", "gpu_wait"),
        (BLOCKED, SYNC, "sleep", "gpu_wait"),
        (BLOCKED, SYNC, "unknown", "gpu_wait"),
        (BLOCKED, SYNC, "lock", "lock"),
        (BLOCKED, CALL, "driver", "gpu_wait"),
        (BLOCKED, GAP, "driver", "other"),
        (BLOCKED, GAP, "lock", "lock"),
        (BLOCKED, GAP, "gil", "gil"),
        (BLOCKED, GAP, "io", "io"),
        (BLOCKED, GAP, "ipc", "ipc"),
        (BLOCKED, GAP, "child_wait", "ipc"),
        (BLOCKED, GAP, "sleep", "sleep"),
        (BLOCKED, GAP, "page_fault", "paging"),
        (BLOCKED, GAP, "reclaim", "paging"),
        (BLOCKED, GAP, "mmap_lock", "paging"),
        (BLOCKED, GAP, "stopped", "stopped"),
        (BLOCKED, SYNC, "stopped", "stopped"),
        (BLOCKED, CALL, "stopped", "stopped"),
        (BLOCKED, GAP, "frozen", "stopped"),
        (BLOCKED, GAP, "unknown", "other"),
    ],
)
def test_every_moment_of_a_feeder_thread_is_in_one_part_of_the_budget(state, context, reason, part):
    """The same state means different things in different places."""
    budget = budget_of([time_of(state, context, 7, reason)])

    assert {name: time_ns for name, time_ns in budget.items() if time_ns} == {part: 7 * MS}
    assert tuple(budget) == STATES


def test_threads_that_feed_no_gpu_are_no_part_of_the_budget():
    """What a data loader's worker waits for is not the budget of who waits for it."""
    assert sum(budget_of([time_of(BLOCKED, OTHER, 500, "io")]).values()) == 0


@pytest.mark.parametrize(
    ("times", "verdict"),
    [
        ([time_of(ON_CPU, SYNC, 400), time_of(BLOCKED, SYNC, 400, "driver")], "gpu-bound"),
        ([time_of(BLOCKED, GAP, 500, "ipc"), time_of(BLOCKED, GAP, 300, "io")], "data-bound"),
        # It chose to sleep: nothing kept it waiting, and no faster disk would help.
        ([time_of(BLOCKED, GAP, 800, "sleep"), time_of(ON_CPU, GAP, 100)], "idle"),
        ([time_of(BLOCKED, GAP, 400, "sleep"), time_of(BLOCKED, GAP, 400, "ipc")], "mixed"),
        ([time_of(ON_CPU, GAP, 500), time_of(RUN_QUEUE, GAP, 300)], "cpu-bound"),
        # Its code is not slow: another thread has its CPU, wherever it wants to go on.
        ([time_of(RUN_QUEUE, GAP, 300), time_of(RUN_QUEUE, CALL, 300)], "cpu-starved"),
        ([time_of(RUN_QUEUE, SYNC, 500), time_of(ON_CPU, GAP, 300)], "cpu-starved"),
        ([time_of(ON_CPU, GAP, 500), time_of(RUN_QUEUE, GAP, 400)], "mixed"),
        ([time_of(BLOCKED, CALL, 600, "stopped"), time_of(ON_CPU, SYNC, 200)], "stopped"),
        ([time_of(BLOCKED, CALL, 400, "stopped"), time_of(ON_CPU, SYNC, 500)], "mixed"),
        ([time_of(BLOCKED, GAP, 500, "gil"), time_of(BLOCKED, GAP, 300, "lock")], "lock-bound"),
        ([time_of(BLOCKED, GAP, 500, "reclaim")], "allocation-bound"),
        ([time_of(ON_CPU, CALL, 300), time_of(ON_CPU, GAP, 300)], "cpu-bound"),
        ([time_of(ON_CPU, SYNC, 500), time_of(ON_CPU, GAP, 500)], "mixed"),
        ([time_of(ON_CPU, SYNC, 50)], "unknown"),
    ],
)
def test_the_class_with_most_of_the_time_is_the_verdict(times, verdict):
    """Clearly most of the time has to agree."""
    rest = [time_of(BLOCKED, GAP, 20, "stopped")]

    assert verdict_of(account(20, *times, *rest)).verdict == verdict


@pytest.mark.parametrize(
    ("gpu_ms", "verdict", "bounds"),
    [
        (500, "mixed", ["gpu", "data"]),
        (540, "mixed", ["gpu", "data"]),
        (460, "mixed", ["data", "gpu"]),
        (590, "mixed", ["gpu", "data"]),
        (600, "gpu-bound", ["gpu", "data"]),
        (810, "gpu-bound", ["gpu"]),
    ],
)
def test_near_a_tie_a_verdict_is_mixed_and_names_both(gpu_ms, verdict, bounds):
    """54 to 46 and 50 to 50 are one verdict, so that noise does not turn it around."""
    rest = time_of(BLOCKED, GAP, 1000 - gpu_ms, "io")
    found = verdict_of(account(20, time_of(ON_CPU, SYNC, gpu_ms), rest))

    assert (found.verdict, [one.name for one in found.bounds]) == (verdict, bounds)
    assert [one.share for one in found.bounds] == sorted(
        (found.shares[name] for name in bounds), reverse=True
    )


def test_what_leads_a_third_of_the_time_bounds_nothing():
    """It is more than anything else, and not most."""
    times = [(ON_CPU, SYNC, ""), (BLOCKED, GAP, "io"), (BLOCKED, GAP, "lock"), (RUN_QUEUE, GAP, "")]
    found = verdict_of(
        account(
            20,
            *(
                time_of(*what[:2], ms, what[2])
                for what, ms in zip(times, (370, 220, 210, 200), strict=True)
            ),
        )
    )

    assert (found.verdict, [one.name for one in found.bounds]) == ("mixed", ["gpu", "data", "lock"])


@pytest.mark.parametrize(
    "lost",
    [
        time_of(BLOCKED, CALL, 400, "stopped"),
        time_of(RUN_QUEUE, CALL, 400),
        time_of(BLOCKED, CALL, 400, "lock"),
    ],
)
def test_a_launch_that_was_kept_found_no_full_queue(lost):
    """It took long for another reason: the device has no part in that time."""
    found = verdict_of(
        snapshot(19, calls(TRAINER, "cudaLaunchKernel", [4 * MS] * 100)),
        account(20, lost, time_of(ON_CPU, CALL, 300), time_of(ON_CPU, SYNC, 300)),
    )

    assert found.shares["gpu"] == pytest.approx(0.3)
    assert found.shares["api"] == pytest.approx(0.3)


def test_a_verdict_says_its_numbers():
    """Both halves of a mixed process are named, and the budget sums to the time there was."""
    verdict = verdict_of(
        account(19, time_of(ON_CPU, SYNC, 100)),
        account(20, time_of(ON_CPU, SYNC, 500), time_of(BLOCKED, GAP, 500, "ipc")),
    )

    assert verdict.verdict == "mixed"
    assert {name: share for name, share in verdict.shares.items() if share} == {
        "gpu": 0.5,
        "data": 0.5,
    }
    assert sum(verdict.budget_ns.values()) == 1000 * MS
    assert verdict.process is TRAINER


def test_a_process_that_allocates_all_the_time_is_allocation_bound():
    """The time account knows only calls; the histograms know which."""
    verdict = verdict_of(
        snapshot(19, calls(TRAINER, "cudaMalloc", [8 * MS] * 100)),
        account(20, time_of(ON_CPU, CALL, 600), time_of(BLOCKED, CALL, 250, "sleep")),
    )

    assert verdict.verdict == "allocation-bound"
    assert verdict.shares["memory"] == pytest.approx(800 / 850)
    assert verdict.budget_ns["api"] == 600 * MS


def test_launches_that_wait_for_room_in_the_queue_are_gpu_bound():
    """A launch takes microseconds; these take milliseconds, so the device is behind."""
    verdict = verdict_of(
        snapshot(19, calls(TRAINER, "cudaLaunchKernel", [8 * MS] * 100)),
        account(20, time_of(ON_CPU, CALL, 810)),
    )

    assert verdict.verdict == "gpu-bound"


def test_a_process_without_feeder_threads_has_no_verdict():
    """There is nothing to be bound."""
    assert verdicts_of(account(20, time_of(BLOCKED, OTHER, 500, "io"))) == []


def looked_at(times, *samples):
    places = CodeLocations(16)
    for sample in samples:
        places.observe(sample)
    state = CaptureState()
    state.observe(account(1, *times))
    (verdict,) = find_verdicts(state.figures().values(), Settings(), places)
    named = [line.where.function for line in verdict.lines.each]
    return verdict.verdict, named


WORKERS = [Culprit(77, tid, "worker") for tid in (77, 78)]


HOLDER = Culprit(42, 43, "trainer")


def waited_for(who, time_ms, reason):
    waits = NO_WAIT._replace(api=1, who=who, end=who, end_state=wire.STATE_ON_CPU)
    time = time_of(BLOCKED, GAP, time_ms, reason)
    return time._replace(ended_ns=time.time_ns, wait=waits)


def asleep(who, time_ms):
    time = waited_for(who, time_ms, "lock")
    return time._replace(wait=time.wait._replace(end_state=BLOCKED, end_reason="sleep"))


@pytest.mark.parametrize(
    ("times", "verdict", "lines"),
    [
        ([time_of(ON_CPU, GAP, 800)], "cpu-bound", ["step"]),
        ([waited_for(who, 400, "ipc") for who in WORKERS], "data-bound", ["load", "decode"]),
        ([waited_for(HOLDER, 800, "gil")], "lock-bound", ["other"]),
        ([time_of(BLOCKED, SYNC, 800, "driver")], "gpu-bound", []),
        # One of the two works a little: most of the time of both they sleep.
        ([waited_for(HOLDER, 100, "lock"), asleep(HOLDER, 700)], "lock-bound", []),
        # Nobody worked: the file was late.
        ([time_of(BLOCKED, GAP, 800, "io")], "data-bound", []),
    ],
)
def test_a_verdict_names_the_lines_that_it_is_due_to(times, verdict, lines):
    """Its own if it worked, of all whom it waited for if they did."""
    samples = [
        *sampled({stack_at("step"): 5}, 0),
        *sampled({stack_at("other"): 9}, 0, tid=43, context=OTHER),
        *sampled({stack_at("load"): 5}, 0, process=WORKER, context=OTHER),
        *sampled({stack_at("decode"): 3}, 0, process=WORKER, tid=78, context=OTHER),
        *sampled({stack_at("idle"): 9}, 0, process=WORKER, tid=79, context=OTHER),
    ]

    assert looked_at([*times, time_of(ON_CPU, CALL, 100)], *samples) == (verdict, lines)

"""Where the time of one effect went."""

import pytest

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import Resource
from otel_gpu.enrich.thread_times import NO_WAIT
from otel_gpu.explain.chains import Culprit, stack_of_cause
from otel_gpu.explain.settings import Settings
from tests.activities import MAIN_FRAME, call_stack
from tests.unit.explain.streams import (
    HOG,
    MS,
    START,
    TRAINER,
    WORKER,
    account,
    chain_of,
    explain,
    fork_by,
    in_ms,
    off_cpu,
    preempted,
    readings_of,
    slow,
    slow_gap,
    throttled,
    time_of,
    usual,
    usual_gap,
    woken_by,
)

WORKING = Culprit(42, 43, "trainer")


def test_a_wait_for_the_device_is_no_fault_of_the_host():
    """In a synchronize call, sleeping and spinning are both waiting for the GPU."""
    chain = chain_of(
        usual(), off_cpu(10, 60, reason="sleep"), slow(duration_ms=100, blocked_ns=60 * MS)
    )

    assert in_ms(chain.causes) == [("gpu_wait", 100)]
    assert chain.unexplained_ns == 0
    assert chain.severity == "low"


@pytest.mark.parametrize("reason", ["driver", "unknown", "sleep", "ipc", ""])
def test_a_synchronize_call_may_wait_for_the_device_in_any_way(reason):
    """How the driver waits is its own choice, even if another process's name is on the wake-up."""
    waking = woken_by(WORKER)

    chain = chain_of(usual(), off_cpu(0, 100, reason=reason, **waking), slow(blocked_ns=100 * MS))

    assert in_ms(chain.causes) == [("gpu_wait", 100)]
    assert chain.causes[0].via == ()


def test_a_queue_of_the_program_is_no_wait_for_the_device():
    """The user stack tells the driver's poll from the program's: only the one is the GPU's."""
    stall = off_cpu(0, 100, reason="queue", **woken_by(WORKER))

    chain = chain_of(usual(), stall, slow(blocked_ns=100 * MS))

    assert in_ms(chain.causes) == [("ipc", 100)]


def test_a_chain_knows_where_in_the_program_it_was():
    """
    The effect has the stack of its call, the evidence those of the waits; a gap has no one place.
    """
    made, waiting = call_stack(1), call_stack(2, (MAIN_FRAME,))
    stall = off_cpu(10, 60, reason="io", stack=waiting)

    chain = chain_of(usual(), stall, slow(duration_ms=100, blocked_ns=60 * MS, stack=made))
    gap = chain_of(usual_gap(), stall, slow_gap(blocked_ns=60 * MS))

    assert chain.effect.stack is made
    assert stack_of_cause(chain.causes[0]) is waiting
    assert stack_of_cause(chain.causes[1]) is made
    assert gap.effect.stack is None


def test_the_stack_of_a_cause_is_that_of_its_longest_interval():
    """Among those that have one."""
    short, long = call_stack(1), call_stack(2)
    chain = chain_of(
        usual(),
        off_cpu(0, 10, reason="io", stack=short),
        off_cpu(20, 30, reason="io", stack=long),
        off_cpu(60, 40, reason="io"),
        slow(duration_ms=100, blocked_ns=80 * MS),
    )

    assert stack_of_cause(chain.causes[0]) is long


def test_waiting_for_a_cpu_after_the_device_was_done_is_the_hosts_fault():
    """The part of the stall after the wake-up is put down to who had the CPU."""
    stall = off_cpu(0, 10, 190, reason="driver", **HOG)

    chain = chain_of(
        usual(), stall, slow(duration_ms=200, blocked_ns=10 * MS, run_queue_ns=190 * MS)
    )

    assert in_ms(chain.causes) == [("run_queue", 190), ("gpu_wait", 10)]
    assert chain.causes[0].culprit == Culprit(900, 901, "hog")
    assert chain.causes[0].share == pytest.approx(0.95)
    assert chain.severity == "high"


def test_a_preempted_thread_blames_who_took_the_cpu():
    """Losing the CPU while running is another kind than not getting it after a wake-up."""
    chain = chain_of(usual(), preempted(10, 80, **HOG), slow(run_queue_ns=80 * MS))

    assert in_ms(chain.causes) == [("preemption", 80), ("gpu_wait", 20)]
    assert chain.causes[0].culprit.pid == 900


def test_usual_waits_for_the_device_do_not_hide_what_was_added():
    """A call that always waits 60 ms for the GPU did so here, and longer; the rest is the hog's."""
    chain = chain_of(
        usual(duration_ns=60 * MS),
        *[preempted(10 + 30 * n, 25, **HOG) for n in range(4)],
        slow(duration_ms=230, run_queue_ns=100 * MS),
    )

    assert in_ms(chain.causes) == [("preemption", 100), ("gpu_wait", 130)]


def test_the_rest_of_many_short_waits_goes_to_whom_the_long_ones_name():
    """A hog takes the CPU slice by slice; only the longest slices are kept with its name."""
    kept = [preempted(20 * n, 4, **HOG) for n in range(4)]

    chain = chain_of(usual(), *kept, slow(duration_ms=100, run_queue_ns=90 * MS))

    assert in_ms(chain.causes) == [("preemption", 90), ("gpu_wait", 10)]
    assert chain.causes[0].culprit.pid == 900


def test_the_rest_of_many_short_waits_has_no_culprit_if_the_long_ones_disagree():
    """What is not known is not made up: the state is, so that is said."""
    kept = [preempted(20 * n, 4, culprit_pid=900 + n, culprit_tid=900 + n) for n in range(4)]

    chain = chain_of(usual(), *kept, slow(duration_ms=100, run_queue_ns=90 * MS))

    assert chain.causes[0].kind == "run_queue"
    assert chain.causes[0].time_ns == 74 * MS
    assert chain.causes[0].culprit is None


def test_a_launch_that_spins_found_the_queue_full():
    """Its time on the CPU is a wait for the device, and never a fault of the host."""
    chain = chain_of(usual(api="cudaLaunchKernel", duration_ns=5_000), slow("cudaLaunchKernel"))

    assert in_ms(chain.causes) == [("gpu_backpressure", 100)]
    assert chain.severity == "low"


def test_a_launch_that_was_preempted_found_no_full_queue():
    """Some microseconds on the CPU are what a launch takes."""
    chain = chain_of(
        usual(api="cudaLaunchKernel", duration_ns=5_000),
        preempted(0, 99.9, **HOG),
        slow("cudaLaunchKernel", run_queue_ns=round(99.9 * MS)),
    )

    assert in_ms(chain.causes) == [("preemption", 99.9)]
    assert chain.unexplained_ns == 100_000


def test_the_first_call_of_an_api_is_warm_up():
    """No reading had one before it; it loads what later calls find loaded."""
    chain = chain_of(slow("cudaMalloc", duration_ms=500))

    assert in_ms(chain.causes) == [("first_call", 500)]
    assert chain.severity == "low"


def test_a_launch_whose_kernel_was_found_just_then_is_warm_up():
    """The driver loads its code: the queue need not have been full."""
    choices = wire.CHOICE_SLOW | wire.CHOICE_FIRST_USE
    chain = chain_of(
        usual(api="cudaLaunchKernel", duration_ns=5_000), slow("cudaLaunchKernel", choices=choices)
    )

    assert in_ms(chain.causes) == [("first_call", 100)]


@pytest.mark.parametrize("api", ["__cudaGetKernel", "cuLibraryLoadData"])
def test_what_is_done_once_for_each_kernel_or_module_is_warm_up_each_time(api):
    """A program does so for as long as it finds what it has not run before."""
    chain = chain_of(usual(api=api, duration_ns=5_000), slow(api))

    assert in_ms(chain.causes) == [("first_call", 100)]


@pytest.mark.parametrize("reason", ["io", "page_fault", "mmap_lock"])
def test_warm_up_is_never_high_whatever_it_reads_and_maps(reason):
    """Libraries are read and mapped then."""
    chain = chain_of(off_cpu(0, 400, reason=reason), slow("cudaMalloc", duration_ms=500))

    assert in_ms(chain.causes) == [(reason, 400), ("first_call", 100)]
    assert chain.severity == "low"


def test_what_has_no_part_in_warming_up_counts_in_a_first_call_too():
    """A hog on its CPU, or a thread that sleeps with a lock, takes that time in any call."""
    preempting = chain_of(
        preempted(0, 400, **HOG), slow("cudaMalloc", duration_ms=500, run_queue_ns=400 * MS)
    )
    holder = {"tid": 50, "reason": "sleep"}
    locked = chain_of(
        off_cpu(0, 395, **holder),
        off_cpu(0, 400, reason="lock", **woken_by(TRAINER, 50)),
        slow("cudaLaunchKernel", duration_ms=410, blocked_ns=400 * MS),
    )

    assert in_ms(preempting.causes) == [("preemption", 400), ("first_call", 100)]
    assert preempting.severity == "high"
    assert in_ms(locked.causes) == [("lock", 400), ("first_call", 10)]
    assert locked.severity == "high"


def test_a_lock_of_a_thread_that_warms_up_is_warm_up():
    """Two threads whose first calls need one lock: neither keeps the other for anything else."""
    first = slow("cudaMalloc", duration_ms=400, tid=50)
    waiting = off_cpu(0, 400, reason="lock", **woken_by(TRAINER, 50))
    chains, _ = explain(
        first, waiting, slow("cudaLaunchKernel", duration_ms=410, blocked_ns=400 * MS)
    )

    assert [chain.severity for chain in chains] == ["low", "low"]


def test_time_on_the_cpu_in_other_calls_is_not_explained():
    """What a copy did on its CPU was not seen."""
    chain = chain_of(usual(api="cudaMemcpy"), slow("cudaMemcpy"))

    assert chain.causes == ()
    assert chain.unexplained_ns == 100 * MS


def test_time_on_the_cpu_in_a_gap_is_the_programs_own_work():
    """Nobody kept the thread from launching but itself."""
    chain = chain_of(usual_gap(), slow_gap())

    assert in_ms(chain.causes) == [("host_work", 100)]
    assert chain.effect.kind == "slow_gap"
    assert chain.severity == "low"


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("io", "io"),
        ("page_fault", "page_fault"),
        ("reclaim", "reclaim"),
        ("mmap_lock", "mmap_lock"),
        ("stopped", "stopped"),
    ],
)
def test_what_a_gap_was_blocked_on_is_its_cause(reason, kind):
    """Waits that no thread ends are the host's fault as they are."""
    chain = chain_of(
        usual_gap(), off_cpu(0, 150, reason=reason), slow_gap(150, blocked_ns=150 * MS)
    )

    assert in_ms(chain.causes) == [(kind, 150)]
    assert chain.severity == "high"


NFS = Resource("file", "/data/1.tar", "nfs4", "/data", is_remote=True)
DISK = Resource("file", "/tmp/x", "ext4", "/")


@pytest.mark.parametrize(
    ("waited_for", "resource"),
    [
        ([(NFS, 40), (NFS, 40)], NFS),
        ([(NFS, 75), (DISK, 25)], NFS),
        ([(DISK, 25), (NFS, 75)], NFS),
        ([(NFS, 70), (DISK, 30)], None),
        ([(NFS, 70), (None, 30)], None),
        ([(None, 80), (NFS, 20)], None),
    ],
)
def test_a_cause_says_what_was_waited_for_if_it_was_clearly_one_thing(waited_for, resource):
    """The rest of many waits, of which the longest are known, goes the same way as those."""
    stalls, start_ms = [], 0
    for one, wait_ms in waited_for:
        stalls.append(off_cpu(start_ms, wait_ms, reason="io", resource=one))
        start_ms += wait_ms
    [cause] = chain_of(usual_gap(), *stalls, slow_gap(150, blocked_ns=150 * MS)).causes

    assert (cause.kind, cause.time_ns, cause.resource) == ("io", 150 * MS, resource)


def test_a_wait_for_another_host_is_the_hosts_fault_and_no_threads():
    """An interrupt of the network card names whoever was interrupted."""
    peer = Resource("tcp", "10.0.0.7:443", is_remote=True)
    wait = off_cpu(
        0, 150, reason="network", resource=peer, waker_pid=900, waker_tid=900, waker_comm="hog"
    )
    chain = chain_of(usual_gap(), wait, slow_gap(150, blocked_ns=150 * MS))
    [cause] = chain.causes

    assert (cause.kind, cause.culprit, cause.resource) == ("network", None, peer)
    assert chain.severity == "high"


def test_a_reason_that_is_not_known_stays_unexplained():
    """The time was spent blocked, which is all that is known."""
    chain = chain_of(usual_gap(), off_cpu(0, 100, reason="unknown"), slow_gap(blocked_ns=100 * MS))

    assert chain.causes == ()
    assert chain.unexplained_ns == 100 * MS


def test_a_lock_is_put_down_to_who_let_go_of_it():
    """The waker held it; what it did meanwhile is the cause of the cause."""
    chain = chain_of(
        usual_gap(),
        off_cpu(0, 100, reason="lock", **woken_by(TRAINER, 43)),
        slow_gap(blocked_ns=100 * MS),
    )

    (cause,) = chain.causes
    assert (cause.kind, cause.culprit) == ("lock", Culprit(42, 43, "trainer"))
    assert in_ms(cause.via) == [("unexplained", 100)]


def test_timed_waits_for_the_gil_are_put_down_to_who_dropped_it():
    """Only the last wait ends by its holder; the others, and what was not kept, by the clock."""
    kept = [off_cpu(10 * n, 5, reason="gil") for n in range(3)]
    last = off_cpu(195, 5, reason="gil", **woken_by(TRAINER, 43))

    chain = chain_of(usual_gap(), *kept, last, slow_gap(200, blocked_ns=198 * MS))

    cause = chain.causes[0]
    assert (cause.kind, cause.time_ns, cause.culprit.tid) == ("gil", 198 * MS, 43)
    assert sum(other.time_ns for other in cause.via) <= cause.time_ns
    assert chain.severity == "high"


def test_another_process_never_holds_the_gil():
    """A timer that wakes a thread does so in the name of whoever has the CPU."""
    chain = chain_of(
        usual_gap(process=WORKER),
        usual_gap(),
        off_cpu(0, 100, reason="gil", **woken_by(WORKER)),
        slow_gap(blocked_ns=100 * MS),
    )

    assert chain.causes[0].culprit is None


def test_a_chain_goes_on_through_who_ended_the_wait():
    """The gap waited for a worker, which waited for the CPU that a hog had."""
    waiting = off_cpu(0, 200, reason="ipc", **woken_by(WORKER))
    starving = off_cpu(20, 0, 150, process=WORKER, **HOG)

    chain = chain_of(usual_gap(), starving, waiting, slow_gap(200, blocked_ns=200 * MS))

    (cause,) = chain.causes
    assert (cause.kind, cause.time_ns, cause.culprit.pid) == ("ipc", 200 * MS, 77)
    assert in_ms(cause.via) == [("run_queue", 150), ("unexplained", 50)]
    assert cause.via[0].culprit == Culprit(900, 901, "hog")
    assert cause.via[0].share == pytest.approx(0.75)
    assert chain.severity == "high"


def test_a_chain_sees_only_the_time_of_the_wait():
    """What the worker did before it was waited for is no part of the cause."""
    waiting = off_cpu(100, 100, reason="ipc", **woken_by(WORKER))
    reading = off_cpu(0, 150, process=WORKER, reason="io")

    chain = chain_of(usual_gap(), reading, waiting, slow_gap(200, blocked_ns=100 * MS))

    cause = next(cause for cause in chain.causes if cause.kind == "ipc")
    assert in_ms(cause.via) == [("io", 50), ("unexplained", 50)]


def test_a_chain_ends_after_so_many_threads():
    """Each thread waited for the next one; four are followed."""
    waits = [
        off_cpu(0, 100, reason="lock", tid=42 + n, **woken_by(TRAINER, 43 + n)) for n in range(10)
    ]

    chain = chain_of(usual_gap(), *waits, slow_gap(blocked_ns=100 * MS))

    tids = []
    causes = chain.causes
    while causes:
        tids.append(causes[0].culprit.tid)
        causes = causes[0].via
    assert tids == [43, 44, 45, 46, 47]


def test_threads_that_wait_for_each_other_are_followed_once():
    """A circle of waits ends where it began."""
    here = off_cpu(0, 100, reason="lock", **woken_by(TRAINER, 43))
    there = off_cpu(0, 100, reason="lock", tid=43, **woken_by(TRAINER, 42))

    chain = chain_of(usual_gap(), there, here, slow_gap(blocked_ns=100 * MS))

    (cause,) = chain.causes
    assert in_ms(cause.via) == [("lock", 100)]
    assert cause.via[0].via == ()


def test_waiting_for_input_from_outside_is_nobodys_fault():
    """A server without requests has long gaps and nothing to mend."""
    listening = off_cpu(0, 10_000, reason="ipc", tid=43)
    waiting = off_cpu(0, 10_000, reason="lock", **woken_by(TRAINER, 43))

    chain = chain_of(usual_gap(), listening, waiting, slow_gap(10_000, blocked_ns=10_000 * MS))

    assert in_ms(chain.causes) == [("lock", 10_000)]
    assert in_ms(chain.causes[0].via) == [("ipc", 10_000)]
    assert chain.severity == "low"


def test_a_wait_for_a_thread_that_synchronizes_is_a_wait_for_the_device():
    """The other thread was in a CUDA call all the time."""
    waiting = off_cpu(0, 200, reason="lock", **woken_by(TRAINER, 43))
    other = slow(duration_ms=200, tid=43, choices=wire.CHOICE_SAMPLED)

    chain = chain_of(usual_gap(), usual(), other, waiting, slow_gap(200, blocked_ns=200 * MS))

    assert in_ms(chain.causes[0].via) == [("gpu_wait", 200)]
    assert chain.severity == "low"


def test_a_fork_by_another_thread_is_behind_the_wait_for_the_address_space():
    """The fork ends after the wait, and its record comes after the effect."""
    chain = chain_of(
        usual_gap(),
        off_cpu(10, 80, reason="mmap_lock"),
        slow_gap(blocked_ns=80 * MS),
        fork_by(tid=43, at_ms=30, duration_ms=61),
    )

    assert in_ms(chain.causes) == [("fork", 60), ("mmap_lock", 20), ("host_work", 20)]
    assert chain.causes[0].culprit.tid == 43
    assert [item.kind for item in chain.causes[0].evidence] == ["fork"]


def test_a_fork_by_the_thread_itself_is_the_gaps_own_work():
    """The time on the CPU inside the fork is told from the rest."""
    chain = chain_of(usual_gap(), slow_gap(), fork_by(tid=42, at_ms=10, duration_ms=70))

    assert in_ms(chain.causes) == [("fork", 70), ("host_work", 30)]


def test_a_quota_is_behind_a_wait_that_nobody_had_the_cpu_in():
    """The cgroup was throttled between the readings around the wait."""
    stall = preempted(10, 80, flags=wire.STALL_IDLE_CPU)

    chain = chain_of(
        usual(),
        throttled(-500, 3),
        stall,
        slow(run_queue_ns=80 * MS),
        throttled(500, 4, throttled_ms=80),
    )

    assert in_ms(chain.causes) == [("cpu_quota", 80), ("gpu_wait", 20)]


@pytest.mark.parametrize(("throttled_ms", "pids"), [(0, (42,)), (80, (43,))])
def test_a_quota_is_not_blamed_without_throttling_of_this_process(throttled_ms, pids):
    """
    An idle CPU alone proves nothing, nor does another cgroup's quota; nobody is to blame then.
    """
    chain = chain_of(
        usual(),
        throttled(-500, 3, pids),
        preempted(10, 80, flags=wire.STALL_IDLE_CPU),
        slow(run_queue_ns=80 * MS),
        throttled(500, 4, pids, throttled_ms=throttled_ms),
    )

    assert in_ms(chain.causes) == [("run_queue", 80), ("gpu_wait", 20)]
    assert chain.causes[0].culprit is None


def test_a_stall_that_is_told_twice_counts_once():
    """A thread's stalls can come on their own and again with the gap around them."""
    stall = off_cpu(0, 60, reason="io")

    chain = chain_of(usual_gap(), stall, stall, slow_gap(blocked_ns=60 * MS))

    assert in_ms(chain.causes) == [("io", 60), ("host_work", 40)]


def test_stalls_that_overlap_share_no_moment():
    """A thread is off the CPU once at a time, whatever a damaged recording says."""
    chain = chain_of(
        usual_gap(),
        off_cpu(0, 60, reason="io"),
        off_cpu(40, 60, reason="page_fault"),
        slow_gap(blocked_ns=100 * MS),
    )

    assert in_ms(chain.causes) == [("io", 60), ("page_fault", 40)]


def test_a_synchronize_call_inside_another_call_waits_for_the_device():
    """A copy synchronizes by a call of the driver, which is where it sleeps."""
    inner = {
        "call_start_ktime_ns": START + 1,
        "root_start_ktime_ns": START,
        "call_api": 104,
        "call_depth": 1,
    }

    chain = chain_of(
        usual(api="cudaMemcpy"),
        off_cpu(0, 90, reason="unknown", **inner),
        slow("cudaMemcpy", blocked_ns=90 * MS),
    )

    assert in_ms(chain.causes) == [("gpu_wait", 90)]
    assert chain.unexplained_ns == 10 * MS


def test_allocations_that_get_slower_are_churn():
    """The median rises from reading to reading; the first one stays the measure."""
    durations = []
    readings = []
    for n, ms in enumerate([0.1, 0.4, 1.6, 6.4]):
        durations += [round(ms * MS)] * 50
        readings.append(readings_of("cudaMalloc", durations, 10 + n))

    chain = chain_of(*readings, slow("cudaMalloc", duration_ms=50))

    assert in_ms(chain.causes) == [("allocator_churn", 50)]
    assert chain.effect.excess_ns == pytest.approx(49.9 * MS, rel=0.01)


def test_steady_allocations_are_no_churn():
    """One slow call among equals is not explained by a trend."""
    readings = [readings_of("cudaMalloc", [100_000] * 50 * n, 10 + n) for n in (1, 2, 3, 4)]

    chain = chain_of(*readings, slow("cudaMalloc", duration_ms=50))

    assert chain.causes == ()


def test_who_let_a_stopped_process_go_on_stopped_it():
    """No timer ends a stop, so the waker is known even where it is not watched."""
    chain = chain_of(
        usual_gap(),
        off_cpu(0, 100, reason="stopped", waker_pid=7, waker_tid=8, waker_comm="kill"),
        slow_gap(blocked_ns=100 * MS),
    )

    assert chain.causes[0].culprit == Culprit(7, 8, "kill")


def test_being_stopped_for_the_capture_is_nobodys_fault():
    """
    The agent stops a process while it places probes, and lets it go on.

    What the agent ends otherwise, such as a wait for what it sends, is not of that kind.
    """
    by_agent = {"waker_pid": 7, "waker_tid": 8, "flags": wire.STALL_AGENT}
    stopped, waiting = (
        chain_of(
            usual_gap(),
            off_cpu(0, 100, reason=reason, **by_agent),
            slow_gap(blocked_ns=100 * MS),
        )
        for reason in ("stopped", "lock")
    )

    assert in_ms(stopped.causes) == [("capture", 100)]
    assert stopped.severity == "low"
    assert in_ms(waiting.causes) == [("lock", 100)]


def test_a_worker_that_waits_for_the_disk_is_named():
    """Where nobody kept it waiting, it is who kept the gap waiting."""
    chain = chain_of(
        usual_gap(),
        off_cpu(0, 100, process=WORKER, reason="io"),
        off_cpu(0, 100, reason="ipc", **woken_by(WORKER)),
        slow_gap(blocked_ns=100 * MS),
    )

    (io,) = chain.causes[0].via
    assert (io.kind, io.culprit) == ("io", Culprit(77, 77, "worker"))


def test_a_worker_that_was_seen_in_no_stall_may_still_have_waited_for_a_cpu():
    """Its waits were short ones; the totals of its process have them."""
    queued = (wire.STATE_RUN_QUEUE, wire.CONTEXT_OTHER)
    chain = chain_of(
        usual_gap(),
        account(99, time_of(*queued, 10, process=WORKER)),
        off_cpu(0, 100, reason="ipc", **woken_by(WORKER)),
        slow_gap(blocked_ns=100 * MS),
        account(101, time_of(*queued, 80, process=WORKER)),
    )

    (cause,) = chain.causes
    assert in_ms(cause.via) == [("run_queue", 70), ("unexplained", 30)]
    assert cause.via[0].culprit is None


def test_what_nobody_saw_of_another_thread_is_unexplained():
    """Two short stalls are told of; whether it had a CPU in between is not, so nobody is named."""
    chain = chain_of(
        usual_gap(),
        off_cpu(10, 20, tid=43, reason="io"),
        off_cpu(50, 10, tid=43, reason="novel"),
        off_cpu(0, 100, reason="lock", **woken_by(TRAINER, 43)),
        slow_gap(blocked_ns=100 * MS),
    )

    unexplained, io = chain.causes[0].via
    assert (unexplained.kind, unexplained.time_ns, unexplained.culprit) == (
        "unexplained",
        80 * MS,
        None,
    )
    assert (io.kind, io.time_ns) == ("io", 20 * MS)
    assert [item.kind for item in unexplained.evidence] == ["unseen", "blocked"]
    assert chain.unexplained_ns == 0


def test_what_the_account_knows_of_another_thread_is_its_work():
    """It was on a CPU while it was waited for, as counted; only the rest was seen by nobody."""
    waits = NO_WAIT._replace(who=WORKING, end=WORKING, end_state=wire.STATE_ON_CPU)
    time = time_of(wire.STATE_BLOCKED, wire.CONTEXT_GAP, 70, "lock")
    worked = time._replace(ended_ns=time.time_ns, wait=waits)
    wait = off_cpu(0, 100, reason="lock", **woken_by(TRAINER, 43))

    chain = chain_of(
        usual_gap(),
        account(99, worked._replace(time_ns=0, ended_ns=0)),
        *(off_cpu(10, 20, tid=43, reason="io"), wait, slow_gap(blocked_ns=100 * MS)),
        account(101, worked),
    )

    assert in_ms(chain.causes[0].via) == [("host_work", 70), ("io", 20), ("unexplained", 10)]
    assert chain.causes[0].via[0].culprit == WORKING


def test_what_a_thread_did_on_its_cpu_in_a_call_may_be_unexplained_too():
    """A copy burns its time, and nothing says on what."""
    copying = slow("cudaMemcpy", duration_ms=100, tid=43, choices=wire.CHOICE_SAMPLED)

    chain = chain_of(
        usual(api="cudaMemcpy"),
        usual_gap(),
        copying,
        off_cpu(0, 100, reason="lock", **woken_by(TRAINER, 43)),
        slow_gap(blocked_ns=100 * MS),
    )

    (cause,) = chain.causes[0].via
    assert (cause.kind, cause.time_ns, cause.culprit) == ("unexplained", 100 * MS, None)
    assert [item.kind for item in cause.evidence] == ["call"]


def test_evidence_is_bounded_and_the_longest_stays():
    """Times are of all intervals, evidence is of some."""
    stalls = [preempted(10 * n, 1 + n / 10, **HOG) for n in range(9)]

    chain = chain_of(
        usual(), *stalls, slow(run_queue_ns=20 * MS), settings=Settings(max_evidence=3)
    )

    cause = next(cause for cause in chain.causes if cause.kind == "preemption")
    assert cause.time_ns == 20 * MS
    starts = [(item.start_unix_ns - chain.effect.start_unix_ns) // MS for item in cause.evidence]
    assert starts == [0, 70, 80]

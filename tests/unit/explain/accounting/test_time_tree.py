"""Where all the time of feeder threads went, and who kept them waiting."""

import itertools
import random

import pytest

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import Culprit, Resource
from otel_gpu.enrich.thread_times import NO_WAIT
from otel_gpu.enrich.waits.reasons import WaitReason
from otel_gpu.explain.accounting.time_states import budget_of
from otel_gpu.explain.accounting.time_tree import (
    NO_LINE,
    NO_REASON,
    NOT_ENDED,
    NOT_FOLLOWED,
    grow,
    resources_of,
)
from otel_gpu.explain.code_locations import CodeLocations
from otel_gpu.state.capture_state import Figures
from tests.activities import SECOND, call_stack, gap
from tests.unit.explain.streams import (
    MS,
    START,
    TRAINER,
    WORKER,
    off_cpu,
    preempted,
    sampled,
    slow,
    stack_at,
    time_of,
)

GAP, SYNC, CALL, NEVER = (
    wire.CONTEXT_GAP,
    wire.CONTEXT_SYNCHRONIZE,
    wire.CONTEXT_CALL,
    wire.CONTEXT_OTHER,
)
ON_CPU, RUN_QUEUE, BLOCKED = wire.STATE_ON_CPU, wire.STATE_RUN_QUEUE, wire.STATE_BLOCKED
LOADER = Culprit(77, 79, "loader")
READER = Culprit(77, 77, "loader")
HOG = Culprit(900, 0, "cc1plus")
OTHER = Culprit(901, 0, "rustc")
CLIENT = Culprit(800, 0, "curl")
FAR = Resource("tcp", "198.18.77.2:9000", "", "", is_remote=True)
NEAR = Resource("tcp", "127.0.0.1:40001", "", "", is_remote=False)
FILE = Resource("file", "/mnt/data/a.parquet", "nfs4", "/mnt/data", is_remote=True)


def waited(state, context, time_ms, reason="", ended_ms=None, process=TRAINER, **wait):
    """One row of the account: that much passed, and the same ended if not said otherwise."""
    passed = time_of(state, context, time_ms, reason, process)
    ended_ns = passed.time_ns if ended_ms is None else round(ended_ms * MS)
    return passed._replace(ended_ns=ended_ns, wait=NO_WAIT._replace(**{"api": 1} | wait))


def worked(time_ms, context=GAP):
    return waited(ON_CPU, context, time_ms)


def brief(node):
    """A node as state, milliseconds, culprit and what is below it."""
    name = node.state if node.who is None else f"{node.state} {node.who.pid}/{node.who.tid}"
    below = [brief(child) for child in node.children]
    return (name, node.time_ns / MS, *([below] if below else []))


def assert_sums(node):
    """Children sum to their parent, and shares to those of it."""
    if node.children:
        assert sum(child.time_ns for child in node.children) == node.time_ns
        assert sum(child.share for child in node.children) == pytest.approx(node.share)
        for child in node.children:
            assert_sums(child)


def test_a_starved_feeder_ends_at_the_work_of_who_is_waited_for():
    """Worker thread, feeder thread, pipe: what the worker did is what was waited for."""
    tree = grow(
        [
            worked(20),
            waited(ON_CPU, SYNC, 180),
            waited(BLOCKED, GAP, 700, "ipc", who=LOADER, end=READER, end_state=ON_CPU),
            waited(BLOCKED, GAP, 100, "ipc", who=LOADER, end=READER, end_state=RUN_QUEUE),
        ]
    )

    assert brief(tree) == (
        "all",
        1000,
        [
            (
                "ipc",
                800,
                [("ipc 77/79", 800, [("host_work 77/77", 700), ("run_queue 77/77", 100)])],
            ),
            ("gpu_wait", 180),
            ("host", 20),
        ],
    )
    assert tree.children[0].children[0].children[0].share == 0.7
    assert_sums(tree)


def test_a_source_without_a_matrix_has_states_only():
    """Recordings of before say how long, and not who."""
    old = [time_of(BLOCKED, GAP, 300, "ipc"), time_of(RUN_QUEUE, SYNC, 200)]
    tree = grow(time._replace(ended_ns=time.time_ns) for time in old)

    assert brief(tree) == ("all", 500, [("ipc", 300), ("run_queue", 200)])


def test_threads_that_feed_no_gpu_have_no_tree():
    """A data loader's time is not the feeder's."""
    assert grow([waited(BLOCKED, NEVER, 300, "io")]) is None
    assert grow([]) is None


def test_a_wait_that_has_not_ended_is_said_to_be_open():
    """Its time has passed; who will end it is not known before it does."""
    tree = grow(
        [
            waited(BLOCKED, GAP, 300, "lock", ended_ms=0),
            waited(BLOCKED, GAP, 40, "lock", ended_ms=100, who=LOADER),
            waited(RUN_QUEUE, GAP, 60, who=HOG),
        ]
    )

    assert brief(tree.child("lock")) == (
        "lock",
        340,
        [("unknown", 240), ("lock 77/79", 100, [("unknown 77/79", 100)])],
    )
    assert tree.child("lock").children[0].note == NOT_ENDED
    assert tree.child("lock").children[1].children[0].note == NOT_FOLLOWED
    assert brief(tree.child("run_queue")) == ("run_queue", 60, [("run_queue 900/0", 60)])
    assert_sums(tree)


def test_a_wait_that_began_before_the_window_counts_for_what_passed_in_it():
    """Ten seconds end in a window of one: the culprits share that one second."""
    tree = grow(
        [
            waited(BLOCKED, GAP, 1000, "lock", ended_ms=0),
            waited(BLOCKED, GAP, 0, "lock", ended_ms=9000, who=LOADER, end_state=ON_CPU),
            waited(BLOCKED, GAP, 0, "lock", ended_ms=1000, who=LOADER, end_state=RUN_QUEUE),
        ]
    )

    loader = tree.child("lock").children[0]
    assert brief(loader) == (
        "lock 77/79",
        1000,
        [("host_work 77/79", 900), ("run_queue 77/79", 100)],
    )
    assert_sums(tree)


def test_a_server_without_requests_is_idle():
    """Who asks it is not watched, and it has asked for nothing."""
    tree = grow(
        [
            worked(10),
            waited(BLOCKED, GAP, 600, "ipc", who=CLIENT, resource=NEAR),
            waited(BLOCKED, GAP, 200, "ipc"),
            # It still waits.
            waited(BLOCKED, GAP, 150, "ipc", ended_ms=0),
        ]
    )

    assert [(node.state, node.time_ns / MS) for node in tree.children] == [
        ("idle", 950),
        ("host", 10),
    ]
    assert_sums(tree)


def test_who_waits_for_a_loader_is_not_idle_while_it_has_not_answered():
    """The loader has answered before, so that is what the open wait is for."""
    tree = grow(
        [
            waited(BLOCKED, GAP, 150, "ipc", ended_ms=0),
            waited(BLOCKED, GAP, 0, "ipc", who=LOADER, end_state=ON_CPU),
        ]
    )

    assert brief(tree) == ("all", 150, [("ipc", 150, [("unknown", 150)])])


def test_a_read_from_another_host_is_not_idle():
    """What was asked for is on its way; in the name of whom it came is an accident."""
    tree = grow([waited(BLOCKED, GAP, 500, "network", who=LOADER, resource=FAR)])

    (node,) = tree.child("ipc").children
    assert (node.state, node.who, node.resource) == ("network", None, FAR)


def test_what_the_one_who_is_waited_for_waited_for_is_in_its_own_account():
    """The feeder waits for a pipe, and at its other end somebody for another host."""
    own = waited(BLOCKED, NEVER, 480, "network", process=WORKER, resource=FAR)
    file = waited(BLOCKED, NEVER, 480, "io", process=WORKER, resource=FILE)
    wait = {"who": LOADER, "end": READER, "end_state": BLOCKED}
    times = [
        waited(BLOCKED, GAP, 500, "ipc", end_reason="ipc", **wait),
        waited(BLOCKED, GAP, 400, "ipc", end_reason="io", **wait),
    ]
    resources = resources_of([Figures(TRAINER, (), tuple(times)), Figures(WORKER, (), (own, file))])

    (loader,) = grow(times, None, resources).child("ipc").children
    assert [(node.state, node.resource) for node in loader.children] == [
        ("network", FAR),
        ("io", FILE),
    ]


def test_a_wait_with_a_time_limit_is_for_who_ends_the_last_of_it():
    """A timer ends it again and again; with two who may be meant, nobody is named."""
    timer = waited(BLOCKED, GAP, 85, "ipc")
    last = waited(BLOCKED, GAP, 10, "ipc", who=LOADER, end_state=ON_CPU)
    queued = waited(BLOCKED, GAP, 5, "ipc", who=LOADER, end_state=RUN_QUEUE)
    other = waited(BLOCKED, GAP, 5, "ipc", who=Culprit(5, 5, "cache"), end_state=ON_CPU)

    (loader,) = grow([timer, last, queued]).child("ipc").children
    assert brief(loader) == (
        "ipc 77/79",
        100,
        [("host_work 77/79", pytest.approx(200 / 3)), ("run_queue 77/79", pytest.approx(100 / 3))],
    )
    assert brief(grow([timer, last, other]).child("ipc").children[0]) == ("ipc", 85)


def test_a_server_that_has_a_worker_is_idle_all_the_same():
    """A connection tells what it waits for; the other end of a pipe may be its worker."""
    client = waited(BLOCKED, GAP, 600, "ipc", resource=NEAR)
    pipe = waited(BLOCKED, GAP, 100, "ipc", resource=Resource("pipe", "", peers=(77,)))
    worker = waited(BLOCKED, GAP, 10, "ipc", who=LOADER, end_state=ON_CPU)

    assert [(node.state, node.time_ns / MS) for node in grow([client, pipe, worker]).children] == [
        ("idle", 600),
        ("ipc", 110),
    ]


def test_whom_a_device_woke_nobody_kept_waiting():
    """An interrupt wakes in the name of whoever had the CPU."""
    tree = grow(
        [
            waited(BLOCKED, GAP, 100, "io", who=LOADER, resource=FILE),
            waited(BLOCKED, GAP, 100, "sleep", who=LOADER),
            waited(BLOCKED, GAP, 100, "gil", who=LOADER),
        ]
    )

    (file,) = tree.child("io").children
    assert (file.state, file.who, file.resource) == ("io", None, FILE)
    assert brief(tree.child("sleep")) == ("sleep", 100)
    # The lock is of one process.
    assert brief(tree.child("gil")) == ("gil", 100)


def test_a_wait_for_a_cpu_is_for_no_file():
    """Also where the thread had waited for one before."""
    rows = [waited(RUN_QUEUE, GAP, n, who=HOG, resource=of) for n, of in ((5, FILE), (7, None))]

    (hog,) = grow(rows).child("run_queue").children
    assert (hog.time_ns, hog.resource) == (12 * MS, None)


def test_what_a_thread_was_blocked_on_may_not_be_known():
    """It is said, and in words."""
    wait = {"who": LOADER, "end": READER, "end_state": BLOCKED, "end_reason": "unknown"}
    tree = grow([waited(BLOCKED, GAP, 100, "unknown"), waited(BLOCKED, GAP, 9, "ipc", **wait)])

    (unknown,) = tree.child("other").children
    assert (unknown.state, unknown.note) == ("unknown", NO_REASON)
    (behind,) = tree.child("ipc").children[0].children
    assert (behind.state, behind.note) == ("unknown", NO_REASON)


def test_many_culprits_are_a_handful_and_the_others():
    """The smallest are one child, so that the sums stay exact."""
    hogs = [waited(RUN_QUEUE, GAP, n, who=Culprit(900 + n, 0, "hog")) for n in range(1, 41)]

    queue = grow(hogs).child("run_queue")

    assert len(queue.children) == 8
    assert queue.children[-1].state == "other"
    assert queue.children[-1].note == "33 smaller ones."
    assert queue.children[0].who.pid == 940
    assert_sums(queue)
    one = [*hogs[-2:], waited(RUN_QUEUE, GAP, 0.01, who=HOG)]
    assert len(grow(one).child("run_queue").children) == 3
    assert len(grow(hogs, most=None).child("run_queue").children) == 40


def test_the_first_level_is_the_budget_whatever_the_account_says():
    """Nothing is lost between states, culprits and what these did, to the nanosecond."""
    chance = random.Random(7)  # noqa: S311 -- figures, not secrets
    who = [None, LOADER, READER, HOG, CLIENT]
    kinds = itertools.product(
        (ON_CPU, RUN_QUEUE, BLOCKED), (GAP, SYNC, CALL, NEVER), ("", "ipc", "lock", "io", "unknown")
    )
    for _ in range(20):
        times = [
            waited(
                state,
                context,
                chance.random() * 900,
                reason if state == BLOCKED else "",
                ended_ms=chance.random() * 900,
                who=chance.choice(who),
                end=chance.choice(who),
                end_state=chance.choice((ON_CPU, RUN_QUEUE, BLOCKED, wire.STATE_NONE)),
                end_reason=chance.choice(("", "ipc", "io")),
                resource=chance.choice((None, FAR, FILE, NEAR)),
            )
            for state, context, reason in kinds
        ] or [worked(1)]
        tree = grow(times)
        states = {node.state: node.time_ns for node in tree.children}
        states["ipc"] = states.get("ipc", 0) + states.pop("idle", 0)

        assert_sums(tree)
        assert {name: ns for name, ns in states.items() if ns} == {
            name: ns for name, ns in budget_of(times).items() if ns
        }


def place_of(function, line=7):
    frames = (call_stack().frames[2]._replace(function=function, line=line),)
    return call_stack(hash((function, line)) & (1 << 64) - 1, frames)


def seen(*activities):
    places = CodeLocations(16)
    for activity in activities:
        places.observe(activity)
    return places


def test_a_wait_is_where_most_of_it_was_seen():
    """By state and culprit: a wait for another process is elsewhere."""
    of_loader = {"waker_pid": 77, "waker_tid": 79}
    places = seen(
        off_cpu(0, 30, reason="ipc", stack=place_of("get_batch"), **of_loader),
        off_cpu(40, 20, reason="ipc", stack=place_of("get_label"), **of_loader),
        off_cpu(70, 90, reason="ipc", stack=place_of("ask"), waker_pid=5, waker_tid=5),
        off_cpu(170, 5, reason="io", process=WORKER, tid=79, stack=place_of("read_file")),
        # Another thread of the loader.
        off_cpu(170, 90, reason="io", process=WORKER, stack=place_of("write_log")),
    )
    tree = grow(
        [
            waited(BLOCKED, GAP, 50, "ipc", who=LOADER, end_state=BLOCKED, end_reason="io"),
            worked(10),
        ],
        places,
    )

    (loader,) = tree.child("ipc").children
    assert (loader.where.function, loader.samples) == ("get_batch", 1)
    assert tree.child("ipc").where.function == "ask"
    assert loader.children[0].where == ("read_file", "/app/train.py", 7)
    assert tree.child("host").where is None


def test_who_lost_its_cpu_was_not_where_it_had_waited():
    """It was in its open call, or worked where samples say; only who was woken was at its wait."""
    places = seen(
        off_cpu(0, 3, 1, stack=place_of("sleep"), call_start_ktime_ns=1, culprit_pid=900),
        preempted(5, 40, call_start_ktime_ns=1, call_api=1, culprit_pid=900),
        slow("cudaLaunchKernel", 43, start=START, stack=place_of("launch")),
        *sampled({stack_at("compute"): 9, stack_at("log"): 1}, 100),
    )
    launch = slow("cudaLaunchKernel", 1).event.api
    woken = waited(RUN_QUEUE, SYNC, 1, who=HOG)
    in_launch = waited(RUN_QUEUE, CALL, 40, WaitReason.PREEMPTED, who=HOG, api=launch)
    at_work = waited(RUN_QUEUE, GAP, 50, WaitReason.PREEMPTED, who=OTHER)

    def where(*times):
        branch = grow([*times, worked(10)], places).child("run_queue")
        return [node.where and node.where.function for node in (branch, *branch.children)]

    assert where(woken) == ["sleep", "sleep"]
    assert where(woken, in_launch) == ["launch", "launch"]
    assert where(woken, in_launch, at_work) == ["compute", "compute", "launch"]
    elsewhere = waited(RUN_QUEUE, CALL, 50, WaitReason.PREEMPTED, who=HOG, api=2)
    assert where(in_launch, elsewhere) == [None, None]


def test_where_no_line_has_most_of_the_work_none_is_named_for_it():
    """Nor where nothing was sampled: no line is better than one that it was not in."""
    lost = [waited(RUN_QUEUE, GAP, 50, WaitReason.PREEMPTED, who=HOG), worked(10)]
    scattered = sampled({stack_at("a"): 4, stack_at("b"): 3, stack_at("c"): 3}, 100)
    slept = off_cpu(0, 3, 1, stack=place_of("sleep"), culprit_pid=900)

    assert grow(lost, seen(slept, *scattered)).child("run_queue").where is None
    assert grow(lost, seen(slept)).child("run_queue").where is None


def test_who_was_waited_for_is_where_that_thread_was():
    """A thread of the same process is elsewhere; and what was seen of it has to be most of it."""
    holder = Culprit(TRAINER.pid, 43, "holder")
    lost = waited(BLOCKED, GAP, 50, "gil", who=holder, end=holder, end_state=RUN_QUEUE)
    loop = off_cpu(0, 3, 60, stack=place_of("synchronize"))
    started = off_cpu(0, 3, 1, tid=43, stack=place_of("start"))
    at_work = preempted(10, 60, tid=43)
    samples = sampled({stack_at("tokenise"): 9}, 100, tid=43)

    def where(*activities):
        (of_holder,) = grow([lost, worked(10)], seen(*activities)).child("gil").children
        (waiting,) = of_holder.children
        assert waiting.state == "run_queue"
        return waiting.where and waiting.where.function

    assert where(loop) is None
    assert where(loop, started, *samples) is None
    assert where(loop, started, at_work, *samples) == "tokenise"


def test_work_was_where_the_program_lost_its_cpu_or_else_before_the_next_call():
    """A thread that is preempted is seen at its work; the call after it is the next best."""
    work = gap(TRAINER, "cudaLaunchKernel", "cudaLaunchKernel", START, START + 20 * MS)
    launch = slow("cudaLaunchKernel", 1, start=START + 20 * MS, stack=place_of("step"))
    tree = [worked(20)]

    assert grow(tree, seen(work, launch)).child("host").where.function == "step"
    stolen = preempted(3, 2, stack=place_of("compute"))
    assert grow(tree, seen(work, launch, stolen)).child("host").where.function == "compute"


AUGMENT, DECODE = stack_at("slow_augment", 88), stack_at("decode", 12)


def lines_of(node):
    """The children of a node by line."""
    return [
        (child.state, child.where and child.where.function, child.time_ns / MS, child.samples)
        for child in node.children
    ]


def test_work_is_divided_among_its_lines():
    """Exactly as long as the account says; samples of other threads and in calls are not of it."""
    places = seen(
        *sampled({AUGMENT: 3, DECODE: 1}, 0),
        *sampled({DECODE: 5}, 0, tid=43, context=NEVER),
        *sampled({DECODE: 5}, 0, context=SYNC),
        *sampled({DECODE: 9}, 0, process=WORKER, tid=79, context=NEVER),
        *sampled({AUGMENT: 2}, 0, process=WORKER, tid=77, context=NEVER),
    )
    waits = waited(BLOCKED, GAP, 700, "ipc", who=LOADER, end=READER, end_state=ON_CPU)

    tree = grow([worked(101), waits], places)

    own, work = tree.child("host"), tree.child("ipc").children[0].child("host_work")
    assert (own.where.function, own.samples, own.work) == ("slow_augment", 4, "")
    assert lines_of(own) == [("line", "slow_augment", 75.75, 3), ("line", "decode", 25.25, 1)]
    assert (work.where, work.samples) == (("slow_augment", "/app/pictures.py", 88), 2)
    assert lines_of(work) == [("line", "slow_augment", 700, 2)]
    assert_sums(tree)


def test_what_is_beyond_the_first_lines_is_summed_up():
    """Whether it has a line or not."""
    many = {stack_at("f", line): 20 - line for line in range(1, 9)}
    places = seen(*sampled(many, 0), *sampled({None: 4}, 0))

    host = grow([worked(1000)], places).child("host")
    (other,) = [child for child in host.children if child.state == "other"]

    assert [child.where.line for child in host.children[:-1]] == [1, 2, 3, 4, 5]
    assert (other.samples, other.note) == (14 + 13 + 12 + 4, "3 smaller ones.")
    assert sum(child.time_ns for child in host.children) == host.time_ns


def test_a_sixth_line_is_not_summed_up_alone():
    """It takes no more room than its sum would."""
    places = seen(*sampled({stack_at("f", line): 1 for line in range(1, 7)}, 0))

    assert {child.state for child in grow([worked(60)], places).child("host").children} == {"line"}


def test_samples_without_a_line_are_a_part_of_their_own():
    """A lost stack makes no line larger."""
    host = grow([worked(100)], seen(*sampled({DECODE: 3}, 0), *sampled({None: 1}, 0))).child("host")

    assert lines_of(host) == [("line", "decode", 75, 3), ("unknown", None, 25, 1)]
    assert host.children[1].note == NO_LINE


def test_work_without_a_sample_says_so():
    """The place is the next best, and it is of no sample."""
    stolen = preempted(3, 2, stack=place_of("compute"))

    host = grow([worked(20)], seen(stolen)).child("host")
    lost = grow([worked(20)], seen(*sampled({None: 3}, 0), stolen)).child("host")

    assert (host.where.function, host.samples, host.children) == ("compute", 0, ())
    assert (lost.where.function, lost.samples) == ("compute", 0)


def test_samples_that_stand_for_no_time_divide_nothing():
    """Only a forged recording has such."""
    host = grow([worked(20)], seen(*sampled({DECODE: 2}, 0, weight_ns=0))).child("host")

    assert (host.children, host.samples) == ((), 0)


def test_lines_are_those_of_the_latest_interval_if_it_has_any():
    """As with waits: what was seen before counts as long as nothing else is."""
    places = seen(*sampled({AUGMENT: 3}, 0))
    places.age()
    assert places.lines(42).samples == 3
    for one in sampled({DECODE: 1}, 50):
        places.observe(one)
    assert [line.where.function for line in places.lines(42).each] == ["decode"]
    places.forget(42)
    assert places.lines(42).samples == 0


def test_places_are_bounded_and_forgotten():
    """Where most of the time goes is still found among very many places of a moment each."""
    moments = (off_cpu(n, 1, reason="ipc", stack=place_of("f", n)) for n in range(1, 1000))
    often = (off_cpu(n, 3, reason="ipc", stack=place_of("g", 5000)) for n in range(2000, 2005))
    places = seen(*moments, *often)

    found = places.find(42, "ipc", 999)
    assert (found.stack.place.function, found.count, found.time_ns) == ("g", 5, 15 * MS)
    places.forget(42)
    assert places.find(42, "ipc") is None


def test_places_of_very_many_processes_are_bounded():
    """Those that were seen first are given up."""
    places = CodeLocations(4096)
    for pid in range(1, 400):
        for number in range(50):
            wait = off_cpu(number, 1, reason="ipc", stack=place_of("f", number))
            places.observe(wait._replace(event=wait.event._replace(pid=pid)))

    assert places.find(1, "ipc") is None
    assert places.find(399, "ipc") is not None


def test_the_window_of_a_tree_is_said_by_its_account():
    """Times of a process that did nothing in a window are none."""
    assert grow([waited(BLOCKED, GAP, 0, "ipc", ended_ms=0)]) is None
    assert grow([worked(1)]).time_ns == SECOND // 1000

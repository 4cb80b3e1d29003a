"""Who ended a wait: a thread that was waited for, or one that an interrupt had hit."""

import pytest

from otel_gpu.explain.chains import Culprit
from otel_gpu.explain.event_timeline import EventTimeline
from otel_gpu.explain.settings import Settings
from otel_gpu.explain.wakers import Wakers
from tests.activities import image
from tests.unit.explain.streams import (
    HOG,
    MS,
    STRANGER,
    TRAINER,
    WORKER,
    chain_of,
    fork_by,
    in_ms,
    off_cpu,
    slow_gap,
    usual_gap,
    woken_by,
)

PIPE = ("anon_pipe_read", "vfs_read", "ksys_read", "do_syscall_64")
UNIX = ("__skb_wait_for_more_packets", "unix_dgram_recvmsg", "sock_recvmsg", "__sys_recvfrom")
TCP = ("sk_wait_data", "tcp_recvmsg_locked", "tcp_recvmsg", "inet_recvmsg", "sock_recvmsg")
POLL = ("poll_schedule_timeout.constprop.0", "do_sys_poll", "__x64_sys_poll")
OF_WORKER = image(99, parent_pid=77)
LAUNCHER, SIBLING = image(7), image(43, parent_pid=7)


def waited(reason, functions=(), waker=STRANGER, at_ms=0, ms=100, tid=None):
    """A wait of the trainer that another process ended, as far as the kernel says."""
    return off_cpu(at_ms, ms, reason=reason, **woken_by(waker, tid))._replace(functions=functions)


def find(stall, *known):
    timeline = EventTimeline(Settings())
    for process in known:
        timeline.know(process)
    return Wakers(timeline).find(stall)


@pytest.mark.parametrize(
    ("reason", "functions"),
    [
        ("lock", ("futex_do_wait", "futex_wait")),
        ("child_wait", ("do_wait", "kernel_wait4")),
        ("stopped", ("do_signal_stop",)),
        ("ipc", PIPE),
        ("ipc", UNIX),
        ("ipc", ("unix_stream_read_generic",)),
        ("ipc", ("eventfd_read",)),
        ("ipc", ("__do_semtimedop.isra.0",)),
        ("ipc", ("do_msgrcv",)),
        ("ipc", ("wq_sleep", "do_mq_timedreceive")),
    ],
)
def test_what_only_threads_do_names_its_thread(reason, functions):
    """Who writes into a pipe does that in his own name, whoever he is."""
    assert find(waited(reason, functions)) == Culprit(88, 88, "server")


@pytest.mark.parametrize(
    ("reason", "functions"),
    [
        ("sleep", ("hrtimer_nanosleep",)),
        ("io", ("folio_wait_bit_common", "filemap_read")),
        ("page_fault", ("filemap_fault",)),
        ("reclaim", ("shrink_node",)),
        ("driver", ("nvidia_poll",)),
        ("ipc", TCP),
        ("ipc", POLL),
        ("ipc", ("ep_poll", "do_epoll_wait")),
        ("ipc", ()),
        ("unknown", ()),
        ("gil", ("futex_do_wait",)),
    ],
)
def test_of_what_a_device_may_do_a_stranger_is_not_believed(reason, functions):
    """A timer, a disk and a network card wake in the name of whoever has the CPU then."""
    assert find(waited(reason, functions), TRAINER, STRANGER) is None


@pytest.mark.parametrize("reason", ["ipc", "unknown"])
@pytest.mark.parametrize(
    ("waker", "known"),
    [
        (TRAINER, [TRAINER]),
        (WORKER, [TRAINER, WORKER]),
        (OF_WORKER, [TRAINER, WORKER, OF_WORKER]),
        (SIBLING, [LAUNCHER, image(42, parent_pid=7), SIBLING]),
    ],
    ids=["its own thread", "its child", "its grandchild", "a child of its parent"],
)
def test_who_is_related_is_believed(reason, waker, known):
    """A loader may answer over the loopback network, and is polled with a time limit."""
    found = find(waited(reason, TCP, waker, tid=waker.pid + 1000), *known)

    assert found == Culprit(waker.pid, waker.pid + 1000, waker.comm)


def test_children_of_a_process_that_nobody_watches_are_not_related():
    """Half of a host has been started by number 1."""
    ours, theirs = image(42, parent_pid=1), image(88, name="server", parent_pid=1)
    timeline = EventTimeline(Settings())
    timeline.know(ours)
    timeline.know(theirs)

    assert not timeline.are_related(42, 88)
    assert timeline.are_related(42, 42)


def test_a_fork_makes_relations_that_last():
    """Orphans are given to number 1, and do what they were forked for all the same."""
    timeline = EventTimeline(Settings())
    timeline.add_fork(fork_by(tid=42, at_ms=0, duration_ms=1))

    timeline.know(image(4343, parent_pid=1))

    assert timeline.are_related(42, 4343)


def test_a_circle_of_parents_ends():
    """Numbers are used again, and a recording may be damaged."""
    timeline = EventTimeline(Settings())
    timeline.know(image(42, parent_pid=43))
    timeline.know(image(43, parent_pid=42))

    assert timeline.are_related(42, 43)
    assert not timeline.are_related(42, 44)


def test_nobody_woke_itself():
    """The timer of a sleeper that was about to sleep hits that sleeper."""
    assert find(waited("lock", waker=TRAINER, tid=42)) is None


@pytest.mark.parametrize(
    ("reason", "functions", "kind"),
    [("ipc", TCP, "ipc"), ("sleep", (), "sleep"), ("io", (), "io")],
)
def test_an_interrupted_stranger_is_not_followed(reason, functions, kind):
    """That it was kept off the CPU by a hog has nothing to do with the wait."""
    chain = chain_of(
        usual_gap(),
        usual_gap(process=STRANGER),
        off_cpu(0, 0, 80, process=STRANGER, **HOG),
        waited(reason, functions),
        slow_gap(blocked_ns=100 * MS),
    )

    (cause,) = chain.causes
    assert (cause.kind, cause.culprit, cause.via) == (kind, None, ())
    assert [item.waker for item in cause.evidence] == [None]


def test_a_stranger_that_wrote_into_a_pipe_is_followed():
    """Pipes are handed on between programs that nothing else relates."""
    chain = chain_of(
        usual_gap(),
        usual_gap(process=STRANGER),
        off_cpu(0, 0, 80, process=STRANGER, **HOG),
        waited("ipc", PIPE),
        slow_gap(blocked_ns=100 * MS),
    )

    (cause,) = chain.causes
    assert cause.culprit == Culprit(88, 88, "server")
    assert in_ms(cause.via) == [("run_queue", 80), ("unexplained", 20)]
    assert [item.waker for item in cause.evidence] == [Culprit(88, 88, "server")]


def test_a_wait_for_the_network_is_not_put_down_to_who_filled_a_pipe():
    """Of waits for data, only those with a time limit can be one wait, and not on another thing."""
    chain = chain_of(
        usual_gap(),
        off_cpu(0, 10, process=WORKER, reason="io"),
        waited("ipc", TCP, at_ms=0, ms=60),
        waited("ipc", PIPE, WORKER, at_ms=60, ms=40),
        slow_gap(blocked_ns=100 * MS),
    )

    assert [(cause.time_ns / MS, cause.culprit) for cause in chain.causes] == [
        (60, None),
        (40, Culprit(77, 77, "worker")),
    ]


def test_polls_with_a_time_limit_are_one_wait_for_who_answered_in_the_end():
    """The first was ended by its timer, in the name of a stranger."""
    chain = chain_of(
        usual_gap(),
        off_cpu(0, 10, process=WORKER, reason="io"),
        waited("ipc", POLL, at_ms=0, ms=60),
        waited("ipc", POLL, WORKER, at_ms=60, ms=40),
        slow_gap(blocked_ns=100 * MS),
    )

    (cause,) = chain.causes
    assert (cause.kind, cause.time_ns, cause.culprit.pid) == ("ipc", 100 * MS, 77)

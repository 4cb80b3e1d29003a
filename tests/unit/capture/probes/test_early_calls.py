"""Calls that had begun before their process was watched, by looks that are made up."""

import itertools
from collections.abc import Sequence

import pytest

from otel_gpu import wire
from otel_gpu.capture.maps.thread_dump import WHOLE_PROCESS, ThreadDump, ThreadDumps
from otel_gpu.capture.probes import early_calls
from otel_gpu.capture.probes.early_calls import EarlyCalls
from otel_gpu.errors import BpfError
from otel_gpu.stacks.resolver import OpenFrame, OpenFrames, Resolved

PID, TID, IMAGE = 42, 43, 5_000_000_000
WATCHED = {PID: IMAGE}
OUTER, INNER = OpenFrame(10, 0x2000), OpenFrame(120, 0x1000)
NS_PER_S = 1_000_000_000
LOOK = ThreadDump(
    *(PID, TID, IMAGE, IMAGE + 1000, b"stuck", wire.STATE_ON_CPU, 0),
    *(IMAGE - 10, True, True, (), -1, -1, b"sample"),
)


class Threads:
    """What looks at threads finds, and what is on their stacks."""

    def __init__(self) -> None:
        self.now: Sequence[ThreadDump] = ()
        self.frames: Sequence[OpenFrame] = ()
        self.is_complete = True
        self.asked: list[dict[tuple[int, int], int]] = []

    def take(self, whom):
        self.asked.append(dict(whom))
        return list(self.now)

    def open_calls(self, _sample):
        return OpenFrames(tuple(self.frames), self.is_complete)

    def resolve_thread(self, _sample):
        return Resolved(7, complete=True, records=(b"stack",))


@pytest.fixture
def threads() -> Threads:
    return Threads()


@pytest.fixture
def early(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> EarlyCalls:
    """It comes to look once each second."""
    clock = itertools.count(IMAGE, NS_PER_S)
    monkeypatch.setattr(early_calls.kernel_clock, "ktime_ns", lambda: next(clock))
    early = EarlyCalls(lambda: threads, threads)
    early.expect(PID, IMAGE)
    return early


def look_at(early: EarlyCalls, threads: Threads, *looks: ThreadDump) -> list[dict[str, int]]:
    """Return the open calls that a look leads to; what has to come before them is checked."""
    threads.now = looks
    assert list(early.run(WATCHED)) == []
    records = list(early.run(WATCHED))
    if records:
        assert records.pop(0) == b"stack"
    return [wire.OPEN_CALL_RECORD.named(record) for record in records]


def after(seconds: float, **more: object) -> ThreadDump:
    return LOOK._replace(ktime_ns=IMAGE + round(seconds * NS_PER_S), **more)


def test_a_call_that_is_seen_twice_had_begun(early: EarlyCalls, threads: Threads) -> None:
    """At the latest when its process was first watched, and it stays the same call."""
    threads.frames = [OUTER, INNER]

    assert look_at(early, threads, after(0)) == []
    outer, inner = look_at(early, threads, after(1.1))
    again, _ = look_at(early, threads, after(2.2))

    assert threads.asked == [{(PID, WHOLE_PROCESS): IMAGE}, *[{(PID, TID): IMAGE}] * 2]
    assert outer["start_ktime_ns"] < inner["start_ktime_ns"] < IMAGE
    assert again["start_ktime_ns"] == outer["start_ktime_ns"] == outer["root_start_ktime_ns"]
    assert inner["root_start_ktime_ns"] == outer["start_ktime_ns"]
    assert [outer["api"], inner["api"]] == [OUTER.api, INNER.api]
    assert [outer["depth"], inner["depth"]] == [0, 1]
    assert (outer["user_stack"], outer["blocked_ns"], outer["device"]) == (7, 0, -1)


def test_who_has_waited_for_long_is_known_at_once(early: EarlyCalls, threads: Threads) -> None:
    """The call is at least as old as the wait in it; how exactly that is known varies."""
    threads.frames = [OUTER]
    blocked = {"state": wire.STATE_BLOCKED, "is_late": False}

    [first] = look_at(early, threads, after(0, **blocked, since_ktime_ns=IMAGE - 3 * NS_PER_S))
    [again] = look_at(early, threads, after(1, **blocked, since_ktime_ns=IMAGE - 3 * NS_PER_S + 9))

    assert first["start_ktime_ns"] == again["start_ktime_ns"] == IMAGE - 3 * NS_PER_S
    assert first["blocked_ns"] == 3 * NS_PER_S


def test_who_has_waited_for_a_moment_may_be_in_any_call(
    early: EarlyCalls, threads: Threads
) -> None:
    """It is not told until it has lasted."""
    threads.frames = [OUTER]
    blocked = {"state": wire.STATE_BLOCKED, "since_ktime_ns": IMAGE - 1000}

    assert look_at(early, threads, after(0, **blocked)) == []
    assert look_at(early, threads, after(0.5, **blocked)) == []
    assert len(look_at(early, threads, after(1, **blocked))) == 1


def test_calls_that_were_seen_to_begin_are_left_out(early: EarlyCalls, threads: Threads) -> None:
    """A call inside one that was not is a call of its own; a new one at the same place, too."""
    threads.frames = [OUTER, INNER]

    assert look_at(early, threads, after(0, open_calls=(INNER.stack_pointer,))) == []
    [outer] = look_at(early, threads, after(2, open_calls=(INNER.stack_pointer,)))
    assert outer["api"] == OUTER.api
    assert look_at(early, threads, after(3, open_calls=(OUTER.stack_pointer, 0x1000))) == []
    # It has returned, and so nobody looks any more.
    assert list(early.run(WATCHED)) == []
    assert len(threads.asked) == 3


def test_a_call_that_returned_is_forgotten(early: EarlyCalls, threads: Threads) -> None:
    """The next one at its place has to be seen twice as well."""
    threads.frames = [OUTER]
    look_at(early, threads, after(0))
    threads.frames = []
    assert look_at(early, threads, after(1)) == []
    early.expect(PID, IMAGE)
    threads.frames = [OUTER]

    assert look_at(early, threads, after(5)) == []


def test_threads_that_are_not_followed_are_counted(early: EarlyCalls, threads: Threads) -> None:
    """What they have called since is not known, so nothing is said of them."""
    threads.frames = [OUTER]
    unreadable = LOOK._replace(sample=b"")

    assert look_at(early, threads, LOOK._replace(is_followed=False), unreadable) == []

    assert early.counts == {
        "threads_dumped": 2,
        "dump_not_followed": 1,
        "dump_unreadable": 1,
        "dump_incomplete": 0,
        "dump_refused": 0,
    }
    assert list(early.run(WATCHED)) == []
    assert len(threads.asked) == 1


def test_a_thread_that_runs_is_looked_at_again(early: EarlyCalls, threads: Threads) -> None:
    """Its stack did not fit together, so what it is in is not known yet; it is not tried forever."""
    threads.is_complete = False
    for tried in range(6):
        assert look_at(early, threads, after(tried)) == []

    assert list(early.run(WATCHED)) == []
    assert len(threads.asked) == 6
    assert early.counts["dump_incomplete"] == 6


def test_what_is_not_watched_any_more_is_not_looked_at(early: EarlyCalls, threads: Threads) -> None:
    """Nor is another program under its number, between a look and what is made of it."""
    threads.frames = [OUTER]
    threads.now = [LOOK]
    assert list(early.run(WATCHED)) == []

    assert list(early.run({PID: IMAGE + 1})) == []
    assert list(early.run(WATCHED)) == []
    assert len(threads.asked) == 1
    assert early.counts["threads_dumped"] == 0


def test_a_kernel_that_allows_no_looks_gives_none(threads: Threads) -> None:
    """And it is asked once."""
    early = EarlyCalls(lambda: None, threads)
    early.expect(PID, IMAGE)

    for _ in range(3):
        assert list(early.run(WATCHED)) == []
    assert threads.asked == []


def test_a_refused_program_is_named_once_and_counted(
    threads: Threads, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel may refuse what looks at threads when it is first needed; the capture goes on."""

    def refuse() -> ThreadDumps:
        raise BpfError("dump_thread is not loaded")

    early = EarlyCalls(refuse, threads)
    for _ in range(2):
        early.expect(PID, IMAGE)
        assert list(early.run(WATCHED)) == []

    assert early.counts["dump_refused"] == 2
    (said,) = [record.message for record in caplog.records]
    assert said == (
        "calls that had begun before their process was watched are not found: "
        "dump_thread is not loaded"
    )
    assert not early.is_pending


def test_many_threads_and_processes_keep_nobody_waiting(
    early: EarlyCalls, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process is looked at at a time, and of its threads some are made something of at a time."""
    monkeypatch.setattr(early_calls, "_JUDGED_AT_A_TIME", 2)
    early.expect(PID + 1, IMAGE)
    watched = WATCHED | {PID + 1: IMAGE}
    threads.now = [LOOK._replace(tid=tid) for tid in range(5)]

    judged = []
    for _ in range(6):
        assert list(early.run(watched)) == []
        judged.append(early.counts["threads_dumped"])

    assert judged == [0, 2, 4, 5, 5, 7]
    assert threads.asked == [{(PID, WHOLE_PROCESS): IMAGE}, {(PID + 1, WHOLE_PROCESS): IMAGE}]

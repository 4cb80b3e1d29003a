"""The end of a capture: what waits in the rings is read for a moment, and counted after that."""

from types import SimpleNamespace

import pytest

from otel_gpu import wire
from otel_gpu.capture.ending import _READS_S, Ending
from otel_gpu.capture.lifecycle import Lifecycle
from otel_gpu.capture.processes import stopped_processes
from otel_gpu.faults import Faults
from tests.synthetic import call_record


class Clock:
    """It stands, but for a millisecond with each piece of records."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


def test_all_is_read_before_the_end(clock):
    """However long that takes."""
    ending = Ending(clock)
    records = [bytes([number % 251]) for number in range(1009)]

    clock.now_s += 1e6
    assert list(ending.within(records)) == records
    assert (ending.has_begun, ending.is_over, ending.unread) == (False, False, 0)


def test_what_is_left_when_the_time_is_over_is_taken_and_counted(clock):
    """What comes of a record takes a millisecond: the time is over amid a ring."""
    ending = Ending(clock)
    ring = iter(range(20_011))
    ending.begin()
    read = 0
    for _ in ending.within(ring):
        clock.now_s += 0.001
        read += 1

    # To the piece that was taken already.
    assert _READS_S / 0.001 <= read < _READS_S / 0.001 + 100
    assert ending.unread == 20_011 - read
    assert next(ring, None) is None


def test_to_be_told_twice_gives_no_more_time(clock):
    """As where a signal comes again."""
    ending = Ending(clock)
    ending.begin()
    clock.now_s += _READS_S - 0.001
    ending.begin()
    assert not ending.is_over
    clock.now_s += 0.002
    assert ending.is_over


def test_when_the_time_is_over_nothing_is_done_for_a_process_but_to_let_it_go_on(
    clock, monkeypatch
):
    """What it counted comes with the last reading of all; that of its end would come before its calls."""
    went_on, done = [], []
    monkeypatch.setattr(stopped_processes, "let_go_on", went_on.append)
    executed = wire.EXEC_RECORD.build(kind=wire.RECORD_EXEC, pid=4321, stopped=1)
    ended = wire.EXIT_RECORD.build(kind=wire.RECORD_EXIT, pid=4322)
    calls = [call_record()] * 53

    def note(what):
        return lambda *given: done.append((what, given)) or ()

    handlers = (
        "after_fork",
        "after_exec",
        "after_exit",
        "after_library",
        "after_preload",
        "forget",
    )
    watchlist = SimpleNamespace(**{name: note(name) for name in handlers}, notice=iter)
    ending = Ending(clock)
    lifecycle = Lifecycle(
        SimpleNamespace(
            events=SimpleNamespace(position=lambda: 0, read=lambda _until: iter(calls)),
            lifecycle=SimpleNamespace(read=lambda: [executed, ended]),
        ),
        SimpleNamespace(processes=SimpleNamespace(ask_due=lambda: None)),
        SimpleNamespace(),
        watchlist,
        SimpleNamespace(complete=lambda records: records),
        faults := Faults(),
        ending,
        note_ended=lambda images: None,
    )
    ending.begin()
    clock.now_s += _READS_S

    assert list(lifecycle.read()) == []
    assert went_on == [4321]
    assert ending.unread == 2 + 53
    assert done == []
    assert faults.status()["errors"] == {}

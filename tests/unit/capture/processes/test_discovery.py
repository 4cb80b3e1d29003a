"""Who is introduced, when, and who is not any more."""

import json
import os
import time

import pytest

from otel_gpu import wire
from otel_gpu.capture.processes import discovery as introductions_module
from otel_gpu.capture.processes.discovery import ProcessDiscovery

OWN = os.getpid()


class Processes:
    """The map of watched processes."""

    def __init__(self, **watched):
        self.watched = watched

    def program_ktime_ns(self, pid):
        return self.watched.get(str(pid), 0)


def introduced(records):
    """Pids that RECORD_PROCESS is about."""
    pids = []
    for record in records:
        kind, _, _, _, _, pid, _ = wire.RECORD_HEADER.unpack_from(record)
        assert kind == wire.RECORD_PROCESS
        assert json.loads(record[wire.RECORD_HEADER.size :])["exe"]
        pids.append(pid)
    return pids


@pytest.mark.parametrize("is_watched", [True, False])
def test_a_process_is_introduced_while_it_can_be_read(is_watched):
    """Also one whose end was seen, as long as nobody has waited for it."""
    now_ktime_ns = time.monotonic_ns()
    processes = Processes(**{str(OWN): now_ktime_ns if is_watched else 0})

    assert introduced(ProcessDiscovery(processes).make(OWN, now_ktime_ns)) == [OWN]


def test_an_image_that_became_another_is_not_introduced():
    """What could be read is of the other."""
    now_ktime_ns = time.monotonic_ns()
    processes = Processes(**{str(OWN): now_ktime_ns + 1})

    assert introduced(ProcessDiscovery(processes).make(OWN, now_ktime_ns)) == []


def test_whoever_has_the_pid_of_a_process_that_ended_does_not_name_it():
    """A process that began later than an image is not the one."""
    long_ago_ktime_ns = 1

    assert introduced(ProcessDiscovery(Processes()).make(OWN, long_ago_ktime_ns)) == []


def test_those_that_wait_are_introduced_in_turn_unless_given_up():
    """An image that ended is not looked at any more."""
    now_ktime_ns = time.monotonic_ns()
    waiting = ProcessDiscovery(Processes())
    for program_ktime_ns in (now_ktime_ns, now_ktime_ns + 1):
        waiting.put_off(OWN, program_ktime_ns)
    waiting.give_up(OWN, now_ktime_ns)

    assert introduced(waiting.make_some()) == [OWN]
    assert introduced(waiting.make_some()) == []


def test_only_so_many_wait(monkeypatch):
    """The one that waits longest is not introduced."""
    monkeypatch.setattr(introductions_module, "MAX_WAITING", 2)
    now_ktime_ns = time.monotonic_ns()
    waiting = ProcessDiscovery(Processes())
    for number in range(3):
        waiting.put_off(OWN, now_ktime_ns + number)

    images = [wire.RECORD_HEADER.unpack_from(record)[4] for record in waiting.make_some()]
    assert images == [now_ktime_ns + 1, now_ktime_ns + 2]


def test_introductions_that_take_long_wait_for_the_next_turn(monkeypatch):
    """A process decides how long its facts take; one at least is introduced."""
    now_ktime_ns = time.monotonic_ns()
    waiting = ProcessDiscovery(Processes())
    for number in range(3):
        waiting.put_off(OWN, now_ktime_ns + number)
    monkeypatch.setattr(introductions_module, "_AT_A_TIME_S", 0.0)

    assert introduced(waiting.make_some()) == [OWN]
    assert waiting.is_pending


def test_who_could_not_be_read_in_time_is_introduced_again(monkeypatch):
    """Once with what could be read, and once more when the rest may be asked for, unless it has ended."""
    late = [True]
    monkeypatch.setattr(introductions_module, "is_late", lambda _pid: late[0])
    now_ktime_ns = time.monotonic_ns()
    waiting = ProcessDiscovery(Processes())
    for program_ktime_ns in (now_ktime_ns, now_ktime_ns + 1):
        assert introduced(waiting.make(OWN, program_ktime_ns)) == [OWN]
    waiting.retry()
    assert not waiting.is_pending
    waiting.give_up(OWN, now_ktime_ns)
    late[0] = False
    waiting.retry()

    assert introduced(waiting.make_some()) == [OWN]
    waiting.retry()
    assert not waiting.is_pending

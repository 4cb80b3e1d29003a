"""Who is looked up for having kept watched threads waiting."""

import json
import os

import pytest

from otel_gpu import wire
from otel_gpu.capture.maps import unwatched_blockers as module
from otel_gpu.capture.maps.unwatched_blockers import FLOOR_NS, UnwatchedBlockers
from otel_gpu.wire import bodies

WATCHED, STRANGER, GONE = 10, 11, 12


@pytest.fixture
def host(monkeypatch):
    """Programs by pid, as (start, name); and a clock."""
    host = {STRANGER: (100, "hog"), "now_s": 0.0}
    monkeypatch.setattr(module, "program_of", host.get)
    monkeypatch.setattr(module, "read_unwatched_process", lambda pid: {"comm": host[pid][1]})
    return host


@pytest.fixture
def culprits(host):
    return UnwatchedBlockers(lambda: {WATCHED}, lambda: host["now_s"])


def told(culprits, **how):
    found = []
    for record in culprits.describe_some(**how):
        kind, _, _, _, _, pid, _ = wire.RECORD_HEADER.unpack_from(record)
        body = record[wire.RECORD_HEADER.size :]
        assert kind == wire.RECORD_CULPRIT
        assert bodies.PROCESS.parse(body) == json.loads(body)
        found.append((pid, json.loads(body)["comm"]))
    return found


def test_one_is_told_when_it_took_enough_time(culprits):
    """In many small parts or in one; and once."""
    culprits.note(STRANGER, FLOOR_NS - 1)
    assert told(culprits) == []
    culprits.note(STRANGER, 1)
    assert told(culprits) == [(STRANGER, "hog")]
    culprits.note(STRANGER, FLOOR_NS)
    assert told(culprits) == []


def test_who_is_watched_is_introduced_by_others(culprits):
    """And nobody, and who is gone, cannot be."""
    for pid in (0, WATCHED, GONE):
        culprits.note(pid, FLOOR_NS)

    assert told(culprits) == []


def test_another_program_with_the_same_pid_is_told_too(culprits, host):
    """It is looked at again when it took time again, after a while."""
    culprits.note(STRANGER, FLOOR_NS)
    told(culprits)
    host[STRANGER] = (200, "other")
    culprits.note(STRANGER, 1)
    assert told(culprits) == []
    host["now_s"] = 6.0
    culprits.note(STRANGER, 1)
    assert told(culprits) == [(STRANGER, "other")]
    host["now_s"] = 12.0
    culprits.note(STRANGER, 1)
    assert told(culprits) == []


def test_one_is_told_again_after_some_minutes(culprits, host):
    """If it still takes time: a store may have forgotten it."""
    culprits.note(STRANGER, FLOOR_NS)
    assert told(culprits) == [(STRANGER, "hog")]
    for host["now_s"], expected in ((299.0, []), (305.0, [(STRANGER, "hog")]), (320.0, [])):
        culprits.note(STRANGER, 1)
        assert told(culprits) == expected


def test_a_crowd_is_looked_up_a_few_at_a_time_and_forgotten(culprits, host):
    """A million short programs cost no more than this."""
    for pid in range(1_000, 6_000):
        host[pid] = (pid, "short")
        culprits.note(pid, FLOOR_NS)
    found = told(culprits)
    assert [pid for pid, _ in found] == list(range(1_000, 1_010))
    for pid in range(10_000, 20_000):
        culprits.note(pid, 1)
    assert len(culprits._times_ns) == 1024


def test_who_was_looked_up_long_ago_is_forgotten(culprits, host):
    """It would be told again anyway, and a host starts short programs for as long as the agent runs."""
    for number in range(100):
        host["now_s"] = 10.0 * number
        host[number + 1_000] = (number, "short")
        culprits.note(number + 1_000, FLOOR_NS)
        assert len(told(culprits)) == 1

    assert len(culprits._known) == 30


def test_who_took_most_is_looked_up_before_a_crowd_that_is_gone(culprits):
    """Else a hog would be nobody at the end of a short program that a build ran beside."""
    for pid in range(1_000, 1_100):
        culprits.note(pid, FLOOR_NS)
    culprits.note(STRANGER, FLOOR_NS)
    culprits.note(STRANGER, 1)

    assert told(culprits) == [(STRANGER, "hog")]


def test_at_the_end_more_are_looked_up(culprits, host):
    """There is no next time."""
    for pid in range(1_000, 1_030):
        host[pid] = (pid, "short")
        culprits.note(pid, FLOOR_NS)
    culprits.note(STRANGER, FLOOR_NS)

    assert len(told(culprits)) == 10
    assert len(told(culprits, is_last=True)) == 21


def test_of_this_process_its_command_and_owner_are_read():
    """From the real /proc, with nothing of its environment."""
    facts = module.read_unwatched_process(os.getpid())

    assert facts is not None
    assert set(facts) == {"start_boot_ns", "comm", "exe", "command_args", "owner", "cgroups"}
    assert facts["command_args"]
    bodies.PROCESS.parse(json.dumps(facts).encode())

"""Which processes count as not watched from their first call on, and what is said of them."""

import os
from pathlib import Path

import pytest

from otel_gpu import wire
from otel_gpu.capture.probes.missed_starts import MAX_NAMED, MissedStart, MissedStarts

OWN, BEGUN = os.getpid(), 1_000
LIBRARY = "/usr/lib/libcudart.so.12"


@pytest.fixture
def lost():
    return []


@pytest.fixture
def missed(lost):
    return MissedStarts(lost.append)


def test_a_program_counts_once_whatever_was_missed(missed, lost):
    """Also where its second library was probed late; the next program of its process is another."""
    missed.add(OWN, BEGUN, MissedStart.UNREADABLE, file=LIBRARY)
    missed.add(OWN, BEGUN, MissedStart.LIBRARY_LATE)
    missed.add(OWN, BEGUN + 1, MissedStart.LIBRARY_LATE)

    assert lost == [wire.COUNTER_LOST_NOT_WATCHED_FROM_START] * 2
    assert missed.named[0] == {
        "pid": OWN,
        "name": Path("/proc/self/comm").read_text().rstrip("\n"),
        "reason": "its library could not be opened",
        "file": LIBRARY,
    }


def test_of_many_only_some_are_named(missed, lost):
    for pid in range(5_000_000, 5_000_000 + 2 * MAX_NAMED):
        missed.add(pid, 0, MissedStart.LIBRARY_GONE, name="short")

    assert len(lost) == 2 * MAX_NAMED
    assert [one["pid"] for one in missed.named] == list(range(5_000_000, 5_000_000 + MAX_NAMED))


def test_who_stood_still_for_probes_missed_nothing(missed, lost):
    """Whoever found the library first, the record of its dynamic linker comes after."""
    missed.doubt(OWN, BEGUN, LIBRARY)
    missed.settle_old()
    missed.stood_still(OWN)
    missed.settle_old()
    missed.settle_all()

    assert lost == []


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_who_did_not_counts(missed, lost, turns):
    """After two turns, in which all records were read that there may be; or at its end."""
    missed.doubt(OWN, BEGUN, LIBRARY)
    for turn in range(turns):
        assert lost == [], turn
        missed.settle_old()
    missed.settle(OWN)
    missed.settle_all()

    assert lost == [wire.COUNTER_LOST_NOT_WATCHED_FROM_START]
    assert missed.named[0]["reason"] == MissedStart.LIBRARY_LATE

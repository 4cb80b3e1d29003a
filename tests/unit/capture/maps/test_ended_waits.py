"""Entries of the time account about who ended: one for each name, and nothing is lost or counted twice."""

from collections import Counter

from otel_gpu import wire
from otel_gpu.capture.maps import ended_waits
from otel_gpu.capture.maps.ended_waits import EndedWaits
from otel_gpu.enrich.identity.identities import Culprit
from otel_gpu.enrich.thread_times import ThreadTime, Wait
from otel_gpu.state.differences import moved_by_name, time_since
from otel_gpu.wire.agent_records import times_record
from otel_gpu.wire.decoder import decode

IMAGE = (11, 7)
FEW = 3


def entry(who, time_ns, *, image=IMAGE, name=b"short"):
    fields = dict.fromkeys(wire.TIMES_KEY.fields, 0)
    fields |= {"pid": image[0], "program_ktime_ns": image[1], "who_pid": who, "who_tid": who}
    fields |= {"state": wire.STATE_RUN_QUEUE, "kernel_stack": -1, "end_kernel_stack": -1}
    key = wire.TIMES_KEY.pack(*fields.values())
    return key, wire.TIMES.pack(time_ns, 1, time_ns, name, b"")


class Map(dict):
    """The kernel's map, as it was read last; ``living`` has the pids that there are."""

    def __init__(self, *entries, living=()):
        super().__init__(entries)
        self.sent = {}
        self.waits = EndedWaits(self.pop, living.__contains__)

    def fold(self, **more):
        found = self.waits.fold(dict(self), **more)
        self.sent |= found
        return found

    def total_ns(self):
        """All that a reader knows."""
        return sum(wire.TIMES.unpack(value)[0] for value in ({**self, **self.sent}).values())


def test_who_ended_is_added_up_by_name(monkeypatch):
    """What changed since the last time, who lives, and waits for nobody stay as they are."""
    monkeypatch.setattr(ended_waits, "_ENOUGH", FEW)
    gone = [entry(100 + number, 1_000 + number) for number in range(97)]
    other = entry(300, 13, name=b"other")
    alone, alive = entry(0, 17), entry(200, 19)
    kernel = Map(*gone, other, alone, alive, living={200})
    before_ns = kernel.total_ns()

    assert kernel.fold() == []
    kernel[gone[0][0]] = entry(100, 5_000)[1]
    kernel.fold()

    assert set(kernel) == {gone[0][0], alone[0], alive[0]}
    assert kernel.total_ns() == before_ns + 4_000
    folded = [value for key, value in kernel.sent.items() if key not in dict([*gone, other])]
    names = {
        wire.TIMES.unpack(value)[3].rstrip(b"\0"): wire.TIMES.unpack(value) for value in folded
    }
    assert names[b"short"][:3] == (sum(range(1_001, 1_097)), 96, sum(range(1_001, 1_097)))
    assert names[b"other"][:3] == (13, 1, 13)
    kernel.fold()
    assert set(kernel) == {gone[0][0], alone[0], alive[0]}, "there are few by now"


def test_a_sum_goes_on(monkeypatch):
    """Later ones of a name are added to those before."""
    monkeypatch.setattr(ended_waits, "_ENOUGH", FEW)
    kernel = Map()
    for turn in range(5):
        kernel |= dict(entry(1_000 * turn + number + 1, 7) for number in range(11))
        kernel |= dict(entry(0, number, image=IMAGE) for number in range(1))
        for _ in range(2):
            kernel.fold()
    (total,) = {wire.TIMES.unpack(value)[:3] for value in kernel.sent.values() if any(value[:8])}

    assert total == (5 * 11 * 7, 55, 5 * 11 * 7)


def test_a_process_with_few_entries_keeps_them():
    """It is told which process kept it waiting."""
    kernel = Map(*(entry(100 + number, 1) for number in range(97)))

    assert kernel.fold() == kernel.fold() == []
    assert len(kernel) == 97


def test_images_that_divide_their_time_are_excepted(monkeypatch):
    """Their entries are not the kernel's."""
    monkeypatch.setattr(ended_waits, "_ENOUGH", FEW)
    kernel = Map(*(entry(100 + number, 1) for number in range(97)))

    assert kernel.fold(excepted={IMAGE}) == kernel.fold(excepted={IMAGE}) == []


def test_the_record_is_read_as_any_other(monkeypatch):
    """One that is gone has nothing; a name has no pid."""
    monkeypatch.setattr(ended_waits, "_ENOUGH", FEW)
    kernel = Map(*(entry(100 + number, 1) for number in range(5)))
    kernel.fold()
    (times,) = decode([times_record(9, kernel.fold())], Counter())

    assert [one.time_ns for one in times.entries if not one.key.is_folded] == [0] * 5
    (folded,) = [one for one in times.entries if one.key.is_folded]
    assert (folded.key.is_folded, folded.time_ns, folded.who_comm) == (2, 5, "short")


def test_what_moved_was_not_added():
    """Between two readings nothing happened but that processes ended that took time before."""

    def time(pid, time_ns):
        wait = Wait(0, Culprit(pid, pid and pid + 1, "short"), None, 0, "", None)
        return ThreadTime(None, wire.STATE_RUN_QUEUE, 0, "", time_ns, 1, time_ns, wait)

    before = {one.kind: one for one in (time(5, 100), time(6, 30), time(0, 7), time(8, 1))}
    now = {one.kind: one for one in (time(0, 137), time(8, 12), time(5, 0))}
    moved = moved_by_name(before, now)

    assert {
        kind[3].who.pid: time_since(one, moved.get(kind)).time_ns for kind, one in now.items()
    } == {
        0: 0,
        8: 11,
        5: 0,
    }
    assert moved_by_name(before, before) is before

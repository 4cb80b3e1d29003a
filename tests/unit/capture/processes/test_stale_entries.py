"""What is freed of processes whose end was not reported, and what is left alone."""

import os
import subprocess
import time

import pytest

from otel_gpu.capture.processes.stale_entries import StaleEntries

EARLIER, NOW, LATER = 1, time.monotonic_ns(), time.monotonic_ns() + 1


class Programs:
    """Maps in memory; processes by pid, threads as (tid, pid), allocations by key."""

    def __init__(self, processes, threads=(), allocations=()):
        self.watched = dict(processes)
        self.processes = self
        self.followed = dict(threads)
        self.allocated = dict(allocations)

    def programs(self):
        return dict(self.watched)

    def forget(self, pid):
        del self.watched[pid]

    def threads(self):
        return list(self.followed.items())

    def forget_thread(self, tid):
        del self.followed[tid]

    def memory(self):
        return [(program, self, key) for key, program in self.allocated.items()]

    def delete(self, key):
        del self.allocated[key]


@pytest.fixture
def gone():
    """The pid of a process that has been waited for."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


def test_an_entry_of_a_process_that_is_gone_is_freed(gone):
    """The one of a process that lives stays, whether or not anybody knows it."""
    programs = Programs({os.getpid(): NOW, gone: 5})

    assert StaleEntries(programs).ended({}) == set()
    assert programs.watched == {os.getpid(): NOW}


def test_an_end_that_nobody_reports_is_found_at_the_second_look(gone):
    """At the first its record may be on its way; and it is found once."""
    leftovers = StaleEntries(Programs({os.getpid(): NOW, gone: 5}))
    images = {os.getpid(): NOW, gone: 5}

    assert leftovers.ended(images) == set()
    assert leftovers.ended(images) == {(gone, 5)}
    assert leftovers.ended({os.getpid(): NOW}) == set()


def test_an_image_that_was_replaced_without_a_record_has_ended():
    """The process goes on as another program."""
    leftovers = StaleEntries(Programs({os.getpid(): LATER}))
    images = {os.getpid(): NOW}

    leftovers.ended(images)

    assert leftovers.ended(images) == {(os.getpid(), NOW)}


def test_threads_are_freed_that_ended_or_whose_process_is_not_watched(gone):
    """The thread that runs this stays."""
    tid = os.getpid()
    programs = Programs({tid: 7}, {tid: tid, gone: tid, gone + 1: gone})

    StaleEntries(programs).free_threads()

    assert programs.followed == {tid: tid}


def test_allocations_are_freed_with_their_image(gone):
    """
    Those of an image that was replaced are as gone as those of a process that ended; not at once, as
    a failure of the image may be in the ring still.
    """
    own = os.getpid()
    allocations = {b"live": (own, 7), b"replaced": (own, 5), b"ended": (gone, 7)}
    programs = Programs({own: 7}, allocations=allocations)

    leftovers = StaleEntries(programs)
    leftovers.free_memory()
    assert programs.allocated.keys() == allocations.keys()
    leftovers.free_memory()

    assert programs.allocated == {b"live": (own, 7)}


def test_a_pid_that_another_process_has_is_not_taken_for_the_one_that_had_it():
    """Its entry is freed, and the image has ended."""
    programs = Programs({os.getpid(): EARLIER})
    leftovers = StaleEntries(programs)
    images = {os.getpid(): EARLIER}

    leftovers.ended(images)

    assert programs.watched == {}
    assert leftovers.ended(images) == {(os.getpid(), EARLIER)}

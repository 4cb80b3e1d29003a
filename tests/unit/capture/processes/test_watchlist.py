"""Who is watched, and what is found out about them at once."""

import os
import time

import pytest

from otel_gpu import wire
from otel_gpu.capture.probes.attachments import NewLibrary
from otel_gpu.capture.probes.missed_starts import MissedStarts
from otel_gpu.capture.processes.watchlist import Watchlist
from otel_gpu.config import load
from otel_gpu.faults import Faults
from otel_gpu.procfs.mapped_files import FileId, MappedFile
from otel_gpu.stacks.read_budget import FileWork
from otel_gpu.stacks.user_stacks import UserStacks
from tests.synthetic import call_record, kernel_record

OWN = os.getpid()
NOW_KTIME_NS = time.monotonic_ns()


class Programs:
    """The kernel side, as far as it is asked: what is watched, by pid."""

    def __init__(self, images):
        self.watched = images
        self.processes = self
        self.followed = []
        self.blocks = self.contexts = self.refusals = None
        self.file_work = FileWork()

    def program_ktime_ns(self, pid):
        return self.watched.get(pid, 0)

    def has_stopped_since(self, pid, tid, ktime_ns):
        return False

    def watch_threads(self, pid, program_ktime_ns, flags):
        self.followed.append(pid)


@pytest.fixture
def make():
    def make(images, *, watch_all=True):
        faults = Faults()
        programs = Programs(images)
        stacks = UserStacks(programs.processes.program_ktime_ns)
        config = load(None, {}, {})
        watchlist = Watchlist(programs, config, stacks, faults, cgroup=None, watch_all=watch_all)
        # What this program maps is to stay without probes.
        watchlist._place_probes = lambda _pid, _note: iter(())
        return programs, watchlist

    return make


def call(pid, program_ktime_ns=NOW_KTIME_NS):
    return call_record(
        pid=pid, tid=pid, program_ktime_ns=program_ktime_ns, ktime_ns=program_ktime_ns + 1, api=1
    )


def introduced(records):
    headers = [wire.RECORD_HEADER.unpack_from(record) for record in records]
    return [header[5] for header in headers if header[0] == wire.RECORD_PROCESS]


def test_whoever_makes_a_call_is_introduced_at_once(make):
    """And once, however many records come of it."""
    programs, watchlist = make({OWN: NOW_KTIME_NS})

    list(watchlist.notice([call(OWN), call(OWN)]))

    assert introduced(watchlist.describe_some()) == [OWN]
    assert watchlist.programs == {OWN: NOW_KTIME_NS}
    list(watchlist.notice([call(OWN)]))
    assert introduced(watchlist.describe_some()) == []
    assert programs.followed == [OWN]


@pytest.mark.parametrize("program_ktime_ns", [0, NOW_KTIME_NS + 1], ids=["ended", "replaced"])
def test_whoever_ended_or_runs_another_program_by_then_is_not_looked_at(make, program_ktime_ns):
    programs, watchlist = make({OWN: program_ktime_ns})

    list(watchlist.notice([call(OWN)]))

    assert introduced(watchlist.describe_some()) == []
    assert watchlist.programs == {}
    assert programs.followed == []


def test_in_a_storm_only_some_are_looked_at_in_a_turn(make):
    """The others have their turn: each is looked at once."""
    pids = range(5_000_000, 5_000_100)
    programs, watchlist = make(dict.fromkeys(pids, NOW_KTIME_NS))

    list(watchlist.notice([call(pid) for pid in pids]))

    turns = 0
    while len(watchlist.programs) < len(pids):
        before = len(watchlist.programs)
        list(watchlist.describe_some())
        assert 0 < len(watchlist.programs) - before <= 25
        turns += 1
    assert turns == 4
    assert sorted(programs.followed) == list(pids)


def test_where_not_all_are_watched_nobody_is_met_by_a_record(make):
    """Whoever is watched then is known from the record of a fork, or by name."""
    _, watchlist = make({OWN: NOW_KTIME_NS}, watch_all=False)

    list(watchlist.notice([call(OWN)]))

    assert introduced(watchlist.describe_some()) == []


def test_who_works_is_looked_at_ever_more_seldom(make, monkeypatch):
    """A program that uses no CUDA may run Python, which it maps after it has begun."""
    _, watchlist = make({OWN: NOW_KTIME_NS})
    looked = []
    watchlist._watched[OWN] = NOW_KTIME_NS
    monkeypatch.setattr(
        watchlist, "_place_probes", lambda pid, _note: looked.append(pid) or iter(())
    )
    tick = kernel_record(wire.RECORD_CPU_SAMPLE, pid=OWN, program_ktime_ns=NOW_KTIME_NS)
    stranger = kernel_record(wire.RECORD_CPU_SAMPLE, pid=OWN, program_ktime_ns=NOW_KTIME_NS + 1)

    for number in range(1, 101):
        list(watchlist.after_tick(tick))
        list(watchlist.after_tick(stranger))
        assert len(looked) == number.bit_length()


@pytest.mark.parametrize(("begun", "count"), [(0, 0), (NOW_KTIME_NS, 1)], ids=["long ago", "now"])
def test_a_library_that_a_search_of_proc_found_first_was_probed_late_all_the_same(
    make, begun, count
):
    """The search cannot know how long it was mapped; nothing counts that was before the capture."""
    _, watchlist = make({OWN: NOW_KTIME_NS})
    missed, asked = [], []
    watchlist._missed_starts = MissedStarts(missed.append)
    watchlist._begun_ktime_ns = begun
    watchlist._watched[OWN] = NOW_KTIME_NS
    watchlist._attachments.has_probes_since = lambda *about: asked.append(about) or True
    path = "/lib/libcudart.so.12"
    loaded = {"pid": OWN, "ktime_ns": NOW_KTIME_NS + 1, "program_ktime_ns": NOW_KTIME_NS}
    list(watchlist.after_library(kernel_record(wire.RECORD_LIBRARY, path=path, **loaded)))

    assert missed == [wire.COUNTER_LOST_NOT_WATCHED_FROM_START] * count
    assert asked == [(OWN, NOW_KTIME_NS + 1, path)] * count


@pytest.mark.parametrize("is_reaped", [False, True], ids=["not reaped", "reaped"])
def test_of_who_has_ended_the_library_is_probed_and_what_was_missed_counted(make, is_reaped):
    """Its folder in /proc may be there for as long as its parent does not ask how it ended."""
    _, watchlist = make({}, watch_all=False)
    missed, looked_at = [], []
    watchlist._missed_starts = MissedStarts(missed.append)

    def examine_path(pid, path, note):
        looked_at.append((pid, path))
        note(
            NewLibrary(MappedFile(pid, FileId(1, 2), 0, 0, path), probed_ktime_ns=211, problem=None)
        )
        return ()

    watchlist._attachments.examine_path = examine_path
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, pid, os.WEXITED if is_reaped else os.WEXITED | os.WNOWAIT)
    path = "/lib/libcudart.so.12"
    list(
        watchlist.after_library(
            kernel_record(wire.RECORD_LIBRARY, pid=pid, ktime_ns=101, path=path)
        )
    )
    if not is_reaped:
        os.waitpid(pid, 0)

    assert looked_at == [(pid, path)]
    assert missed == [wire.COUNTER_LOST_NOT_WATCHED_FROM_START]

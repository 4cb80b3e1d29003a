"""Memories in which programs count their own calls: opened, read and closed, whatever is in them."""

import ctypes
import fcntl
import mmap
import os

import pytest

from otel_gpu import wire
from otel_gpu.capture.preload.preloaded_programs import PreloadedPrograms
from otel_gpu.capture.preload.program import add
from otel_gpu.config import load
from tests.kernel.agent import open_files
from tests.unit.capture.preload.test_shared_memory import CALL, Memory, series

BEGUN_KTIME_NS = 1_000_000_000
IMAGE = (os.getpid(), BEGUN_KTIME_NS)
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Map(dict):
    """A map of the kernel side."""

    def update(self, key, value):
        self[key] = value

    def delete(self, key):
        self.pop(key, None)


class Bpf:
    def __init__(self):
        self.maps = {"preloaded": Map()}

    def map(self, name):
        return self.maps[name]


class Shared:
    """A memory as the library makes it, of this process."""

    def __init__(self, *, name="otel_gpu_preload", seals=SEALS, size=wire.PRELOAD_BYTES):
        fd = os.memfd_create(name, os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        self.memory = mmap.mmap(fd, size)
        os.close(fd)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def put(self, *one_series, start_ktime_ns=BEGUN_KTIME_NS, lost=(), **header):
        """Write a header, and series of one thread."""
        lost = {f"lost_{number}": times for number, times in enumerate(lost)}
        made = Memory(start_ktime_ns=start_ktime_ns, slots_begun=1, **lost, **header)
        made.slot(0, *one_series, tid=1)
        self.memory[: wire.PRELOAD_SLOTS_OFFSET] = bytes(made.data[: wire.PRELOAD_SLOTS_OFFSET])
        end = wire.PRELOAD_SLOTS_OFFSET + wire.PRELOAD_SLOT_BYTES
        self.memory[wire.PRELOAD_SLOTS_OFFSET : end] = bytes(
            made.data[wire.PRELOAD_SLOTS_OFFSET : end]
        )


def launches(calls, **values):
    return series(CALL, buckets_40=calls, sum=calls * 100, **values)


@pytest.fixture
def lost():
    return [0] * wire.COUNTER_COUNT


@pytest.fixture
def bpf():
    return Bpf()


@pytest.fixture
def preloaded(bpf, lost):
    preloaded = PreloadedPrograms(bpf, load(None, {}, {}), lost)
    yield preloaded
    preloaded.close()


def count(found):
    """How many calls there are, of one series."""
    ((key, value),) = found.items()
    named = wire.AGGREGATE_KEY.named(key)
    assert (named["pid"], named["program_ktime_ns"]) == IMAGE
    assert (named["api"], named["metric"]) == (CALL["api"], wire.METRIC_CALL_DURATION)
    return wire.AGGREGATE.named(value)["buckets_40"]


def test_what_is_counted_until_the_end_is_read_when_the_process_is_gone(preloaded):
    """The memory is held open; it goes when it is closed."""
    shared = Shared()
    shared.put(launches(7))
    assert preloaded.open(IMAGE, shared.address)
    assert count(preloaded.read()) == 7
    shared.put(launches(11))
    del shared

    assert count(preloaded.read([IMAGE])) == 11
    assert preloaded.read([(1, 2)]) == {}
    preloaded.close([IMAGE])
    assert preloaded.read() == {}
    assert preloaded.keys() == set()


def test_what_was_counted_before_the_process_was_watched_is_left_out(preloaded, lost):
    """Of a memory that is older than the image; so are its losses."""
    shared = Shared()
    older_ktime_ns = BEGUN_KTIME_NS - 50_000_000
    no_return = (0, 0, 3)
    shared.put(launches(7), start_ktime_ns=older_ktime_ns, lost=no_return)

    assert preloaded.open(IMAGE, shared.address)
    shared.put(launches(9), start_ktime_ns=older_ktime_ns, lost=(0, 0, 5))

    assert count(preloaded.read()) == 2
    assert lost[wire.COUNTER_LOST_NO_RETURN] == 2


def test_losses_are_counted_once(preloaded, lost):
    """Those that probes have too among theirs."""
    shared = Shared()
    shared.put(launches(1), lost=(2, 3, 5, 7, 11))
    preloaded.open(IMAGE, shared.address)

    preloaded.read()
    preloaded.read()

    assert lost[wire.COUNTER_LOST_SERIES_FULL] == 2
    assert lost[wire.COUNTER_LOST_NO_RETURN] == 5
    assert preloaded.lost == {
        "preload_depth_exceeded": 3,
        "preload_slots_full": 7,
        "preload_copies_full": 11,
    }


@pytest.mark.parametrize("calls", [3, 1 << 55])
def test_counts_that_no_program_can_have_are_left_out(preloaded, calls):
    """Fewer than before, or more than fit: what was known stays."""
    shared = Shared()
    shared.put(launches(7))
    preloaded.open(IMAGE, shared.address)
    preloaded.read()
    shared.put(launches(calls))

    assert count(preloaded.read()) == 7
    assert preloaded.lost == {"preload_rejected": 1}


def test_a_memory_that_is_destroyed_keeps_what_was_read(preloaded):
    """And the reading goes on."""
    shared = Shared()
    shared.put(launches(7))
    preloaded.open(IMAGE, shared.address)
    preloaded.read()
    shared.memory[:8] = bytes(8)

    assert count(preloaded.read()) == 7
    assert preloaded.lost == {"preload_rejected": 1}


@pytest.mark.parametrize(
    ("shape", "header"),
    [
        ({"seals": 0}, {}),
        ({"size": wire.PRELOAD_BYTES + mmap.PAGESIZE}, {}),
        ({}, {"version": wire.PRELOAD_VERSION + 1}),
        ({}, {"magic": 0}),
    ],
    ids=["not sealed", "another size", "another version", "nothing in it"],
)
def test_what_is_no_memory_of_ours_is_left_to_probes(preloaded, bpf, caplog, shape, header):
    """It is said once, and not tried again."""
    shared = Shared(**shape)
    shared.put(launches(7), **header)
    before = open_files(os.getpid())

    preloaded.examine(IMAGE)
    assert not preloaded.open(IMAGE, shared.address)
    preloaded.examine(IMAGE)

    assert open_files(os.getpid()) == before
    assert preloaded.keys() == set()
    (said,) = bpf.map("preloaded").values()
    assert int.from_bytes(said, "little") == BEGUN_KTIME_NS | 1 << wire.PRELOAD_REFUSED_BIT
    assert preloaded.lost["preload_unread"] == len(caplog.messages) > 0


def test_a_library_that_cannot_count_is_left_to_probes(preloaded, caplog):
    """Probes do, and nothing is lost."""
    assert not preloaded.open(IMAGE, 0)

    assert preloaded.keys() == set()
    assert not preloaded.lost
    assert not caplog.messages


def test_a_memory_that_is_there_already_is_found_by_its_name(preloaded, bpf):
    """And probes are told at once to leave its calls alone."""
    shared = Shared()
    shared.put(launches(7))

    preloaded.examine(IMAGE)

    assert count(preloaded.read()) == 7
    assert bpf.map("preloaded") == {
        os.getpid().to_bytes(4, "little"): IMAGE[1].to_bytes(8, "little")
    }


def test_a_series_counted_by_probes_and_library_is_one_sum():
    """But for its extremes."""
    one = wire.AGGREGATE.build(sum=5, min_complement=90, max=3, size_bytes=1, buckets_0=2)
    other = wire.AGGREGATE.build(sum=7, min_complement=80, max=9, size_bytes=2, buckets_191=1)

    assert wire.AGGREGATE.named(add(one, other)) | {} == wire.AGGREGATE.named(
        wire.AGGREGATE.build(
            sum=12, min_complement=90, max=9, size_bytes=3, buckets_0=2, buckets_191=1
        )
    )


class Clock:
    """A reading takes as long as a test says."""

    now_s, reading_s = 100.0, 0.0

    def __call__(self):
        self.now_s += self.reading_s
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def slow_programs(bpf, lost, clock):
    preloaded = PreloadedPrograms(bpf, load(None, {}, {}), lost, clock=clock)
    yield preloaded
    preloaded.close()


def test_a_memory_that_takes_long_is_read_less_often_and_at_its_end(slow_programs, clock):
    """Nothing of it is lost."""
    shared = Shared()
    shared.put(launches(7))
    slow_programs.open(IMAGE, shared.address)
    clock.reading_s = 10.0
    assert count(slow_programs.read()) == 7
    clock.reading_s = 0.0
    shared.put(launches(11))

    assert count(slow_programs.read()) == 7
    assert count(slow_programs.read([IMAGE])) == 11
    assert not slow_programs.lost


def test_it_is_read_again_once_its_share_is_back(slow_programs, clock):
    shared = Shared()
    shared.put(launches(7))
    slow_programs.open(IMAGE, shared.address)
    clock.reading_s = 1.0
    slow_programs.read()
    clock.reading_s = 0.0
    shared.put(launches(11))
    clock.now_s += 1000

    assert count(slow_programs.read()) == 11


def test_at_the_end_large_memories_of_a_user_without_a_share_are_lost_and_small_ones_are_not(
    slow_programs, clock, monkeypatch
):
    shared, other = Shared(), (IMAGE[0], BEGUN_KTIME_NS + 1)
    shared.put(launches(7))
    for image in (IMAGE, other):
        assert slow_programs.open(image, shared.address)
    clock.reading_s = 10.0
    slow_programs.read([IMAGE])
    clock.reading_s = 0.0
    assert len(slow_programs.read([other])) == 1
    shared.put(launches(11), common_begun=wire.PRELOAD_COMMON_SERIES)

    slow_programs.is_ending = True
    assert {
        wire.AGGREGATE.named(value)["buckets_40"] for value in slow_programs.read().values()
    } == {7}

    assert slow_programs.lost == {"preload_unread": 2}
    assert [(one["pid"], one["uid"]) for one in slow_programs.unread.named] == [
        (IMAGE[0], os.getuid())
    ]
    assert "share of reading" in slow_programs.unread.named[0]["reason"]


def test_a_memory_most_of_which_is_nonsense_is_closed(preloaded, bpf):
    """What it had counted before stays, and probes are to count from then on."""
    shared = Shared()
    shared.put(launches(7))
    preloaded.open(IMAGE, shared.address)
    preloaded.read()
    files = open_files(os.getpid())
    shared.put(*(series(CALL | {"status": number}, sum=1 << 63) for number in range(64)))

    assert count(preloaded.read()) == 7
    assert preloaded.lost == {"preload_rejected": 1}
    # Its own descriptor and that of its periods.
    assert len(open_files(os.getpid())) == len(files) - 2
    assert not preloaded.examine(IMAGE)
    assert not preloaded.open(IMAGE, shared.address)
    assert preloaded.take_refused() == {IMAGE}
    assert preloaded.take_refused() == set()
    (said,) = bpf.map("preloaded").values()
    assert int.from_bytes(said, "little") == BEGUN_KTIME_NS | 1 << wire.PRELOAD_REFUSED_BIT

    assert count(preloaded.read([IMAGE])) == 7
    preloaded.close([IMAGE])
    assert preloaded.read() == {}


def test_some_nonsense_costs_no_more_than_itself(preloaded):
    shared = Shared()
    shared.put(launches(7), *(series(CALL | {"status": 1, "api": 255}) for _ in range(16)))
    preloaded.open(IMAGE, shared.address)

    assert count(preloaded.read()) == 7
    assert preloaded.keys() == {IMAGE}
    assert preloaded.lost == {"preload_rejected": 16}

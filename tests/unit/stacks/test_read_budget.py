"""Reading files of watched processes: a share for each process and user."""

import ctypes
import os
import platform

import pytest

from otel_gpu.procfs.mapped_files import FileId
from otel_gpu.procfs.process_root import ServedError
from otel_gpu.stacks.mappings import ElfFiles, Mappings
from otel_gpu.stacks.read_budget import FileWork, NotReadError
from otel_gpu.stacks.symbols import elf_file
from otel_gpu.stacks.symbols.native_names import Symbols
from otel_gpu.stacks.symbols.symbol_cache import SymbolCache
from otel_gpu.stacks.unwind.frame_steps import AARCH64, X86_64
from otel_gpu.stacks.unwind.rules import NO_CODE, Rules


class Clock:
    now_s = 100.0
    waited_ns = 0

    def __call__(self):
        return self.now_s

    def waited(self):
        return self.waited_ns


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def lost():
    return []


@pytest.fixture
def work(clock, lost):
    return FileWork(lambda *what: lost.append(what), clock, clock.waited)


OWN = os.getpid()


def read(work, clock, seconds=0.0, *, pid=OWN, path="/lib/one.so"):
    try:
        with work.reading(pid, path):
            clock.now_s += seconds
    except NotReadError:
        return False
    return True


def test_whoever_has_used_up_its_share_is_not_read_and_named_once_for_each_file(work, clock, lost):
    assert read(work, clock, 30.0)

    assert not any(read(work, clock) for _ in range(3))
    assert not read(work, clock, path="/lib/two.so")
    reason = "its share of our time, or that of its user, is used up"
    assert lost == [(OWN, os.getuid(), path, reason) for path in ("/lib/one.so", "/lib/two.so")]


def test_waits_for_a_cpu_are_not_charged(work, clock, lost):
    """On a busy machine a process has the same share of work."""
    for _ in range(9):
        with work.reading(OWN, "/lib/one.so"):
            clock.now_s += 30.0
            clock.waited_ns += 30_000_000_000
    assert read(work, clock, 30.0)

    assert not read(work, clock)
    assert len(lost) == 1


class Served:
    """A file that a user serves."""

    pid, path = OWN, "/mnt/served/libcudart.so.12"

    def open(self, _root):
        raise ServedError(65534)


def test_what_a_user_serves_is_not_opened_and_named_once(work, clock, lost):
    """Which costs nothing of its share."""
    for _ in range(3):
        with pytest.raises(ServedError):
            work.open(Served())

    reason = "user 65534 serves its file system (FUSE) and could keep the agent waiting"
    assert lost == [(OWN, os.getuid(), Served.path, reason)]
    assert read(work, clock)


class Slow:
    """A file whose mount takes long to find."""

    pid, path = OWN, "/lib/slow.so"

    def __init__(self, clock, number):
        self._clock = clock
        self.file = FileId(1, number)

    def open(self, _root):
        self._clock.now_s += 6.0
        raise FileNotFoundError


def test_opening_files_is_paid_for(work, clock):
    """Also where they are only held open, to be read when their process has ended."""
    images = ElfFiles(work=work)

    for number in range(9):
        images.hold(Slow(clock, number))
        assert images.get(Slow(clock, number)) is None

    assert clock.now_s == pytest.approx(Clock.now_s + 12.0)


def test_what_raises_is_paid_for_as_well(work, clock):
    def fail():
        clock.now_s += 30.0
        raise OSError("damaged")

    with pytest.raises(OSError, match="damaged"), work.reading(OWN, "/lib/one.so"):
        fail()

    assert not read(work, clock)


def test_bytes_are_paid_for_where_they_take_no_time(work, clock, monkeypatch):
    """As those of a file that is in memory, read again and again."""
    with work.reading(OWN, "/lib/one.so"):
        monkeypatch.setattr(elf_file, "_read_bytes", elf_file.read_bytes() + (5 << 30))

    assert not read(work, clock)
    clock.now_s += 60
    assert read(work, clock)


def test_all_of_pytorch_is_well_within_the_share_of_one_process(work, clock):
    """Its 40 libraries take 3 s together, and 10 s on a machine that is as busy as that."""
    assert all(read(work, clock, 0.19) for _ in range(40))


def test_once_the_capture_is_to_end_all_together_have_a_moment(work, clock, lost):
    """Also those that had read nothing yet."""
    work.end_soon()

    assert read(work, clock, 1.0)
    assert read(work, clock, 1.0)
    assert not read(work, clock, pid=1)
    assert [pid for pid, *_ in lost] == [1]


@pytest.fixture
def own_code():
    """The mapping of a function of the C library, and its virtual address in that file."""
    images = ElfFiles()
    own = Mappings(OWN, images)
    address = ctypes.cast(ctypes.CDLL(None).qsort, ctypes.c_void_p).value
    mapping = own.find(address)
    yield mapping, address - mapping.bias
    own.close()
    images.close()


def test_unwind_tables_are_read_for_those_who_have_a_share_of_the_same_file(work, clock, own_code):
    """What is refused to one is not remembered against others, nor for ever."""
    mapping, address = own_code
    rules = Rules(AARCH64 if platform.machine() == "aarch64" else X86_64, work)
    read(work, clock, 9.0)

    assert rules.of(mapping)[address].kind == NO_CODE
    assert rules.of(mapping).row(address) is None
    assert rules.of(mapping._replace(pid=1))[address].kind != NO_CODE
    assert rules.of(mapping)[address].kind != NO_CODE


def test_names_are_read_for_those_who_have_a_share_of_the_same_file(work, clock, own_code):
    mapping, address = own_code
    symbols = Symbols(SymbolCache(None), work=work)
    read(work, clock, 9.0)

    assert symbols.name(mapping, address + mapping.bias) is None
    assert symbols.name(mapping._replace(pid=1), address + mapping.bias) is not None
    symbols.close()


def test_mappings_are_listed_for_nothing_unless_that_takes_long(work, clock, lost):
    def list_mappings(seconds):
        with work.listing(OWN):
            clock.now_s += seconds

    for _ in range(10_000):
        list_mappings(0.03)
    list_mappings(9.0)

    with pytest.raises(NotReadError):
        list_mappings(0.03)
    reason = "its share of our time, or that of its user, is used up"
    assert lost == [(OWN, os.getuid(), "the list of what it maps", reason)]

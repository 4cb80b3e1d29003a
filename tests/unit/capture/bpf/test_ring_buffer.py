"""The ring buffer's reader, on a file that is laid out as the kernel lays out the map."""

import mmap
import os
import struct
from pathlib import Path

import pytest

from otel_gpu.capture.bpf import ring_buffer as ring_module
from otel_gpu.capture.bpf.ring_buffer import RingBuffer

PAGE = mmap.PAGESIZE
SIZE = PAGE
BUSY = 1 << 31
DISCARDED = 1 << 30


class Kernel:
    """Writes records as the kernel does; what wraps round the end goes on at the beginning."""

    def __init__(self, size_bytes: int = SIZE) -> None:
        self.fd = os.memfd_create("ring")
        self.size_bytes = size_bytes
        os.truncate(self.fd, 2 * PAGE + size_bytes)
        self.position = 0

    def write(self, payload: bytes, flags: int = 0) -> int:
        """Append a record, and return where its header is."""
        at = self.position
        record = struct.pack("<II", len(payload) | flags, 0) + payload
        for index, byte in enumerate(record):
            os.pwrite(self.fd, bytes([byte]), 2 * PAGE + (at + index) % self.size_bytes)
        self.position += (len(record) + 7) & ~7
        os.pwrite(self.fd, struct.pack("<Q", self.position), PAGE)
        return at

    def finish(self, at: int, length: int) -> None:
        """Clear the busy bit of a record."""
        os.pwrite(self.fd, struct.pack("<I", length), 2 * PAGE + at % self.size_bytes)

    @property
    def consumed(self) -> int:
        """How far the reader has given room back."""
        return int(struct.unpack("<Q", os.pread(self.fd, 8, 0))[0])


def mapped_of(name):
    """Where a file is mapped into this process."""
    lines = Path("/proc/self/maps").read_text(encoding="ascii").splitlines()
    places = [line.split()[0].split("-") for line in lines if name in line]
    return [(int(begin, 16), int(end, 16)) for begin, end in places]


@pytest.fixture
def kernel():
    kernel = Kernel()
    yield kernel
    os.close(kernel.fd)


@pytest.fixture
def ring(kernel):
    ring = RingBuffer(kernel.fd, SIZE)
    yield ring
    ring.close()


def test_records_come_in_order_and_give_their_room_back(kernel, ring):
    """What was read is not read again, and the kernel may write over it."""
    kernel.write(b"first")
    kernel.write(b"second record")

    assert list(ring.read()) == [b"first", b"second record"]
    assert kernel.consumed == kernel.position
    assert list(ring.read()) == []


def test_a_busy_record_holds_back_what_comes_after_it(kernel, ring):
    """Order is kept: a later record waits for an earlier one that is still being written."""
    kernel.write(b"done")
    at = kernel.write(b"busy", BUSY)
    kernel.write(b"later")

    assert list(ring.read()) == [b"done"]
    kernel.finish(at, len(b"busy"))
    assert list(ring.read()) == [b"busy", b"later"]


def test_a_discarded_record_is_skipped(kernel, ring):
    """The kernel side reserved it and changed its mind."""
    kernel.write(b"kept")
    kernel.write(b"discarded", DISCARDED)
    kernel.write(b"kept too")

    assert list(ring.read()) == [b"kept", b"kept too"]


def test_reading_stops_at_a_position(kernel, ring):
    """Records that were written after the position was noted stay for the next read."""
    kernel.write(b"before")
    position = ring.position()
    kernel.write(b"after")

    assert list(ring.read(position)) == [b"before"]
    assert list(ring.read()) == [b"after"]


def test_records_wrap_round_the_end(kernel, ring):
    """A record across the end of the data is as whole as any other."""
    payload = bytes(range(256)) * 3
    for _ in range(17):
        kernel.write(payload)
        assert list(ring.read()) == [payload]
    assert kernel.position > 3 * SIZE


def test_records_are_joined_over_the_parts_that_are_mapped(monkeypatch):
    """A record can be longer than the part of the data that is in memory, and wrap round the end."""
    monkeypatch.setattr(ring_module, "_WINDOW_BYTES", PAGE)
    size_bytes = 4 * PAGE
    kernel = Kernel(size_bytes)
    ring = RingBuffer(kernel.fd, size_bytes)
    payloads = [bytes([number]) * length for number, length in enumerate((7, 2 * PAGE + 13, 997))]
    for number in range(19):
        at = kernel.write(payloads[number % 3], BUSY)
        assert list(ring.read()) == []
        kernel.finish(at, len(payloads[number % 3]))
        assert list(ring.read()) == [payloads[number % 3]]
    sizes_bytes = [end - begin for begin, end in mapped_of("memfd:ring")]
    ring.close()
    os.close(kernel.fd)

    assert kernel.position > 3 * size_bytes
    assert sum(sizes_bytes) == 3 * PAGE


def test_room_is_given_back_while_records_are_taken(monkeypatch, ring, kernel):
    """What was taken by whoever stopped half-way is not there again."""
    monkeypatch.setattr(ring_module, "_FREED_AT_ONCE_BYTES", 8)
    for payload in (b"first", b"second", b"third"):
        kernel.write(payload)

    reading = ring.read()
    taken = [next(reading), next(reading)]
    free_again = kernel.consumed
    reading.close()

    assert taken == [b"first", b"second"]
    assert free_again == 16  # of the first; of the second when the next is asked for
    assert list(ring.read()) == [b"third"]

"""Reading a BPF ring buffer through its memory, many records at a time."""

# Some facts about the BPF ring buffer
# ------------------------------------
#
# User space maps two position pages and the data. The consumer page is ours to write,
# the producer page the kernel's. All pages of a mapping count as our memory from the start,
# touched or not. So we map a part of the data at a time, the next one when a record begins
# behind it, and join a record that lies in several. Positions only grow; modulo the size
# they are offsets. Each record has an 8-byte header: its length, with one bit for "not
# finished yet" (stop here, it will be) and one for "discarded" (skip it), and is padded to
# 8 bytes. A record may be read as soon as the producer position covers it and it is not
# busy, and its room is given back by moving the consumer position past it.
#
# What this means for us: libbpf's reader calls back once per record, which costs a
# ctypes transition each. Slicing the mapping costs a fifth of that, so we read it
# ourselves. The protocol needs an acquire load of the positions and of each header.
# x86 gives that to any load. Elsewhere, letting go of a lock and taking it again orders
# what is before with what is after.

import mmap
import platform
import threading
from collections.abc import Iterator

_BUSY = 1 << 31
_DISCARDED = 1 << 30
_HEADER_BYTES = 8
_PAGE_BYTES = mmap.PAGESIZE
# Room is given back in pieces of this size: each time costs the kernel a cache miss.
_PIECE_BYTES = 1 << 16
# To map a part costs a few microseconds, and there are some hundred records in it.
_MAPPED_BYTES = 1 << 18


class RingBuffer:
    """
    The reading end of one ring buffer map.

    Args:
        fd: Of the map; stays the caller's.
        size_bytes: Of its data, a power of two.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        self.fd = fd
        self._mask = size_bytes - 1
        self._consumer_map = mmap.mmap(
            fd, _PAGE_BYTES, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE
        )
        self._producer_map = mmap.mmap(
            fd, _PAGE_BYTES, mmap.MAP_SHARED, mmap.PROT_READ, offset=_PAGE_BYTES
        )
        self._consumer = memoryview(self._consumer_map).cast("Q")
        self._producer = memoryview(self._producer_map).cast("Q")
        self._mapped_bytes = min(_MAPPED_BYTES, size_bytes)
        self._begin = 0
        self._data = self._map()
        self._lengths = memoryview(self._data).cast("I")
        self._ordered = platform.machine() in ("x86_64", "AMD64")
        self._lock = threading.Lock()
        self._lock.acquire()

    def close(self) -> None:
        """Unmap it."""
        for view in (self._consumer, self._producer, self._lengths):
            view.release()
        for mapping in (self._consumer_map, self._producer_map, self._data):
            mapping.close()

    def position(self) -> int:
        """Return how far the kernel has written."""
        position = self._producer[0]
        self._order()
        return position

    @property
    def fill(self) -> float:
        """How much of it waits to be read, from 0 to 1."""
        return (self.position() - self._consumer[0]) / (self._mask + 1)

    def read(self, until: int | None = None) -> Iterator[bytes]:
        """
        Take the finished records that are there, oldest first.

        Their room is given back while they are taken, so that a full ring is never in memory
        twice.

        Args:
            until: A position; records written after it stay for later.
        """
        end = self.position() if until is None else until
        position = given_back = self._consumer[0]
        mask, mapped_bytes = self._mask, self._mapped_bytes
        data, lengths, begin = self._data, self._lengths, self._begin
        try:
            while position < end:
                offset = (position & mask) - begin
                if not 0 <= offset < mapped_bytes:
                    self._move(position)
                    data, lengths, begin = self._data, self._lengths, self._begin
                    offset = (position & mask) - begin
                length = lengths[offset >> 2]
                if length & _BUSY:
                    break
                if not self._ordered:
                    self._order()
                size_bytes = length & ~_DISCARDED
                first = position + _HEADER_BYTES
                position += (size_bytes + _HEADER_BYTES + 7) & ~7
                if not length & _DISCARDED:
                    start = offset + _HEADER_BYTES
                    record = data[start : start + size_bytes]
                    while len(record) < size_bytes:
                        self._move(first + len(record))
                        data, lengths, begin = self._data, self._lengths, self._begin
                        record += data[: size_bytes - len(record)]
                    yield record
                if position - given_back > _PIECE_BYTES:
                    self._consumer[0] = given_back = position
        finally:
            self._consumer[0] = position

    def _map(self) -> mmap.mmap:
        offset = 2 * _PAGE_BYTES + self._begin
        return mmap.mmap(
            self.fd, self._mapped_bytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=offset
        )

    def _move(self, position: int) -> None:
        """Map the part that a position is in."""
        self._begin = (position & self._mask) & ~(self._mapped_bytes - 1)
        before, self._data = self._data, self._map()
        self._lengths.release()
        self._lengths = memoryview(self._data).cast("I")
        before.close()

    def _order(self) -> None:
        if not self._ordered:
            self._lock.release()
            self._lock.acquire()

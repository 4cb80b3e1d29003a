"""Reads a BPF ring buffer through its memory, many records at a time."""

# The BPF ring buffer
# -------------------
#
# User space maps two pages of positions and the data. We write the consumer's page, the kernel
# writes the producer's. Positions only grow; modulo the size they are offsets into the data.
# Each record has an 8-byte header: its length, a bit for "busy" (stop here and retry later) and a
# bit for "discarded" (skip it). Records are padded to 8 bytes. A record can be read once the
# producer's position is past it and it is not busy. Moving the consumer's position past it frees
# its space.
#
# All pages of a mapping count as our memory, touched or not. So we map one window of the data at a
# time, move it when a record begins behind it, and join records that cross its end.
#
# libbpf's reader makes one callback per record, each with a ctypes transition. Slicing the mapping
# costs a fifth of that, so we read it ourselves. The protocol needs acquire loads of the positions
# and of each header. On x86 every load is one. Elsewhere, releasing and acquiring a lock orders
# the loads.

import mmap
import platform
import threading
from collections.abc import Iterator

_BUSY = 1 << 31
_DISCARDED = 1 << 30
_HEADER_BYTES = 8
_PAGE_BYTES = mmap.PAGESIZE
# Space is freed in steps of this size: each step costs the kernel a cache miss.
_FREED_AT_ONCE_BYTES = 1 << 16
# Mapping a window takes a few microseconds. It holds some hundred records.
_WINDOW_BYTES = 1 << 18


class RingBuffer:
    """
    The reader of one ring buffer map.

    Args:
        fd: Of the map; the caller closes it.
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
        self._mapped_bytes = min(_WINDOW_BYTES, size_bytes)
        self._begin = 0
        self._data = self._map()
        self._lengths = memoryview(self._data).cast("I")
        self._ordered = platform.machine() in ("x86_64", "AMD64")
        self._lock = threading.Lock()
        self._lock.acquire()

    def close(self) -> None:
        """Unmap the ring."""
        for view in (self._consumer, self._producer, self._lengths):
            view.release()
        for mapping in (self._consumer_map, self._producer_map, self._data):
            mapping.close()

    def position(self) -> int:
        """Return the producer's position: how many bytes the kernel has ever written."""
        position = self._producer[0]
        self._order()
        return position

    @property
    def fill(self) -> float:
        """The share of the ring that waits to be read, from 0 to 1."""
        return (self.position() - self._consumer[0]) / (self._mask + 1)

    def read(self, until: int | None = None) -> Iterator[bytes]:
        """
        Yield and free the finished records, oldest first.

        Space is freed as records are consumed, so a full ring is never in memory twice.

        Args:
            until: A position; records behind it stay.
        """
        end = self.position() if until is None else until
        position = freed = self._consumer[0]
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
                if position - freed > _FREED_AT_ONCE_BYTES:
                    self._consumer[0] = freed = position
        finally:
            self._consumer[0] = position

    def _map(self) -> mmap.mmap:
        offset = 2 * _PAGE_BYTES + self._begin
        return mmap.mmap(
            self.fd, self._mapped_bytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=offset
        )

    def _move(self, position: int) -> None:
        # Map the window that contains a position.
        self._begin = (position & self._mask) & ~(self._mapped_bytes - 1)
        before, self._data = self._data, self._map()
        self._lengths.release()
        self._lengths = memoryview(self._data).cast("I")
        before.close()

    def _order(self) -> None:
        if not self._ordered:
            self._lock.release()
            self._lock.acquire()

"""A map of the loaded BPF programs: its entries, one by one or in batches."""

import ctypes
import errno
from collections.abc import Iterator
from dataclasses import dataclass

from otel_gpu.capture.bpf.libbpf import BatchOptions, Libbpf
from otel_gpu.errors import MapFullError

_FULL = (-errno.E2BIG, -errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class BpfMap:
    """
    A map in the kernel; keys and values are bytes.

    The map does not close the file descriptor. The kernel can hold fewer than ``max_entries``.
    """

    libbpf: Libbpf
    name: str
    fd: int
    key_bytes: int
    value_bytes: int
    max_entries: int

    def lookup(self, key: bytes, value_bytes: int | None = None) -> bytes | None:
        """Return the value under ``key``; for per-CPU maps, pass the size of all CPUs' values."""
        value = ctypes.create_string_buffer(value_bytes or self.value_bytes)
        if self.libbpf.raw.bpf_map_lookup_elem(self.fd, key, value) < 0:
            return None
        return value.raw

    def update(self, key: bytes, value: bytes, *, only_new: bool = False) -> bool:
        """
        Set the value under ``key``; with ``only_new``, return False if the key exists.

        Raises:
            MapFullError: The map holds no further key.
        """
        result = self.libbpf.raw.bpf_map_update_elem(self.fd, key, value, int(only_new))
        if result == -errno.EEXIST:
            return False
        if result in _FULL:
            raise MapFullError(f"map {self.name} is full")
        if result < 0:
            raise self.libbpf.error(f"cannot update map {self.name}", -result)
        return True

    def delete(self, key: bytes) -> None:
        """Remove the entry under ``key``, if there is one."""
        self.libbpf.raw.bpf_map_delete_elem(self.fd, key)

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the whole map as (key, value)."""
        key_bytes, value_bytes = self.key_bytes, self.value_bytes
        for count, keys, values in self.read_batches():
            for index in range(count):
                yield (
                    keys[index * key_bytes : (index + 1) * key_bytes],
                    values[index * value_bytes : (index + 1) * value_bytes],
                )

    def read_batches(self, batch_bytes: int = 65_536) -> Iterator[tuple[int, bytes, bytes]]:
        """
        Read the whole map through a buffer of ``batch_bytes``.

        Yields:
            (entries, keys, values), both packed; an entry that moves during the read can come twice.
        """
        batch_entries = max(1, batch_bytes // (self.key_bytes + self.value_bytes))
        options = BatchOptions(ctypes.sizeof(BatchOptions), 0, 0)
        # The kernel's cursor is a bucket number, in a buffer that must hold a key.
        cursor = ctypes.create_string_buffer(max(self.key_bytes, 8))
        following = ctypes.create_string_buffer(max(self.key_bytes, 8))
        start: ctypes.Array[ctypes.c_char] | None = None
        while True:
            count = ctypes.c_uint32(batch_entries)
            keys = ctypes.create_string_buffer(batch_entries * self.key_bytes)
            values = ctypes.create_string_buffer(batch_entries * self.value_bytes)
            result = self.libbpf.raw.bpf_map_lookup_batch(
                self.fd, start, following, keys, values, ctypes.byref(count), ctypes.byref(options)
            )
            if result == -errno.ENOSPC and batch_entries < self.max_entries:
                batch_entries = min(2 * batch_entries, self.max_entries)  # one bucket was larger
                continue
            if result < 0 and result != -errno.ENOENT:
                raise self.libbpf.error(f"map {self.name} is not read", -result)
            if count.value:
                yield (
                    count.value,
                    ctypes.string_at(keys, count.value * self.key_bytes),
                    ctypes.string_at(values, count.value * self.value_bytes),
                )
            if result == -errno.ENOENT:
                return
            cursor.raw = following.raw
            start = cursor

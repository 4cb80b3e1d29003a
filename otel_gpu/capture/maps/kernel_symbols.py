"""Names of kernel functions, by address."""

import contextlib
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

from otel_gpu.limits.caches import CACHES

KALLSYMS = Path("/proc/kallsyms")
_SCHEDULER_LIMITS = (b"__sched_text_start", b"__sched_text_end")
_LONGEST_FUNCTION_BYTES = 1 << 20
# Names are kept as strings of this many names. One string per name would take 10 MB, and few are needed.
# Compressed they take a third. That takes as long as reading them, so it is done later.
_NAMES_AT_ONCE = 256
_BLOCK_BYTES = 1 << 19
_COMPRESSED_AT_ONCE = 64
# ffffffff81000100 t schedule
_DIGITS, _KIND, _NAME = 16, slice(17, 18), 19
_LARGEST_OFFSET = (1 << 32) - 1
_KINDS = frozenset({b"t", b"T", b"w", b"W"})


class KernelSymbols:
    """
    The kernel's symbol table, read on first use.

    Where addresses are hidden (``kernel.kptr_restrict`` without CAP_SYSLOG), a function's name is its
    address.
    """

    def __init__(self, kallsyms: Path = KALLSYMS) -> None:
        self._path = kallsyms
        # Ascending, from a base: 4 bytes each where the kernel and its modules are within 4 GiB.
        self._addresses: array[int] | None = None
        self._base = 0
        # Names in file order. The table is nearly in ascending order, so runs of it show where each is:
        # where they begin among the addresses, and in the file.
        self._names: list[bytes] = []
        self._begins, self._positions = array("I"), array("I")
        # How many of the strings are compressed.
        self._compressed = 0
        self._scheduler = (0, 0)
        # By the end index in the table of addresses.
        self._known: dict[int, str] = {}
        CACHES.register("kernel_symbols", self, "_names", size_bytes="_size_bytes")

    @property
    def _size_bytes(self) -> int:
        columns = (self._addresses or array("Q"), self._begins, self._positions)
        return sum(len(one) * one.itemsize for one in columns) + sum(map(len, self._names))

    def name(self, address: int) -> str:
        """Return the name of the function that contains an address; in hex if there is none."""
        addresses = self._table()
        offset = address - self._base
        end = bisect_right(addresses, offset)
        if not end or offset - addresses[end - 1] > _LONGEST_FUNCTION_BYTES:
            return hex(address)
        name = self._known.get(end)
        if name is None:
            # A function with several names always gets the same one.
            begin = bisect_left(addresses, addresses[end - 1], 0, end)
            found = max(map(self._name, range(begin, end)))
            name = self._known[end] = found.decode("utf-8", "replace")
        return name

    def is_scheduler(self, address: int) -> bool:
        """Whether an address is in the scheduler's functions, which the kernel omits from wait channels."""
        self._table()
        return self._scheduler[0] <= address < self._scheduler[1]

    def _table(self) -> "array[int]":
        # Where addresses are hidden it stays empty, and is not read again.
        return self.read() if self._addresses is None else self._addresses

    def _name(self, index: int) -> bytes:
        run = bisect_right(self._begins, index) - 1
        line = self._positions[run] + index - self._begins[run]
        number, position = divmod(line, _NAMES_AT_ONCE)
        names = self._names[number]
        if number < self._compressed:
            names = zlib.decompress(names)
        # The module's name follows the function's.
        return names.split(b"\n")[position].partition(b"\t")[0]

    def compress(self) -> None:
        """Compress some more of the names."""
        end = min(self._compressed + _COMPRESSED_AT_ONCE, len(self._names))
        for number in range(self._compressed, end):
            self._names[number] = zlib.compress(self._names[number], level=1)
        self._compressed = end

    def read(self) -> "array[int]":
        """Read the table, and return the addresses in ascending order, from the lowest."""
        addresses, waiting = array("Q"), list[bytes]()
        limits = [-1, -1]  # in the order of the table
        for block in self._blocks():
            # A hundred thousand lines: use only operations that run in C.
            lines = [line for line in block.split(b"\n") if line[_KIND] in _KINDS]
            names = [line[_NAME:] for line in lines]
            digits = b"".join([line[:_DIGITS] for line in lines])
            start = len(addresses)
            addresses.frombytes(bytes.fromhex(digits.decode("ascii")))
            for number, limit in enumerate(_SCHEDULER_LIMITS):
                with contextlib.suppress(ValueError):
                    limits[number] = start + names.index(limit)
            waiting += names
            whole = len(waiting) - len(waiting) % _NAMES_AT_ONCE
            self._keep(waiting[:whole])
            del waiting[:whole]
        self._keep(waiting)
        addresses.byteswap()
        order = sorted(range(len(addresses)), key=addresses.__getitem__)
        ascending = array("Q", map(addresses.__getitem__, order))
        # A hidden address is 0.
        hidden = bisect_right(ascending, 0)
        self._keep_order(order[hidden:])
        if min(limits) >= 0:
            self._scheduler = (addresses[limits[0]], addresses[limits[1]])
        self._base = ascending[hidden] if hidden < len(ascending) else 0
        is_small = ascending and ascending[-1] - self._base <= _LARGEST_OFFSET
        offsets = (address - self._base for address in ascending[hidden:])
        self._addresses = array("I" if is_small else "Q", offsets)
        return self._addresses

    def _keep_order(self, order: Sequence[int]) -> None:
        self._begins, self._positions = array("I"), array("I")
        following = -1
        for begin, position in enumerate(order):
            if position != following:
                self._begins.append(begin)
                self._positions.append(position)
            following = position + 1

    def _blocks(self) -> Iterator[bytes]:
        # Whole lines, in blocks: all at once would take twice the memory.
        rest = b""
        try:
            with self._path.open("rb") as file:
                while block := file.read(_BLOCK_BYTES):
                    lines, _, rest = (rest + block).rpartition(b"\n")
                    yield lines
        except OSError:
            pass
        yield rest

    def _keep(self, names: Sequence[bytes]) -> None:
        for begin in range(0, len(names), _NAMES_AT_ONCE):
            self._names.append(b"\n".join(names[begin : begin + _NAMES_AT_ONCE]))

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
# So many names are kept as one string: each for itself all would be 10 MB, and few are ever asked for.
# Compressed they take a third, which is left for later: it takes as long as to read them.
_NAMES_AT_ONCE = 256
_BLOCK_BYTES = 1 << 19
_PIECES_AT_A_TIME = 64
# ffffffff81000100 t schedule
_DIGITS, _KIND, _NAME = 16, slice(17, 18), 19
_KINDS = frozenset({b"t", b"T", b"w", b"W"})


class KernelSymbols:
    """
    The kernel's symbol table, read when it is first asked.

    Where addresses are hidden (``kernel.kptr_restrict`` without CAP_SYSLOG) nothing
    is known, and every function is called by its address.
    """

    def __init__(self, kallsyms: Path = KALLSYMS) -> None:
        self._path = kallsyms
        self._addresses: array[int] | None = None
        # In the order of the table, and where in it the names of the addresses are.
        self._names: list[bytes] = []
        self._order = array("I")
        # So many of the names are compressed.
        self._compressed = 0
        self._scheduler = (0, 0)
        # By the position behind it in the table.
        self._known: dict[int, str] = {}
        CACHES.register("kernel_symbols", self, "_order", size_bytes="_size_bytes")

    @property
    def _size_bytes(self) -> int:
        columns = (self._addresses or array("Q"), self._order)
        return sum(len(one) * one.itemsize for one in columns) + sum(map(len, self._names))

    def name(self, address: int) -> str:
        """Return the function that an address lies in, without an offset."""
        addresses = self._table()
        end = bisect_right(addresses, address)
        if not end or address - addresses[end - 1] > _LONGEST_FUNCTION_BYTES:
            return hex(address)
        name = self._known.get(end)
        if name is None:
            # Of several names of one function always the same.
            begin = bisect_left(addresses, addresses[end - 1], 0, end)
            found = max(map(self._name, range(begin, end)))
            name = self._known[end] = found.decode("utf-8", "replace")
        return name

    def is_scheduler(self, address: int) -> bool:
        """Whether the kernel leaves a function out of wait channels, as the scheduler's are."""
        self._table()
        return self._scheduler[0] <= address < self._scheduler[1]

    def _table(self) -> "array[int]":
        # Where addresses are hidden it stays empty, and is not read again for that.
        return self.read() if self._addresses is None else self._addresses

    def _name(self, index: int) -> bytes:
        number, position = divmod(self._order[index], _NAMES_AT_ONCE)
        piece = self._names[number]
        if number < self._compressed:
            piece = zlib.decompress(piece)
        # A module's name is behind that of the function.
        return piece.split(b"\n")[position].partition(b"\t")[0]

    def compress(self) -> None:
        """Let some of the names take less memory; of all once it was called often enough."""
        end = min(self._compressed + _PIECES_AT_A_TIME, len(self._names))
        for number in range(self._compressed, end):
            self._names[number] = zlib.compress(self._names[number], level=1)
        self._compressed = end

    def read(self) -> "array[int]":
        """Read the table; the addresses, ascending."""
        addresses, waiting = array("Q"), list[bytes]()
        limits = [-1, -1]  # in the order of the table
        for block in self._blocks():
            # There are a hundred thousand: nothing but what is done in C.
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
        self._order, self._addresses = array("I", order[hidden:]), ascending[hidden:]
        if min(limits) >= 0:
            self._scheduler = (addresses[limits[0]], addresses[limits[1]])
        return self._addresses

    def _blocks(self) -> Iterator[bytes]:
        # Whole lines, but not all at once: that would be twice the memory.
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

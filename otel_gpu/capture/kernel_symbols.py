"""Names of kernel functions, by address."""

import re
import zlib
from array import array
from bisect import bisect_left, bisect_right
from pathlib import Path

KALLSYMS = Path("/proc/kallsyms")
_SCHEDULER_LIMITS = (b"__sched_text_start", b"__sched_text_end")
_MAX_OFFSET = 1 << 20
# So many names are compressed together: as strings all would be 10 MB, and few are ever asked for.
_NAMES_AT_ONCE = 256
_FUNCTION = re.compile(rb"^([0-9a-f]{1,16}) [tTwW] (\S+)", re.MULTILINE)


class KernelSymbols:
    """
    The kernel's symbol table, read when it is first asked.

    Where addresses are hidden (``kernel.kptr_restrict`` without CAP_SYSLOG) nothing
    is known, and every function is called by its address.
    """

    def __init__(self, kallsyms: Path = KALLSYMS) -> None:
        self._path = kallsyms
        self._addresses: array[int] | None = None
        self._names: list[bytes] = []
        self._scheduler = (0, 0)
        self._known: dict[int, str] = {}

    def name(self, address: int) -> str:
        """Return the function that an address lies in, without an offset."""
        name = self._known.get(address)
        if name is None:
            name = self._known[address] = self._look_up(address)
        return name

    def is_scheduler(self, address: int) -> bool:
        """Whether the kernel leaves a function out of wait channels, as the scheduler's are."""
        self._table()
        return self._scheduler[0] <= address < self._scheduler[1]

    def _look_up(self, address: int) -> str:
        addresses = self._table()
        end = bisect_right(addresses, address)
        if not end or address - addresses[end - 1] > _MAX_OFFSET:
            return hex(address)
        # Of several names of one function always the same.
        begin = bisect_left(addresses, addresses[end - 1], 0, end)
        name = max(map(self._name, range(begin, end)))
        return name.decode("utf-8", "replace")

    def _table(self) -> "array[int]":
        # Where addresses are hidden it stays empty, and is not read again for that.
        return self.read() if self._addresses is None else self._addresses

    def _name(self, index: int) -> bytes:
        piece, position = divmod(index, _NAMES_AT_ONCE)
        return zlib.decompress(self._names[piece]).split(b"\n")[position]

    def read(self) -> "array[int]":
        """Read the table; the addresses, ascending."""
        try:
            text = self._path.read_bytes()
        except OSError:
            text = b""
        addresses, starts, names = array("Q"), array("I"), bytearray()
        limits = dict.fromkeys(_SCHEDULER_LIMITS, 0)
        for found in _FUNCTION.finditer(text):
            name, address = found[2], int(found[1], 16)
            if address:
                addresses.append(address)
                starts.append(len(names))
                names += name + b"\n"
                if name in limits:
                    limits[name] = address
        del text
        order = array("I", sorted(range(len(addresses)), key=addresses.__getitem__))
        self._addresses = array("Q", map(addresses.__getitem__, order))
        for begin in range(0, len(order), _NAMES_AT_ONCE):
            piece = map(starts.__getitem__, order[begin : begin + _NAMES_AT_ONCE])
            found_names = (names[start : names.index(b"\n", start)] for start in piece)
            self._names.append(zlib.compress(b"\n".join(found_names), 1))
        self._scheduler = (limits[_SCHEDULER_LIMITS[0]], limits[_SCHEDULER_LIMITS[1]])
        return self._addresses

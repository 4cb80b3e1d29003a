"""Names of kernel functions, by address."""

import re
from array import array
from bisect import bisect_right
from pathlib import Path

KALLSYMS = Path("/proc/kallsyms")
_SCHEDULER_LIMITS = ("__sched_text_start", "__sched_text_end")
_MAX_OFFSET = 1 << 20
_FUNCTION = re.compile(r"^([0-9a-f]{1,16}) [tTwW] (\S+)", re.MULTILINE)


class KernelSymbols:
    """
    The kernel's symbol table, read when it is first asked.

    Where addresses are hidden (``kernel.kptr_restrict`` without CAP_SYSLOG) nothing
    is known, and every function is called by its address.
    """

    def __init__(self, kallsyms: Path = KALLSYMS) -> None:
        self._path = kallsyms
        self._addresses: array[int] | None = None
        self._names: list[str] = []
        self._scheduler = (0, 0)
        self._known: dict[int, str] = {}

    def name(self, address: int) -> str:
        """Return the function that an address lies in, without an offset."""
        name = self._known.get(address)
        if name is None:
            name = self._known[address] = self._look_up(address)
        return name

    def is_scheduler(self, address: int) -> bool:
        """
        Whether an address is in a function that the kernel itself leaves out of wait channels.

        These are the scheduler's, and what waits by calling it.
        """
        if self._addresses is None:
            self.read()
        return self._scheduler[0] <= address < self._scheduler[1]

    def _look_up(self, address: int) -> str:
        addresses = self._addresses or self.read()
        index = bisect_right(addresses, address) - 1
        if index < 0 or address - addresses[index] > _MAX_OFFSET:
            return hex(address)
        return self._names[index]

    def read(self) -> "array[int]":
        """Read the table; the addresses, ascending."""
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            text = ""
        found = ((int(address, 16), name) for address, name in _FUNCTION.findall(text))
        functions = sorted(function for function in found if function[0])
        self._addresses = array("Q", (address for address, _ in functions))
        self._names = [name for _, name in functions]
        limits = dict.fromkeys(_SCHEDULER_LIMITS, 0)
        limits |= {name: address for address, name in functions if name in limits}
        self._scheduler = (limits[_SCHEDULER_LIMITS[0]], limits[_SCHEDULER_LIMITS[1]])
        return self._addresses

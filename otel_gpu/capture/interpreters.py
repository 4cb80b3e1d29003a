"""
Where Python interpreters keep their runtime state.

CPython's ``_PyRuntime`` holds the GIL (3.10 and 3.11) and the main interpreter with its
GIL (3.12 and later). A thread that waits on a futex inside it waits for the GIL, which
the kernel side can then tell from any other lock by the futex's address alone.
"""

import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from otel_gpu.capture.libraries import ElfSymbols
from otel_gpu.capture.programs import Programs
from otel_gpu.capture.targets import FileId, MappedFile

_HOLDS_INTERPRETER = re.compile(r"^(libpython3[^/]*\.so[^/]*|python3?(\.\d+)?t?)$")
_SYMBOL = "_PyRuntime"


class _Place(NamedTuple):
    """Of the symbol: its distance from where the code segment is mapped, and its size."""

    distance: int
    size_bytes: int


class Interpreters:
    """
    Tells the kernel side about the interpreters of watched processes.

    Args:
        programs: The loaded programs.
    """

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._places: dict[FileId, _Place | None] = {}
        self._ranges: dict[int, tuple[int, int]] = {}

    def examine(self, pid: int, image_ktime_ns: int, files: Iterable[MappedFile]) -> None:
        """Look for an interpreter in what a process maps now."""
        for mapped in files:
            if not _HOLDS_INTERPRETER.match(mapped.name):
                continue
            if mapped.file not in self._places:
                self._places[mapped.file] = _find(mapped)
            place = self._places[mapped.file]
            if place is not None:
                start = mapped.start + place.distance
                self._tell(pid, image_ktime_ns, (start, start + place.size_bytes))
                return

    def inherit(self, parent_pid: int, child_pid: int, image_ktime_ns: int) -> None:
        """A forked child has its parent's addresses."""
        if parent_pid in self._ranges:
            self._tell(child_pid, image_ktime_ns, self._ranges[parent_pid])

    def forget(self, pid: int) -> None:
        """A process ended, or became another program."""
        if self._ranges.pop(pid, None) is not None:
            self._programs.forget_interpreter(pid)

    def _tell(self, pid: int, image_ktime_ns: int, addresses: tuple[int, int]) -> None:
        self._ranges[pid] = addresses
        self._programs.set_interpreter(pid, image_ktime_ns, *addresses)


def _find(mapped: MappedFile) -> _Place | None:
    try:
        with os.fdopen(mapped.open(), "rb") as stream:
            symbols = ElfSymbols(stream)
    except (OSError, ValueError):
        return None
    code = symbols.address_at(mapped.file_offset)
    if _SYMBOL not in symbols.addresses or code is None:
        return None
    return _Place(symbols.addresses[_SYMBOL] - code, symbols.sizes[_SYMBOL])

"""The sites of probes in one library, chosen by ``probe_sites.py`` or ``arm64_sites.py``."""

import os
import platform
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import BinaryIO

from otel_gpu.capture.probes.arm64_sites import WORD_BYTES, choose_arm64_site
from otel_gpu.capture.probes.elf_exports import ElfSymbols
from otel_gpu.capture.probes.probe_sites import (
    ENTRY,
    MAX_FUNCTION_BYTES,
    SITE_BYTES,
    Site,
    SiteClass,
    choose_site,
    emulated,
)
from otel_gpu.wire.bodies import ProbeSite
from otel_gpu.wire.probe_symbols import Probe

# Values of EM_* of ELF, by the name of the machine.
_MACHINES = {"x86_64": 62, "aarch64": 183}
# Mapped files are untrusted input. This much takes a second to decode.
_MAX_DECODED_BYTES = 1 << 20


class LibrarySites:
    """
    Chooses the sites of one library.

    Args:
        symbols: Of the library.
        stream: The library, open for as long as this object is used.
        are_chosen: False: probes stay at the entries.
        steps_foreign: Probe functions of other vendors on arm64 even where the kernel single-steps,
            which has corrupted processes. On x86-64 they are always probed.
        machine: Of this host.

    Attributes:
        chosen: Sites by symbol, of all functions that were passed.
        unsafe: Symbols of functions that get no probe.
    """

    def __init__(
        self,
        symbols: ElfSymbols,
        stream: BinaryIO,
        *,
        are_chosen: bool = True,
        steps_foreign: bool = False,
        machine: str = platform.machine(),
    ) -> None:
        self._symbols = symbols
        self._stream = stream
        is_ours = symbols.machine == _MACHINES.get(machine)
        self._is_arm64 = is_ours and machine == "aarch64"
        self._are_chosen = are_chosen and is_ours
        self._steps_foreign = steps_foreign
        self._left_bytes = _MAX_DECODED_BYTES
        self.chosen: dict[str, Site] = {}
        self.unsafe: list[str] = []

    def choose(
        self, functions: Mapping[str, int], *, reads_stack: bool = True, are_own: bool = False
    ) -> dict[str, int]:
        """
        Return the file offsets of probes by symbol, without unsafe functions.

        Args:
            functions: File offsets of entries by symbol.
            reads_stack: Whether the BPF programs need the stack pointer of the entry.
            are_own: Whether the functions belong to otel_gpu's libraries.
        """
        if not (self._are_chosen or self._is_arm64):
            self.chosen.update(dict.fromkeys(functions, ENTRY))
            return dict(functions)
        code = {name: self._read(name, offset) for name, offset in functions.items()}
        sites = {name: self._site(code[name], reads_stack=reads_stack) for name in functions}
        for name, starts in self._later_starts(name for name in sites if sites[name].offset):
            sites[name] = self._site(code[name], starts, reads_stack=reads_stack)
        self.chosen.update(sites)
        places = {}
        for name, offset in functions.items():
            if are_own or self._is_safe(sites[name]):
                places[name] = offset + sites[name].offset
            elif name not in self.unsafe:
                self.unsafe.append(name)
        return places

    def move(self, probes: list[Probe]) -> list[Probe]:
        """Move probes to their sites, and leave out unsafe ones."""
        places = self.choose({probe.symbol: probe.file_offset for probe in probes})
        return [
            probe._replace(file_offset=places[probe.symbol])
            for probe in probes
            if probe.symbol in places
        ]

    def _site(self, code: bytes, later_starts: tuple[int, ...] = (), *, reads_stack: bool) -> Site:
        if self._is_arm64:
            return choose_arm64_site(
                code, later_starts, reads_stack=reads_stack, behind_entry=self._are_chosen
            )
        return choose_site(code, later_starts, reads_stack=reads_stack)

    def _is_safe(self, site: Site) -> bool:
        if not self._is_arm64 or site.kind == SiteClass.EMULATED:
            return True
        return self._steps_foreign and site.kind != SiteClass.REFUSED

    def _read(self, name: str, offset: int) -> bytes:
        size_bytes = self._symbols.sizes[name]
        if self._is_arm64 and not WORD_BYTES <= size_bytes <= MAX_FUNCTION_BYTES:
            # The instruction at the entry is needed in any case.
            size_bytes = WORD_BYTES
        if size_bytes > MAX_FUNCTION_BYTES:
            return b""
        code = os.pread(self._stream.fileno(), size_bytes, offset)
        self._left_bytes -= 0 if not self._is_arm64 and emulated(code) else len(code)
        return code if self._left_bytes >= 0 else b""

    def _later_starts(self, names: Iterable[str]) -> Iterable[tuple[str, tuple[int, ...]]]:
        # By symbol, the offsets of other symbols in the instructions that a site would skip.
        starts = {name: self._symbols.addresses[name] for name in names}
        skipped = {
            at for start in starts.values() for at in range(start + 1, start + SITE_BYTES + 1)
        }
        found = self._symbols.starts_among(self._stream, skipped) if skipped else ()
        for name, start in starts.items():
            if later := tuple(at - start for at in found if 0 < at - start <= SITE_BYTES):
                yield name, later


def describe_sites(sites: Mapping[str, Site]) -> list[ProbeSite]:
    """Return sites as in RECORD_PROBES: symbols grouped by equal sites."""
    alike = defaultdict(list)
    for symbol, site in sites.items():
        alike[site].append(symbol)
    return [
        {
            "offset": site.offset,
            "instruction": site.instruction,
            "class": str(site.kind),
            "symbols": sorted(symbols),
        }
        for site, symbols in sorted(alike.items())
    ]

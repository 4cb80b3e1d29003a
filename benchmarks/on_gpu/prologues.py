"""With what the functions of the libraries that are there begin, and what a probe costs them."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.on_gpu.intervals import interval_of
from benchmarks.on_gpu.setting import Setting
from benchmarks.programs import programs
from otel_gpu.capture.bpf.objects import BpfObject
from otel_gpu.capture.probes.elf_exports import ElfSymbols
from otel_gpu.capture.probes.library_sites import LibrarySites, describe_sites
from otel_gpu.capture.probes.probe_sites import Site
from otel_gpu.wire.probe_symbols import probes_of
from tests.kernel.sampling import Subject
from tests.stubs.build import workload

_REPORT = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"
# A driver that was not initialised refuses it, which costs least.
_MEASURED = (("libcuda.so", "cuStreamSynchronize", True), ("libc10.so", _REPORT, False))
_CALLS = 2_000
_MAX_ROUNDS = 41
_MIN_ROUNDS = 3


def list_prologues(setting: Setting, _seconds: float) -> object:
    """Return where the probes of each library go, alike ones together."""
    return {str(path): describe_sites(_sites_of(path)) for path in setting.libraries}


def measure_pairs(setting: Setting, seconds: float) -> object:
    """Return what empty probes add to a call, at the entry of its function and at the site."""
    end_s = time.monotonic() + seconds
    found = []
    with programs() as bpf:
        for left, (name, symbol, returns) in zip(
            range(len(_MEASURED), 0, -1), _MEASURED, strict=True
        ):
            if library := setting.library(name):
                part_end_s = time.monotonic() + (end_s - time.monotonic()) / left
                found.append(_measure(bpf, library, symbol, part_end_s, returns=returns))
    return found


def _measure(
    bpf: BpfObject, library: Path, symbol: str, end_s: float, *, returns: bool
) -> dict[str, object]:
    with library.open("rb") as stream:
        symbols = ElfSymbols(stream)
        entry = dict(symbols.functions)[symbol]
        sites = LibrarySites(symbols, stream)
        site = sites.choose({symbol: entry})[symbol]
        chosen = sites.chosen[symbol]
    rounds: list[dict[str, float]] = []
    with Subject((workload("timed_function"), library, symbol)) as meter:
        while len(rounds) < _MIN_ROUNDS or (len(rounds) < _MAX_ROUNDS and time.monotonic() < end_s):
            found = {"bare": _ns(meter)}
            for where, offset in (("site", site), ("entry", entry)):
                with _probed(bpf, library, offset, returns=returns):
                    found[where] = _ns(meter)
            rounds.append(found)
    added = {
        where: interval_of([one[where] - one["bare"] for one in rounds])
        for where in ("site", "entry")
    }
    return {
        "library": str(library),
        "symbol": symbol,
        "offset": chosen.offset,
        "instruction": chosen.instruction,
        "class": str(chosen.kind),
        "returns": returns,
        "bare_ns": interval_of([one["bare"] for one in rounds]),
        "added_at_site_ns": added["site"],
        "added_at_entry_ns": added["entry"],
    }


@contextlib.contextmanager
def _probed(bpf: BpfObject, library: Path, offset: int, *, returns: bool) -> Iterator[None]:
    links = bpf.attach_uprobes("empty_enter", str(library), [(offset, 0)])
    if returns:
        links += bpf.attach_uprobes("empty_exit", str(library), [(offset, 0)], on_return=True)
    try:
        yield
    finally:
        bpf.detach(links)


def _ns(meter: Subject) -> float:
    return int(meter.ask(_CALLS)) / _CALLS


def _sites_of(library: Path) -> dict[str, Site]:
    with library.open("rb") as stream:
        symbols = ElfSymbols(stream)
        sites = LibrarySites(symbols, stream)
        sites.move(probes_of(symbols.functions, library.name))
        functions = dict(symbols.functions)
        if _REPORT in functions:
            sites.choose({_REPORT: functions[_REPORT]})
    return sites.chosen

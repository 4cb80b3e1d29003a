"""Names of functions in a library with half a million of them."""

import contextlib
import multiprocessing
import random
import struct
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from benchmarks.result import Result
from otel_gpu.stacks.mappings import Mapping
from otel_gpu.stacks.symbols.native_names import Symbols
from otel_gpu.stacks.symbols.symbol_cache import SymbolCache
from otel_gpu.stacks.symbols.symbol_table import symbol_source
from tests.unit.stacks.elf_files import image, many_functions

FUNCTIONS = 500_000
FUNCTION_BYTES = 4
FIRST_S = 1.0
LATER_US = 10.0
MEMORY_MIB = 24.0
MIB = 1024 * 1024
SYMBOL = struct.Struct("<IBBHQQ")


def run(*, quick: bool = False) -> list[Result]:
    """Look functions up in a library that nobody has seen before, and again in the next run."""
    rounds = 3 if quick else 11
    with tempfile.TemporaryDirectory() as folder:
        path = many_functions(Path(folder), FUNCTIONS)
        first, later, reading, unpacking = [], [], [], []
        for _ in range(rounds):
            with _symbols(None) as symbols:
                first_s, later_us = _look_up(symbols, path, 2_000 if quick else 20_000)
            first.append(first_s)
            later.append(later_us)
            reading.append(_read_us(path))
            unpacking.append(_unpack_s(path))
        cache = SymbolCache(Path(folder) / "cache")
        with _symbols(cache) as symbols:
            _look_up(symbols, path, 1)
        again = []
        for _ in range(rounds):
            with _symbols(cache) as symbols:
                again.append(_look_up(symbols, path, 1)[0])
        before_mib, peak_mib, after_mib = _memory(path)
    return [
        Result(
            what=f"the first look-up among {FUNCTIONS:,}",
            value=median(first),
            unit="s",
            floor=median(unpacking),
            floor_is="struct.iter_unpack of its symbols",
            ratio=max(first) / FIRST_S,
            bound=f"under {FIRST_S:g} s, the slowest too",
            held=max(first) < FIRST_S,
        ),
        Result(
            what="the first look-up of the next run",
            value=median(again) * 1000,
            unit="ms",
            floor=median(first) * 1000,
            floor_is="without the table on disk",
            ratio=median(again) / median(first),
            bound="a decision (ratio to the floor)",
            held=None,
        ),
        Result(
            what="a later look-up, of another address",
            value=median(later),
            unit="us",
            floor=median(reading),
            floor_is="pread of a symbol and a name",
            ratio=median(later) / LATER_US,
            bound=f"under {LATER_US:g} us",
            held=median(later) < LATER_US,
        ),
        Result(
            what="memory of the table, at its peak",
            value=peak_mib - before_mib,
            unit="MiB",
            floor=FUNCTIONS * 8 / MIB,
            floor_is="8 bytes a function",
            ratio=(peak_mib - before_mib) / MEMORY_MIB,
            bound=f"under {MEMORY_MIB:g} MiB",
            held=peak_mib - before_mib < MEMORY_MIB,
            note=f"{after_mib - before_mib:.1f} MiB stay, with 20,000 names",
        ),
    ]


@contextlib.contextmanager
def _symbols(cache: SymbolCache | None) -> Iterator[Symbols]:
    symbols = Symbols(cache or SymbolCache(None))
    yield symbols
    symbols.close()


def _look_up(symbols: Symbols, path: Path, count: int) -> tuple[float, float]:
    # The first look-up in seconds, and the later ones in microseconds.
    file = image(path)
    code = next(segment for segment in file.segments if segment.executable)
    mapping = Mapping(0, 1 << 40, 0, str(path), file, 0)
    places = random.Random(11).sample(range(FUNCTIONS), count)  # noqa: S311
    start_s = time.perf_counter()
    symbols.name(mapping, code.address)
    first_s = time.perf_counter() - start_s
    start_s = time.perf_counter()
    for place in places:
        symbols.name(mapping, code.address + place * FUNCTION_BYTES + 1)
    later_s = time.perf_counter() - start_s
    # The code begins the segment, so the last place is known.
    found = symbols.name(mapping, code.address + places[-1] * FUNCTION_BYTES + 1)
    assert found == (f"f{places[-1]}", 1), found
    file.close()
    return first_s, later_s / count * 1e6


def _read_us(path: Path, count: int = 2_000) -> float:
    file = image(path)
    source = symbol_source(file, ".symtab", separate=False)
    assert source is not None
    places = random.Random(13).sample(range(FUNCTIONS), count)  # noqa: S311
    start_s = time.perf_counter()
    for place in places:
        file.read_file(source.symbols_at + place * SYMBOL.size, SYMBOL.size)
        file.read_file(source.names_at + place, 64)
    elapsed_s = time.perf_counter() - start_s
    file.close()
    return elapsed_s / count * 1e6


def _unpack_s(path: Path) -> float:
    file = image(path)
    source = symbol_source(file, ".symtab", separate=False)
    assert source is not None
    start_s = time.perf_counter()
    data = file.read_file(source.symbols_at, source.symbols * SYMBOL.size)
    for _ in SYMBOL.iter_unpack(data):
        pass
    elapsed_s = time.perf_counter() - start_s
    file.close()
    return elapsed_s


def _memory(path: Path) -> tuple[float, float, float]:
    # In a process of its own, where nothing else has grown before.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_measure, args=(theirs, path))
    process.start()
    before, peak, after = ours.recv()
    process.join()
    return before / MIB, peak / MIB, after / MIB


def _measure(pipe: Connection, path: Path) -> None:
    before = _status_bytes("VmRSS")
    with _symbols(None) as symbols:
        _look_up(symbols, path, 20_000)
        pipe.send((before, _status_bytes("VmHWM"), _status_bytes("VmRSS")))


def _status_bytes(name: str) -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(text.partition(f"{name}:")[2].split()[0]) * 1024

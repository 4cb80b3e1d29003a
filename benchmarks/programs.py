"""Builds and loads the benchmarks' own BPF programs, through the agent's loader."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from elftools.elf.elffile import ELFFile

from otel_gpu.capture.bpf.objects import BpfObject
from otel_gpu.capture.probes.elf_exports import ElfSymbols
from otel_gpu.capture.probes.library_sites import LibrarySites

HERE = Path(__file__).resolve().parent
OUTPUT = HERE.parent / ".output" / "benchmarks"
SOURCE = HERE / "programs.bpf.c"
UPROBES = (
    *("empty_enter", "empty_exit", "timing_enter", "timing_exit", "count_shared", "count_per_cpu"),
    *("look_for_publishers", "look_for_nothing"),
)
API = "cudaStreamSynchronize"


@cache
def object_file() -> Path:
    """Return the compiled programs, built when the source is newer."""
    built = OUTPUT / "programs.bpf.o"
    if not built.exists() or built.stat().st_mtime < SOURCE.stat().st_mtime:
        OUTPUT.mkdir(parents=True, exist_ok=True)
        names = ("clang-14", "clang", "clang-15", "clang-16", "clang-19")
        clang = next((found for name in names if (found := shutil.which(name))), "clang")
        include = f"/usr/include/{os.uname().machine}-linux-gnu"
        subprocess.run(
            [
                clang,
                "-g",
                "-O2",
                "-mcpu=v3",
                "-target",
                "bpf",
                f"-I{include}",
                "-Wall",
                "-Werror",
                "-c",
                str(SOURCE),
                "-o",
                str(built),
            ],
            check=True,
        )
    return built


@contextmanager
def programs() -> Iterator[BpfObject]:
    """Load the programs; nothing is attached yet."""
    with BpfObject(object_file(), UPROBES) as bpf:
        bpf.load()
        yield bpf


def site_offset(library: Path, symbol: str) -> int:
    """Return where in its library's file the agent probes a function."""
    with library.open("rb") as stream:
        symbols = ElfSymbols(stream)
        entry = dict(symbols.functions)[symbol]
        return LibrarySites(symbols, stream).choose({symbol: entry})[symbol]


def file_offset(library: Path, symbol: str = API) -> int:
    """Return where a function lies in its library's file."""
    with library.open("rb") as file:
        elf = ELFFile(file)
        (found,) = elf.get_section_by_name(".dynsym").get_symbol_by_name(symbol)
        address = int(found["st_value"])
        for segment in elf.iter_segments("PT_LOAD"):
            start = int(segment["p_vaddr"])
            if start <= address < start + int(segment["p_filesz"]):
                return address - start + int(segment["p_offset"])
    raise ValueError(f"{symbol} is in no segment of {library}")

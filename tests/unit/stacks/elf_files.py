"""ELF files that a compiler makes for a test, and what binutils say about files."""

import os
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from otel_gpu.stacks.symbols.elf_file import ElfImage

MISSING = [tool for tool in ("gcc", "readelf", "objcopy", "strip") if shutil.which(tool) is None]


class Symbol(NamedTuple):
    name: str
    value: int
    size: int
    section: str


def library(folder: Path, source: str, *flags: str, name: str = "library.so") -> Path:
    """Build a shared library from C, or from assembler if it begins with a directive."""
    path = folder / name
    suffix = "s" if source.lstrip().startswith(".") else "c"
    text = path.with_suffix(f".{suffix}")
    text.write_text(source)
    always = ("-shared", "-fPIC", "-O1", "-Wl,--build-id", "-Wl,-z,noexecstack")
    subprocess.run(["gcc", *always, *flags, "-o", path, text], check=True)
    return path


def many_functions(folder: Path, count: int) -> Path:
    """Build a library with many functions of four bytes, whose symbols are in random order."""
    numbers = list(range(count))
    random.Random(7).shuffle(numbers)  # noqa: S311 -- the same order each time
    lines = [".text"]
    lines += [f".set f{number}, code + {number * 4}" for number in numbers]
    lines += [f".type f{number}, @function; .size f{number}, 4" for number in numbers]
    lines += ["code:", f".fill {count}, 4, 0xc3909090", ""]
    return library(folder, "\n".join(lines), "-nostdlib")


def image(path: Path | str) -> ElfImage:
    return ElfImage(os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def readelf(path: Path | str, *arguments: str) -> str:
    return subprocess.run(
        ["readelf", *arguments, path], capture_output=True, text=True, errors="replace", check=True
    ).stdout


def functions(path: Path | str, table: str) -> list[Symbol]:
    """Return the functions that readelf lists in a symbol table, defined in the file."""
    text = readelf(path, "-sW")
    _, _, rest = text.partition(f"Symbol table '{table}'")
    found = re.findall(
        r"^ *\d+: ([0-9a-f]+) +(\d+|0x[0-9a-f]+) +(?:FUNC|IFUNC) +\S+ +\S+ +(\S+) (\S+)",
        rest.partition("Symbol table")[0],
        re.MULTILINE,
    )
    return [
        Symbol(name.partition("@")[0], int(value, 16), int(size, 0), section)
        for value, size, section, name in found
        if section != "UND"
    ]

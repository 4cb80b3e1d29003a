"""Symbols of ELF files, read from libraries that a compiler made for the test."""

import os
import shutil
import signal
import struct
import subprocess
import sys

import pytest

from otel_gpu.capture.probes.elf_exports import ElfSymbols, exported_functions
from tests.elf_files import symbol, write_elf
from tests.stubs.build import stub_ibverbs

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc builds the libraries")

SOURCE = """
__attribute__((noinline)) int cudaMalloc(void **pointer, unsigned long size) { return 1; }
int __cudaMalloc(void) { return 2; }
static __attribute__((used, noinline)) int cudaFree(void *pointer) { return 3; }
int cudaVersion = 12;
int helper(void) { return 4; }
"""


def give_up(number, frame):
    raise TimeoutError


@pytest.fixture
def library(tmp_path):
    source = tmp_path / "library.c"
    source.write_text(SOURCE)
    path = tmp_path / "library.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-Wl,-O2", "-Wl,--build-id", "-o", path, source],
        check=True,
    )
    return path


def test_functions_have_the_offset_of_their_first_instruction(library):
    """The bytes at the offset are the function's: it returns its own number."""
    functions = dict(exported_functions(str(library)))
    code = library.read_bytes()

    assert functions.keys() == {"cudaMalloc", "cudaFree"}
    for name, number in (("cudaMalloc", 1), ("cudaFree", 3)):
        assert bytes([number, 0, 0, 0]) in code[functions[name] : functions[name] + 16]


def test_names_that_are_the_tail_of_others_are_found(library):
    """Linkers let cudaMalloc share the end of __cudaMalloc in the string table."""
    assert "cudaMalloc" in dict(exported_functions(str(library)))


def test_data_has_an_address_but_no_probe(library):
    """Only functions can be probed."""
    with library.open("rb") as stream:
        symbols = ElfSymbols(stream)

    assert "cudaVersion" in symbols.addresses
    assert "cudaVersion" not in dict(symbols.functions)


def test_a_stripped_library_keeps_what_it_exports(library):
    """Local symbols go with strip; nothing else does."""
    subprocess.run(["strip", library], check=True)

    assert dict(exported_functions(str(library))).keys() == {"cudaMalloc"}


def test_the_build_id_is_the_linkers(library):
    """It names the build wherever the file is."""
    shown = subprocess.run(
        ["readelf", "-n", library], capture_output=True, text=True, check=True
    ).stdout
    with library.open("rb") as stream:
        build_id = ElfSymbols(stream).build_id

    assert build_id is not None
    assert build_id in shown


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"#!/bin/sh\n", os.urandom(256)])
def test_what_is_no_elf_file_is_refused(tmp_path, content):
    """One kind of error, whatever the bytes."""
    path = tmp_path / "file"
    path.write_bytes(content)

    with pytest.raises(ValueError, match="ELF"):
        exported_functions(str(path))


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path):
    """Whatever a path leads to, it is answered for at once."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(10)

    try:
        with pytest.raises(ValueError, match="ELF"):
            exported_functions(str(path))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


@pytest.mark.parametrize("at", range(0, 4096, 37))
def test_a_damaged_library_is_refused_or_read(library, at):
    """Section headers of a hostile file may point anywhere."""
    data = bytearray(library.read_bytes())
    at = at * len(data) // 4096
    data[at : at + 8] = b"\xff" * 8
    library.write_bytes(data)

    try:
        functions = exported_functions(str(library))
    except ValueError:
        return
    assert all(offset >= 0 for _, offset in functions)


def test_of_several_versions_the_default_one_is_taken():
    """The others call it: with both, each of their calls would count twice."""
    path = stub_ibverbs()
    dumped = subprocess.run(
        ["readelf", "--dyn-syms", "--wide", path], capture_output=True, text=True, check=True
    ).stdout
    addresses = {
        line.split()[-1]: int(line.split()[1], 16)
        for line in dumped.splitlines()
        if "ibv_reg_mr@" in line
    }

    with path.open("rb") as stream:
        found = ElfSymbols(stream).addresses["ibv_reg_mr"]

    assert len(addresses) == 2
    assert found == addresses["ibv_reg_mr@@IBVERBS_1.1"]


def peak_of(path):
    """What came of reading a library, and by how many MiB the process that did it grew."""
    program = (
        "import resource, sys\n"
        "from otel_gpu.capture.probes.elf_exports import exported_functions\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n"
        "    print(len(exported_functions(sys.argv[1])))\n"
        "except ValueError as error:\n"
        "    print(error)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program, path],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.splitlines()
    return shown[0], int(shown[1])


@pytest.mark.parametrize(
    ("sizes", "answer"),
    [
        ({"symbols_bytes": 500 << 20, "texts_bytes": 500 << 20}, "its .dynsym is too large"),
        ({"symbols_bytes": 60 << 20, "texts_bytes": 100 << 20}, "the file is sparse"),
        ({"versions_bytes": 500 << 20}, "1"),
    ],
)
def test_a_file_that_claims_large_tables_costs_little(tmp_path, sizes, answer):
    """Sixteen kilobytes on the disk, and up to a gigabyte and a half by its headers."""
    path = write_elf(
        tmp_path / "libcudart.so.12",
        symbols=bytes(24) + symbol(1),
        texts=b"\0cudaMalloc\0",
        **sizes,
    )

    shown, grown_mib = peak_of(path)

    assert path.stat().st_blocks * 512 < 1 << 20
    assert answer in shown
    assert grown_mib < 16


def test_large_tables_are_read_in_parts(tmp_path):
    """Names in each window, one across the end of the first, and symbols in every chunk."""
    window = 16 << 20
    texts = bytearray(b"\0cudaMalloc\0".ljust(window - 5, b"x"))
    across, behind = len(texts) + 1, 2 * window
    texts += b"\0cudaMemcpyAsync\0"
    texts = texts.ljust(behind, b"x") + b"cudaFree\0"
    other = symbol(20)
    symbols = bytearray(bytes(24) + other * 100_000)
    for number, name in ((1, behind), (40_000, 1), (99_999, across)):
        symbols[24 * number : 24 * number + 24] = symbol(name, value=0x1000 + number)
    path = write_elf(tmp_path / "lib.so", symbols=bytes(symbols), texts=bytes(texts))

    with path.open("rb") as stream:
        found = ElfSymbols(stream).addresses
    _, grown_mib = peak_of(path)

    assert found == {
        "cudaFree": 0x1001,
        "cudaMalloc": 0x1000 + 40_000,
        "cudaMemcpyAsync": 0x1000 + 99_999,
    }
    assert grown_mib < 48


def test_more_symbols_than_any_library_has_are_refused(tmp_path):
    path = write_elf(
        tmp_path / "lib.so", symbols=bytes(24) + symbol(1) * 70_000, texts=b"\0cudaMalloc\0"
    )

    with pytest.raises(ValueError, match="has too many symbols for a CUDA library"):
        exported_functions(str(path))


def test_the_default_version_of_a_function_is_the_one(tmp_path):
    """Versions are read for symbols that matter, and not as a whole."""
    versions = struct.pack("<3H", 0, 0x8002, 3)
    rows = bytes(24) + symbol(1, value=0x1111) + symbol(1, value=0x2222)
    path = write_elf(tmp_path / "lib.so", symbols=rows, texts=b"\0cudaMalloc\0", versions=versions)

    with path.open("rb") as stream:
        assert ElfSymbols(stream).addresses == {"cudaMalloc": 0x2222}

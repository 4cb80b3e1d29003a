"""What processes map and how their memory is read: ELF files, unwind tables, stacks, interpreters, code."""

import atexit
import functools
import lzma
import os
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from otel_gpu.capture.probes.elf_exports import ElfSymbols
from otel_gpu.capture.probes.library_sites import LibrarySites, describe_sites
from otel_gpu.capture.probes.prologues import read_prologue
from otel_gpu.capture.processes.thread_locals import find_slot, place_of
from otel_gpu.stacks.mappings import Mapping
from otel_gpu.stacks.python import line_tables
from otel_gpu.stacks.python.interpreter_memory import check
from otel_gpu.stacks.python.layouts import layout_of
from otel_gpu.stacks.symbols.debug_files import symbol_sources
from otel_gpu.stacks.symbols.demangling import Demangler
from otel_gpu.stacks.symbols.elf_file import ElfImage, LoadSegment, elf_in_memory
from otel_gpu.stacks.symbols.perf_map import PerfMap
from otel_gpu.stacks.symbols.symbol_table import SymbolTable
from otel_gpu.stacks.unwind import expressions
from otel_gpu.stacks.unwind.frame_steps import X86_64
from otel_gpu.stacks.unwind.unwinder import Registers, Unwinder
from tests.fuzz.target import Target

_SOURCE = """
__thread void *otel_thread_ctx_v1;
void *context(void) { return &otel_thread_ctx_v1; }
int cudaLaunchKernel(int n) { volatile char block[n]; block[0] = 1; return block[0]; }
int cuMemAlloc_v2(int n) { return n ? cudaLaunchKernel(n - 1) + 1 : 0; }
int ncclAllReduce(int a, int b) { return cuMemAlloc_v2(a) + cudaLaunchKernel(b) * 3; }
__asm__(".symver old, cudaMalloc@CUDA_1"); int old(int n) { return ncclAllReduce(n, n); }
"""
_FLAGS = ("-shared", "-fPIC", "-O1", "-nostdlib", "-Wl,--build-id", "-Wl,-z,max-page-size=4096")
_HEADS = struct.Struct("<QQQ")
_WORD = (1 << 64) - 1


@functools.cache
def _libraries() -> tuple[bytes, ...]:
    """Small libraries: as linked, with a debug link and packed symbols, and with the old hash table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, versions = folder / "a.c", folder / "a.map"
        source.write_text(_SOURCE)
        versions.write_text("CUDA_1 { global: *; };")
        made = []
        for style in ("gnu", "sysv"):
            library = folder / f"{style}.so"
            flags = (*_FLAGS, f"-Wl,--hash-style={style}", f"-Wl,--version-script={versions}")
            subprocess.run(["gcc", *flags, "-o", library, source], check=True)
            made.append(library.read_bytes())
        stripped, debug, packed = (folder / part for part in ("stripped.so", "a.debug", "packed"))
        subprocess.run(["objcopy", "--only-keep-debug", library, debug], check=True)
        packed.write_bytes(lzma.compress(debug.read_bytes(), lzma.FORMAT_XZ))
        sections = (f"--add-gnu-debuglink={debug}", f"--add-section=.gnu_debugdata={packed}")
        subprocess.run(["objcopy", "-S", *sections, library, stripped], check=True)
        made.append(stripped.read_bytes())
    return tuple(made)


def parse_elf(data: bytes, folder: Path) -> None:
    """All that is read of a library that a process maps."""
    path = folder / "libcudart.so.12"
    path.write_bytes(data)
    with path.open("rb") as stream:
        symbols = ElfSymbols(stream)
        sites = LibrarySites(symbols, stream)
        sites.choose(dict(symbols.functions))
        describe_sites(sites.chosen)
    image = ElfImage(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    with closing(image):
        for place in (0, 1, 0x1000, 0x2000, len(data), _WORD):
            image.address_of(place)
            image.file_offset_of(place)
            image.read(place, 64)
        slot = find_slot(image, b"otel_thread_ctx_v1")
        if slot is not None:
            place_of(slot, 0x7F00_0000_0000, lambda _address, size: data[:size])
        with closing(SymbolTable(image, symbol_sources(image, os.getpid(), str(path)))) as table:
            for _, address in zip(range(64), symbols.addresses.values(), strict=False):
                table.find(image, address)
                table.find(image, address + 3)
    (folder / "a.debug").unlink(missing_ok=True)


class _Flat:
    """A library as it lies in memory from its address 0 on, without headers to damage."""

    machine = X86_64.machine

    def __init__(self, data: bytes, eh_frame_header: int) -> None:
        self.eh_frame_header = eh_frame_header
        self.segments = (LoadSegment(0, 0, len(data), len(data), executable=True),)
        self._data = data

    def read(self, address: int, size_bytes: int) -> memoryview:
        if not 0 <= address < len(self._data):
            return memoryview(b"")
        return memoryview(self._data[address : address + size_bytes])


def _unwind_seeds() -> Iterator[bytes]:
    with closing(elf_in_memory(_libraries()[0])) as image:
        end = max(one.address + one.memory_bytes for one in image.segments)
        flat = bytearray(end)
        for one in image.segments:
            flat[one.address : one.address + one.file_bytes] = image.read_file(
                one.file_offset, one.file_bytes
            )
        code = next(one.address for one in image.segments if one.executable)
        header = image.eh_frame_header or 0
    for place in range(code, code + 64, 7):
        stack = struct.pack("<QQ", 0x7000, code + 40) * 64
        yield _HEADS.pack(header, place, 0x10_0010) + flat + stack


def parse_unwind(data: bytes, _folder: Path) -> None:
    """A walk over a stack by the tables of a file."""
    if len(data) < _HEADS.size:
        return
    header, place, frame_pointer = _HEADS.unpack_from(data)
    memory = data[_HEADS.size :]
    flat = _Flat(memory, header)
    mapping = Mapping(0, _WORD, 0, "/lib", flat, 0)  # type: ignore[arg-type] # it has what is used
    stack = memory[-1024:]
    registers = Registers(place, 0x10_0000, frame_pointer)
    unwinder = Unwinder(X86_64)
    walk = unwinder.unwind(registers, stack, lambda _: mapping, {0x10_0008: place})
    found = unwinder.unwind_to({}, registers, stack, lambda _: mapping)
    assert len(walk.addresses) <= len(stack) // 8 + 64
    assert found[0].addresses


def parse_expression(data: bytes, _folder: Path) -> None:
    """A program of DWARF."""
    registers = dict.fromkeys(range(17), 0x1000)
    value = expressions.evaluate(
        data, registers, lambda address, size: (address * size) & _WORD, 0x2000
    )
    assert value is None or 0 <= value <= _WORD


def _line_table_seeds() -> Iterator[bytes]:
    def function(one: int) -> int:
        for each in range(one):
            if each % 3:
                return each
        return -1

    for code in (function.__code__, check.__code__, parse_elf.__code__):
        yield struct.pack("<HI", 0x030B, code.co_firstlineno) + code.co_linetable
        yield struct.pack("<HI", 0x030A, code.co_firstlineno) + code.co_linetable


def parse_line_table(data: bytes, _folder: Path) -> None:
    """Lines of code of CPython."""
    if len(data) >= 6:
        version, first = struct.unpack_from("<Hi", data)
        lines = line_tables.decode(version, first, data[6:])
        for offset in (-1, 0, 2, 100, 1 << 40):
            assert 0 <= lines.line_at(offset) < 1 << 31


_LAYOUTS = {version: layout_of(version << 16, b"") for version in (0x030A, 0x030B, 0x030C)}


def _interpreter_seeds() -> Iterator[bytes]:
    # Every word points to one of the few that there are.
    for version in _LAYOUTS:
        words = [0x1000 + 8 * (number * 37 % 512) for number in range(512)]
        yield struct.pack("<H", version) + struct.pack("<512Q", *words)
        yield struct.pack("<H", version) + b"code\0str\0bytes\0\0" * 256


def parse_interpreter(data: bytes, _folder: Path) -> None:
    """The memory of a process that runs Python, or says so."""
    if len(data) < 10:
        return
    (version,) = struct.unpack_from("<H", data)
    memory = data[2:]
    reads = 0

    def read(address: int, size_bytes: int) -> bytes:
        nonlocal reads
        reads += 1
        at = (address - 0x1000) % len(memory)
        return (memory[at : at + size_bytes] + bytes(64))[: min(size_bytes, 4096)]

    if version not in _LAYOUTS:
        layout = layout_of(version << 16 | 0xF0, memory[:1024])
    else:
        layout = _LAYOUTS[version]
    check(layout, 0x1000, read)
    assert reads < 1_000_000


def parse_prologue(data: bytes, _folder: Path) -> None:
    """The code of a function."""
    for reads_stack in (True, False):
        name, offset = read_prologue(data[:4096], reads_stack=reads_stack)
        assert isinstance(name, str)
        assert 0 <= offset <= 24


def _prologue_seeds() -> Iterator[bytes]:
    with closing(elf_in_memory(_libraries()[0])) as image:
        code = next(one for one in image.segments if one.executable)
        yield image.read_file(code.file_offset, code.file_bytes)


def parse_perf_map(data: bytes, _folder: Path) -> None:
    """Names of code that was made at run time."""
    names = PerfMap(os.getpid(), clock=lambda: -1.0)
    names._next_s = 0.0  # The file of this process is not read.
    names._learn(data[: data.rfind(b"\n") + 1])
    for address in (0, 0x7F00_0000_1000, *names._starts[:8], _WORD):
        found = names.find(address)
        assert found is None or (len(found[0]) <= 4096 and found[1] >= 0)


def _perf_map_seeds() -> Iterator[bytes]:
    yield b"7f0000001000 40 py::inner:/a.py\n0x7f0000001020 0x10 b c\nffffffffffffffff ffffffff end\n"
    yield b"".join(b"%x 20 f%d\n" % (0x1000 + 16 * number, number) for number in range(200))


def _expression_seeds() -> Iterator[bytes]:
    yield bytes([0x77, 8, 0x80, 0, 0x3F, 0x1A, 0x3B, 0x2A, 0x33, 0x24, 0x22])  # of a PLT stub
    yield bytes([0x76, 0x78, 0x06, 0x23, 0x10, 0x12, 0x1E, 0x28, 1, 0, 0x96])


@functools.cache
def _demangler() -> Demangler:
    demangler = Demangler()
    # Its process, which a name may end.
    atexit.register(demangler.close)
    return demangler


def parse_mangled(data: bytes, _folder: Path) -> None:
    """A mangled name, which another process makes text of; one that it fails at is no trouble."""
    name = data.decode("latin-1")
    demangler = _demangler()
    demangler._resume_s = 0.0
    found = demangler.text(name)
    assert found is None or len(found) <= len(name) + (1 << 16)
    # What comes next has its own answer, and not this one's.
    demangler._resume_s = 0.0
    assert demangler.text("_ZN3foo3barEv") in ("foo::bar()", "_ZN3foo3barEv", None)


def _mangled_seeds() -> Iterator[bytes]:
    yield b"_ZN2at6native3addERKNS_6TensorES3_"
    yield b"_ZNSt6vectorIiSaIiEE9push_backERKi.cold"
    yield b"_Z1fIJidEEvDpT_S0_DnMS_FvvEA5_cPKU8__vectorfLi5EXadL_Z1gvEE"
    yield b"_ZZN1a1bEvENKUlvE_clEvS_IS1_S1_E"


def parse_debug_link(data: bytes, folder: Path) -> None:
    """A library with a debug link, and the file that it leads to; both from one input."""
    library = _libraries()[2]
    half = len(data) // 2
    at = library.find(b"a.debug\0") + len(b"a.debug\0")
    checksum = zlib.crc32(data[half:]).to_bytes(4, "little")
    path = folder / "lib.so"
    path.write_bytes(library[:at] + checksum + library[at + 4 :])
    (folder / "a.debug").write_bytes(data[half:])
    image = ElfImage(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    with (
        closing(image),
        closing(SymbolTable(image, symbol_sources(image, os.getpid(), str(path)))) as table,
    ):
        for address in range(0, 0x2000, 0x80):
            table.find(image, address)


TARGETS = (
    Target("elf", _libraries, parse_elf, (ValueError,), (b"\x7fELF\x02\x01", b"cudaMalloc\0")),
    Target(
        "debug_link", lambda: [2 * one for one in _libraries()], parse_debug_link, (ValueError,)
    ),
    Target("unwind", _unwind_seeds, parse_unwind),
    Target("expression", _expression_seeds, parse_expression),
    Target("line_table", _line_table_seeds, parse_line_table),
    Target("interpreter", _interpreter_seeds, parse_interpreter, (ValueError,)),
    Target("prologue", _prologue_seeds, parse_prologue),
    Target("mangled", _mangled_seeds, parse_mangled, (), (b"S_", b"I", b"E", b"N", b"T_", b"Z")),
    Target("perf_map", _perf_map_seeds, parse_perf_map, (), (b"0x", b"7f0000001000 ", b" ")),
)

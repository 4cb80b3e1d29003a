"""Call frame information of real files, compared with what binutils reads out of them."""

import ctypes.util
import os
import re
import shutil
import struct
import subprocess
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.stacks.mappings import ElfFiles, Mappings
from otel_gpu.stacks.symbols.elf_file import ElfImage
from otel_gpu.stacks.unwind import cfi_rows
from otel_gpu.stacks.unwind.cfi import CallFrames
from tests.unit.stacks.stack_captures import gcc

pytestmark = [
    pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc builds the libraries"),
    pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is compared with"),
]

REGISTERS = {"rax": 0, "rdx": 1, "rcx": 2, "rbx": 3, "rsi": 4, "rdi": 5, "rbp": 6, "rsp": 7}
REGISTERS |= {f"r{number}": number for number in range(8, 16)} | {"ra": 16}
EXPRESSION = "exp"
ENTRY = re.compile(r"^[0-9a-f]+ [0-9a-f]+ [0-9a-f]+ (CIE|FDE cie=([0-9a-f]+) pc=(\w+)\.\.(\w+))")


def mapped(name):
    """The path of a library of this process, of whatever version."""
    ctypes.CDLL(ctypes.util.find_library(name) or name)
    maps = Path("/proc/self/maps").read_text()
    return next(line.split()[-1] for line in maps.splitlines() if f"/lib{name}" in line)


def interpreter():
    library = Path(sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LDLIBRARY"))
    return str(library) if library.suffix == ".so" else "/proc/self/exe"


def functions(path, every=1):
    """
    Yield each function that readelf finds: start, end, and [(address, rules by column)].

    A function without rows of its own has those of its CIE.
    """
    text = subprocess.run(
        ["readelf", "-wNF", path], capture_output=True, text=True, check=True
    ).stdout
    initial, entries = {}, []
    for block in text.split("\n\n"):
        # A register is shown as r8 (rdi), by its number and its name.
        head, *lines = re.sub(r" \(\w+\)", "", block.strip()).splitlines() or [""]
        match = ENTRY.match(head)
        if match is None:
            continue
        table = []
        if lines:
            names = lines[0].split()[1:]
            for line in lines[1:]:
                address, *cells = line.split()
                table.append((int(address, 16), dict(zip(names, cells, strict=True))))
        if match[1] == "CIE":
            initial[head.split()[0]] = table[0][1] if table else {}
        else:
            entries.append((match[2], int(match[3], 16), int(match[4], 16), table))
    for cie, start, end, table in entries[::every]:
        yield start, end, table or [(start, initial[cie])]


def shown(row):
    """A row in the words of readelf; "u" is what is not said, or said to be undefined."""
    cells = {}
    for number, saved in row.saved.items():
        text = {
            cfi_rows.AT_OFFSET: f"c{saved.value:+}",
            cfi_rows.OFFSET: f"v{saved.value:+}",
            cfi_rows.AT_EXPRESSION: EXPRESSION,
            cfi_rows.EXPRESSION: "vexp",
            cfi_rows.REGISTER: f"r{saved.value}",
            cfi_rows.UNDEFINED: "u",
        }
        cells[number] = text[saved.kind]
    cfa = EXPRESSION if row.cfa_expression else (row.cfa_register, row.cfa_offset)
    return cfa, cells


def read(cells):
    base, sign, offset = cells["CFA"].partition("+")
    cfa = (REGISTERS[base], int(offset)) if sign else cells["CFA"]
    return cfa, {REGISTERS[name]: cell for name, cell in cells.items() if name != "CFA"}


def assert_agrees(path, every=1):
    image = ElfImage(os.open(path, os.O_RDONLY))
    frames = CallFrames(image)
    compared = 0
    for start, end, table in functions(path, every):
        ends = [address for address, _ in table[1:]] + [end]
        for (address, cells), after in zip(table, ends, strict=True):
            for place in {address, after - 1} if address < after else ():
                row = frames.row(place)
                assert row is not None, hex(place)
                cfa, saved = shown(row)
                expected_cfa, expected = read(cells)
                assert cfa == expected_cfa, hex(place)
                for number in {*expected, *saved}:
                    cell = expected.get(number, "u")
                    assert saved.get(number, "u") == ("u" if cell == "s" else cell), hex(place)
                compared += 1
        assert start == table[0][0]
    image.close()
    return compared


def test_every_row_of_the_c_library_is_what_readelf_says():
    """All functions, the first and the last address of each row: CFA and all registers."""
    assert assert_agrees(mapped("c.so")) > 10_000


@pytest.mark.parametrize("library", ["ld-linux", "m.so", "sqlite3", "stdc++", "ffi", "crypto"])
def test_rows_of_other_libraries_are_what_readelf_says(library):
    """Of assemblers, C++, hand-written code and the dynamic linker: each 7th function."""
    if library == "ld-linux":
        text = Path("/proc/self/maps").read_text()
        path = next(line.split()[-1] for line in text.splitlines() if "/ld-linux" in line)
    else:
        try:
            path = mapped(library)
        except OSError:
            pytest.skip(f"there is no lib{library}")
    assert assert_agrees(path, every=1 if library == "ld-linux" else 7) > 50


def test_rows_of_the_interpreter_are_what_readelf_says():
    """All functions of what runs this test."""
    assert assert_agrees(interpreter()) > 50_000


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "libsmall.so"
    source = """
    #include <alloca.h>
    extern int other(int);
    int grow(int n) { volatile char *all = alloca(n); return other(n) + all[0]; }
    int keep(int a, int b) { return other(a) * other(b) + a - b; }
    """
    gcc(source, path, "-O2", "-fPIC", "-shared", "-Wl,-z,lazy", "-fcf-protection=none")
    return path


def test_what_is_not_in_a_function_has_no_row(small):
    """Before the first, between two, after the last, and beyond the file."""
    image = ElfImage(os.open(small, os.O_RDONLY))
    frames = CallFrames(image)
    inside = [range(start, end) for start, end, _ in functions(small)]
    last = max(function.stop for function in inside)

    for address in range(last + 64):
        expected = any(address in function for function in inside)
        assert (frames.row(address) is not None) == expected
    for address in (-1, 1 << 32, 1 << 63, 1 << 64, -(1 << 70)):
        assert frames.row(address) is None


def test_stubs_have_an_expression_that_asks_how_far_into_them_it_is(small):
    """A stub for a function that is found when it is first called pushes a word halfway."""
    image = ElfImage(os.open(small, os.O_RDONLY))
    frames = CallFrames(image)
    [stub] = [start + 16 for start, _, table in functions(small) if len(table) == 3]

    assert frames.row(stub).cfa_expression == bytes.fromhex("7708 8000 3f 1a 3b 2a 33 24 22")


def test_a_library_is_read_one_entry_at_a_time(small):
    """A look-up reads the table's part, one entry and what that shares with others."""

    class Counting(ElfImage):
        bytes_read = 0

        def read(self, address, size_bytes):
            found = super().read(address, size_bytes)
            self.bytes_read += len(found)
            return found

    path = mapped("c.so")
    image = Counting(os.open(path, os.O_RDONLY))
    frames = CallFrames(image)
    start, *_ = next(iter(functions(path, every=100)))
    assert frames.row(start) is not None

    assert image.bytes_read < 6_000


def test_the_kernels_own_library_has_rows(tmp_path):
    """It is in no file; time is asked there."""
    images = ElfFiles()
    mappings = Mappings(os.getpid(), images)
    maps = Path("/proc/self/maps").read_text()
    line = next(line for line in maps.splitlines() if "[vdso]" in line)
    mapping = mappings.find(int(line.split("-")[0], 16))
    copy = tmp_path / "vdso.so"
    copy.write_bytes(mapping.elf.read_file(0, 1 << 20))

    assert assert_agrees(copy) > 10


def test_a_program_without_the_table_has_no_rows(small):
    """It is not made up from the entries."""
    path = small.with_name("stripped.so")
    gcc("int f(void) { return 1; }", path, "-fPIC", "-shared", "-Wl,--no-eh-frame-hdr")
    image = ElfImage(os.open(path, os.O_RDONLY))

    assert image.eh_frame_header is None
    assert all(CallFrames(image).row(address) is None for address in range(0x1000, 0x1200))


class Memory:
    """Bytes at an address, in place of a file."""

    machine = 62
    segments = ()

    def __init__(self, content, address=0x2000):
        self.content = content
        self.eh_frame_header = address

    def read(self, address, size_bytes):
        at = address - self.eh_frame_header
        return memoryview(self.content)[at : at + size_bytes] if at >= 0 else memoryview(b"")


def entry(*parts):
    body = b"".join(parts)
    body += bytes(-len(body) % 4)
    return struct.pack("<I", len(body)) + body


def table(cie, fde, start=0x1000, head=b"\x01\x1b\x03\x3b"):
    """A header for one function, its entry at 0x2100, what that shares at 0x2080."""
    header = head + struct.pack("<iIii", 0, 1, start - 0x2000, 0x100)
    content = header.ljust(0x80, b"\0") + cie
    return Memory(content.ljust(0x100, b"\0") + fde + bytes(64))


CIE = entry(bytes(4), b"\x01zR\0\x01\x78\x10\x01\x1b", bytes.fromhex("0c0708 9001"))


def fde(*parts):
    return entry(struct.pack("<I", 0x2104 - 0x2080), *parts)


@pytest.mark.parametrize(
    ("encoding", "place"),
    [
        pytest.param(0x1B, struct.pack("<ii", 0x1000 - 0x2108, 0x40), id="relative, 4 bytes"),
        pytest.param(0x1C, struct.pack("<qq", 0x1000 - 0x2108, 0x40), id="relative, 8 bytes"),
        pytest.param(0x03, struct.pack("<II", 0x1000, 0x40), id="absolute, 4 bytes"),
        pytest.param(0x00, struct.pack("<QQ", 0x1000, 0x40), id="absolute, 8 bytes"),
    ],
)
def test_a_function_is_where_its_entry_says(encoding, place):
    """In each way that compilers write addresses, small and large code models."""
    cie = CIE.replace(b"\x01\x1b\x0c", bytes([1, encoding, 0x0C]))
    frames = CallFrames(table(cie, fde(place, b"\0")))

    assert frames.row(0x0FFF) is None
    assert shown(frames.row(0x1000)) == ((7, 8), {16: "c-8"})
    assert shown(frames.row(0x103F)) == ((7, 8), {16: "c-8"})
    assert frames.row(0x1040) is None


PLACE = struct.pack("<ii", 0x1000 - 0x2108, 0x40)


@pytest.mark.parametrize(
    ("augmentation", "data", "signal"),
    [
        (b"zR", b"\x1b", False),
        (b"zRS", b"\x1b", True),
        (b"zPLR", b"\x9b\1\2\3\4\x1b\x1b", False),
        (b"zPR", b"\x00\1\2\3\4\5\6\7\x08\x1b", False),
        (b"zRB", b"\x1b", False),
    ],
)
def test_what_languages_add_is_passed_over(augmentation, data, signal):
    """Personalities, data for exceptions, keys of return addresses; signal frames are told."""
    head = b"\x01" + augmentation + b"\0\x01\x78\x10" + bytes([len(data)]) + data
    cie = entry(bytes(4), head, bytes.fromhex("0c0708 9001"))
    row = CallFrames(table(cie, fde(PLACE, b"\x04\5\6\7\x08", b"\x41\x0e\x10"))).row(0x1001)

    assert shown(row) == ((7, 16), {16: "c-8"})
    assert row.is_signal_frame is signal


@pytest.mark.parametrize(
    ("cie", "entry_of_function", "head"),
    [
        pytest.param(CIE, fde(PLACE, b"\0"), b"\x02\x1b\x03\x3b", id="another version"),
        pytest.param(CIE, fde(PLACE, b"\0"), b"\x01\x1b\x03\xff", id="no table"),
        pytest.param(CIE, fde(PLACE, b"\0"), b"\x01\x1b\x0b\x3b", id="another count"),
        pytest.param(CIE, fde(PLACE, b"\0"), b"\x01\x1b\x03\x1b", id="another table"),
        pytest.param(CIE, fde(PLACE, b"\0"), b"\x01\xff\x03\x3b", id="no pointer"),
        pytest.param(CIE, CIE, None, id="no function's entry"),
        pytest.param(fde(PLACE, b"\0"), fde(PLACE, b"\0"), None, id="no common entry"),
        pytest.param(CIE, b"\xff\xff\xff\xff" + bytes(32), None, id="64-bit format"),
        pytest.param(CIE, bytes(16), None, id="an end"),
        pytest.param(CIE, struct.pack("<I", 1 << 20) + bytes(32), None, id="too long"),
        pytest.param(CIE, fde(b"\0"), None, id="too short"),
        pytest.param(CIE.replace(b"zR", b"eh"), fde(PLACE, b"\0"), None, id="an old compiler"),
        pytest.param(CIE.replace(b"zR", b"zX"), fde(PLACE, b"\0"), None, id="unknown data"),
        pytest.param(CIE.replace(b"\x1b\x0c", b"\x9b\x0c"), fde(PLACE, b"\0"), None, id="indirect"),
        pytest.param(CIE.replace(b"\x1b\x0c", b"\x01\x0c"), fde(PLACE, b"\0"), None, id="LEB128"),
        pytest.param(CIE, fde(PLACE, b"\0\x3f"), None, id="unknown instruction"),
    ],
)
def test_what_cannot_be_understood_is_no_row(cie, entry_of_function, head):
    """Never half of one."""
    frames = CallFrames(table(cie, entry_of_function, **({"head": head} if head else {})))

    assert frames.row(0x1010) is None


@given(st.data())
def test_no_bytes_harm(data):
    """Tables may hold anything: there is a row or there is none."""
    known = st.sampled_from([CIE, fde(PLACE, b"\0"), b"\x01\x1b\x03\x3b", b"\xff" * 8])
    noise = st.binary(max_size=24) | known
    memory = table(CIE, fde(PLACE, data.draw(st.binary(max_size=40))))
    content = bytearray(memory.content)
    for at in data.draw(st.lists(st.integers(0, 0x140), max_size=4)):
        part = data.draw(noise)
        content[at : at + len(part)] = part
    memory.content = bytes(content[: data.draw(st.integers(0, len(content)))])
    frames = CallFrames(memory)

    for address in (0x1000, 0x1001, 0x1020, data.draw(st.integers(0, 1 << 64))):
        row = frames.row(address)
        assert row is None or len(row.saved) <= 32


@given(st.binary(max_size=200))
def test_no_table_harms(content):
    """Whatever stands where the table should be."""
    frames = CallFrames(Memory(b"\x01\x1b\x03\x3b" + content))

    assert all(frames.row(address) is None for address in (0, 0x1000, 0x2000, 1 << 63))

"""ELF files as processes run them: real ones, and damaged ones."""

import ctypes
import os
import re
import struct
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.capture.probes.elf_exports import exported_functions
from otel_gpu.stacks.symbols.debug_files import symbol_sources
from otel_gpu.stacks.symbols.elf_file import ElfImage, elf_in_memory
from otel_gpu.stacks.symbols.symbol_table import SymbolTable
from tests.unit.stacks.elf_files import MISSING, image, library, readelf

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"this host lacks {MISSING}")

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
IDENTITY = b"\x7fELF\2\1\1".ljust(16, b"\0")
SOURCE = "int twice(int n) { return 2 * n; }\nint words[4] = {1, 2, 3, 4};\n"


@pytest.fixture
def small(tmp_path):
    return library(tmp_path, SOURCE)


def mapped_files():
    maps = Path("/proc/self/maps").read_text()
    return sorted(set(re.findall(r" ..x. .* (/.*\.so[.0-9]*)$", maps, re.MULTILINE)))


@pytest.mark.parametrize("path", [*mapped_files(), sys.executable, "/bin/sh"])
def test_headers_are_what_readelf_says(path):
    """Segments, sections, build id and the unwind table's header, of files of this host."""
    file = image(path)

    header = readelf(path, "-lW")
    loads = re.findall(r"LOAD +0x(\w+) 0x(\w+) 0x\w+ 0x(\w+) 0x(\w+) (.{3})", header, re.MULTILINE)
    eh_frame = re.search(r"GNU_EH_FRAME +0x\w+ 0x(\w+)", header)
    build_id = re.search(r"Build ID: (\w+)", readelf(path, "-n"))
    names = re.findall(
        r"^ +\[ *\d+\] (\S+) +\w+ +(\w+) +(\w+) +(\w+)", readelf(path, "-SW"), re.MULTILINE
    )
    assert [tuple(segment) for segment in file.segments] == [
        (int(address, 16), int(offset, 16), int(size, 16), int(memory, 16), "E" in flags)
        for offset, address, size, memory, flags in loads
    ]
    assert file.eh_frame_header == (int(eh_frame[1], 16) if eh_frame else None)
    assert file.build_id == (build_id[1] if build_id else None)
    assert [
        (section.name, section.address, section.file_offset, section.size_bytes)
        for section in file.sections[1:]
    ] == [(name, *(int(number, 16) for number in numbers)) for name, *numbers in names]


def test_bytes_at_an_address_are_those_that_are_loaded(small):
    """The code of the function and the words of the array, as far as asked or there are."""
    file = image(small)
    loaded = ctypes.CDLL(str(small))
    bias = address(loaded.twice) - symbol(small, "twice")

    for name in ("twice", "words"):
        place = symbol(small, name)
        assert bytes(file.read(place, 16)) == ctypes.string_at(bias + place, 16)
        assert len(file.read(place, 3)) == 3


def test_reading_ends_with_the_segment_and_the_file(small):
    """Memory past it is zero or another file's; both are no business of this one."""
    file = image(small)
    segment = file.segments[0]

    assert len(file.read(segment.address + segment.file_bytes - 3, 1 << 40)) == 3
    assert len(file.read(segment.address + segment.file_bytes, 1)) == 0
    assert len(file.read(1 << 62, 8)) == 0
    assert file.read_file(small.stat().st_size - 2, 8) == small.read_bytes()[-2:]
    assert file.read_file(1 << 70, 8) == b""


def test_places_in_the_file_have_the_address_that_the_loader_gave_them(small):
    """And the page before a segment's first byte is the segment's, as the loader maps it."""
    file = image(small)
    code = next(segment for segment in file.segments if segment.executable)

    assert file.address_of(code.file_offset + 5) == code.address + 5
    assert file.file_offset_of(code.address + 5) == code.file_offset + 5
    assert file.address_of(1 << 40) is None
    assert file.file_offset_of(1 << 40) is None


def test_a_page_of_two_segments_is_the_codes(tmp_path):
    """Linkers may put the end of the constants and the first code into one page of the file."""
    content = elf_of(
        (1, 4, 0, 0, 0, 0x1800, 0x1800, 0x1000),
        (1, 5, 0x1800, 0x2800, 0x2800, 0x2000, 0x2000, 0x1000),
        (1, 6, 0x3800, 0x5800, 0x5800, 0x100, 0x100, 0x1000),
    )
    file = elf_in_memory(content)

    assert file.address_of(0x1000) == 0x2000
    assert file.address_of(0x0) == 0x0
    assert file.address_of(0x3000) == 0x4000
    assert file.address_of(0x3880) == 0x5880


def test_a_section_is_found_by_name(small):
    """One without bytes in the file is empty, as one that is not there."""
    file = image(small)

    assert bytes(file.section(".eh_frame")) == file.read_file(
        file.section_header(".eh_frame").file_offset, file.section_header(".eh_frame").size_bytes
    )
    assert bytes(file.section(".data"))[-16:] == struct.pack("<4I", 1, 2, 3, 4)
    assert len(file.section(".bss")) == 0
    assert len(file.section(".nothing")) == 0


def test_a_file_that_was_closed_is_empty(small):
    """Others may hold it still; the descriptor may be another file by now."""
    file = image(small)
    file.close()
    file.close()

    assert file.closed
    assert len(file.read(file.segments[0].address, 4)) == 0
    assert len(file.section(".text")) == 0
    assert not file.sections


def test_a_file_that_is_cut_while_it_is_open_ends(small):
    """A memory map would end the process that reads it."""
    file = image(small)
    data = file.segments[-1].address
    os.truncate(small, 100)

    assert len(file.read(data, 8)) == 0
    assert len(file.read(0, 4096)) == 100


@pytest.mark.parametrize("path", ["/dev/zero", "/", "/proc/self/maps"])
def test_what_is_no_regular_file_is_refused(path):
    """And the descriptor is closed all the same."""
    fd = os.open(path, os.O_RDONLY)
    with pytest.raises(ValueError, match="ELF"):
        ElfImage(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"#!/bin/sh\n", b"\x7fELF\1\1" + b"\0" * 99])
def test_what_is_no_elf_file_is_refused(tmp_path, content):
    """Also a 32-bit one."""
    path = tmp_path / "file"
    path.write_bytes(content)

    with pytest.raises(ValueError, match="ELF"):
        image(path)


@pytest.mark.parametrize("sections", [1 << 34, 60_000])
def test_a_file_cannot_keep_us_busy_with_sections(tmp_path, sections):
    """A terabyte of zeros on a few kilobytes of disk is ten thousand million empty sections."""
    path = tmp_path / "sparse.so"
    count = sections if sections < 65536 else 0
    header = HEADER.pack(IDENTITY, 3, 62, 1, 0, 0, 64, 0, 64, 56, 0, 64, count, 0)
    path.write_bytes(header + struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, sections, 0, 0, 0, 0))
    os.truncate(path, 1 << 40)

    assert len(image(path).sections) <= 2048
    assert exported_functions(str(path)) == []


def test_too_many_segments_are_refused():
    """A linked file has ten; each look-up goes through all."""
    with pytest.raises(ValueError, match="too many segments"):
        elf_in_memory(elf_of(*[(1, 5, 0, 0, 0, 1, 1, 1)] * 129))


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return library(tmp_path_factory.mktemp("elf"), SOURCE, "-nostdlib").read_bytes()


@given(data=st.data())
def test_a_damaged_file_is_refused_or_read(original, data):
    """Whatever stands in it: only ValueError, no end of work, no more memory than it has bytes."""
    content = bytearray(original)
    end = len(content)
    for _ in range(data.draw(st.integers(1, 8))):
        # Half of the damage goes to the headers, where numbers are places and sizes.
        near = st.one_of(st.integers(0, 1023), st.integers(max(end - 2048, 0), end - 1))
        at = data.draw(st.one_of(near, st.integers(0, end - 1)))
        value = data.draw(st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\x7f", b"\1", b"\xff\xff"]))
        content[at : at + len(value)] = value[: end - at]
    del content[data.draw(st.one_of(st.just(end), st.integers(0, end))) :]

    try:
        file = elf_in_memory(bytes(content))
    except ValueError:
        return
    file.address_of(0x1000)
    file.read(0x1000, 1 << 50)
    assert all(len(file.section(section.name)) <= end for section in file.sections)
    table = SymbolTable(file, symbol_sources(file, 0, "/nowhere/library.so"))
    for address in (0, 0x1000, 0x1004, 1 << 63):
        found = table.find(file, address)
        assert found is None or found[1] >= 0
    file.close()


@given(st.binary(max_size=300))
def test_noise_is_refused_or_read(noise):
    """As any other damage."""
    try:
        file = elf_in_memory(
            HEADER.pack(IDENTITY, 3, 62, 1, 0, 64, 64, 0, 64, 56, 1, 64, 2, 1) + noise
        )
    except ValueError:
        return
    assert SymbolTable(file, symbol_sources(file, 0, "")).find(file, 0) is None


def elf_of(*programs):
    header = HEADER.pack(IDENTITY, 3, 62, 1, 0, 64, 0, 0, 64, 56, len(programs), 64, 0, 0)
    return header + b"".join(struct.pack("<IIQQQQQQ", *program) for program in programs)


def address(function):
    return ctypes.cast(function, ctypes.c_void_p).value


def symbol(path, name):
    return int(re.search(rf"([0-9a-f]+) .* {name}$", readelf(path, "-sW"), re.MULTILINE)[1], 16)

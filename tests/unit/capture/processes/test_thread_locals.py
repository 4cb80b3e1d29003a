"""What a file says of where a thread-local symbol lies, and what the dynamic linker did."""

import os
import struct
import subprocess

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.capture.processes.thread_contexts import SYMBOL
from otel_gpu.capture.processes.thread_locals import (
    FIXED,
    ThreadLocalSlot,
    find_slot,
    find_symbol,
    gnu_hash,
    old_hash,
    place_of,
)
from otel_gpu.instrumentation.thread_context import library_path
from otel_gpu.stacks.symbols.elf_file import ElfImage

SOURCE = "__thread void *otel_thread_ctx_v1; void *get(void) {{ return {}; }}"


def number_by_others(path):
    """The number of the symbol as an independent reader has it."""
    with path.open("rb") as stream:
        symbols = ELFFile(stream).get_section_by_name(".dynsym")
        names = [symbol.name for symbol in symbols.iter_symbols()]
    return names.index(SYMBOL.decode()) if SYMBOL.decode() in names else None


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ([], "&otel_thread_ctx_v1"),
        (["-mtls-dialect=gnu2"], "otel_thread_ctx_v1"),
        (["-ftls-model=initial-exec"], "otel_thread_ctx_v1"),
        (["-DNOTHING"], "0"),
    ],
)
def test_the_symbol_is_found_however_the_library_is_compiled(tmp_path, flags, code):
    """As an independent reader of the symbol table finds it."""
    source, library = tmp_path / "a.c", tmp_path / "liba.so"
    source.write_text(SOURCE.format(code))
    subprocess.run(["gcc", "-shared", "-fPIC", *flags, source, "-o", library], check=True)

    image = ElfImage(os.open(library, os.O_RDONLY))

    assert find_symbol(image, SYMBOL).number == number_by_others(library) is not None
    assert find_symbol(image, b"otel_thread_ctx_v2") is None
    # A symbol of another kind is not one of threads.
    assert find_symbol(image, b"get") is None


def test_a_distance_that_is_fixed_needs_no_word():
    """Whatever is at the address where it would be."""
    assert place_of(ThreadLocalSlot(FIXED, -16, {}), 0x1000, memory) == (0, -16)


def test_hashes_are_those_of_the_tables_of_linkers():
    """As the documentation of GNU's hash sections, and of the old ones, has them."""
    assert (old_hash(b""), old_hash(b"printf"), old_hash(b"exit")) == (0, 0x077905A6, 0x0006CF04)
    assert (gnu_hash(b""), gnu_hash(b"printf"), gnu_hash(b"exit")) == (
        0x1505,
        0x156B2BB8,
        0x7C967E3F,
    )


WORDS = {
    0x1000: (0x7F00_0000_0000, -152),
    0x2000: (0x7F00_0000_0000, 0x7F11_0000_0000),
    0x7F11_0000_0000: (5, 32),
    0x3000: (3, 8),
    0x4000: (0, 0),
    # Before the first use, where the linker is lazy: the relocation.
    0x6000: (0x7F00_0000_0000, 0x7F11_0000_1000),
    0x7F11_0000_1000: (0x6000, 36),
}


def memory(address, size_bytes):
    return struct.pack("<Qq", *WORDS[address])[:size_bytes] if address in WORDS else b""


@pytest.mark.parametrize(
    ("kind", "address", "place"),
    [
        (0, 0x1000, (0, -152)),
        (0, 0x2000, (5, 32)),
        (1, 0x3000, (3, 8)),
        (2, 0x3000, (0, 3)),
        (0, 0x4000, None),
        (1, 0x4000, None),
        (2, 0x4000, None),
        (0, 0x5000, None),
        (2, 0x5000, None),
        (0, 0x6000, None),
    ],
)
def test_words_of_the_linker_lead_to_module_and_offset(kind, address, place):
    """Descriptors, pairs and distances; those that are not filled in, or gone, to nothing."""
    assert place_of(ThreadLocalSlot(kind, address - 0x800, {}), 0x800, memory) == place


@given(st.binary(max_size=4096), st.integers(0, 4000), st.binary(max_size=64))
def test_a_damaged_library_has_no_symbol_or_one(noise, at, patch):
    """Whatever is written into it meanwhile, nothing is raised."""
    content = bytearray(library_path().read_bytes())
    content[at : at + len(patch)] = patch
    descriptor = os.memfd_create("damaged")
    os.write(descriptor, bytes(content) + noise)
    try:
        image = ElfImage(descriptor)
    except ValueError:
        return
    symbol, slot = find_symbol(image, SYMBOL), find_slot(image, SYMBOL)
    image.close()

    assert symbol is None or symbol.number >= 0
    assert slot is None or symbol is not None

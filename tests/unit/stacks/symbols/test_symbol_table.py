"""Functions by address: real libraries against readelf, and made ones for each rule."""

import os
import re
import subprocess
import sys
from array import array
from bisect import bisect_left, bisect_right
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.stacks.symbols.symbol_table import SymbolTable, _merged, symbol_source
from tests.unit.stacks.elf_files import (
    MISSING,
    functions,
    image,
    library,
    many_functions,
)

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"this host lacks {MISSING}")

NAMES = """
.section .rodata
table: .quad 1
.type constant, @function
.set constant, table
.text
base: nop
.macro at place name size binding=local type=function
.type \\name, @\\type
.set \\name, base + \\place
.size \\name, \\size
.ifnc \\binding,local
.\\binding \\name
.endif
.endm
"""


class Table:
    def __init__(self, path, section=".symtab"):
        self.image = image(path)
        self.table = SymbolTable(self.image, [symbol_source(self.image, section, separate=False)])

    def __getitem__(self, address):
        return self.table.find(self.image, address)


def made(folder, *lines, more=""):
    """Return a table of symbols relative to ``base``, which has 4096 bytes of code."""
    at = [f"at {line}" for line in lines]
    text = "\n".join((NAMES, *at, more, ".text", ".skip 4096, 0x90", ""))
    path = library(folder, text, "-nostdlib")
    code = next(segment for segment in image(path).segments if segment.executable)
    table = Table(path)
    return lambda place: table[code.address + place]


def loaded_library(name):
    maps = Path("/proc/self/maps").read_text()
    return re.search(rf"(/\S*/{name}[^/\s]*)$", maps, re.MULTILINE)


def real_files():
    python = loaded_library("libpython")
    files = [loaded_library(r"libc\.so")[1], python[1] if python else sys.executable]
    return [(path, section) for path in files for section in (".dynsym", ".symtab")]


@pytest.mark.parametrize(("path", "section"), real_files())
def test_functions_of_a_real_file_are_those_of_readelf(path, section):
    """
    All of them, and for each first byte, last byte and byte after it the innermost that holds it.
    """
    listed = sorted(functions(path, section), key=lambda symbol: symbol.value)
    if not listed:
        pytest.skip(f"{path} has no {section}")
    table = Table(path, section)
    values = [symbol.value for symbol in listed]
    longest = max(symbol.size for symbol in listed)
    unsized = {symbol.value for symbol in listed if not symbol.size}

    assert len(table.table.keys) == len(listed)
    for symbol in listed:
        for address in (
            symbol.value,
            symbol.value + max(symbol.size - 1, 0),
            symbol.value + symbol.size,
        ):
            near = listed[bisect_left(values, address - longest) : bisect_right(values, address)]
            start = max(
                (each.value for each in near if each.value <= address < each.value + each.size),
                default=None,
            )
            names = {each.name for each in near if each.value == start}
            found = table[address]
            if found is None or address - found[1] not in unsized:
                expected = (found and found[0] in names, found and address - found[1])
                assert expected == (None, None) if start is None else (True, start)


def test_static_functions_are_found_until_the_file_is_stripped(tmp_path):
    """Then their code has no name: the exported one before it ends where it says."""
    source = """
    int shown(int n) { return n + 1; }
    __attribute__((noinline, used)) static int hidden(int n) { return n * n; }
    """
    path = library(tmp_path, source)
    places = {symbol.name: symbol for symbol in functions(path, ".symtab")}
    names = [Table(path)[places[name].value + 1] for name in ("shown", "hidden")]
    subprocess.run(["strip", path], check=True)
    stripped = Table(path, ".dynsym")

    assert names == [("shown", 1), ("hidden", 1)]
    assert stripped[places["shown"].value + 1] == ("shown", 1)
    assert stripped[places["hidden"].value + 1] is None


def test_a_function_ends_where_its_size_says(tmp_path):
    """The padding after it is nobody's."""
    find = made(tmp_path, "16 first 8", "32 second 8")

    assert find(15) is None
    assert find(16) == ("first", 0)
    assert find(23) == ("first", 7)
    assert find(24) is None
    assert find(32) == ("second", 0)


def test_a_function_without_a_size_reaches_to_the_next(tmp_path):
    """Assembler programmers forget to say it."""
    find = made(tmp_path, "16 open 0", "64 next 8")

    assert find(16) == ("open", 0)
    assert find(63) == ("open", 47)
    assert find(64) == ("next", 0)
    assert find(72) is None


def test_a_function_without_a_size_stays_in_its_section(tmp_path):
    """The next section may be the linker's, which has no names."""
    more = """
    .section .other, "ax", @progbits
    .type last, @function
    last: .skip 100, 0x90
    .section .zother, "ax", @progbits
    .skip 100, 0x90
    """
    path = library(tmp_path, NAMES + more, "-nostdlib")
    table = Table(path)
    start = next(symbol.value for symbol in functions(path, ".symtab") if symbol.name == "last")

    assert table[start + 99] == ("last", 99)
    assert table[start + 100] is None
    assert table[start + 150] is None


def test_a_name_with_a_size_ends_those_without_at_the_same_place(tmp_path):
    """It knows."""
    find = made(tmp_path, "16 open 0", "16 sized 8")

    assert find(20) == ("open", 4) or find(20) == ("sized", 4)
    assert find(24) is None


def test_the_innermost_function_counts(tmp_path):
    """And after its end, the one around it."""
    find = made(tmp_path, "16 outer 64", "32 inner 8", "36 innermost 2")

    assert find(31) == ("outer", 15)
    assert find(32) == ("inner", 0)
    assert find(36) == ("innermost", 0)
    assert find(38) == ("inner", 6)
    assert find(40) == ("outer", 24)
    assert find(80) is None


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        (["16 aaa 8", "16 zzz 8 globl"], "zzz"),
        (["16 aaa 8", "16 zzz 8 weak"], "zzz"),
        (["16 __write 8 globl", "16 write 8 weak"], "write"),
        (["16 _a 8 globl", "16 __a 8 globl"], "_a"),
        (["16 zzz 8 globl", "16 aaa 8 weak"], "zzz"),
        (["16 aaaa 8 globl", "16 zzz 8 globl"], "zzz"),
        (["16 zzz 8 globl", "16 aaa 8 globl"], "aaa"),
        (["16 _ZN1aC2Ev 8 weak", "16 _ZN1aC1Ev 8 weak"], "_ZN1aC1Ev"),
    ],
)
def test_of_several_names_one_is_chosen(tmp_path, lines, name):
    """
    Exported before local, fewer underscores (a mangled name has none), strong before weak,
    short before long, then by the alphabet.
    """
    assert made(tmp_path, *lines)(17) == (name, 1)


def test_what_is_no_function_is_left_out(tmp_path):
    """Data, labels, functions of other files, and functions that are where no code is."""
    more = ".globl elsewhere\n.type elsewhere, @function\n.text\ncall elsewhere@plt\n"
    find = made(tmp_path, "16 words 8 globl object", "32 label 8 globl notype", more=more)

    assert find(16) is None
    assert find(32) is None
    assert find(0) is None


def test_marks_of_arm_are_no_functions(tmp_path):
    """They say where code begins, at the same place as the function."""
    more = ".type $x, @function\n.set $x, base + 16\n.type $d.7, @function\n.set $d.7, base + 17\n"
    find = made(tmp_path, "16 real 8", more=more)

    assert find(16) == ("real", 0)
    assert find(18) == ("real", 2)


def test_versions_are_no_part_of_a_name(tmp_path):
    """The linker writes them behind it."""
    more = ".globl old\n.type old, @function\n.set old, base + 16\n.size old, 8\n.symver old, shown@@V1, remove\n"
    script = tmp_path / "versions"
    script.write_text("V1 { global: shown; };\n")
    path = library(
        tmp_path, NAMES + more + ".text\n.skip 99\n", "-nostdlib", f"-Wl,--version-script={script}"
    )
    place = next(symbol for symbol in functions(path, ".symtab") if symbol.name == "shown").value

    assert Table(path)[place + 1] == ("shown", 1)


def test_many_aliases_are_looked_at_up_to_a_bound(tmp_path):
    """A file cannot make each look-up go through thousands; one of them is the answer."""
    find = made(tmp_path, *(f"16 alias{number} 8" for number in range(1000)))

    name, offset = find(17)
    assert re.fullmatch(r"alias\d+", name)
    assert offset == 1


def test_long_names_are_read_to_a_bound(tmp_path):
    """C++ has names of kilobytes; a file may have one of gigabytes."""
    find = made(tmp_path, f"16 {'a' * 3000} 8", f"32 {'b' * 9000} 8")

    assert find(16) == ("a" * 3000, 0)
    assert find(32) == ("b" * 4096, 0)


def test_a_large_table_takes_eight_bytes_for_each_function(tmp_path):
    """Symbols in any order; each is found, and names are in no memory of ours."""
    path = many_functions(tmp_path, 40_000)
    table = Table(path)
    start = next(symbol.value for symbol in functions(path, ".symtab") if symbol.name == "f0")

    assert isinstance(table.table.keys, array)
    assert table.table.keys.itemsize == 8
    assert len(table.table.keys) == 40_000
    assert sorted(table.table.keys) == list(table.table.keys)
    for number in range(0, 40_000, 111):
        assert table[start + 4 * number + 3] == (f"f{number}", 3)


@pytest.mark.parametrize("damage", [b"\xff", b"\0"])
def test_a_file_that_was_written_to_gives_no_wrong_name(tmp_path, damage):
    """The symbol has to start where it did when the table was made."""
    path = many_functions(tmp_path, 100)
    file = image(path)
    table = SymbolTable(file, [source := symbol_source(file, ".symtab", separate=False)])
    start = next(symbol.value for symbol in functions(path, ".symtab") if symbol.name == "f0")
    with path.open("r+b") as stream:
        stream.seek(source.symbols_at)
        stream.write(damage * 24 * source.symbols)

    assert table.find(file, start + 4) is None


def test_a_file_that_was_cut_gives_no_name(tmp_path):
    """What is past its end cannot be read, and that is all that happens."""
    path = many_functions(tmp_path, 100)
    table = Table(path)
    start = next(symbol.value for symbol in functions(path, ".symtab") if symbol.name == "f0")
    os.truncate(path, 200)

    assert table[start + 4] is None


@given(st.lists(st.lists(st.integers(0, (1 << 64) - 1))))
def test_runs_are_merged_in_order(runs):
    """As if all were sorted at once."""
    merged = _merged([array("Q", sorted(run)) for run in runs])

    assert list(merged) == sorted(key for run in runs for key in run)

"""Names of functions in running processes."""

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from otel_gpu.stacks.mappings import ElfFiles, Mapping, Mappings
from otel_gpu.stacks.symbols import native_names as symbols_module
from otel_gpu.stacks.symbols import perf_map
from otel_gpu.stacks.symbols.native_names import Symbols
from otel_gpu.stacks.symbols.symbol_cache import SymbolCache
from tests.unit.stacks.elf_files import MISSING, functions, image, library, many_functions

needs_compiler = pytest.mark.skipif(bool(MISSING), reason=f"this host lacks {MISSING}")


class Clock:
    def __init__(self):
        self.now_s = 100.0
        self.step_s = 0.0

    def __call__(self):
        self.now_s += self.step_s
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def symbols(folder, clock):
    symbols = Symbols(SymbolCache(folder), clock=clock)
    yield symbols
    symbols.close()


@pytest.fixture
def images():
    images = ElfFiles()
    yield images
    images.close()


@pytest.fixture
def find(images):
    """Return what says which mapping of this process holds an address."""
    own = Mappings(os.getpid(), images)

    def find(address):
        own.refresh()  # Tests load libraries.
        return own.find(address)

    yield find
    own.close()


def address_of(function):
    return ctypes.cast(function, ctypes.c_void_p).value


def place(path, name):
    return next(each.value for each in functions(path, ".symtab") if each.name == name)


def whole(path, bias=0x7F0000000000):
    """Return a mapping of all of a file, as if it lay at the bias."""
    return Mapping(bias, bias + (1 << 30), 0, str(path), image(path), bias, os.getpid())


@pytest.mark.parametrize("name", ["malloc", "getpid", "write", "fopen"])
def test_functions_of_the_c_library_have_the_names_that_programmers_use(symbols, find, name):
    """Of several aliases, the one without underscores."""
    address = address_of(ctypes.CDLL(None)[name])
    mapping = find(address)

    assert symbols.name(mapping, address) == (name, 0)
    assert symbols.name(mapping, address + 3) == (name, 3)


def test_functions_of_python_are_found(symbols, find):
    """In the executable or in its library."""
    address = address_of(ctypes.pythonapi.PyObject_Call)
    mapping = find(address)

    assert symbols.name(mapping, address + 7) == ("PyObject_Call", 7)


def test_functions_of_the_kernels_own_library_are_found(symbols, find):
    """The clock is read there, without a system call."""
    text = Path("/proc/self/maps").read_text()
    start = int(re.search(r"^(\w+)-.*\[vdso\]$", text, re.MULTILINE)[1], 16)
    mapping = find(start)
    names = {
        found[0]
        for address in range(mapping.start, mapping.end, 16)
        if (found := symbols.name(mapping, address))
    }

    assert {"clock_gettime", "gettimeofday"} <= {name.removeprefix("__vdso_") for name in names}


@needs_compiler
def test_a_deleted_library_has_names(symbols, find, tmp_path):
    """Of the file that is mapped, not of the one that has its path now."""
    path = library(tmp_path, "int twice(int n) { return 2 * n; }")
    address = address_of(ctypes.CDLL(str(path)).twice)
    path.unlink()
    library(tmp_path, "int padding(int n) { return 3 * n + 1; } int thrice(int n) { return n; }")
    mapping = find(address)

    assert symbols.name(mapping, address) == ("twice", 0)


@needs_compiler
def test_a_process_that_is_gone_has_names(symbols, images, tmp_path):
    """Its files were opened while it lived, and are first read now."""
    path = library(tmp_path, "int twice(int n) { return 2 * n; }")
    program = (
        "import ctypes, sys; f = ctypes.CDLL(sys.argv[1]).twice;"
        "print(ctypes.cast(f, ctypes.c_void_p).value, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        address = int(process.stdout.readline())
        mappings = Mappings(process.pid, images)
        process.communicate()
    path.unlink()

    assert symbols.name(mappings.find(address), address + 1) == ("twice", 1)


@needs_compiler
def test_cpp_names_are_demangled(symbols, tmp_path):
    """As the programmer wrote them."""
    path = library(tmp_path, "int _ZN3net4Conv7forwardEi(int n) { return 2 * n; }")
    mapping = whole(path)
    address = mapping.bias + place(path, "_ZN3net4Conv7forwardEi")

    assert symbols.name(mapping, address + 2) == ("net::Conv::forward(int)", 2)


@needs_compiler
def test_long_and_unprintable_names_are_made_harmless(symbols, tmp_path):
    """They go to terminals, which obey them, and into documents."""
    source = '.text\n.type "{0}", @function\n"{0}": .skip 8\n.size "{0}", 8\n'
    path = library(tmp_path, source.format("\x1b[31mred\x7f") + source.format("x" * 2000))
    mapping = whole(path)
    start = place(path, "x" * 2000) - 8

    assert symbols.name(mapping, mapping.bias + start) == ("�[31mred�", 0)
    name, offset = symbols.name(mapping, mapping.bias + start + 9)
    assert (name, len(name), offset) == ("x" * 511 + "…", 512, 1)


@needs_compiler
def test_an_address_without_a_function_has_no_name(symbols, tmp_path):
    """Nor does the agent look for it each time."""
    path = library(tmp_path, "int twice(int n) { return 2 * n; }", "-nostdlib")
    mapping = whole(path)
    after = mapping.bias + place(path, "twice") + 100

    assert symbols.name(mapping, after) is None
    mapping.elf.close()
    assert symbols.name(mapping, after) is None
    assert symbols.name(mapping, mapping.bias + place(path, "twice")) is None


@needs_compiler
def test_what_was_found_is_known_when_the_file_is_closed(symbols, tmp_path):
    """The process may be gone by then, and the next stack has the same functions."""
    path = library(tmp_path, "int twice(int n) { return 2 * n; }")
    mapping = whole(path)
    address = mapping.bias + place(path, "twice")
    found = symbols.name(mapping, address)
    mapping.elf.close()

    assert symbols.name(mapping, address) == found == ("twice", 0)


@needs_compiler
def test_only_tables_of_large_files_are_kept_on_disk(symbols, folder, tmp_path):
    """And are read from there, with the same names."""
    (tmp_path / "large").mkdir()
    small = library(tmp_path, "int twice(int n) { return 2 * n; }")
    large = many_functions(tmp_path / "large", 30_000)
    mapping, start = whole(large), place(large, "f0")
    assert symbols.name(whole(small), 0x7F0000000000 + place(small, "twice")) == ("twice", 0)
    first = symbols.name(mapping, mapping.bias + start + 4 * 77)
    kept = [path.name for path in folder.iterdir()]
    again = Symbols(SymbolCache(folder))

    assert first == ("f77", 0)
    assert kept == [f"{mapping.elf.build_id}.symbols"]
    assert again.name(mapping, mapping.bias + start + 4 * 29_999 + 1) == ("f29999", 1)
    assert all(isinstance(table.keys, memoryview) for table in again._tables.values())


@needs_compiler
def test_the_same_build_id_in_another_file_is_another_file(symbols, tmp_path):
    """Anybody can write the build id of the C library into a file."""
    names = []
    for name in ("good", "evil"):
        (tmp_path / name).mkdir()
        path = library(
            tmp_path / name, f"int {name}(int n) {{ return n; }}", "-Wl,--build-id=0x1234abcd"
        )
        mapping = whole(path)._replace(file=(1, len(names)))
        names.append(symbols.name(mapping, mapping.bias + place(path, name)))

    assert names == [("good", 0), ("evil", 0)]


@needs_compiler
def test_tables_are_forgotten_when_there_are_too_many(symbols, tmp_path, monkeypatch):
    """The one not used for longest, and it is read again when it is needed."""
    monkeypatch.setattr(symbols_module, "_MAX_KEYS", 250)
    mappings = []
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        path = many_functions(tmp_path / str(number), 100)
        mappings.append((whole(path)._replace(file=(1, number)), place(path, "f0")))
    for mapping, start in mappings:
        assert symbols.name(mapping, mapping.bias + start) == ("f0", 0)

    assert len(symbols._tables) == 2
    mapping, start = mappings[0]
    assert symbols.name(mapping, mapping.bias + start + 4) == ("f1", 0)
    assert len(symbols._tables) == 2


@needs_compiler
def test_reading_tables_has_a_share_of_the_time(symbols, clock, tmp_path, monkeypatch):
    """A program that maps new files all the time gets unknown functions, and others theirs."""
    path = library(tmp_path, "int twice(int n) { return 2 * n; }")
    mappings = [whole(path)._replace(file=(1, number)) for number in range(4)]
    address = mappings[0].bias + place(path, "twice")
    read_table = symbols._read_table

    def read_slowly(mapping, image):
        clock.now_s += 6.0
        return read_table(mapping, image)

    monkeypatch.setattr(symbols, "_read_table", read_slowly)
    names = [symbols.name(mapping, address) for mapping in mappings]

    assert names == [("twice", 0), ("twice", 0), None, None]
    clock.now_s += 100
    assert symbols.name(mappings[2], address) == ("twice", 0)
    assert symbols.name(mappings[0], address) == ("twice", 0)


@needs_compiler
def test_while_the_demangler_rests_names_are_mangled(symbols, clock, tmp_path):
    """And are asked for again afterwards."""
    path = library(tmp_path, "int _ZN3net4Conv7forwardEi(int n) { return 2 * n; }")
    mapping = whole(path)
    address = mapping.bias + place(path, "_ZN3net4Conv7forwardEi")
    symbols._demangler._resume_s = symbols._demangler._clock() + 1000

    assert symbols.name(mapping, address) == ("_ZN3net4Conv7forwardEi", 0)
    symbols._demangler._resume_s = 0.0
    assert symbols.name(mapping, address) == ("net::Conv::forward(int)", 0)


def test_generated_code_has_the_names_that_its_program_wrote(symbols, tmp_path, monkeypatch):
    """And none where it wrote none, or the kernel made the code."""
    monkeypatch.setattr(perf_map, "_FOLDER", str(tmp_path))
    (tmp_path / f"perf-{os.getpid()}.map").write_text("1000 20 jit \x07function\nnone\n")
    code = Mapping(0x1000, 0x2000, 0, "", None, 0, os.getpid())

    assert symbols.name(code, 0x1008) == ("jit �function", 8)
    assert symbols.name(code, 0x1100) is None
    assert symbols.name(code._replace(path="[uprobes]"), 0x1008) is None
    assert symbols.name(code._replace(pid=0), 0x1008) is None
    assert symbols.malformed == 1

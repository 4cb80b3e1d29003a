"""Symbols of stripped libraries, from where distributions keep them."""

import lzma
import os
import shutil
import subprocess

import pytest

from otel_gpu.stacks.symbols import debug_files
from otel_gpu.stacks.symbols.debug_files import symbol_sources
from otel_gpu.stacks.symbols.symbol_table import SymbolTable
from tests.unit.stacks.elf_files import MISSING, functions, image, library

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"this host lacks {MISSING}")

SOURCE = """
int shown(int n) { return n + 1; }
__attribute__((noinline, used)) static int hidden(int n) { return n * n; }
"""
NO_BUILD_ID = "-Wl,--build-id=none"


class Stripped:
    """A stripped library, the symbols that it had, and where debug files are looked for."""

    def __init__(self, folder, *flags):
        self.path = library(folder, SOURCE, *flags)
        self.places = {each.name: each.value for each in functions(self.path, ".symtab")}
        self.debug = folder / "library.debug"
        run("objcopy", "--only-keep-debug", self.path, self.debug)
        self.whole = folder / "whole.so"
        shutil.copy(self.path, self.whole)
        run("strip", self.path)

    def name(self, function, pid=None):
        file = image(self.path)
        pid = os.getpid() if pid is None else pid
        table = SymbolTable(file, symbol_sources(file, pid, str(self.path)))
        found = table.find(file, self.places[function] + 1)
        table.close()
        return found


def run(*command):
    subprocess.run(command, check=True)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the folder that stands for /usr/lib/debug."""
    monkeypatch.setattr(debug_files, "_FOLDER", str(tmp_path / "debug"))
    return tmp_path / "debug"


@pytest.fixture
def stripped(tmp_path, folder):
    return Stripped(tmp_path)


def store_by_build_id(folder, stripped, debug_file):
    build_id = image(stripped.path).build_id
    place = folder / ".build-id" / build_id[:2] / f"{build_id[2:]}.debug"
    place.parent.mkdir(parents=True)
    shutil.copy(debug_file, place)


def test_a_stripped_library_has_what_it_exports(stripped):
    """Nothing else, if there is no debug file."""
    assert stripped.name("shown") == ("shown", 1)
    assert stripped.name("hidden") is None


def test_the_build_id_finds_the_debug_file(folder, stripped):
    """In the process's root or, if that is gone, in our own."""
    store_by_build_id(folder, stripped, stripped.debug)

    assert stripped.name("hidden") == ("hidden", 1)
    assert stripped.name("shown") == ("shown", 1)
    assert stripped.name("hidden", pid=0) == ("hidden", 1)


def test_a_debug_file_of_another_build_is_not_used(tmp_path, folder, stripped):
    """Whatever its name says: its functions are somewhere else."""
    (tmp_path / "other").mkdir()
    other = Stripped(tmp_path / "other", "-O0")
    store_by_build_id(folder, stripped, other.debug)

    assert stripped.name("hidden") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_debug_file_of_another_user_names_only_functions_of_that_users_library(folder, stripped):
    """In a namespace of its own, a user can put any file in the place, with the build id of any library."""
    store_by_build_id(folder, stripped, stripped.debug)
    (debug_file,) = folder.glob(".build-id/*/*")
    os.chown(debug_file, 4242, 4242)
    assert stripped.name("hidden") is None
    assert stripped.name("shown") == ("shown", 1)

    os.chown(stripped.path, 4242, 4242)
    assert stripped.name("hidden") == ("hidden", 1)


@pytest.mark.parametrize("place", ["", ".debug", "debug"])
def test_the_link_finds_the_debug_file(tmp_path, folder, place):
    """Beside the library, in a folder there, and under the path of the library."""
    stripped = Stripped(tmp_path, NO_BUILD_ID)
    run("objcopy", f"--add-gnu-debuglink={stripped.debug}", stripped.path)
    target = folder / str(tmp_path)[1:] if place == "debug" else tmp_path / place
    target.mkdir(parents=True, exist_ok=True)
    stripped.debug.replace(target / "library.debug")

    assert stripped.name("hidden") == ("hidden", 1)


def test_the_link_holds_only_with_its_checksum(tmp_path, folder):
    """One changed byte is another file."""
    stripped = Stripped(tmp_path, NO_BUILD_ID)
    run("objcopy", f"--add-gnu-debuglink={stripped.debug}", stripped.path)
    with stripped.debug.open("ab") as stream:
        stream.write(b"\0")

    assert stripped.name("hidden") is None


def test_a_sparse_debug_file_is_not_read(tmp_path, folder, monkeypatch):
    """Its checksum fits, and it has taken a second of reading zeros to know."""
    stripped = Stripped(tmp_path, NO_BUILD_ID)
    with stripped.debug.open("ab") as file:
        file.truncate(300 << 20)
    run("objcopy", f"--add-gnu-debuglink={stripped.debug}", stripped.path)
    read = []
    monkeypatch.setattr(debug_files.zlib, "crc32", lambda *arguments: read.append(arguments) or 0)

    assert stripped.name("hidden") is None
    assert read == []


def test_the_link_with_a_build_id_holds_only_with_the_same(tmp_path, folder, stripped):
    """That is quicker than a checksum, and as good."""
    run("objcopy", f"--add-gnu-debuglink={stripped.debug}", stripped.path)
    assert stripped.name("hidden") == ("hidden", 1)

    (tmp_path / "other").mkdir()
    shutil.copy(Stripped(tmp_path / "other", "-O0").debug, stripped.debug)
    assert stripped.name("hidden") is None


@pytest.mark.parametrize("name", ["../library.debug", "", "x" * 5000])
def test_a_link_that_is_no_file_name_is_not_followed(tmp_path, folder, name):
    """It is the file's own word."""
    stripped = Stripped(tmp_path, NO_BUILD_ID)
    content = tmp_path / "link"
    content.write_bytes(name.encode() + b"\0" * 4 + b"abcd")
    run("objcopy", f"--add-section=.gnu_debuglink={content}", stripped.path)

    assert stripped.name("hidden") is None
    assert stripped.name("shown") == ("shown", 1)


def add_packed(stripped, content):
    packed = stripped.path.with_suffix(".xz")
    packed.write_bytes(content)
    run("objcopy", f"--add-section=.gnu_debugdata={packed}", stripped.path)


def test_a_packed_table_completes_what_is_exported(stripped):
    """As Fedora ships it."""
    add_packed(stripped, lzma.compress(stripped.debug.read_bytes()))

    assert stripped.name("hidden") == ("hidden", 1)
    assert stripped.name("shown") == ("shown", 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: b"no xz",
        lambda: lzma.compress(b"no ELF file"),
        lambda: lzma.compress(b"\x7fELF" + b"\0" * 100)[:-20],
        lambda: lzma.compress(bytes(100 << 20), preset=0),
    ],
    ids=["noise", "text", "cut", "bomb"],
)
def test_a_packed_table_that_is_none_is_left(stripped, make):
    """Also one that unpacks to a hundred megabytes, of which only a part is unpacked."""
    add_packed(stripped, make())

    assert stripped.name("hidden") is None
    assert stripped.name("shown") == ("shown", 1)

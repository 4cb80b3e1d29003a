"""What code processes have at an address, asked of real ones."""

import contextlib
import ctypes
import mmap
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from otel_gpu.procfs.mapped_files import FileId, executable_mappings
from otel_gpu.stacks.mappings import ElfFiles, Mappings
from tests.unit.stacks.elf_files import MISSING, functions, image, library

needs_compiler = pytest.mark.skipif(bool(MISSING), reason=f"this host lacks {MISSING}")
SOURCE = "int twice(int n) { return 2 * n; }"
# Loads a library, says where its function is, and waits until its input ends.
LOADER = """
import ctypes, sys
function = ctypes.CDLL(sys.argv[1]).twice
print(ctypes.cast(function, ctypes.c_void_p).value, flush=True)
sys.stdin.read()
"""


class Program:
    """A process that maps a library; ``address`` is of its function."""

    def __init__(self, path):
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", LOADER, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.pid = self.process.pid
        self.address = int(self.process.stdout.readline())

    def end(self):
        self.process.communicate()


@pytest.fixture
def images():
    images = ElfFiles()
    yield images
    images.close()


@pytest.fixture
def loaded(tmp_path):
    """Return programs that map a library, and end them with the test."""
    programs = []
    path = library(tmp_path, SOURCE)

    def load():
        programs.append(Program(path))
        return programs[-1]

    yield load
    for program in programs:
        program.end()


@contextlib.contextmanager
def executable_memory():
    """Yield the address of a page of code that is in no file, between pages that are none."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    pages = mmap.mmap(-1, 3 * mmap.PAGESIZE, flags=flags)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages)) + mmap.PAGESIZE
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    assert protect(address, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC) == 0
    yield address
    assert protect(address, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE) == 0


def test_every_executable_mapping_is_found(images):
    """At its first and last byte, and not at the byte after it."""
    own = Mappings(os.getpid(), images)
    lines = re.findall(
        r"^(\w+)-(\w+) ..x. (\w+) \S+ \d+ *(.*)$", Path("/proc/self/maps").read_text(), re.MULTILINE
    )

    assert len(lines) > 5
    for start, end, offset, path in lines:
        expected = (int(start, 16), int(end, 16), int(offset, 16), path)
        assert own.find(int(start, 16))[:4] == expected
        assert own.find(int(end, 16) - 1)[:4] == expected
        after = own.find(int(end, 16))
        assert after is None or after.start == int(end, 16)
    assert own.find(0) is None
    assert own.find((1 << 64) - 1) is None


@needs_compiler
def test_the_bias_leads_into_the_file(images, loaded):
    """An address less the bias is where the file's symbol table has the function."""
    program = loaded()
    mapping = Mappings(program.pid, images).find(program.address)
    (twice,) = [each for each in functions(mapping.path, ".symtab") if each.name == "twice"]

    assert program.address - mapping.bias == twice.value
    assert mapping.elf.build_id == image(mapping.path).build_id
    assert mapping.pid == program.pid
    assert mapping.file.inode == Path(mapping.path).stat().st_ino


def test_the_kernels_own_library_has_an_image(images):
    """It is in no file; our own copy is as good as any."""
    text = Path("/proc/self/maps").read_text()
    start, end = re.search(r"^(\w+)-(\w+) .*\[vdso\]$", text, re.MULTILINE).groups()
    mapping = Mappings(os.getpid(), images).find(int(start, 16))

    assert mapping.path == "[vdso]"
    assert mapping.bias == int(start, 16) - mapping.elf.segments[0].address
    assert bytes(mapping.elf.read_file(0, 4)) == b"\x7fELF"
    assert images.vdso(int(end, 16) - int(start, 16)) is mapping.elf
    assert images.vdso(4096 * 99) is None


def test_the_kernels_trampolines_are_told_by_their_name():
    """A return address that was replaced by a probe is in there."""
    line = "7fffffffe000-7ffffffff000 --xp 00000000 00:00 0                  [uprobes]\n"

    (found,) = executable_mappings(7, line)
    assert (found.path, found.start, found.end) == ("[uprobes]", 0x7FFFFFFFE000, 0x7FFFFFFFF000)
    assert found.file == FileId(0, 0)


def test_code_made_at_run_time_is_found_without_an_image(images):
    """Its address was not known before, so the process has to be asked again."""
    own = Mappings(os.getpid(), images)
    with executable_memory() as address:
        assert own.find(address) is None
        own.refresh()
        mapping = own.find(address)

        assert (mapping.start, mapping.path, mapping.elf, mapping.bias) == (address, "", None, 0)
        assert mapping.file == FileId(0, 0)


@needs_compiler
def test_a_process_that_is_gone_keeps_its_mappings(images, loaded):
    """And its files can still be read: they were opened when it was met."""
    program = loaded()
    mappings = Mappings(program.pid, images)
    program.end()
    mappings.refresh()
    mapping = mappings.find(program.address)

    assert mapping.path.endswith("library.so")
    assert len(mapping.elf.read(program.address - mapping.bias, 4)) == 4
    mappings.refresh()
    assert mappings.find(program.address) == mapping


@needs_compiler
def test_a_deleted_library_is_read_all_the_same(images, loaded):
    """An upgrade deletes what processes go on to use; the path may be another file by then."""
    program = loaded()
    path = Path(Mappings(program.pid, ElfFiles()).find(program.address).path)
    build_id = image(path).build_id
    path.unlink()
    path.write_bytes(b"another file")
    mapping = Mappings(program.pid, images).find(program.address)

    assert mapping.path == f"{path} (deleted)"
    assert mapping.elf.build_id == build_id


def test_a_process_that_never_was_has_no_mappings(images):
    """Nor is that an error."""
    with subprocess.Popen(["true"]) as process:
        process.wait()

    mappings = Mappings(process.pid, images)
    assert mappings.find(0x400000) is None
    mappings.refresh()


def test_a_program_that_became_another_keeps_its_own_mappings(images):
    """They are of the memory that was there, not of the pid: the new program has its own."""
    script = "echo; read line; exec cat"
    with subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        process.stdout.readline()
        before = Mappings(process.pid, images)
        shell = next(mapped for mapped in before._mapped if mapped.path.startswith("/"))
        process.stdin.write(b"\nhello\n")
        assert process.stdout.readline() == b"hello\n"
        before.refresh()
        after = Mappings(process.pid, images)
        process.stdin.close()

        assert before.find(shell.start).path == shell.path
        paths = {mapped.path for mapped in after._mapped}
        assert str(Path(shutil.which("cat")).resolve()) in paths
        assert shell.path not in paths


@needs_compiler
def test_a_child_that_is_gone_had_what_its_parent_has(images, loaded):
    """Most children live too short to be asked."""
    program = loaded()
    parent = Mappings(program.pid, images)
    with subprocess.Popen(["true"]) as process:
        process.wait()
    child = parent.inherit(process.pid)
    program.end()
    parent.close()
    mapping = child.find(program.address)

    assert mapping.pid == process.pid
    assert len(mapping.elf.read(program.address - mapping.bias, 4)) == 4
    child.close()
    assert len(images._files) == 0


def test_a_child_that_lives_is_asked_itself(images):
    """It may be another program by now."""
    own = Mappings(os.getpid(), images)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        child = own.inherit(process.pid)

        assert {mapped.pid for mapped in child._mapped} == {process.pid}
        process.stdin.close()


@needs_compiler
def test_only_so_many_files_are_open(tmp_path, loaded):
    """The one that was not needed for longest is closed, and opened again when it is needed."""
    images = ElfFiles(limit=2)
    program = loaded()
    mappings = Mappings(program.pid, images)
    files = [mapped for mapped in mappings._mapped if mapped.path.startswith("/")]
    found = [mappings.find(mapped.start) for mapped in files]

    assert len(files) > 3
    assert len(images._files) == 2
    assert [mapping.elf.closed for mapping in found] == [True] * (len(files) - 2) + [False] * 2
    again = mappings.find(files[0].start)
    assert not again.elf.closed
    assert found[-2].elf.closed
    assert again.elf.build_id == found[0].elf.build_id
    mappings.close()
    images.close()


@needs_compiler
def test_a_file_is_closed_with_the_last_process_that_maps_it(images, loaded):
    """An open file would keep the file system of a container that has ended."""
    one, other = loaded(), loaded()
    first, second = Mappings(one.pid, images), Mappings(other.pid, images)
    mapping = first.find(one.address)

    assert second.find(other.address).elf is mapping.elf
    first.close()
    assert first.find(one.address) is None
    assert not mapping.elf.closed
    second.close()
    assert mapping.elf.closed
    assert len(images._files) == 0


def test_a_device_is_not_opened(images):
    """To open one can start something: a GPU, a tape, a watchdog."""
    with open("/dev/zero", "rb") as device:  # noqa: PTH123
        memory = mmap.mmap(
            device.fileno(), 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC
        )
    own = Mappings(os.getpid(), images)
    (line,) = [mapped for mapped in own._mapped if mapped.path == "/dev/zero"]

    assert own.find(line.start).elf is None
    assert line.file not in images._files
    memory.close()


def test_a_file_that_is_no_elf_file_has_no_image(images, tmp_path):
    """A JIT may share its code through a file."""
    (tmp_path / "code").write_bytes(b"\xc3" * 4096)
    with (tmp_path / "code").open("rb") as stream:
        memory = mmap.mmap(
            stream.fileno(), 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC
        )
    own = Mappings(os.getpid(), images)
    (line,) = [mapped for mapped in own._mapped if mapped.path == str(tmp_path / "code")]

    mapping = own.find(line.start)
    assert mapping.elf is None
    assert mapping.file == line.file
    memory.close()


@needs_compiler
def test_a_library_with_constants_in_front_of_its_code_is_biased_by_its_code(images, tmp_path):
    """Linkers may put both into one page of the file."""
    path = library(tmp_path, SOURCE, "-Wl,-z,noseparate-code")
    function = ctypes.CDLL(str(path)).twice
    address = ctypes.cast(function, ctypes.c_void_p).value
    mapping = Mappings(os.getpid(), images).find(address)
    (twice,) = [each for each in functions(path, ".symtab") if each.name == "twice"]

    assert address - mapping.bias == twice.value


@needs_compiler
def test_of_too_many_mappings_the_program_and_its_libraries_are_kept(tmp_path, images):
    """Any process can have 65,530 of them, and each would take half a kilobyte of ours."""
    path = library(tmp_path, SOURCE)
    many = LOADER.replace(
        "sys.stdin.read()",
        """
import mmap
kept = []
with open(sys.argv[1], "rb") as file:
    for _ in range(9_001):
        kept.append(mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC))
print("there", flush=True)
sys.stdin.read()
""",
    )
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", many, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        address = int(process.stdout.readline())
        assert process.stdout.readline() == b"there\n"
        mappings = Mappings(process.pid, images)
        found = mappings.find(address)
        text = Path(f"/proc/{process.pid}/maps").read_text()
        program = next(executable_mappings(process.pid, text))
        first = mappings.find(program.start)
        count = mappings.count
        mappings.close()
        process.stdin.close()

    assert len(list(executable_mappings(0, text))) > 9_001
    assert count == 4_096
    assert images.mappings_left_out == len(list(executable_mappings(0, text))) - 4_096
    assert found.path == str(path)
    assert first.path == program.path

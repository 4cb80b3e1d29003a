"""What is told of where a process publishes."""

import io
import os
import platform
import struct
import subprocess

import pytest
from elftools.elf.elffile import ELFFile

from otel_gpu import wire
from otel_gpu.capture.processes.thread_contexts import SYMBOL, ThreadContexts
from otel_gpu.instrumentation.thread_context import load_publisher
from otel_gpu.procfs import process_root
from otel_gpu.procfs.mapped_files import MappedFile, mapped_files
from otel_gpu.procfs.process_memory import memory_of
from tests.hosts import file_at
from tests.stubs.build import workload

IMAGE = 77


class Places(dict):
    def set(self, pid, place):
        self[pid] = wire.THREAD_CONTEXT_PLACE.unpack(place)

    def forget(self, pid):
        self.pop(pid, None)


@pytest.fixture
def places():
    return Places()


def test_this_process_is_told_of_once_it_has_the_library(places):
    """The place leads to what the library itself has: static storage, or that of a module."""
    assert load_publisher() is not None
    contexts = ThreadContexts(places)

    contexts.examine(os.getpid(), IMAGE, mapped_files(os.getpid()))

    program_ktime_ns, offset, module = places[os.getpid()]
    assert program_ktime_ns == IMAGE
    assert module or offset
    contexts.inherit(os.getpid(), 4242, IMAGE + 1)
    assert places[4242] == (IMAGE + 1, offset, module)
    contexts.forget(os.getpid())
    contexts.forget(4242)
    assert places == {}


def test_a_file_that_was_refused_is_looked_at_once_it_is_not(places, monkeypatch):
    """What a user served can be gone, and its number that of another file."""
    assert load_publisher() is not None
    contexts = ThreadContexts(places)
    with monkeypatch.context() as patch:
        patch.setattr(process_root, "server_of", lambda *_place: 65534)
        contexts.examine(os.getpid(), IMAGE, mapped_files(os.getpid()))
    assert places == {}

    contexts.examine(os.getpid(), IMAGE, mapped_files(os.getpid()))

    assert os.getpid() in places


def test_a_process_without_the_library_is_not_told_of(places):
    """Nobody who publishes nothing costs anything."""
    with subprocess.Popen(["sleep", "60"]) as sleeping:
        try:
            ThreadContexts(places).examine(sleeping.pid, IMAGE, mapped_files(sleeping.pid))
        finally:
            sleeping.kill()

    assert places == {}


IS_ARM = platform.machine() == "aarch64"
# Descriptors, and numbers.
DESCRIPTOR, NUMBERS = (
    f"-mtls-dialect={name}" for name in (("desc", "trad") if IS_ARM else ("gnu2", "gnu"))
)
VECTOR_OFFSET = 0 if IS_ARM else 8
OFFSETS = (17, 1029)  # the second word of a pair: R_X86_64_DTPOFF64, R_AARCH64_TLS_DTPREL
# As another compiler or linker would have it. A program has its own storage at a distance that is
# known when it is linked; libraries say where theirs is, in one of several ways.
PROGRAMS = {
    "program": ["-rdynamic"],
    "at a fixed address": ["-rdynamic", "-no-pie", "-fno-pie"],
    "of odd size": ["-rdynamic", "-DODD=3", "-DALIGNED=64"],
    "at an odd address": ["-rdynamic", "-DODD=129", "-DALIGNED=32", "-Wl,-z,norelro"],
    "with the old hashes": ["-rdynamic", "-Wl,--hash-style=sysv"],
    "static": ["-static"],
    "static, anywhere": ["-static-pie", "-DODD=77", "-DALIGNED=128"],
}
LIBRARIES = {
    "descriptor": [DESCRIPTOR],
    "numbers": [NUMBERS],
    "distance": ["-ftls-model=initial-exec"],
    "protected, descriptor": [DESCRIPTOR, '-DVISIBILITY="protected"'],
    "protected, numbers": [NUMBERS, '-DVISIBILITY="protected"'],
    "protected, distance": ["-ftls-model=initial-exec", '-DVISIBILITY="protected"'],
    "symbolic": [DESCRIPTOR, "-Wl,-Bsymbolic", "-DODD=19"],
    "descriptor, too large to be static": [DESCRIPTOR, "-DODD=100000"],
    "with the old hashes": [DESCRIPTOR, "-Wl,--hash-style=sysv"],
}
THREADS = 3


def places_of(program, *arguments):
    """Where each thread of a program has the pointer, and where it is told to be: distances."""
    told = Places()
    command = [program, str(THREADS), *arguments]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as running:
        lines = list(iter(running.stdout.readline, "all\n"))
        ThreadContexts(told).examine(running.pid, IMAGE, mapped_files(running.pid))
        _, offset, module = told[running.pid]
        has, said = [], []
        with memory_of(running.pid) as read:

            def word(address):
                return int.from_bytes(read(address, 8), "little")

            for line in lines:
                distance, pointer = map(int, line.split())
                has.append(distance)
                start = word(word(pointer + VECTOR_OFFSET) + 16 * module) if module else pointer
                said.append(start + offset - pointer)
        running.communicate()
    return has, said, module


@pytest.mark.parametrize("flags", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_that_publishes_itself_is_told_of(flags):
    """It has no relocation of its own storage: linkers agree on where that is."""
    has, said, module = places_of(workload("publisher", *flags))

    assert len(has) == THREADS
    assert said == has
    assert module == 0


@pytest.mark.parametrize("flags", LIBRARIES.values(), ids=LIBRARIES)
def test_a_library_that_publishes_is_told_of(flags):
    """However it was compiled, and wherever the dynamic linker put its storage."""
    library = workload("publisher", "-DLIBRARY", "-shared", "-fPIC", *flags)

    has, said, _ = places_of(workload("publisher", "-DPROGRAM"), library)

    assert len(has) == THREADS
    assert said == has


def without_name(library, folder):
    """A copy whose relocations do not name the symbol: LLD writes them so if nobody may define it again."""
    copy = folder / "nameless.so"
    content = bytearray(library.read_bytes())
    elf = ELFFile(io.BytesIO(bytes(content)))
    symbols = list(elf.get_section_by_name(".dynsym").iter_symbols())
    for name in (".rela.dyn", ".rela.plt"):
        section = elf.get_section_by_name(name)
        for number in range(section.num_relocations() if section else 0):
            entry = section.get_relocation(number).entry
            symbol, kind = symbols[entry["r_info_sym"]], entry["r_info_type"]
            if symbol.name != SYMBOL.decode():
                continue
            value, at = symbol["st_value"], section["sh_offset"] + number * 24
            if kind in OFFSETS:
                (place,) = elf.address_offsets(entry["r_offset"])
                struct.pack_into("<Q", content, place, value)
                kind = 0
            struct.pack_into("<QQq", content, at, entry["r_offset"], kind, value)
    copy.write_bytes(content)
    return copy


@pytest.mark.parametrize("flags", [DESCRIPTOR, NUMBERS, "-ftls-model=initial-exec"])
def test_relocations_that_name_no_symbol_are_known_by_its_offset(tmp_path, flags):
    """Other storage of the library is relocated in the same way."""
    library = workload("publisher", "-DLIBRARY", "-shared", "-fPIC", "-DODD=24", flags)

    has, said, _ = places_of(workload("publisher", "-DPROGRAM"), without_name(library, tmp_path))

    assert len(has) == THREADS
    assert said == has


class Elsewhere(MappedFile):
    """A mapping whose file is one that no process maps."""

    def open(self, root=None):
        return os.open(self.path, os.O_RDONLY)


def test_a_program_that_is_loaded_as_a_library_is_not_told_of(places):
    """Its distance holds only in the process that runs it."""
    program = workload("publisher", "-rdynamic")
    loaded = Elsewhere(os.getpid(), file_at(program), 0x1000, 0x2000, str(program))

    ThreadContexts(places).examine(os.getpid(), IMAGE, [loaded])

    assert places == {}

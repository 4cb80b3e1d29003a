"""Files that a process named: they take long to read, and have an error to say when they are closed."""

import os

import pytest

from otel_gpu.procfs.mapped_files import FileId, MappedFile
from otel_gpu.procfs.proc_files import close_file, read_file, stream_of
from otel_gpu.stacks.mappings import ElfFiles
from otel_gpu.stacks.symbols.elf_file import ElfImage


def closed_with_an_error(descriptor):
    """What close(2) says of it from now on is an error, as of a file system that is gone."""
    os.close(descriptor)
    return descriptor


@pytest.fixture
def descriptor():
    return os.open("/proc/self/exe", os.O_RDONLY | os.O_CLOEXEC)


def test_a_descriptor(descriptor):
    close_file(closed_with_an_error(descriptor))


def test_a_stream(descriptor):
    with stream_of(descriptor) as stream:
        assert stream.read(4) == b"\x7fELF"
        closed_with_an_error(descriptor)
    assert stream.closed


def test_an_elf_file(descriptor):
    image = ElfImage(descriptor)
    closed_with_an_error(descriptor)
    image.close()
    assert image.closed


def test_a_file_that_takes_long_is_read_for_a_while():
    """What the kernel had given by then is there."""
    assert 0 < len(read_file("/dev/urandom", 1 << 32, 0.01)) < 1 << 32
    assert len(read_file("/dev/urandom", 1 << 10, 10.0)) == 1 << 10


def test_files_that_are_held_open_for_processes(monkeypatch, descriptor):
    """All that others hold are still closed."""
    monkeypatch.setattr(MappedFile, "open", lambda _mapped, _root: closed_with_an_error(descriptor))
    mapped = MappedFile(os.getpid(), FileId(1, 2), 0, 4096, "/lib/one.so")
    images = ElfFiles()
    images.hold(mapped)
    images.release(mapped.file)
    images.hold(mapped)
    images.close()

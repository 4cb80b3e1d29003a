"""
Reads an ELF file that processes map: headers, and bytes by virtual address.

The file belongs to another user, who can truncate or write it at any time. Reading a memory map of a
truncated file raises SIGBUS, which would end the agent: one ``cp`` over a library in use is enough. So
everything is read with pread(2), which returns fewer bytes.

Headers are read here and not with pyelftools, which trusts the number of sections in the file: a sparse
file keeps it busy for hours (docs/decisions/0018-symbols.md).
"""

import mmap
import os
import stat
import struct
from collections.abc import Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from otel_gpu.procfs.proc_files import close_file

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_NOTE = struct.Struct("<III")
_IDENTITY: Final = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_LOAD, _NOTES, _THREAD_STORAGE, _EH_FRAME_HEADER = 1, 4, 7, 0x6474E550
_EXECUTABLE = 1
_NO_BITS = 8
_BLOCK_BYTES = 512  # of st_blocks
_COMPRESSED = 0x800
_BUILD_ID_SECTION = ".note.gnu.build-id"
_BUILD_ID_OWNER, _BUILD_ID_TYPE = b"GNU\0", 3
_PAGE_MASK = mmap.PAGESIZE - 1

# Linked files have 10 segments and 40 sections.
_MAX_SEGMENTS = 128
_MAX_SECTIONS = 2048
_MAX_NAMES_BYTES = 256 << 10
_MAX_NOTES_BYTES = 64 << 10
_MAX_NOTES = 64
_MAX_BUILD_ID_BYTES = 64
_MAX_READ_BYTES = 64 << 20
# A sparse file can have sizes without data on disk. With compression, files are larger than their data
# on disk, and some file systems do not report that size.
_MOST_COMPRESSED = 16
_UNSEEN_BYTES = 8 << 20


_read_bytes = 0


def read_bytes() -> int:
    """Return the bytes read from all ELF files so far."""
    return _read_bytes


class LoadSegment(NamedTuple):
    """A loaded part of the file; ``address`` is its virtual address."""

    address: int
    file_offset: int
    file_bytes: int
    memory_bytes: int
    executable: bool


class ThreadStorage(NamedTuple):
    """Thread-local storage of the file (PT_TLS): size and virtual address."""

    address: int
    memory_bytes: int
    alignment: int


class Section(NamedTuple):
    """A section: ``kind`` is sh_type, ``address`` is 0 if it is not loaded."""

    name: str
    kind: int
    flags: int
    address: int
    file_offset: int
    size_bytes: int
    link: int


class ElfImage:
    """
    One ELF file, shared by all processes that map it.

    It owns the descriptor, and closes it even if the constructor raises. ``machine`` is e_machine;
    ``sections`` are by number, up to a bound; ``eh_frame_header`` is the virtual address of
    ``.eh_frame_hdr``; ``thread_storage`` is its thread-local storage, or None. ``size_bytes`` is the
    size of the file when it was opened.

    Raises:
        ValueError: It is not a regular 64-bit little-endian ELF file, or damaged.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.sections: Sequence[Section] = ()
        try:
            self._read_headers()
        except (OSError, ValueError) as error:
            self.close()
            raise ValueError(f"not a readable ELF file: {error}") from error

    def __del__(self) -> None:
        # Also after a failed construction.
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed: then all reads are empty."""
        return self._fd < 0

    @property
    def owner(self) -> int:
        """
        The user that owns the file, by number.

        Raises:
            OSError: It was closed.
        """
        return os.fstat(self._fd).st_uid

    def close(self) -> None:
        """Close the file; calling it again has no effect."""
        fd, self._fd = self._fd, -1
        # Names of what was in it can outlive it by far, and refer to it.
        self.sections = ()
        if fd >= 0:
            close_file(fd)

    def address_of(self, file_offset: int) -> int | None:
        """
        Return the virtual address of a file offset; None: it is not loaded.

        A page with the end of one segment and the start of the next is mapped for both; then the
        executable one counts.
        """
        found = []
        for segment in self.segments:
            # A mapping starts at a page, a segment possibly not.
            start = segment.file_offset & ~_PAGE_MASK
            address = segment.address + file_offset - segment.file_offset
            if address >= 0 and start <= file_offset < segment.file_offset + segment.file_bytes:
                found.append((not segment.executable, start != file_offset, address))
        return min(found, key=itemgetter(0, 1))[2] if found else None

    def file_offset_of(self, address: int) -> int | None:
        """Return the file offset of a virtual address, or None."""
        for start, file_offset, file_bytes, _, _ in self.segments:
            if start <= address < start + file_bytes:
                return file_offset + address - start
        return None

    def read(self, address: int, size_bytes: int) -> memoryview:
        """Return bytes at a virtual address, up to the end of its segment, and at most 64 MiB."""
        for start, file_offset, file_bytes, _, _ in self.segments:
            offset = address - start
            if 0 <= offset < file_bytes:
                size_bytes = min(size_bytes, file_bytes - offset, _MAX_READ_BYTES)
                return memoryview(self.read_file(file_offset + offset, size_bytes))
        return memoryview(b"")

    def read_file(self, file_offset: int, size_bytes: int) -> bytes:
        """Return bytes at a file offset; fewer or none at the end."""
        size_bytes = min(size_bytes, self.size_bytes - file_offset)
        if self._fd < 0 or size_bytes <= 0:
            return b""
        try:
            found = os.pread(self._fd, size_bytes, file_offset)
        except (OSError, OverflowError):
            return b""
        global _read_bytes  # noqa: PLW0603 -- of all files
        _read_bytes += len(found)
        return found

    def is_on_disk(self, size_bytes: int) -> bool:
        """Whether ``size_bytes`` of the file can be on disk, so that it is not sparse."""
        return size_bytes <= max(_UNSEEN_BYTES, _MOST_COMPRESSED * self._disk_bytes)

    def section(self, name: str) -> memoryview:
        """
        Return the content of a section, read again at each call; empty: absent.

        Also empty: no bytes in the file, compressed, or larger than 64 MiB.
        """
        found = self.section_header(name)
        if found is None or found.flags & _COMPRESSED or found.size_bytes > _MAX_READ_BYTES:
            return memoryview(b"")
        return memoryview(self.read_file(found.file_offset, found.size_bytes))

    def section_header(self, name: str) -> Section | None:
        """Return the first section of a name that has bytes in the file, or None."""
        for section in self.sections:
            if section.name == name and section.kind != _NO_BITS:
                return section
        return None

    def _read_headers(self) -> None:
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        self.size_bytes = status.st_size
        self._disk_bytes = status.st_blocks * _BLOCK_BYTES
        # Files of the kernel have size 0, and reading them can have side effects.
        header = self.read_file(0, min(_HEADER.size, status.st_size))
        if len(header) < _HEADER.size or not header.startswith(_IDENTITY):
            raise ValueError("it is not a 64-bit little-endian one")
        (_, _, self.machine, _, _, programs_at, sections_at, _, _, program_bytes, programs,
         section_bytes, sections, names) = _HEADER.unpack(header)  # fmt: skip
        if programs and program_bytes != _PROGRAM_HEADER.size:
            raise ValueError("its program headers have another size")
        if programs > _MAX_SEGMENTS:
            raise ValueError(f"it has too many segments: {programs}")
        self.segments: Sequence[LoadSegment] = ()
        self.eh_frame_header: int | None = None
        self.thread_storage: ThreadStorage | None = None
        notes = self._read_segments(programs_at, programs)
        if section_bytes == _SECTION_HEADER.size:
            self._read_sections(sections_at, sections, names)
        build_id = self.section_header(_BUILD_ID_SECTION)
        if build_id is not None:
            notes.insert(0, (build_id.file_offset, build_id.size_bytes))
        self.build_id = self._find_build_id(notes)

    def _read_segments(self, at: int, count: int) -> list[tuple[int, int]]:
        data = self.read_file(at, count * _PROGRAM_HEADER.size)
        if len(data) < count * _PROGRAM_HEADER.size:
            raise ValueError("it ends before its program headers")
        segments, notes = [], []
        for header in _PROGRAM_HEADER.iter_unpack(data):
            kind, flags, offset, address, _, in_file, in_memory, alignment = header
            if kind == _LOAD:
                executable = bool(flags & _EXECUTABLE)
                segments.append(
                    LoadSegment(
                        address,
                        offset,
                        file_bytes=in_file,
                        memory_bytes=in_memory,
                        executable=executable,
                    )
                )
            elif kind == _NOTES:
                notes.append((offset, in_file))
            elif kind == _THREAD_STORAGE:
                self.thread_storage = ThreadStorage(address, in_memory, alignment)
            elif kind == _EH_FRAME_HEADER:
                self.eh_frame_header = address
        self.segments = segments
        return notes

    def _read_sections(self, at: int, count: int, names_number: int) -> None:
        count = min(count, _MAX_SECTIONS)
        data = self.read_file(at, count * _SECTION_HEADER.size)
        whole = len(data) - len(data) % _SECTION_HEADER.size
        headers = list(_SECTION_HEADER.iter_unpack(data[:whole]))
        names = b""
        if names_number < len(headers):
            _, _, _, _, offset, size, *_ = headers[names_number]
            names = self.read_file(offset, min(size, _MAX_NAMES_BYTES))
        self.sections = [
            Section(
                name=_text(names, name),
                kind=kind,
                flags=flags,
                address=address,
                file_offset=offset,
                size_bytes=size,
                link=link,
            )
            for name, kind, flags, address, offset, size, link, *_ in headers
        ]

    def _find_build_id(self, places: list[tuple[int, int]]) -> str | None:
        for file_offset, size_bytes in places:
            notes = self.read_file(file_offset, min(size_bytes, _MAX_NOTES_BYTES))
            for _ in range(_MAX_NOTES):
                if len(notes) < _NOTE.size:
                    break
                owner_bytes, text_bytes, kind = _NOTE.unpack_from(notes)
                notes = notes[_NOTE.size :]
                is_build_id = kind == _BUILD_ID_TYPE and notes[:owner_bytes] == _BUILD_ID_OWNER
                notes = notes[_padded(owner_bytes) :]
                if is_build_id and 0 < text_bytes <= min(_MAX_BUILD_ID_BYTES, len(notes)):
                    return notes[:text_bytes].hex()
                notes = notes[_padded(text_bytes) :]
        return None


def elf_in_memory(content: bytes) -> ElfImage:
    """
    Return an ELF file from its content.

    Raises:
        OSError: No memory for a copy.
        ValueError: It is not a valid ELF file.
    """
    fd = os.memfd_create("elf", os.MFD_CLOEXEC)
    try:
        with open(os.dup(fd), "wb") as stream:  # noqa: PTH123
            stream.write(content)
    except OSError:
        close_file(fd)
        raise
    return ElfImage(fd)


def _padded(size_bytes: int) -> int:
    return (size_bytes + 3) & ~3


def _text(names: bytes, at: int) -> str:
    end = names.find(b"\0", at, at + 256)
    return names[at:end].decode("ascii", "replace") if end >= 0 else ""

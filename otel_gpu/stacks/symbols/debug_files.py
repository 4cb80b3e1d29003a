"""
Finds the symbols that a file was stripped of.

A distribution keeps them in a separate file, found by the build id or by a name and checksum
in ``.gnu_debuglink``, or (Fedora) leaves a compressed table of functions in the library
itself. Files are searched in the root of the process and then in our own. Either can be another user's
file, and must match by build id or checksum. The process's user must be allowed to read it.
"""

import lzma
import os
import re
import zlib
from collections.abc import Iterator

from otel_gpu.procfs.process_root import ServedError, open_in_root
from otel_gpu.procfs.users import OWN, User, user_of
from otel_gpu.stacks.read_budget import FileWork
from otel_gpu.stacks.symbols.elf_file import ElfImage, elf_in_memory
from otel_gpu.stacks.symbols.symbol_table import SymbolSource, symbol_source

_FOLDER = "/usr/lib/debug"
_BUILD_ID = re.compile(r"[0-9a-f]{8,128}")
_CHECKSUM_BYTES = 4
_MAX_LINK_BYTES = 4096
_MAX_CHECKED_BYTES = 512 << 20  # a second of checksumming
_CHECKED_CHUNK_BYTES = 1 << 20
_MAX_PACKED_BYTES = 16 << 20
_MAX_UNPACKED_BYTES = 32 << 20
_MAX_UNPACKING_MEMORY_BYTES = 64 << 20


def symbol_sources(
    elf: ElfImage, pid: int, path: str, work: FileWork | None = None
) -> list[SymbolSource]:
    """
    Return the best symbols of an ELF file: one complete table, or two parts.

    Debug files are searched in the root of a process that maps the file, next to its path there.
    ``work`` counts those that a user serves.
    """
    own = symbol_source(elf, ".symtab", separate=False)
    if own is not None:
        return [own]
    for debug_file in _debug_files(elf, pid, path=path, work=work or FileWork()):
        source = symbol_source(debug_file, ".symtab", separate=True)
        if source is not None:
            return [source]
        debug_file.close()
    exported, packed = symbol_source(elf, ".dynsym", separate=False), _unpacked(elf)
    # The packed table has the symbols that .dynsym lacks.
    rest = symbol_source(packed, ".symtab", separate=True) if packed else None
    return [source for source in (exported, rest) if source is not None]


def _debug_files(elf: ElfImage, pid: int, path: str, work: FileWork) -> Iterator[ElfImage]:
    roots = (f"/proc/{pid}/root", "/") if pid > 0 else ("/",)
    reader = user_of(pid) if pid > 0 else OWN
    owners = frozenset({0, os.geteuid(), elf.owner})
    build_id = elf.build_id
    if build_id is not None and _BUILD_ID.fullmatch(build_id):
        place = f"{_FOLDER}/.build-id/{build_id[:2]}/{build_id[2:]}.debug"
        for root in roots:
            found = _open(root, path=place, reader=reader, pid=pid, work=work)
            if found is not None and found.owner in owners and found.build_id == build_id:
                yield found
    link = _section(elf, ".gnu_debuglink", _MAX_LINK_BYTES)
    name, _, _ = link.partition(b"\0")
    if not name or b"/" in name or len(link) < len(name) + 1 + _CHECKSUM_BYTES:
        return
    checksum = int.from_bytes(link[-_CHECKSUM_BYTES:], "little")
    folder = path.rpartition("/")[0]
    file = name.decode("utf-8", "surrogateescape")
    places = [(roots[-1], f"{_FOLDER}{folder}/{file}")]
    if pid > 0:
        # In another root, the folder of the library has no meaning.
        near = (f"{folder}/{file}", f"{folder}/.debug/{file}", f"{_FOLDER}{folder}/{file}")
        places = [(roots[0], place) for place in near] + places
    for root, place in places:
        found = _open(root, path=place, reader=reader, pid=pid, work=work)
        if found is not None and found.owner in owners and _belongs(found, elf, checksum):
            yield found


def _open(root: str, path: str, reader: User, pid: int, work: FileWork) -> ElfImage | None:
    try:
        return ElfImage(open_in_root(root, path, user=reader, pid=pid))
    except ServedError as error:
        work.refuse(pid, path, error)
    except (OSError, ValueError):
        pass
    return None


def _belongs(debug_file: ElfImage, elf: ElfImage, checksum: int) -> bool:
    if elf.build_id is not None and debug_file.build_id is not None:
        return debug_file.build_id == elf.build_id
    size_bytes = debug_file.size_bytes
    if size_bytes > _MAX_CHECKED_BYTES or not debug_file.is_on_disk(size_bytes):
        return False
    found = 0
    for at in range(0, size_bytes, _CHECKED_CHUNK_BYTES):
        found = zlib.crc32(debug_file.read_file(at, _CHECKED_CHUNK_BYTES), found)
    return found == checksum


def _section(elf: ElfImage, name: str, limit_bytes: int) -> bytes:
    # Empty if it is larger, without reading it.
    header = elf.section_header(name)
    return bytes(elf.section(name)) if header and header.size_bytes <= limit_bytes else b""


def _unpacked(elf: ElfImage) -> ElfImage | None:
    # .gnu_debugdata of MiniDebugInfo: a small ELF file, packed with xz.
    packed = _section(elf, ".gnu_debugdata", _MAX_PACKED_BYTES)
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_UNPACKING_MEMORY_BYTES)
    try:
        content = unpacker.decompress(packed, _MAX_UNPACKED_BYTES)
        return elf_in_memory(content) if unpacker.eof else None
    except (lzma.LZMAError, MemoryError, OSError, ValueError):
        return None

"""
Symbol tables of large files, kept from run to run.

A table that took long to sort is written to a private folder under its build id, and mapped into memory
by the next run: that takes no time, and the kernel can reclaim the memory. It contains no names
(symbol_table.py), so a wrong table can only leave functions without a name. Still, it is used only if
folder and file belong to the agent's user alone, and the checksum is right.

    ┌───────┬─────────┬───────┬───────┬─────────────────────┬──────────┬───────────────┐
    │ magic │ version │ crc32 │ count │ sizes of 2 sources  │ build id │ 8 a symbol    │
    │ 8     │ 4       │ 4     │ 8     │ 16 each             │ 64       │ ascending     │
    └───────┴─────────┴───────┴───────┴─────────────────────┴──────────┴───────────────┘
"""

import contextlib
import mmap
import os
import re
import secrets
import stat
import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from otel_gpu.stacks.symbols.symbol_table import SymbolSource

# magic, version, checksum and number of the keys; for each of two sources its number of symbols and the
# length of its names; build id in hex.
_HEADER = struct.Struct("<8sIIQQQQQ64s")
_MAGIC = b"otelsyms"
_VERSION = 1
_KEY_BYTES = 8
_MAX_SOURCES = 2
_MAX_KEYS = 8 << 20
_MAX_FOLDER_BYTES = 256 << 20
_MAX_FILES = 1024
_CHUNK_BYTES = 1 << 20
_BUILD_ID = re.compile(r"[0-9a-f]{16,64}")
_SUFFIX, _UNFINISHED = ".symbols", ".unfinished"
_OF_OTHERS, _WRITABLE_BY_OTHERS = 0o077, 0o022


def cache_folder() -> Path | None:
    """Return the folder of the cache: in /var/cache for root, else in the user's home."""
    if os.geteuid() == 0:
        return Path("/var/cache/otel-gpu/symbols")
    home = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(home) if home.startswith("/") else Path.home() / ".cache"
    except RuntimeError:  # The user has no home folder.
        return None
    return base / "otel-gpu" / "symbols"


class SymbolCache:
    """
    Symbol tables on disk; a cache that cannot be used is empty.

    The folder is created with the first table. Beyond ``limit_bytes``, the least recently used tables
    are removed.
    """

    def __init__(self, folder: Path | None, limit_bytes: int = _MAX_FOLDER_BYTES) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes

    def load(self, build_id: str, sources: Sequence[SymbolSource]) -> Sequence[int] | None:
        """Return the keys stored for the same sources, or None."""
        if not _BUILD_ID.fullmatch(build_id) or len(sources) > _MAX_SOURCES:
            return None
        with contextlib.suppress(OSError, ValueError), self._open_folder() as folder:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            fd = os.open(build_id + _SUFFIX, flags, dir_fd=folder)
            try:
                return _mapped_keys(fd, build_id, sources)
            finally:
                os.close(fd)
        return None

    def store(self, build_id: str, sources: Sequence[SymbolSource], keys: Sequence[int]) -> None:
        """Store a table for the next run."""
        is_named = _BUILD_ID.fullmatch(build_id) and len(sources) <= _MAX_SOURCES
        if not is_named or not 0 < len(keys) <= _MAX_KEYS:
            return
        content = memoryview(keys).cast("B")  # type: ignore[arg-type]
        header = _header(build_id, sources, checksum=zlib.crc32(content), count=len(keys))
        with contextlib.suppress(OSError, ValueError):
            if self._folder is not None:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._open_folder() as folder:
                self._evict_for(folder, len(content) + _HEADER.size)
                _write(folder, build_id + _SUFFIX, (header, content))

    @contextlib.contextmanager
    def _open_folder(self) -> Iterator[int]:
        if self._folder is None:
            raise OSError("no folder")
        fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            status = os.fstat(fd)
            if status.st_uid != os.geteuid() or status.st_mode & _OF_OTHERS:
                raise OSError("others may write here")
            yield fd
        finally:
            os.close(fd)

    def _evict_for(self, folder: int, size_bytes: int) -> None:
        files = []
        with os.scandir(folder) as entries:
            for entry in islice(entries, _MAX_FILES):
                if entry.name.endswith((_SUFFIX, _UNFINISHED)):
                    status = entry.stat(follow_symlinks=False)
                    files.append((status.st_mtime_ns, status.st_size, entry.name))
        files.sort(reverse=True)
        for _, used_bytes, name in files:
            size_bytes += used_bytes
            if size_bytes > self._limit_bytes or name.endswith(_UNFINISHED):
                os.unlink(name, dir_fd=folder)


def _mapped_keys(fd: int, build_id: str, sources: Sequence[SymbolSource]) -> Sequence[int] | None:
    status = os.fstat(fd)
    is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    if not is_ours or status.st_nlink != 1 or status.st_mode & _WRITABLE_BY_OTHERS:
        return None
    header = os.pread(fd, _HEADER.size, 0)
    if len(header) < _HEADER.size:
        return None
    _, _, checksum, count, *_ = _HEADER.unpack(header)
    if (
        header != _header(build_id, sources, checksum=checksum, count=count)
        or not 0 < count <= _MAX_KEYS
    ):
        return None
    end = _HEADER.size + count * _KEY_BYTES
    if status.st_size != end:
        return None
    found = 0
    # Read and not mapped, so that these pages do not count as memory of the agent.
    for at in range(_HEADER.size, end, _CHUNK_BYTES):
        found = zlib.crc32(os.pread(fd, min(_CHUNK_BYTES, end - at), at), found)
    if found != checksum:
        return None
    os.utime(fd)
    mapped = mmap.mmap(fd, end, access=mmap.ACCESS_READ)
    return memoryview(mapped)[_HEADER.size :].cast("Q")


def _header(build_id: str, sources: Sequence[SymbolSource], checksum: int, count: int) -> bytes:
    sizes = [size for source in sources for size in (source.symbols, source.names_bytes)]
    sizes += [0] * (2 * _MAX_SOURCES - len(sizes))
    return _HEADER.pack(_MAGIC, _VERSION, checksum, count, *sizes, build_id.encode())


def _write(folder: int, name: str, parts: Sequence[bytes | memoryview]) -> None:
    # Under a temporary name first, so that no reader sees an incomplete file.
    unfinished = secrets.token_hex(8) + _UNFINISHED
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(unfinished, flags, 0o600, dir_fd=folder)
    try:
        with os.fdopen(fd, "wb") as stream:
            for part in parts:
                stream.write(part)
        os.replace(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        os.unlink(unfinished, dir_fd=folder)
        raise

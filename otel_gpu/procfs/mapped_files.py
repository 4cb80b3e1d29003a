"""
Files that processes map: CUDA libraries, dynamic linkers, C libraries, executables.

A file is identified by device and inode, as for uprobes: one library has many paths (containers,
links), and one path can mean many libraries.
"""

import contextlib
import ctypes
import mmap
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from otel_gpu.procfs.proc_files import close_file, read_file
from otel_gpu.procfs.process_root import ServedError, check_device, open_in_root, open_regular
from otel_gpu.procfs.reader import open_mapping, read_process_file
from otel_gpu.procfs.uninterruptible_waits import check_lock
from otel_gpu.procfs.users import OWN

_MAPS_LINE = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) ..x. ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+) *(.*)$", re.MULTILINE
)
# Wheels can put a hash into the name; NCCL's plugins (libnccl-net.so) are excluded.
_CUDA_LIBRARY = re.compile(r"^lib(cuda(rt[^/]*)?|nccl(-[0-9a-f]{8,})?)\.so[^/]*$")
_PRELOAD_MEMORY = re.compile(
    r"^([0-9a-f]+)-[0-9a-f]+ rw.s 00000000 \S+ \d+ +/memfd:otel_gpu_preload \(deleted\)$",
    re.MULTILINE,
)
_VERBS_LIBRARY = re.compile(r"^libibverbs(-[0-9a-f]{8,})?\.so[^/]*$")
_MARKS_LIBRARY = re.compile(r"^libotel_gpu_(marks|nvtx)\.[^/]*so$")
_PRELOAD = re.compile(r"^otel_gpu_preload\.[^/]*so$")
_DYNAMIC_LINKER = re.compile(r"^ld(-linux[^/]*|-musl[^/]*|-[0-9.]+)\.so[^/]*$")
_ALLOCATOR = re.compile(r"^libc10\.so[^/]*$")
_C_LIBRARY = re.compile(r"^(libc\.so|libc-[0-9.]+\.so|libc\.musl|ld-musl)[^/]*$")
MAX_MAPS_BYTES = 32 << 20
_DELETED = " (deleted)"
_IN_MEMORY = "/memfd:"


class FileId(NamedTuple):
    """A file by device and inode; ``device`` is major << 20 | minor."""

    device: int
    inode: int


class MappedFile(NamedTuple):
    """
    An executable mapping of a file by one process, from ``start`` to before ``end``.

    ``executable_mappings`` also yields mappings without a file: their inode is 0, and their path is
    empty or a word in brackets.
    """

    pid: int
    file: FileId
    start: int
    end: int
    path: str
    file_offset: int = 0

    @property
    def name(self) -> str:
        """The file's name without folders, as the process sees it."""
        return self.path.rsplit("/", 1)[-1].removesuffix(_DELETED).removeprefix(_IN_MEMORY[1:])

    @property
    def is_in_memory(self) -> bool:
        """Whether a program created the file in memory, so that its name has no meaning."""
        return self.path.startswith(_IN_MEMORY)

    @property
    def is_cuda_library(self) -> bool:
        """Whether it is libcudart, libcuda or libnccl, under any version or suffix."""
        return is_cuda_library(self.name)

    @property
    def is_verbs_library(self) -> bool:
        """Whether it is libibverbs, under any version or suffix: RDMA."""
        return is_verbs_library(self.name)

    @property
    def is_probed_library(self) -> bool:
        """Whether its calls are probed: a library of CUDA, or libibverbs."""
        return is_probed_library(self.name)

    @property
    def is_allocator(self) -> bool:
        """Whether it is the library to which PyTorch's allocator reports its blocks."""
        return _ALLOCATOR.match(self.name) is not None

    @property
    def is_marks_library(self) -> bool:
        """Whether it is one of our libraries that programs call with marks or ranges."""
        return is_marks_library(self.name)

    @property
    def is_preload_library(self) -> bool:
        """Whether its name is that of the preload library."""
        return is_preload_library(self.name)

    @property
    def is_dynamic_linker(self) -> bool:
        """Whether it is the ld.so of any C library."""
        return _DYNAMIC_LINKER.match(self.name) is not None

    @property
    def is_c_library(self) -> bool:
        """Whether it is the library that has fork()."""
        return is_c_library(self.name)

    def open(self, root: int | None = None) -> int:
        """
        Open the mapped inode; the caller closes the descriptor.

        The link in map_files is that inode, even if the path is gone or is another file in our mount
        namespace. Without permission for it, or after the process ended, the path is opened, and
        must be the same file.

        Args:
            root: An O_PATH descriptor of the process's root, if it was opened before the process ended.

        Raises:
            ServedError: A user serves its file system, so opening could block.
            OSError: Neither works, or reading the process's memory map could block.
        """
        check_lock(self.pid)
        # First, as on some kernels only maps has the device below an overlay.
        check_device(self.file.device, self.pid)
        refused = None
        paths = (partial(self._open_path, *place) for place in self._paths(root))
        attempts: Iterator[Callable[[], int]] = chain((self._open_link,), paths)
        for attempt in attempts:
            try:
                return attempt()
            except ServedError as error:
                refused = error
            except OSError:
                continue
        raise refused or self._gone()

    def _open_link(self) -> int:
        return open_regular(open_mapping(self.pid, self.start, self.end), self.pid)

    def _open_path(self, folder: str, path: str) -> int:
        fd = open_in_root(folder, path, user=OWN, pid=self.pid)
        try:
            if not _is_file(fd, self.file):
                raise self._gone()
        except OSError:
            close_file(fd)
            raise
        return fd

    def _gone(self) -> OSError:
        return OSError(f"{self.path} is gone, or is not the file that process {self.pid} maps")

    def _paths(self, root: int | None) -> Iterator[tuple[str, str]]:
        folder = f"/proc/{self.pid}/root" if root is None else f"/proc/self/fd/{root}"
        yield folder, self.path
        # A path in maps begins at the root of the mount namespace, also in a chroot.
        with contextlib.suppress(OSError):
            prefix = str(Path(folder).readlink())
            if self.path.startswith(f"{prefix}/"):
                yield folder, self.path.removeprefix(prefix)
        yield "/", self.path


def file_of(fd: int) -> FileId:
    """
    Return the identity of an open file as in /proc/PID/maps: fstat(2) can return another device.

    Raises:
        OSError: It cannot be mapped.
    """
    try:
        with mmap.mmap(fd, 1, access=mmap.ACCESS_COPY) as mapping:
            start = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
            found = re.search(
                rf"^0*{start:x}-\S+ \S+ \S+ ([0-9a-f]+):([0-9a-f]+) (\d+)",
                _read_maps(os.getpid()),
                re.MULTILINE,
            )
    except ValueError as error:  # It is empty.
        raise OSError(str(error)) from error
    if found is None:
        raise OSError("the mapping is not in /proc/self/maps")
    return _file_id(*found.groups())


def _is_file(fd: int, file: FileId) -> bool:
    status = os.fstat(fd)
    device = os.major(status.st_dev) << 20 | os.minor(status.st_dev)
    return FileId(device, status.st_ino) == file or file_of(fd) == file


def _file_id(major: str, minor: str, inode: str) -> FileId:
    return FileId(int(major, 16) << 20 | int(minor, 16), int(inode))


def is_preload_library(name: str) -> bool:
    """Whether a file's name is that of the preload library."""
    return _PRELOAD.match(name) is not None


def is_cuda_library(name: str) -> bool:
    """Whether a file's name is libcudart, libcuda or libnccl, under any version or suffix."""
    return _CUDA_LIBRARY.match(name) is not None


def is_probed_library(name: str) -> bool:
    """Whether a file's name is that of a library whose calls are probed."""
    return is_cuda_library(name) or is_verbs_library(name)


def is_verbs_library(path: str) -> bool:
    """Whether a name or path is that of libibverbs."""
    return _VERBS_LIBRARY.match(path.rpartition("/")[2]) is not None


def is_marks_library(path: str) -> bool:
    """Whether a name or path is that of our library for marks or ranges."""
    return _MARKS_LIBRARY.match(path.rpartition("/")[2]) is not None


def is_c_library(name: str) -> bool:
    """Whether a file's name is that of a C library, under any version."""
    return _C_LIBRARY.match(name) is not None


@contextlib.contextmanager
def root_of(pid: int) -> Iterator[int | None]:
    """Open the root of a process, to find its files after its end; None: it has ended."""
    try:
        root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        yield root
    finally:
        close_file(root)


def mapped_files(pid: int) -> Iterator[MappedFile]:
    """
    Yield the files that a process maps executable, each once, in address order.

    A process that ended, or is not readable, has none.
    """
    seen = set()
    for mapped in executable_mappings(pid, _read_maps(pid)):
        if mapped.path.startswith("/") and mapped.file not in seen:
            seen.add(mapped.file)
            yield mapped


def program_path(pid: int) -> str:
    """Return the path of a process's program as in its maps; empty: it has ended."""
    try:
        return str(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        return ""


def mappings_of(mapped: MappedFile) -> Iterator[MappedFile]:
    """
    Yield all executable mappings that a process has of a file.

    A library can map one of its pages again at a lower address, as libffi does for callbacks. So
    the first mapping is not always the dynamic linker's.
    """
    mappings = executable_mappings(mapped.pid, _read_maps(mapped.pid))
    return (other for other in mappings if other.file == mapped.file)


def preload_memory(pid: int) -> int | None:
    """Return the address of the preload library's counters in a process, or None."""
    found = _PRELOAD_MEMORY.search(_read_maps(pid))
    return int(found[1], 16) if found else None


def executable_mappings(pid: int, text: str) -> Iterator[MappedFile]:
    """Yield the executable mappings in the text of /proc/PID/maps."""
    for found in _MAPS_LINE.finditer(text):
        start, end, offset, major, minor, inode, path = found.groups()
        file = _file_id(major, minor, inode)
        yield MappedFile(
            pid=pid,
            file=file,
            start=int(start, 16),
            end=int(end, 16),
            path=path,
            file_offset=int(offset, 16),
        )


def all_pids() -> Iterator[int]:
    """Yield the pids of all processes in /proc."""
    return (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())


def thread_ids(pid: int) -> list[int]:
    """Return the threads of a process; empty: it has ended."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208
    except OSError:
        return []


def child_pids(pid: int) -> Iterator[int]:
    """Yield the living children of a process."""
    for tid in thread_ids(pid):
        children = read_file(f"/proc/{pid}/task/{tid}/children", MAX_MAPS_BYTES)
        yield from map(int, children.split())


def cgroup_pids(cgroup: Path) -> Iterator[int]:
    """
    Yield the processes of a cgroup and its descendants.

    Raises:
        OSError: The cgroup does not exist.
    """
    for folder, _, files in os.walk(cgroup, onerror=_raise):
        if "cgroup.procs" in files:
            text = Path(folder, "cgroup.procs").read_text(encoding="ascii")
            yield from (int(line) for line in text.split() if int(line))


def _read_maps(pid: int) -> str:
    return read_process_file(pid, "maps", MAX_MAPS_BYTES).decode("utf-8", "replace")


def _raise(error: OSError) -> None:
    raise error

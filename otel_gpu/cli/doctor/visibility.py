"""
Checks of what can be seen of processes.

Probes are on exported functions of the CUDA libraries, ``libcudart`` (runtime) and ``libcuda``
(driver), and of ``libnccl``. A program that links the CUDA runtime statically exports no such
function: its runtime calls are invisible, and only the driver calls below them are seen.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from otel_gpu.capture.probes.elf_exports import ElfSymbols, exported_functions
from otel_gpu.capture.probes.library_sites import LibrarySites
from otel_gpu.capture.probes.probe_sites import SiteClass
from otel_gpu.capture.processes.interpreters import diagnose
from otel_gpu.cli.doctor.checks import CheckResult, missing, named, ok, warning
from otel_gpu.errors import HostError
from otel_gpu.procfs.mapped_files import FileId, MappedFile, all_pids, mapped_files
from otel_gpu.procfs.proc_files import close_file, process_of, stream_of
from otel_gpu.procfs.reader import open_maps, read_maps
from otel_gpu.stacks.python.interpreter_memory import LayoutVerdict
from otel_gpu.stacks.symbols.elf_file import ElfImage
from otel_gpu.wire.probe_symbols import layer_of_library, probes_of
from otel_gpu.wire.probe_table import COUNTED_APIS, LAYER_NAMES

_DELETED = " (deleted)"
# The runtime's own table of error names: a file with this text holds a CUDA runtime.
_RUNTIME_TEXT = b"cudaErrorCudartUnloading\0"
# A variable that NCCL reads: a file with this text holds NCCL.
_NCCL_TEXT = b"\0NCCL_P2P_LEVEL\0"
_MAX_SCANNED_BYTES = 512 << 20
_WINDOW_BYTES = 4 << 20
_ELF_32_BIT = b"\x7fELF\x01"
_PIDS_LISTED = 5
_SYMBOLS_LISTED = 3
_PYTHON_HINTS = {
    LayoutVerdict.EARLY: "nothing to do if it has just begun, or waits outside of Python: a capture looks "
    "again by itself; ask again when it works",
    LayoutVerdict.BAD: "ask again, since it may have been looked at in a bad moment; if it says the same, this "
    "interpreter was built in an unusual way (as with Py_TRACE_REFS): use an ordinary build",
    LayoutVerdict.UNKNOWN: "run the program with a final release of CPython 3.10 to 3.14 that has a GIL; "
    "until then its stacks have native frames only",
}


def examine_processes(pids: Iterable[int] | None = None) -> CheckResult:
    """List the CUDA libraries that are mapped now, and the processes that map them."""
    users: dict[FileId, list[int]] = {}
    paths: dict[FileId, str] = {}
    hidden = 0
    for pid in sorted(all_pids() if pids is None else pids):
        for mapped in mapped_files(pid):
            if mapped.is_cuda_library:
                users.setdefault(mapped.file, []).append(pid)
                paths[mapped.file] = mapped.path
        hidden += _is_hidden(pid)
    blind = f"; {_count(hidden)} may not be looked into" if hidden else ""
    by_path = sorted((path, users[file]) for file, path in paths.items())
    listed = "; ".join(f"{path} ({_count(len(who))}: {_list(who)})" for path, who in by_path)
    return ok((listed or "no process uses CUDA now") + blind)


def examine_process(pid: int) -> Iterator[CheckResult]:
    """Check what a capture would see of one process; raise ``HostError`` if it does not exist."""
    home = Path("/proc") / str(pid)
    if not home.exists():
        raise HostError(f"no process {pid}", hint="list processes with ps -e")
    process = process_of(pid)
    if process not in {None, pid}:
        raise HostError(f"{pid} is a thread of process {process}", hint=f"--pid {process}")
    if _is_hidden(pid):
        refused = missing(
            f"process {pid} may not be looked into",
            "run as root, or as the process's user with CAP_SYS_PTRACE",
        )
        yield from named(process=refused)
        return
    files = list(mapped_files(pid))
    libraries = [mapped for mapped in files if mapped.is_cuda_library]
    none = warning("no CUDA library is mapped now", "if one is loaded later, it is probed then")
    yield from named(process=check_program(pid, home), mount_namespace=check_mount_namespace(home))
    for finding in map(check_library, libraries) if libraries else [none]:
        yield from named(library=finding)
    for sites in filter(None, map(check_probe_sites, libraries)):
        yield from named(probe_sites=sites)
    yield from named(
        static_runtime=check_static_runtime(files),
        static_nccl=check_static_nccl(files),
        python_frames=check_python_frames(pid, files),
    )


def check_program(pid: int, home: Path) -> CheckResult:
    """Check that probes can be placed in the program of the process."""
    try:
        with (home / "exe").open("rb") as program:
            magic = program.read(len(_ELF_32_BIT))
        path = os.fsdecode((home / "exe").readlink())
    except FileNotFoundError:
        return missing(f"{pid} is a kernel thread, or has ended")
    except OSError as error:
        return warning(f"{pid}: cannot be read: {error.strerror}")
    if magic == _ELF_32_BIT:
        return missing(f"{pid} runs {path}, a 32-bit program")
    return ok(f"{pid} runs {path}")


def check_mount_namespace(home: Path) -> CheckResult:
    """Check whether paths of the process are valid in the agent's mount namespace."""
    try:
        if (home / "ns" / "mnt").readlink() == Path("/proc/self/ns/mnt").readlink():
            return ok("the agent's own")
    except OSError as error:
        return warning(f"cannot be read: {error.strerror}")
    return ok(f"another one; its files are read through {home}/map_files and {home}/root")


def check_library(library: MappedFile) -> CheckResult:
    """Check how many APIs of the probe table a mapped CUDA library exports."""
    layer = layer_of_library(library.name)
    total = sum(api.layer == layer for api in COUNTED_APIS)
    where = f"{library.path} ({LAYER_NAMES[layer]})"
    try:
        probes = probes_of(_exported_functions(library), library.name)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        return warning(
            f"{where}: cannot be read ({reason}), so none of its calls will be seen",
            "run as root; if the file was deleted, restart the process",
        )
    if not probes:
        return warning(
            f"{where}: exports none of the {total} APIs of the probe table",
            "none of its calls will be seen; is it a stub or a wrapper?",
        )
    apis = len({probe.api.number for probe in probes})
    detail = f"{where}: {apis} of {total} APIs, {len(probes)} functions to probe"
    if library.path.endswith(_DELETED):
        return warning(
            f"{detail}; the file was replaced or deleted while in use",
            "it can be probed as it is; restart the process at the next chance",
        )
    return ok(detail)


def check_probe_sites(library: MappedFile) -> CheckResult | None:
    """List the instructions of a library's probes, and their classes. None: it has no probes."""
    try:
        with stream_of(library.open()) as stream:
            symbols = ElfSymbols(stream)
            sites = LibrarySites(symbols, stream)
            sites.move(probes_of(symbols.functions, library.name))
    except (OSError, ValueError):  # reported by ``check_library``
        return None
    alike: dict[tuple[SiteClass, str], list[str]] = {}
    for symbol, (offset, instruction, kind) in sites.chosen.items():
        place = f"{instruction} at +{offset}" if instruction else "their entry"
        alike.setdefault((kind, place), []).append(symbol)
    rows = sorted(alike.items(), key=lambda row: (row[0][0], -len(row[1]), row[0][1]))
    listed = "; ".join(
        f"{len(symbols)} {kind} ({place}{_some(symbols) if kind != SiteClass.EMULATED else ''})"
        for (kind, place), symbols in rows
    )
    if sites.unsafe:
        return warning(
            f"{library.name}: {listed}; {len(sites.unsafe)} carry no probe, as the kernel would "
            "single-step them, which has corrupted processes on arm64",
            "run the program with --preload, which counts calls without probes, or take the risk with "
            "capture.foreign_probes: all",
        )
    return ok(f"{library.name}: {listed}") if listed else None


def _some(symbols: list[str]) -> str:
    rest = len(symbols) - _SYMBOLS_LISTED
    return f": {', '.join(sorted(symbols)[:_SYMBOLS_LISTED])}" + (
        f" and {rest} more" if rest > 0 else ""
    )


def check_static_runtime(files: Iterable[MappedFile]) -> CheckResult:
    """Check for a statically linked CUDA runtime, which has no probes."""
    names = {mapped.name for mapped in files if mapped.is_cuda_library}
    inside = _files_with(_RUNTIME_TEXT, files)
    if inside:
        return warning(
            "these files hold a CUDA runtime of their own: " + ", ".join(inside),
            "of calls into it, only the driver calls below are seen; link with -cudart shared "
            "to see both",
        )
    has_driver = any(name.startswith("libcuda.") for name in names)
    if has_driver and not any("cudart" in name for name in names):
        return warning(
            "libcuda is mapped and libcudart is not: driver calls are seen, and what stands above "
            "them is not",
            "nothing to do for a program that uses the driver API directly",
        )
    return ok("no file holds a CUDA runtime of its own")


def check_static_nccl(files: Iterable[MappedFile]) -> CheckResult:
    """Check for a statically linked NCCL, which has no probes."""
    inside = _files_with(_NCCL_TEXT, files)
    if inside:
        return warning(
            "these files hold NCCL of their own: " + ", ".join(inside),
            "of its collectives, only the CUDA calls inside are seen; link with libnccl.so to see both",
        )
    return ok("no file holds NCCL of its own")


def check_python_frames(pid: int, files: Iterable[MappedFile]) -> CheckResult:
    """Check whether stacks of the process can have Python frames."""
    found = diagnose(pid, files)
    if found is None:
        return ok("no Python interpreter is mapped")
    python = f"Python {found.version}".rstrip()
    if found.kind == LayoutVerdict.GOOD:
        return ok(f"{python}: its frames can be read")
    return warning(
        f"{python}: stacks have no lines of Python: {found.reason}", _PYTHON_HINTS[found.kind]
    )


def _is_hidden(pid: int) -> bool:
    try:
        maps = open_maps(pid)
        try:
            read_maps(pid, maps, 1)
        finally:
            os.close(maps)
    except OSError as error:
        return isinstance(error, PermissionError)
    return False


def _exported_functions(library: MappedFile) -> list[tuple[str, int]]:
    descriptor = library.open()
    try:
        return exported_functions(f"/proc/self/fd/{descriptor}")
    finally:
        close_file(descriptor)


def _files_with(text: bytes, files: Iterable[MappedFile]) -> list[str]:
    return [file.path for file in files if not file.is_cuda_library and _holds(text, file)]


def _holds(text: bytes, file: MappedFile) -> bool:
    try:
        elf = ElfImage(file.open())
    except (OSError, ValueError):
        return False
    with closing(elf):
        return any(text in window for window in _read_only_data(elf))


def _read_only_data(elf: ElfImage) -> Iterator[bytes]:
    # Frameworks' libraries have gigabytes of device code, none of it in this section.
    section = elf.section_header(".rodata")
    start = section.file_offset if section else 0
    end = start + min(section.size_bytes if section else elf.size_bytes, _MAX_SCANNED_BYTES)
    # Windows overlap, so each text is whole in one of them.
    for place in range(start, end, _WINDOW_BYTES - len(_RUNTIME_TEXT)):
        window = elf.read_file(place, min(_WINDOW_BYTES, end - place))
        if not window:
            return
        yield window


def _count(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"


def _list(pids: list[int]) -> str:
    rest = len(pids) - _PIDS_LISTED
    listed = ", ".join(map(str, pids[:_PIDS_LISTED]))
    return listed + (f" and {rest} more" if rest > 0 else "")

"""Reads from /proc what a process is, while it lives."""

# Some facts about reading /proc
# ------------------------------
#
# Nothing in /proc is a snapshot: every file is made up when it is read, the process may
# exec or die between two of them, and its pid may then name another process. A pid with
# a start time names one process for as long as the machine is up, so the start time is
# read first and last, and facts from two processes are thrown away. An exec keeps the
# start time and changes the executable, so that is compared as well.
#
# What this means for us: the process decides what stands in its command line, name,
# environment and cgroup, so all of it is text of unknown encoding and size. Each file is
# read up to a bound, and bytes that are not UTF-8 are replaced. The name in "stat" may
# hold spaces, newlines and ")": it ends at the last ")".

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from otel_gpu.procfs import kernel_clock
from otel_gpu.procfs.jobs import VARIABLES as JOB_VARIABLES
from otel_gpu.procfs.proc_files import read_file, stat_fields
from otel_gpu.procfs.process_context import read_process_context
from otel_gpu.procfs.reader import read_process_file
from otel_gpu.procfs.redaction import mask_secrets
from otel_gpu.procfs.users import user_name

MAX_ARGS = 64
MAX_ARG_BYTES = 4096
# Of all arguments together: to mask secrets takes 4 µs a character, and telemetry has them with each process.
MAX_COMMAND_BYTES, MAX_STRANGER_COMMAND_BYTES = 8192, 1024
MAX_ENVIRONMENT_BYTES = 1024 * 1024
MAX_VALUE_BYTES = 4096
MAX_CGROUPS = 32

ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The settings of PyTorch's allocator of device memory, by the new name and the old one."""
_OTEL_VARIABLES = ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES")
ENVIRONMENT_NAMES: Mapping[str, tuple[str, ...]] = {
    "all": (*_OTEL_VARIABLES, *ALLOCATOR_VARIABLES, *JOB_VARIABLES),
    "otel": _OTEL_VARIABLES,
    "none": (),
}
"""The variables that are read, by the value of ``capture.environment``."""

_NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_ATTEMPTS = 3
_PF_EXITING = 0x4
# Among the fields of "stat" behind the name.
_PARENT, _FLAGS, _START_TICKS = 1, 6, 19
_MOUNTED_CONTAINER = re.compile(rb"/(?:containers|overlay-containers)/([0-9a-f]{64})/")
_CONTAINER_ID = re.compile(rb"[0-9a-f]{64}")
_DELETED = " (deleted)"


def read_facts(
    pid: int, proc: Path = Path("/proc"), *, environment: str = "all"
) -> dict[str, Any] | None:
    """
    Return what a PROCESS record says about a process.

    ``environment`` is a key of ``ENVIRONMENT_NAMES``.

    None when the process is gone, or went and came back as another one meanwhile. What
    may not be read is None or empty. Secrets in the command line are masked.
    """
    folder = f"{proc}/{pid}"
    facts = None
    for _ in range(_ATTEMPTS):
        start = _read_start(folder)
        if start is None:
            return None
        exe = _read_exe(folder)
        facts = _read_once(pid, proc, start, exe, ENVIRONMENT_NAMES[environment])
        end = _read_start(folder)
        if end is None or end.ticks != start.ticks:
            return None
        # An exec in between mixes two programs; it is over when nothing changed.
        if _read_exe(folder) == exe and end.comm == start.comm:
            break
    return facts


def read_unwatched_process(pid: int, proc: Path = Path("/proc")) -> dict[str, Any] | None:
    """
    Return what a CULPRIT record says about a process that is not watched; None when it is gone.

    Less than of one that is: nothing is read of its memory or its environment.
    """
    folder = f"{proc}/{pid}"
    start = _read_start(folder)
    if start is None:
        return None
    _, uid = read_ids(folder)
    return {
        "start_boot_ns": _boot_ns_of(start),
        "comm": start.comm,
        "exe": _read_exe(folder),
        "command_args": _read_command_args(pid, proc, MAX_STRANGER_COMMAND_BYTES),
        "owner": None if uid is None else user_name(uid),
        "cgroups": _cgroup_lines(_read_cgroup(folder)),
    }


def program_of(pid: int, proc: Path = Path("/proc")) -> tuple[int, str] | None:
    """
    Return when a process was started, in clock ticks, and its name; None when it is gone.

    Another process with its pid, or another program of the same process, differs in these.
    """
    start = _read_start(f"{proc}/{pid}")
    return None if start is None else (start.ticks, start.comm)


def began_by(facts: Mapping[str, Any], ktime_ns: int) -> bool:
    """
    Say whether facts are of a process that had begun by a moment of CLOCK_MONOTONIC.

    If not, they are of one that was given the pid of another since.
    """
    return bool(facts["start_boot_ns"] - facts["boot_offset_ns"] <= ktime_ns)


def start_ktime_ns(pid: int) -> int | None:
    """Return when a process was started, by CLOCK_MONOTONIC, to a tick; None when it is gone."""
    started_ns = start_boot_ns(f"/proc/{pid}")
    return None if started_ns is None else started_ns - _boot_offset_ns()


def start_boot_ns(folder: str) -> int | None:
    """Return when a process was started, by CLOCK_BOOTTIME; None when it is gone."""
    start = _read_start(folder)
    return None if start is None else _boot_ns_of(start)


def is_exiting(pid: int, tid: int) -> bool:
    """
    Say whether a thread has begun to end, or is gone.

    The kernel marks a thread before it reports its end to tracepoints. So who adds a thread to
    a map that a tracepoint removes it from, and then finds it unmarked, leaves nothing behind.
    """
    fields = stat_fields(f"/proc/{pid}/task/{tid}")
    try:
        return bool(int(fields[_FLAGS]) & _PF_EXITING)
    except (IndexError, ValueError):
        return True


def read_ids(folder: str) -> tuple[int | None, int | None]:
    """Return the pid as a process itself sees it and its effective user, None if unknown."""
    vpid = uid = None
    for line in read_file(f"{folder}/status", 16384).splitlines():
        fields = line.split()
        try:
            if line.startswith(b"NSpid:"):
                vpid = int(fields[-1])
            elif line.startswith(b"Uid:"):
                uid = int(fields[2])
        except (IndexError, ValueError):
            continue
    return vpid, uid


class _Start(NamedTuple):
    # What "stat" says that the rest hangs on.
    comm: str
    ppid: int
    ticks: int


def _read_once(
    pid: int, proc: Path, start: _Start, exe: str | None, variables: tuple[str, ...]
) -> dict[str, Any]:
    folder = f"{proc}/{pid}"
    vpid, uid = read_ids(folder)
    cgroup_bytes = _read_cgroup(folder)
    return {
        "start_boot_ns": _boot_ns_of(start),
        # CLOCK_BOOTTIME minus CLOCK_MONOTONIC: the time that the machine was suspended.
        "boot_offset_ns": _boot_offset_ns(),
        "ppid": start.ppid,
        "vpid": vpid,
        "exe": exe,
        "command_args": _read_command_args(pid, proc, MAX_COMMAND_BYTES),
        "comm": start.comm,
        "owner": None if uid is None else user_name(uid),
        "cgroups": _cgroup_lines(cgroup_bytes),
        "env": _read_environment(pid, proc, variables),
        "otel_context": read_process_context(pid, proc),
        "mountinfo_container_id": _read_mounted_container(folder, cgroup_bytes),
    }


def _read_cgroup(folder: str) -> bytes:
    return read_file(f"{folder}/cgroup", MAX_CGROUPS * MAX_VALUE_BYTES)


def _cgroup_lines(text: bytes) -> list[str]:
    return [
        line.decode(errors="replace")[:MAX_VALUE_BYTES] for line in text.splitlines()[:MAX_CGROUPS]
    ]


def _read_start(folder: str) -> _Start | None:
    before, _, behind = read_file(f"{folder}/stat", 4096).rpartition(b")")
    fields = behind.split()
    comm = before.partition(b"(")[2].decode(errors="replace")
    with contextlib.suppress(IndexError, ValueError):
        return _Start(comm, int(fields[_PARENT]), int(fields[_START_TICKS]))
    return None


def _read_exe(folder: str) -> str | None:
    try:
        target = os.fsencode(Path(folder, "exe").readlink())
    except OSError:
        return None
    # The suffix says that the file was replaced, as an upgrade does.
    return target.decode(errors="replace").removesuffix(_DELETED) or None


def _read_command_args(pid: int, proc: Path, limit_bytes: int) -> list[str]:
    text = read_process_file(pid, "cmdline", MAX_ARGS * MAX_ARG_BYTES, proc)
    # Programs that write a title over their arguments leave a tail of NULs.
    args = text.rstrip(b"\0").split(b"\0") if text.strip(b"\0") else []
    kept: list[str] = []
    for arg in args[:MAX_ARGS]:
        part = arg[:MAX_ARG_BYTES] if kept else arg[: min(MAX_ARG_BYTES, limit_bytes)]
        limit_bytes -= len(part)
        if limit_bytes < 0:
            # Not a piece of it: that could end before what says that it is a secret.
            break
        kept.append(part.decode(errors="replace"))
    return mask_secrets(kept)


def _read_environment(pid: int, proc: Path, variables: tuple[str, ...]) -> dict[str, str]:
    if not variables:
        return {}
    block = b"\0" + read_process_file(pid, "environ", MAX_ENVIRONMENT_BYTES, proc)
    found: dict[str, str] = {}
    for name in variables:
        _, present, rest = block.partition(b"\0" + name.encode() + b"=")
        if present:
            value = rest.partition(b"\0")[0]
            found[name] = value[:MAX_VALUE_BYTES].decode(errors="replace")
    return found


def _read_mounted_container(folder: str, cgroups: bytes) -> str | None:
    # Runtimes mount files of the container's own folder over /etc/hostname and others.
    # Looked at only where the cgroups are hidden by a cgroup namespace. In a user namespace
    # anybody can mount anything, so there the mounts say nothing.
    if _CONTAINER_ID.search(cgroups) or not _is_in_our_user_namespace(folder):
        return None
    match = _MOUNTED_CONTAINER.search(read_file(f"{folder}/mountinfo", 128 * 1024))
    return match[1].decode() if match else None


def _is_in_our_user_namespace(folder: str) -> bool:
    own = Path("/proc/self/ns/user")
    try:
        return Path(folder, "ns", "user").readlink() == own.readlink()
    except OSError:
        return False


def _boot_ns_of(start: _Start) -> int:
    return start.ticks * _NS_PER_TICK - kernel_clock.shift_ns("boottime")


def _boot_offset_ns() -> int:
    offset_ns = kernel_clock.boot_ns() - kernel_clock.ktime_ns()
    # The two reads are a microsecond apart; only a suspend makes more of it.
    return offset_ns if offset_ns > 1_000_000 else 0  # noqa: PLR2004 - 1 ms

"""Reads the facts about a living process from /proc."""

# Some facts about reading /proc
# ------------------------------
#
# Nothing in /proc is a snapshot: every file is generated when it is read, the process can
# exec or die between two reads, and its pid can then be that of another process. A pid with
# a start time identifies one process until the next boot. So the start time is read first
# and last, and facts from two processes are discarded. An exec keeps the start time and
# changes the executable, so that is compared as well.
#
# Consequences: the process controls its command line, name, environment and cgroup, so all
# of it is text of unknown encoding and size. Each file is read up to a bound, and bytes
# that are not UTF-8 are replaced. The name in "stat" can contain spaces, newlines and ")":
# it ends at the last ")".

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from otel_gpu.options import ReadVariables
from otel_gpu.procfs import kernel_clock
from otel_gpu.procfs.jobs import VARIABLES as JOB_VARIABLES
from otel_gpu.procfs.proc_files import read_file, stat_fields
from otel_gpu.procfs.process_context import read_process_context
from otel_gpu.procfs.reader import read_process_file
from otel_gpu.procfs.redaction import mask_secrets
from otel_gpu.procfs.users import user_name
from otel_gpu.wire.bodies import ProcessFacts

MAX_ARGS = 64
MAX_ARG_BYTES = 4096
# All arguments together: masking secrets takes 4 µs a character, and telemetry repeats them for each process.
MAX_COMMAND_BYTES, MAX_UNWATCHED_COMMAND_BYTES = 8192, 1024
MAX_ENVIRONMENT_BYTES = 1024 * 1024
MAX_VALUE_BYTES = 4096
MAX_CGROUPS = 32

ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Settings of PyTorch's device memory allocator: the new name and the old one."""
_OTEL_VARIABLES = ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES")
ENVIRONMENT_NAMES: Mapping[str, tuple[str, ...]] = {
    ReadVariables.ALL: (*_OTEL_VARIABLES, *ALLOCATOR_VARIABLES, *JOB_VARIABLES),
    ReadVariables.OTEL: _OTEL_VARIABLES,
    ReadVariables.NONE: (),
}
"""The variables that are read, by the value of ``capture.environment``."""

_NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_ATTEMPTS = 3
_PF_EXITING = 0x4
# Indices into the fields of "stat" after the name.
_PARENT, _FLAGS, _START_TICKS = 1, 6, 19
_MOUNTED_CONTAINER = re.compile(rb"/(?:containers|overlay-containers)/([0-9a-f]{64})/")
_CONTAINER_ID = re.compile(rb"[0-9a-f]{64}")
_DELETED = " (deleted)"


def read_facts(
    pid: int, proc: Path = Path("/proc"), *, environment: str = "all"
) -> ProcessFacts | None:
    """
    Return the body of a PROCESS record; None: the process ended, or became another one.

    ``environment`` is a key of ``ENVIRONMENT_NAMES``. What is not readable is None or empty.
    Secrets in the command line are masked.
    """
    folder = f"{proc}/{pid}"
    facts = None
    for _ in range(_ATTEMPTS):
        start = _read_start(folder)
        if start is None:
            return None
        exe = _read_exe(folder)
        facts = _read_once(
            pid, proc, start=start, exe=exe, variables=ENVIRONMENT_NAMES[environment]
        )
        end = _read_start(folder)
        if end is None or end.ticks != start.ticks:
            return None
        # An exec in between mixes two programs; the facts are valid if nothing changed.
        if _read_exe(folder) == exe and end.comm == start.comm:
            break
    return facts


def read_unwatched_process(pid: int, proc: Path = Path("/proc")) -> ProcessFacts | None:
    """
    Return the body of a CULPRIT record about an unwatched process; None: it has ended.

    It has fewer facts: memory and environment of such a process are not read.
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
        "command_args": _read_command_args(pid, proc, MAX_UNWATCHED_COMMAND_BYTES),
        "owner": None if uid is None else user_name(uid),
        "cgroups": _cgroup_lines(_read_cgroup(folder)),
    }


def program_of(pid: int, proc: Path = Path("/proc")) -> tuple[int, str] | None:
    """
    Return the start of a process in clock ticks, and its name; None: it has ended.

    They differ for another process with its pid, and for another program of the process.
    """
    start = _read_start(f"{proc}/{pid}")
    return None if start is None else (start.ticks, start.comm)


def began_by(facts: ProcessFacts, ktime_ns: int) -> bool:
    """
    Whether facts are about a process that had started by a time of CLOCK_MONOTONIC.

    If not, another process got the pid since.
    """
    return (facts["start_boot_ns"] or 0) - (facts["boot_offset_ns"] or 0) <= ktime_ns


def start_ktime_ns(pid: int) -> int | None:
    """Return the start of a process by CLOCK_MONOTONIC, to a tick; None: it has ended."""
    started_ns = start_boot_ns(f"/proc/{pid}")
    return None if started_ns is None else started_ns - _boot_offset_ns()


def start_boot_ns(folder: str) -> int | None:
    """Return the start of a process by CLOCK_BOOTTIME; None: it has ended."""
    start = _read_start(folder)
    return None if start is None else _boot_ns_of(start)


def is_exiting(pid: int, tid: int) -> bool:
    """
    Whether a thread is ending or has ended.

    The kernel marks a thread before it reports its end to tracepoints. So first add the thread to a
    map that a tracepoint cleans, then check it here: an unmarked thread will be removed.
    """
    fields = stat_fields(f"/proc/{pid}/task/{tid}")
    try:
        return bool(int(fields[_FLAGS]) & _PF_EXITING)
    except (IndexError, ValueError):
        return True


def read_ids(folder: str) -> tuple[int | None, int | None]:
    """Return a process's pid in its own namespace and its effective user; None: unknown."""
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
    # The fields of "stat" that identify the process.
    comm: str
    ppid: int
    ticks: int


def _read_once(
    pid: int, proc: Path, start: _Start, exe: str | None, variables: tuple[str, ...]
) -> ProcessFacts:
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
    # The suffix marks a deleted file, as after an upgrade.
    return target.decode(errors="replace").removesuffix(_DELETED) or None


def _read_command_args(pid: int, proc: Path, limit_bytes: int) -> list[str]:
    text = read_process_file(pid, "cmdline", limit_bytes=MAX_ARGS * MAX_ARG_BYTES, proc=proc)
    # Programs that write a title over their arguments leave trailing NULs.
    args = text.rstrip(b"\0").split(b"\0") if text.strip(b"\0") else []
    kept: list[str] = []
    for arg in args[:MAX_ARGS]:
        part = arg[:MAX_ARG_BYTES] if kept else arg[: min(MAX_ARG_BYTES, limit_bytes)]
        limit_bytes -= len(part)
        if limit_bytes < 0:
            # Not a part of it: that could end before the word that marks a secret.
            break
        kept.append(part.decode(errors="replace"))
    return mask_secrets(kept)


def _read_environment(pid: int, proc: Path, variables: tuple[str, ...]) -> dict[str, str]:
    if not variables:
        return {}
    block = b"\0" + read_process_file(pid, "environ", limit_bytes=MAX_ENVIRONMENT_BYTES, proc=proc)
    found: dict[str, str] = {}
    for name in variables:
        _, present, rest = block.partition(b"\0" + name.encode() + b"=")
        if present:
            value = rest.partition(b"\0")[0]
            found[name] = value[:MAX_VALUE_BYTES].decode(errors="replace")
    return found


def _read_mounted_container(folder: str, cgroups: bytes) -> str | None:
    # Runtimes mount files from the container's folder over /etc/hostname and others.
    # Used only if a cgroup namespace hides the cgroups. In a user namespace, users can mount
    # anything, so its mounts prove nothing.
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
    # The two reads are a microsecond apart; a larger difference is a suspend.
    return offset_ns if offset_ns > 1_000_000 else 0  # noqa: PLR2004 - 1 ms

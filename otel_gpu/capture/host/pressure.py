"""
The load of the host and of the watched processes' cgroups.

This is context, not a cause: what a thread waits for is measured on the thread. Only the throttling
counters of a cgroup can explain a wait beside an idle CPU by a quota.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from otel_gpu.procfs.proc_files import read_file
from otel_gpu.wire.bodies import CgroupLoad, HostLoad

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
_NS_PER_US = 1000
_MAX_FILE_BYTES = 1 << 20
_MAX_CGROUPS = 64
_READINGS_AFTER_END = 5


class PressureReader:
    """
    Reads the load, also of cgroups whose processes ended recently.

    The kernel can count throttling of a process after its end.
    """

    def __init__(self, *, proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
        self._proc = proc
        self._cgroups = cgroups
        self._folders: dict[int, tuple[Path, ...]] = {}
        self._readings_left: dict[int, int] = {}

    def read(self, pids: Iterable[int]) -> HostLoad:
        """Return the body of RECORD_PRESSURE: cumulative counters by the kernel's names."""
        for pid in pids:
            folders = _cpu_cgroups(self._proc / str(pid), self._cgroups)
            if folders:
                self._folders[pid] = folders
                self._readings_left[pid] = _READINGS_AFTER_END
        proc = self._proc
        # /proc/vmstat has two hundred lines; two of them are needed.
        vmstat = b"\n" + read_file(f"{proc}/vmstat", _MAX_FILE_BYTES)
        load = _lines(proc / "loadavg")
        read: HostLoad = {
            "psi": {name: _read_psi(proc / "pressure" / name) for name in ("cpu", "io", "memory")},
            "load1": float(load[0].split()[0]) if load else 0.0,
            "cpus": os.cpu_count() or 1,
            "swap_in_pages": _number_of(vmstat, b"pswpin"),
            "swap_out_pages": _number_of(vmstat, b"pswpout"),
            "cgroups": self._read_cgroups(),
        }
        self._readings_left = {pid: n - 1 for pid, n in self._readings_left.items() if n > 0}
        self._folders = {pid: self._folders[pid] for pid in self._readings_left}
        return read

    def _read_cgroups(self) -> dict[str, CgroupLoad]:
        members: dict[Path, list[int]] = {}
        own = ((pid, folders[0]) for pid, folders in self._folders.items())
        above = ((pid, other) for pid, folders in self._folders.items() for other in folders[1:])
        for pid, folder in (*own, *above):
            if folder in members or len(members) < _MAX_CGROUPS:
                members.setdefault(folder, []).append(pid)
        return {
            str(folder.relative_to(self._cgroups)): found
            for folder, inside in members.items()
            if (found := _read_cgroup(folder, inside))
        }


def _read_cgroup(folder: Path, pids: list[int]) -> CgroupLoad | None:
    stat = dict(line.split() for line in _lines(folder / "cpu.stat"))
    if "nr_periods" not in stat:
        return None
    throttled_ns = int(stat.get("throttled_time", 0))
    if "throttled_usec" in stat:
        throttled_ns = int(stat["throttled_usec"]) * _NS_PER_US
    return {
        "nr_periods": int(stat["nr_periods"]),
        "nr_throttled": int(stat["nr_throttled"]),
        "throttled_ns": throttled_ns,
        "pids": pids,
    }


def _number_of(text: bytes, name: bytes) -> int:
    found = text.partition(b"\n%s " % name)[2].split(None, 1)
    return int(found[0]) if found else 0


def _read_psi(path: Path) -> dict[str, float]:
    return {
        f"{kind}_{name}" + ("_us" if name == "total" else ""): float(value)
        for kind, *fields in map(str.split, _lines(path))
        for name, value in (field.split("=") for field in fields)
    }


def _cpu_cgroups(process: Path, cgroups: Path) -> tuple[Path, ...]:
    # A process's cgroup and its ancestors, whose quotas apply to it as well.
    for line in _lines(process / "cgroup"):
        number, controllers, path = line.split(":", 2)
        for folder in _mount_points(cgroups, number, controllers):
            own = folder / path.strip("/")
            if (own / "cpu.stat").exists():
                # Without the root cgroup, which has no quota.
                return (own, *own.parents[: path.strip("/").count("/")])
    return ()


def _mount_points(cgroups: Path, number: str, controllers: str) -> Iterator[Path]:
    if "cpu" in controllers.split(","):
        yield cgroups / "cpu"
        yield cgroups / "cpu,cpuacct"
    elif number == "0":
        yield cgroups
        yield cgroups / "unified"


def _lines(path: Path) -> list[str]:
    return read_file(str(path), _MAX_FILE_BYTES).decode("utf-8", "replace").splitlines()

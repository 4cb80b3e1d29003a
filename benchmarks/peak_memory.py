"""
The peak of a process's resident memory, and of no other's.

``ru_maxrss`` is not that: a process has from its first program on what the one that started it had
resident (the kernel takes it over in exec, from what fork or vfork left), so that after a large parent
all rows say the same.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

# Small, so that what it starts has hardly anything from it.
_LAUNCHER: Final = """
import json, os, sys, time
begin_s = time.monotonic()
quiet = [(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
pid = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
_, status, usage = os.wait4(pid, 0)
wall_s = time.monotonic() - begin_s
code = os.waitstatus_to_exitcode(status)
print(json.dumps([code, wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024]))
"""


class Usage(NamedTuple):
    """What a process took."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def own_peak_mib() -> float:
    """Return the highest resident memory that this process has had since its program began."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return int(found[1]) / 1024


def run_measured(command: Sequence[str | Path], environ: Mapping[str, str] | None = None) -> Usage:
    """
    Run a command without its output, and return what it took.

    Raises:
        RuntimeError: It failed.
    """
    launcher = (sys.executable, "-I", "-S", "-c", _LAUNCHER, *map(str, command))
    environ = os.environ | dict(environ or {})
    run = subprocess.run(launcher, stdout=subprocess.PIPE, env=environ, check=True)
    code, *took = json.loads(run.stdout)
    if code:
        raise RuntimeError(f"{command[0]} failed: {code}")
    return Usage(*took)

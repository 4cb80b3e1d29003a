"""What children of the agent keep of it."""

import os
import shutil
import subprocess
import sys

import pytest

# As the kernel makes a program that has capabilities of its own: its files in /proc are root's.
NAMED = """
import ctypes, sys
from pathlib import Path
from otel_gpu.capture.processes.inherited import name_child
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
try:
    Path("/proc/self/comm").write_text("by its file")
except PermissionError:
    name_child("otel-gpu-child")
print(Path("/proc/self/status").read_text().split()[1])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv (util-linux) is not installed")
def test_a_child_has_a_name_of_its_own_where_its_files_are_those_of_root():
    """It may not write to its files in /proc, and goes on."""
    keeps = "+dac_read_search"
    user = ("--reuid=65532", "--regid=65532", "--clear-groups")
    inside = ("setpriv", *user, f"--inh-caps={keeps}", f"--ambient-caps={keeps}")
    done = subprocess.run(
        [*inside, sys.executable, "-c", NAMED], stdout=subprocess.PIPE, text=True, check=True
    )

    assert done.stdout == "otel-gpu-child\n"

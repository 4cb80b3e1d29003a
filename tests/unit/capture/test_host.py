"""Unit tests of the host's facts and limits."""

import subprocess
import sys

SCRIPT = """
import resource
from otel_gpu.capture.host import allow_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, 3000))
allow_open_files(4096)
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def limits_after(soft):
    # In a process of its own: a hard limit cannot be raised again by everybody.
    finished = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(soft=soft)],
        capture_output=True,
        text=True,
        check=True,
    )
    return finished.stdout.split()


def test_open_files_are_allowed_up_to_the_hard_limit():
    """
    The soft limit rises to what is wanted, but never above the hard one.
    """
    assert limits_after(1024) == ["3000", "3000"]


def test_a_limit_that_is_high_enough_stays():
    """
    Whoever set a limit on purpose keeps it where it is enough.
    """
    assert limits_after(3000) == ["3000", "3000"]

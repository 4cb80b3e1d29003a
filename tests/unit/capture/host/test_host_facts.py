"""Unit tests of the host's facts and limits."""

import subprocess
import sys

SCRIPT = """
import resource
from otel_gpu.capture.host.host_facts import allow_open_files
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
    """The soft limit rises to what is wanted, but never above the hard one."""
    assert limits_after(1024) == ["3000", "3000"]


def test_a_limit_that_is_high_enough_stays():
    """Whoever set a limit on purpose keeps it where it is enough."""
    assert limits_after(3000) == ["3000", "3000"]


CYCLES = """
import gc
from otel_gpu.capture.host.host_facts import collect_rarely
collect_rarely()
class Node: freed = 0; __del__ = lambda self: setattr(Node, "freed", Node.freed + 1)
for _ in range(60_000):
    node = Node()
    node.itself = node
print(gc.get_freeze_count() > 1_000, gc.get_stats()[2]["collections"], Node.freed > 40_000)
"""


def test_cycles_are_looked_for_rarely_and_are_found():
    """What lives is left alone, and what nobody can reach goes, tens of thousands at a time."""
    found = subprocess.run(
        [sys.executable, "-c", CYCLES], capture_output=True, text=True, check=True
    )

    assert found.stdout.split() == ["True", "1", "True"]


UNUSED = """
import mmap, os, sys
from otel_gpu.capture.host.host_facts import resident_bytes, unmap_unused_code
with open(sys.argv[1], "rb") as file:
    kept = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
    changed = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
changed[:] = b"b" * len(changed)
total = sum(kept[::4096])
before = resident_bytes()
unmap_unused_code()
print(before - resident_bytes() > len(kept) * 0.9, sum(kept[::4096]) == total, changed[5:7])
"""


def test_pages_of_files_that_nothing_uses_are_unmapped(tmp_path):
    """They come back when they are used, and what was written stays as it was written."""
    path = tmp_path / "library"
    path.write_bytes(b"a" * (16 << 20))
    found = subprocess.run(
        [sys.executable, "-c", UNUSED, path], capture_output=True, text=True, check=True
    )

    assert found.stdout.split() == ["True", "True", "b'bb'"]

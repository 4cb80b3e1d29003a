"""Names of generated code, from files that anybody could have written."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.stacks.symbols import perf_map
from otel_gpu.stacks.symbols.perf_map import PerfMap


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


class Process:
    """A process with a map, in a folder that stands for /tmp."""

    def __init__(self, folder):
        self.child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        self.path = folder / f"perf-{self.child.pid}.map"
        self.clock = Clock()
        self.map = PerfMap(self.child.pid, self.clock)

    def write(self, text, mode="w"):
        with self.path.open(mode) as stream:
            stream.write(text)

    def end(self):
        self.child.communicate()


@pytest.fixture
def process(tmp_path, monkeypatch):
    monkeypatch.setattr(perf_map, "_FOLDER", str(tmp_path))
    process = Process(tmp_path)
    yield process
    process.end()


def test_functions_are_found_by_address(process):
    """With or without 0x, and names with spaces in them."""
    process.write("1000 20 first\n0x1020 0x10 py::second:/a b.py\nFFFFFFFFFFFFF000 10 last\n")

    assert process.map.find(0x1000) == ("first", 0)
    assert process.map.find(0x101F) == ("first", 31)
    assert process.map.find(0x1025) == ("py::second:/a b.py", 5)
    assert process.map.find(0xFFFFFFFFFFFFF00F) == ("last", 15)
    for nowhere in (0, 0xFFF, 0x1030, 0xFFFFFFFFFFFFF010):
        assert process.map.find(nowhere) is None


def test_memory_that_was_used_again_has_its_last_name(process):
    """The file only ever grows."""
    process.write("1000 100 old\n1080 100 new\n1000 10 newest\n")

    assert process.map.find(0x1005) == ("newest", 5)
    assert process.map.find(0x1010) == ("old", 16)
    assert process.map.find(0x1090) == ("new", 16)
    assert process.map.find(0x1120) == ("new", 160)


def test_lines_that_are_none_are_skipped_and_counted(process):
    """Among them one that is not written to its end yet, which is not counted."""
    process.write("1000 20 good\nno line\n1000\n10000000000000000 1 long\n1040 1 \n\n1020 20 cut")

    assert process.map.find(0x1000) == ("good", 0)
    assert process.map.find(0x1020) is None
    assert process.map.malformed == 5


def test_a_line_that_is_none_is_counted_once(process):
    """A file that has grown is read from its beginning again; one that was begun anew is new."""
    process.write("no line\n1000 20 good\n")
    assert process.map.find(0x1000) == ("good", 0)
    process.write("not this one either\n", "a")
    process.clock.now_s += 1.1
    process.map.find(0x1000)
    assert process.map.malformed == 2

    process.write("2000 20 other\n")
    process.clock.now_s += 1.1
    assert process.map.find(0x2000) == ("other", 0)
    process.write("nor this\n", "a")
    process.clock.now_s += 1.1
    process.map.find(0x2000)
    assert process.map.malformed == 3


def test_the_file_is_read_again_when_it_has_grown(process):
    """But not at once: it may be asked for at each address that has no name."""
    assert process.map.find(0x1000) is None
    process.write("1000 20 first\n")
    assert process.map.find(0x1000) is None
    process.clock.now_s += 1.1
    assert process.map.find(0x1000) == ("first", 0)
    process.write("2000 20 second\n", "a")
    process.clock.now_s += 1.1
    assert process.map.find(0x2000) == ("second", 0)
    assert process.map.find(0x1000) == ("first", 0)


def test_a_process_that_is_gone_keeps_its_names(process):
    """They were read while it lived."""
    process.write("1000 20 first\n")
    process.map.find(0x1000)
    process.end()
    process.clock.now_s += 10

    assert process.map.find(0x1000) == ("first", 0)
    assert PerfMap(process.child.pid).find(0x1000) is None


def test_a_file_of_before_the_process_is_another_ones(process):
    """Pids come again, and nobody cleans up."""
    process.write("1000 20 first\n")
    an_hour_ago_s = time.time() - 3600
    os.utime(process.path, (an_hour_ago_s, an_hour_ago_s))

    assert process.map.find(0x1000) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_not_read(process):
    """Anybody may write to /tmp."""
    process.write("1000 20 first\n")
    os.chown(process.path, 12345, 12345)

    assert process.map.find(0x1000) is None


@pytest.mark.parametrize(
    "make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/etc/passwd")]
)
def test_what_is_no_file_is_not_read(process, make):
    """Nor waited for."""
    make(process.path)

    assert process.map.find(0x1000) is None


def test_of_a_large_file_the_end_is_read(process):
    """It has what was written last; a program can make any number of functions."""
    with process.path.open("w") as stream:
        stream.writelines(f"{number * 16:x} 10 function_{number}\n" for number in range(250_000))

    assert process.map.find(249_999 * 16) == ("function_249999", 0)
    assert process.map.find(16) is None
    assert len(process.map._starts) == 50_000


@given(st.lists(st.binary(max_size=40)))
def test_noise_is_no_map(lines):
    """Nor a reason to fail."""
    found = PerfMap(0)
    found._learn(b"\n".join(lines) + b"\n")

    assert len(found._starts) + found.malformed <= sum(line.count(b"\n") + 1 for line in lines) + 1
    assert found.find(0x1000) is None or len(found._starts) > 0


@pytest.mark.skipif(sys.version_info < (3, 12), reason="this Python writes no map")
def test_python_writes_such_a_map():
    """With -X perf, since 3.12."""
    program = "import sys\ndef waits(): print(flush=True); sys.stdin.read()\nwaits()"
    with subprocess.Popen(
        [sys.executable, "-X", "perf", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        found = PerfMap(process.pid)
        found.find(0)
        names = found._names
        process.communicate()
    Path(f"/tmp/perf-{process.pid}.map").unlink()

    assert any(b"waits" in name for name in names)


MOUNTS = """
: > /tmp/perf-$$.map
mount --bind "$1" /tmp/perf-$$.map || exit 1
echo $$
exec sleep 600
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start programs of other users")
def test_a_file_that_the_process_cannot_read_names_nothing(tmp_path):
    """In a user namespace of its own it can mount any file of the host there."""
    # Where all users can reach it.
    with tempfile.NamedTemporaryFile(dir="/var/tmp") as secret:
        secret.write(b"1000 100 password=hunter2\n")
        secret.flush()
        inside = [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "unshare",
            "-Ur",
            "-m",
        ]
        with subprocess.Popen(
            [*inside, "sh", "-c", MOUNTS, "sh", secret.name],
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                pid = int(process.stdout.readline())
                os.utime(secret.name)
                os.fchmod(secret.fileno(), 0o600)
                assert PerfMap(pid).find(0x1010) is None
                os.fchmod(secret.fileno(), 0o644)
                assert PerfMap(pid).find(0x1010) == ("password=hunter2", 0x10)
            finally:
                process.kill()
                Path(f"/tmp/perf-{pid}.map").unlink()

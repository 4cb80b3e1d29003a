"""Reading other users' processes, by a process that may be late."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_gpu.procfs import reader, reader_process
from otel_gpu.procfs.file_status import open_cached
from otel_gpu.procfs.reader import LateError, ProcessReader

OWN = os.getpid()
USER = 4242
COMMAND = reader_process.READ_FIRST


@pytest.fixture
def asked(monkeypatch):
    """A reader of its own, for every process."""
    found = ProcessReader()
    monkeypatch.setattr(reader, "_reader", found)
    monkeypatch.setattr(reader, "file_user", lambda _pid: USER)
    yield found
    found._abandon()
    for process in found._abandoned:
        process.wait()


@pytest.fixture
def sleeping():
    """A process that maps, and is given, more than one message can hold."""
    code = "import mmap, time; kept = [mmap.mmap(-1, 4096, prot=1 + i % 2) for i in range(4000)]"
    command = [sys.executable, "-c", f"{code}; print(flush=True); time.sleep(60)", "x" * 100_000]
    with subprocess.Popen(
        command, env={"NAME": "y" * 70_000}, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    ) as process:
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_files_of_processes_are_read_whole(asked, sleeping):
    """An answer has as many messages as it needs, and no more than was asked for."""
    for name in reader_process.FILES:
        expected = Path(f"/proc/{sleeping}/{name}").read_bytes()
        assert reader.read_process_file(sleeping, name, 1 << 22) == expected
        assert reader.read_process_file(sleeping, name, 70_000) == expected[:70_000]
    assert asked._socket is not None


def test_what_is_opened_comes_back(asked, sleeping):
    """The list of mappings is read as often as needed, and a mapping is the file that it is of."""
    maps = reader.open_maps(sleeping)
    try:
        for _ in range(2):
            text = reader.read_maps(sleeping, maps, 1 << 22)
            assert text == Path(f"/proc/{sleeping}/maps").read_bytes()
    finally:
        os.close(maps)
    line = next(line for line in text.splitlines() if b"r-xp" in line and b"/" in line)
    start, end = (int(part, 16) for part in line.split()[0].split(b"-"))
    mapping = reader.open_mapping(sleeping, start, end)
    try:
        assert os.fstat(mapping).st_ino == int(line.split()[4])
    finally:
        os.close(mapping)
    with pytest.raises(FileNotFoundError):
        reader.open_mapping(sleeping, 0, 4096)


def test_who_is_gone_has_nothing(asked):
    """It is no reason to ask nobody else."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert reader.read_process_file(process.pid, "cmdline", 4096) == b""
    assert not reader.is_late(process.pid)
    assert reader.read_process_file(OWN, "cmdline", 4096)


def test_a_late_reader_is_replaced_and_whoever_kept_it_is_left_alone(asked, sleeping):
    """Others are read meanwhile; it is named once, and asked for again after its pause."""
    now_s = 1000.0
    asked._clock = lambda: now_s
    assert reader.read_process_file(sleeping, "cmdline", 4096)
    stop(asked)
    assert reader.read_process_file(sleeping, "cmdline", 4096) == b""
    assert reader.is_late(sleeping)
    with pytest.raises(LateError):
        reader.open_maps(sleeping)
    assert reader.read_process_file(OWN, "cmdline", 4096)
    assert [(late.pid, late.uid) for late in reader.take_late()] == [(sleeping, USER)]

    now_s += 1.5
    stop(asked)
    assert reader.read_process_file(sleeping, "cmdline", 4096) == b""
    now_s += 1.5
    assert reader.is_late(sleeping)
    now_s += 1.0
    assert reader.read_process_file(sleeping, "cmdline", 4096)
    assert not reader.is_late(sleeping)
    assert reader.take_late() == []


@pytest.mark.parametrize("is_cached", [True, False])
def test_a_name_is_opened_in_a_folder(asked, tmp_path, monkeypatch, is_cached):
    """By the reader, where the kernel does not have it in its cache; a link is not followed."""
    (tmp_path / "file").write_text("content")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "file").stat(), (tmp_path / "link").lstat()
    if not is_cached:
        monkeypatch.setattr(reader, "open_cached", fail(errno.EAGAIN))
    folder = os.open(tmp_path, os.O_PATH)
    try:
        opened = [reader.open_name(OWN, folder, name) for name in ("file", "link")]
        assert (asked._process is None) == is_cached
        with pytest.raises(FileNotFoundError):
            reader.open_name(OWN, folder, "absent")
        with pytest.raises(OSError, match="too long"):
            reader.open_name(OWN, folder, 256 * "x")
    finally:
        os.close(folder)

    statuses = [os.fstat(fd) for fd in opened]
    assert os.path.samestat(statuses[0], (tmp_path / "file").stat())
    assert not any(map(os.get_inheritable, opened))
    assert os.path.samestat(statuses[1], (tmp_path / "link").lstat())
    for fd in opened:
        os.close(fd)


def test_what_the_kernel_has_in_its_cache_is_opened(tmp_path):
    """What it has not is nothing that it looks for."""
    (tmp_path / "file").touch()
    folder = os.open(tmp_path, os.O_PATH)
    try:
        os.close(open_cached(folder, "file"))
        with pytest.raises(BlockingIOError):
            open_cached(folder, "never looked for")
    finally:
        os.close(folder)


def fail(number: int) -> Callable[..., int]:
    """A function that fails with an error of the kernel's."""

    def function(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return function


def test_a_user_has_a_share_of_our_waiting(asked, monkeypatch):
    """What its processes took together is the user's; others are still asked."""
    asked.ask(OWN, USER, COMMAND, 4096)
    asked._waiting.pay(1, USER, 1.5)
    with pytest.raises(LateError, match="for too long"):
        asked.ask(OWN, USER, COMMAND, 4096)
    assert [late.pid for late in asked.take_news()] == [OWN]
    assert asked.ask(os.getppid(), USER + 1, COMMAND, 4096)[0]


def test_a_reader_that_does_not_start_is_said(asked, monkeypatch, caplog):
    """It is not tried again at once."""
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    for _ in range(2):
        assert reader.read_process_file(OWN, "cmdline", 4096) == b""
    assert caplog.text.count("does not start") == 1
    assert len(reader.take_late()) == 1


READS = """
import sys
from otel_gpu.capture.privileges import give_up_privileges
from otel_gpu.procfs import reader
reader.file_user = lambda _pid: 4242
give_up_privileges(frozenset({"SYS_PTRACE", "DAC_READ_SEARCH"}))
print(len(reader.read_process_file(int(sys.argv[1]), "environ", 4096)))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv (util-linux) is not installed")
def test_an_agent_that_is_not_root_passes_on_what_it_has(sleeping):
    """Also once it has given up what it does not need."""
    names = "+sys_ptrace,+dac_read_search,+net_admin"
    given = (f"--inh-caps={names}", f"--ambient-caps={names}")
    user = ("--reuid=65532", "--regid=65532", "--clear-groups")
    command = ["setpriv", *user, *given, sys.executable, "-c", READS, str(sleeping)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert int(done.stdout) == 4096


def stop(asked: ProcessReader) -> None:
    assert asked._process is not None
    os.kill(asked._process.pid, signal.SIGSTOP)
    status = Path(f"/proc/{asked._process.pid}/stat")
    while status.read_text().rpartition(")")[2].split()[0] != "T":
        pass

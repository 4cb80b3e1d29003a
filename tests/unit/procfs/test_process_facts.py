import json
import os
import pwd
import subprocess
import sys
import time
from pathlib import Path

import pytest

from otel_gpu.procfs import process_facts
from otel_gpu.procfs.process_facts import ENVIRONMENT_NAMES, read_facts, read_unwatched_process

CONTAINER = "8f3b0c52d1a94ee6b7f0c9d8e7a6b5c4d3e2f1a0b9c8d7e6f5a4b3c2d1e0f9a8"
# Field 3 to 22 of stat: the state, ppid 77, and after 17 more a start of 1234 ticks.
AFTER_NAME = b"S 77" + b" 0" * 17 + b" 1234 4096\n"


@pytest.fixture
def proc(tmp_path):
    folder = tmp_path / "42"
    folder.mkdir()
    (folder / "exe").symlink_to("/opt/server (deleted)")
    files = {
        "stat": b"42 (server) " + AFTER_NAME,
        "status": b"Name:\tserver\nUid:\t0\t4294967\t0\t0\nNSpid:\t42\t7\n",
        "cmdline": b"server\0--token=abc\0-v\0",
        "environ": b"A=b\0OTEL_SERVICE_NAME=trainer\0SECRET=x\0",
        "cgroup": f"0::/docker/{CONTAINER}\n".encode(),
        "mountinfo": b"",
        "maps": b"",
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return tmp_path


@pytest.fixture
def child():
    """A Python process that waits to be ended, with arguments and an environment."""
    process = subprocess.Popen(
        [sys.executable, "-c", "print('up', flush=True); input()", "--key", "abc", "\udcff"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"OTEL_SERVICE_NAME": "trainer", "OTEL_RESOURCE_ATTRIBUTES": "a=b", "HF_TOKEN": "x"},
    )
    assert process.stdout.readline() == b"up\n"
    yield process
    process.communicate(b"\n", timeout=30)


def test_a_living_process_is_read_in_full(child):
    """The facts of a real process are what it was started with, less its secrets."""
    facts = read_facts(child.pid)

    assert facts["exe"] == os.path.realpath(sys.executable)
    assert facts["command_args"][0] == sys.executable
    assert facts["command_args"][3:] == ["--key", "***", "\ufffd"]
    assert facts["env"] == {"OTEL_SERVICE_NAME": "trainer", "OTEL_RESOURCE_ATTRIBUTES": "a=b"}
    assert facts["ppid"] == os.getpid()
    assert facts["vpid"] == child.pid
    assert facts["comm"] == Path(sys.executable).name[:15]
    assert facts["owner"] == pwd.getpwuid(os.geteuid()).pw_name
    assert facts["otel_context"] == {}
    assert facts["cgroups"] == Path(f"/proc/{child.pid}/cgroup").read_text().splitlines()
    age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - facts["start_boot_ns"]
    assert 0 <= age_ns < 60_000_000_000
    assert json.loads(json.dumps(facts)) == facts


def test_a_process_that_is_gone_has_no_facts():
    """A pid that nobody has any more is nothing to raise about."""
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait(timeout=30)

    assert read_facts(process.pid) is None


def test_a_zombie_still_has_what_the_kernel_keeps():
    """A process that ended and was not waited for has a name and a start, and no arguments."""
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    facts = read_facts(process.pid)
    process.wait(timeout=30)

    assert facts["ppid"] == os.getpid()
    assert facts["start_boot_ns"] > 0
    assert (facts["exe"], facts["command_args"], facts["env"]) == (None, [], {})


def test_each_file_gives_its_fact(proc):
    """What stands in which file of /proc is written out here."""
    facts = read_facts(42, proc)
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")

    assert facts.pop("boot_offset_ns") >= 0
    assert facts == {
        "start_boot_ns": 1234 * tick_ns,
        "ppid": 77,
        "vpid": 7,
        "exe": "/opt/server",
        "command_args": ["server", "--token=***", "-v"],
        "comm": "server",
        "owner": "4294967",
        "cgroups": [f"0::/docker/{CONTAINER}"],
        "env": {"OTEL_SERVICE_NAME": "trainer"},
        "otel_context": {},
        "mountinfo_container_id": None,
    }


@pytest.mark.parametrize("comm", ["a) S 1 2 (b", "x y", "new\nline", ")", "", "((("])
def test_a_hostile_name_does_not_shift_the_fields(proc, comm):
    """A process may put what it likes into its name."""
    (proc / "42" / "stat").write_bytes(b"42 (" + comm.encode() + b") " + AFTER_NAME)
    facts = read_facts(42, proc)

    assert (facts["comm"], facts["ppid"]) == (comm, 77)


@pytest.mark.parametrize("stat", [b"", b"42", b"42 (x)", b"42 (x) S 77 0", b"\xff" * 5000])
def test_a_broken_stat_is_a_process_that_is_gone(proc, stat):
    """Without a start time there is nothing to tell two processes apart by."""
    (proc / "42" / "stat").write_bytes(stat)

    assert read_facts(42, proc) is None


def test_arguments_are_bounded(proc):
    """64 arguments of 4096 bytes and of 8192 together are read, whatever the process was started with."""
    (proc / "42" / "cmdline").write_bytes((b"\xff" * 5_000 + b"\0") * 40 + b"x\0" * 10_000)
    assert read_facts(42, proc)["command_args"] == ["\ufffd" * 4096] * 2

    (proc / "42" / "cmdline").write_bytes(b"x\0" * 10_000)
    assert read_facts(42, proc)["command_args"] == ["x"] * 64


def test_an_argument_that_does_not_fit_is_left_out_as_a_whole(proc):
    """A piece of it could hold a secret, and end before what says so. Of others, less is read."""
    secret = b"postgres://ada:" + b"hunter2" * 500 + b"@db"
    (proc / "42" / "cmdline").write_bytes(b"server\0" + b"x" * 2_000 + b"\0" + (secret + b"\0") * 3)

    whole = ["server", "x" * 2_000, "postgres://ada:***@db"]
    assert read_facts(42, proc)["command_args"] == whole
    assert read_unwatched_process(42, proc)["command_args"] == ["server"]


def test_a_command_line_takes_no_long_time(proc):
    """However it is written: secrets are looked for in a bounded part of it."""
    text = (b'"key":"' * 585)[:4096]
    (proc / "42" / "cmdline").write_bytes((text + b"\0") * 64)

    begun_s = time.process_time()
    read_facts(42, proc)
    read_unwatched_process(42, proc)
    assert time.process_time() - begun_s < 0.5


def test_a_process_title_is_one_argument(proc):
    """A program that writes a title leaves the rest of the old command line as zeroes."""
    (proc / "42" / "cmdline").write_bytes(b"VLLM::EngineCore" + b"\0" * 500)

    assert read_facts(42, proc)["command_args"] == ["VLLM::EngineCore"]


def test_empty_arguments_are_arguments(proc):
    """An argument may be empty when others follow it."""
    (proc / "42" / "cmdline").write_bytes(b"server\0\0-v\0")

    assert read_facts(42, proc)["command_args"] == ["server", "", "-v"]


def test_only_two_variables_leave_the_environment(proc):
    """Names that merely end or begin like ours are not ours, and the first one counts."""
    (proc / "42" / "environ").write_bytes(
        b"MY_OTEL_SERVICE_NAME=a\0OTEL_SERVICE_NAME_X=b\0OTEL_SERVICE_NAME=c=\xff\0"
        b"OTEL_SERVICE_NAME=d\0OTEL_EXPORTER_OTLP_HEADERS=secret\0"
    )

    assert read_facts(42, proc)["env"] == {"OTEL_SERVICE_NAME": "c=\ufffd"}


def test_what_may_not_be_read_is_unknown(proc):
    """A process of another user, without privileges, has few facts, and still some."""
    for name in ("exe", "cmdline", "environ", "status", "cgroup", "maps", "mountinfo"):
        (proc / "42" / name).unlink()
    facts = read_facts(42, proc)

    assert (facts["comm"], facts["ppid"]) == ("server", 77)
    assert (facts["exe"], facts["vpid"], facts["owner"]) == (None, None, None)
    assert (facts["command_args"], facts["cgroups"], facts["env"]) == ([], [], {})


@pytest.mark.parametrize(
    "mount",
    [
        f"/var/lib/docker/containers/{CONTAINER}/hostname /etc/hostname",
        f"/containers/overlay-containers/{CONTAINER}/userdata/hostname /etc/hostname",
    ],
)
def test_mounts_tell_the_container_where_cgroups_do_not(proc, mount):
    """Inside a cgroup namespace the path is "/", but the runtime's mounts are seen."""
    (proc / "42" / "cgroup").write_bytes(b"0::/\n")
    (proc / "42" / "mountinfo").write_text(f"1 2 8:1 {mount} rw - ext4 /dev/sda1 rw\n")
    (proc / "42" / "ns").mkdir()
    (proc / "42" / "ns" / "user").symlink_to(Path("/proc/self/ns/user").readlink())

    assert read_facts(42, proc)["mountinfo_container_id"] == CONTAINER

    # Who made a user namespace can mount what they like in it.
    (proc / "42" / "ns" / "user").unlink()
    (proc / "42" / "ns" / "user").symlink_to("user:[1]")
    assert read_facts(42, proc)["mountinfo_container_id"] is None


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ("all", {"OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "SLURM_JOB_ID", "RANK"}),
        ("otel", {"OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"}),
        ("none", set()),
    ],
)
def test_no_more_of_the_environment_is_read_than_is_allowed(proc, setting, names):
    variables = ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "SLURM_JOB_ID", "RANK", "TOKEN")
    (proc / "42" / "environ").write_text("".join(f"{name}=x\0" for name in variables))

    assert read_facts(42, proc, environment=setting)["env"].keys() == names


def test_security_md_lists_every_variable_that_is_read():
    page = (Path(__file__).parents[3] / "docs" / "security.md").read_text(encoding="utf-8")

    assert [name for name in ENVIRONMENT_NAMES["all"] if f"`{name}`" not in page] == []


def test_a_reused_pid_gives_no_mixture(proc, monkeypatch):
    """When another process has the pid at the end, nothing that was read is kept."""

    def read_and_reuse(*_):
        (proc / "42" / "stat").write_bytes(b"42 (server) " + AFTER_NAME.replace(b"1234", b"9999"))
        return {}

    monkeypatch.setattr(process_facts, "read_process_context", read_and_reuse)

    assert read_facts(42, proc) is None


def test_an_exec_while_reading_gives_the_new_program(proc, monkeypatch):
    """Facts of two programs are never mixed: they are read again."""

    def read_and_exec(*_):
        exe = proc / "42" / "exe"
        if exe.readlink() != Path("/opt/next"):
            exe.unlink()
            exe.symlink_to("/opt/next")
            (proc / "42" / "cmdline").write_bytes(b"next\0")
        return {}

    monkeypatch.setattr(process_facts, "read_process_context", read_and_exec)
    facts = read_facts(42, proc)

    assert (facts["exe"], facts["command_args"]) == ("/opt/next", ["next"])

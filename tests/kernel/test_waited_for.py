"""What a thread waited for: files, pipes, sockets and other hosts, by the descriptor it waited on."""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from otel_gpu import wire
from otel_gpu.capture.recording import read_recording
from otel_gpu.enrich.activities import ResourceActivity, TimesActivity, WhoActivity
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.enrich.identity.identities import Resource
from otel_gpu.enrich.thread_times import ThreadTime
from otel_gpu.errors import RecordingError
from otel_gpu.wire.decoder import decode
from otel_gpu.wire.events import Event
from otel_gpu.wire.readings import Counters
from otel_gpu.wire.symbol_records import CulpritSeen, ResourceSeen
from tests.kernel.agent import Agent, wait_until
from tests.kernel.fuse import NAME, FileSystem

pytestmark = pytest.mark.kernel

WORKLOAD = Path(__file__).resolve().parents[1] / "workloads" / "waited_for.py"
PYTHON = os.path.realpath(sys.executable)
OTHER_ADDRESS, OWN_ADDRESS = "10.213.7.2", "10.213.7.1"
# Answers a client when that waits; it is told the client's pid first.
SERVER = """
import runpy, socket, sys
path, address, waits = sys.argv[1:]
waited_for = runpy.run_path(path)
with socket.create_server((address, 0)) as server:
    print(server.getsockname()[1], flush=True)
    connection, _ = server.accept()
    pid = int.from_bytes(connection.recv(4), "little")
    waited_for["end_waits"](pid, int(waits), lambda: connection.send(b"x"))
"""
# Connects to a server, and sends it a byte whenever that waits.
CLIENT = """
import runpy, socket, sys
path, address, port, pid, waits = sys.argv[1:]
waited_for = runpy.run_path(path)
switches = waited_for["wait_until_blocked"](int(pid), 0)
with socket.create_connection((address, int(port))) as connection:
    waited_for["end_waits"](int(pid), int(waits), lambda: connection.send(b"x"), switches)
    connection.recv(1)
"""


class Recorded(NamedTuple):
    """What the workload said of itself, and what was recorded."""

    said: dict[str, Any]
    events: Sequence[Event]

    def times(self) -> list[ThreadTime]:
        """The last word of the account of the workload's process."""
        last: dict[Any, ThreadTime] = {}
        for activity in Enricher().enrich(self.events):
            if isinstance(activity, TimesActivity):
                of_process = [t for t in activity.times if t.process.pid == self.said["pid"]]
                if of_process:
                    last = {time.kind: time for time in of_process}
        return list(last.values())

    def waits_for(self, resource: Callable[[Resource], bool]) -> list[ThreadTime]:
        """The time of its waits for some resources."""
        return [t for t in self.times() if t.wait.resource and resource(t.wait.resource)]

    def check_count(self, times: Sequence[ThreadTime], waits: int) -> None:
        """
        Check that these are all waits, and that there was room for what each was for.

        Of those whose end the kernel did not tell it is not known.
        """
        [*_, last] = [event for event in self.events if isinstance(event, Counters)]
        unseen = last.values[wire.COUNTER_SWITCHES_REPAIRED]
        assert waits - unseen <= sum(time.count for time in times) <= waits
        assert last.values[wire.COUNTER_LOST_RESOURCE] == 0


def record(folder: Path, *arguments: object) -> Recorded:
    path = folder / "waits.otelgpu"
    flags = ("--record", str(path), "--summary", "never")
    command = [PYTHON, WORKLOAD, *map(str, arguments)]
    with Agent(None, command, flags=flags, stdin=subprocess.PIPE) as agent:
        said = agent.next_line()
        # While the ends of its pipes are open, and who has them can be seen.
        wait_until(lambda: was_read(path, said["ktime_ns"]), "a reading after the waits")
        agent.send_line()
        finished = agent.wait()
    assert finished.returncode == 0, finished.stderr
    return Recorded(said, events_of(path))


def events_of(path: Path) -> list[Event]:
    rejected: Counter[str] = Counter()
    events = list(decode((one for batch in read_recording(path) for one in batch), rejected))
    assert not rejected
    return events


def was_read(path: Path, ktime_ns: int) -> bool:
    """Say whether a recording that goes on has what was read after a moment."""
    return any(isinstance(e, Counters) and e.ktime_ns > ktime_ns for e in events_so_far(path))


def events_so_far(path: Path) -> Iterator[Event]:
    """Yield what a recording that goes on has by now."""
    with contextlib.suppress(RecordingError):  # it ends early
        for batch in read_recording(path):
            yield from decode(batch, Counter())


def ended_ns(times: Sequence[ThreadTime]) -> int:
    return sum(time.ended_ns for time in times)


@pytest.mark.parametrize(
    ("kind", "waits", "resource_kind"),
    [("pipe", 31, "pipe"), ("poll", 29, "pipe"), ("epoll", 23, "pipe"), ("unix", 19, "unix")],
)
def test_every_wait_for_another_process_says_what_it_was_for(
    tmp_path: Path, kind: str, waits: int, resource_kind: str
) -> None:
    """All of them, and who has the other end: read, polled alone, or one of a set."""
    recorded = record(tmp_path, kind, waits)
    other = recorded.said["other"]
    times = recorded.waits_for(lambda resource: resource.peers == (other,))

    recorded.check_count(times, waits)
    assert {time.wait.resource.kind for time in times if time.wait.resource} == {resource_kind}
    assert {time.reason for time in times} == {"ipc"}
    assert ended_ns(times) <= recorded.said["total_ns"]


def test_a_connection_within_the_host_is_not_remote(tmp_path: Path) -> None:
    """Its other end is a process, as a pipe's."""
    recorded = record(tmp_path, "tcp", 17)
    other = recorded.said["other"]
    times = recorded.waits_for(lambda resource: resource.peers == (other,))

    recorded.check_count(times, 17)
    for time in times:
        assert time.wait.resource is not None
        assert (time.wait.resource.kind, time.wait.resource.is_remote) == ("tcp", False)
        assert time.wait.resource.name.startswith("127.0.0.1:")
        assert time.reason == "ipc"


@contextlib.contextmanager
def other_host() -> Iterator[str]:
    """Make a network namespace with an address that can be reached from here."""
    if shutil.which("ip") is None:
        pytest.skip("ip (iproute2) is not installed")
    name = f"otelgpu{os.getpid()}"
    own, other = f"og{os.getpid() % 100_000}a", f"og{os.getpid() % 100_000}b"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        for command in (
            f"ip link add {own} type veth peer name {other}",
            f"ip link set {other} netns {name}",
            f"ip addr add {OWN_ADDRESS}/30 dev {own}",
            f"ip link set {own} up",
            f"ip -n {name} addr add {OTHER_ADDRESS}/30 dev {other}",
            f"ip -n {name} link set {other} up",
        ):
            subprocess.run(command.split(), check=True)
        yield name
    finally:
        # With the namespace it goes some time later, and the next test has one of the same name.
        subprocess.run(["ip", "link", "delete", own], check=False)
        subprocess.run(["ip", "netns", "delete", name], check=True)


@contextlib.contextmanager
def server_in(name: str, waits: int) -> Iterator[str]:
    """Run a server in a network namespace, which answers so many times; its port."""
    command = ["ip", "netns", "exec", name, PYTHON, "-c", SERVER, str(WORKLOAD)]
    command += [OTHER_ADDRESS, str(waits)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def test_a_wait_for_another_host_is_of_the_network(tmp_path: Path) -> None:
    """The address and port are those that the program connected to, and all waits are there."""
    waits = 41
    with other_host() as name, server_in(name, waits) as port:
        recorded = record(tmp_path, "remote", waits, OTHER_ADDRESS, port)
    times = recorded.waits_for(lambda resource: resource.is_remote)

    assert {time.wait.resource for time in times} == {
        Resource("tcp", f"{OTHER_ADDRESS}:{port}", is_remote=True)
    }
    assert {time.reason for time in times} == {"network"}
    recorded.check_count(times, waits)
    assert ended_ns(times) <= recorded.said["total_ns"] * 1.01


def test_a_server_waits_for_what_comes_in(tmp_path: Path) -> None:
    """For clients, and for what they send: of another host, but nothing that this one asked for."""
    path = tmp_path / "waits.otelgpu"
    waits = 37
    flags = ("--record", str(path), "--summary", "never")
    command = [PYTHON, WORKLOAD, "serve", str(waits), OWN_ADDRESS]
    with other_host() as name, Agent(None, command, flags=flags, stdin=subprocess.PIPE) as agent:
        said = agent.next_line()
        port, pid = said["port"], said["pid"]
        client = ["ip", "netns", "exec", name, PYTHON, "-c", CLIENT, str(WORKLOAD), OWN_ADDRESS]
        with subprocess.Popen([*client, str(port), str(pid), str(waits)]):
            said = agent.next_line()
            wait_until(lambda: was_read(path, said["ktime_ns"]), "a reading after the waits")
            agent.send_line()
            finished = agent.wait()
    assert finished.returncode == 0, finished.stderr
    recorded = Recorded(said, events_of(path))
    listening = recorded.waits_for(lambda resource: resource.name == f"{OWN_ADDRESS}:{port}")
    serving = recorded.waits_for(lambda resource: resource.is_remote)

    recorded.check_count(listening, 1)
    recorded.check_count(serving, waits)
    for time in (*listening, *serving):
        assert time.wait.resource is not None
        assert time.wait.resource.is_incoming
        assert time.reason == "ipc"


def test_segments_that_had_to_be_sent_again_are_counted(tmp_path: Path) -> None:
    """By peer: here what answers finds no way back, until one was sent again."""
    path = tmp_path / "waits.otelgpu"
    waits = 23
    with other_host() as name, server_in(name, waits) as port:
        peer = Resource("tcp", f"{OTHER_ADDRESS}:{port}", is_remote=True)
        flags = ("--record", str(path), "--summary", "never")
        command = [PYTHON, WORKLOAD, "remote", str(waits), OTHER_ADDRESS, port, "1"]
        with Agent(None, command, flags=flags, stdin=subprocess.PIPE) as agent:
            agent.next_line()
            # Of a wait, the end of which the kernel told. From then on nothing gets back from it.
            wait_until(lambda: any(info.get("name") == peer.name for info in met(path)), "the peer")
            route = ["ip", "-n", name, "route"]
            subprocess.run([*route, "add", "blackhole", f"{OWN_ADDRESS}/32"], check=True)
            agent.send_line()
            wait_until(
                lambda: any(info.get("retransmits") for info in met(path)),
                "a segment that was sent again",
            )
            subprocess.run([*route, "delete", "blackhole", f"{OWN_ADDRESS}/32"], check=True)
            agent.next_line()
            agent.send_line()
            finished = agent.wait()
    assert finished.returncode == 0, finished.stderr
    [*_, last] = [
        activity
        for activity in Enricher().enrich(events_of(path))
        if isinstance(activity, ResourceActivity)
    ]

    assert last.resource == peer
    assert last.retransmits >= 1


def met(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield what threads have waited for, of a recording that goes on."""
    return (event.info for event in events_so_far(path) if isinstance(event, ResourceSeen))


def test_a_wait_for_a_file_says_its_path(tmp_path: Path) -> None:
    """A lock on a file is one on it, whoever has it; and its file system is known."""
    path = tmp_path / "lo\\c\tk"
    path.touch()
    recorded = record(tmp_path, "lock", 13, path)
    times = recorded.waits_for(lambda resource: resource.name == str(path))

    recorded.check_count(times, 13)
    assert {time.reason for time in times} == {"lock"}
    [resource] = {time.wait.resource for time in times}
    assert resource is not None
    assert (resource.kind, resource.is_remote) == ("file", False)
    assert str(tmp_path).startswith(resource.mount)
    mounted = subprocess.run(
        ["stat", "--file-system", "--format=%T", tmp_path],
        capture_output=True,
        text=True,
        check=True,
    )
    assert resource.file_system.startswith(mounted.stdout.split("/")[0].strip()[:3])


def test_a_checkpoint_is_a_wait_for_its_file(tmp_path: Path) -> None:
    """Nearly all time of fsync is blocked, and in the name of the file."""
    path = tmp_path / "checkpoint.pt"
    recorded = record(tmp_path, "fsync", 7, path)
    times = recorded.waits_for(lambda resource: resource.name == str(path))

    assert {time.reason for time in times} <= {"io"}
    assert ended_ns(times) <= recorded.said["total_ns"]
    waiting_ns = sum(
        time.ended_ns
        for time in recorded.times()
        if time.state == wire.STATE_BLOCKED and time.reason == "io"
    )
    if os.statvfs(tmp_path).f_flag and waiting_ns:
        # Short waits go without.
        assert ended_ns(times) >= 0.9 * waiting_ns - 7 * 1_000_000


def test_a_file_system_of_fuse_that_is_remote(tmp_path: Path) -> None:
    """As sshfs is: another host has its files, and a wait for one is none of the network's."""
    if not Path("/dev/fuse").exists():
        pytest.skip("this kernel has no FUSE")
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    with FileSystem(mounted, "sshfs", wait_for_sleep):
        recorded = record(tmp_path, "read", 11, mounted / NAME)
    times = recorded.waits_for(lambda resource: resource.name == str(mounted / NAME))

    recorded.check_count(times, 11)
    assert {time.wait.resource for time in times} == {
        Resource(
            "file", str(mounted / NAME), "fuse.sshfs", str(mounted), is_remote=True, source="test"
        )
    }
    assert {time.reason for time in times} == {"io"}


def wait_for_sleep(pid: int) -> None:
    """Return when a process has waited for longer than what goes without a look."""
    status = Path(f"/proc/{pid}/stat")
    while status.read_text().rpartition(")")[2].split()[0] not in "SD":
        os.sched_yield()
    threading.Event().wait(0.001)


def test_of_many_files_the_account_says_the_file_system(tmp_path: Path) -> None:
    """A data set can have millions: the first are told apart, the others are together."""
    files = tmp_path / "files"
    files.mkdir()
    for number in range(101):
        (files / str(number)).touch()
    recorded = record(tmp_path, "many", 101, files)
    own = recorded.waits_for(lambda resource: resource.name.startswith(f"{files}/"))
    shared = recorded.waits_for(lambda resource: resource.kind == "file" and not resource.name)

    names = [time.wait.resource.name for time in own if time.wait.resource]
    assert 0 < len(set(names)) <= 64
    recorded.check_count([*own, *shared], 101)
    assert {time.wait.resource.file_system for time in shared if time.wait.resource} != {""}


def test_who_is_not_watched_and_has_the_cpu_is_looked_up(tmp_path: Path) -> None:
    """A noisy neighbour: its command line, with what looks like a secret masked, and its user."""
    cpu = max(os.sched_getaffinity(0))
    hog = [PYTHON, "-c", "while True: pass", "--token=hidden", "noisy"]
    program = tmp_path / "works.py"
    program.write_text(
        "import json, os, time\n"
        f"os.sched_setaffinity(0, {{{cpu}}})\n"
        "while time.process_time() < 0.2:\n    pass\n"
        "print(json.dumps({'pid': os.getpid()}))\n"
    )
    path = tmp_path / "hog.otelgpu"
    with subprocess.Popen(hog) as neighbour:
        try:
            os.sched_setaffinity(neighbour.pid, {cpu})
            flags = ("--record", str(path), "--summary", "never")
            with Agent(None, [PYTHON, program], flags=flags) as agent:
                finished = agent.wait()
        finally:
            neighbour.kill()
    assert finished.returncode == 0, finished.stderr
    events = events_of(path)
    found = [event for event in events if isinstance(event, CulpritSeen)]
    who = {
        activity.who.pid: activity.who
        for activity in Enricher().enrich(events)
        if isinstance(activity, WhoActivity)
    }

    times = Recorded(finished.lines[0], events).times()
    queued = [time for time in times if time.state == wire.STATE_RUN_QUEUE]
    assert [event.pid for event in found].count(neighbour.pid) == 1, queued
    assert who[neighbour.pid].command.endswith("-c while True: pass --token=*** noisy")
    assert who[neighbour.pid].owner == "root"
    assert finished.lines[0]["pid"] not in who

"""
Runs the real command line like an operator, and reads the receiver's data.

``Agent`` is a process ``python -m otel_gpu run …`` that sends OTLP to an ``OtlpReceiver``. Tests use only
data of that receiver, the exit code and the output of the workload.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.kernel.stolen_time import read_stolen_ns
from tests.receiver import WAIT_TIMEOUT_S, MetricPoint, OtlpReceiver, ReceivedSpan

ROOT = Path(__file__).resolve().parents[2]
CALL_DURATION = "gpu.cuda.call.duration"
LOST = "otel_gpu.records.lost"
# One agent start takes under a second; the rest is room for a busy machine.
START_TIMEOUT_S = 60.0
KILL_TIMEOUT_S = 60.0
# A million calls at entries, which are single-stepped, take a minute of a free machine.
END_TIMEOUT_S = 480.0 if os.environ.get("OTEL_GPU_TEST_PROBE_SITES") == "entry" else 120.0
# Runs a command that others on the same CPU hardly get in the way of. Where sessions are scheduled
# as groups, niceness counts inside of one only, so the session, which is its own, gets it too.
FIRST = (
    *("sh", "-c"),
    '{ echo -20 > /proc/self/autogroup; } 2> /dev/null; exec nice -n -20 "$@"',
    "sh",
)


# Whether commands count their hot calls themselves: all of them, or those of tests that run both ways.
ALL_PRELOADED = os.environ.get("OTEL_GPU_TEST_PRELOAD") == "1"
_preloaded = ALL_PRELOADED
# Whether all probes are at the entries of functions, or those of tests that run both ways.
ALL_AT_ENTRIES = os.environ.get("OTEL_GPU_TEST_PROBE_SITES") == "entry"
_at_entries = ALL_AT_ENTRIES


@contextlib.contextmanager
def through(way: str) -> Iterator[None]:
    """Have the calls of commands counted by ``probes``, by the ``preload`` library, or by probes at ``entries``."""
    global _preloaded, _at_entries
    _preloaded, _at_entries = way == "preload", way == "entries" or ALL_AT_ENTRIES
    try:
        yield
    finally:
        _preloaded, _at_entries = ALL_PRELOADED, ALL_AT_ENTRIES


def at_sites() -> bool:
    """Return whether probes are at sites, not all at entries."""
    return not _at_entries


class Finished(NamedTuple):
    """Exit code and output of a process."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The JSON lines on stdout, which is the workload's alone."""
        return [json.loads(line) for line in self.stdout.splitlines()]


class Agent:
    """
    A capturing agent as a context manager, which leaves no process behind.

    Args:
        receiver: Where it sends; None for no endpoint at all.
        command: The program after ``--``; empty for none.
        flags: Further arguments of ``run``.
        env: Variables beside the endpoint's.
        protocol: ``grpc`` or ``http/protobuf``.
        inside: A command that runs the agent, such as ``unshare``.
    """

    def __init__(
        self,
        receiver: OtlpReceiver | None,
        command: Sequence[str | Path] = (),
        *,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        protocol: str = "grpc",
        inside: Sequence[str] = (),
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        if _preloaded and command and "--preload" not in flags:
            flags = (*flags, "--preload")
        self.command = [*inside, sys.executable, "-m", "otel_gpu", "run", *flags]
        if command:
            self.command += ["--", *map(str, command)]
        self.environment = environment_for(receiver, protocol=protocol) | dict(env or {})
        self._stdin = stdin
        self._lines: queue.Queue[str] = queue.Queue()
        self._stdout: list[str] = []
        self._stderr: list[str] = []
        self._readers: list[threading.Thread] = []
        self.process: subprocess.Popen[str]

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self.command,
            cwd=ROOT,
            env=self.environment,
            stdin=self._stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            # Signals for the agent must not reach the test's own process group.
            start_new_session=True,
        )
        for stream, lines, found in (
            (self.process.stdout, self._stdout, self._lines.put),
            (self.process.stderr, self._stderr, None),
        ):
            # Whoever keeps a pipe open must not keep the test process from its end.
            reader = threading.Thread(target=_collect, args=(stream, lines, found), daemon=True)
            reader.start()
            self._readers.append(reader)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Also what the agent left running in its session, such as its command.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        # Who waits in the kernel for a file system of the test is not killed before that is unmounted.
        self.process.wait(KILL_TIMEOUT_S)
        for reader in self._readers:
            reader.join(KILL_TIMEOUT_S)
            assert not reader.is_alive(), "something that outlived the agent has its output open"
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        if error is not None and self.stderr:
            error.add_note(f"standard error of the agent:\n{self.stderr[-4000:]}")

    @property
    def stderr(self) -> str:
        """The agent's standard error so far."""
        return "".join(self._stderr)

    def next_line(self, timeout_s: float = START_TIMEOUT_S) -> Any:
        """Wait for the workload's next line, and return its JSON value."""
        try:
            return json.loads(self._lines.get(timeout=timeout_s))
        except queue.Empty:
            ended = self.process.poll()
            state = "runs" if ended is None else f"ended with {ended}"
            raise TimeoutError(
                f"no line from the workload after {self._stdout}; the agent {state} and said: {self.stderr}"
            ) from None

    def send_line(self, text: str = "") -> None:
        """Write a line to the workload's standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        """Send a signal to the agent alone."""
        self.process.send_signal(number)

    def wait(self, timeout_s: float = END_TIMEOUT_S) -> Finished:
        """Wait for the end of the agent and of its output."""
        try:
            returncode = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"agent still runs after {timeout_s} s: {self.stderr}") from None
        for reader in self._readers:
            reader.join(timeout_s)
        return Finished(returncode, "".join(self._stdout), self.stderr)


def seconds_to_end(agent: Agent, number: int | None = signal.SIGTERM) -> float:
    """
    Send an agent a signal, if any, and return the seconds until its end.

    Time in which the agent waited for a CPU does not count, so that other programs of a busy machine
    make no difference. Time in which it waited for a program or a file system does.
    """
    pid, asked_s = agent.process.pid, time.monotonic()
    waits_at_first = _cpu_waits_ns(pid)
    waits, stolen_ns = dict(waits_at_first), read_stolen_ns()
    if number is not None:
        agent.signal(number)
    while agent.process.poll() is None:
        if time.monotonic() - asked_s > END_TIMEOUT_S:
            raise TimeoutError(f"agent still runs after {END_TIMEOUT_S} s: {agent.stderr}")
        # Threads that have ended keep what they waited.
        waits |= _cpu_waits_ns(pid)
        time.sleep(0.02)
    took_s = time.monotonic() - asked_s
    waited_ns = sum(waits.values()) - sum(waits_at_first.values())
    return took_s - (waited_ns + read_stolen_ns() - stolen_ns) / 1e9


def _cpu_waits_ns(pid: int) -> dict[str, int]:
    """How long each thread of an agent and of its helper processes has waited for a CPU so far."""
    waits = {}
    with contextlib.suppress(OSError, IndexError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for one in (str(pid), *filter(_is_helper, children)):
            for task in Path(f"/proc/{one}/task").iterdir():
                waits[task.name] = int((task / "schedstat").read_text().split()[1])
    return waits


def _is_helper(pid: str) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().startswith("otel-gpu")


def open_files(pid: int) -> list[str]:
    """Return the open files of a process, as /proc names them."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        # Others than those that are kept may be closed meanwhile.
        with contextlib.suppress(FileNotFoundError):
            found.append(str(entry.readlink()))
    return found


def environment_for(receiver: OtlpReceiver | None, *, protocol: str = "grpc") -> dict[str, str]:
    """Return this process's environment without telemetry settings but the endpoint's."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OTEL_", "CUDA_STUB", "LD_"))
    }
    # The flight recorder of the user who runs the tests is not theirs to write.
    environment["OTEL_GPU_STORE_ENABLED"] = "off"
    if not at_sites():
        environment["OTEL_GPU_CAPTURE_PROBE_SITES"] = "false"
    if receiver is not None:
        endpoint = receiver.grpc_endpoint if protocol == "grpc" else receiver.http_endpoint
        environment |= {
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
        }
    return environment


def otel_gpu(
    *arguments: object,
    env: Mapping[str, str] | None = None,
    timeout_s: float = END_TIMEOUT_S,
    inside: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a verb to its end, without an endpoint; return its exit code and output."""
    return subprocess.run(
        [*inside, sys.executable, "-m", "otel_gpu", *map(str, arguments)],
        cwd=ROOT,
        env=environment_for(None) | dict(env or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        start_new_session=bool(inside),
    )


def _collect(stream: Any, lines: list[str], found: Callable[[str], None] | None) -> None:
    for line in stream:
        lines.append(line)
        if found:
            found(line)


# Runs commands one after the other, and says how each ended.
_TOGETHER = """
import json, os, subprocess, sys
for name, environment, command in json.loads(sys.argv[1]):
    done = subprocess.run(command, env=os.environ | environment, stdout=subprocess.PIPE, text=True)
    print(json.dumps([name, done.returncode, done.stdout]), flush=True)
"""


class Shared(NamedTuple):
    """Telemetry of several commands under one agent, and the exit code of each."""

    receiver: OtlpReceiver
    finished: Mapping[str, Finished]

    def pid(self, name: str) -> int:
        """The pid in the first line of a command."""
        line = self.finished[name].lines[0]
        return int(line["pid"] if isinstance(line, dict) else line)


@contextlib.contextmanager
def run_together(
    commands: Mapping[str, tuple[Mapping[str, str], Sequence[object]]], *flags: str
) -> Iterator[Shared]:
    """
    Run commands under one agent, each with variables of its own, for tests that each judge one.

    Losses are those of all.
    """
    with OtlpReceiver() as receiver:
        with Agent(receiver, together(commands), flags=flags) as agent:
            lines = agent.wait().lines
        yield Shared(receiver, {name: Finished(code, text, "") for name, code, text in lines})


def together(commands: Mapping[str, tuple[Mapping[str, str], Sequence[object]]]) -> list[str]:
    """Return a command that runs these one after the other, each with variables of its own."""
    told = [(name, env, list(map(str, command))) for name, (env, command) in commands.items()]
    return [sys.executable, "-c", _TOGETHER, json.dumps(told)]


# What the receiver got.


def points(
    receiver: OtlpReceiver, name: str, pid: int | None = None, **attributes: Any
) -> list[MetricPoint]:
    """
    Return the latest points of a metric, of one process and with the attributes.

    Attribute names are given with ``__`` for dots: ``gpu__cuda__api="cudaMalloc"``.
    """
    wanted = {key.replace("__", "."): value for key, value in attributes.items()}
    return [
        point
        for key, point in receiver.metrics().items()
        if key.name == name
        and pid in (None, key.pid)
        and all(key.attribute(attribute) == value for attribute, value in wanted.items())
    ]


def calls(receiver: OtlpReceiver, api: str, pid: int | None = None, **attributes: Any) -> int:
    """Return how many calls of an API the histograms hold."""
    return sum(
        point.point.count
        for point in points(receiver, CALL_DURATION, pid, gpu__cuda__api=api, **attributes)
    )


def total(receiver: OtlpReceiver, name: str, pid: int | None = None, **attributes: Any) -> int:
    """Return the sum over a counter's points."""
    return sum(
        point.point.as_int or int(point.point.as_double)
        for point in points(receiver, name, pid, **attributes)
    )


def losses(receiver: OtlpReceiver) -> dict[str, int]:
    """Return the losses that are not zero, by reason."""
    counts: dict[str, int] = {}
    for key, point in receiver.metrics().items():
        if key.name == LOST:
            reason = str(key.attribute("reason"))
            counts[reason] = counts.get(reason, 0) + int(
                point.point.as_int or point.point.as_double
            )
    return {reason: count for reason, count in counts.items() if count}


def spans(receiver: OtlpReceiver, name: str, pid: int | None = None) -> list[ReceivedSpan]:
    """Return the spans of one name, of one process."""
    return [
        span
        for span in receiver.spans()
        if span.span.name == name and pid in (None, span.resource.get("process.pid"))
    ]


# What the kernel holds.


def bpf_objects(kind: str, pid: int) -> set[int]:
    """
    Return the ids of the BPF objects that a process holds.

    Args:
        kind: ``prog``, ``link`` or ``map``.
        pid: The process, through whose file descriptors they live.
    """
    ids = set()
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            lines = entry.read_text(encoding="utf-8").splitlines()
        except OSError:  # closed meanwhile
            continue
        ids |= {int(line.split()[1]) for line in lines if line.startswith(f"{kind}_id:")}
    return ids


def existing(kind: str) -> set[int]:
    """Return the ids of all BPF objects of a kind."""
    return {item["id"] for item in bpftool(kind, "list")}


def bpftool(*arguments: str) -> list[dict[str, Any]]:
    """Return what bpftool lists."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    result = subprocess.run(
        ["bpftool", "--json", *arguments],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    listed = json.loads(result.stdout or "[]")
    return listed if isinstance(listed, list) else [listed]


def state_of(pid: int) -> str | None:
    """Return a process's state letter from /proc; None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[0]


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = WAIT_TIMEOUT_S) -> Any:
    """Return the condition's first truthy value; for things no receiver announces."""
    deadline_s = time.monotonic() + timeout_s
    pause = threading.Event()
    while not (result := condition()):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what} did not happen in {timeout_s} s")
        pause.wait(0.02)
    return result

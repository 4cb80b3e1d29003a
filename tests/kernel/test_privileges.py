"""A capture as root keeps what it needs and no more, and its command keeps what the caller has."""

import json
import os
import re
import shutil
import signal
import stat
import sys
import time
from pathlib import Path

import pytest

from otel_gpu.procfs.capabilities import names_in
from tests.kernel.agent import Agent, calls, losses, otel_gpu, spans
from tests.kernel.test_tenants import AS_NOBODY, CALLS, make_calls, open_folder, program, read_line
from tests.receiver import OtlpReceiver, attributes_of
from tests.stubs.build import StubLibraries

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root has more than a capture needs"),
]

SIX = {"BPF", "PERFMON", "SYS_PTRACE", "DAC_READ_SEARCH", "CHECKPOINT_RESTORE", "SYSLOG"}
NOBODY = 65534
NAMES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
# Says what it may do, and waits to be told what to do next.
WAITS = """
import json, os, sys
print(json.dumps(open("/proc/self/status").read()), flush=True)
os.read(0, 1)
os.execvp(sys.argv[1], sys.argv[1:])
"""
# Becomes another program, of another user, when it is told to.
BECOMES = """
import os, sys
print("ready", flush=True)
os.read(0, 1)
os.execvp(sys.argv[1], sys.argv[1:])
"""
# Makes one call of an API, and of another as many as each line of its input says.
TWO_CALLS = """
import ctypes, sys, time
runtime = ctypes.CDLL(sys.argv[1])
def make_calls(count):
    runtime.cudaDeviceSynchronize()
    for _ in range(count):
        runtime.cudaStreamSynchronize(None)
print("ready", flush=True)
for count in sys.stdin:
    make_calls(int(count))
    print("done", flush=True)
"""


def privileges(status: str) -> dict[str, str]:
    """What a status says of privileges; the other lines are not about them."""
    lines = (line.partition(":") for line in status.splitlines())
    return {name: value.strip() for name, _, value in lines if name in NAMES}


def of_threads(pid: int) -> list[dict[str, str]]:
    """The privileges of each thread of a process."""
    tasks = Path(f"/proc/{pid}/task")
    return [privileges((task / "status").read_text()) for task in tasks.iterdir()]


def own() -> dict[str, str]:
    return privileges(Path("/proc/self/status").read_text())


def assert_has_only(pid: int, capabilities: set[str]) -> None:
    threads = of_threads(pid)
    assert len(threads) > 2, "its exporters have threads by now"
    for thread in threads:
        for name in ("CapPrm", "CapEff", "CapBnd"):
            assert names_in(int(thread[name], 16)) == capabilities
        assert {int(thread[name], 16) for name in ("CapInh", "CapAmb")} == {0}
        assert (thread["NoNewPrivs"], thread["Seccomp"]) == ("1", "2")


def of_agent(*more: str) -> set[str]:
    """What it keeps: one more where root may not raise the limit of nice values, as in some containers."""
    may_raise = "SYS_RESOURCE" in names_in(int(own()["CapPrm"], 16))
    return {*SIX, *more, *(() if may_raise else ("SYS_NICE",))}


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def named_child(pid: int, name: str) -> int:
    """Return the child of a process that has a name."""
    names = {child: Path(f"/proc/{child}/comm").read_text() for child in children(pid)}
    (found,) = (child for child in names if names[child] == f"{name}\n")
    return found


def test_the_agent_keeps_six_and_the_command_all(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """
    On all threads, in the guard, and in what places probes. With a command CAP_KILL is the seventh.

    In the command a setuid program works, and what became another user's is counted, let go on
    after its stop, and gets the signals that are passed on.
    """
    with open_folder() as folder:
        who = folder / "id"
        shutil.copy("/usr/bin/id", who)
        who.chmod(0o4755)
        then = f"{who} -u; exec /usr/bin/python3 -c '{CALLS}' {stubs.runtime}"
        command = [sys.executable, "-c", WAITS, *AS_NOBODY, "sh", "-c", then]
        with Agent(receiver, command, flags=["-v"], stdin=-1) as agent:
            status = agent.next_line()
            pid = agent.process.pid
            receiver.wait_for(receiver.metrics)
            assert_has_only(pid, of_agent("KILL"))
            (found,) = of_threads(named_child(pid, "otel-gpu-guard"))
            placing = of_threads(named_child(pid, "otel-gpu-attach"))
            agent.send_line()
            assert agent.next_line() == 0, "a program with the setuid bit is root's"
            assert agent._lines.get(timeout=60) == "ready\n"
            agent.send_line("401")
            assert agent._lines.get(timeout=60) == "done\n"
            receiver.wait_for(lambda: calls(receiver, "cudaStreamSynchronize") == 401)
            agent.signal(signal.SIGTERM)
            finished = agent.wait()

    assert privileges(status) == own()
    assert names_in(int(found["CapPrm"], 16)) == SIX | {"KILL"}
    assert {frozenset(names_in(int(thread["CapPrm"], 16))) for thread in placing} == {
        frozenset(of_agent("KILL"))
    }
    for thread in (found, *placing):
        assert (thread["NoNewPrivs"], thread["Seccomp"]) == ("1", "2")
    assert "info: capabilities: CAP_BPF, CAP_CHECKPOINT_RESTORE, CAP_DAC" in finished.stderr
    assert finished.returncode == 128 + signal.SIGTERM
    assert losses(receiver) == {}


def test_without_a_command_it_keeps_six(receiver: OtlpReceiver, stubs: StubLibraries) -> None:
    """What another user starts later is counted, and has its name and lines of Python."""
    becomes = (*AS_NOBODY, "/usr/bin/python3", "-c", TWO_CALLS, stubs.runtime)
    with (
        program(BECOMES, *becomes) as other,
        Agent(receiver, flags=[f"--pid={other.pid}"], env={"OTEL_GPU_SPANS_MODE": "full"}) as agent,
    ):
        receiver.wait_for(receiver.metrics)
        assert_has_only(agent.process.pid, of_agent())
        assert other.stdin
        other.stdin.write("\n")
        other.stdin.flush()
        assert read_line(other) == "ready"
        # Nothing stops it for probes. Once one of its calls is seen, all are.
        while not calls(receiver, "cudaDeviceSynchronize", other.pid):
            make_calls(other, 0)
            time.sleep(0.2)
        make_calls(other, 401)
        receiver.wait_for(lambda: calls(receiver, "cudaStreamSynchronize", other.pid) == 401)
        receiver.wait_for(
            lambda: any(
                "\nmake_calls (<string>:7)\n" in stack for stack in stacks(receiver, other.pid)
            )
        )
        assert_has_only(agent.process.pid, of_agent())
        agent.signal(signal.SIGTERM)
        assert agent.wait().returncode == 0


def stacks(receiver: OtlpReceiver, pid: int) -> list[str]:
    return [
        str(attributes_of(event.attributes)["code.stacktrace"])
        for span in spans(receiver, "cudaStreamSynchronize", pid)
        for event in span.span.events
    ]


def test_in_a_folder_of_another_user_it_writes_all_the_same(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Where the command line names a file there, CAP_DAC_OVERRIDE stays, and only then."""
    command = [sys.executable, "-c", WAITS, sys.executable, "-c", CALLS, stubs.runtime]
    with open_folder() as folder:
        os.chown(folder, NOBODY, NOBODY)
        written = {name: folder / name for name in ("a.rec", "a.jsonl", "new/a.db", "a.txt")}
        flags = ["-v", f"--record={written['a.rec']}", f"--otlp-file={written['a.jsonl']}"]
        flags += [f"--store={written['new/a.db']}"]
        with Agent(
            receiver, command, flags=flags, stdin=-1, env={"OTEL_GPU_STORE_ENABLED": "on"}
        ) as agent:
            agent.next_line()
            receiver.wait_for(receiver.metrics)
            assert_has_only(agent.process.pid, of_agent("KILL", "DAC_OVERRIDE"))
            agent.send_line()
            agent.send_line("53")
            agent.process.stdin.close()  # type: ignore[union-attr]
            finished = agent.wait()
        assert finished.returncode == 0
        assert f"CAP_DAC_OVERRIDE is kept to write {folder}" in finished.stderr
        rows = otel_gpu(
            "query", "--store", written["new/a.db"], "SELECT count(*) AS n FROM captures"
        )
        page = otel_gpu(
            *("explain", "--output", written["a.txt"], "--duration", 60, "--"),
            *("sh", "-c", "exit 7"),
        )
        owners = {path.stat().st_uid for path in written.values()}
        modes = {name: stat.S_IMODE(path.stat().st_mode) for name, path in written.items()}
        recorded = otel_gpu("parse", written["a.rec"]).stdout

    assert calls(receiver, "cudaStreamSynchronize") == 53
    assert owners == {0}
    assert page.returncode == 7
    assert [modes[name] for name in ("a.rec", "a.jsonl", "new/a.db")] == [0o600] * 3
    assert re.search(r"\b1\b", rows.stdout)
    assert "cudaStreamSynchronize" in recorded


@pytest.mark.parametrize(
    ("inside", "env"),
    [
        ((), {"OTEL_GPU_CAPTURE_DROP_PRIVILEGES": "false"}),
        (("setpriv", "--bounding-set=-all," + ",".join(f"+{name.lower()}" for name in SIX)), {}),
    ],
    ids=["switched off", "has no more"],
)
def test_privileges_that_stay(
    receiver: OtlpReceiver, inside: tuple[str, ...], env: dict[str, str]
) -> None:
    """Where it is switched off, or there is nothing to give up, nothing changes."""
    command = [sys.executable, "-c", WAITS, "true"]
    with Agent(receiver, command, inside=inside, env=env, stdin=-1) as agent:
        status = privileges(agent.next_line())
        receiver.wait_for(receiver.metrics)
        threads = of_threads(agent.process.pid)
        agent.send_line()
        assert agent.wait().returncode == 0

    assert threads
    assert [thread for thread in threads if thread != status] == []
    assert json.dumps(status["NoNewPrivs"] + status["Seccomp"]) == '"00"'

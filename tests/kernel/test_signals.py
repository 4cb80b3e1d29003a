"""Signals to an agent: it passes on to its command what means nothing to itself."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.agent import Agent, Finished, wait_until
from tests.receiver import OtlpReceiver

pytestmark = pytest.mark.kernel

# Names the signals that it gets, in their order, until SIGTERM.
LISTENER = """
import json, os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
print(json.dumps(os.getpid()), flush=True)
while True:
    number = int(signal.sigwait(signal.valid_signals() - {signal.SIGCHLD, signal.SIGWINCH}))
    print(json.dumps(number), flush=True)
    if number == signal.SIGTERM:
        break
"""
PASSED_ON = (
    *("SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGURG", "SIGVTALRM"),
    *("SIGPROF", "SIGIO", "SIGPWR", "SIGXCPU"),
)
IN_A_TERMINAL = """
import os, pty, sys
sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))
"""
IGNORING = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")


def numbers_of(names: tuple[str, ...]) -> list[int]:
    return [int(getattr(signal, name)) for name in names]


def test_what_means_nothing_to_the_agent_reaches_the_command(receiver: OtlpReceiver) -> None:
    """As under tini, timeout and srun; a program that ends by one it was sent says so."""
    numbers = [*numbers_of(PASSED_ON), signal.SIGRTMIN, signal.SIGRTMIN + 7, signal.SIGRTMAX]
    got = []
    with Agent(receiver, [sys.executable, "-c", LISTENER], flags=["--summary", "never"]) as agent:
        agent.next_line()
        for number in numbers:
            agent.signal(number)
            got.append(agent.next_line())
        agent.signal(signal.SIGTERM)
        finished = agent.wait()

    assert got == list(map(int, numbers))
    assert finished.returncode == 0


def test_a_signal_before_the_command_begins_reaches_it_then(receiver: OtlpReceiver) -> None:
    """A scheduler may warn while probes are placed: nothing ends by that, and nothing is lost."""
    with Agent(receiver, [sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as agent:
        wait_until(lambda: handles(agent.process.pid, signal.SIGUSR1), "its handlers")
        agent.signal(signal.SIGUSR1)
        finished = agent.wait()

    assert finished.returncode == 128 + signal.SIGUSR1


def handles(pid: int, number: int) -> bool:
    """Whether a process has a handler of a signal."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (number - 1) & 1)


def test_the_terminal_interrupts_the_command_once(receiver: OtlpReceiver) -> None:
    """Ctrl-C reaches all that the terminal runs; a second one means "at once" to many programs."""
    inside = (sys.executable, "-c", IN_A_TERMINAL)
    command = [sys.executable, "-c", LISTENER]
    flags = ["--summary", "never"]
    with Agent(receiver, command, flags=flags, inside=inside, stdin=subprocess.PIPE) as agent:
        pid = agent.next_line()
        assert agent.process.stdin
        agent.process.stdin.write("\x03")
        agent.process.stdin.flush()
        # The terminal shows what is typed.
        first = agent._lines.get(timeout=60)
        os.kill(pid, signal.SIGTERM)
        finished = agent.wait()

    assert first.endswith(f"{int(signal.SIGINT)}\n")
    assert [json.loads(line) for line in finished.stdout.splitlines()[2:]] == [int(signal.SIGTERM)]


@pytest.mark.parametrize("verb", ["run", "explain"])
def test_an_interrupt_ends_a_capture_in_the_background_of_a_script(
    receiver: OtlpReceiver, verb: str
) -> None:
    """A shell has such a command ignore SIGINT, and a capture ends by it all the same."""
    with subprocess.Popen(["sleep", "100"]) as watched:
        try:
            finished = interrupted(receiver, watched.pid, verb)
        finally:
            watched.kill()

    assert finished.returncode == 0
    assert "Traceback" not in finished.stderr


def interrupted(receiver: OtlpReceiver, pid: int, verb: str) -> Finished:
    agent = Agent(receiver, flags=["--pid", str(pid)], inside=IGNORING)
    agent.command[agent.command.index("run")] = verb
    with agent:
        wait_until(lambda: handles(agent.process.pid, signal.SIGINT), "its handler")
        wait_until(lambda: handles(agent.process.pid, signal.SIGTERM), "the capture")
        agent.signal(signal.SIGINT)
        return agent.wait()


def test_a_command_keeps_ignoring_what_its_caller_ignores(receiver: OtlpReceiver) -> None:
    """What the agent handles for itself is not what its command was to begin with."""
    script = "import signal; print(int(signal.getsignal(signal.SIGINT) is signal.SIG_IGN))"
    with Agent(receiver, [sys.executable, "-c", script], inside=IGNORING) as agent:
        assert agent.wait().stdout == "1\n"

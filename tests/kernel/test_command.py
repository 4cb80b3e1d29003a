"""A command under the agent: its exit code, its input and output, its surroundings."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.agent import Agent, calls, seconds_to_end, state_of
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, workload

pytestmark = pytest.mark.kernel


def test_the_exit_code_is_the_commands(receiver: OtlpReceiver) -> None:
    """Codes pass through; a death by signal is 128 and its number, as in a shell."""
    for script, expected in (("exit 0", 0), ("exit 23", 23), ("kill -TERM $$", 143)):
        with Agent(receiver, ["sh", "-c", script]) as agent:
            assert agent.wait().returncode == expected


def test_an_interrupt_from_the_terminal_ends_both(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Ctrl-C reaches the command too; its death is our exit code, and its calls have arrived."""
    with Agent(receiver, [workload("steady"), stubs.runtime, "1000", "30"]) as agent:
        pid = agent.next_line()["pid"]
        receiver.wait_for(lambda: calls(receiver, "cudaStreamSynchronize", pid))
        os.killpg(agent.process.pid, signal.SIGINT)
        finished = agent.wait()

    assert finished.returncode == 128 + signal.SIGINT
    assert state_of(pid) is None


def test_what_the_caller_ignores_ends_nothing(receiver: OtlpReceiver, stubs: StubLibraries) -> None:
    """Under nohup, or as a script's background job, a capture outlives the terminal and Ctrl-C."""
    ignoring = ("sh", "-c", "trap '' INT HUP; exec \"$@\"", "sh")
    env = {"OTEL_GPU_EXPORT_SHUTDOWN_TIMEOUT_S": "0.1"}
    command = [workload("steady"), stubs.runtime, "1000", "30"]
    with Agent(receiver, command, env=env, inside=ignoring) as agent:
        pid = agent.next_line()["pid"]
        receiver.wait_for(lambda: calls(receiver, "cudaStreamSynchronize", pid))
        for number in (signal.SIGINT, signal.SIGHUP):
            os.killpg(agent.process.pid, number)
        counted = calls(receiver, "cudaStreamSynchronize", pid)
        receiver.wait_for(lambda: calls(receiver, "cudaStreamSynchronize", pid) > counted + 1000)
        agent.signal(signal.SIGTERM)
        finished = agent.wait()

    assert finished.lines[-1]["cudaStreamSynchronize"] > counted + 1000


def test_a_static_program_runs_as_it_would_without_us(
    receiver: OtlpReceiver, tmp_path: Path
) -> None:
    """A program without a dynamic linker has nothing to probe and loses nothing by it."""
    source, program = tmp_path / "plain.c", tmp_path / "plain"
    source.write_text("int main(void) { return 23; }\n")
    subprocess.run(["gcc", "-static", "-o", program, source], check=True)
    with Agent(receiver, [program]) as agent:
        assert agent.wait().returncode == 23


def test_a_command_that_does_not_exist_is_127(receiver: OtlpReceiver) -> None:
    """The message names the command and nothing is left running."""
    with Agent(receiver, ["/nonexistent/program"]) as agent:
        finished = agent.wait()

    assert finished.returncode == 127
    assert "/nonexistent/program" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_a_command_that_is_not_executable_is_126(receiver: OtlpReceiver, tmp_path: Path) -> None:
    """As in a shell, a file without the permission is another code than no file."""
    plain = tmp_path / "plain.txt"
    plain.write_text("not a program\n")
    with Agent(receiver, [plain]) as agent:
        finished = agent.wait()

    assert finished.returncode == 126
    assert str(plain) in finished.stderr
    assert "Traceback" not in finished.stderr


def test_stdin_and_stdout_belong_to_the_command(receiver: OtlpReceiver) -> None:
    """A filter works under the agent; our words are on standard error only."""
    with Agent(receiver, ["tr", "a-z", "A-Z"], stdin=subprocess.PIPE) as agent:
        agent.send_line("exactly this")
        assert agent.process.stdin
        agent.process.stdin.close()
        finished = agent.wait()

    assert (finished.returncode, finished.stdout) == (0, "EXACTLY THIS\n")


def test_the_command_gets_what_configures_python(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """The agent ignores such variables, and counts each call of the command that has them all."""
    given = {"PYTHONPATH": "/nonexistent", "PYTHONINSPECT": "1", "PYTHONIOENCODING": "ascii"}
    script = f"env | grep ^PYTHON >&2; exec {workload('first_call')} direct 1009 {stubs.runtime}"
    with Agent(receiver, ["sh", "-c", script], env=given) as agent:
        finished = agent.wait()

    assert {f"{name}={value}" for name, value in given.items()} <= set(finished.stderr.split("\n"))
    assert calls(receiver, "cudaMalloc", finished.lines[0]["pid"]) == 1009
    assert finished.returncode == 0


def test_closed_descriptors_stay_closed_for_the_command(
    receiver: OtlpReceiver, tmp_path: Path
) -> None:
    """No file of the agent becomes its standard input, and none the command's."""
    found = tmp_path / "found"
    script = f"for fd in 0 1 2; do [ -e /proc/$$/fd/$fd ] && echo $fd; done > {found}; exit 7"
    inside = ("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")
    with Agent(receiver, ["sh", "-c", script], inside=inside) as agent:
        assert agent.wait().returncode == 7
    # The redirection of the loop has 1.
    assert found.read_text() == "1\n"


ORPHANS = """
import os, time
for _ in range(41):
    if not os.fork():
        if not os.fork():
            time.sleep(0.1)
        os._exit(0)
    os.wait()
def ends():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as stat:
                yield stat.read().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            pass
deadline = time.monotonic() + 30
time.sleep(0.5)
while any(ends()) and time.monotonic() < deadline:
    time.sleep(0.1)
print(os.getppid(), sum(ends()), flush=True)
"""


def test_orphans_are_taken_in_where_the_agent_is_process_1(receiver: OtlpReceiver) -> None:
    """As in a container whose entrypoint it is: none of 41 stays a zombie while the command runs."""
    inside = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    with Agent(receiver, [sys.executable, "-c", ORPHANS], inside=inside) as agent:
        finished = agent.wait()

    assert finished.stdout == "1 0\n"
    assert finished.returncode == 0


def test_no_endpoint_at_all_still_runs_the_command(stubs: StubLibraries) -> None:
    """Without an endpoint nothing is sent, and the command's code comes back."""
    command = [workload("exact"), stubs.runtime, "503", "1", "5"]
    with Agent(None, command) as agent:
        finished = agent.wait()

    assert finished.returncode == 5
    assert "Traceback" not in finished.stderr


def test_an_unreachable_endpoint_costs_bounded_time_and_one_message(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """The command's code comes back in time, and standard error says what could not be reached."""
    receiver.stop()
    command = [workload("exact"), stubs.runtime, "503", "1", "5"]
    env = {"OTEL_GPU_EXPORT_SHUTDOWN_TIMEOUT_S": "2"}
    with Agent(receiver, command, env=env) as agent:
        took_s = seconds_to_end(agent, None)
        finished = agent.wait()

    assert finished.returncode == 5
    assert receiver.grpc_endpoint.removeprefix("http://") in finished.stderr
    assert "Traceback" not in finished.stderr
    assert took_s < 12

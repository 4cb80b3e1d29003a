"""``otel-gpu top`` live: what is on the screen of a running capture."""

import json
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.emulator import Emulator
from tests.kernel.agent import FIRST, ROOT, environment_for
from tests.stubs.build import StubLibraries, workload

pytestmark = pytest.mark.kernel


def top(*arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "otel_gpu", "top", *map(str, arguments)],
        cwd=ROOT,
        env=environment_for(None) | env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_once_shows_a_running_process(stubs: StubLibraries) -> None:
    """One interval of a process that makes 1,000 calls a second, on standard output."""
    command = [*FIRST, workload("steady"), stubs.runtime, "1000", "60"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            pid = json.loads(process.stdout.readline())["pid"]
            done = top("--once", "--pid", str(pid))
        finally:
            process.terminate()

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"otel-gpu top  pid {pid} on ")
    assert f"\nsteady ({pid})  " in done.stdout
    assert all(line.isprintable() for line in done.stdout.splitlines())
    found = re.search(r"^cudaStreamSynchronize +([\d,]+) ", done.stdout, re.MULTILINE)
    assert found is not None
    assert 500 <= int(found[1].replace(",", "")) <= 1_500


def test_a_command_is_shown_on_standard_error(stubs: StubLibraries) -> None:
    """Counts are exact, its output is its own, and so is its exit code."""
    # It ends with the command, which may take more than one interval where others work too.
    one_interval = ("--once", "--interval", "60")
    done = top(*one_interval, "--", workload("exact"), stubs.runtime, "503", "2")

    assert done.returncode == 0, done.stderr
    assert all(json.loads(line) for line in done.stdout.splitlines())
    (line,) = re.findall(r"^cudaMalloc .*$", done.stderr, re.MULTILINE)
    assert " 101 " in line

    assert top("--once", "--", "sh", "-c", "exit 7").returncode == 7


def test_screens_follow_each_other_on_a_pipe(stubs: StubLibraries) -> None:
    """A call that hangs is on them for as long as it does."""
    # The program has its end in it: nothing would else end one that hangs.
    done = top(
        *("--interval", "0.5", "--", "timeout", "4", workload("hang"), stubs.runtime),
        OTEL_GPU_CAPTURE_OPEN_CALL_LIMIT_S="0.5",
    )

    assert done.returncode == 124, done.stderr
    _, *screens = done.stderr.split("otel-gpu top  timeout 4 ")
    assert len(screens) >= 3
    hanging = [screen for screen in screens if "calls that do not return: 1\n" in screen]
    assert hanging
    shown = r"^ +[\d.]+ m?s  cudaStreamSynchronize in hang \(\d+\)( at hang \(hang\))?, thread \d+ stuck$"
    assert re.search(shown, hanging[-1], re.MULTILINE)


def test_q_ends_a_capture_and_leaves_the_terminal_as_it_was(stubs: StubLibraries) -> None:
    """The screen is redrawn in place until then; the last one stays to be read."""
    command = [*FIRST, workload("steady"), stubs.runtime, "1000", "60"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            pid = json.loads(process.stdout.readline())["pid"]
            with Emulator("top", "--interval", "0.5", "--pid", str(pid)) as emulator:
                emulator.read_until(b"cudaStreamSynchronize")
                emulator.press(b"q")
                assert emulator.wait() == 0
                assert termios.tcgetattr(emulator.slave) == emulator.before
        finally:
            process.terminate()

    _, _, after = emulator.written.partition(b"\x1b[?1049l")
    assert b"cudaStreamSynchronize" in after

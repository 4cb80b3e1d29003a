"""``otel-gpu top`` of recordings, and on a terminal; tests/kernel has it live."""

import logging
import os
import pty
import re
import signal
import sys
import termios
import time
from collections import Counter
from pathlib import Path

import pytest

from otel_gpu import cli, pipeline
from otel_gpu.capture.recording import read_recording
from otel_gpu.cli import keys as _keys
from otel_gpu.cli.display import _Messages
from otel_gpu.cli.keys import Keys, has_keys
from otel_gpu.enrich.activities import AggregatesActivity, CallActivity, CountersActivity
from otel_gpu.enrich.enricher import Enricher
from tests.emulator import Emulator

ROOT = Path(__file__).resolve().parents[4]
RECORDING = ROOT / "otel_gpu" / "demo" / "recordings" / "two-causes.otelgpu"
# What the scenario does: 60 steps, of which 4 lose 40 ms to a hog and 20 ms to a lock.
STEPS = 60
INJECTED_MS = 4 * (40 + 20)


@pytest.fixture(scope="module")
def told():
    """All that the recording tells, in order."""
    found = []
    pipeline.process(read_recording(RECORDING), Enricher(), [found.append], Counter())
    return found


@pytest.fixture(scope="module")
def age_s(told):
    """How long the recording is."""
    ends = [getattr(one, name, 0) for one in told for name in ("unix_ns", "end_unix_ns")]
    return (max(ends) - told[0].unix_ns) / 1e9


def test_once_prints_the_last_screen_of_a_recording(told, age_s, capsys):
    """Plain text for a pipe: no control character but the ends of lines."""
    # What "now" begins with, as the recording is shorter than an interval.
    first = next(n for n, one in enumerate(told) if isinstance(one, CountersActivity))
    calls, in_calls_ns = Counter(), Counter()
    for is_before, part in ((False, told), (True, told[:first])):
        latest = {
            s.key: s for one in part if isinstance(one, AggregatesActivity) for s in one.series
        }
        for series in latest.values():
            if series.api is not None and series.api.name == "cudaLaunchKernel":
                calls[is_before] += series.aggregate.counted
                in_calls_ns[is_before] += series.aggregate.sum
    now_s = age_s - (told[first].unix_ns - told[0].unix_ns) / 1e9
    assert calls[True] < calls[False] == STEPS

    assert cli.main(["top", "--once", str(RECORDING)]) == 0

    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    header = re.match(
        r"otel-gpu top  two-causes.otelgpu on gpu-host  ([\d.]+) (m?s) capt", lines[0]
    )
    assert header is not None
    shown_s = float(header[1]) / (1_000 if header[2] == "ms" else 1)
    assert shown_s == pytest.approx(age_s, rel=0.01)
    lost = [re.match(r"HIGH +(\d+) ms lost now  4 x slow cudaLaunchK", line) for line in lines]
    (lost_ms,) = (float(found[1]) for found in lost if found)
    assert lost_ms == pytest.approx(INJECTED_MS, rel=0.1)
    (rate, share, percent) = next(
        line.split()[1:4] for line in lines if line.startswith("cudaLaunchKernel ")
    )
    calls_per_s = (calls[False] - calls[True]) / now_s
    in_calls = (in_calls_ns[False] - in_calls_ns[True]) / 1e9 / now_s
    assert (float(rate), percent) == (pytest.approx(calls_per_s, abs=0.6), "%")
    assert float(share) == pytest.approx(100 * in_calls, abs=0.6)
    assert all(line.isprintable() for line in lines)
    assert captured.err == ""


def test_a_recording_is_played_at_its_own_pace(age_s, capsys):
    """It takes as long as it took, and leaves a screen for each interval and a last one."""
    began_s = time.monotonic()

    assert cli.main(["top", "--interval", "0.2", str(RECORDING)]) == 0

    assert time.monotonic() - began_s >= age_s - 0.05
    screens = capsys.readouterr().out.count("otel-gpu top  two-causes.otelgpu")
    assert 2 <= screens <= age_s / 0.2 + 1


def test_a_damaged_recording_is_shown_as_far_as_it_goes(tmp_path, capsys):
    """The screen comes before the error."""
    damaged = tmp_path / "cut.otelgpu"
    damaged.write_bytes(RECORDING.read_bytes()[:-9])

    assert cli.main(["top", "--once", str(damaged)]) == 1

    captured = capsys.readouterr()
    assert "cudaLaunchKernel" in captured.out
    assert captured.err.startswith("otel-gpu: error: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--pid", "1", str(RECORDING)], "a recording takes no options of a capture"),
        (["--interval", "0", str(RECORDING)], "--interval must be 0.1 to 3,600 seconds"),
        (["--interval", "nan", str(RECORDING)], "--interval must be"),
        (["--interval", "inf", str(RECORDING)], "--interval must be"),
        ([], "name what to watch"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, said, capsys):
    """With the exit code of a wrong command line."""
    assert cli.main(["top", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_keys_work_and_the_terminal_is_left_as_it_was(told):
    """Sort, choose, pause, resize, quit; then echo and lines are back."""
    (pid,) = {one.process.pid for one in told if isinstance(one, CallActivity)}
    with Emulator("top", RECORDING) as emulator:
        emulator.read_until(b"ENDED")
        during = termios.tcgetattr(emulator.slave)
        assert not during[3] & (termios.ICANON | termios.ECHO)
        emulator.press(b"s")
        emulator.read_until(b"sort: calls")
        emulator.press(b"\x1b[B")
        emulator.read_until(b"process: %d" % pid)
        emulator.press(b"k")
        emulator.read_until(b"process: all")
        emulator.press(b"p")
        emulator.read_until(b"PAUSED")
        emulator.resize(30, 120)
        emulator.read_until(b"most of it")
        emulator.press(b"q")

        assert emulator.wait() == 0

        assert termios.tcgetattr(emulator.slave) == emulator.before
        assert emulator.written.count(b"\x1b[?1049h") == emulator.written.count(b"\x1b[?1049l") == 1
        assert b"\x1b[?25h" in emulator.written


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_terminal_as_it_was(number):
    """Whoever ends it from outside gets their terminal back."""
    with Emulator("top", RECORDING) as emulator:
        emulator.read_until(b"ENDED")
        emulator.process.send_signal(number)

        assert emulator.wait() == 0

        assert termios.tcgetattr(emulator.slave) == emulator.before
        assert b"\x1b[?1049l" in emulator.written


def test_an_error_leaves_the_terminal_as_it_was(monkeypatch):
    """Whatever goes wrong inside."""
    master, slave = pty.openpty()
    try:
        before = termios.tcgetattr(slave)
        with os.fdopen(slave, closefd=False) as terminal:
            monkeypatch.setattr(sys, "stdin", terminal)
            with Keys():
                assert termios.tcgetattr(slave) != before
            with pytest.raises(ZeroDivisionError), Keys():
                _ = 1 // 0
        assert termios.tcgetattr(slave) == before
    finally:
        os.close(master)
        os.close(slave)


def test_keys_are_told_apart(monkeypatch):
    """Arrows, characters, sequences that mean nothing, and the end of the terminal."""
    reader, writer = os.pipe()
    with os.fdopen(reader) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        keys = Keys()
        assert keys.read(0.0) == []
        os.write(writer, b"s\x1b[A\x1bOB\x1b[1;5C\xffq")
        assert keys.read(0.0) == ["s", "k", "j", "", "", "q"]
        os.close(writer)
        assert keys.read(0.0) == [_keys.QUIT]


def test_a_pipe_has_no_keys(monkeypatch):
    """Neither has a program whose input is somebody else's."""
    with Path(os.devnull).open(encoding="ascii") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert not has_keys()
    monkeypatch.setattr(sys, "stdin", None)
    assert not has_keys()


def test_messages_wait_until_the_screen_is_gone(caplog):
    """A warning in the middle of the screen would tear it, and would be gone with it."""
    messages = _Messages()
    with messages:
        logging.getLogger("otel_gpu.somewhere").warning("disk %s", "full")
        assert caplog.messages == []
        assert messages.latest == "disk full"

    assert caplog.messages == ["disk full"]

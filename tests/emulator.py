"""A terminal emulator for tests: the command line on a pseudo-terminal of its own."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 60.0
# The terminal becomes the controlling one of a session of its own, as in an emulator.
BEGIN = (
    "import fcntl, os, sys, termios\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "os.execv(sys.executable, [sys.executable, '-m', 'otel_gpu', *sys.argv[1:]])\n"
)


class Emulator:
    """A pseudo-terminal, the program on it, and what it has written."""

    def __init__(self, *arguments, size=(24, 80)):
        self.master, self.slave = pty.openpty()
        self.resize(*size)
        self.before = termios.tcgetattr(self.slave)
        self.written = b""
        self.process = subprocess.Popen(
            [sys.executable, "-c", BEGIN, *map(str, arguments)],
            cwd=ROOT,
            env=os.environ | {"TERM": "xterm", "PYTHONPATH": str(ROOT)},
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    def resize(self, lines, columns):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys):
        os.write(self.master, keys)

    def read_until(self, text):
        """Read on until a text was written after what was read before; what was."""
        seen = b""
        deadline_s = time.monotonic() + TIMEOUT_S
        while text not in seen:
            assert time.monotonic() < deadline_s, (text, self.written)
            ready, _, _ = select.select([self.master], [], [], 0.1)
            if ready:
                data = os.read(self.master, 65_536)
                seen += data
                self.written += data
        return seen

    def wait(self):
        """The exit code; the output is read meanwhile, else the program would wait."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while (code := self.process.poll()) is None or select.select([self.master], [], [], 0)[0]:
            assert time.monotonic() < deadline_s, self.written
            if select.select([self.master], [], [], 0.1)[0]:
                self.written += os.read(self.master, 65_536)
        return code

"""
Demangles names of functions.

C++ names are sent to a child process (demangler_process.py): the exact demangler is the C++ library's,
and a hostile name can exhaust its memory. Rust's newer names stay mangled; its older ones are C++ names
with a hash at the end. The child is started with the first name, and ends after a minute without
questions.
"""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from otel_gpu.procfs.system_call_filter import ALLOWED_TO_CALCULATE, make_filter
from otel_gpu.stacks.symbols import demangler_process

_PROGRAM = Path(demangler_process.__file__)
_FILTER = make_filter(ALLOWED_TO_CALCULATE, allowed=True)
# With the newline, it fits into one read of the child.
_MAX_NAME_BYTES = 4095
_MAX_ANSWER_BYTES = 4096
_START_TIMEOUT_S = 3.0
_ANSWER_TIMEOUT_S = 0.25
# After a name that crashed the demangler: so a hostile program gets at most 5 % of our time.
_PAUSE_S = 5.0


class Demangler:
    """Turns mangled names into text."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._is_missing = not sys.executable
        self._resume_s = 0.0

    def __del__(self) -> None:
        # Also after a failed construction.
        if hasattr(self, "_process"):
            self.close()

    def close(self) -> None:
        """End the child; the next name starts it again."""
        process, self._process = self._process, None
        if process is not None:
            self._socket.close()
            process.kill()
            process.wait()

    def text(self, name: str) -> str | None:
        """
        Return a demangled name; unchanged if it is not mangled, or cannot be demangled.

        None: not possible now; ask again later.
        """
        # Mangled names have only these characters; a newline would separate two names.
        is_mangled = name.startswith("_Z") and name.isascii() and name.isprintable()
        if not is_mangled or len(name) > _MAX_NAME_BYTES or self._is_missing:
            return name
        if self._clock() < self._resume_s:
            return None
        answer = self._ask(name.encode("ascii") + b"\n")
        if answer is None and not self._is_missing:
            self._resume_s = self._clock() + _PAUSE_S
        return answer or name

    def _ask(self, question: bytes) -> str | None:
        # None: no answer. The child can have ended after an idle minute, so ask twice.
        for _ in range(2):
            timeout_s = _ANSWER_TIMEOUT_S if self._process else _START_TIMEOUT_S
            self._process = self._process or self._start()
            answer = self._exchange(question, timeout_s) if self._process else None
            if self._process is None or answer is None:
                break
            if answer:
                return answer[:-1].decode("utf-8", "replace")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_ANSWER_TIMEOUT_S)
            self._is_missing = self._process.returncode == demangler_process.NO_DEMANGLER
            if self._process.returncode != 0:
                break
            self.close()
        self.close()
        return None

    def _start(self) -> subprocess.Popen[bytes] | None:
        # A message is not split, so an answer comes whole or not at all.
        self._socket, other = socket.socketpair(type=socket.SOCK_SEQPACKET)
        name = "LD_LIBRARY_PATH"
        with other, contextlib.suppress(OSError):
            return subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(_PROGRAM), _FILTER.hex()],
                stdin=other.fileno(),
                stdout=other.fileno(),
                stderr=subprocess.DEVNULL,
                cwd="/",
                # Our environment can have secrets.
                env={name: os.environ[name]} if name in os.environ else {},
                start_new_session=True,  # Ctrl-C is for the agent, which can still ask.
            )
        self._socket.close()
        return None

    def _exchange(self, question: bytes, timeout_s: float) -> bytes | None:
        # The answer with its newline; empty: the child has ended; None: it was too late.
        try:
            self._socket.settimeout(timeout_s)
            self._socket.send(question)
            return self._socket.recv(_MAX_ANSWER_BYTES)
        except TimeoutError:
            return None
        except OSError:
            return b""

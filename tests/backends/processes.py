"""A backend as a separate process on loopback, which always ends with the test."""

import json
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlencode

LOOPBACK = "127.0.0.1"
# Jaeger is ready in half a second; the rest is room for a busy machine.
START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 30.0
END_TIMEOUT_S = 20.0

T = TypeVar("T")


class Backend:
    """
    Runs a program from ``with`` to the end of the block, and lets its API be asked.

    The log of a program that does not start, or that a failing test has used, is in the
    error.

    Args:
        command: The program and its arguments.
        env: All of its environment.
        ready: A URL that answers 200 once it is up.
        api: Where ``get`` asks.
    """

    start_timeout_s = START_TIMEOUT_S
    end_timeout_s = END_TIMEOUT_S

    def __init__(
        self, command: Sequence[str | Path], env: Mapping[str, str], ready: str = "", api: str = ""
    ) -> None:
        self._command = [str(part) for part in command]
        self._env = dict(env)
        self._ready = ready
        self._api = api
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name)

    def __enter__(self) -> Self:
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self.folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline_s = time.monotonic() + self.start_timeout_s
        while not self.is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                said = self.log
                self.__exit__(None, None, None)
                raise RuntimeError(f"{self._command[0]} did not start: {said[-4000:]}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            error.add_note(f"{self._command[0]} said:\n{self.log[-4000:]}")
        self.stop()
        self._folder.cleanup()

    def is_ready(self) -> bool:
        """Whether it is up; it answers at its URL unless a subclass knows better."""
        return _answers(self._ready)

    def stop(self) -> None:
        """Stop it with SIGTERM, so that it sends pending data."""
        self._process.terminate()
        try:
            self._process.wait(self.end_timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def log(self) -> str:
        """Its output so far."""
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    def get(self, path: str, **query: str) -> Any:
        """Ask its API; None for "not found"."""
        url = f"{self._api}{path}?{urlencode(query)}" if query else self._api + path
        try:
            with urllib.request.urlopen(url, timeout=ANSWER_TIMEOUT_S) as answer:  # noqa: S310 -- loopback
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            error.add_note(error.read().decode("utf-8", "replace")[:2000])
            raise


def wait_for(found: Callable[[], T], timeout_s: float = ANSWER_TIMEOUT_S) -> T:
    """Ask until the answer is true, and return it; the last answer if it never is."""
    deadline_s = time.monotonic() + timeout_s
    while not (answer := found()) and time.monotonic() < deadline_s:
        time.sleep(0.05)  # how often it is asked, not how long it may take
    return answer


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, all different."""
    listeners = [socket.socket() for _ in range(count)]
    try:
        for listener in listeners:
            listener.bind((LOOPBACK, 0))
        return [int(listener.getsockname()[1]) for listener in listeners]
    finally:
        for listener in listeners:
            listener.close()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:  # noqa: S310 -- loopback
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False

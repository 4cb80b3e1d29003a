"""
A real collector as a process: rotel, which decodes and encodes OTLP on its own.

It receives gRPC and HTTP on loopback and forwards all signals to an ``OtlpReceiver``,
so a test sees what an independent implementation made of our bytes.
"""

import contextlib
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.receiver import LOOPBACK, OtlpReceiver

START_TIMEOUT_S = 10.0


def agent_binary() -> Path:
    """Return the collector's program in the rotel wheel."""
    spec = find_spec("rotel")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "rotel-agent"


class Collector:
    """
    Runs rotel until the ``with`` block ends.

    Attributes:
        grpc_endpoint: Where it receives OTLP over gRPC.
        http_endpoint: Where it receives OTLP over HTTP.
    """

    def __init__(self, forward_to: OtlpReceiver) -> None:
        grpc_port, http_port = _free_port(), _free_port()
        self._ports = (grpc_port, http_port)
        self.grpc_endpoint = f"http://{LOOPBACK}:{grpc_port}"
        self.http_endpoint = f"http://{LOOPBACK}:{http_port}"
        self._forward_to = forward_to
        self._folder = tempfile.TemporaryDirectory()

    def __enter__(self) -> Self:
        folder = Path(self._folder.name)
        self._log = (folder / "log").open("w+b")
        self._process = subprocess.Popen(
            [
                agent_binary(),
                "start",
                f"--pid-file={folder / 'pid'}",
                f"--log-file={folder / 'agent.log'}",
                f"--otlp-grpc-endpoint={LOOPBACK}:{self._ports[0]}",
                f"--otlp-http-endpoint={LOOPBACK}:{self._ports[1]}",
                "--exporter=otlp",
                f"--otlp-exporter-endpoint={self._forward_to.grpc_endpoint}",
                "--otlp-exporter-compression=none",
            ],
            env={},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        deadline_s = time.monotonic() + START_TIMEOUT_S
        for port in self._ports:
            while not _listens(port):
                if self._process.poll() is not None or time.monotonic() > deadline_s:
                    said = self.log
                    self.__exit__(None, None, None)
                    raise RuntimeError(f"the collector did not start: {said}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            error.add_note(f"the collector said:\n{self.log[-4000:]}")
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._folder.cleanup()

    @property
    def log(self) -> str:
        """What the collector has printed so far."""
        return Path(self._log.name).read_text(encoding="utf-8", errors="replace")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        return int(listener.getsockname()[1])


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), 0.1):
        return True
    return False

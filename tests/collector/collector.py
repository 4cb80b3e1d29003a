"""
A real collector as a process: rotel, which decodes and encodes OTLP on its own.

It receives gRPC and HTTP on loopback and forwards all signals to an ``OtlpReceiver``,
so a test sees what an independent implementation made of our bytes.
"""

import contextlib
import socket
from importlib.util import find_spec
from pathlib import Path

from tests.backends.processes import Backend, free_ports
from tests.receiver import LOOPBACK, OtlpReceiver


def agent_binary() -> Path:
    """Return the collector's program in the rotel wheel."""
    spec = find_spec("rotel")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "rotel-agent"


class Collector(Backend):
    """
    Runs rotel until the ``with`` block ends.

    Attributes:
        grpc_endpoint: Where it receives OTLP over gRPC.
        http_endpoint: Where it receives OTLP over HTTP.
    """

    start_timeout_s = 30.0
    end_timeout_s = 30.0

    def __init__(self, forward_to: OtlpReceiver) -> None:
        self._ports = free_ports(2)
        grpc, http = (f"{LOOPBACK}:{port}" for port in self._ports)
        self.grpc_endpoint = f"http://{grpc}"
        self.http_endpoint = f"http://{http}"
        command = [
            agent_binary(),
            "start",
            "--pid-file=pid",
            "--log-file=agent.log",
            f"--otlp-grpc-endpoint={grpc}",
            f"--otlp-http-endpoint={http}",
            "--exporter=otlp",
            f"--otlp-exporter-endpoint={forward_to.grpc_endpoint}",
            "--otlp-exporter-compression=none",
        ]
        super().__init__(command, {})

    def is_ready(self) -> bool:
        """Whether it listens; it answers no requests but OTLP."""
        return all(map(_listens, self._ports))


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), 0.1):
        return True
    return False

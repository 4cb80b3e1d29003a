"""
Inference engines as a Prometheus sees them: ``/metrics`` with the names that they have there.

The files in ``engines/`` are in Prometheus's text format, with names, labels, types and help of
vLLM 0.33.0 and SGLang 0.5.23 as their packages on PyPI have them, and of TGI and Triton as their
documentation has them (TGI at 53fdbe6, Triton at dcc9123). No engine runs here: numbers are made up.
"""

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.backends.processes import LOOPBACK

FOLDER = Path(__file__).resolve().parent / "engines"
NAMES = ("vllm", "sglang", "tgi", "triton")
_TYPE = re.compile(r"# TYPE (\S+) (\w+)")


class Engines:
    """
    All of them, at a path of its own each, and each time with as much more as the first time.

    Attributes:
        asked: How often each was asked.
    """

    def __init__(self) -> None:
        self.asked = dict.fromkeys(NAMES, 0)
        self._lock = threading.Lock()
        self._servers = {name: self._server(name) for name in NAMES}

    def __enter__(self) -> Self:
        for server in self._servers.values():
            threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self._servers.values():
            server.shutdown()
            server.server_close()

    def environment(self, **services: str) -> dict[str, str]:
        """Return what ``inference.yaml`` wants to know; services are called as here said."""
        found = {"OTELCOL_INFERENCE_INTERVAL": "1s"}
        for name, server in self._servers.items():
            found[f"OTELCOL_{name.upper()}"] = f"[{LOOPBACK}:{server.server_port}]"
            if name in services:
                found[f"OTELCOL_{name.upper()}_SERVICE"] = services[name]
        return found

    def port(self, name: str) -> int:
        """Return where an engine listens."""
        return self._servers[name].server_port

    def _server(self, name: str) -> ThreadingHTTPServer:
        engines = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = engines._answer(name).encode()
                self.send_response(200 if self.path == "/metrics" else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return ThreadingHTTPServer((LOOPBACK, 0), Handler)

    def _answer(self, name: str) -> str:
        with self._lock:
            self.asked[name] += 1
            times = self.asked[name]
        lines = []
        grows = False
        for line in (FOLDER / f"{name}.prom").read_text(encoding="utf-8").splitlines():
            if found := _TYPE.match(line):
                grows = found[2] in {"counter", "histogram"}
            if grows and not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                line = f"{series} {float(value) * times}"  # noqa: PLW2901 -- the same, later
            lines.append(line)
        return "\n".join(lines) + "\n"

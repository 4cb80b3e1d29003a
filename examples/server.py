"""
An HTTP server with a thread for each request, whose handlers use CUDA. It knows nothing of otel_gpu.

    OTEL_SERVICE_NAME=shop otel-gpu run -- opentelemetry-instrument python examples/server.py
    curl -d 7 http://127.0.0.1:8080/generate

It names its spans with OpenTelemetry's API alone: one for the request, in the trace of whoever sent
it, and one for what its handler does. The handler's calls of CUDA, their waits and what made one of
them slow come below that, in the same trace, which the header ``traceresponse`` names. To see a cause:

    curl -d 300 http://127.0.0.1:8080/load & curl -d 7 http://127.0.0.1:8080/generate

CUDA is the stand-in of ``otel-gpu demo``, which the host's C compiler makes: kernels take 3 ms in
all, and launches need a lock, which loading a module holds for as many milliseconds as are posted.
"""

import argparse
import contextlib
import ctypes
import signal
import sys
import tempfile
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from opentelemetry import propagate, trace

from otel_gpu.demo.build import build_library
from otel_gpu.demo.loop import Dim3

KERNEL_US = 3_000
LOCK_BYTES = 64  # more than a lock of any machine's C library needs; zeros are one that is free

tracer = trace.get_tracer("examples.server")


class Device:
    """The stand-in for CUDA, with a driver's lock: many launch at a time, and none while one loads."""

    def __init__(self, folder: Path) -> None:
        self._cuda = ctypes.CDLL(str(build_library(folder)))
        self._libc = ctypes.CDLL(None)
        self._lock = (ctypes.c_char * LOCK_BYTES)()
        lock, sleep = self._libc.pthread_rwlock_rdlock, self._libc.usleep
        self._cuda.stub_call_inside(b"cudaLaunchKernel", lock, self._lock)
        self._cuda.stub_call_inside(b"cudaStreamSynchronize", sleep, ctypes.c_void_p(KERNEL_US))

    def launch(self) -> None:
        """Launch a kernel."""
        self._cuda.cudaLaunchKernel(
            None, Dim3(1, 1, 1), Dim3(32, 1, 1), None, ctypes.c_size_t(0), None
        )
        self._libc.pthread_rwlock_unlock(self._lock)

    def synchronize(self) -> None:
        """Wait for what was launched."""
        self._cuda.cudaStreamSynchronize(None)

    def load(self, duration_s: float) -> None:
        """Hold the lock that launches need."""
        self._libc.pthread_rwlock_wrlock(self._lock)
        time.sleep(duration_s)
        self._libc.pthread_rwlock_unlock(self._lock)


class Handler(BaseHTTPRequestHandler):
    """Answers a request in a thread of its own."""

    device: Device

    def do_POST(self) -> None:
        """Do what the path says, as often or as long as the body says."""
        name = f"POST {self.path}"
        caller = propagate.extract(self.headers)
        with tracer.start_as_current_span(name, caller, trace.SpanKind.SERVER) as span:
            work = {"/generate": self.generate, "/load": self.load}.get(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            status = HTTPStatus.OK if body.isdecimal() else HTTPStatus.BAD_REQUEST
            if work is None:
                status = HTTPStatus.NOT_FOUND
            elif status == HTTPStatus.OK:
                work(int(body))
            span.set_attribute("http.response.status_code", int(status))
            self.reply(status, span.get_span_context())

    @tracer.start_as_current_span("generate")
    def generate(self, tokens: int) -> None:
        """Launch a kernel for each token, and wait for them."""
        for _ in range(tokens):
            self.device.launch()
        self.device.synchronize()

    @tracer.start_as_current_span("load")
    def load(self, duration_ms: int) -> None:
        """Load something, which takes so long."""
        self.device.load(duration_ms / 1e3)

    def reply(self, status: HTTPStatus, span: trace.SpanContext) -> None:
        """Say how it went, and in which span."""
        self.send_response(status)
        self.send_header("Content-Length", "0")
        identity = f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
        self.send_header("traceresponse", identity)
        self.end_headers()


def main() -> None:
    """Serve until Ctrl-C or SIGTERM, after which the SDK sends what it has."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--port", type=int, default=8080)
    port = arguments.parse_args().port
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):
        Handler.device = Device(Path(folder))
        with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
            print(f"http://127.0.0.1:{server.server_port}", flush=True)
            server.serve_forever()


if __name__ == "__main__":
    main()

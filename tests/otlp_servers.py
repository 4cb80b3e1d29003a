"""OTLP over gRPC and over HTTP on loopback, handing each request to one function."""

import gzip
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import grpc

LOOPBACK = "127.0.0.1"
SIGNAL_OF_PATH = {
    "/v1/traces": "traces",
    "/v1/metrics": "metrics",
    "/v1/logs": "logs",
    "/v1development/profiles": "profiles",
}
SIGNAL_OF_METHOD = {
    "/opentelemetry.proto.collector.trace.v1.TraceService/Export": "traces",
    "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export": "metrics",
    "/opentelemetry.proto.collector.logs.v1.LogsService/Export": "logs",
    "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export": "profiles",
}
_BIND_TIMEOUT_S = 5.0


class Request(NamedTuple):
    """One export request as it arrived, after decompression."""

    signal: str
    protocol: str
    body: bytes
    headers: Mapping[str, str]
    received_unix_ns: int


# Takes a request and returns the response message, or None for "unavailable".
Answer = Callable[[Request], bytes | None]


class GrpcServer:
    """
    A gRPC server of the OTLP services.

    Args:
        port: 0 for any; ``self.port`` says which.
    """

    def __init__(self, port: int, answer: Answer, *, max_message_bytes: int) -> None:
        self._server = grpc.server(
            futures.ThreadPoolExecutor(max_workers=8, thread_name_prefix="otlp-grpc"),
            options=(
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", max_message_bytes),
            ),
        )
        self._server.add_generic_rpc_handlers((_GrpcHandler(answer),))
        self.port = self._bind(port)
        self._server.start()

    def _bind(self, port: int) -> int:
        # A port that was just closed can take a moment to become free again.
        deadline_s = time.monotonic() + _BIND_TIMEOUT_S
        while True:
            try:
                return int(self._server.add_insecure_port(f"{LOOPBACK}:{port}"))
            except RuntimeError:
                if time.monotonic() > deadline_s:
                    raise

    def close(self) -> None:
        """Stop listening and end every connection."""
        self._server.stop(grace=None).wait()


class _GrpcHandler(grpc.GenericRpcHandler):
    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def service(self, details: Any) -> Any:
        signal = SIGNAL_OF_METHOD.get(details.method)
        if signal is None:
            return None

        def export(body: bytes, context: Any) -> bytes:
            headers = {str(key): str(value) for key, value in context.invocation_metadata()}
            response = self._answer(Request(signal, "grpc", body, headers, time.time_ns()))
            if response is None:
                context.abort(grpc.StatusCode.UNAVAILABLE, "refused by the test receiver")
            return response or b""

        # No (de)serialisers: the raw bytes are what the tests keep.
        return grpc.unary_unary_rpc_method_handler(export)


class HttpServer(ThreadingHTTPServer):
    """
    An HTTP server of the OTLP paths, protobuf only.

    Args:
        port: 0 for any; ``self.port`` says which.
    """

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, port: int, answer: Answer) -> None:
        self.answer = answer
        self._connections: set[Any] = set()
        super().__init__((LOOPBACK, port), _HttpHandler)
        self.port = self.server_address[1]
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.02}, name="otlp-http"
        )
        self._thread.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that went away, or close() under it, is what tests do on purpose.
        pass

    def close(self) -> None:
        """Stop listening and end kept-alive connections too, as a killed server does."""
        self.shutdown()
        for connection in tuple(self._connections):
            self.shutdown_request(connection)
        self.server_close()
        self._thread.join()


class _HttpHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HttpServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        match self.headers.get("Content-Encoding", "identity"):
            case "gzip":
                body = gzip.decompress(body)
            case "deflate":
                body = zlib.decompress(body)
        signal = SIGNAL_OF_PATH.get(self.path)
        if signal is None:
            self._reply(404, b"")
            return
        if self.headers.get("Content-Type") != "application/x-protobuf":
            self._reply(415, b"")
            return
        headers = {key.lower(): value for key, value in self.headers.items()}
        request = Request(signal, "http/protobuf", body, headers, time.time_ns())
        response = self.server.answer(request)
        self._reply(503 if response is None else 200, response or b"")

    def _reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (inherited name)
        pass

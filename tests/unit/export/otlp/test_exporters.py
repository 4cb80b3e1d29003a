import gzip
import socket
import threading
from contextlib import closing, suppress
from unittest.mock import Mock

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as stock_encode
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_gpu.errors import ConfigError
from otel_gpu.export.metrics.exporter import open_exporters
from otel_gpu.export.otlp.exporters import otlp_transport
from otel_gpu.export.otlp.queue import QueuedItem
from otel_gpu.export.otlp.sender import Delivery, SendOutcome
from otel_gpu.export.otlp.signals import LOGS, SPANS
from otel_gpu.export.otlp.span_encoder import LogEncoder, SpanEncoder, SpanLog, encode_request
from otel_gpu.export.profiles.profile_encoder import PROFILES, ProcessSample, ProfileEncoder
from otel_gpu.export.spans.finished import FinishedSpan, Origin, SpanEvent, readable
from tests.receiver import WAIT_TIMEOUT_S, OtlpReceiver

ORIGIN = Origin(Resource({"service.name": "trainer"}), InstrumentationScope("otel_gpu.cuda"))
PROTOCOLS = ["grpc", "http/protobuf"]


@pytest.fixture
def connect(receiver):
    opened = []

    def open_transport(protocol, **environ):
        endpoint = receiver.grpc_endpoint if protocol == "grpc" else receiver.http_endpoint
        opened.append(
            otlp_transport(
                {
                    "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
                    "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
                    **environ,
                }
            )
        )
        return opened[-1]

    yield open_transport
    for transport in opened:
        transport.close()


def span(number: int, text: str = "") -> FinishedSpan:
    return FinishedSpan(
        ORIGIN, b"t" * 16, number.to_bytes(8), b"", "cudaFree", 1, 2, (("text", text),)
    )


def batch(*spans: FinishedSpan) -> list[QueuedItem]:
    encoder = SpanEncoder()
    return [QueuedItem(ORIGIN, len(data), data) for data in map(encoder.encode, spans)]


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_spans_arrive_as_the_standard_exporter_would_send_them(connect, receiver, protocol):
    """A real receiver gets the standard encoder's bytes, over both protocols."""
    spans = [span(number, "é") for number in range(1, 24)]

    delivery = connect(protocol).deliver(batch(*spans))

    assert delivery == Delivery(SendOutcome.DELIVERED)
    (request,) = receiver.requests("traces")
    assert request.protocol == protocol
    assert request.body == stock_encode([readable(s) for s in spans]).SerializeToString()
    assert len(receiver.spans()) == 23


def log_batch(*numbers: int) -> list[QueuedItem]:
    encoder = LogEncoder()
    event = SpanEvent("otel_gpu.stack", 5, (("code.stacktrace", "main (a.py:1)"),))
    items = [encoder.encode(SpanLog(*span(number)[:3], event)) for number in numbers]
    return [QueuedItem(ORIGIN, len(data), data) for data in items]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_log_records_arrive_where_logs_go(receiver, protocol):
    """They have their own service and path, and answers of their own."""
    endpoint = receiver.grpc_endpoint if protocol == "grpc" else receiver.http_endpoint
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_LOGS_HEADERS": "api-key=secret",
        "OTEL_EXPORTER_OTLP_LOGS_TIMEOUT": "0.3",
    }
    transport = otlp_transport(environ, LOGS)

    assert transport.place.startswith("the log endpoint ")
    assert transport.deliver(log_batch(1, 2, 3)) == Delivery(SendOutcome.DELIVERED)
    receiver.reject_spans = 2
    assert transport.deliver(log_batch(4, 5)) == Delivery(SendOutcome.DELIVERED, rejected=2)
    # What makes no sense takes nothing back that was counted.
    receiver.reject_spans = -7
    assert transport.deliver(log_batch(7)) == Delivery(SendOutcome.DELIVERED)
    receiver.refuse(True)
    assert transport.deliver(log_batch(6)).outcome is SendOutcome.UNAVAILABLE
    transport.close()

    request, *_ = receiver.requests("logs")
    assert (request.protocol, request.headers["api-key"]) == (protocol, "secret")
    (resource,) = ExportLogsServiceRequest.FromString(request.body).resource_logs
    (scope,) = resource.scope_logs
    assert scope.scope.name == "otel_gpu.cuda"
    assert [record.span_id for record in scope.log_records] == [
        number.to_bytes(8) for number in (1, 2, 3)
    ]
    assert {record.event_name for record in scope.log_records} == {"otel_gpu.stack"}


class Answering:
    """A receiver that answers each request in its own way; ``sent`` is how many bytes it could send."""

    def __init__(self, head: str, piece: bytes = b"", most_bytes: int = 0) -> None:
        self._answer = head.encode() + b"\r\n\r\n", piece, most_bytes
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self.requests = self.sent = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        head, piece, most_bytes = self._answer
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                with connection, suppress(OSError):
                    connection.settimeout(30)
                    connection.recv(1 << 16)
                    self.requests += 1
                    connection.sendall(head)
                    while self.sent < most_bytes:
                        self.sent += connection.send(piece)

    def close(self) -> None:
        self._server.close()


@pytest.mark.parametrize(
    ("encoding", "piece"),
    [("", b"a" * 65_536), ("Content-Encoding: gzip\r\n", gzip.compress(bytes(1 << 20)))],
)
def test_an_answer_without_an_end_costs_little(encoding, piece):
    """It says nothing, as a proxy's page does; and as much is read of it as of any other."""
    with closing(
        Answering(f"HTTP/1.1 200 OK\r\n{encoding}Connection: close", piece, 1 << 29)
    ) as one:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": one.endpoint}
        environ["OTEL_EXPORTER_OTLP_PROTOCOL"] = "http/protobuf"
        with closing(otlp_transport(environ)) as transport:
            assert transport.deliver(batch(span(1))) == Delivery(SendOutcome.DELIVERED)
        (exporter,) = open_exporters({**environ, "OTEL_METRICS_EXPORTER": "otlp"}, 9)
        exporter.export(MetricsData([]))
        exporter.shutdown()

        assert one.requests == 2
        # And what is on its way when the connection is closed.
        assert one.sent < 32 << 20


def test_telemetry_is_not_sent_on():
    """A receiver that names another one is a receiver that refuses."""
    with closing(Answering("HTTP/1.1 200 OK\r\nContent-Length: 0")) as other:
        head = f"HTTP/1.1 307 Elsewhere\r\nLocation: {other.endpoint}\r\nContent-Length: 0"
        with closing(Answering(head)) as one:
            environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": one.endpoint}
            environ["OTEL_EXPORTER_OTLP_PROTOCOL"] = "http/protobuf"
            with closing(otlp_transport(environ)) as transport:
                assert transport.deliver(batch(span(1))).outcome is SendOutcome.REJECTED

        assert one.requests == 1
        assert other.requests == 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_profiles_arrive_where_profiles_go(receiver, protocol):
    """By their own variables, not by those of traces, and each in a request of its own."""
    endpoint = receiver.grpc_endpoint if protocol == "grpc" else receiver.http_endpoint
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://127.0.0.1:{closed_port()}",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "api-key=of-traces",
        "OTEL_EXPORTER_OTLP_PROFILES_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_PROFILES_HEADERS": "api-key=secret",
        "OTEL_EXPORTER_OTLP_PROFILES_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_PROFILES_TIMEOUT": "0.3",
    }
    transport = otlp_transport(environ, PROFILES)
    encoder = ProfileEncoder(ORIGIN)
    encoder.add(ProcessSample(5, 10, 42, "trainer", ("do_nanosleep",), None))
    data = encoder.encode(bytes(range(16))).data
    batch = [QueuedItem(ORIGIN, len(data), data)]

    assert transport.place.startswith("the profile endpoint ")
    assert transport.deliver(batch) == Delivery(SendOutcome.DELIVERED)
    receiver.reject_spans = 1
    assert transport.deliver(batch) == Delivery(SendOutcome.DELIVERED, rejected=1)
    receiver.refuse(True)
    assert transport.deliver(batch).outcome is SendOutcome.UNAVAILABLE
    transport.close()

    request, *_ = receiver.requests()
    assert (request.signal, request.protocol) == ("profiles", protocol)
    assert (request.body, request.headers["api-key"]) == (data, "secret")


def test_an_endpoint_of_profiles_is_taken_as_it_is(receiver):
    """As with the other signals, nothing is added to it."""
    environ = {
        "OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT": f"{receiver.http_endpoint}/elsewhere",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    transport = otlp_transport(environ, PROFILES)

    assert transport.place == f"the profile endpoint {receiver.http_endpoint}/elsewhere"
    assert transport.deliver([QueuedItem(ORIGIN, 0, b"")]).outcome is SendOutcome.REJECTED
    transport.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_headers_and_compression_hold(connect, receiver, protocol, compression):
    """The operator's OTEL_EXPORTER_OTLP_* settings reach the wire."""
    transport = connect(
        protocol,
        OTEL_EXPORTER_OTLP_HEADERS="api-key=secret,tenant=a%20b",
        OTEL_EXPORTER_OTLP_COMPRESSION=compression,
    )

    assert transport.deliver(batch(span(1, "x" * 5000))).outcome is SendOutcome.DELIVERED

    (request,) = receiver.requests("traces")
    assert request.headers["api-key"] == "secret"
    assert request.headers["tenant"] == "a b"
    if protocol != "grpc":
        assert request.headers.get("content-encoding", "none") == compression


def test_a_signals_own_endpoint_wins(receiver):
    """OTEL_EXPORTER_OTLP_TRACES_* go before the general ones."""
    transport = otlp_transport(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{closed_port()}",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{receiver.http_endpoint}/v1/traces",
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        }
    )

    assert transport.deliver(batch(span(1))).outcome is SendOutcome.DELIVERED
    transport.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_empty_variables_count_as_not_set(connect, protocol):
    """As the specification has it, an empty value is no value, and no mistake."""
    empty = dict.fromkeys(
        ("TIMEOUT", "HEADERS", "COMPRESSION", "INSECURE", "CERTIFICATE", "TRACES_ENDPOINT"), ""
    )
    transport = connect(
        protocol, **{f"OTEL_EXPORTER_OTLP_{name}": value for name, value in empty.items()}
    )

    assert transport.deliver(batch(span(1))).outcome is SendOutcome.DELIVERED


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_spans_that_the_receiver_rejects_are_told(connect, receiver, protocol):
    """OTLP's partial success reaches the counters."""
    receiver.reject_spans = 2

    delivery = connect(protocol).deliver(batch(span(1), span(2), span(3)))

    assert delivery == Delivery(SendOutcome.DELIVERED, rejected=2)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_dead_endpoint_is_unavailable(protocol):
    """A refused connection means: try again later."""
    transport = otlp_transport(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{closed_port()}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "0.3",
        }
    )

    assert transport.deliver(batch(span(1))).outcome is SendOutcome.UNAVAILABLE
    transport.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_receiver_that_has_no_time_is_unavailable(connect, receiver, protocol):
    """UNAVAILABLE and 503 mean: try again later."""
    receiver.refuse(True)

    delivery = connect(protocol, OTEL_EXPORTER_OTLP_TIMEOUT="0.3").deliver(batch(span(1)))

    assert delivery.outcome is SendOutcome.UNAVAILABLE


def test_a_receiver_that_refuses_for_good_has_rejected(receiver):
    """404 says that another try is of no use."""
    transport = otlp_transport(
        {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{receiver.http_endpoint}/elsewhere",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }
    )

    assert transport.deliver(batch(span(1))).outcome is SendOutcome.REJECTED
    transport.close()


def test_a_request_that_is_too_large_is_told_at_once(caplog):
    """The gRPC code means "retry" elsewhere; here it would only burn the timeout."""
    with OtlpReceiver(max_message_bytes=10_000) as receiver:
        transport = otlp_transport({"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.grpc_endpoint})

        large = transport.deliver(batch(*(span(number, "x" * 1000) for number in range(20))))
        small = transport.deliver(batch(span(1)))
        transport.close()

    assert large.outcome is SendOutcome.TOO_LARGE
    assert small.outcome is SendOutcome.DELIVERED
    assert "retrying" not in caplog.text


def test_a_batch_is_encoded_once_however_often_it_is_tried(connect, receiver, monkeypatch):
    """A receiver that is busy gets the same bytes again."""
    transport = connect("grpc")
    encode = Mock(wraps=encode_request)
    monkeypatch.setattr(transport, "_of", SPANS._replace(join=encode))
    monkeypatch.setattr(
        transport._shutdown_in_progress, "wait", lambda _seconds: receiver.refuse(False)
    )
    receiver.refuse(True)

    delivery = transport.deliver(batch(span(1), span(2)))

    assert delivery == Delivery(SendOutcome.DELIVERED)
    assert encode.call_count == 1
    assert len(receiver.spans()) == 2


def test_closing_ends_a_wait_for_an_answer(connect, receiver):
    """A shutdown need not wait for a receiver that does not answer."""
    receiver.pause()
    transport = connect("grpc", OTEL_EXPORTER_OTLP_TIMEOUT="600")
    called = threading.Event()
    call = transport._client._call

    def export(**arguments):
        called.set()
        return call(**arguments)

    transport._client._call = export
    answers: list[Delivery] = []
    thread = threading.Thread(target=lambda: answers.append(transport.deliver(batch(span(1)))))
    thread.start()
    assert called.wait(WAIT_TIMEOUT_S)

    transport.close()
    thread.join(WAIT_TIMEOUT_S)

    assert not thread.is_alive()
    assert answers[0].outcome is not SendOutcome.DELIVERED


@pytest.mark.parametrize(
    "environ",
    [
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "carrier-pigeon"},
        {"OTEL_EXPORTER_OTLP_COMPRESSION": "zip"},
        {"OTEL_EXPORTER_OTLP_TIMEOUT": "-3"},
        {
            "OTEL_PYTHON_EXPORTER_OTLP_GRPC_CREDENTIAL_PROVIDER": "nobody",
            "OTEL_EXPORTER_OTLP_INSECURE": "false",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "https://localhost:4317",
        },
    ],
)
def test_settings_that_cannot_work_are_refused(environ):
    """The operator hears at the start what is wrong, with a hint."""
    with pytest.raises(ConfigError) as caught:
        otlp_transport(environ)

    assert caught.value.hint


def test_the_seams_of_the_standard_exporters_are_where_we_expect_them(connect):
    """The private attributes that answers are heard through still exist."""
    assert isinstance(connect("grpc")._channel, grpc.Channel)
    assert callable(connect("http/protobuf")._client._transport.is_connection_error)

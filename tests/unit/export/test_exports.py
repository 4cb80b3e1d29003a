import json
import socket
import threading
import time
from collections.abc import Sequence
from importlib.metadata import EntryPoint

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_gpu.errors import ConfigError
from otel_gpu.export.exports import open_exports
from otel_gpu.export.otlp import sinks
from otel_gpu.options import Config, ExportConfig, SpansConfig, StacksConfig
from tests.activities import call_stack, status
from tests.kernel.agent import total
from tests.receiver import attributes_of
from tests.unit.export import samples


def config_of(mode: str = "chosen", **export) -> Config:
    return Config(spans=SpansConfig(mode=mode), export=ExportConfig(**export))


def environ_of(receiver, protocol="grpc", **more) -> dict[str, str]:
    endpoint = receiver.grpc_endpoint if protocol == "grpc" else receiver.http_endpoint
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        **more,
    }


def observe_all(exports) -> None:
    for activity in (
        samples.CAPTURE,
        samples.call(device=samples.DEVICE),
        samples.stall(),
        samples.fork(),
        samples.open_call(),
    ):
        exports.observe(activity)


NAMES = [
    "cudaMalloc",
    "sched.blocked",
    "sched.run_queue_wait",
    "process.fork",
    "gpu.cuda.call.open",
]


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("live", [True, False])
def test_activities_arrive_as_spans(receiver, protocol, live):
    """What goes in comes out at a real receiver: live and from a replay, by both protocols."""
    with open_exports(config_of(), environ_of(receiver, protocol), live=live) as exports:
        observe_all(exports)
        assert exports.shutdown(10.0)
        assert exports.dropped() == {}
        assert exports.exported() == 5

    found = receiver.spans()
    assert sorted(s.span.name for s in found) == sorted(NAMES)
    assert {s.resource["service.name"] for s in found} == {"trainer"}
    assert {s.scope for s in found} == {"otel_gpu.cuda", "otel_gpu.sched", "otel_gpu.process"}
    assert len({s.span.trace_id for s in found}) == 2  # the call with its inside, and the fork


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("compression", ["none", "", "gzip"])
def test_both_signals_take_every_compression(receiver, protocol, compression):
    """No compression can be asked for by name, although gRPC's exporter does not know it."""
    environ = environ_of(receiver, protocol, OTEL_EXPORTER_OTLP_COMPRESSION=compression)

    with open_exports(config_of(), environ, live=True) as exports:
        observe_all(exports)

    assert len(receiver.spans()) == 5


def test_what_is_left_leaves_at_the_end(receiver):
    """Closing sends what no batch or interval has sent."""
    config = config_of(flush_interval_s=3600.0)

    with open_exports(config, environ_of(receiver), live=True) as exports:
        observe_all(exports)

    assert len(receiver.spans()) == 5


def test_an_interval_is_enough(receiver):
    """Nobody has to ask: spans leave after the flush interval."""
    config = config_of(flush_interval_s=0.05)

    with open_exports(config, environ_of(receiver), live=True) as exports:
        observe_all(exports)
        receiver.wait_for(lambda: len(receiver.spans()) == 5)


def test_many_spans_are_split_into_requests_that_receivers_take(receiver):
    """30 007 calls of 300 bytes need several requests, each within the batch size."""
    config = config_of(batch_bytes=1_000_000)

    with open_exports(config, environ_of(receiver), live=True) as exports:
        exports.observe(samples.CAPTURE)
        for number in range(30_007):
            exports.observe(samples.call(device=samples.DEVICE, start_ktime_ns=number + 1))
        assert exports.shutdown(30.0)
        assert exports.exported() == 30_007

    requests = receiver.requests("traces")
    assert len(receiver.spans()) == 30_007
    assert len(requests) > 5
    assert max(len(request.body) for request in requests) <= 1_000_000


def test_a_dead_endpoint_costs_bounded_memory_and_recovers(receiver, monkeypatch):
    """Spans wait, the oldest are dropped and counted, and the newest arrive afterwards."""
    monkeypatch.setattr("otel_gpu.export.otlp.sender._FIRST_BACKOFF_S", 0.05)
    monkeypatch.setattr("otel_gpu.export.otlp.sender._LONGEST_BACKOFF_S", 0.05)
    config = config_of(queue_bytes=100_000, batch_bytes=20_000, flush_interval_s=0.05)
    environ = environ_of(receiver, OTEL_EXPORTER_OTLP_TIMEOUT="0.3", OTEL_METRICS_EXPORTER="none")

    with open_exports(config, environ, live=True) as exports:
        exports.observe(samples.CAPTURE)
        receiver.stop()
        for number in range(5_003):
            exports.observe(samples.call(start_ktime_ns=number + 1))
        (sink,) = exports._sinks
        assert sink._queue.size_bytes <= 100_000
        counts = sink.counts()
        assert counts.accepted == 5_003
        assert counts.accepted == counts.exported + counts.pending + counts.dropped.total()

        receiver.start()
        receiver.wait_for(lambda: sink.counts().pending == 0)

        assert exports.exported() + sum(exports.dropped().values()) == 5_003
        # What was late for an answer was sent again.
        arrived = {span.span.span_id for span in receiver.spans()}
        assert len(arrived) >= exports.exported() > 100
    newest = max(s.span.start_time_unix_nano for s in receiver.spans())
    assert newest == samples.BOOT_UNIX_NS + 5_003


def test_a_dead_endpoint_does_not_hold_the_end():
    """Closing is bounded by its timeout, and what was lost is counted."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        # Accepts connections and never answers.
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        environ = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "600",
            "OTEL_METRICS_EXPORTER": "none",
        }
        began_s = time.monotonic()
        with open_exports(config_of(), environ, live=True) as exports:
            observe_all(exports)
            assert not exports.shutdown(0.2)

    assert time.monotonic() - began_s < 60.0
    assert sum(exports.dropped().values()) == 5


def test_the_last_metrics_tell_what_the_end_dropped(receiver):
    """Nobody would say it after them; a dead endpoint for spans leaves them their time."""
    with socket.create_server(("127.0.0.1", 0)) as dead:
        environ = environ_of(
            receiver,
            OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"http://127.0.0.1:{dead.getsockname()[1]}",
        )
        with open_exports(config_of(), environ, live=True) as exports:
            observe_all(exports)
            exports.observe(status(0, dropped={}))
            assert not exports.shutdown(2.0)

    assert sum(exports.dropped().values()) == 5
    assert total(receiver, "otel_gpu.spans.dropped") == 5


def test_the_sampler_thins_traces(receiver):
    """OTEL_TRACES_SAMPLER drops whole traces, and they are counted."""
    environ = environ_of(receiver, OTEL_TRACES_SAMPLER="always_off")

    with open_exports(config_of(), environ, live=True) as exports:
        observe_all(exports)
        assert exports.dropped() == {"not_sampled": 5}

    assert receiver.spans() == []


def test_span_limits_hold(receiver):
    """OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT reaches the wire with its count."""
    environ = environ_of(receiver, OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT="2")

    with open_exports(config_of(), environ, live=True) as exports:
        exports.observe(samples.call())

    (found,) = receiver.spans()
    assert list(found.attributes) == ["gpu.cuda.api", "gpu.cuda.layer"]
    assert found.span.dropped_attributes_count == 3


@pytest.mark.parametrize(
    ("mode", "more"),
    [
        ("none", {}),
        ("chosen", {"OTEL_TRACES_EXPORTER": "none"}),
        ("chosen", {"OTEL_SDK_DISABLED": "true"}),
    ],
)
def test_spans_can_be_turned_off(receiver, mode, more):
    """Without spans wanted, none are made and none are counted as dropped."""
    with open_exports(config_of(mode), environ_of(receiver, **more), live=True) as exports:
        observe_all(exports)
        assert exports.dropped() == {}

    assert receiver.spans() == []


def test_a_disabled_sdk_writes_no_file(tmp_path, caplog):
    """OTEL_SDK_DISABLED stands above the file, and that is said."""
    path = tmp_path / "out.jsonl"

    with open_exports(
        config_of(otlp_file=str(path)), {"OTEL_SDK_DISABLED": "true"}, live=True
    ) as exports:
        observe_all(exports)

    assert not path.exists()
    assert "nothing is written" in caplog.text


def test_a_replay_gives_the_same_bytes_every_time(tmp_path):
    """Two runs over the same activities write the same file."""
    written = []
    for name in ("one", "two"):
        path = tmp_path / name
        with open_exports(config_of(otlp_file=str(path)), {}, live=False) as exports:
            observe_all(exports)
        written.append(path.read_bytes())

    assert written[0] == written[1]
    spans = json.loads(written[0].splitlines()[0])["resourceSpans"][0]["scopeSpans"]
    assert sum(len(scope["spans"]) for scope in spans) == 5


def stacked(mode):
    return Config(stacks=StacksConfig(mode=mode))


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("live", [True, False])
def test_stacks_leave_as_log_records(receiver, protocol, live):
    """In the trace and span that they belong to, with the Resource and scope of these."""
    with open_exports(stacked("log"), environ_of(receiver, protocol), live=live) as exports:
        exports.observe(samples.call(stack=call_stack()))
        exports.observe(samples.call(start_ktime_ns=2_000))
        assert exports.shutdown(10.0)
        assert exports.dropped() == {}
        assert exports.exported() == 2

    (request,) = receiver.requests("logs")
    (resource,) = ExportLogsServiceRequest.FromString(request.body).resource_logs
    ((record,),) = [scope.log_records for scope in resource.scope_logs]
    span, _ = (found.span for found in receiver.spans())
    assert (record.trace_id, record.span_id) == (span.trace_id, span.span_id)
    assert record.event_name == "otel_gpu.stack"
    assert record.time_unix_nano == span.end_time_unix_nano
    assert attributes_of(record.attributes)["code.stacktrace"].startswith("cudaMalloc (libcudart")
    assert attributes_of(resource.resource.attributes)["service.name"] == "trainer"
    assert not span.events


def test_stacks_are_not_logged_where_spans_have_them(receiver):
    """No other mode sends logs."""
    with open_exports(stacked("event"), environ_of(receiver), live=False) as exports:
        exports.observe(samples.call(stack=call_stack()))

    assert receiver.requests("logs") == []
    assert [event.name for event in receiver.spans()[0].span.events] == ["stack"]


def test_log_records_of_traces_that_are_not_wanted_do_not_leave(receiver):
    """A log record belongs to its span, and has its sampler."""
    environ = environ_of(receiver, OTEL_TRACES_SAMPLER="always_off")

    with open_exports(stacked("log"), environ, live=False) as exports:
        exports.observe(samples.call(stack=call_stack()))

    assert receiver.requests("logs") == []


def test_log_records_that_are_lost_are_counted(receiver):
    """Apart from the spans, which may have arrived."""
    environ = environ_of(
        receiver,
        OTEL_EXPORTER_OTLP_LOGS_ENDPOINT="http://127.0.0.1:1",
        OTEL_EXPORTER_OTLP_LOGS_TIMEOUT="0.2",
    )

    with open_exports(stacked("log"), environ, live=False) as exports:
        exports.observe(samples.call(stack=call_stack()))
        assert not exports.shutdown(5.0)

        assert exports.dropped() == {"log_endpoint_down": 1}
        assert exports.exported() == 1


def test_stacks_without_a_place_for_logs_are_told_of(receiver, caplog):
    """An operator who asked for logs hears that nobody receives them."""
    environ = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": receiver.grpc_endpoint}

    with open_exports(stacked("log"), environ, live=False):
        pass

    assert "no endpoint for logs" in caplog.text


def test_the_length_of_a_stack_is_limited_where_it_goes(receiver):
    """Log records have a variable of their own."""
    environ = environ_of(receiver, OTEL_LOGRECORD_ATTRIBUTE_VALUE_LENGTH_LIMIT="90")

    with open_exports(stacked("log"), environ, live=False) as exports:
        exports.observe(samples.call(stack=call_stack()))

    (request,) = receiver.requests("logs")
    (resource,) = ExportLogsServiceRequest.FromString(request.body).resource_logs
    (record,) = resource.scope_logs[0].log_records
    assert "… 2 frames left out …" in attributes_of(record.attributes)["code.stacktrace"]


def test_an_exporter_of_logs_that_is_not_known_leaves_no_thread(receiver):
    """What was opened before it is closed again."""
    before = threading.active_count()

    with (
        pytest.raises(ConfigError, match="OTEL_LOGS_EXPORTER"),
        open_exports(stacked("log"), environ_of(receiver, OTEL_LOGS_EXPORTER="syslog"), live=True),
    ):
        pass

    assert [t.name for t in threading.enumerate() if t.name == "otel-gpu-spans"] == []
    assert threading.active_count() <= before + 1


def test_the_console_exporter_leaves_standard_output_alone(capfd):
    """Standard output belongs to the command that is run."""
    with open_exports(config_of(), {"OTEL_TRACES_EXPORTER": "console"}, live=True) as exports:
        exports.observe(samples.call())

    captured = capfd.readouterr()
    assert captured.out == ""
    assert '"name": "cudaMalloc"' in captured.err


class ForeignExporter(SpanExporter):
    exported: list[ReadableSpan] = []  # noqa: RUF012 -- emptied by the test that uses it
    result = SpanExportResult.SUCCESS

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self.result is None:
            raise RuntimeError("broken")
        self.exported.extend(spans)
        return self.result

    def shutdown(self) -> None:
        pass


@pytest.fixture
def foreign(monkeypatch):
    point = EntryPoint("foreign", f"{__name__}:ForeignExporter", "opentelemetry_traces_exporter")
    monkeypatch.setattr(EntryPoint, "load", lambda _: ForeignExporter)
    monkeypatch.setattr(sinks, "entry_points", lambda **_: [point])
    monkeypatch.setattr(ForeignExporter, "exported", [])
    return ForeignExporter


def test_exporters_of_others_get_sdk_spans(foreign):
    """An installed exporter is found by its name and gets ReadableSpans."""
    with open_exports(config_of(), {"OTEL_TRACES_EXPORTER": "foreign"}, live=True) as exports:
        exports.observe(samples.call(status=2))

    (span,) = foreign.exported
    assert span.name == "cudaMalloc"
    assert span.status.description == "cudaMalloc returned cudaErrorMemoryAllocation"
    assert span.resource.attributes["service.name"] == "trainer"


@pytest.mark.parametrize("result", [SpanExportResult.FAILURE, None])
def test_a_foreign_exporter_that_fails_costs_its_batch(foreign, monkeypatch, result, caplog):
    """Whether it says so or raises, the spans are counted and the agent goes on."""
    monkeypatch.setattr(foreign, "result", result)

    with open_exports(config_of(), {"OTEL_TRACES_EXPORTER": "foreign"}, live=True) as exports:
        exports.observe(samples.call())
        assert not exports.shutdown(5.0)
        assert exports.dropped() == {"rejected_by_receiver": 1}


@pytest.mark.parametrize(
    "environ",
    [
        {"OTEL_TRACES_EXPORTER": "nosuch"},
        {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
        {"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_COMPRESSION": "zip"},
        {"OTEL_TRACES_SAMPLER": "nosuch"},
        {"OTEL_SPAN_LINK_COUNT_LIMIT": "x"},
    ],
)
def test_mistakes_are_told_at_the_start(environ):
    """A setting that cannot work ends the start with a hint."""
    with pytest.raises(ConfigError) as caught, open_exports(config_of(), environ, live=True):
        pass

    assert caught.value.hint

"""An endpoint that comes and goes."""

from otel_gpu.config import load
from otel_gpu.export.exports import open_exports
from otel_gpu.faults import Faults
from tests.activities import SECOND, call, calls, capture, image, snapshot
from tests.receiver import OtlpReceiver

MS = 1_000_000
ROUNDS, CALLS = 7, 11


def test_an_endpoint_that_flaps_costs_no_metric_and_no_uncounted_span(monkeypatch):
    """
    A real receiver closes and opens again and again: each span arrived or is counted, sums are exact.
    """
    monkeypatch.setattr("otel_gpu.export.otlp.sender._LONGEST_BACKOFF_S", 0.05)
    faults = Faults()
    config = load(None, {"OTEL_GPU_EXPORT_FLUSH_INTERVAL_S": "0.05"}, {})
    process = image()
    with OtlpReceiver() as receiver:
        environ = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.http_endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "2",
            "OTEL_METRIC_EXPORT_INTERVAL": "100",
        }
        with open_exports(config, environ, live=True, faults=faults) as exports:
            exports.observe(capture())
            for turn in range(ROUNDS):
                for n in range(CALLS):
                    at = (10 + turn) * SECOND + n * 10 * MS
                    exports.observe(call(process, "cudaMalloc", at, MS))
                made = (turn + 1) * CALLS
                exports.observe(snapshot(10 + turn, calls(process, "cudaMalloc", [MS] * made)))
                # Some of it is under way when the receiver goes, some finds nobody.
                if turn % 2:
                    receiver.start()
                else:
                    before = len(receiver.requests("traces"))
                    receiver.wait_for(lambda n=before: len(receiver.requests("traces")) > n)
                    receiver.stop()
            receiver.start()
            complete = exports.shutdown(30.0)
            dropped = exports.dropped()
            exported = exports.exported()

        received = [span for span in receiver.spans() if span.span.name == "cudaMalloc"]
        (counted,) = [
            point.point.count
            for key, point in receiver.metrics().items()
            if key.name == "gpu.cuda.call.duration"
        ]

    assert complete or dropped
    assert exported + sum(dropped.values()) == ROUNDS * CALLS
    # What was under way when the receiver went may have arrived all the same.
    assert len({span.span.span_id for span in received}) >= exported
    assert counted == ROUNDS * CALLS
    assert faults.status()["errors"] == {}

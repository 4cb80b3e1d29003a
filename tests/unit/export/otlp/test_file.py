import json
import os
import stat
import sys

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_gpu.errors import ConfigError
from otel_gpu.export.otlp.file import FileTransport, OtlpFile
from otel_gpu.export.otlp.queue import QueuedItem
from otel_gpu.export.otlp.sender import SendOutcome
from otel_gpu.export.otlp.span_encoder import SpanEncoder
from otel_gpu.export.spans.finished import STATUS_ERROR, FinishedSpan, Origin, SpanLink

ORIGIN = Origin(Resource({"service.name": "a"}), InstrumentationScope("otel_gpu.cuda", "1"))
SPAN = FinishedSpan(
    ORIGIN,
    bytes(range(16)),
    bytes(range(8)),
    b"\xff" * 8,
    "cudaMalloc",
    1_700_000_000_000_000_001,
    1_700_000_000_000_000_002,
    (("traceId", "not an id"), ("size", 2**53 + 1), ("é", (1.5, 2.5))),
    STATUS_ERROR,
    "no memory",
    links=(SpanLink(b"\xab" * 16, b"\xcd" * 8),),
)


def test_a_batch_is_a_line_of_otlp_json(tmp_path):
    """Ids are hexadecimal, enumerations numbers, and 64-bit integers text."""
    file = OtlpFile(str(tmp_path / "out.jsonl"))
    data = SpanEncoder().encode(SPAN)

    delivery = FileTransport(file).deliver([QueuedItem(ORIGIN, len(data), data)])
    file.close()

    assert delivery.outcome is SendOutcome.DELIVERED
    (line,) = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line) == {
        "resourceSpans": [
            {
                "resource": {
                    "attributes": [{"key": "service.name", "value": {"stringValue": "a"}}]
                },
                "scopeSpans": [
                    {
                        "scope": {"name": "otel_gpu.cuda", "version": "1"},
                        "spans": [
                            {
                                "traceId": "000102030405060708090a0b0c0d0e0f",
                                "spanId": "0001020304050607",
                                "parentSpanId": "ffffffffffffffff",
                                "name": "cudaMalloc",
                                "kind": 1,
                                "startTimeUnixNano": "1700000000000000001",
                                "endTimeUnixNano": "1700000000000000002",
                                "attributes": [
                                    {"key": "traceId", "value": {"stringValue": "not an id"}},
                                    {"key": "size", "value": {"intValue": "9007199254740993"}},
                                    {
                                        "key": "é",
                                        "value": {
                                            "arrayValue": {
                                                "values": [
                                                    {"doubleValue": 1.5},
                                                    {"doubleValue": 2.5},
                                                ]
                                            }
                                        },
                                    },
                                ],
                                "links": [{"traceId": "ab" * 16, "spanId": "cd" * 8, "flags": 256}],
                                "status": {"message": "no memory", "code": 2},
                                "flags": 256,
                            }
                        ],
                    }
                ],
            }
        ]
    }


def test_metrics_go_into_the_same_file(tmp_path):
    """Exemplars of metrics have hexadecimal ids too."""
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
    metric.sum.aggregation_temporality = 2
    exemplar = metric.sum.data_points.add(as_int=1).exemplars.add(as_int=1)
    exemplar.trace_id, exemplar.span_id = b"\xab" * 16, b"\xcd" * 8
    file = OtlpFile(str(tmp_path / "out.jsonl"))

    file.write(request)
    file.write(ExportMetricsServiceRequest())
    file.close()

    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    written = json.loads(lines[0])["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]["sum"]
    assert written["aggregationTemporality"] == 2
    assert written["dataPoints"][0]["exemplars"] == [
        {"asInt": "1", "traceId": "ab" * 16, "spanId": "cd" * 8}
    ]
    assert lines[1] == "{}"


def test_a_line_is_in_the_file_as_soon_as_it_is_written(tmp_path):
    """Who follows the file sees a request at once."""
    file = OtlpFile(str(tmp_path / "out.jsonl"))

    file.write(ExportMetricsServiceRequest())

    assert (tmp_path / "out.jsonl").read_bytes() == b"{}\n"
    file.close()


def test_an_old_file_that_others_can_read_is_not_written_to(tmp_path):
    """Who has it open reads what was in it, and the new one is for its owner."""
    path = tmp_path / "out.jsonl"
    path.write_text("old")
    path.chmod(0o644)
    with path.open() as reader:
        file = OtlpFile(str(path))
        file.write(ExportMetricsServiceRequest())
        file.close()

        assert reader.read() == "old"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes() == b"{}\n"


def test_a_link_and_a_file_of_another_user_are_refused(tmp_path):
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(ConfigError, match="link: is a symbolic link"):
        OtlpFile(str(tmp_path / "link"))

    if os.geteuid() == 0:
        os.chown(target, 4242, 4242)
        with pytest.raises(ConfigError, match=r"belongs to another user \(uid 4242\)"):
            OtlpFile(str(target))
    assert target.read_text() == "precious"


def test_the_file_is_private_and_replaced(tmp_path):
    """A new file is for its owner; an old one is overwritten."""
    path = tmp_path / "out.jsonl"
    OtlpFile(str(path)).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("old")

    OtlpFile(str(path)).close()

    assert path.read_bytes() == b""


def test_a_dash_is_standard_output(capfdbinary):
    """``-`` writes to standard output and leaves it open."""
    file = OtlpFile("-")

    file.write(ExportMetricsServiceRequest())
    file.close()
    sys.stdout.write("still open")
    sys.stdout.flush()

    assert capfdbinary.readouterr().out == b"{}\nstill open"


def test_a_file_that_cannot_be_made_is_told(tmp_path):
    """The operator hears which path and why."""
    with pytest.raises(ConfigError, match=r"nowhere.*No such file") as caught:
        OtlpFile(str(tmp_path / "nowhere" / "out.jsonl"))

    assert caught.value.hint


def test_a_late_line_is_an_error_of_the_system(tmp_path):
    """A sender that outlived the file hears so in the way of a full disk."""
    file = OtlpFile(str(tmp_path / "out.jsonl"))
    file.close()

    with pytest.raises(OSError, match="closed"):
        file.write(ExportMetricsServiceRequest())


def test_what_nobody_wants_to_keep_goes_to_the_null_device():
    """It is no file, and as good as one for who only wants a recording."""
    file = OtlpFile(os.devnull)
    file.write(ExportMetricsServiceRequest())
    file.close()

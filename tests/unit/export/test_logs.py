"""Log records as OTLP's wire bytes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs as stock_encode
from opentelemetry.sdk._logs import LogRecordLimits, ReadableLogRecord
from opentelemetry.sdk.trace import SpanLimits
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    set_span_in_context,
)

from otel_gpu.errors import ConfigError
from otel_gpu.export.otlp.span_encoder import ERROR, INFO, WARN, LogEncoder, SpanLog, encode_request
from otel_gpu.export.otlp.span_limits import SpanSizeLimits
from otel_gpu.export.spans.finished import SpanEvent
from tests.unit.export.otlp.test_span_encoder import bounded, dropped, origins, pairs, unix_ns

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


ids = st.integers(1, 2**64 - 1)


def readable(item):
    """The same log record as the SDK has it."""
    log = item.log
    flags = TraceFlags(TraceFlags.SAMPLED if item.trace_id else TraceFlags.DEFAULT)
    ids = int.from_bytes(item.trace_id), int.from_bytes(item.span_id)
    context = SpanContext(*ids, is_remote=False, trace_flags=flags)
    record = LogRecord(
        timestamp=log.unix_ns,
        observed_timestamp=log.unix_ns,
        context=set_span_in_context(NonRecordingSpan(context)),
        severity_text=SeverityNumber(item.severity).name,
        severity_number=SeverityNumber(item.severity),
        attributes=bounded(dict(log.attributes), log.dropped_attributes),
        event_name=log.name,
    )
    return ReadableLogRecord(record, item.origin.resource, item.origin.scope)


@st.composite
def span_logs(draw):
    trace_ids, span_ids = (ids.map(lambda n, size=size: n.to_bytes(size)) for size in (16, 8))
    logs = st.builds(SpanEvent, names, unix_ns, pairs, dropped)
    origin, severities = st.just(draw(origins)), st.sampled_from((INFO, WARN, ERROR))
    items = st.builds(SpanLog, origin, trace_ids, span_ids, logs, severities)
    alone = st.builds(SpanLog, origin, st.just(b""), st.just(b""), logs, severities)
    return draw(st.lists(items | alone, max_size=4))


@settings(max_examples=60, deadline=None)
@given(span_logs())
def test_log_records_encode_as_the_standard_encoder_does(items):
    """Byte for byte, under the headers that spans have."""
    encoder = LogEncoder()

    actual = encode_request([(item.origin, 0, encoder.encode(item)) for item in items])

    assert actual == stock_encode([readable(item) for item in items]).SerializeToString(
        deterministic=True
    )


@pytest.mark.parametrize(
    ("environ", "limits"),
    [
        ({}, (None, 128)),
        ({"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "9", "OTEL_ATTRIBUTE_COUNT_LIMIT": "2"}, (9, 2)),
        (
            {
                "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "9",
                "OTEL_LOGRECORD_ATTRIBUTE_VALUE_LENGTH_LIMIT": "7",
                "OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT": "1",
            },
            (7, 1),
        ),
    ],
)
def test_limits_of_log_records_are_opentelemetry_s(environ, limits):
    """A log record's own variables go before the general ones."""
    found = SpanSizeLimits.of_environment(environ)

    log = SpanEvent("otel_gpu.stack", 5, (("a", 1),) * 200)
    assert (found.log_value_length, len(found.apply_to_log(log).attributes)) == limits


@pytest.mark.parametrize("text", ["many", "-1", "1.5"])
def test_a_limit_that_is_no_count_is_refused(text):
    """As the SDK refuses it."""
    with pytest.raises(ConfigError, match="must be a non-negative integer"):
        SpanSizeLimits.of_environment({"OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT": text})


def test_attributes_past_the_limit_are_counted():
    """Those at the beginning name the stack, and stay."""
    log = SpanEvent("otel_gpu.stack", 5, (("a", 1), ("b", 2), ("c", 3)))

    def limit(count):
        return SpanSizeLimits(SpanLimits(), LogRecordLimits(max_log_record_attributes=count))

    assert limit(LogRecordLimits.UNSET).apply_to_log(log) is log
    assert limit(3).apply_to_log(log) is log
    assert limit(1).apply_to_log(log) == SpanEvent(
        "otel_gpu.stack", 5, (("a", 1),), dropped_attributes=2
    )

import math
from collections.abc import Mapping
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as stock_encode
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_gpu.export.otlp.attribute_encoder import AttributeEncoder
from otel_gpu.export.otlp.span_encoder import SpanEncoder, encode_request
from otel_gpu.export.spans.finished import (
    STATUS_ERROR,
    STATUS_UNSET,
    FinishedSpan,
    Origin,
    SharedAttributes,
    SpanEvent,
    SpanLink,
    readable,
)

# Surrogates alone are not text; what happens to them has a test of its own.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["x" * 127, "x" * 128, "é" * 3000]
)
keys = texts.filter(bool)
ints = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 300)
floats = st.floats(allow_nan=False)
scalars = texts | st.booleans() | ints | floats | st.binary(max_size=40)
lists = (
    st.lists(texts, max_size=4)
    | st.lists(st.booleans(), max_size=4)
    | st.lists(ints, max_size=4)
    | st.lists(floats, max_size=4)
).map(tuple)
values = scalars | lists
deep_values = st.recursive(
    scalars | st.none(),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
dropped = st.integers(0, 2**32 - 1)
unix_ns = st.just(0) | st.integers(0, 2**64 - 1)
trace_ids = st.binary(min_size=16, max_size=16)
span_ids = st.binary(min_size=8, max_size=8)


def bounded(attributes: Mapping, count: int) -> BoundedAttributes:
    result = BoundedAttributes(attributes=attributes, immutable=False)
    result.dropped = count
    return result


resources = st.builds(
    Resource, st.dictionaries(keys, deep_values, max_size=3), st.sampled_from(["", "https://x/1"])
)
pairs = st.dictionaries(keys, values, max_size=8).map(lambda found: tuple(found.items()))
origins = st.builds(Origin, resources, st.builds(InstrumentationScope, texts, texts, texts))


@st.composite
def finished_spans(draw, from_origins):
    status_code = draw(st.sampled_from([STATUS_UNSET, STATUS_ERROR]))
    return FinishedSpan(
        origin=draw(st.sampled_from(from_origins)),
        trace_id=draw(trace_ids),
        span_id=draw(span_ids),
        parent_span_id=draw(st.just(b"") | span_ids),
        name=draw(texts),
        start_unix_ns=draw(unix_ns),
        end_unix_ns=draw(unix_ns),
        attributes=draw(pairs | pairs.map(SharedAttributes)),
        status_code=status_code,
        status_message=draw(texts) if status_code else "",
        events=tuple(
            draw(st.lists(st.builds(SpanEvent, texts, unix_ns, pairs, dropped), max_size=2))
        ),
        links=tuple(
            draw(st.lists(st.builds(SpanLink, trace_ids, span_ids, pairs, dropped), max_size=2))
        ),
        dropped_attributes=draw(dropped),
        dropped_events=draw(dropped),
        dropped_links=draw(dropped),
    )


@st.composite
def finished_batches(draw):
    # Equal origins are one origin in practice: only the order inside them would differ.
    from_origins = draw(
        st.lists(
            origins,
            min_size=1,
            max_size=3,
            unique_by=lambda origin: (origin.resource, origin.scope),
        )
    )
    return draw(st.lists(finished_spans(from_origins), max_size=5))


def stock_bytes(spans) -> bytes:
    return stock_encode(spans).SerializeToString(deterministic=True)


@settings(max_examples=100, deadline=None)
@given(finished_batches())
def test_finished_spans_encode_as_their_readable_form_does(spans):
    """A finished span and the ``ReadableSpan`` made from it are the same on the wire."""
    encoder = SpanEncoder()

    actual = encode_request([(span.origin, 0, encoder.encode(span)) for span in spans])

    assert actual == stock_bytes([readable(span) for span in spans])


@st.composite
def spans_with_shared_attributes(draw):
    """Spans of few stacks, each of which is one object wherever it is met."""
    shared = draw(st.lists(pairs.map(SharedAttributes), min_size=1, max_size=4))
    some = st.sampled_from(shared) | pairs
    events = st.builds(SpanEvent, st.sampled_from(["stack", "other"]), unix_ns, some, dropped)
    return [
        span_of(attributes=attributes, events=(event,))
        for attributes, event in draw(st.lists(st.tuples(some, events), max_size=12))
    ]


@settings(max_examples=100, deadline=None)
@given(spans_with_shared_attributes())
def test_shared_attributes_encode_as_the_standard_encoder_does(spans):
    """Wherever they stand, and however often: an event's have another tag than a span's."""
    encoder = SpanEncoder()

    actual = encode_request([(span.origin, 0, encoder.encode(span)) for span in spans])

    assert actual == stock_bytes([readable(span) for span in spans])


def test_a_stack_is_encoded_once():
    """The text of a stack that comes back is not looked at again; its time is."""
    attributes = SharedAttributes((("code.stacktrace", "main (a.py:1)"),))
    with mock.patch.object(
        AttributeEncoder, "_encode_pair", autospec=True, side_effect=AttributeEncoder._encode_pair
    ) as encode:
        encoders = SpanEncoder(), SpanEncoder()
        spans = [
            encoder.encode(span_of(events=(SpanEvent("stack", time, attributes),)))
            for time in (5, 6, 7)
            for encoder in encoders
        ]

    assert encode.call_count == 1
    assert len(set(spans)) == 3


ORIGIN = Origin(Resource({"service.name": "a"}), InstrumentationScope("otel_gpu.cuda"))


def span_of(**changes) -> FinishedSpan:
    span = FinishedSpan(ORIGIN, b"t" * 16, b"s" * 8, b"", "cudaFree", 1, 2, ())
    return span._replace(**changes)


def decoded(*spans: FinishedSpan):
    encoder = SpanEncoder()
    request = encode_request([(span.origin, 0, encoder.encode(span)) for span in spans])
    (resource_spans,) = ExportTraceServiceRequest.FromString(request).resource_spans
    (scope_spans,) = resource_spans.scope_spans
    return list(scope_spans.spans)


def test_equal_values_of_different_types_keep_their_types():
    """``True``, 1 and 1.0 are equal to Python and stay three kinds on the wire."""
    spans = decoded(
        span_of(attributes=(("k", 1),)),
        span_of(attributes=(("k", True),)),
        span_of(attributes=(("k", 1.0),)),
        span_of(attributes=(("k", (1, 0)),)),
        span_of(attributes=(("k", (True, False)),)),
    )

    kinds = [span.attributes[0].value.WhichOneof("value") for span in spans]
    assert kinds == ["int_value", "bool_value", "double_value", "array_value", "array_value"]
    assert spans[3].attributes[0].value.array_value.values[1].int_value == 0
    assert spans[4].attributes[0].value.array_value.values[0].bool_value is True


def test_text_that_is_no_unicode_is_replaced():
    """A lone surrogate becomes a question mark, so the receiver takes the request."""
    (span,) = decoded(span_of(name="cuda\ud800", attributes=(("a\udfff", "b\ud800c"),)))

    assert span.name == "cuda?"
    assert span.attributes[0].key == "a?"
    assert span.attributes[0].value.string_value == "b?c"


def test_negative_zero_and_not_a_number_survive():
    """Doubles travel bit for bit."""
    (span,) = decoded(span_of(attributes=(("zero", -0.0), ("nan", math.nan))))

    assert math.copysign(1, span.attributes[0].value.double_value) == -1
    assert math.isnan(span.attributes[1].value.double_value)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, object(), (1, object()), {"a": 2**64}])
def test_a_value_without_an_otlp_form_is_left_out(value, caplog):
    """What OTLP cannot say is left out with a warning, and the rest is sent."""
    (span,) = decoded(span_of(attributes=(("bad", value), ("good", 1))))

    assert [attribute.key for attribute in span.attributes] == ["good"]
    assert "attribute bad has no form in OTLP" in caplog.text


def test_caches_stay_bounded():
    """Values that never repeat do not grow the encoder for ever."""
    encoder = AttributeEncoder(b"\x4a")

    for number in range(20_001):
        encoder.encode([("n", number), ("s", str(number)), ("t", (number,)), (str(number), 0.5)])

    for cache in (encoder._ints, encoder._strings, encoder._tuples, encoder._double_heads):
        assert len(cache) <= 1024


def test_long_texts_stay_bounded_too():
    """A few thousand stacks as attributes are forgotten before they fill the memory."""
    encoder = AttributeEncoder(b"\x4a")

    for number in range(1_000):
        encoder.encode([("code.stacktrace", f"{number:16000}"), ("n", number)])
        assert sum(map(len, encoder._strings.values())) <= (8 << 20) + 20_000

    assert len(encoder._ints) == 1_000

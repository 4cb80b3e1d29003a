import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_gpu.errors import ConfigError
from otel_gpu.export.otlp.span_limits import SpanSizeLimits, TraceSampler
from otel_gpu.export.spans.finished import FinishedSpan, Origin, SpanEvent, SpanLink
from otel_gpu.wire.events import ThreadContext

ORIGIN = Origin(Resource({}), InstrumentationScope("otel_gpu.cuda"))
SPAN = FinishedSpan(
    ORIGIN,
    b"t" * 16,
    b"s" * 8,
    b"",
    "cudaFree",
    1,
    2,
    (("a", "long text"), ("b", 12345), ("c", ("long text", "x"))),
    events=(
        SpanEvent("one", 1, (("k", "long text"), ("l", 1))),
        SpanEvent("two", 2),
        SpanEvent("three", 3),
    ),
    links=(SpanLink(b"t" * 16, b"s" * 8, (("k", 1), ("l", 2), ("m", 3))),) * 2,
)


def test_a_usual_span_is_not_touched():
    """With the default limits a span passes as it is."""
    assert SpanSizeLimits.of_environment({}).apply(SPAN) is SPAN


@pytest.mark.parametrize("name", ["OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "OTEL_ATTRIBUTE_COUNT_LIMIT"])
def test_attributes_past_the_limit_are_cut_and_counted(name):
    """The first attributes, which name the call, are the ones that stay."""
    span = SpanSizeLimits.of_environment({name: "2"}).apply(SPAN)

    assert [key for key, _ in span.attributes] == ["a", "b"]
    assert span.dropped_attributes == 1


@pytest.mark.parametrize(
    "name", ["OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"]
)
def test_long_text_is_cut(name):
    """A length limit holds for text and for text in arrays, not for numbers."""
    span = SpanSizeLimits.of_environment({name: "4"}).apply(SPAN)

    assert span.attributes == (("a", "long"), ("b", 12345), ("c", ("long", "x")))
    assert span.dropped_attributes == 0


def test_what_is_short_enough_stays_the_same_object():
    """Encoders know the attributes of a stack by their identity."""
    limits = SpanSizeLimits.of_environment({"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "10"})
    event = SpanEvent("stack", 5, (("code.stacktrace", "main"), ("types", ("cpython",))))

    (kept,) = limits.apply(SPAN._replace(events=(event,))).events

    assert limits.value_length == 10
    assert kept.attributes is event.attributes


def test_events_and_links_past_their_limits_are_cut_and_counted():
    """Events and links have limits of their own, and so have their attributes."""
    limits = SpanSizeLimits.of_environment(
        {
            "OTEL_SPAN_EVENT_COUNT_LIMIT": "1",
            "OTEL_SPAN_LINK_COUNT_LIMIT": "0",
            "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT": "1",
        }
    )

    span = limits.apply(SPAN)

    assert span.events == (SpanEvent("one", 1, (("k", "long text"),), 1),)
    assert (span.dropped_events, span.dropped_links) == (2, 2)
    assert span.links == ()


def test_link_attributes_have_a_limit():
    """Links keep as many attributes as their limit allows."""
    span = SpanSizeLimits.of_environment({"OTEL_LINK_ATTRIBUTE_COUNT_LIMIT": "2"}).apply(SPAN)

    assert span.links[0].attributes == (("k", 1), ("l", 2))
    assert span.links[0].dropped_attributes == 1


def test_a_limit_that_is_no_number_is_refused():
    """A mistake in a limit is told, not guessed around."""
    with pytest.raises(ConfigError, match="OTEL_SPAN_LINK_COUNT_LIMIT") as caught:
        SpanSizeLimits.of_environment({"OTEL_SPAN_LINK_COUNT_LIMIT": "many"})

    assert caught.value.hint


def spans_of_traces(count: int) -> list[FinishedSpan]:
    # Ratio samplers look at the lower 8 bytes of the trace id.
    return [
        SPAN._replace(trace_id=(number * 2**64 // count).to_bytes(16)) for number in range(count)
    ]


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, 16),
        ({"OTEL_TRACES_SAMPLER": "always_on"}, 16),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_on"}, 16),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, 0),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, 0),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"}, 4),
        ({"OTEL_TRACES_SAMPLER": "Parentbased_TraceIdRatio", "OTEL_TRACES_SAMPLER_ARG": "0.5"}, 8),
        ({"OTEL_TRACES_SAMPLER": "traceidratio"}, 16),
    ],
)
def test_the_configured_sampler_decides(environ, wanted):
    """``OTEL_TRACES_SAMPLER`` holds as it does in the SDK."""
    sampler = TraceSampler.of_environment(environ)

    assert sum(sampler.wants_trace(span.trace_id, "x") for span in spans_of_traces(16)) == wanted


def test_a_trace_is_decided_once():
    """All spans of a trace share its fate, and old decisions are forgotten."""
    environ = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"}
    sampler = TraceSampler.of_environment(environ)

    for span in spans_of_traces(10_007):
        wanted = sampler.wants_trace(span.trace_id, span.name)
        assert sampler.wants_trace(span.trace_id, "cuMemFree") == wanted

    assert len(sampler._decisions) <= 4096


@pytest.mark.parametrize(
    "environ",
    [
        {"OTEL_TRACES_SAMPLER": "sometimes"},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "half"},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"},
    ],
)
def test_a_sampler_that_is_not_known_is_refused(environ):
    """A mistake in the sampler is told, not guessed around."""
    with pytest.raises(ConfigError, match="OTEL_TRACES_SAMPLER"):
        TraceSampler.of_environment(environ)


def context(flags, trace=b"T" * 16):
    return ThreadContext(1, 1, 1, 1, 1, trace, b"S" * 8, flags)


@pytest.mark.parametrize(
    ("sampler", "flags", "wanted"),
    [
        ("parentbased_always_on", 2, False),
        ("parentbased_always_on", 3, True),
        ("parentbased_always_on", 0, True),
        ("parentbased_always_off", 1, True),
        ("parentbased_always_off", 2, False),
        ("always_on", 2, True),
        ("always_off", 3, False),
    ],
)
def test_an_applications_own_decision_holds_where_the_sampler_goes_by_parents(
    sampler, flags, wanted
):
    """Flags of 0 are of publishers that write none: no decision."""
    made = TraceSampler.of_environment({"OTEL_TRACES_SAMPLER": sampler})
    other = made.wants_trace(b"O" * 16, "cudaMalloc")

    made.learn(context(flags))

    assert made.wants_trace(b"T" * 16, "cudaMalloc") is wanted
    assert made.wants_trace(b"O" * 16, "cudaMalloc") is other

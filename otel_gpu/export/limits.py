"""
The limits that OpenTelemetry sets to spans, and the sampler.

The SDK applies both inside its tracer. Our spans never pass one, so they are applied
here, by the same environment variables and with the same defaults.
"""

from collections.abc import Mapping

from opentelemetry.sdk._logs import LogRecordLimits
from opentelemetry.sdk.environment_variables import OTEL_TRACES_SAMPLER, OTEL_TRACES_SAMPLER_ARG
from opentelemetry.sdk.trace import SpanLimits
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_OFF,
    DEFAULT_ON,
    Decision,
    ParentBasedTraceIdRatio,
    Sampler,
    TraceIdRatioBased,
)
from opentelemetry.trace import SpanKind

from otel_gpu.errors import ConfigError
from otel_gpu.export.environment import standing_in, variable
from otel_gpu.export.finished import Attributes, AttributeValue, FinishedSpan, SpanEvent

_SAMPLERS: Mapping[str, Sampler] = {
    "always_on": ALWAYS_ON,
    "always_off": ALWAYS_OFF,
    "parentbased_always_on": DEFAULT_ON,
    "parentbased_always_off": DEFAULT_OFF,
}
_RATIO_SAMPLERS = {
    "traceidratio": TraceIdRatioBased,
    "parentbased_traceidratio": ParentBasedTraceIdRatio,
}
# Traces whose decision is remembered; a trace is a burst of calls, so few are open.
_MAX_DECISIONS = 4096


class Limits:
    """
    Cuts spans to the configured size; what it cut is counted in the span.

    Attributes past a count limit go from the end, so that the ones which name the
    call stay.

    Attributes:
        may_cut: Whether a span of a call or a thread can be too large; others always can.
    """

    def __init__(self, limits: SpanLimits, of_logs: LogRecordLimits | None = None) -> None:
        self._limits = limits
        self._of_logs = LogRecordLimits() if of_logs is None else of_logs
        self._value_length = limits.max_span_attribute_length
        # Our spans have at most 31 attributes: with the usual limits there is
        # nothing to look at.
        self.may_cut = self._value_length is not None or any(
            limit is not None and limit < len_of_ours
            for limit, len_of_ours in (
                (limits.max_span_attributes, 64),
                (limits.max_event_attributes, 64),
                (limits.max_link_attributes, 64),
                (limits.max_events, 64),
                (limits.max_links, 64),
            )
        )

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> "Limits":
        """Read the ``OTEL_*_LIMIT`` variables; ConfigError: one of them is not a count."""
        try:
            with standing_in(environ):
                return cls(SpanLimits(), LogRecordLimits())
        except ValueError as error:
            raise ConfigError(str(error), hint="give a number, or unset the variable") from error

    @property
    def value_length(self) -> int | None:
        """The longest text of a span's attribute; None: any."""
        return self._value_length

    @property
    def log_value_length(self) -> int | None:
        """The longest text of a log record's attribute; None: any."""
        return self._of_logs.max_log_record_attribute_length

    def apply(self, span: FinishedSpan) -> FinishedSpan:
        """Return the span within the limits; the same one if it is already."""
        limits = self._limits
        if not self.may_cut and len(span.events) + len(span.links) < 64:  # noqa: PLR2004
            return span
        attributes, dropped_attributes = self._cut(span.attributes, limits.max_span_attributes)
        events = span.events[: limits.max_events]
        links = span.links[: limits.max_links]
        return span._replace(
            attributes=attributes,
            dropped_attributes=span.dropped_attributes + dropped_attributes,
            events=tuple(
                event._replace(attributes=kept, dropped_attributes=event.dropped_attributes + cut)
                for event in events
                for kept, cut in (self._cut(event.attributes, limits.max_event_attributes),)
            ),
            dropped_events=span.dropped_events + len(span.events) - len(events),
            links=tuple(
                link._replace(attributes=kept, dropped_attributes=link.dropped_attributes + cut)
                for link in links
                for kept, cut in (self._cut(link.attributes, limits.max_link_attributes),)
            ),
            dropped_links=span.dropped_links + len(span.links) - len(links),
        )

    def apply_to_log(self, log: SpanEvent) -> SpanEvent:
        """Return the log record within the count; texts are made to fit where they are made."""
        count = self._of_logs.max_log_record_attributes
        if count is None or len(log.attributes) <= count:
            return log
        dropped = log.dropped_attributes + len(log.attributes) - count
        return log._replace(attributes=log.attributes[:count], dropped_attributes=dropped)

    def _cut(self, attributes: Attributes, count: int | None) -> tuple[Attributes, int]:
        # The same object where nothing is cut: encoders keep bytes with it.
        kept = attributes if count is None or len(attributes) <= count else attributes[:count]
        if self._value_length is not None:
            shortened = tuple((key, self._shorten(value)) for key, value in kept)
            kept = kept if shortened == kept else shortened
        return kept, len(attributes) - len(kept)

    def _shorten(self, value: AttributeValue) -> AttributeValue:
        if isinstance(value, str):
            return value[: self._value_length]
        if isinstance(value, tuple):
            return tuple(
                item[: self._value_length] if isinstance(item, str) else item for item in value
            )  # type: ignore[return-value]  # a tuple keeps the types of its items
        return value


class TraceSampler:
    """
    Asks the configured sampler once per trace, unless it ``takes_all``.

    The kernel side has chosen what deserves a span already; this is for operators
    who thin all their traces by one ratio. Ratio samplers look at the trace id
    alone, so every span of a trace is decided alike, whichever comes first.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self.takes_all = sampler in (ALWAYS_ON, DEFAULT_ON)
        self._decisions: dict[bytes, bool] = {}

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> "TraceSampler":
        """Read ``OTEL_TRACES_SAMPLER`` and its argument; ConfigError: they make no sampler."""
        name = (variable(environ, OTEL_TRACES_SAMPLER) or "parentbased_always_on").lower()
        if name in _SAMPLERS:
            return cls(_SAMPLERS[name])
        if name not in _RATIO_SAMPLERS:
            known = ", ".join([*_SAMPLERS, *_RATIO_SAMPLERS])
            raise ConfigError(f"{OTEL_TRACES_SAMPLER}: {name!r} is unknown", hint=f"known: {known}")
        argument = variable(environ, OTEL_TRACES_SAMPLER_ARG) or "1.0"
        try:
            return cls(_RATIO_SAMPLERS[name](float(argument)))
        except ValueError as error:
            raise ConfigError(
                f"{OTEL_TRACES_SAMPLER_ARG}: {argument!r} is not a ratio from 0 to 1"
            ) from error

    def wants(self, span: FinishedSpan) -> bool:
        """Say whether the trace of this span is to be exported."""
        return self.takes_all or self.wants_trace(span.trace_id, span.name, span.attributes)

    def wants_trace(self, trace_id: bytes, name: str, attributes: Attributes = ()) -> bool:
        """Say whether a trace is to be exported, by one of its spans."""
        if self.takes_all:
            return True
        decision = self._decisions.get(trace_id)
        if decision is None:
            if len(self._decisions) >= _MAX_DECISIONS:
                del self._decisions[next(iter(self._decisions))]
            result = self._sampler.should_sample(
                None,
                int.from_bytes(trace_id),
                name,
                SpanKind.INTERNAL,
                dict(attributes),
            )
            decision = result.decision is Decision.RECORD_AND_SAMPLE
            self._decisions[trace_id] = decision
        return decision

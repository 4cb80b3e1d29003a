"""
OpenTelemetry's span limits, and its sampler.

The SDK applies both inside its tracer. Our spans never pass one, so they are applied here, with the
same environment variables and defaults.
"""

from collections.abc import Mapping
from typing import TypeVar

from opentelemetry.sdk._logs import LogRecordLimits
from opentelemetry.sdk.environment_variables import OTEL_TRACES_SAMPLER, OTEL_TRACES_SAMPLER_ARG
from opentelemetry.sdk.trace import SpanLimits, sampling
from opentelemetry.trace import TraceFlags

from otel_gpu.errors import ConfigError
from otel_gpu.export.otlp.environment import choose, setting, standing_in
from otel_gpu.export.spans.finished import (
    Attributes,
    AttributeValue,
    FinishedSpan,
    SpanEvent,
    SpanLink,
)
from otel_gpu.limits.recent import Fifo
from otel_gpu.wire.events import ThreadContext
from otel_gpu.wire.marks import Range

_SAMPLERS: Mapping[str, sampling.Sampler] = {
    "always_on": sampling.ALWAYS_ON,
    "always_off": sampling.ALWAYS_OFF,
    "parentbased_always_on": sampling.DEFAULT_ON,
    "parentbased_always_off": sampling.DEFAULT_OFF,
}
_RATIO_SAMPLERS = {
    "traceidratio": sampling.TraceIdRatioBased,
    "parentbased_traceidratio": sampling.ParentBasedTraceIdRatio,
}
# Attributes, events and links of one of our spans: with the usual limits there is nothing to check.
_MOST_OF_OURS = 64
# Traces with a remembered decision; a trace is a burst of calls, so few are open.
_MAX_DECISIONS = 4096

_Item = TypeVar("_Item", SpanEvent, SpanLink)


class SpanSizeLimits:
    """
    Cuts spans to the configured size, attributes from the end, and counts the cut in the span.

    ``value_length`` is the longest text of a span attribute, ``log_value_length`` that of a log
    attribute; None: any. ``may_cut``: a call's or a thread's span can be too large; others always
    can.
    """

    def __init__(self, limits: SpanLimits, of_logs: LogRecordLimits | None = None) -> None:
        self._limits = limits
        self._of_logs = LogRecordLimits() if of_logs is None else of_logs
        self.log_value_length = self._of_logs.max_log_record_attribute_length
        self.value_length = limits.max_span_attribute_length
        counts = [count for name, count in vars(limits).items() if not name.endswith("_length")]
        self.may_cut = self.value_length is not None or any(
            count is not None and count < _MOST_OF_OURS for count in counts
        )

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> "SpanSizeLimits":
        """Read the ``OTEL_*_LIMIT`` variables; ConfigError: one of them is not a count."""
        try:
            with standing_in(environ):
                return cls(SpanLimits(), LogRecordLimits())
        except ValueError as error:
            raise ConfigError(str(error), hint="give a number, or unset the variable") from error

    def apply(self, span: FinishedSpan) -> FinishedSpan:
        """Return the span within the limits; the same object if nothing is cut."""
        limits = self._limits
        if not self.may_cut and len(span.events) + len(span.links) < _MOST_OF_OURS:
            return span
        attributes, dropped_attributes = self._cut(span.attributes, limits.max_span_attributes)
        events = span.events[: limits.max_events]
        links = span.links[: limits.max_links]
        return span._replace(
            attributes=attributes,
            dropped_attributes=span.dropped_attributes + dropped_attributes,
            events=tuple(self._cut_item(event, limits.max_event_attributes) for event in events),
            dropped_events=span.dropped_events + len(span.events) - len(events),
            links=tuple(self._cut_item(link, limits.max_link_attributes) for link in links),
            dropped_links=span.dropped_links + len(span.links) - len(links),
        )

    def apply_to_log(self, log: SpanEvent) -> SpanEvent:
        """Return the log record within the count limit; texts are shortened where they are made."""
        count = self._of_logs.max_log_record_attributes
        if count is None or len(log.attributes) <= count:
            return log
        dropped = log.dropped_attributes + len(log.attributes) - count
        return log._replace(attributes=log.attributes[:count], dropped_attributes=dropped)

    def _cut_item(self, item: _Item, count: int | None) -> _Item:
        attributes, dropped = self._cut(item.attributes, count)
        dropped += item.dropped_attributes
        return item._replace(attributes=attributes, dropped_attributes=dropped)

    def _cut(self, attributes: Attributes, count: int | None) -> tuple[Attributes, int]:
        # The same object where nothing is cut: encoders keep bytes with it.
        kept = attributes if count is None or len(attributes) <= count else attributes[:count]
        if self.value_length is not None:
            shortened = tuple((key, self._shorten(value)) for key, value in kept)
            kept = kept if shortened == kept else shortened
        return kept, len(attributes) - len(kept)

    def _shorten(self, value: AttributeValue) -> AttributeValue:
        if isinstance(value, str):
            return value[: self.value_length]
        if isinstance(value, tuple):
            return tuple(
                item[: self.value_length] if isinstance(item, str) else item for item in value
            )  # type: ignore[return-value]  # a tuple keeps the types of its items
        return value


class TraceSampler:
    """
    Asks the configured sampler once per trace, unless it ``takes_all``.

    Ratio samplers use the trace id alone, so all spans of a trace get the same decision, whichever
    comes first.
    """

    def __init__(self, sampler: sampling.Sampler) -> None:
        self._sampler = sampler
        self._goes_by_parents = isinstance(sampler, sampling.ParentBased)
        self.takes_all = sampler in (sampling.ALWAYS_ON, sampling.DEFAULT_ON)
        self._decisions: Fifo[bytes, bool] = Fifo(_MAX_DECISIONS)

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> "TraceSampler":
        """Read ``OTEL_TRACES_SAMPLER`` and its argument; ConfigError: a bad value."""
        known = (*_SAMPLERS, *_RATIO_SAMPLERS)
        name = choose(environ, OTEL_TRACES_SAMPLER, choices=known, default="parentbased_always_on")
        if name in _SAMPLERS:
            return cls(_SAMPLERS[name])
        argument = setting(environ, OTEL_TRACES_SAMPLER_ARG)[1] or "1.0"
        try:
            return cls(_RATIO_SAMPLERS[name](float(argument)))
        except ValueError as error:
            raise ConfigError(
                f"{OTEL_TRACES_SAMPLER_ARG}: {argument!r} is not a ratio from 0 to 1"
            ) from error

    def learn(self, context: ThreadContext | Range) -> None:
        """Follow the application's decision for its own trace, if the sampler is parent-based."""
        # Publishers of the first drafts write no flags. One that decides against a trace today
        # still sets the flag of a random id.
        if not self._goes_by_parents or not context.trace_flags:
            return
        is_sampled = bool(context.trace_flags & TraceFlags.SAMPLED)
        # Nothing has to be remembered while all are sampled.
        if is_sampled and self.takes_all:
            return
        self.takes_all = False
        self._remember(context.trace_id, is_sampled)

    def wants_trace(self, trace_id: bytes, name: str) -> bool:
        """Return whether the trace of a span is sampled."""
        if self.takes_all:
            return True
        decision = self._decisions.get(trace_id)
        if decision is None:
            # No sampler that can be configured uses anything else.
            result = self._sampler.should_sample(None, int.from_bytes(trace_id), name)
            decision = result.decision is sampling.Decision.RECORD_AND_SAMPLE
            self._remember(trace_id, decision)
        return decision

    def _remember(self, trace_id: bytes, is_sampled: bool) -> None:
        self._decisions[trace_id] = is_sampled

"""What an engine runs in one step: requests of many traces, each with its tokens."""

import functools
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_HEADER: Final = "traceparent"
# Of the 55 that version 00 has; a later one may have more.
_MAX_HEADER_CHARACTERS: Final = 256
_PROPAGATOR: Final = TraceContextTextMapPropagator()


class InferenceRequest(NamedTuple):
    """A request in a batch; ``context`` is the span that asked for it, if that is known."""

    prefill_tokens: int
    decode_tokens: int
    context: SpanContext | None

    @property
    def tokens(self) -> int:
        """All of its tokens that are in the batch."""
        return self.prefill_tokens + self.decode_tokens


class EngineBatch(NamedTuple):
    """All that is run at once, in the step of an engine that has this number."""

    number: int
    requests: Sequence[InferenceRequest]

    @property
    def known(self) -> int:
        """Of how many requests it is known who asked for them."""
        return sum(request.context is not None for request in self.requests)

    @property
    def prefill_tokens(self) -> int:
        """Tokens of prompts, or of what is computed again after a preemption."""
        return sum(request.prefill_tokens for request in self.requests)

    @property
    def decode_tokens(self) -> int:
        """Tokens that were generated, or drafted to be verified."""
        return sum(request.decode_tokens for request in self.requests)

    @property
    def phase(self) -> str:
        """``prefill``, ``decode``, or ``mixed`` where it has both."""
        if not self.decode_tokens:
            return "prefill"
        return "mixed" if self.prefill_tokens else "decode"

    def linked(self, limit: int) -> list[tuple[SpanContext, float]]:
        """
        Return at most so many of the spans that asked for requests, with their shares of the tokens.

        Beyond the limit the largest shares come first. Of equal ones each step begins with others, so
        that over some steps all of them are linked.
        """
        requests = [request for request in self.requests if request.context is not None]
        if len(requests) > limit:
            first = self.number * limit % len(requests)
            requests = requests[first:] + requests[:first]
            requests.sort(key=lambda request: -request.tokens)
            del requests[limit:]
        tokens = sum(request.tokens for request in self.requests)
        return [
            (request.context, request.tokens / tokens)
            for request in requests
            if request.context is not None
        ]


def context_of_headers(headers: Mapping[str, str] | None) -> SpanContext | None:
    """Return the span that headers of a request name (W3C Trace Context); None: they name none."""
    header = headers.get(_HEADER) if headers else None
    if not isinstance(header, str) or len(header) > _MAX_HEADER_CHARACTERS:
        return None
    return _parse(header)


# A request is in hundreds of steps.
@functools.lru_cache(maxsize=4096)
def _parse(header: str) -> SpanContext | None:
    return context_of(_PROPAGATOR.extract({_HEADER: header}, Context()))


def context_of(context: object) -> SpanContext | None:
    """Return the span of a context of OpenTelemetry; None: it has none, or is something else."""
    if not isinstance(context, Context):
        return None
    found = get_current_span(context).get_span_context()
    return found if found.is_valid else None

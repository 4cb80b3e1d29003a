"""The batch of an engine's step: requests of many traces, each with its tokens."""

import functools
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_HEADER: Final = "traceparent"
# Version 00 has 55; later versions can have more.
_MAX_HEADER_CHARACTERS: Final = 256
_PROPAGATOR: Final = TraceContextTextMapPropagator()


class InferenceRequest(NamedTuple):
    """A request in a batch; ``context`` is the span that made it, if known."""

    prefill_tokens: int
    decode_tokens: int
    context: SpanContext | None

    @property
    def tokens(self) -> int:
        """Its tokens in this batch."""
        return self.prefill_tokens + self.decode_tokens


class EngineBatch(NamedTuple):
    """The requests that run in one step; ``number`` is that of the step."""

    number: int
    requests: Sequence[InferenceRequest]

    @property
    def known(self) -> int:
        """Number of requests whose span is known."""
        return sum(request.context is not None for request in self.requests)

    @property
    def prefill_tokens(self) -> int:
        """Tokens of prompts, including those computed again after a preemption."""
        return sum(request.prefill_tokens for request in self.requests)

    @property
    def decode_tokens(self) -> int:
        """Tokens that were generated, or drafted for verification."""
        return sum(request.decode_tokens for request in self.requests)

    @property
    def phase(self) -> str:
        """``prefill``, ``decode``, or ``mixed`` for both."""
        if not self.decode_tokens:
            return "prefill"
        return "mixed" if self.prefill_tokens else "decode"

    def linked(self, limit: int) -> list[tuple[SpanContext, float]]:
        """
        Return up to ``limit`` spans of requests, each with its request's share of the tokens (0 to 1).

        Above the limit, the largest shares are kept. Among equal shares, each step starts at another
        request, so over several steps all are linked.
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
    """Return the span in headers of a request (W3C Trace Context). None: there is none."""
    header = headers.get(_HEADER) if headers else None
    if not isinstance(header, str) or len(header) > _MAX_HEADER_CHARACTERS:
        return None
    return _parse(header)


# Cached, because a request is in hundreds of steps.
@functools.lru_cache(maxsize=4096)
def _parse(header: str) -> SpanContext | None:
    return context_of(_PROPAGATOR.extract({_HEADER: header}, Context()))


def context_of(context: object) -> SpanContext | None:
    """Return the span of a context of OpenTelemetry. None: it has none, or is another object."""
    if not isinstance(context, Context):
        return None
    found = get_current_span(context).get_span_context()
    return found if found.is_valid else None

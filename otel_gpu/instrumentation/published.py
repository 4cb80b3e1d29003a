"""The runtime context of this process that publishes the span of each thread."""

import functools
import logging
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from opentelemetry import context as contexts
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext
from opentelemetry.trace import Span

from otel_gpu.instrumentation.context import Identity, PublishedContext
from otel_gpu.instrumentation.thread_context import load_publisher

_logger = logging.getLogger(__name__)


def publish_context() -> PublishedContext | None:
    """
    Publish the span of each thread from now on; return the runtime context that does.

    None: no native library exists for this machine, or the user chose another runtime context than
    OpenTelemetry's.
    """
    inner = contexts._RUNTIME_CONTEXT  # noqa: SLF001 - it was loaded before any distribution
    if isinstance(inner, PublishedContext):
        return inner
    if type(inner) is not ContextVarsRuntimeContext:
        return None
    if load_publisher() is None:
        _log_missing_library()
        return None
    published = contexts._RUNTIME_CONTEXT = PublishedContext(inner)  # noqa: SLF001
    return published


@functools.cache
def _log_missing_library() -> None:
    _logger.info("no native library for this machine: CUDA calls get no parents")


def published_context() -> PublishedContext | None:
    """Return the context that ``publish_context`` made. None: nothing is published."""
    context = contexts._RUNTIME_CONTEXT  # noqa: SLF001 - as above
    return context if isinstance(context, PublishedContext) else None


def identity_of(span: Span) -> Identity | None:
    """Return the identity of a span. None: it is not of an SDK."""
    found = span.get_span_context()
    return (found.trace_id, found.span_id, found.trace_flags) if found.is_valid else None


def publish_span(span: Span | None, owner: Hashable = None) -> None:
    """Publish a span that encloses this thread's work but is not current. None removes it."""
    context = published_context()
    if context is not None:
        context.set_enclosing(None if span is None else identity_of(span), owner)


@contextmanager
def publish_identity(identity: Identity | None, owner: Hashable) -> Iterator[None]:
    """Publish an enclosing span in this context, perhaps of another process. None: publish none."""
    context = None if identity is None else published_context()
    if context is None:
        yield
        return
    context.set_enclosing(identity, owner)
    try:
        yield
    finally:
        context.set_enclosing(None, owner)

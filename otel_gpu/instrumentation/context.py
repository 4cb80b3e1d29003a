"""
A runtime context of OpenTelemetry that publishes the current span for readers outside the process.

It is the entry point ``otel_gpu`` of ``opentelemetry_context`` (``OTEL_PYTHON_CONTEXT=otel_gpu``).
The distribution wraps it around the existing runtime context.
"""

# What can be seen, and what cannot
# ---------------------------------
#
# OpenTelemetry keeps the current span in a contextvars.ContextVar, and calls a runtime context when
# it sets (attach) and resets (detach) it. The value also changes when a thread enters another
# contextvars.Context, as an event loop does for each callback. Before CPython 3.14 no hook reports
# that. So older versions publish only what is certain:
#
# - Within one context, attach and detach nest. Each thread has a stack of them. A detach of the
#   innermost one restores the span published before it, not the value of the variable: in a pool that
#   runs a function with its caller's context, that value is a span which was not attached in this
#   thread, and which no detach would end.
# - A thread that runs an event loop publishes nothing, because its tasks alternate.
# - After a detach out of order it is unknown which spans still run: nothing is published until the
#   thread has detached everything.
#
# Since 3.14 PyContext_AddWatcher reports each switch, so the published span is always the current one,
# also in tasks. A child of fork() starts without a span: the native library clears it.

import asyncio
import ctypes
import functools
import importlib
import os
import sys
import threading
from collections.abc import Hashable
from contextvars import Token
from types import ModuleType
from typing import Any, Final

from opentelemetry.context.context import Context, _RuntimeContext
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext

from otel_gpu.instrumentation.thread_context import Publisher, load_publisher

_SEES_SWITCHES: Final = sys.version_info >= (3, 14)
_CONTEXT_SWITCHED: Final = 1
_MAX_NESTED: Final = 256

Identity = tuple[int, int, int]
"""Trace id, span id and trace flags of a span."""


class PublishedContext(_RuntimeContext):
    """
    Delegates to another runtime context, and publishes the current span.

    Args:
        inner: Keeps the context; by default as OpenTelemetry does.
        publisher: The publisher of this process. Without a native library nothing is published.
        sees_switches: Whether to watch context switches, if the interpreter can. That needs the
            default ``inner``.
    """

    def __init__(
        self,
        inner: _RuntimeContext | None = None,
        publisher: Publisher | None = None,
        *,
        sees_switches: bool = _SEES_SWITCHES,
    ) -> None:
        self._inner = inner or ContextVarsRuntimeContext()
        self._publisher = publisher or load_publisher()
        self._threads = _Threads()
        self._watcher = _watch(self._switch) if sees_switches and self._publisher else None
        os.register_at_fork(after_in_child=self._begin_again)

    def attach(self, context: Context) -> Token[Context]:
        """Make a context current; return the token for ``detach``."""
        token = self._inner.attach(context)
        if self._publisher is not None:
            if self._watcher is not None:
                self._publish(_identity(context))
            else:
                self._nest(token, context)
        return token

    def get_current(self) -> Context:
        """Return the current context."""
        return self._inner.get_current()

    def detach(self, token: Token[Context]) -> None:
        """Restore the context from before an attach."""
        try:
            self._inner.detach(token)
        finally:
            if self._watcher is not None:
                self._publish(_identity(self._inner.get_current()))
            elif self._publisher is not None:
                self._unnest(token)

    def end(self, trace_id: int, span_id: int) -> None:
        """Stop publishing a span that ended while it was current in this thread."""
        published = self._threads.published
        if published is not None and published[:2] == (trace_id, span_id):
            self._write(None)

    def set_enclosing(self, identity: Identity | None, owner: Hashable = None) -> None:
        """
        Publish a span that encloses this thread's work but is not current in OpenTelemetry.

        It is published while the span that is current now is current; a span attached later is
        further in. None removes the owner's span. Spans of several owners nest in the order in which
        they were set.
        """
        thread = self._threads
        if identity is None or thread.is_confused or _is_in_loop():
            thread.enclosing.pop(owner, None)
        else:
            thread.enclosing[owner] = thread.current, identity
        if not thread.is_confused:
            self._publish(thread.current)

    def innermost(self) -> Identity | None:
        """Return the published span of this thread."""
        return self._threads.published

    def _nest(self, token: Token[Context], context: Context) -> None:
        thread = self._threads
        # Some programs attach and never detach.
        is_full = len(thread.stack) >= _MAX_NESTED
        if is_full:
            thread.stack.clear()
        thread.stack.append((token, thread.current))
        if thread.is_confused or is_full or _is_in_loop():
            self._publish_nothing(thread)
        else:
            self._publish(_identity(context))

    def _unnest(self, token: Token[Context]) -> None:
        thread = self._threads
        stack = thread.stack
        is_innermost = bool(stack) and stack[-1][0] is token
        before = stack.pop()[1] if is_innermost else None
        if not is_innermost:
            thread.stack = stack = [entry for entry in stack if entry[0] is not token]
        if not stack:
            thread.is_confused = False
            self._publish(before)
        elif thread.is_confused or not is_innermost:
            self._publish_nothing(thread)
        else:
            self._publish(before)

    def _publish_nothing(self, thread: "_Threads") -> None:
        thread.is_confused = True
        thread.current = None
        self._write(None)

    def _begin_again(self) -> None:
        # The child of a fork is in no span of its parent.
        self._threads = _Threads()

    def _switch(self) -> None:
        self._publish(_identity(self._inner.get_current()))

    def _publish(self, identity: Identity | None) -> None:
        thread = self._threads
        thread.current = identity
        for current, enclosing in reversed(thread.enclosing.values()):
            if current == identity:
                identity = enclosing
                break
        self._write(identity)

    def _write(self, identity: Identity | None) -> None:
        thread, publisher = self._threads, self._publisher
        if publisher is None or identity == thread.published:
            return
        thread.published = identity
        if identity is None:
            publisher.clear()
        else:
            publisher.publish(*identity)


class _Threads(threading.local):
    # ``stack``: tokens of attached contexts, each with the span that was current before.
    # ``enclosing``: by owner, the span that was current when it was set, and the enclosing span.
    def __init__(self) -> None:
        self.stack: list[tuple[Token[Context], Identity | None]] = []
        self.current: Identity | None = None
        self.published: Identity | None = None
        self.enclosing: dict[Hashable, tuple[Identity | None, Identity]] = {}
        self.is_confused = False


def _is_in_loop() -> bool:
    return asyncio._get_running_loop() is not None  # noqa: SLF001 - the public function raises without a loop


def _identity(context: Context) -> Identity | None:
    span = _trace().get_current_span(context).get_span_context()
    return (span.trace_id, span.span_id, span.trace_flags) if span.is_valid else None


@functools.cache
def _trace() -> ModuleType:
    # OpenTelemetry's trace package imports its context package, which imports this module.
    return importlib.import_module("opentelemetry.trace")


def _watch(switched: Any) -> object:  # noqa: ANN401 - of ctypes
    # The caller keeps the callback, as the interpreter has only its address. None: it has no watchers.
    add = getattr(ctypes.pythonapi, "PyContext_AddWatcher", None)
    if add is None:
        return None

    def on_event(event: int, _: object) -> int:
        if event == _CONTEXT_SWITCHED:
            switched()
        return 0

    callback = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.py_object)(on_event)
    return callback if add(callback) >= 0 else None

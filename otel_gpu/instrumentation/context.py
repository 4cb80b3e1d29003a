"""
A runtime context for OpenTelemetry that tells readers outside the process which span is current.

It is the entry point ``otel_gpu`` of ``opentelemetry_context`` (``OTEL_PYTHON_CONTEXT=otel_gpu``);
the distribution puts it around the runtime context that it finds.
"""

# What can be seen, and what cannot
# ---------------------------------
#
# OpenTelemetry keeps the current span in a contextvars.ContextVar, and tells a runtime context when
# it is set (attach) and reset (detach). But the value changes in a third way: a thread enters another
# contextvars.Context, as an event loop does for each of its callbacks. Before CPython 3.14 nobody is
# told of that. So what is published there is what is certain:
#
# - Within one context attach and detach nest, and each thread has a stack of them. The end of the
#   innermost one brings back what was published before it, and not what the variable says: in a pool
#   that runs a function with the context of who asked for it, that is a span which nobody attached
#   here, and nobody would detach.
# - A thread that runs an event loop publishes nothing: its tasks take turns.
# - What is detached out of order leaves it open which spans still run: nothing is published until all
#   that the thread attached is detached.
#
# Since 3.14 PyContext_AddWatcher tells of each switch, and what is published is always the current
# span, tasks included. A child of fork() begins without any: the native library sees to that.

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
    Passes everything on to another runtime context, and publishes the span that is current.

    Args:
        inner: Where the context is kept; by default where OpenTelemetry would keep it.
        publisher: Of this process; without a native library for this machine nothing is published.
        sees_switches: Whether to ask the interpreter for switches between contexts, as far as it
            says them. Only the default for ``inner`` can be asked after one.
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
        """Make a context current; returns what ends that."""
        token = self._inner.attach(context)
        if self._publisher is not None:
            if self._watcher is not None:
                self._say(_identity(context))
            else:
                self._nest(token, context)
        return token

    def get_current(self) -> Context:
        """Return the context that is current."""
        return self._inner.get_current()

    def detach(self, token: Token[Context]) -> None:
        """Make the context current again that was before an attach."""
        try:
            self._inner.detach(token)
        finally:
            if self._watcher is not None:
                self._say(_identity(self._inner.get_current()))
            elif self._publisher is not None:
                self._unnest(token)

    def end(self, trace_id: int, span_id: int) -> None:
        """Publish a span no longer that ended while it was current in this thread."""
        said = self._threads.said
        if said is not None and said[:2] == (trace_id, span_id):
            self._write(None)

    def set_enclosing(self, identity: Identity | None, owner: Hashable = None) -> None:
        """
        Publish a span of which OpenTelemetry does not know that this thread is in it.

        It is published wherever the span is current that is so now: what is attached on top of that
        is further in. None: the owner has no such span any more. Those of several owners lie in
        each other, in the order in which the owners began to have one.
        """
        thread = self._threads
        if identity is None or thread.is_confused or _is_in_loop():
            thread.around.pop(owner, None)
        else:
            thread.around[owner] = thread.within, identity
        if not thread.is_confused:
            self._say(thread.within)

    def innermost(self) -> Identity | None:
        """Return what is published of this thread."""
        return self._threads.said

    def _nest(self, token: Token[Context], context: Context) -> None:
        thread = self._threads
        # Some attach, and never detach.
        is_full = len(thread.stack) >= _MAX_NESTED
        if is_full:
            thread.stack.clear()
        thread.stack.append((token, thread.within))
        if thread.is_confused or is_full or _is_in_loop():
            self._fall_silent(thread)
        else:
            self._say(_identity(context))

    def _unnest(self, token: Token[Context]) -> None:
        thread = self._threads
        stack = thread.stack
        is_innermost = bool(stack) and stack[-1][0] is token
        before = stack.pop()[1] if is_innermost else None
        if not is_innermost:
            thread.stack = stack = [entry for entry in stack if entry[0] is not token]
        if not stack:
            thread.is_confused = False
            self._say(before)
        elif thread.is_confused or not is_innermost:
            self._fall_silent(thread)
        else:
            self._say(before)

    def _fall_silent(self, thread: "_Threads") -> None:
        thread.is_confused = True
        thread.within = None
        self._write(None)

    def _begin_again(self) -> None:
        # The child of a fork is in none of the spans of its parent.
        self._threads = _Threads()

    def _switch(self) -> None:
        self._say(_identity(self._inner.get_current()))

    def _say(self, identity: Identity | None) -> None:
        thread = self._threads
        thread.within = identity
        for within, further_in in reversed(thread.around.values()):
            if within == identity:
                identity = further_in
                break
        self._write(identity)

    def _write(self, identity: Identity | None) -> None:
        thread, publisher = self._threads, self._publisher
        if publisher is None or identity == thread.said:
            return
        thread.said = identity
        if identity is None:
            publisher.clear()
        else:
            publisher.publish(*identity)


class _Threads(threading.local):
    # Of each thread: what it attached, with the span that was current before; the one that is
    # current, as far as that is certain; what is said of it; what it is in besides.
    def __init__(self) -> None:
        self.stack: list[tuple[Token[Context], Identity | None]] = []
        self.within: Identity | None = None
        self.said: Identity | None = None
        self.around: dict[Hashable, tuple[Identity | None, Identity]] = {}
        self.is_confused = False


def _is_in_loop() -> bool:
    return asyncio._get_running_loop() is not None  # noqa: SLF001 - its public twin raises


def _identity(context: Context) -> Identity | None:
    span = _trace().get_current_span(context).get_span_context()
    return (span.trace_id, span.span_id, span.trace_flags) if span.is_valid else None


@functools.cache
def _trace() -> ModuleType:
    # OpenTelemetry's trace package imports the one of contexts, which imports this.
    return importlib.import_module("opentelemetry.trace")


def _watch(switched: Any) -> Any:  # noqa: ANN401 - of ctypes
    # Returns what has to be kept as long as it is called; None: this interpreter has no watchers.
    add = getattr(ctypes.pythonapi, "PyContext_AddWatcher", None)
    if add is None:
        return None

    def on_event(event: int, _: Any) -> int:  # noqa: ANN401 - a context, or None
        if event == _CONTEXT_SWITCHED:
            switched()
        return 0

    callback = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.py_object)(on_event)
    return callback if add(callback) >= 0 else None

"""
Spans of NVTX ranges of Python, from the package ``nvtx`` and from ``torch.cuda.nvtx``.

It needs no profiler, and NVTX gets all ranges as before. It does not see ranges of C++ or of a
``Domain`` object of the package. The library of ``nvtx_library`` does. Where that library is loaded,
an agent makes the spans of all ranges, and this module does nothing.
"""

import functools
import logging
import operator
import os
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

import wrapt
from opentelemetry import metrics, trace
from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined] # untyped
    BaseInstrumentor,
)
from opentelemetry.trace import Span

from otel_gpu import __version__
from otel_gpu.instrumentation.nvtx_library import VARIABLE, is_injected
from otel_gpu.instrumentation.ranges import Ranges

SCOPE = "otel_gpu.nvtx"

# Attribute of an annotation with its name and domain.
_RANGE = "_otel_gpu_range"
_UNNAMED = None, None

_logger = logging.getLogger(__name__)

_Call = Callable[..., Any]
_Given = tuple[Any, ...]
_Named = dict[str, Any]


class NvtxInstrumentor(BaseInstrumentor):  # type: ignore[misc] # untyped
    """Entry point ``otel_gpu_nvtx`` of ``opentelemetry_instrumentor``."""

    _ranges: Ranges | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return no requirements, as either package is enough."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:  # noqa: ANN401 - as its base has it
        if is_injected(os.environ):
            _logger.info("%s names our library: ranges are left to it", VARIABLE)
            return
        provider, meters = kwargs.get("tracer_provider"), kwargs.get("meter_provider")
        self._ranges = Ranges(
            trace.get_tracer(SCOPE, __version__, provider),
            metrics.get_meter(SCOPE, __version__, meters),
        )
        wrapt.register_post_import_hook(self._see_package, "nvtx")
        wrapt.register_post_import_hook(self._see_torch, "torch.cuda.nvtx")

    def _uninstrument(self, **_: object) -> None:
        # Programs keep imported functions, so the wrappers stay and only delegate.
        self._ranges = None

    def _see_package(self, nvtx: ModuleType) -> None:
        is_enabled = getattr(nvtx, "enabled", None)
        if is_enabled is None or is_enabled():
            _wrap(nvtx, "push_range", self._push)
            _wrap(nvtx, "pop_range", self._pop)
            _wrap(nvtx, "start_range", self._start)
            _wrap(nvtx, "end_range", _end)
            _wrap(nvtx, "annotate.__init__", _annotate)
            _wrap(nvtx, "annotate.__enter__", self._enter)
            _wrap(nvtx, "annotate.__exit__", self._leave)
            _wrap(nvtx, "annotate.__call__", self._decorate)

    def _see_torch(self, nvtx: ModuleType) -> None:
        _wrap(nvtx, "range_push", self._push)
        _wrap(nvtx, "range_pop", self._pop)
        _wrap(nvtx, "range_start", self._start)
        _wrap(nvtx, "range_end", _end)

    def _push(self, following: _Call, _: object, given: _Given, named: _Named) -> object:
        pushed = following(*given, **named)
        self._begin(*_name_and_domain(*given, **named))
        return pushed

    def _pop(self, following: _Call, _: object, given: _Given, named: _Named) -> object:
        try:
            return following(*given, **named)
        finally:
            self._finish(given[0] if given else named.get("domain"))

    def _start(self, following: _Call, _: object, given: _Given, named: _Named) -> object:
        started = following(*given, **named)
        ranges = self._ranges
        span = None if ranges is None else ranges.start(*_name_and_domain(*given, **named))
        return started if span is None else _started(started, span)

    def _enter(self, following: _Call, annotation: object, given: _Given, named: _Named) -> object:
        entered = following(*given, **named)
        self._begin(*getattr(annotation, _RANGE, _UNNAMED))
        return entered

    def _leave(self, following: _Call, annotation: object, given: _Given, named: _Named) -> object:
        try:
            return following(*given, **named)
        finally:
            self._finish(getattr(annotation, _RANGE, _UNNAMED)[1])

    def _decorate(
        self, following: _Call, annotation: object, given: _Given, named: _Named
    ) -> object:
        decorated = following(*given, **named)
        name, domain = getattr(annotation, _RANGE, _UNNAMED)
        name = name or getattr(decorated, "__name__", None)

        @functools.wraps(decorated)
        def ranged(*args: object, **kwargs: object) -> object:
            self._begin(name, domain)
            try:
                return decorated(*args, **kwargs)
            finally:
                self._finish(domain)

        return ranged

    def _begin(self, name: object, domain: str | None) -> None:
        if self._ranges is not None:
            self._ranges.push(name, domain)

    def _finish(self, domain: str | None) -> None:
        if self._ranges is not None:
            self._ranges.pop(domain)


class _Range(tuple[Any, ...]):  # noqa: SLOT001 - it has attributes
    # The result of ``start_range``, with its span.

    span: Span
    is_none = False  # True: NVTX returned None, as it does without a profiler


class _Number(int):
    # The result of PyTorch's ``range_start``, with its span.

    span: Span


def _started(found: object, span: Span) -> object:
    made: _Range | _Number
    if isinstance(found, int):
        made = _Number(found)
    else:
        made = _Range(found if isinstance(found, tuple) else ())
        made.is_none = found is None
    made.span = span
    return made


def _end(following: _Call, _: object, given: _Given, named: _Named) -> object:
    started = given[0] if given else named.get("range_id")
    if not isinstance(started, (_Range, _Number)):
        return following(*given, **named)
    started.span.end()
    return following(None if isinstance(started, _Range) and started.is_none else started)


def _annotate(following: _Call, annotation: object, given: _Given, named: _Named) -> None:
    following(*given, **named)
    setattr(annotation, _RANGE, _name_and_domain(*given, **named))


def _name_and_domain(
    message: object = None,
    color: object = None,  # noqa: ARG001 - given by position
    domain: str | None = None,
    *_: object,
    msg: object = None,
    **__: object,
) -> tuple[object, str | None]:
    # PyTorch's functions have only ``msg``.
    return msg if message is None else message, domain


def _wrap(module: ModuleType, name: str, wrapper: _Call) -> None:
    try:
        found = operator.attrgetter(name)(module)
    except AttributeError:
        return
    if not isinstance(found, (wrapt.FunctionWrapper, wrapt.BoundFunctionWrapper)):
        wrapt.wrap_function_wrapper(module, name, wrapper)

"""
Steps of SGLang: the calls of ``Scheduler.run_batch`` in each scheduler process.

Each rank has such a process, which launches the work on its device. With the overlapping scheduler a
step is only the launch of a batch, because its results arrive later.
"""

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import wrapt

from otel_gpu.instrumentation.engines.batch import EngineBatch, InferenceRequest, context_of
from otel_gpu.instrumentation.engines.guard import ErrorGuard
from otel_gpu.instrumentation.engines.inference_steps import (
    InferenceStep,
    InferenceSteps,
    is_wanted,
)
from otel_gpu.instrumentation.published import publish_identity

_SCHEDULER: Final = "sglang.srt.managers.scheduler"


def watch() -> None:
    """Watch the scheduler once this process imports it."""
    guard = ErrorGuard("SGLang")
    guard.watch(_Schedulers(guard).wrap, _SCHEDULER)


class _Schedulers:
    def __init__(self, guard: ErrorGuard) -> None:
        self._guard = guard
        self._steps = InferenceSteps("sglang")
        self._number = 0

    def wrap(self, module: ModuleType) -> None:
        if not hasattr(getattr(module, "Scheduler", None), "run_batch"):
            self._guard.warn(
                f"its steps cannot be seen: there is no {_SCHEDULER}.Scheduler.run_batch"
            )
            return
        wrapt.wrap_function_wrapper(module, "Scheduler.run_batch", self._run)

    def _run(
        self,
        following: Callable[..., object],
        _: object,
        given: tuple[object, ...],
        named: dict[str, object],
    ) -> object:
        begun = self._guard.run(self._begin, given[0] if given else named.get("batch"))
        if begun is None:
            return following(*given, **named)
        step, batch = begun
        error: BaseException | None = None
        try:
            with publish_identity(step.identity, _SCHEDULER):
                return following(*given, **named)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._guard.run(self._end, step, batch, error)

    def _begin(self, batch: Any) -> tuple[InferenceStep, EngineBatch] | None:  # noqa: ANN401 - of the engine
        # Skip empty batches, run to stay in step with other ranks, and batches that others have run.
        if self._guard.has_failed or not is_wanted() or not batch.reqs:
            return None
        mode = batch.forward_mode
        if mode.is_idle() or mode.is_prebuilt():
            return None
        began_ns = time.time_ns()
        # The batch can change while it runs.
        read = _read(batch, self._number + 1)
        self._number += 1
        step = self._steps.begin(self._number, began_ns)
        return None if step is None else (step, read)

    def _end(self, step: InferenceStep, batch: EngineBatch, error: BaseException | None) -> None:
        now_ns = time.time_ns()
        self._steps.describe(step, batch)
        self._steps.end(step, error, now_ns)


def _read(batch: Any, number: int) -> EngineBatch:  # noqa: ANN401 - of the engine
    if batch.forward_mode.is_decode():
        return EngineBatch(
            number, [InferenceRequest(0, 1, _context_of(request)) for request in batch.reqs]
        )
    decoded = {id(request) for request in batch.decoding_reqs or ()}
    return EngineBatch(
        number,
        [
            InferenceRequest(0, tokens, _context_of(request))
            if id(request) in decoded
            else InferenceRequest(tokens, 0, _context_of(request))
            for request, tokens in zip(batch.reqs, batch.extend_lens, strict=True)
        ],
    )


def _context_of(request: Any) -> Any:  # noqa: ANN401 - of the engine
    # Without tracing its stand-in has every attribute, with other types.
    return context_of(getattr(request.time_stats.trace_ctx, "root_span_context", None))

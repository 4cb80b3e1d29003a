"""
Steps of vLLM (engine "V1"): from scheduling a batch until the scheduler has its results.

Two classes are wrapped: the engine core, which schedules and has the requests, and the worker, which
launches the work on the device. They can be in different processes, so the step's identity is
attached to the scheduler's output, which goes to the workers.
"""

import functools
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

import wrapt

from otel_gpu.instrumentation.context import Identity
from otel_gpu.instrumentation.engines.batch import EngineBatch, InferenceRequest, context_of_headers
from otel_gpu.instrumentation.engines.guard import ErrorGuard
from otel_gpu.instrumentation.engines.inference_steps import (
    InferenceStep,
    InferenceSteps,
    is_wanted,
)
from otel_gpu.instrumentation.published import publish_context, publish_identity, publish_span
from otel_gpu.limits.recent import Fifo

CARRIED: Final = "_otel_gpu_step"
"""Attribute of the scheduler's output for workers: the identity of the step."""

_CORE: Final = "vllm.v1.engine.core"
_WORKER: Final = "vllm.v1.worker.gpu_worker"
_QUEUED_STEP: Final = "step_with_batch_queue"
_SAMPLE: Final = "sample_tokens"
# At most as many batches run at once as a pipeline has stages, or two.
_MAX_RUNNING: Final = 64
_IDENTITY: Final = 3

_Call = Callable[..., object]


def watch() -> None:
    """Watch the core and the worker once this process imports them."""
    guard = ErrorGuard("vLLM")
    guard.watch(_Cores(guard).wrap, _CORE)
    guard.watch(_Workers(guard).wrap, _WORKER)


class _Cores:
    def __init__(self, guard: ErrorGuard) -> None:
        self._guard = guard
        self._steps = InferenceSteps("vllm")
        self._cores: weakref.WeakKeyDictionary[object, _Core] = weakref.WeakKeyDictionary()

    def wrap(self, module: ModuleType) -> None:
        core = getattr(module, "EngineCore", None)
        if not hasattr(core, "step"):
            self._guard.warn(f"its steps cannot be seen: there is no {_CORE}.EngineCore.step")
            return
        wrapt.wrap_function_wrapper(module, "EngineCore.step", self._step)
        if hasattr(core, _QUEUED_STEP):
            wrapt.wrap_function_wrapper(module, f"EngineCore.{_QUEUED_STEP}", self._queued_step)

    def _step(
        self, following: _Call, engine: object, given: tuple[object, ...], named: dict[str, object]
    ) -> object:
        core = self._guard.run(self._core_of, engine)
        if core is None:
            return following(*given, **named)
        with core.called(is_published=True):
            return following(*given, **named)

    def _queued_step(
        self, following: _Call, engine: object, given: tuple[object, ...], named: dict[str, object]
    ) -> object:
        core = self._guard.run(self._core_of, engine)
        if core is None:
            return following(*given, **named)
        # It begins one batch and waits for another; the worker publishes the one that it runs.
        with core.called(is_published=False):
            return following(*given, **named)

    def _core_of(self, engine: object) -> "_Core | None":
        if self._guard.has_failed or not is_wanted():
            return None
        core = self._cores.get(engine)
        if core is None:
            core = self._cores[engine] = _Core(engine, self._steps, self._guard)
        return core


class _Core:
    # The steps of one engine core. Wraps methods of its scheduler and its executor.
    def __init__(self, engine: Any, steps: InferenceSteps, guard: ErrorGuard) -> None:  # noqa: ANN401
        scheduler, executor = engine.scheduler, engine.model_executor
        self._requests = scheduler.requests
        self._steps = steps
        self._guard = guard
        self._number = 0
        self._began_ns = 0
        self._is_published = False
        self._is_carried = True
        self._running: Fifo[int, tuple[object, int, InferenceStep]] = Fifo(_MAX_RUNNING)
        schedule, update = scheduler.schedule, scheduler.update_from_output
        execute = executor.execute_model
        scheduler.schedule = functools.partial(self._schedule, schedule)
        executor.execute_model = functools.partial(self._execute, execute)
        scheduler.update_from_output = functools.partial(self._update, update)

    @contextmanager
    def called(self, *, is_published: bool) -> Iterator[None]:
        # Around a call of the engine, which can begin and end a step.
        self._began_ns, self._is_published = time.time_ns(), is_published
        try:
            yield
        except BaseException as error:
            self._guard.run(self._fail, error)
            raise
        finally:
            self._began_ns = 0
            if is_published:
                self._guard.run(publish_span, None, _CORE)

    def _schedule(self, following: _Call, *given: object, **named: object) -> object:
        output = following(*given, **named)
        self._guard.run(self._begin, output)
        return output

    def _execute(self, following: _Call, *given: object, **named: object) -> object:
        executed = following(*given, **named)
        # The device is busy now, so this delays nothing.
        self._guard.run(self._describe, _output_of(given, named))
        return executed

    def _update(self, following: _Call, *given: object, **named: object) -> object:
        updated = following(*given, **named)
        self._guard.run(self._end, _output_of(given, named))
        return updated

    def _begin(self, output: Any) -> None:  # noqa: ANN401 - of the engine
        if not self._began_ns or not output.num_scheduled_tokens:
            return
        self._number += 1
        if self._number == 1:
            # Fail before the first span if the batch cannot be read.
            _read(output, self._requests, self._number)
        step = self._steps.begin(self._number, self._began_ns)
        if step is None:
            return
        # Keep the output, so its id is not reused.
        self._running[id(output)] = output, self._number, step
        if self._is_published:
            publish_span(step.span, _CORE)
        self._carry(output, step)

    def _carry(self, output: object, step: InferenceStep) -> None:
        if not self._is_carried:
            return
        try:
            setattr(output, CARRIED, step.identity)
        except AttributeError:
            self._is_carried = False
            self._guard.warn("what it sends to workers takes no attribute: they publish no steps")

    def _describe(self, output: object) -> None:
        running = self._running.get(id(output))
        if running is not None:
            _, number, step = running
            self._steps.describe(step, _read(output, self._requests, number))

    def _end(self, output: object) -> None:
        running = self._running.pop(id(output), None)
        if running is not None:
            self._steps.end(running[-1])

    def _fail(self, error: BaseException) -> None:
        while self._running:
            _, running = self._running.popitem()
            self._steps.end(running[-1], error)


class _Workers:
    # Publishes the running step in the workers of this process.
    def __init__(self, guard: ErrorGuard) -> None:
        self._guard = guard
        self._run: weakref.WeakKeyDictionary[object, Identity] = weakref.WeakKeyDictionary()

    def wrap(self, module: ModuleType) -> None:
        worker = getattr(module, "Worker", None)
        if not hasattr(worker, "execute_model"):
            self._guard.warn(
                f"steps have no calls of CUDA: there is no {_WORKER}.Worker.execute_model"
            )
            return
        wrapt.wrap_function_wrapper(module, "Worker.execute_model", self._execute)
        # Newer versions sample in a separate call.
        if hasattr(worker, _SAMPLE):
            wrapt.wrap_function_wrapper(module, f"Worker.{_SAMPLE}", self._sample)

    def _execute(
        self, following: _Call, worker: object, given: tuple[object, ...], named: dict[str, object]
    ) -> object:
        identity = self._guard.run(self._begin, worker, _output_of(given, named))
        with publish_identity(identity, _WORKER):
            return following(*given, **named)

    def _sample(
        self, following: _Call, worker: object, given: tuple[object, ...], named: dict[str, object]
    ) -> object:
        with publish_identity(self._guard.run(self._run.get, worker), _WORKER):
            return following(*given, **named)

    def _begin(self, worker: object, output: object) -> Identity | None:
        identity = getattr(output, CARRIED, None)
        if not isinstance(identity, tuple) or len(identity) != _IDENTITY:
            self._run.pop(worker, None)
            return None
        # This process need not have an SDK; the engine core has one.
        publish_context()
        self._run[worker] = identity
        return identity


def _output_of(given: tuple[object, ...], named: dict[str, object]) -> object:
    return given[0] if given else named.get("scheduler_output")


def _read(output: Any, requests: Any, number: int) -> EngineBatch:  # noqa: ANN401 - of the engine
    computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    computed |= zip(cached.req_ids, cached.num_computed_tokens, strict=True)
    return EngineBatch(
        number,
        [
            _request(requests[name], computed[name], tokens)
            for name, tokens in output.num_scheduled_tokens.items()
        ],
    )


def _request(request: Any, computed: int, tokens: int) -> InferenceRequest:  # noqa: ANN401 - of the engine
    # All but the newest token were known: the prompt, and after a preemption the tokens after it.
    known = max(request.num_prompt_tokens, request.num_tokens - 1)
    prefill = min(max(known - computed, 0), tokens)
    return InferenceRequest(prefill, tokens - prefill, context_of_headers(request.trace_headers))

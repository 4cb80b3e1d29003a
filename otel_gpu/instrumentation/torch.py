"""
Steps and loader waits of training loops in PyTorch, without changes to the program.

Steps come from PyTorch's hooks for all optimizers (since 2.0). This imports nothing that the program
has not imported.
"""

import logging
import sys
import time
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

import wrapt
from opentelemetry import metrics, trace
from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined] # untyped
    BaseInstrumentor,
)
from opentelemetry.instrumentation.utils import unwrap

from otel_gpu import __version__
from otel_gpu.instrumentation.steps import OptimizerSteps

SCOPE = "otel_gpu.torch"

_OPTIMIZER = "torch.optim.optimizer"
_LOADER = "torch.utils.data.dataloader"
_ITERATOR = "_BaseDataLoaderIter"

_logger = logging.getLogger(__name__)


class TorchInstrumentor(BaseInstrumentor):  # type: ignore[misc] # untyped
    """Entry point ``otel_gpu_torch`` of ``opentelemetry_instrumentor``."""

    _steps: OptimizerSteps | None = None
    _hook: Any = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the required package and version."""
        return ("torch >= 1.13",)

    def _instrument(self, **kwargs: Any) -> None:  # noqa: ANN401 - as its base has it
        provider, meters = kwargs.get("tracer_provider"), kwargs.get("meter_provider")
        self._steps = OptimizerSteps(
            trace.get_tracer(SCOPE, __version__, provider),
            metrics.get_meter(SCOPE, __version__, meters),
        )
        for name, found in ((_OPTIMIZER, self._see_steps), (_LOADER, self._see_waits)):
            wrapt.register_post_import_hook(self._while_wanted(found), name)

    def _uninstrument(self, **_: object) -> None:
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.stop()
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if loader := sys.modules.get(_LOADER):
            unwrap(getattr(loader, _ITERATOR, None), "__next__")

    def _while_wanted(self, found: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        # An import hook cannot be removed.
        return lambda module: found(module) if self._steps is not None else None

    def _see_steps(self, optimizers: ModuleType) -> None:
        register = getattr(optimizers, "register_optimizer_step_post_hook", None)
        if register is None:
            _logger.info("this PyTorch has no hooks for all optimizers: there are no steps")
            return
        self._hook = register(self._end_step)

    def _see_waits(self, loaders: ModuleType) -> None:
        if hasattr(getattr(loaders, _ITERATOR, None), "__next__"):
            wrapt.wrap_function_wrapper(loaders, f"{_ITERATOR}.__next__", self._next_batch)
        else:
            _logger.info("this PyTorch has another DataLoader: waits for it are not seen")

    def _end_step(self, optimizer: object, *_: object) -> None:
        if self._steps is not None:
            self._steps.end_step(optimizer)

    def _next_batch(
        self,
        following: Callable[[], object],
        _: object,
        given: tuple[object, ...],
        named: dict[str, object],
    ) -> object:
        began_ns = time.perf_counter_ns()
        try:
            return following(*given, **named)
        finally:
            if self._steps is not None:
                self._steps.waited(time.perf_counter_ns() - began_ns)

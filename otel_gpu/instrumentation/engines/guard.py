"""Keeps errors of the instrumentation from reaching an engine."""

import logging
from collections.abc import Callable
from types import ModuleType
from typing import ParamSpec, TypeVar

import wrapt

_logger = logging.getLogger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")


class ErrorGuard:
    """
    Calls functions of the instrumentation. Their first error is logged, and no step begins after it.

    Args:
        engine: The name of the engine, for the log.
    """

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self.has_failed = False

    def run(self, function: Callable[_P, _T], /, *given: _P.args, **named: _P.kwargs) -> _T | None:
        """Call a function and return its result. None: it failed."""
        try:
            return function(*given, **named)
        except Exception:
            if not self.has_failed:
                self.has_failed = True
                _logger.warning("%s: its steps cannot be seen", self._engine, exc_info=True)
            return None

    def watch(self, on_import: Callable[[ModuleType], None], name: str) -> None:
        """Call a function with a module of the engine when the engine imports it."""
        wrapt.register_post_import_hook(lambda module: self.run(on_import, module), name)

    def warn(self, problem: str) -> None:
        """Log that this version of the engine lacks something."""
        _logger.warning("%s: %s", self._engine, problem)

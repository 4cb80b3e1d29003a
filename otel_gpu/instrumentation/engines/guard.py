"""What is ours inside of an engine, and may never be felt by it."""

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
    Calls what is ours; what it raises ends here, is logged once, and no step is begun after it.

    Args:
        engine: Whose steps these are, for the log.
    """

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self.has_failed = False

    def run(self, function: Callable[_P, _T], /, *given: _P.args, **named: _P.kwargs) -> _T | None:
        """Return what a function returns; None: it failed."""
        try:
            return function(*given, **named)
        except Exception:
            if not self.has_failed:
                self.has_failed = True
                _logger.warning("%s: its steps cannot be seen", self._engine, exc_info=True)
            return None

    def watch(self, see: Callable[[ModuleType], None], name: str) -> None:
        """Show a module of the engine to a function, as soon as the engine imports it."""
        wrapt.register_post_import_hook(lambda module: self.run(see, module), name)

    def say(self, problem: str) -> None:
        """Say what of this version of the engine is not as it is known."""
        _logger.warning("%s: %s", self._engine, problem)

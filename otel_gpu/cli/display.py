"""
The screen of ``top``, redrawn at an interval and after keys.

It has no thread: the loop that reads activities calls ``tick`` several times a second.
"""

import logging
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Self

from rich.console import Console, Group
from rich.live import Live

from otel_gpu.cli.keys import Keys
from otel_gpu.report.document import key_of
from otel_gpu.report.render.top.call_table import SORTS
from otel_gpu.report.render.top.screen import Controls, draw_screen
from otel_gpu.report.top.model import TopModel
from otel_gpu.report.top.screen import TopView

_MAX_MESSAGES = 100


class Display:
    """
    Draws a model and handles keys.

    Where ``is_live`` is false, screens are plain text, one below the other.
    """

    def __init__(
        self,
        model: TopModel,
        console: Console,
        source: str,
        interval_s: float,
        *,
        is_live: bool,
        takes_keys: bool,
    ) -> None:
        self._model = model
        self._console = console
        self._source = source
        self._interval_s = interval_s
        self._keys = Keys() if takes_keys else None
        self._controls = Controls(has_keys=takes_keys)
        live = partial(Live, console=console, screen=True, auto_refresh=False)
        self._live = live(redirect_stdout=False, redirect_stderr=False) if is_live else None
        self._messages = _Messages()
        self._open = ExitStack()
        self._view: TopView | None = None
        self._drawn_size = console.size
        self._due_s = time.monotonic() + interval_s
        self.has_quit = False

    def __enter__(self) -> Self:
        if self._live is not None:
            with ExitStack() as stack:
                stack.enter_context(self._messages)
                if self._keys is not None:
                    stack.enter_context(self._keys)
                stack.enter_context(self._live)
                self._show()
                self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def quit(self) -> None:
        """Set ``has_quit``; the loop then ends."""
        self.has_quit = True

    @property
    def is_paused(self) -> bool:
        """Whether the operator paused the screen."""
        return self._controls.is_paused

    def tick(self, wait_s: float = 0.0) -> None:
        """Handle keys, waiting up to ``wait_s`` for one, and draw if a screen is due."""
        pressed: Sequence[str] = ()
        if self._keys is not None and self._live is not None:
            pressed = self._keys.read(wait_s)
        elif wait_s > 0:
            time.sleep(wait_s)
        for key in pressed:
            self._handle(key)
        is_due = time.monotonic() >= self._due_s and not self.is_paused
        if is_due:
            self._due_s = time.monotonic() + self._interval_s
            self._view = None
        if self._live is not None:
            if is_due or pressed or self._console.size != self._drawn_size:
                self._show()
        elif is_due:
            self.write()

    def write(self) -> None:
        """Append one screen as plain text."""
        view = self._model.view()
        lines = draw_screen(view, Controls(), source=self._source, width=self._console.width)
        self._console.file.write("\n".join(line.plain for line in lines) + "\n\n")
        self._console.file.flush()

    def hold(self) -> None:
        """Show that the recording has ended, until the operator quits."""
        if self._keys is None or self._live is None:
            return
        self._controls = self._controls._replace(has_ended=True, is_paused=False)
        self._view = None
        self._show()
        while not self.has_quit:
            self.tick(0.1)

    def _show(self) -> None:
        if self._live is None:
            return
        if self._view is None:
            self._view = self._model.view()
        self._drawn_size = width, height = self._console.size
        controls = self._controls._replace(message=self._messages.latest)
        lines = draw_screen(self._view, controls, source=self._source, width=width, height=height)
        self._live.update(Group(*lines), refresh=True)

    def _handle(self, key: str) -> None:
        controls = self._controls
        match key:
            case "q":
                self.quit()
            case "p" | " ":
                self._controls = controls._replace(is_paused=not controls.is_paused)
            case "s":
                names = [*SORTS, *SORTS]
                self._controls = controls._replace(sort=names[names.index(controls.sort) + 1])
            case "j" | "k":
                self._choose(1 if key == "j" else -1)

    def _choose(self, step: int) -> None:
        lines, chosen = () if self._view is None else self._view.processes, self._controls.chosen
        choices = [None, *(key_of(line.process) for line in lines)]
        at = step + (choices.index(chosen) if chosen in choices else 0)
        self._controls = self._controls._replace(chosen=choices[min(max(at, 0), len(choices) - 1)])


class _Messages(logging.Handler):
    # Log lines would break the screen: they are kept, and logged after it.
    def __init__(self) -> None:
        super().__init__()
        self._kept: deque[logging.LogRecord] = deque(maxlen=_MAX_MESSAGES)
        self._handlers: list[logging.Handler] = []
        self.latest = ""

    def __enter__(self) -> Self:
        root = logging.getLogger()
        self._handlers, root.handlers = root.handlers, [self]
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().handlers = self._handlers
        for record in self._kept:
            logging.getLogger(record.name).handle(record)

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.append(record)
        self.latest = record.getMessage()

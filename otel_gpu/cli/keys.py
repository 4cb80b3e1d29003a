"""Single keys from a terminal, whose settings are restored afterwards."""

import os
import re
import select
import sys
import termios
from typing import Any, Self

_LOCAL_MODES, _CHARACTERS = 3, 6
_DISABLED = b"\0"
# An arrow or another key that sends a sequence, or one character.
_KEY = re.compile(rb"\x1b[\[O][0-9;]*([A-Za-z~])|([^\x1b])", re.DOTALL)
_ARROWS = {b"A": "k", b"B": "j"}
QUIT = "q"


class Keys:
    """
    Standard input as a terminal without line buffering and echo.

    Ctrl-C still interrupts. Ctrl-Z and Ctrl-Backslash are disabled: they would leave the shell with a
    terminal that does not echo.
    """

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno()
        self._saved: list[Any] = []

    def __enter__(self) -> Self:
        self._saved = termios.tcgetattr(self._fd)
        changed = termios.tcgetattr(self._fd)
        changed[_LOCAL_MODES] &= ~(termios.ICANON | termios.ECHO)
        for character in (termios.VSUSP, termios.VQUIT):
            changed[_CHARACTERS][character] = _DISABLED
        termios.tcsetattr(self._fd, termios.TCSANOW, changed)
        return self

    def __exit__(self, *_: object) -> None:
        termios.tcsetattr(self._fd, termios.TCSANOW, self._saved)

    def read(self, wait_s: float) -> list[str]:
        """Return the keys pressed, waiting up to ``wait_s`` for the first. Arrows are ``j`` and ``k``."""
        if not any(select.select([self._fd], [], [], max(0.0, wait_s))):
            return []
        try:
            pressed = os.read(self._fd, 1024)
        except OSError:  # the terminal is gone
            pressed = b""
        if not pressed:
            return [QUIT]
        return [
            _ARROWS.get(sequence, "") if sequence else character.decode("ascii", "ignore")
            for sequence, character in _KEY.findall(pressed)
        ]


def has_keys() -> bool:
    """Return whether standard input is a terminal, with this process in its foreground."""
    try:
        return sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):  # another session's terminal, or none
        return False

"""
Saying to a service manager how the agent does: the protocol of ``sd_notify(3)``.

The words are sent by the loop of the capture itself, from its own thread: when it hangs, wherever
that is, they stay away, and the watchdog of the service manager does what its unit says.
"""

import os
import re
import socket
import time
from collections.abc import Callable, Mapping

CAPTURING = "capturing"
"""The status of an agent that has nothing else to say."""

_US_PER_S = 1_000_000
# systemd waits for a word in each interval; half of it leaves room for a slow turn.
_WORDS_PER_INTERVAL = 2
_STATUS_INTERVAL_S = 5.0


class Notifier:
    """Talks to a service manager, if the environment names one; the clock is monotonic."""

    def __init__(
        self, environ: Mapping[str, str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._address = re.sub("^@", "\0", environ.get("NOTIFY_SOCKET", ""))
        self._socket: socket.socket | None = None
        if self._address.startswith(("/", "\0")):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._interval_s = _watchdog_s(environ) / _WORDS_PER_INTERVAL
        self._watchdog_due_s = self._status_due_s = 0.0
        self._status = ""
        self._news = ["READY=1"]

    @property
    def is_watched(self) -> bool:
        """Whether a watchdog waits for words."""
        return self._socket is not None and self._interval_s > 0

    def turn(self, status: Callable[[], str]) -> None:
        """Say that the loop turns and, now and then, in one line, what its status is."""
        if self._socket is None:
            return
        now_s = self._clock()
        words, self._news = self._news, []
        if self._interval_s and now_s >= self._watchdog_due_s:
            self._watchdog_due_s = now_s + self._interval_s
            words.append("WATCHDOG=1")
        if now_s >= self._status_due_s:
            self._status_due_s = now_s + _STATUS_INTERVAL_S
            line = status().replace("\n", " ")
            if line != self._status:
                self._status = line
                words.append(f"STATUS={line}")
        self._send(words)

    def stop(self) -> None:
        """Say that the agent ends; the watchdog waits no longer."""
        self._send(["STOPPING=1"])
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, words: list[str]) -> None:
        if self._socket is None or not words:
            return
        try:
            self._socket.sendto("\n".join(words).encode(), self._address)
        except OSError:
            # Nobody listens, or too slowly: the next word is due all the sooner.
            self._watchdog_due_s = 0.0


def _watchdog_s(environ: Mapping[str, str]) -> float:
    interval, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not interval.isdecimal() or (pid and pid != str(os.getpid())):
        return 0.0
    return int(interval) / _US_PER_S

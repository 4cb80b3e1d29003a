"""
Notifications of a service manager: the protocol of ``sd_notify(3)``.

The thread of the capture's loop sends them. If it hangs anywhere, they stop, and the watchdog of
the service manager acts as the unit configures.
"""

import os
import re
import socket
import time
from collections.abc import Callable, Mapping

CAPTURING = "capturing"
"""The status of an agent without errors."""

_US_PER_S = 1_000_000
# systemd expects one notification per interval; two leave time for a slow iteration.
_NOTIFICATIONS_PER_INTERVAL = 2
_STATUS_INTERVAL_S = 5.0


class Notifier:
    """Notifies the service manager that the environment names, if any. The clock is monotonic."""

    def __init__(
        self, environ: Mapping[str, str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._address = re.sub("^@", "\0", environ.get("NOTIFY_SOCKET", ""))
        self._socket: socket.socket | None = None
        if self._address.startswith(("/", "\0")):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._interval_s = _watchdog_s(environ) / _NOTIFICATIONS_PER_INTERVAL
        self._watchdog_due_s = self._status_due_s = 0.0
        self._status = ""
        self._pending = ["READY=1"]

    @property
    def is_watched(self) -> bool:
        """Whether a watchdog expects notifications."""
        return self._socket is not None and self._interval_s > 0

    def notify(self, status: Callable[[], str]) -> None:
        """Reset the watchdog, and every 5 s send the status if it changed."""
        if self._socket is None:
            return
        now_s = self._clock()
        lines, self._pending = self._pending, []
        if self._interval_s and now_s >= self._watchdog_due_s:
            self._watchdog_due_s = now_s + self._interval_s
            lines.append("WATCHDOG=1")
        if now_s >= self._status_due_s:
            self._status_due_s = now_s + _STATUS_INTERVAL_S
            line = status().replace("\n", " ")
            if line != self._status:
                self._status = line
                lines.append(f"STATUS={line}")
        self._send(lines)

    def stop(self) -> None:
        """Send that the agent ends, which stops the watchdog."""
        self._send(["STOPPING=1"])
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, lines: list[str]) -> None:
        if self._socket is None or not lines:
            return
        try:
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            # No reader, or a slow one: try again at the next call.
            self._watchdog_due_s = 0.0


def _watchdog_s(environ: Mapping[str, str]) -> float:
    interval, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not interval.isdecimal() or (pid and pid != str(os.getpid())):
        return 0.0
    return int(interval) / _US_PER_S

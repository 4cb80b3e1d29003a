"""A limit on spans of events whose rate the program decides."""

import time
from typing import Final

_SPANS_PER_S: Final = 10.0
_BURST: Final = 50.0
_NS_PER_S: Final = 1_000_000_000


class Rate:
    """A token bucket for one thread: 10 spans per second, and 50 at once."""

    def __init__(self) -> None:
        self._tokens = _BURST
        self._counted_ns = time.time_ns()

    def allows(self, now_ns: int) -> bool:
        """Return whether one more span is allowed at a Unix time, and count it if so."""
        earned = max(now_ns - self._counted_ns, 0) / _NS_PER_S * _SPANS_PER_S
        self._tokens = min(self._tokens + earned, _BURST)
        self._counted_ns = now_ns
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

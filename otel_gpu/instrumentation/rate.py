"""How many spans may be made of what a program does as often as it likes."""

import time
from typing import Final

_SPANS_PER_S: Final = 10.0
_BURST: Final = 50.0
_NS_PER_S: Final = 1_000_000_000


class Rate:
    """At most 10 in a second, and 50 at once; of one thread."""

    def __init__(self) -> None:
        self._tokens = _BURST
        self._counted_ns = time.time_ns()

    def allows(self, now_ns: int) -> bool:
        """Return whether there may be one more, at a Unix time."""
        earned = max(now_ns - self._counted_ns, 0) / _NS_PER_S * _SPANS_PER_S
        self._tokens = min(self._tokens + earned, _BURST)
        self._counted_ns = now_ns
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

"""How many causal chains become spans: the rest is counted."""

from collections import OrderedDict

WITHHELD_RATE = "rate"
WITHHELD_TRACE = "trace_full"

# One call has one effect, two where it hung and came back; calls that it made inside
# have their own.
_CHAINS_PER_TRACE = 16
_MAX_TRACES = 4096
_NS_PER_SECOND = 1_000_000_000


class ChainBudget:
    """
    A bucket of chains that fills with the time of the stream, and a limit per trace.

    No clock is asked, so that a replay withholds what the capture withheld.
    """

    def __init__(self, chains_per_second: int) -> None:
        self._per_second = chains_per_second
        # In parts of a nanosecond's share of a chain: integers do not drift.
        self._full = chains_per_second * _NS_PER_SECOND
        self._tokens = self._full
        self._unix_ns: int | None = None
        self._traces: OrderedDict[bytes, int] = OrderedDict()

    def take(self, trace_id: bytes, unix_ns: int) -> str | None:
        """
        Return why a chain is withheld; None: it is not, and is counted.

        Args:
            trace_id: Of the chain.
            unix_ns: When its effect ended.
        """
        if self._unix_ns is None:
            self._unix_ns = unix_ns
        elif unix_ns > self._unix_ns:
            refill = (unix_ns - self._unix_ns) * self._per_second
            self._tokens = min(self._full, self._tokens + refill)
            self._unix_ns = unix_ns
        count = self._traces.get(trace_id, 0)
        if count >= _CHAINS_PER_TRACE:
            return WITHHELD_TRACE
        if self._tokens < _NS_PER_SECOND:
            return WITHHELD_RATE
        self._tokens -= _NS_PER_SECOND
        self._traces[trace_id] = count + 1
        if len(self._traces) > _MAX_TRACES:
            self._traces.popitem(last=False)
        return None

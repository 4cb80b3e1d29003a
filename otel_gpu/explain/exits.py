"""Programs that ended lately. What is known of them is dropped a while after that."""

from collections import OrderedDict
from collections.abc import Iterator

from otel_gpu.enrich.identity.identities import ProcessKey

_MAX_ENDED = 4096


class ProcessExits:
    """Programs that ended, in the order of the stream; bounded."""

    def __init__(self) -> None:
        self._ended: OrderedDict[ProcessKey, tuple[int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ended)

    def add(self, program: ProcessKey, start_unix_ns: int, end_unix_ns: int) -> None:
        """Add a program that ended."""
        self._ended[program] = start_unix_ns, end_unix_ns

    def life_ns(self, program: ProcessKey) -> int | None:
        """Return the lifetime of a program that ended lately; None: it runs, or ended long ago."""
        ended = self._ended.get(program)
        return None if ended is None else ended[1] - ended[0]

    def take_over(self, unix_ns: int) -> Iterator[ProcessKey]:
        """Yield and drop programs that ended by then, and the oldest if there are too many."""
        while self._ended:
            program, (_, end_unix_ns) = next(iter(self._ended.items()))
            if end_unix_ns > unix_ns and len(self._ended) <= _MAX_ENDED:
                return
            del self._ended[program]
            yield program

"""What the time account of each process image was when it was last read, by kernel stack."""

from collections.abc import Iterator, Sequence

from otel_gpu import wire
from otel_gpu.decode.events import TimesKey
from otel_gpu.enrich.activities import ImageKey
from otel_gpu.enrich.kernel_waits import KernelWaits

MAX_ENTRIES = 65_536
"""Entries that are kept, of all images; further ones are left out."""

Kind = tuple[int, int, str]
"""State, context and reason."""


class TimeAccounts:
    """
    Keeps entries as they were read, as what a kernel stack means may be learnt after them; bounded.

    Args:
        waits: Says why a thread waits in a kernel stack.
    """

    def __init__(self, waits: KernelWaits) -> None:
        self._waits = waits
        self._entries: dict[ImageKey, dict[TimesKey, tuple[int, int]]] = {}
        self._size = 0

    def __contains__(self, image: ImageKey) -> bool:
        return image in self._entries

    def take(self, entries: Sequence[tuple[TimesKey, int, int]]) -> set[ImageKey]:
        """Take in a reading; the images of which something was kept."""
        images = set()
        for key, time_ns, count in entries:
            image = (key.pid, key.image_ktime_ns)
            known = self._entries.get(image, {})
            if key not in known:
                if self._size >= MAX_ENTRIES:
                    continue
                self._size += 1
                known = self._entries.setdefault(image, {})
            known[key] = (time_ns, count)
            images.add(image)
        return images

    def sums(self, image: ImageKey) -> Iterator[tuple[Kind, int, int]]:
        """Yield the time of an image in nanoseconds, and how often it was spent, by kind."""
        totals: dict[Kind, tuple[int, int]] = {}
        for key, (time_ns, count) in self._entries.get(image, {}).items():
            reason = ""
            if key.state == wire.STATE_BLOCKED:
                reason = self._waits.reason(key.kernel_stack, key.system_call, key.flags)
            kind = (key.state, key.context, reason)
            known_ns, known = totals.get(kind, (0, 0))
            totals[kind] = (known_ns + time_ns, known + count)
        for kind, (time_ns, count) in totals.items():
            yield kind, time_ns, count

    def forget(self, image: ImageKey) -> None:
        """Keep nothing more of an image."""
        self._size -= len(self._entries.pop(image, ()))

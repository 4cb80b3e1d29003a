"""Watches the agent's resident memory during a soak."""

import threading
from collections.abc import Sequence
from pathlib import Path
from statistics import median

MAX_RSS_BYTES = 100 << 20
FLAT = 0.02


class Watch:
    """The agent's resident memory, read twice a second."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.rss_bytes: list[int] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._end.wait(0.5):
            text = Path(f"/proc/{self._pid}/status").read_text(encoding="ascii")
            self.rss_bytes.append(int(text.partition("VmRSS:")[2].split()[0]) << 10)

    def close(self) -> None:
        self._end.set()
        self._thread.join()

    def describe(self) -> str:
        thirds = ", ".join(f"{value / (1 << 20):.1f}" for value in self.thirds())
        return f"median MiB by third: {thirds}; most {max(self.rss_bytes) / (1 << 20):.1f}"

    def thirds(self) -> Sequence[float]:
        size = len(self.rss_bytes) // 3
        return [median(self.rss_bytes[at * size : (at + 1) * size or None]) for at in range(3)]

    def judge(self, *, is_long: bool) -> None:
        """Check the memory: below the limit, and flat if the soak was long enough to fill all caches."""
        assert self.rss_bytes
        assert max(self.rss_bytes) < MAX_RSS_BYTES, self.describe()
        if is_long:
            _, middle, last = self.thirds()
            assert last <= middle * (1 + FLAT), self.describe()

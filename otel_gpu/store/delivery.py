"""How batches reach the journal: at once, or by a thread that waits for the disk."""

import threading
from collections.abc import Mapping

from otel_gpu.store.batch import Batch
from otel_gpu.store.journal import Journal


class Direct:
    """Writes in the caller's thread, so that a replay loses nothing, however slow the disk is."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def is_ready(self) -> bool:
        """Say whether a batch would be written at once."""
        return True

    def put(self, batch: Batch) -> None:
        """Take a batch; what cannot be written of it is counted."""
        self._journal.write(batch)

    def close(self, timeout_s: float) -> bool:  # noqa: ARG002 -- nothing waits here
        """Write what waits within the time, and end; False: not all was written."""
        self._journal.close()
        return not self._journal.lost.total()

    def lost(self) -> Mapping[str, int]:
        """Return the rows that could not be written, by reason."""
        return self._journal.lost.copy()


class Background(Direct):
    """
    Writes in a thread of its own, so that a capture never waits for a disk.

    One batch is written while the next is gathered.
    """

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self._changed = threading.Condition()
        self._waiting: list[Batch] = []
        self._is_writing = False
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="otel-gpu-store", daemon=True)
        self._thread.start()

    def is_ready(self) -> bool:
        """Say whether the batch before is written."""
        with self._changed:
            return not self._waiting and not self._is_writing

    def put(self, batch: Batch) -> None:
        """Take a batch; the thread writes it."""
        with self._changed:
            self._waiting.append(batch)
            self._changed.notify_all()

    def close(self, timeout_s: float) -> bool:
        """Write what waits within the time; False when not all was written."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        return not self._thread.is_alive() and not self._journal.lost.total()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_over)
                if not self._waiting:
                    break
                batch = self._waiting.pop(0)
                self._is_writing = True
            try:
                self._journal.write(batch)
            finally:
                with self._changed:
                    self._is_writing = False
                    self._changed.notify_all()
        self._journal.close()

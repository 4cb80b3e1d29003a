"""A journal that is written by a thread, which waits for the disk."""

import threading
from queue import Queue
from typing import Any

from otel_gpu.store.batch import Batch
from otel_gpu.store.journal import Journal


class Background(Journal):
    """Writes in a thread of its own; one batch is written while the next is gathered."""

    def __init__(self, *arguments: Any) -> None:  # noqa: ANN401 -- those of Journal
        super().__init__(*arguments)
        self._batches: Queue[Batch | None] = Queue()
        self._thread = threading.Thread(target=self._run, name="otel-gpu-store", daemon=True)
        self._thread.start()

    def is_ready(self) -> bool:
        """Say whether the batch before is written."""
        return not self._batches.unfinished_tasks

    def put(self, batch: Batch) -> None:
        """Take a batch; the thread writes it."""
        self._batches.put(batch)

    def close(self, timeout_s: float) -> bool:
        """Write what waits within the time; False when not all was written."""
        self._batches.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive() and not self.lost.total()

    def _run(self) -> None:
        for batch in iter(self._batches.get, None):
            super().put(batch)
            self._batches.task_done()
        super().close(0)

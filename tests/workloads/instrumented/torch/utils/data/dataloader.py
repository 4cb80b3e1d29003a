"""The seam of ``torch.utils.data.dataloader`` that every batch goes through (1.13 and newer)."""

import time


class _BaseDataLoaderIter:
    def __init__(self, loader):
        self._left = loader.batches
        self._waits_s = iter(loader.waits_s())

    def __iter__(self):
        return self

    def __next__(self):
        if not self._left:
            raise StopIteration
        self._left -= 1
        time.sleep(next(self._waits_s))
        return self._left


class DataLoader:
    def __init__(self, batches, wait_s, slow_s=()):
        self.batches = batches
        self.wait_s = wait_s
        self.slow_s = dict(slow_s)

    def waits_s(self):
        return (self.slow_s.get(batch, self.wait_s) for batch in range(self.batches))

    def __iter__(self):
        return _BaseDataLoaderIter(self)

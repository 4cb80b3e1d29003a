"""Device memory that calls allocated and freed."""

from collections.abc import Iterable
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.activities import Series
from otel_gpu.wire.probe_table import ApiLayer

_OF_MEMORY = (wire.FAMILY_ALLOCATE, wire.FAMILY_FREE, wire.FAMILY_UNMAP)


class CallBalance(NamedTuple):
    """Device memory that successful calls allocated and freed, none of them inside another."""

    allocations: int = 0
    allocated_bytes: int = 0
    frees: int = 0
    freed_bytes: int = 0

    @property
    def live_bytes(self) -> int:
        """What is left of it, at least 0: memory from before the capture can be freed in it."""
        return max(0, self.allocated_bytes - self.freed_bytes)


def balance_calls(series: Iterable[Series]) -> dict[tuple[int, ApiLayer], CallBalance]:
    """Return the balance by device (-1: not known) and layer of the calls."""
    found: dict[tuple[int, ApiLayer], list[int]] = {}
    for one in series:
        api = one.api
        if api is None or one.key.nested or one.key.status or api.family not in _OF_MEMORY:
            continue
        sums = found.setdefault((one.key.device, api.layer_name), [0, 0, 0, 0])
        at = 0 if api.family == wire.FAMILY_ALLOCATE else 2
        # Memory that an unmapping frees was released before, and that release is counted.
        sums[at] += one.aggregate.counted if api.family != wire.FAMILY_UNMAP else 0
        sums[at + 1] += one.aggregate.size_bytes
    return {key: CallBalance(*sums) for key, sums in found.items() if any(sums)}


def sum_taken(taken: Iterable[CallBalance]) -> CallBalance:
    """Return the sum of balances."""
    return CallBalance(*map(sum, zip(*taken, strict=True)))

"""When a program compiled, or started the workers of its data loader, by names in its trace."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from otel_gpu.state.traces.interval_sets import Spans, union
from otel_gpu.wire.device_activity import DeviceTrace


class Region(StrEnum):
    """Something that a program should not do in each step."""

    COMPILE = "compile"
    WORKERS = "workers"


# Run-time parts of torch.compile (its regions, the lookup of compiled code) are not compiling.
_NAMES: Final[Mapping[Region, re.Pattern[str]]] = {
    Region.COMPILE: re.compile(
        r"TorchDynamo/compile|\(dynamo_timed\)$|\b_?compile_inner$|torch/_dynamo/convert_frame\.py.*: _compile$"
    ),
    # Without persistent_workers for each epoch; a loader without workers spends some µs there.
    Region.WORKERS: re.compile(r"torch/utils/data/dataloader\.py\(\d+\): _get_iterator$"),
}


def find_regions(trace: DeviceTrace) -> Mapping[Region, Spans]:
    """Return when any thread was in each region; the number of spans is how often."""
    host = trace.host
    found = {}
    for region, pattern in _NAMES.items():
        names = {number for number, name in enumerate(trace.names) if pattern.search(name)}
        rows = [row for row, name in enumerate(host.names) if name in names] if names else []
        rows.sort(key=host.starts_ns.__getitem__)
        found[region] = union(
            (host.starts_ns[row], host.starts_ns[row] + host.durations_ns[row]) for row in rows
        )
    return found

"""Selects the exported symbols that carry probes: the spellings of the probe table's APIs."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.wire.probe_table import APIS, Api

_LIBRARIES = (
    ("libcudart", wire.LAYER_RUNTIME),
    ("libnccl", wire.LAYER_NCCL),
    ("libibverbs", wire.LAYER_VERBS),
)
_API_BY_NAME: Mapping[str, Api] = {api.name: api for api in APIS}

# Spellings by their wire number (``cuda_call_record.variant``).
VARIANTS: tuple[str, ...] = (
    *("", "_v2", "_v3", "_ptsz", "_ptds"),
    *("_v2_ptsz", "_v2_ptds", "_v3_ptsz", "_v3_ptds"),
    "Config",
)
_SPELLING = re.compile(
    r"^(?:((?:__)?cu\w+?)((?:_v[0-9]+)?(?:_ptsz|_ptds)?)|(nccl\w+?)(Config)?|(ibv_\w+))$"
)


class Probe(NamedTuple):
    """A symbol to probe: its offset in the file, and its API."""

    symbol: str
    file_offset: int
    api: Api
    variant: int


def layer_of_library(name: str) -> int:
    """Return the layer whose APIs a library exports, by its file name."""
    found = (layer for prefix, layer in _LIBRARIES if name.startswith(prefix))
    return next(found, wire.LAYER_DRIVER)


def api_of_symbol(symbol: str) -> tuple[Api, int] | None:
    """Return the API that an exported symbol implements, and its variant; None: not in the table."""
    match = _SPELLING.match(symbol)
    if match is None:
        return None
    name, variant = match[1] or match[3] or match[5], match[2] or match[4] or ""
    api = _API_BY_NAME.get(name)
    return (api, VARIANTS.index(variant)) if api is not None and variant in VARIANTS else None


def probes_of(symbols: Iterable[tuple[str, int]], library: str = "") -> list[Probe]:
    """
    Choose the functions to probe among a library's exported ones, as (name, file offset).

    Aliases share an offset; the shortest name wins, so that no call counts twice. A ``library``
    named as NCCL contains a CUDA runtime that only NCCL calls: it gets no probes. For functions
    that only return the current device see ``capture/probes/device_queries.py``.
    """
    is_nccl = layer_of_library(library) == wire.LAYER_NCCL
    chosen: dict[int, Probe] = {}
    for symbol, file_offset in sorted(symbols, key=lambda pair: (len(pair[0]), pair[0])):
        found = api_of_symbol(symbol)
        if found is None or file_offset in chosen or found[0].tells_device:
            continue
        if not is_nccl or found[0].layer == wire.LAYER_NCCL:
            chosen[file_offset] = Probe(symbol, file_offset, *found)
    return sorted(chosen.values(), key=lambda probe: probe.file_offset)

"""What the tool's numbers for operations mean."""

from collections.abc import Mapping

from otel_gpu import wire
from otel_gpu.probe_symbols import api_of_symbol
from otel_gpu.probe_table import Api

RUNTIME, HOST, DRIVER, GRAPH = 1, 3, 4, 8
SCHED_SWITCH, EXEC, EXIT, FORK = 1, 5, 6, 7
CUDA_SOURCES = (RUNTIME, DRIVER, GRAPH)
HOST_OPS = (SCHED_SWITCH, EXEC, EXIT, FORK)
"""Of the scheduler's, what is imported."""

_LAYERS = {RUNTIME: wire.LAYER_RUNTIME, GRAPH: wire.LAYER_RUNTIME, DRIVER: wire.LAYER_DRIVER}
# By source, numbered from 1 on. What the database's own table says wins; versions forgot to add
# to it.
_NUMBERED: Mapping[int, str] = {
    RUNTIME: (
        "cudaMalloc cudaFree cudaLaunchKernel cudaMemcpy cudaStreamSync cudaDeviceSync "
        "cudaMemcpyAsync cudaMallocManaged cudaMemcpy2D cudaMemcpy2DAsync cudaMemcpyPeer "
        "cudaMemcpyPeerAsync"
    ),
    HOST: (
        "sched_switch sched_wakeup mm_page_alloc oom_kill process_exec process_exit process_fork"
    ),
    DRIVER: ("cuLaunchKernel cuMemcpy cuMemcpyAsync cuCtxSynchronize cuMemAlloc cuMemAllocManaged"),
    5: "block_read block_write block_discard",
    6: "tcp_retransmit",
    7: "net_send net_recv",
    GRAPH: "graphBeginCapture graphEndCapture graphInstantiate graphLaunch",
}
_NAMES = {
    (source, op): name
    for source, names in _NUMBERED.items()
    for op, name in enumerate(names.split(), 1)
} | {
    (HOST, 10): "pod_restart",
    (HOST, 11): "pod_eviction",
    (HOST, 12): "pod_oom_kill",
    (HOST, 20): "mm_page_alloc_summary",
    (HOST, 21): "sched_switch_summary",
}
_SYMBOLS = {
    "cudaStreamSync": "cudaStreamSynchronize",
    "cudaDeviceSync": "cudaDeviceSynchronize",
    "graphBeginCapture": "cudaStreamBeginCapture",
    "graphEndCapture": "cudaStreamEndCapture",
    "graphInstantiate": "cudaGraphInstantiate",
    "graphLaunch": "cudaGraphLaunch",
}
_SIZED = frozenset({wire.FAMILY_ALLOCATE, wire.FAMILY_COPY})


class Ops:
    """Names operations and finds their APIs; ``named`` is what the database calls some of them."""

    def __init__(self, named: Mapping[tuple[int, int], str]) -> None:
        self._names = {**_NAMES, **named}
        self._apis = {key: _api(key[0], name) for key, name in self._names.items()}

    def name(self, source: object, op: object) -> str:
        """Return what to call an operation, whatever the numbers are."""
        if isinstance(source, int) and isinstance(op, int):
            return self._names.get((source, op)) or f"operation {op} of source {source}"
        return "operations without a number"

    def api(self, source: int, op: int) -> Api | None:
        """Return the API of a CUDA operation; None: it is not in our table."""
        return self._apis.get((source, op))


def has_size(api: Api) -> bool:
    """Say whether ``arg0`` of a call is its bytes: of a copy in two dimensions it is the width."""
    return api.family in _SIZED and not api.height_slot


def _api(source: int, name: str) -> Api | None:
    found = api_of_symbol(_SYMBOLS.get(name, name))
    return found[0] if found and found[0].layer == _LAYERS.get(source) else None

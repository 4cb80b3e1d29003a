"""What the tool's numbers for operations mean."""

from collections.abc import Mapping

from otel_gpu import wire
from otel_gpu.probe_table import Api, api_of_symbol

RUNTIME, HOST, DRIVER, GRAPH = 1, 3, 4, 8
SCHED_SWITCH, EXEC, EXIT, FORK = 1, 5, 6, 7
CUDA_SOURCES = (RUNTIME, DRIVER, GRAPH)
HOST_OPS = (SCHED_SWITCH, EXEC, EXIT, FORK)
"""Of the scheduler's, what is imported."""

_LAYERS = {
    RUNTIME: wire.LAYER_RUNTIME,
    GRAPH: wire.LAYER_RUNTIME,
    DRIVER: wire.LAYER_DRIVER,
}
# What the database's own table says wins; versions forgot to add to it.
_NAMES: Mapping[tuple[int, int], str] = {
    (RUNTIME, 1): "cudaMalloc",
    (RUNTIME, 2): "cudaFree",
    (RUNTIME, 3): "cudaLaunchKernel",
    (RUNTIME, 4): "cudaMemcpy",
    (RUNTIME, 5): "cudaStreamSync",
    (RUNTIME, 6): "cudaDeviceSync",
    (RUNTIME, 7): "cudaMemcpyAsync",
    (RUNTIME, 8): "cudaMallocManaged",
    (RUNTIME, 9): "cudaMemcpy2D",
    (RUNTIME, 10): "cudaMemcpy2DAsync",
    (RUNTIME, 11): "cudaMemcpyPeer",
    (RUNTIME, 12): "cudaMemcpyPeerAsync",
    (DRIVER, 1): "cuLaunchKernel",
    (DRIVER, 2): "cuMemcpy",
    (DRIVER, 3): "cuMemcpyAsync",
    (DRIVER, 4): "cuCtxSynchronize",
    (DRIVER, 5): "cuMemAlloc",
    (DRIVER, 6): "cuMemAllocManaged",
    (GRAPH, 1): "graphBeginCapture",
    (GRAPH, 2): "graphEndCapture",
    (GRAPH, 3): "graphInstantiate",
    (GRAPH, 4): "graphLaunch",
    (HOST, SCHED_SWITCH): "sched_switch",
    (HOST, 2): "sched_wakeup",
    (HOST, 3): "mm_page_alloc",
    (HOST, 4): "oom_kill",
    (HOST, EXEC): "process_exec",
    (HOST, EXIT): "process_exit",
    (HOST, FORK): "process_fork",
    (HOST, 10): "pod_restart",
    (HOST, 11): "pod_eviction",
    (HOST, 12): "pod_oom_kill",
    (HOST, 20): "mm_page_alloc_summary",
    (HOST, 21): "sched_switch_summary",
    (5, 1): "block_read",
    (5, 2): "block_write",
    (5, 3): "block_discard",
    (6, 1): "tcp_retransmit",
    (7, 1): "net_send",
    (7, 2): "net_recv",
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
    """
    Finds the API of an operation.

    Args:
        named: Names by source and operation, from the database.
    """

    def __init__(self, named: Mapping[tuple[int, int], str]) -> None:
        self._names = {**_NAMES, **named}
        self._apis: dict[tuple[int, int], Api | None] = {}

    def name(self, source: object, op: object) -> str:
        """Return what to call an operation, whatever the numbers are."""
        if isinstance(source, int) and isinstance(op, int):
            return self._names.get((source, op)) or f"operation {op} of source {source}"
        return "operations without a number"

    def api(self, source: int, op: int) -> Api | None:
        """Return the API of a CUDA operation; None: it is not in our table."""
        key = (source, op)
        if key not in self._apis:
            self._apis[key] = self._find(key)
        return self._apis[key]

    def _find(self, key: tuple[int, int]) -> Api | None:
        name = self._names.get(key, "")
        found = api_of_symbol(_SYMBOLS.get(name, name))
        if found is None or found[0].layer != _LAYERS.get(key[0]):
            return None
        return found[0]


def has_size(api: Api) -> bool:
    """Say whether ``arg0`` of a call is its bytes: of a copy in two dimensions it is the width."""
    return api.family in _SIZED and not api.height_slot

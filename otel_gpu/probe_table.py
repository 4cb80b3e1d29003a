"""
The probe table: every CUDA API that is watched, and how its arguments lie.

A row names the base symbol. Libraries export it in several spellings (`_v2` for a
changed signature, `_ptsz` and `_ptds` for per-thread default streams); each one
that a mapped library exports gets a probe, and all count as the same API.

Slots are argument positions from 1 as the platform's calling convention sees them:
a ``dim3`` passed by value takes two. Row numbers are on the wire and in recordings,
so they are never reused; new rows go at the end of their block.
"""

import functools
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from otel_gpu import wire


class Api(NamedTuple):
    """
    One CUDA API.

    ``number`` identifies it on the wire; ``family`` and ``layer`` are enumerators
    of ``bpf/events.h``; the ``*_slot`` fields say where its arguments are (0: none).
    """

    number: int
    name: str
    layer: int
    family: int
    size_slot: int = 0
    height_slot: int = 0
    stream_slot: int = 0
    address_slot: int = 0
    address_is_output: int = 0
    copy_kind_slot: int = 0
    fixed_copy_kind: int = wire.COPY_NONE
    launch_shape: int = wire.LAUNCH_NONE
    function_slot: int = 0
    device_slot: int = 0
    size_shift: int = 0
    stream_capture: int = wire.CAPTURE_NONE
    properties_slot: int = 0
    physical: int = wire.PHYSICAL_NONE
    size_form: int = wire.SIZE_OF_SLOTS

    @property
    def layer_name(self) -> str:
        """``runtime`` (libcudart) or ``driver`` (libcuda)."""
        return "runtime" if self.layer == wire.LAYER_RUNTIME else "driver"


def _api(layer: int, number: int, name: str, family: int, **slots: int) -> Api:
    # "size" is "size_slot".
    named = {slot if slot in Api._fields else f"{slot}_slot": n for slot, n in slots.items()}
    return Api(number, name, layer, family, **named)


_runtime = functools.partial(_api, wire.LAYER_RUNTIME)
_driver = functools.partial(_api, wire.LAYER_DRIVER)

_OUT1 = {"address": 1, "address_is_output": 1}
_DIM3 = {"launch_shape": wire.LAUNCH_DIM3, "function": 1, "stream": 8}
_SCALARS = {"launch_shape": wire.LAUNCH_SCALARS, "function": 1, "stream": 9}
_CONFIG = {"launch_shape": wire.LAUNCH_CONFIG, "function": 2}
_HTOD = {"fixed_copy_kind": wire.COPY_HOST_TO_DEVICE}
_DTOH = {"fixed_copy_kind": wire.COPY_DEVICE_TO_HOST}
_DTOD = {"fixed_copy_kind": wire.COPY_DEVICE_TO_DEVICE}
_BEGINS = {"stream": 1, "stream_capture": wire.CAPTURE_BEGINS}
_ENDS = {"stream": 1, "stream_capture": wire.CAPTURE_ENDS}
_ANY = {"fixed_copy_kind": wire.COPY_DEFAULT}
_2D = {"address": 1, "size": 5, "height": 6, "copy_kind": 7}
_CREATE = {"physical": wire.PHYSICAL_CREATE, **_OUT1}
_IMPORT = {"physical": wire.PHYSICAL_IMPORT, **_OUT1}
_RETAIN = {"physical": wire.PHYSICAL_RETAIN, **_OUT1}
_MAP = {"physical": wire.PHYSICAL_MAP}
_BY_NAME = {"function": 3, **_OUT1}
_ALIAS = {"function": 2, **_OUT1}
_EXTENT = {"size": 2, "size_form": wire.SIZE_OF_EXTENT, **_OUT1}
_ARRAY = {"size": 3, "size_form": wire.SIZE_OF_ARRAY, **_OUT1}
_ARRAY_3D = {"size": 3, "size_form": wire.SIZE_OF_ARRAY_3D, **_OUT1}
_COPY_3D = {"size": 1, "size_form": wire.SIZE_OF_COPY_3D}
# The stream is the last argument, whose place differs between versions of CUDA.
_LIST = {"size": 3, "size_form": wire.SIZE_OF_LIST, **_ANY}
_PREFETCH = {"address": 1, "size": 2}
_CU_COPY_2D = {"size": 1, "size_form": wire.SIZE_OF_CU_COPY_2D}
_CU_COPY_3D = {"size": 1, "size_form": wire.SIZE_OF_CU_COPY_3D}
_CU_ARRAY = {"size": 2, "size_form": wire.SIZE_OF_CU_ARRAY, **_OUT1}
_CU_ARRAY_3D = {"size": 2, "size_form": wire.SIZE_OF_CU_ARRAY_3D, **_OUT1}

APIS: tuple[Api, ...] = (
    # The runtime has the numbers below 100,
    _runtime(1, "cudaLaunchKernel", wire.FAMILY_LAUNCH, **_DIM3),
    _runtime(2, "cudaLaunchKernelExC", wire.FAMILY_LAUNCH, **_CONFIG),
    _runtime(3, "cudaLaunchCooperativeKernel", wire.FAMILY_LAUNCH, **_DIM3),
    _runtime(4, "cudaGraphLaunch", wire.FAMILY_GRAPH_LAUNCH, function=1, stream=2),
    _runtime(5, "cudaStreamSynchronize", wire.FAMILY_SYNCHRONIZE, stream=1),
    _runtime(6, "cudaDeviceSynchronize", wire.FAMILY_SYNCHRONIZE),
    _runtime(7, "cudaEventSynchronize", wire.FAMILY_SYNCHRONIZE),
    _runtime(8, "cudaStreamWaitEvent", wire.FAMILY_SYNCHRONIZE, stream=1),
    _runtime(10, "cudaMalloc", wire.FAMILY_ALLOCATE, size=2, **_OUT1),
    _runtime(11, "cudaMallocManaged", wire.FAMILY_ALLOCATE, size=2, **_OUT1),
    _runtime(12, "cudaMallocHost", wire.FAMILY_HOST_ALLOCATE, size=2, **_OUT1),
    _runtime(13, "cudaHostAlloc", wire.FAMILY_HOST_ALLOCATE, size=2, **_OUT1),
    _runtime(14, "cudaMallocPitch", wire.FAMILY_ALLOCATE, size=3, height=4, **_OUT1),
    _runtime(15, "cudaMallocAsync", wire.FAMILY_ALLOCATE, size=2, stream=3, **_OUT1),
    _runtime(16, "cudaMallocFromPoolAsync", wire.FAMILY_ALLOCATE, size=2, stream=4, **_OUT1),
    _runtime(17, "cudaFree", wire.FAMILY_FREE, address=1),
    _runtime(18, "cudaFreeHost", wire.FAMILY_HOST_FREE, address=1),
    _runtime(19, "cudaFreeAsync", wire.FAMILY_FREE, address=1, stream=2),
    _runtime(20, "cudaHostRegister", wire.FAMILY_OTHER, address=1, size=2),
    _runtime(21, "cudaMalloc3D", wire.FAMILY_ALLOCATE, **_EXTENT),
    _runtime(22, "cudaMallocArray", wire.FAMILY_ALLOCATE, **_ARRAY),
    _runtime(23, "cudaMalloc3DArray", wire.FAMILY_ALLOCATE, **_ARRAY_3D),
    _runtime(24, "cudaFreeArray", wire.FAMILY_FREE, address=1),
    _runtime(25, "cudaMemPrefetchAsync", wire.FAMILY_OTHER, **_PREFETCH),
    _runtime(30, "cudaMemcpy", wire.FAMILY_COPY, address=1, size=3, copy_kind=4),
    _runtime(31, "cudaMemcpyAsync", wire.FAMILY_COPY, address=1, size=3, copy_kind=4, stream=5),
    _runtime(32, "cudaMemcpy2D", wire.FAMILY_COPY, **_2D),
    _runtime(33, "cudaMemcpy2DAsync", wire.FAMILY_COPY, stream=8, **_2D),
    _runtime(34, "cudaMemcpyPeer", wire.FAMILY_COPY, address=1, size=5, **_DTOD),
    _runtime(35, "cudaMemcpyPeerAsync", wire.FAMILY_COPY, address=1, size=5, stream=6, **_DTOD),
    _runtime(36, "cudaMemset", wire.FAMILY_MEMSET, address=1, size=3),
    _runtime(37, "cudaMemsetAsync", wire.FAMILY_MEMSET, address=1, size=3, stream=4),
    _runtime(38, "cudaMemcpy3D", wire.FAMILY_COPY, **_COPY_3D),
    _runtime(39, "cudaMemcpy3DAsync", wire.FAMILY_COPY, stream=2, **_COPY_3D),
    _runtime(40, "cudaStreamBeginCapture", wire.FAMILY_GRAPH, **_BEGINS),
    _runtime(41, "cudaStreamEndCapture", wire.FAMILY_GRAPH, **_ENDS),
    _runtime(42, "cudaGraphInstantiate", wire.FAMILY_GRAPH),
    _runtime(43, "cudaGraphInstantiateWithFlags", wire.FAMILY_GRAPH),
    _runtime(44, "cudaGraphInstantiateWithParams", wire.FAMILY_GRAPH),
    _runtime(45, "cudaStreamBeginCaptureToGraph", wire.FAMILY_GRAPH, **_BEGINS),
    _runtime(50, "cudaStreamCreate", wire.FAMILY_STREAM, **_OUT1),
    _runtime(51, "cudaStreamCreateWithFlags", wire.FAMILY_STREAM, **_OUT1),
    _runtime(52, "cudaStreamCreateWithPriority", wire.FAMILY_STREAM, **_OUT1),
    _runtime(53, "cudaStreamDestroy", wire.FAMILY_STREAM, stream=1),
    _runtime(54, "cudaEventCreate", wire.FAMILY_EVENT),
    _runtime(55, "cudaEventCreateWithFlags", wire.FAMILY_EVENT),
    _runtime(56, "cudaEventDestroy", wire.FAMILY_EVENT),
    _runtime(57, "cudaEventRecord", wire.FAMILY_EVENT, stream=2),
    _runtime(58, "cudaEventRecordWithFlags", wire.FAMILY_EVENT, stream=2),
    _runtime(60, "cudaSetDevice", wire.FAMILY_SET_DEVICE, device=1),
    _runtime(61, "cudaGetDevice", wire.FAMILY_GET_DEVICE, device=1),
    _runtime(62, "cudaGetDeviceProperties", wire.FAMILY_DEVICE_PROPERTIES, address=1, device=2),
    _runtime(63, "cudaMemGetInfo", wire.FAMILY_MEMORY_INFO, address=1, function=2),
    _runtime(70, "cudaGetKernel", wire.FAMILY_KERNEL_ALIAS, **_ALIAS),
    _runtime(71, "__cudaGetKernel", wire.FAMILY_KERNEL_ALIAS, **_ALIAS),
    _runtime(72, "cudaGetFuncBySymbol", wire.FAMILY_KERNEL_ALIAS, **_ALIAS),
    _runtime(73, "cudaLibraryGetKernel", wire.FAMILY_KERNEL, **_BY_NAME),
    _runtime(80, "cudaMemcpyBatchAsync", wire.FAMILY_COPY, **_LIST),
    _runtime(81, "cudaStreamQuery", wire.FAMILY_QUERY, stream=1),
    _runtime(82, "cudaEventQuery", wire.FAMILY_QUERY),
    _runtime(83, "cudaEventElapsedTime", wire.FAMILY_ELAPSED_TIME, address=1),
    _runtime(84, "cudaLaunchHostFunc", wire.FAMILY_OTHER, stream=1),
    _runtime(85, "cudaStreamAddCallback", wire.FAMILY_OTHER, stream=1),
    # and the driver those from 100.
    _driver(100, "cuLaunchKernel", wire.FAMILY_LAUNCH, **_SCALARS),
    _driver(101, "cuLaunchKernelEx", wire.FAMILY_LAUNCH, **_CONFIG),
    _driver(102, "cuLaunchCooperativeKernel", wire.FAMILY_LAUNCH, **_SCALARS),
    _driver(103, "cuGraphLaunch", wire.FAMILY_GRAPH_LAUNCH, function=1, stream=2),
    _driver(104, "cuStreamSynchronize", wire.FAMILY_SYNCHRONIZE, stream=1),
    _driver(105, "cuCtxSynchronize", wire.FAMILY_SYNCHRONIZE),
    _driver(106, "cuEventSynchronize", wire.FAMILY_SYNCHRONIZE),
    _driver(107, "cuStreamWaitEvent", wire.FAMILY_SYNCHRONIZE, stream=1),
    _driver(110, "cuMemAlloc", wire.FAMILY_ALLOCATE, size=2, **_OUT1),
    _driver(111, "cuMemAllocManaged", wire.FAMILY_ALLOCATE, size=2, **_OUT1),
    _driver(112, "cuMemAllocHost", wire.FAMILY_HOST_ALLOCATE, size=2, **_OUT1),
    _driver(113, "cuMemHostAlloc", wire.FAMILY_HOST_ALLOCATE, size=2, **_OUT1),
    _driver(114, "cuMemAllocPitch", wire.FAMILY_ALLOCATE, size=3, height=4, **_OUT1),
    _driver(115, "cuMemAllocAsync", wire.FAMILY_ALLOCATE, size=2, stream=3, **_OUT1),
    _driver(116, "cuMemAllocFromPoolAsync", wire.FAMILY_ALLOCATE, size=2, stream=4, **_OUT1),
    _driver(117, "cuMemFree", wire.FAMILY_FREE, address=1),
    _driver(118, "cuMemFreeHost", wire.FAMILY_HOST_FREE, address=1),
    _driver(119, "cuMemFreeAsync", wire.FAMILY_FREE, address=1, stream=2),
    _driver(120, "cuMemCreate", wire.FAMILY_ALLOCATE, size=2, properties=3, **_CREATE),
    _driver(121, "cuMemRelease", wire.FAMILY_FREE, address=1, physical=wire.PHYSICAL_RELEASE),
    _driver(122, "cuMemMap", wire.FAMILY_OTHER, address=1, size=2, function=4, **_MAP),
    _driver(123, "cuMemUnmap", wire.FAMILY_UNMAP, address=1, size=2, physical=wire.PHYSICAL_UNMAP),
    _driver(124, "cuMemRetainAllocationHandle", wire.FAMILY_OTHER, function=2, **_RETAIN),
    _driver(125, "cuMemImportFromShareableHandle", wire.FAMILY_OTHER, **_IMPORT),
    _driver(126, "cuMemSetAccess", wire.FAMILY_OTHER, address=1, size=2),
    _driver(127, "cuMemPrefetchAsync", wire.FAMILY_OTHER, **_PREFETCH),
    _driver(130, "cuMemcpyHtoD", wire.FAMILY_COPY, address=1, size=3, **_HTOD),
    _driver(131, "cuMemcpyDtoH", wire.FAMILY_COPY, address=1, size=3, **_DTOH),
    _driver(132, "cuMemcpyDtoD", wire.FAMILY_COPY, address=1, size=3, **_DTOD),
    _driver(133, "cuMemcpyHtoDAsync", wire.FAMILY_COPY, address=1, size=3, stream=4, **_HTOD),
    _driver(134, "cuMemcpyDtoHAsync", wire.FAMILY_COPY, address=1, size=3, stream=4, **_DTOH),
    _driver(135, "cuMemcpyDtoDAsync", wire.FAMILY_COPY, address=1, size=3, stream=4, **_DTOD),
    _driver(136, "cuMemcpy", wire.FAMILY_COPY, address=1, size=3, **_ANY),
    _driver(137, "cuMemcpyAsync", wire.FAMILY_COPY, address=1, size=3, stream=4, **_ANY),
    _driver(138, "cuMemcpyPeer", wire.FAMILY_COPY, address=1, size=5, **_DTOD),
    _driver(139, "cuMemcpyPeerAsync", wire.FAMILY_COPY, address=1, size=5, stream=6, **_DTOD),
    _driver(140, "cuMemsetD8", wire.FAMILY_MEMSET, address=1, size=3),
    _driver(141, "cuMemsetD16", wire.FAMILY_MEMSET, address=1, size=3, size_shift=1),
    _driver(142, "cuMemsetD32", wire.FAMILY_MEMSET, address=1, size=3, size_shift=2),
    _driver(143, "cuMemsetD8Async", wire.FAMILY_MEMSET, address=1, size=3, stream=4),
    _driver(144, "cuMemsetD16Async", wire.FAMILY_MEMSET, address=1, size=3, stream=4, size_shift=1),
    _driver(145, "cuMemsetD32Async", wire.FAMILY_MEMSET, address=1, size=3, stream=4, size_shift=2),
    _driver(146, "cuMemcpy3D", wire.FAMILY_COPY, **_CU_COPY_3D),
    _driver(147, "cuMemcpy3DAsync", wire.FAMILY_COPY, stream=2, **_CU_COPY_3D),
    _driver(148, "cuMemcpyBatchAsync", wire.FAMILY_COPY, **_LIST),
    _driver(150, "cuStreamBeginCapture", wire.FAMILY_GRAPH, **_BEGINS),
    _driver(151, "cuStreamEndCapture", wire.FAMILY_GRAPH, **_ENDS),
    _driver(152, "cuGraphInstantiate", wire.FAMILY_GRAPH),
    _driver(153, "cuGraphInstantiateWithFlags", wire.FAMILY_GRAPH),
    _driver(154, "cuGraphInstantiateWithParams", wire.FAMILY_GRAPH),
    _driver(155, "cuStreamBeginCaptureToGraph", wire.FAMILY_GRAPH, **_BEGINS),
    _driver(160, "cuStreamCreate", wire.FAMILY_STREAM, **_OUT1),
    _driver(161, "cuStreamCreateWithPriority", wire.FAMILY_STREAM, **_OUT1),
    _driver(162, "cuStreamDestroy", wire.FAMILY_STREAM, stream=1),
    _driver(163, "cuEventCreate", wire.FAMILY_EVENT),
    _driver(164, "cuEventDestroy", wire.FAMILY_EVENT),
    _driver(165, "cuEventRecord", wire.FAMILY_EVENT, stream=2),
    _driver(166, "cuEventRecordWithFlags", wire.FAMILY_EVENT, stream=2),
    _driver(167, "cuStreamQuery", wire.FAMILY_QUERY, stream=1),
    _driver(168, "cuEventQuery", wire.FAMILY_QUERY),
    _driver(169, "cuEventElapsedTime", wire.FAMILY_ELAPSED_TIME, address=1),
    _driver(170, "cuCtxSetCurrent", wire.FAMILY_OTHER),
    _driver(171, "cuDeviceGetUuid", wire.FAMILY_DEVICE_UUID, address=1, device=2),
    _driver(172, "cuMemGetInfo", wire.FAMILY_MEMORY_INFO, address=1, function=2),
    _driver(173, "cuLaunchHostFunc", wire.FAMILY_OTHER, stream=1),
    _driver(174, "cuStreamAddCallback", wire.FAMILY_OTHER, stream=1),
    _driver(175, "cuArrayCreate", wire.FAMILY_ALLOCATE, **_CU_ARRAY),
    _driver(176, "cuArray3DCreate", wire.FAMILY_ALLOCATE, **_CU_ARRAY_3D),
    _driver(177, "cuArrayDestroy", wire.FAMILY_FREE, address=1),
    _driver(178, "cuMemcpy2D", wire.FAMILY_COPY, **_CU_COPY_2D),
    _driver(179, "cuMemcpy2DUnaligned", wire.FAMILY_COPY, **_CU_COPY_2D),
    _driver(180, "cuModuleGetFunction", wire.FAMILY_KERNEL, **_BY_NAME),
    _driver(181, "cuLibraryGetKernel", wire.FAMILY_KERNEL, **_BY_NAME),
    _driver(182, "cuKernelGetFunction", wire.FAMILY_KERNEL_ALIAS, **_ALIAS),
    _driver(183, "cuMemcpy2DAsync", wire.FAMILY_COPY, stream=2, **_CU_COPY_2D),
)

API_BY_NUMBER: Mapping[int, Api] = {api.number: api for api in APIS}
_API_BY_NAME: Mapping[str, Api] = {api.name: api for api in APIS}

# Spellings in the order of their wire number (``cuda_call_record.variant``).
VARIANTS: tuple[str, ...] = (
    *("", "_v2", "_v3", "_ptsz", "_ptds"),
    *("_v2_ptsz", "_v2_ptds", "_v3_ptsz", "_v3_ptds"),
)
_FIRST_DRIVER_API = 100
_SPELLING = re.compile(r"^((?:__)?cu\w+?)((?:_v[0-9]+)?(?:_ptsz|_ptds)?)$")


class Probe(NamedTuple):
    """A symbol to probe: where it is in its file, and which API it is."""

    symbol: str
    file_offset: int
    api: Api
    variant: int


def unknown_api(number: int) -> Api:
    """Return an API that is not in this table, from a recording of a later version."""
    layer = wire.LAYER_DRIVER if number >= _FIRST_DRIVER_API else wire.LAYER_RUNTIME
    return Api(number, f"unknown_api_{number}", layer, wire.FAMILY_OTHER)


def api_of_symbol(symbol: str) -> tuple[Api, int] | None:
    """Return the API that an exported symbol implements and its variant number; None: no row's."""
    match = _SPELLING.match(symbol)
    api = _API_BY_NAME.get(match[1]) if match else None
    if match is None or api is None or match[2] not in VARIANTS:
        return None
    return api, VARIANTS.index(match[2])


def probes_of(symbols: Iterable[tuple[str, int]]) -> list[Probe]:
    """
    Choose which of a library's exported functions, as (name, file offset), to probe.

    Aliases share an offset; the shortest name wins, so nothing counts twice.
    """
    chosen: dict[int, Probe] = {}
    for symbol, file_offset in sorted(symbols, key=lambda pair: (len(pair[0]), pair[0])):
        found = api_of_symbol(symbol)
        if found is not None and file_offset not in chosen:
            chosen[file_offset] = Probe(symbol, file_offset, *found)
    return sorted(chosen.values(), key=lambda probe: probe.file_offset)

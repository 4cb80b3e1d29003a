"""
The probe table: the watched APIs of CUDA, NCCL and verbs, and the positions of their arguments.

A row names the base symbol. Libraries export it in several spellings: ``_v2`` for a changed
signature, ``_ptsz`` and ``_ptds`` for per-thread default streams, ``Config`` for one more
argument. Each exported spelling gets a probe, and all count as the same API.

Slots are argument positions from 1 in the platform's calling convention: a ``dim3`` passed by
value takes two. Row numbers are on the wire and in recordings, so they are never reused; new
rows go at the end of their block.
"""

import functools
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from otel_gpu import wire


class ApiLayer(StrEnum):
    """The library that has an API."""

    RUNTIME = "runtime"
    """libcudart."""
    DRIVER = "driver"
    """libcuda."""
    NCCL = "nccl"
    VERBS = "verbs"
    """libibverbs."""


class Api(NamedTuple):
    """
    One API.

    ``number`` identifies it on the wire. ``family`` and ``layer`` are enumerators of
    ``bpf/events.h``. The ``*_slot`` fields are argument positions; 0: none.
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
    stream_work: int = wire.WORK_NONE
    nccl: int = wire.NCCL_OTHER
    operation: int = wire.COLLECTIVE_NONE
    communicator_slot: int = 0
    datatype_slot: int = 0
    reduction_slot: int = 0
    root_slot: int = 0
    returns_pointer: int = 0

    @property
    def preload(self) -> int:
        """``counted_by_preload``, as a field of ``struct api_descriptor``."""
        return int(self.counted_by_preload)

    @property
    def layer_name(self) -> ApiLayer:
        """Its layer; the driver for unknown ones."""
        return LAYER_NAMES.get(self.layer, ApiLayer.DRIVER)

    @property
    def tells_device(self) -> bool:
        """Whether it only returns the current device, and is not counted as a call."""
        return self.family == wire.FAMILY_GET_DEVICE

    @property
    def counted_by_preload(self) -> bool:
        """
        Whether the preload library counts it in place of a probe.

        For other APIs the kernel side needs more than the duration.
        """
        return (
            self.layer in (wire.LAYER_RUNTIME, wire.LAYER_DRIVER)
            and self.family in _PRELOAD_FAMILIES
            and self.size_form == wire.SIZE_OF_SLOTS
        )


_PRELOAD_FAMILIES = frozenset(
    {
        *(wire.FAMILY_LAUNCH, wire.FAMILY_GRAPH_LAUNCH, wire.FAMILY_SYNCHRONIZE),
        *(wire.FAMILY_COPY, wire.FAMILY_MEMSET, wire.FAMILY_EVENT, wire.FAMILY_QUERY),
        *(wire.FAMILY_SET_DEVICE, wire.FAMILY_CONTEXT),
    }
)

LAYER_NAMES: Mapping[int, ApiLayer] = {
    wire.LAYER_RUNTIME: ApiLayer.RUNTIME,
    wire.LAYER_DRIVER: ApiLayer.DRIVER,
    wire.LAYER_NCCL: ApiLayer.NCCL,
    wire.LAYER_VERBS: ApiLayer.VERBS,
}


def _api(layer: int, number: int, name: str, family: int, **slots: int) -> Api:
    # ``size=1`` sets ``size_slot``.
    named = {slot if slot in Api._fields else f"{slot}_slot": n for slot, n in slots.items()}
    return Api(number, name, layer=layer, family=family, **named)


_runtime = functools.partial(_api, wire.LAYER_RUNTIME)
_driver = functools.partial(_api, wire.LAYER_DRIVER)
_nccl = functools.partial(_api, wire.LAYER_NCCL, family=wire.FAMILY_COMMUNICATOR)


def _collective(number: int, name: str, operation: int, **slots: int) -> Api:
    # ``size`` is the position of the number of elements.
    called = {"nccl": wire.NCCL_COLLECTIVE, "operation": operation}
    return _api(
        wire.LAYER_NCCL, number, name=name, family=wire.FAMILY_COLLECTIVE, **called, **slots
    )


_verbs = functools.partial(_api, wire.LAYER_VERBS)

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
# The stream is the last argument, whose position differs between versions of CUDA.
_LIST = {"size": 3, "size_form": wire.SIZE_OF_LIST, **_ANY}
_PREFETCH = {"address": 1, "size": 2}
_CU_COPY_2D = {"size": 1, "size_form": wire.SIZE_OF_CU_COPY_2D}
_CU_COPY_3D = {"size": 1, "size_form": wire.SIZE_OF_CU_COPY_3D}
_CU_ARRAY = {"size": 2, "size_form": wire.SIZE_OF_CU_ARRAY, **_OUT1}
_CU_ARRAY_3D = {"size": 2, "size_form": wire.SIZE_OF_CU_ARRAY_3D, **_OUT1}
# The position of the event is ``function_slot``.
_RECORD = {"function": 1, "stream": 2, "stream_work": wire.WORK_RECORDED}
_WAIT_EVENT = {"stream": 1, "function": 2, "stream_work": wire.WORK_AWAITED}
_EVENT_OVER = {"function": 1, "stream_work": wire.WORK_EVENT_OVER}
_STREAM_OVER = {"stream": 1, "stream_work": wire.WORK_STREAM_OVER}
_DEVICE_OVER = {"stream_work": wire.WORK_DEVICE_OVER}
_EVENT_GONE = {"function": 1, "stream_work": wire.WORK_EVENT_GONE}
_STREAM_GONE = {"stream": 1, "stream_work": wire.WORK_STREAM_GONE}
_REDUCES = {"size": 3, "datatype": 4, "reduction": 5, "communicator": 6, "stream": 7}
_ROOTED = {"size": 3, "datatype": 4, "root": 5, "communicator": 6, "stream": 7}
_GATHERS = {"size": 3, "datatype": 4, "communicator": 5, "stream": 6}
_TO_PEER = {"size": 2, "datatype": 3, "root": 4, "communicator": 5, "stream": 6}
ASYNC_EVENT_API = 242
"""The number of the call that waits for what a network adapter has to say."""
_REGISTER = {"size": 3, "returns_pointer": 1}

APIS: tuple[Api, ...] = (
    # The runtime has the numbers below 100,
    _runtime(1, "cudaLaunchKernel", wire.FAMILY_LAUNCH, **_DIM3),
    _runtime(2, "cudaLaunchKernelExC", wire.FAMILY_LAUNCH, **_CONFIG),
    _runtime(3, "cudaLaunchCooperativeKernel", wire.FAMILY_LAUNCH, **_DIM3),
    _runtime(4, "cudaGraphLaunch", wire.FAMILY_GRAPH_LAUNCH, function=1, stream=2),
    _runtime(5, "cudaStreamSynchronize", wire.FAMILY_SYNCHRONIZE, **_STREAM_OVER),
    _runtime(6, "cudaDeviceSynchronize", wire.FAMILY_SYNCHRONIZE, **_DEVICE_OVER),
    _runtime(7, "cudaEventSynchronize", wire.FAMILY_SYNCHRONIZE, **_EVENT_OVER),
    _runtime(8, "cudaStreamWaitEvent", wire.FAMILY_SYNCHRONIZE, **_WAIT_EVENT),
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
    _runtime(53, "cudaStreamDestroy", wire.FAMILY_STREAM, **_STREAM_GONE),
    _runtime(54, "cudaEventCreate", wire.FAMILY_EVENT),
    _runtime(55, "cudaEventCreateWithFlags", wire.FAMILY_EVENT),
    _runtime(56, "cudaEventDestroy", wire.FAMILY_EVENT, **_EVENT_GONE),
    _runtime(57, "cudaEventRecord", wire.FAMILY_EVENT, **_RECORD),
    _runtime(58, "cudaEventRecordWithFlags", wire.FAMILY_EVENT, **_RECORD),
    _runtime(60, "cudaSetDevice", wire.FAMILY_SET_DEVICE, device=1),
    _runtime(61, "cudaGetDevice", wire.FAMILY_GET_DEVICE),
    _runtime(62, "cudaGetDeviceProperties", wire.FAMILY_DEVICE_PROPERTIES, address=1, device=2),
    _runtime(63, "cudaMemGetInfo", wire.FAMILY_MEMORY_INFO, address=1, function=2),
    _runtime(70, "cudaGetKernel", wire.FAMILY_KERNEL_ALIAS, **_ALIAS),
    _runtime(71, "__cudaGetKernel", wire.FAMILY_KERNEL_ALIAS, **_ALIAS),
    _runtime(72, "cudaGetFuncBySymbol", wire.FAMILY_KERNEL_ALIAS, **_ALIAS),
    _runtime(73, "cudaLibraryGetKernel", wire.FAMILY_KERNEL, **_BY_NAME),
    _runtime(74, "cudaLibraryLoadData", wire.FAMILY_PREPARE),
    _runtime(80, "cudaMemcpyBatchAsync", wire.FAMILY_COPY, **_LIST),
    _runtime(81, "cudaStreamQuery", wire.FAMILY_QUERY, **_STREAM_OVER),
    _runtime(82, "cudaEventQuery", wire.FAMILY_QUERY, **_EVENT_OVER),
    _runtime(83, "cudaEventElapsedTime", wire.FAMILY_ELAPSED_TIME, address=1),
    _runtime(84, "cudaLaunchHostFunc", wire.FAMILY_OTHER, stream=1),
    _runtime(85, "cudaStreamAddCallback", wire.FAMILY_OTHER, stream=1),
    # and the driver those from 100.
    _driver(100, "cuLaunchKernel", wire.FAMILY_LAUNCH, **_SCALARS),
    _driver(101, "cuLaunchKernelEx", wire.FAMILY_LAUNCH, **_CONFIG),
    _driver(102, "cuLaunchCooperativeKernel", wire.FAMILY_LAUNCH, **_SCALARS),
    _driver(103, "cuGraphLaunch", wire.FAMILY_GRAPH_LAUNCH, function=1, stream=2),
    _driver(104, "cuStreamSynchronize", wire.FAMILY_SYNCHRONIZE, **_STREAM_OVER),
    _driver(105, "cuCtxSynchronize", wire.FAMILY_SYNCHRONIZE, **_DEVICE_OVER),
    _driver(106, "cuEventSynchronize", wire.FAMILY_SYNCHRONIZE, **_EVENT_OVER),
    _driver(107, "cuStreamWaitEvent", wire.FAMILY_SYNCHRONIZE, **_WAIT_EVENT),
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
    _driver(162, "cuStreamDestroy", wire.FAMILY_STREAM, **_STREAM_GONE),
    _driver(163, "cuEventCreate", wire.FAMILY_EVENT),
    _driver(164, "cuEventDestroy", wire.FAMILY_EVENT, **_EVENT_GONE),
    _driver(165, "cuEventRecord", wire.FAMILY_EVENT, **_RECORD),
    _driver(166, "cuEventRecordWithFlags", wire.FAMILY_EVENT, **_RECORD),
    _driver(167, "cuStreamQuery", wire.FAMILY_QUERY, **_STREAM_OVER),
    _driver(168, "cuEventQuery", wire.FAMILY_QUERY, **_EVENT_OVER),
    _driver(169, "cuEventElapsedTime", wire.FAMILY_ELAPSED_TIME, address=1),
    _driver(170, "cuCtxSetCurrent", wire.FAMILY_CONTEXT),
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
    _driver(184, "cuInit", wire.FAMILY_PREPARE),
    _driver(185, "cuDevicePrimaryCtxRetain", wire.FAMILY_PREPARE),
    _driver(186, "cuCtxCreate", wire.FAMILY_CONTEXT),
    _driver(187, "cuModuleLoad", wire.FAMILY_PREPARE),
    _driver(188, "cuModuleLoadData", wire.FAMILY_PREPARE),
    _driver(189, "cuModuleLoadDataEx", wire.FAMILY_PREPARE),
    _driver(190, "cuLibraryLoadData", wire.FAMILY_PREPARE),
    _driver(191, "cuLinkComplete", wire.FAMILY_PREPARE),
    # NCCL has those from 192.
    _collective(192, "ncclAllReduce", wire.COLLECTIVE_ALL_REDUCE, **_REDUCES),
    _collective(193, "ncclBroadcast", wire.COLLECTIVE_BROADCAST, **_ROOTED),
    _collective(194, "ncclBcast", wire.COLLECTIVE_BROADCAST, **_TO_PEER),
    _collective(
        195,
        "ncclReduce",
        wire.COLLECTIVE_REDUCE,
        root=6,
        **{**_REDUCES, "communicator": 7, "stream": 8},
    ),
    _collective(196, "ncclAllGather", wire.COLLECTIVE_ALL_GATHER, **_GATHERS),
    _collective(197, "ncclReduceScatter", wire.COLLECTIVE_REDUCE_SCATTER, **_REDUCES),
    _collective(198, "ncclAlltoAll", wire.COLLECTIVE_ALL_TO_ALL, **_GATHERS),
    _collective(199, "ncclGather", wire.COLLECTIVE_GATHER, **_ROOTED),
    _collective(200, "ncclScatter", wire.COLLECTIVE_SCATTER, **_ROOTED),
    _collective(201, "ncclSend", wire.COLLECTIVE_SEND, **_TO_PEER),
    _collective(202, "ncclRecv", wire.COLLECTIVE_RECEIVE, **_TO_PEER),
    _nccl(203, "ncclGroupEnd", family=wire.FAMILY_COLLECTIVE, nccl=wire.NCCL_END_GROUP),
    _nccl(204, "ncclGetUniqueId", nccl=wire.NCCL_GET_ID),
    _nccl(205, "ncclCommInitRank", nccl=wire.NCCL_INIT_RANK),
    _nccl(206, "ncclCommInitRankScalable", nccl=wire.NCCL_INIT_RANK_SCALABLE),
    _nccl(207, "ncclCommInitAll", nccl=wire.NCCL_INIT_ALL),
    _nccl(208, "ncclCommSplit", nccl=wire.NCCL_SPLIT),
    _nccl(209, "ncclCommShrink", nccl=wire.NCCL_SHRINK),
    _nccl(210, "ncclCommGrow", nccl=wire.NCCL_GROW),
    _nccl(211, "ncclCommFinalize"),
    _nccl(212, "ncclCommDestroy", nccl=wire.NCCL_DESTROY),
    _nccl(213, "ncclCommAbort", nccl=wire.NCCL_ABORT),
    _nccl(214, "ncclCommRevoke"),
    # A query enqueues no work.
    _nccl(215, "ncclCommGetAsyncError", family=wire.FAMILY_QUERY, nccl=wire.NCCL_ASYNC_ERROR),
    _nccl(216, "ncclCommCount", family=wire.FAMILY_QUERY, nccl=wire.NCCL_COUNT),
    _nccl(217, "ncclCommUserRank", family=wire.FAMILY_QUERY, nccl=wire.NCCL_USER_RANK),
    _nccl(218, "ncclCommCuDevice", family=wire.FAMILY_QUERY, nccl=wire.NCCL_DEVICE),
    _nccl(219, "ncclMemAlloc"),
    _nccl(220, "ncclMemFree"),
    _nccl(221, "ncclCommRegister"),
    _nccl(222, "ncclCommDeregister"),
    _nccl(223, "ncclCommWindowRegister"),
    _nccl(224, "ncclCommWindowDeregister"),
    _nccl(225, "ncclCommSuspend"),
    _nccl(226, "ncclCommResume"),
    # Verbs have those from 230. What moves data is inline in the program, and in no library.
    _verbs(230, "ibv_reg_mr", wire.FAMILY_REGISTER, **_REGISTER),
    _verbs(231, "ibv_reg_mr_iova", wire.FAMILY_REGISTER, **_REGISTER),
    _verbs(232, "ibv_reg_mr_iova2", wire.FAMILY_REGISTER, **_REGISTER),
    _verbs(233, "ibv_reg_dmabuf_mr", wire.FAMILY_REGISTER, **_REGISTER),
    _verbs(234, "ibv_dereg_mr", wire.FAMILY_DEREGISTER, address=1),
    _verbs(235, "ibv_create_qp", wire.FAMILY_OTHER, returns_pointer=1),
    _verbs(236, "ibv_modify_qp", wire.FAMILY_OTHER),
    _verbs(237, "ibv_destroy_qp", wire.FAMILY_OTHER),
    _verbs(238, "ibv_create_cq", wire.FAMILY_OTHER, returns_pointer=1),
    _verbs(239, "ibv_destroy_cq", wire.FAMILY_OTHER),
    _verbs(240, "ibv_open_device", wire.FAMILY_OTHER, returns_pointer=1),
    _verbs(241, "ibv_close_device", wire.FAMILY_OTHER),
    _verbs(ASYNC_EVENT_API, "ibv_get_async_event", wire.FAMILY_ASYNC_EVENT),
    _verbs(243, "ibv_ack_async_event", wire.FAMILY_ASYNC_ACK),
)

COUNTED_APIS = tuple(api for api in APIS if not api.tells_device)
"""The APIs whose calls are counted."""

API_BY_NUMBER: Mapping[int, Api] = {api.number: api for api in APIS}

# The first row number of each layer.
_FIRST_APIS = (
    (230, wire.LAYER_VERBS),
    (192, wire.LAYER_NCCL),
    (100, wire.LAYER_DRIVER),
    (0, wire.LAYER_RUNTIME),
)


def unknown_api(number: int) -> Api:
    """Return a stand-in for an API that only a later version has."""
    layer = next(layer for first, layer in _FIRST_APIS if number >= first)
    return Api(number, name=f"unknown_api_{number}", layer=layer, family=wire.FAMILY_OTHER)

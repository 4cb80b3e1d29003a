/* SPDX-License-Identifier: Apache-2.0 */
/* GENERATED from otel_gpu/probe_table.py by tools/generate_door.py. Do not edit. */
/* clang-format off */

const struct row door_rows[] = {
	{.name = "__cudaGetKernel", .api = 71, .family = 21, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255, .function_slot = 2},
	{.name = "cuArray3DCreate", .api = 176, .family = 4, .size_slot = 2, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cuArrayCreate", .api = 175, .family = 4, .size_slot = 2, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cuArrayDestroy", .api = 177, .family = 5, .address_slot = 1, .fixed_copy_kind = 255},
	{.name = "cuCtxSetCurrent", .api = 170, .counts = 1, .family = 30, .fixed_copy_kind = 255},
	{.name = "cuCtxSynchronize", .api = 105, .counts = 1, .family = 3, .fixed_copy_kind = 255, .stream_work = 5},
	{.name = "cuDeviceGetUuid", .api = 171, .family = 13, .address_slot = 1, .fixed_copy_kind = 255, .device_slot = 2},
	{.name = "cuEventCreate", .api = 163, .counts = 1, .family = 9, .fixed_copy_kind = 255},
	{.name = "cuEventDestroy", .api = 164, .counts = 1, .family = 9, .fixed_copy_kind = 255, .function_slot = 1, .stream_work = 6},
	{.name = "cuEventElapsedTime", .api = 169, .family = 23, .address_slot = 1, .fixed_copy_kind = 255},
	{.name = "cuEventQuery", .api = 168, .counts = 1, .family = 22, .fixed_copy_kind = 255, .function_slot = 1, .stream_work = 3},
	{.name = "cuEventRecord", .api = 165, .counts = 1, .family = 9, .stream_slot = 2, .fixed_copy_kind = 255, .function_slot = 1, .stream_work = 1},
	{.name = "cuEventRecordWithFlags", .api = 166, .counts = 1, .family = 9, .stream_slot = 2, .fixed_copy_kind = 255, .function_slot = 1, .stream_work = 1},
	{.name = "cuEventSynchronize", .api = 106, .counts = 1, .family = 3, .fixed_copy_kind = 255, .function_slot = 1, .stream_work = 3},
	{.name = "cuGraphInstantiate", .api = 152, .family = 10, .fixed_copy_kind = 255},
	{.name = "cuGraphInstantiateWithFlags", .api = 153, .family = 10, .fixed_copy_kind = 255},
	{.name = "cuGraphInstantiateWithParams", .api = 154, .family = 10, .fixed_copy_kind = 255},
	{.name = "cuGraphLaunch", .api = 103, .counts = 1, .family = 2, .stream_slot = 2, .fixed_copy_kind = 255, .function_slot = 1},
	{.name = "cuKernelGetFunction", .api = 182, .family = 21, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255, .function_slot = 2},
	{.name = "cuLaunchCooperativeKernel", .api = 102, .counts = 1, .family = 1, .stream_slot = 9, .fixed_copy_kind = 255, .launch_shape = 2, .function_slot = 1},
	{.name = "cuLaunchHostFunc", .api = 173, .stream_slot = 1, .fixed_copy_kind = 255},
	{.name = "cuLaunchKernel", .api = 100, .counts = 1, .family = 1, .stream_slot = 9, .fixed_copy_kind = 255, .launch_shape = 2, .function_slot = 1},
	{.name = "cuLaunchKernelEx", .api = 101, .counts = 1, .family = 1, .fixed_copy_kind = 255, .launch_shape = 3, .function_slot = 2},
	{.name = "cuLibraryGetKernel", .api = 181, .family = 20, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255, .function_slot = 3},
	{.name = "cuMemAlloc", .api = 110, .family = 4, .size_slot = 2, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cuMemAllocAsync", .api = 115, .family = 4, .size_slot = 2, .stream_slot = 3, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cuMemAllocFromPoolAsync", .api = 116, .family = 4, .size_slot = 2, .stream_slot = 4, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cuMemAllocHost", .api = 112, .family = 15, .size_slot = 2, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cuMemAllocManaged", .api = 111, .family = 4, .size_slot = 2, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cuMemAllocPitch", .api = 114, .family = 4, .size_slot = 3, .height_slot = 4, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cuMemCreate", .api = 120, .family = 4, .size_slot = 2, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cuMemFree", .api = 117, .family = 5, .address_slot = 1, .fixed_copy_kind = 255},
	{.name = "cuMemFreeAsync", .api = 119, .family = 5, .stream_slot = 2, .address_slot = 1, .fixed_copy_kind = 255},
	{.name = "cuMemFreeHost", .api = 118, .family = 16, .address_slot = 1, .fixed_copy_kind = 255},
	{.name = "cuMemGetInfo", .api = 172, .family = 18, .address_slot = 1, .fixed_copy_kind = 255, .function_slot = 2},
	{.name = "cuMemHostAlloc", .api = 113, .family = 15, .size_slot = 2, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cuMemImportFromShareableHandle", .api = 125, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cuMemMap", .api = 122, .size_slot = 2, .address_slot = 1, .fixed_copy_kind = 255, .function_slot = 4},
	{.name = "cuMemPrefetchAsync", .api = 127, .size_slot = 2, .address_slot = 1, .fixed_copy_kind = 255},
	{.name = "cuMemRelease", .api = 121, .family = 5, .address_slot = 1, .fixed_copy_kind = 255},
	{.name = "cuMemRetainAllocationHandle", .api = 124, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255, .function_slot = 2},
	{.name = "cuMemSetAccess", .api = 126, .size_slot = 2, .address_slot = 1, .fixed_copy_kind = 255},
	{.name = "cuMemUnmap", .api = 123, .family = 17, .size_slot = 2, .address_slot = 1, .fixed_copy_kind = 255},
	{.name = "cuMemcpy", .api = 136, .counts = 1, .family = 6, .size_slot = 3, .address_slot = 1, .fixed_copy_kind = 4},
	{.name = "cuMemcpy2D", .api = 178, .family = 6, .size_slot = 1, .fixed_copy_kind = 255},
	{.name = "cuMemcpy2DAsync", .api = 183, .family = 6, .size_slot = 1, .stream_slot = 2, .fixed_copy_kind = 255},
	{.name = "cuMemcpy2DUnaligned", .api = 179, .family = 6, .size_slot = 1, .fixed_copy_kind = 255},
	{.name = "cuMemcpy3D", .api = 146, .family = 6, .size_slot = 1, .fixed_copy_kind = 255},
	{.name = "cuMemcpy3DAsync", .api = 147, .family = 6, .size_slot = 1, .stream_slot = 2, .fixed_copy_kind = 255},
	{.name = "cuMemcpyAsync", .api = 137, .counts = 1, .family = 6, .size_slot = 3, .stream_slot = 4, .address_slot = 1, .fixed_copy_kind = 4},
	{.name = "cuMemcpyBatchAsync", .api = 148, .family = 6, .size_slot = 3, .fixed_copy_kind = 4},
	{.name = "cuMemcpyDtoD", .api = 132, .counts = 1, .family = 6, .size_slot = 3, .address_slot = 1, .fixed_copy_kind = 3},
	{.name = "cuMemcpyDtoDAsync", .api = 135, .counts = 1, .family = 6, .size_slot = 3, .stream_slot = 4, .address_slot = 1, .fixed_copy_kind = 3},
	{.name = "cuMemcpyDtoH", .api = 131, .counts = 1, .family = 6, .size_slot = 3, .address_slot = 1, .fixed_copy_kind = 2},
	{.name = "cuMemcpyDtoHAsync", .api = 134, .counts = 1, .family = 6, .size_slot = 3, .stream_slot = 4, .address_slot = 1, .fixed_copy_kind = 2},
	{.name = "cuMemcpyHtoD", .api = 130, .counts = 1, .family = 6, .size_slot = 3, .address_slot = 1, .fixed_copy_kind = 1},
	{.name = "cuMemcpyHtoDAsync", .api = 133, .counts = 1, .family = 6, .size_slot = 3, .stream_slot = 4, .address_slot = 1, .fixed_copy_kind = 1},
	{.name = "cuMemcpyPeer", .api = 138, .counts = 1, .family = 6, .size_slot = 5, .address_slot = 1, .fixed_copy_kind = 3},
	{.name = "cuMemcpyPeerAsync", .api = 139, .counts = 1, .family = 6, .size_slot = 5, .stream_slot = 6, .address_slot = 1, .fixed_copy_kind = 3},
	{.name = "cuMemsetD16", .api = 141, .counts = 1, .family = 7, .size_slot = 3, .size_shift = 1, .address_slot = 1, .fixed_copy_kind = 255},
	{.name = "cuMemsetD16Async", .api = 144, .counts = 1, .family = 7, .size_slot = 3, .size_shift = 1, .stream_slot = 4, .address_slot = 1, .fixed_copy_kind = 255},
	{.name = "cuMemsetD32", .api = 142, .counts = 1, .family = 7, .size_slot = 3, .size_shift = 2, .address_slot = 1, .fixed_copy_kind = 255},
	{.name = "cuMemsetD32Async", .api = 145, .counts = 1, .family = 7, .size_slot = 3, .size_shift = 2, .stream_slot = 4, .address_slot = 1, .fixed_copy_kind = 255},
	{.name = "cuMemsetD8", .api = 140, .counts = 1, .family = 7, .size_slot = 3, .address_slot = 1, .fixed_copy_kind = 255},
	{.name = "cuMemsetD8Async", .api = 143, .counts = 1, .family = 7, .size_slot = 3, .stream_slot = 4, .address_slot = 1, .fixed_copy_kind = 255},
	{.name = "cuModuleGetFunction", .api = 180, .family = 20, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255, .function_slot = 3},
	{.name = "cuStreamAddCallback", .api = 174, .stream_slot = 1, .fixed_copy_kind = 255},
	{.name = "cuStreamBeginCapture", .api = 150, .family = 10, .stream_slot = 1, .fixed_copy_kind = 255},
	{.name = "cuStreamBeginCaptureToGraph", .api = 155, .family = 10, .stream_slot = 1, .fixed_copy_kind = 255},
	{.name = "cuStreamCreate", .api = 160, .family = 8, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cuStreamCreateWithPriority", .api = 161, .family = 8, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cuStreamDestroy", .api = 162, .family = 8, .stream_slot = 1, .fixed_copy_kind = 255, .stream_work = 7},
	{.name = "cuStreamEndCapture", .api = 151, .family = 10, .stream_slot = 1, .fixed_copy_kind = 255},
	{.name = "cuStreamQuery", .api = 167, .counts = 1, .family = 22, .stream_slot = 1, .fixed_copy_kind = 255, .stream_work = 4},
	{.name = "cuStreamSynchronize", .api = 104, .counts = 1, .family = 3, .stream_slot = 1, .fixed_copy_kind = 255, .stream_work = 4},
	{.name = "cuStreamWaitEvent", .api = 107, .counts = 1, .family = 3, .stream_slot = 1, .fixed_copy_kind = 255, .function_slot = 2, .stream_work = 2},
	{.name = "cudaDeviceSynchronize", .api = 6, .counts = 1, .family = 3, .fixed_copy_kind = 255, .stream_work = 5},
	{.name = "cudaEventCreate", .api = 54, .counts = 1, .family = 9, .fixed_copy_kind = 255},
	{.name = "cudaEventCreateWithFlags", .api = 55, .counts = 1, .family = 9, .fixed_copy_kind = 255},
	{.name = "cudaEventDestroy", .api = 56, .counts = 1, .family = 9, .fixed_copy_kind = 255, .function_slot = 1, .stream_work = 6},
	{.name = "cudaEventElapsedTime", .api = 83, .family = 23, .address_slot = 1, .fixed_copy_kind = 255},
	{.name = "cudaEventQuery", .api = 82, .counts = 1, .family = 22, .fixed_copy_kind = 255, .function_slot = 1, .stream_work = 3},
	{.name = "cudaEventRecord", .api = 57, .counts = 1, .family = 9, .stream_slot = 2, .fixed_copy_kind = 255, .function_slot = 1, .stream_work = 1},
	{.name = "cudaEventRecordWithFlags", .api = 58, .counts = 1, .family = 9, .stream_slot = 2, .fixed_copy_kind = 255, .function_slot = 1, .stream_work = 1},
	{.name = "cudaEventSynchronize", .api = 7, .counts = 1, .family = 3, .fixed_copy_kind = 255, .function_slot = 1, .stream_work = 3},
	{.name = "cudaFree", .api = 17, .family = 5, .address_slot = 1, .fixed_copy_kind = 255},
	{.name = "cudaFreeArray", .api = 24, .family = 5, .address_slot = 1, .fixed_copy_kind = 255},
	{.name = "cudaFreeAsync", .api = 19, .family = 5, .stream_slot = 2, .address_slot = 1, .fixed_copy_kind = 255},
	{.name = "cudaFreeHost", .api = 18, .family = 16, .address_slot = 1, .fixed_copy_kind = 255},
	{.name = "cudaGetDeviceProperties", .api = 62, .family = 14, .address_slot = 1, .fixed_copy_kind = 255, .device_slot = 2},
	{.name = "cudaGetFuncBySymbol", .api = 72, .family = 21, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255, .function_slot = 2},
	{.name = "cudaGetKernel", .api = 70, .family = 21, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255, .function_slot = 2},
	{.name = "cudaGraphInstantiate", .api = 42, .family = 10, .fixed_copy_kind = 255},
	{.name = "cudaGraphInstantiateWithFlags", .api = 43, .family = 10, .fixed_copy_kind = 255},
	{.name = "cudaGraphInstantiateWithParams", .api = 44, .family = 10, .fixed_copy_kind = 255},
	{.name = "cudaGraphLaunch", .api = 4, .counts = 1, .family = 2, .stream_slot = 2, .fixed_copy_kind = 255, .function_slot = 1},
	{.name = "cudaHostAlloc", .api = 13, .family = 15, .size_slot = 2, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cudaHostRegister", .api = 20, .size_slot = 2, .address_slot = 1, .fixed_copy_kind = 255},
	{.name = "cudaLaunchCooperativeKernel", .api = 3, .counts = 1, .family = 1, .stream_slot = 8, .fixed_copy_kind = 255, .launch_shape = 1, .function_slot = 1},
	{.name = "cudaLaunchHostFunc", .api = 84, .stream_slot = 1, .fixed_copy_kind = 255},
	{.name = "cudaLaunchKernel", .api = 1, .counts = 1, .family = 1, .stream_slot = 8, .fixed_copy_kind = 255, .launch_shape = 1, .function_slot = 1},
	{.name = "cudaLaunchKernelExC", .api = 2, .counts = 1, .family = 1, .fixed_copy_kind = 255, .launch_shape = 3, .function_slot = 2},
	{.name = "cudaLibraryGetKernel", .api = 73, .family = 20, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255, .function_slot = 3},
	{.name = "cudaMalloc", .api = 10, .family = 4, .size_slot = 2, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cudaMalloc3D", .api = 21, .family = 4, .size_slot = 2, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cudaMalloc3DArray", .api = 23, .family = 4, .size_slot = 3, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cudaMallocArray", .api = 22, .family = 4, .size_slot = 3, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cudaMallocAsync", .api = 15, .family = 4, .size_slot = 2, .stream_slot = 3, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cudaMallocFromPoolAsync", .api = 16, .family = 4, .size_slot = 2, .stream_slot = 4, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cudaMallocHost", .api = 12, .family = 15, .size_slot = 2, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cudaMallocManaged", .api = 11, .family = 4, .size_slot = 2, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cudaMallocPitch", .api = 14, .family = 4, .size_slot = 3, .height_slot = 4, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cudaMemGetInfo", .api = 63, .family = 18, .address_slot = 1, .fixed_copy_kind = 255, .function_slot = 2},
	{.name = "cudaMemPrefetchAsync", .api = 25, .size_slot = 2, .address_slot = 1, .fixed_copy_kind = 255},
	{.name = "cudaMemcpy", .api = 30, .counts = 1, .family = 6, .size_slot = 3, .address_slot = 1, .copy_kind_slot = 4, .fixed_copy_kind = 255},
	{.name = "cudaMemcpy2D", .api = 32, .counts = 1, .family = 6, .size_slot = 5, .height_slot = 6, .address_slot = 1, .copy_kind_slot = 7, .fixed_copy_kind = 255},
	{.name = "cudaMemcpy2DAsync", .api = 33, .counts = 1, .family = 6, .size_slot = 5, .height_slot = 6, .stream_slot = 8, .address_slot = 1, .copy_kind_slot = 7, .fixed_copy_kind = 255},
	{.name = "cudaMemcpy3D", .api = 38, .family = 6, .size_slot = 1, .fixed_copy_kind = 255},
	{.name = "cudaMemcpy3DAsync", .api = 39, .family = 6, .size_slot = 1, .stream_slot = 2, .fixed_copy_kind = 255},
	{.name = "cudaMemcpyAsync", .api = 31, .counts = 1, .family = 6, .size_slot = 3, .stream_slot = 5, .address_slot = 1, .copy_kind_slot = 4, .fixed_copy_kind = 255},
	{.name = "cudaMemcpyBatchAsync", .api = 80, .family = 6, .size_slot = 3, .fixed_copy_kind = 4},
	{.name = "cudaMemcpyPeer", .api = 34, .counts = 1, .family = 6, .size_slot = 5, .address_slot = 1, .fixed_copy_kind = 3},
	{.name = "cudaMemcpyPeerAsync", .api = 35, .counts = 1, .family = 6, .size_slot = 5, .stream_slot = 6, .address_slot = 1, .fixed_copy_kind = 3},
	{.name = "cudaMemset", .api = 36, .counts = 1, .family = 7, .size_slot = 3, .address_slot = 1, .fixed_copy_kind = 255},
	{.name = "cudaMemsetAsync", .api = 37, .counts = 1, .family = 7, .size_slot = 3, .stream_slot = 4, .address_slot = 1, .fixed_copy_kind = 255},
	{.name = "cudaSetDevice", .api = 60, .counts = 1, .family = 11, .fixed_copy_kind = 255, .device_slot = 1},
	{.name = "cudaStreamAddCallback", .api = 85, .stream_slot = 1, .fixed_copy_kind = 255},
	{.name = "cudaStreamBeginCapture", .api = 40, .family = 10, .stream_slot = 1, .fixed_copy_kind = 255},
	{.name = "cudaStreamBeginCaptureToGraph", .api = 45, .family = 10, .stream_slot = 1, .fixed_copy_kind = 255},
	{.name = "cudaStreamCreate", .api = 50, .family = 8, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cudaStreamCreateWithFlags", .api = 51, .family = 8, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cudaStreamCreateWithPriority", .api = 52, .family = 8, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cudaStreamDestroy", .api = 53, .family = 8, .stream_slot = 1, .fixed_copy_kind = 255, .stream_work = 7},
	{.name = "cudaStreamEndCapture", .api = 41, .family = 10, .stream_slot = 1, .fixed_copy_kind = 255},
	{.name = "cudaStreamQuery", .api = 81, .counts = 1, .family = 22, .stream_slot = 1, .fixed_copy_kind = 255, .stream_work = 4},
	{.name = "cudaStreamSynchronize", .api = 5, .counts = 1, .family = 3, .stream_slot = 1, .fixed_copy_kind = 255, .stream_work = 4},
	{.name = "cudaStreamWaitEvent", .api = 8, .counts = 1, .family = 3, .stream_slot = 1, .fixed_copy_kind = 255, .function_slot = 2, .stream_work = 2},
};

#define DOOR_APIS(NARROW, WIDE) \
	NARROW(0, __cudaGetKernel) \
	NARROW(1, cuArray3DCreate) \
	NARROW(2, cuArrayCreate) \
	NARROW(3, cuArrayDestroy) \
	NARROW(4, cuCtxSetCurrent) \
	NARROW(5, cuCtxSynchronize) \
	NARROW(6, cuDeviceGetUuid) \
	NARROW(7, cuEventCreate) \
	NARROW(8, cuEventDestroy) \
	NARROW(9, cuEventElapsedTime) \
	NARROW(10, cuEventQuery) \
	NARROW(11, cuEventRecord) \
	NARROW(12, cuEventRecordWithFlags) \
	NARROW(13, cuEventSynchronize) \
	NARROW(14, cuGraphInstantiate) \
	NARROW(15, cuGraphInstantiateWithFlags) \
	NARROW(16, cuGraphInstantiateWithParams) \
	NARROW(17, cuGraphLaunch) \
	NARROW(18, cuKernelGetFunction) \
	WIDE(19, cuLaunchCooperativeKernel) \
	NARROW(20, cuLaunchHostFunc) \
	WIDE(21, cuLaunchKernel) \
	NARROW(22, cuLaunchKernelEx) \
	NARROW(23, cuLibraryGetKernel) \
	NARROW(24, cuMemAlloc) \
	NARROW(25, cuMemAllocAsync) \
	NARROW(26, cuMemAllocFromPoolAsync) \
	NARROW(27, cuMemAllocHost) \
	NARROW(28, cuMemAllocManaged) \
	NARROW(29, cuMemAllocPitch) \
	NARROW(30, cuMemCreate) \
	NARROW(31, cuMemFree) \
	NARROW(32, cuMemFreeAsync) \
	NARROW(33, cuMemFreeHost) \
	NARROW(34, cuMemGetInfo) \
	NARROW(35, cuMemHostAlloc) \
	NARROW(36, cuMemImportFromShareableHandle) \
	NARROW(37, cuMemMap) \
	NARROW(38, cuMemPrefetchAsync) \
	NARROW(39, cuMemRelease) \
	NARROW(40, cuMemRetainAllocationHandle) \
	NARROW(41, cuMemSetAccess) \
	NARROW(42, cuMemUnmap) \
	NARROW(43, cuMemcpy) \
	NARROW(44, cuMemcpy2D) \
	NARROW(45, cuMemcpy2DAsync) \
	NARROW(46, cuMemcpy2DUnaligned) \
	NARROW(47, cuMemcpy3D) \
	NARROW(48, cuMemcpy3DAsync) \
	NARROW(49, cuMemcpyAsync) \
	WIDE(50, cuMemcpyBatchAsync) \
	NARROW(51, cuMemcpyDtoD) \
	NARROW(52, cuMemcpyDtoDAsync) \
	NARROW(53, cuMemcpyDtoH) \
	NARROW(54, cuMemcpyDtoHAsync) \
	NARROW(55, cuMemcpyHtoD) \
	NARROW(56, cuMemcpyHtoDAsync) \
	NARROW(57, cuMemcpyPeer) \
	NARROW(58, cuMemcpyPeerAsync) \
	NARROW(59, cuMemsetD16) \
	NARROW(60, cuMemsetD16Async) \
	NARROW(61, cuMemsetD32) \
	NARROW(62, cuMemsetD32Async) \
	NARROW(63, cuMemsetD8) \
	NARROW(64, cuMemsetD8Async) \
	NARROW(65, cuModuleGetFunction) \
	NARROW(66, cuStreamAddCallback) \
	NARROW(67, cuStreamBeginCapture) \
	NARROW(68, cuStreamBeginCaptureToGraph) \
	NARROW(69, cuStreamCreate) \
	NARROW(70, cuStreamCreateWithPriority) \
	NARROW(71, cuStreamDestroy) \
	NARROW(72, cuStreamEndCapture) \
	NARROW(73, cuStreamQuery) \
	NARROW(74, cuStreamSynchronize) \
	NARROW(75, cuStreamWaitEvent) \
	NARROW(76, cudaDeviceSynchronize) \
	NARROW(77, cudaEventCreate) \
	NARROW(78, cudaEventCreateWithFlags) \
	NARROW(79, cudaEventDestroy) \
	NARROW(80, cudaEventElapsedTime) \
	NARROW(81, cudaEventQuery) \
	NARROW(82, cudaEventRecord) \
	NARROW(83, cudaEventRecordWithFlags) \
	NARROW(84, cudaEventSynchronize) \
	NARROW(85, cudaFree) \
	NARROW(86, cudaFreeArray) \
	NARROW(87, cudaFreeAsync) \
	NARROW(88, cudaFreeHost) \
	NARROW(89, cudaGetDeviceProperties) \
	NARROW(90, cudaGetFuncBySymbol) \
	NARROW(91, cudaGetKernel) \
	NARROW(92, cudaGraphInstantiate) \
	NARROW(93, cudaGraphInstantiateWithFlags) \
	NARROW(94, cudaGraphInstantiateWithParams) \
	NARROW(95, cudaGraphLaunch) \
	NARROW(96, cudaHostAlloc) \
	NARROW(97, cudaHostRegister) \
	WIDE(98, cudaLaunchCooperativeKernel) \
	NARROW(99, cudaLaunchHostFunc) \
	WIDE(100, cudaLaunchKernel) \
	NARROW(101, cudaLaunchKernelExC) \
	NARROW(102, cudaLibraryGetKernel) \
	NARROW(103, cudaMalloc) \
	WIDE(104, cudaMalloc3D) \
	WIDE(105, cudaMalloc3DArray) \
	NARROW(106, cudaMallocArray) \
	NARROW(107, cudaMallocAsync) \
	NARROW(108, cudaMallocFromPoolAsync) \
	NARROW(109, cudaMallocHost) \
	NARROW(110, cudaMallocManaged) \
	NARROW(111, cudaMallocPitch) \
	NARROW(112, cudaMemGetInfo) \
	NARROW(113, cudaMemPrefetchAsync) \
	NARROW(114, cudaMemcpy) \
	WIDE(115, cudaMemcpy2D) \
	WIDE(116, cudaMemcpy2DAsync) \
	NARROW(117, cudaMemcpy3D) \
	NARROW(118, cudaMemcpy3DAsync) \
	NARROW(119, cudaMemcpyAsync) \
	WIDE(120, cudaMemcpyBatchAsync) \
	NARROW(121, cudaMemcpyPeer) \
	NARROW(122, cudaMemcpyPeerAsync) \
	NARROW(123, cudaMemset) \
	NARROW(124, cudaMemsetAsync) \
	NARROW(125, cudaSetDevice) \
	NARROW(126, cudaStreamAddCallback) \
	NARROW(127, cudaStreamBeginCapture) \
	NARROW(128, cudaStreamBeginCaptureToGraph) \
	NARROW(129, cudaStreamCreate) \
	NARROW(130, cudaStreamCreateWithFlags) \
	NARROW(131, cudaStreamCreateWithPriority) \
	NARROW(132, cudaStreamDestroy) \
	NARROW(133, cudaStreamEndCapture) \
	NARROW(134, cudaStreamQuery) \
	NARROW(135, cudaStreamSynchronize) \
	NARROW(136, cudaStreamWaitEvent) \

#define LAUNCH_ROW 100

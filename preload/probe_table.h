/* SPDX-License-Identifier: Apache-2.0 */
/* GENERATED from otel_gpu/wire/probe_table.py by tools/generate_preload.py. Do not edit. */
/* clang-format off */
#ifndef OTEL_GPU_PRELOAD_PROBE_TABLE_H
#define OTEL_GPU_PRELOAD_PROBE_TABLE_H

#include "row.h"

const struct row preload_rows[] = {
	{.name = "__cudaGetKernel", .api = 71, .family = 21, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255, .function_slot = 2},
	{.name = "cuArray3DCreate", .api = 176, .family = 4, .size_slot = 2, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cuArrayCreate", .api = 175, .family = 4, .size_slot = 2, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255},
	{.name = "cuArrayDestroy", .api = 177, .family = 5, .address_slot = 1, .fixed_copy_kind = 255},
	{.name = "cuCtxCreate", .api = 186, .counts = 1, .family = 30, .fixed_copy_kind = 255},
	{.name = "cuCtxSetCurrent", .api = 170, .counts = 1, .family = 30, .fixed_copy_kind = 255},
	{.name = "cuCtxSynchronize", .api = 105, .counts = 1, .family = 3, .fixed_copy_kind = 255, .stream_work = 5},
	{.name = "cuDeviceGetUuid", .api = 171, .family = 13, .address_slot = 1, .fixed_copy_kind = 255, .device_slot = 2},
	{.name = "cuDevicePrimaryCtxRetain", .api = 185, .family = 31, .fixed_copy_kind = 255},
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
	{.name = "cuInit", .api = 184, .family = 31, .fixed_copy_kind = 255},
	{.name = "cuKernelGetFunction", .api = 182, .family = 21, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255, .function_slot = 2},
	{.name = "cuLaunchCooperativeKernel", .api = 102, .counts = 1, .family = 1, .stream_slot = 9, .fixed_copy_kind = 255, .launch_shape = 2, .function_slot = 1},
	{.name = "cuLaunchHostFunc", .api = 173, .stream_slot = 1, .fixed_copy_kind = 255},
	{.name = "cuLaunchKernel", .api = 100, .counts = 1, .family = 1, .stream_slot = 9, .fixed_copy_kind = 255, .launch_shape = 2, .function_slot = 1},
	{.name = "cuLaunchKernelEx", .api = 101, .counts = 1, .family = 1, .fixed_copy_kind = 255, .launch_shape = 3, .function_slot = 2},
	{.name = "cuLibraryGetKernel", .api = 181, .family = 20, .address_slot = 1, .address_is_output = 1, .fixed_copy_kind = 255, .function_slot = 3},
	{.name = "cuLibraryLoadData", .api = 190, .family = 31, .fixed_copy_kind = 255},
	{.name = "cuLinkComplete", .api = 191, .family = 31, .fixed_copy_kind = 255},
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
	{.name = "cuModuleLoad", .api = 187, .family = 31, .fixed_copy_kind = 255},
	{.name = "cuModuleLoadData", .api = 188, .family = 31, .fixed_copy_kind = 255},
	{.name = "cuModuleLoadDataEx", .api = 189, .family = 31, .fixed_copy_kind = 255},
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
	{.name = "cudaLibraryLoadData", .api = 74, .family = 31, .fixed_copy_kind = 255},
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

#define PRELOAD_APIS(NARROW, WIDE) \
	NARROW(0, __cudaGetKernel) \
	NARROW(1, cuArray3DCreate) \
	NARROW(2, cuArrayCreate) \
	NARROW(3, cuArrayDestroy) \
	NARROW(4, cuCtxCreate) \
	NARROW(5, cuCtxSetCurrent) \
	NARROW(6, cuCtxSynchronize) \
	NARROW(7, cuDeviceGetUuid) \
	NARROW(8, cuDevicePrimaryCtxRetain) \
	NARROW(9, cuEventCreate) \
	NARROW(10, cuEventDestroy) \
	NARROW(11, cuEventElapsedTime) \
	NARROW(12, cuEventQuery) \
	NARROW(13, cuEventRecord) \
	NARROW(14, cuEventRecordWithFlags) \
	NARROW(15, cuEventSynchronize) \
	NARROW(16, cuGraphInstantiate) \
	NARROW(17, cuGraphInstantiateWithFlags) \
	NARROW(18, cuGraphInstantiateWithParams) \
	NARROW(19, cuGraphLaunch) \
	NARROW(20, cuInit) \
	NARROW(21, cuKernelGetFunction) \
	WIDE(22, cuLaunchCooperativeKernel) \
	NARROW(23, cuLaunchHostFunc) \
	WIDE(24, cuLaunchKernel) \
	NARROW(25, cuLaunchKernelEx) \
	NARROW(26, cuLibraryGetKernel) \
	WIDE(27, cuLibraryLoadData) \
	NARROW(28, cuLinkComplete) \
	NARROW(29, cuMemAlloc) \
	NARROW(30, cuMemAllocAsync) \
	NARROW(31, cuMemAllocFromPoolAsync) \
	NARROW(32, cuMemAllocHost) \
	NARROW(33, cuMemAllocManaged) \
	NARROW(34, cuMemAllocPitch) \
	NARROW(35, cuMemCreate) \
	NARROW(36, cuMemFree) \
	NARROW(37, cuMemFreeAsync) \
	NARROW(38, cuMemFreeHost) \
	NARROW(39, cuMemGetInfo) \
	NARROW(40, cuMemHostAlloc) \
	NARROW(41, cuMemImportFromShareableHandle) \
	NARROW(42, cuMemMap) \
	NARROW(43, cuMemPrefetchAsync) \
	NARROW(44, cuMemRelease) \
	NARROW(45, cuMemRetainAllocationHandle) \
	NARROW(46, cuMemSetAccess) \
	NARROW(47, cuMemUnmap) \
	NARROW(48, cuMemcpy) \
	NARROW(49, cuMemcpy2D) \
	NARROW(50, cuMemcpy2DAsync) \
	NARROW(51, cuMemcpy2DUnaligned) \
	NARROW(52, cuMemcpy3D) \
	NARROW(53, cuMemcpy3DAsync) \
	NARROW(54, cuMemcpyAsync) \
	WIDE(55, cuMemcpyBatchAsync) \
	NARROW(56, cuMemcpyDtoD) \
	NARROW(57, cuMemcpyDtoDAsync) \
	NARROW(58, cuMemcpyDtoH) \
	NARROW(59, cuMemcpyDtoHAsync) \
	NARROW(60, cuMemcpyHtoD) \
	NARROW(61, cuMemcpyHtoDAsync) \
	NARROW(62, cuMemcpyPeer) \
	NARROW(63, cuMemcpyPeerAsync) \
	NARROW(64, cuMemsetD16) \
	NARROW(65, cuMemsetD16Async) \
	NARROW(66, cuMemsetD32) \
	NARROW(67, cuMemsetD32Async) \
	NARROW(68, cuMemsetD8) \
	NARROW(69, cuMemsetD8Async) \
	NARROW(70, cuModuleGetFunction) \
	NARROW(71, cuModuleLoad) \
	NARROW(72, cuModuleLoadData) \
	NARROW(73, cuModuleLoadDataEx) \
	NARROW(74, cuStreamAddCallback) \
	NARROW(75, cuStreamBeginCapture) \
	NARROW(76, cuStreamBeginCaptureToGraph) \
	NARROW(77, cuStreamCreate) \
	NARROW(78, cuStreamCreateWithPriority) \
	NARROW(79, cuStreamDestroy) \
	NARROW(80, cuStreamEndCapture) \
	NARROW(81, cuStreamQuery) \
	NARROW(82, cuStreamSynchronize) \
	NARROW(83, cuStreamWaitEvent) \
	NARROW(84, cudaDeviceSynchronize) \
	NARROW(85, cudaEventCreate) \
	NARROW(86, cudaEventCreateWithFlags) \
	NARROW(87, cudaEventDestroy) \
	NARROW(88, cudaEventElapsedTime) \
	NARROW(89, cudaEventQuery) \
	NARROW(90, cudaEventRecord) \
	NARROW(91, cudaEventRecordWithFlags) \
	NARROW(92, cudaEventSynchronize) \
	NARROW(93, cudaFree) \
	NARROW(94, cudaFreeArray) \
	NARROW(95, cudaFreeAsync) \
	NARROW(96, cudaFreeHost) \
	NARROW(97, cudaGetDeviceProperties) \
	NARROW(98, cudaGetFuncBySymbol) \
	NARROW(99, cudaGetKernel) \
	NARROW(100, cudaGraphInstantiate) \
	NARROW(101, cudaGraphInstantiateWithFlags) \
	NARROW(102, cudaGraphInstantiateWithParams) \
	NARROW(103, cudaGraphLaunch) \
	NARROW(104, cudaHostAlloc) \
	NARROW(105, cudaHostRegister) \
	WIDE(106, cudaLaunchCooperativeKernel) \
	NARROW(107, cudaLaunchHostFunc) \
	WIDE(108, cudaLaunchKernel) \
	NARROW(109, cudaLaunchKernelExC) \
	NARROW(110, cudaLibraryGetKernel) \
	WIDE(111, cudaLibraryLoadData) \
	NARROW(112, cudaMalloc) \
	WIDE(113, cudaMalloc3D) \
	WIDE(114, cudaMalloc3DArray) \
	NARROW(115, cudaMallocArray) \
	NARROW(116, cudaMallocAsync) \
	NARROW(117, cudaMallocFromPoolAsync) \
	NARROW(118, cudaMallocHost) \
	NARROW(119, cudaMallocManaged) \
	NARROW(120, cudaMallocPitch) \
	NARROW(121, cudaMemGetInfo) \
	NARROW(122, cudaMemPrefetchAsync) \
	NARROW(123, cudaMemcpy) \
	WIDE(124, cudaMemcpy2D) \
	WIDE(125, cudaMemcpy2DAsync) \
	NARROW(126, cudaMemcpy3D) \
	NARROW(127, cudaMemcpy3DAsync) \
	NARROW(128, cudaMemcpyAsync) \
	WIDE(129, cudaMemcpyBatchAsync) \
	NARROW(130, cudaMemcpyPeer) \
	NARROW(131, cudaMemcpyPeerAsync) \
	NARROW(132, cudaMemset) \
	NARROW(133, cudaMemsetAsync) \
	NARROW(134, cudaSetDevice) \
	NARROW(135, cudaStreamAddCallback) \
	NARROW(136, cudaStreamBeginCapture) \
	NARROW(137, cudaStreamBeginCaptureToGraph) \
	NARROW(138, cudaStreamCreate) \
	NARROW(139, cudaStreamCreateWithFlags) \
	NARROW(140, cudaStreamCreateWithPriority) \
	NARROW(141, cudaStreamDestroy) \
	NARROW(142, cudaStreamEndCapture) \
	NARROW(143, cudaStreamQuery) \
	NARROW(144, cudaStreamSynchronize) \
	NARROW(145, cudaStreamWaitEvent) \

#define LAUNCH_ROW 108

#endif

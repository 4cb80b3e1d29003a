/* SPDX-License-Identifier: Apache-2.0 */
/* A stub libcuda.so.1: the driver calls of the probe table. See stub.h. */
#include "stub.h"

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct stub_handle *CUhandle; /* streams, events, graphs, contexts, functions */
typedef struct {
	char bytes[16];
} CUuuid;
typedef struct {
	unsigned int gridDimX, gridDimY, gridDimZ;
	unsigned int blockDimX, blockDimY, blockDimZ;
	unsigned int sharedMemBytes;
	CUhandle hStream;
	void *attrs;
	unsigned int numAttrs;
} CUlaunchConfig;

#define DEVICES	      2
#define FIRST_ADDRESS 0x7f0000000000ull

static _Atomic uint64_t allocated_bytes;
static _Atomic uintptr_t handles = 0x5000;

#define ALLOCATE(where, size_bytes)                                                                \
	*(where) = (CUdeviceptr)new_address(FIRST_ADDRESS, &allocated_bytes, size_bytes)
#define CREATE(where) *(where) = (CUhandle)atomic_fetch_add(&handles, 0x10)
#define NOTHING	      ((void)0)

/* Both spellings of an API that has a per-thread default stream variant. */
#define STUB_PTSZ(name, parameters, arguments, work)                                               \
	STUB(name, parameters, arguments, work)                                                    \
	STUB(name##_ptsz, parameters, arguments, work)

STUB_PTSZ(cuLaunchKernel,
	  (CUhandle f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
	   unsigned shared_bytes, CUhandle stream, void **parameters, void **extra),
	  (f, gx, gy, gz, bx, by, bz, shared_bytes, stream, parameters, extra), NOTHING)
STUB_PTSZ(cuLaunchKernelEx,
	  (const CUlaunchConfig *config, CUhandle f, void **parameters, void **extra),
	  (config, f, parameters, extra), NOTHING)
STUB_PTSZ(cuLaunchCooperativeKernel,
	  (CUhandle f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
	   unsigned shared_bytes, CUhandle stream, void **parameters),
	  (f, gx, gy, gz, bx, by, bz, shared_bytes, stream, parameters), NOTHING)
STUB_PTSZ(cuGraphLaunch, (CUhandle graph, CUhandle stream), (graph, stream), NOTHING)

STUB_PTSZ(cuStreamSynchronize, (CUhandle stream), (stream), NOTHING)
STUB(cuCtxSynchronize, (void), (), NOTHING)
STUB(cuEventSynchronize, (CUhandle event), (event), NOTHING)
STUB_PTSZ(cuStreamQuery, (CUhandle stream), (stream), NOTHING)
STUB(cuEventQuery, (CUhandle event), (event), NOTHING)
STUB(cuEventElapsedTime_v2, (float *milliseconds, CUhandle start, CUhandle end),
     (milliseconds, start, end), tell_elapsed(milliseconds, end))
STUB_PTSZ(cuLaunchHostFunc, (CUhandle stream, void *function, void *argument),
	  (stream, function, argument), NOTHING)
STUB_PTSZ(cuStreamAddCallback, (CUhandle stream, void *function, void *argument, unsigned flags),
	  (stream, function, argument, flags), NOTHING)
STUB_PTSZ(cuStreamWaitEvent, (CUhandle stream, CUhandle event, unsigned flags),
	  (stream, event, flags), NOTHING)

STUB(cuMemAlloc_v2, (CUdeviceptr * address, size_t size_bytes), (address, size_bytes),
     ALLOCATE(address, size_bytes))
STUB(cuMemAllocManaged, (CUdeviceptr * address, size_t size_bytes, unsigned flags),
     (address, size_bytes, flags), ALLOCATE(address, size_bytes))
STUB(cuMemAllocHost_v2, (CUdeviceptr * address, size_t size_bytes), (address, size_bytes),
     ALLOCATE(address, size_bytes))
STUB(cuMemHostAlloc, (CUdeviceptr * address, size_t size_bytes, unsigned flags),
     (address, size_bytes, flags), ALLOCATE(address, size_bytes))
STUB(cuMemAllocPitch_v2,
     (CUdeviceptr * address, size_t *pitch, size_t width_bytes, size_t height, unsigned element),
     (address, pitch, width_bytes, height, element), *pitch = (width_bytes + 511) / 512 * 512;
     ALLOCATE(address, *pitch *height))
STUB_PTSZ(cuMemAllocAsync, (CUdeviceptr * address, size_t size_bytes, CUhandle stream),
	  (address, size_bytes, stream), ALLOCATE(address, size_bytes))
STUB_PTSZ(cuMemAllocFromPoolAsync,
	  (CUdeviceptr * address, size_t size_bytes, CUhandle pool, CUhandle stream),
	  (address, size_bytes, pool, stream), ALLOCATE(address, size_bytes))
STUB(cuMemFree_v2, (CUdeviceptr address), (address), NOTHING)
STUB(cuMemFreeHost, (void *address), (address), NOTHING)
STUB_PTSZ(cuMemFreeAsync, (CUdeviceptr address, CUhandle stream), (address, stream), NOTHING)
STUB(cuMemCreate, (CUdeviceptr * handle, size_t size_bytes, const void *properties, uint64_t flags),
     (handle, size_bytes, properties, flags), ALLOCATE(handle, size_bytes))
STUB(cuMemRelease, (CUdeviceptr handle), (handle), NOTHING)
STUB(cuMemMap,
     (CUdeviceptr address, size_t size_bytes, size_t offset, CUdeviceptr handle, uint64_t flags),
     (address, size_bytes, offset, handle, flags), NOTHING)
/* A further handle of what is mapped; here, the address is that of the mapping. */
STUB(cuMemRetainAllocationHandle, (CUdeviceptr * handle, void *address), (handle, address),
     ALLOCATE(handle, 1))
STUB(cuMemImportFromShareableHandle, (CUdeviceptr * handle, void *shared, int type),
     (handle, shared, type), ALLOCATE(handle, 1))
STUB(cuMemSetAccess,
     (CUdeviceptr address, size_t size_bytes, const void *description, size_t count),
     (address, size_bytes, description, count), NOTHING)
STUB_PTSZ(cuMemPrefetchAsync_v2,
	  (CUdeviceptr address, size_t size_bytes, uint64_t location, unsigned flags,
	   CUhandle stream),
	  (address, size_bytes, location, flags, stream), NOTHING)
STUB(cuArrayCreate_v2, (CUhandle * array, const void *description), (array, description),
     CREATE(array))
STUB(cuArray3DCreate_v2, (CUhandle * array, const void *description), (array, description),
     CREATE(array))
STUB(cuArrayDestroy, (CUhandle array), (array), NOTHING)
STUB(cuMemUnmap, (CUdeviceptr address, size_t size_bytes), (address, size_bytes), NOTHING)

STUB(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t size_bytes), (to, from, size_bytes),
     NOTHING)
STUB(cuMemcpyHtoD_v2_ptds, (CUdeviceptr to, const void *from, size_t size_bytes),
     (to, from, size_bytes), NOTHING)
STUB(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t size_bytes), (to, from, size_bytes),
     NOTHING)
STUB(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t size_bytes), (to, from, size_bytes),
     NOTHING)
STUB_PTSZ(cuMemcpyHtoDAsync_v2,
	  (CUdeviceptr to, const void *from, size_t size_bytes, CUhandle stream),
	  (to, from, size_bytes, stream), NOTHING)
STUB_PTSZ(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t size_bytes, CUhandle stream),
	  (to, from, size_bytes, stream), NOTHING)
STUB_PTSZ(cuMemcpyDtoDAsync_v2,
	  (CUdeviceptr to, CUdeviceptr from, size_t size_bytes, CUhandle stream),
	  (to, from, size_bytes, stream), NOTHING)
STUB(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t size_bytes), (to, from, size_bytes),
     NOTHING)
STUB_PTSZ(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t size_bytes, CUhandle stream),
	  (to, from, size_bytes, stream), NOTHING)
STUB(cuMemcpyPeer,
     (CUdeviceptr to, CUhandle to_context, CUdeviceptr from, CUhandle from_context,
      size_t size_bytes),
     (to, to_context, from, from_context, size_bytes), NOTHING)
STUB_PTSZ(cuMemcpyPeerAsync,
	  (CUdeviceptr to, CUhandle to_context, CUdeviceptr from, CUhandle from_context,
	   size_t size_bytes, CUhandle stream),
	  (to, to_context, from, from_context, size_bytes, stream), NOTHING)
STUB(cuMemcpy2D_v2, (const void *copy), (copy), NOTHING)
STUB(cuMemcpy2DUnaligned_v2, (const void *copy), (copy), NOTHING)
STUB_PTSZ(cuMemcpy2DAsync_v2, (const void *copy, CUhandle stream), (copy, stream), NOTHING)
STUB(cuMemcpy3D_v2, (const void *copy), (copy), NOTHING)
STUB_PTSZ(cuMemcpy3DAsync_v2, (const void *copy, CUhandle stream), (copy, stream), NOTHING)
STUB_PTSZ(cuMemcpyBatchAsync_v2,
	  (CUdeviceptr * to, CUdeviceptr *from, size_t *sizes_bytes, size_t count, void *attributes,
	   size_t *attribute_numbers, size_t attribute_count, CUhandle stream),
	  (to, from, sizes_bytes, count, attributes, attribute_numbers, attribute_count, stream),
	  NOTHING)
STUB(cuMemsetD8_v2, (CUdeviceptr to, unsigned char value, size_t count), (to, value, count),
     NOTHING)
STUB(cuMemsetD16_v2, (CUdeviceptr to, unsigned short value, size_t count), (to, value, count),
     NOTHING)
STUB(cuMemsetD32_v2, (CUdeviceptr to, unsigned value, size_t count), (to, value, count), NOTHING)
STUB_PTSZ(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t count, CUhandle stream),
	  (to, value, count, stream), NOTHING)
STUB_PTSZ(cuMemsetD16Async, (CUdeviceptr to, unsigned short value, size_t count, CUhandle stream),
	  (to, value, count, stream), NOTHING)
STUB_PTSZ(cuMemsetD32Async, (CUdeviceptr to, unsigned value, size_t count, CUhandle stream),
	  (to, value, count, stream), NOTHING)

STUB_PTSZ(cuStreamBeginCapture_v2, (CUhandle stream, int mode), (stream, mode), NOTHING)
STUB_PTSZ(cuStreamBeginCaptureToGraph,
	  (CUhandle stream, CUhandle graph, const CUhandle *dependencies, const void *edges,
	   size_t count, int mode),
	  (stream, graph, dependencies, edges, count, mode), NOTHING)
STUB_PTSZ(cuStreamEndCapture, (CUhandle stream, CUhandle *graph), (stream, graph), CREATE(graph))
STUB(cuGraphInstantiateWithFlags, (CUhandle * executable, CUhandle graph, unsigned long long flags),
     (executable, graph, flags), CREATE(executable))
STUB_PTSZ(cuGraphInstantiateWithParams, (CUhandle * executable, CUhandle graph, void *parameters),
	  (executable, graph, parameters), CREATE(executable))

STUB(cuModuleGetFunction, (CUhandle * function, CUhandle module, const char *name),
     (function, module, name), CREATE(function))
STUB(cuLibraryGetKernel, (CUhandle * kernel, CUhandle library, const char *name),
     (kernel, library, name), CREATE(kernel))
STUB(cuKernelGetFunction, (CUhandle * function, CUhandle kernel), (function, kernel),
     CREATE(function))

STUB(cuStreamCreate, (CUhandle * stream, unsigned flags), (stream, flags), CREATE(stream))
STUB(cuStreamCreateWithPriority, (CUhandle * stream, unsigned flags, int priority),
     (stream, flags, priority), CREATE(stream))
STUB(cuStreamDestroy_v2, (CUhandle stream), (stream), NOTHING)
STUB(cuEventCreate, (CUhandle * event, unsigned flags), (event, flags), CREATE(event))
STUB(cuEventDestroy_v2, (CUhandle event), (event), NOTHING)
STUB_PTSZ(cuEventRecord, (CUhandle event, CUhandle stream), (event, stream), NOTHING)
STUB_PTSZ(cuEventRecordWithFlags, (CUhandle event, CUhandle stream, unsigned flags),
	  (event, stream, flags), NOTHING)
STUB(cuCtxSetCurrent, (CUhandle context), (context), NOTHING)

/* The device's number is the last byte, so that devices can be told apart. */
static int device_uuid(CUuuid *uuid, CUdevice device)
{
	if (device < 0 || device >= DEVICES)
		return INVALID_VALUE;
	for (int i = 0; i < 16; i++)
		uuid->bytes[i] = (char)(0xa0 + i);
	uuid->bytes[15] = (char)device;
	return 0;
}

STUB(cuDeviceGetUuid, (CUuuid * uuid, CUdevice device), (uuid, device),
     result = device_uuid(uuid, device))
STUB(cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice device), (uuid, device),
     result = device_uuid(uuid, device))

/* Signatures of CUDA before 4.0, which libcuda still exports: 32-bit device pointers. */
STUB(cuMemAlloc, (unsigned *address, unsigned size_bytes), (address, size_bytes), NOTHING)
STUB(cuMemcpy3D, (const void *copy), (copy), NOTHING)
STUB(cuMemFree, (unsigned address), (address), NOTHING)

/* Exported by every libcuda, and not in the probe table. */
EXPORT int cuInit(unsigned flags)
{
	return flags ? INVALID_VALUE : 0;
}

EXPORT int cuDriverGetVersion(int *version)
{
	*version = 13000;
	return 0;
}

#define PER_THREAD_STREAM 2

/* What programs ask the driver for by name, as the real one answers: by version, and by stream. */
static const struct {
	const char *name;
	int version;
	int per_thread;
	void *function;
} entries[] = {
	{"cuGetProcAddress", 12000, 0, NULL}, /* itself */
	{"cuLaunchKernel", 0, 0, cuLaunchKernel},
	{"cuLaunchKernel", 7000, 1, cuLaunchKernel_ptsz},
	{"cuMemcpyHtoD", 3020, 0, cuMemcpyHtoD_v2},
	{"cuMemcpyHtoD", 7000, 1, cuMemcpyHtoD_v2_ptds},
	{"cuMemcpyHtoDAsync", 3020, 0, cuMemcpyHtoDAsync_v2},
	{"cuStreamSynchronize", 0, 0, cuStreamSynchronize},
	{"cuStreamSynchronize", 7000, 1, cuStreamSynchronize_ptsz},
	{"cuMemAlloc", 3020, 0, cuMemAlloc_v2},
	{"cuInit", 0, 0, cuInit},
};

EXPORT int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
			       int *status)
{
	*function = NULL;
	for (unsigned i = 0; i < sizeof(entries) / sizeof(*entries); i++) {
		if (strcmp(symbol, entries[i].name) || version < entries[i].version ||
		    (entries[i].per_thread && !(flags & PER_THREAD_STREAM)))
			continue;
		*function = entries[i].function ? entries[i].function : cuGetProcAddress_v2;
	}
	if (status)
		*status = *function ? 0 : 1;
	return *function ? 0 : 500;
}

/* Of CUDA before 12. */
EXPORT int cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
	return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}

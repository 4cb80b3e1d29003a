/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stub libcudart.so.12: the runtime calls of the probe table. See stub.h.
 *
 * With nest=1 a call makes the driver call that the real runtime would make, found
 * through dlopen as the real runtime finds it, with the result passed on.
 */
#include "stub.h"

typedef struct {
	unsigned int x, y, z;
} dim3;
typedef struct stub_handle *cudaHandle; /* streams, events, graphs, pools */
typedef struct {
	dim3 gridDim;
	dim3 blockDim;
	size_t dynamicSmemBytes;
	cudaHandle stream;
	void *attrs;
	unsigned int numAttrs;
} cudaLaunchConfig_t;

#define DEVICES	       2
#define FIRST_ADDRESS  0x7e0000000000ull
#define INVALID_DEVICE 101
#define HOST_TO_DEVICE 1
#define DEVICE_TO_HOST 2

struct extent {
	size_t width, height, depth;
};
struct pitched_pointer {
	void *pointer;
	size_t pitch, width, height;
};
struct channel_format {
	int bits[4];
	int kind;
};
struct copy_3d {
	cudaHandle from_array;
	struct extent from_position;
	struct pitched_pointer from;
	cudaHandle to_array;
	struct extent to_position;
	struct pitched_pointer to;
	struct extent extent;
	int kind;
};

/* The first fields of cudaDeviceProp are the same in every CUDA version. */
struct device_properties {
	char name[256];
	char uuid[16];
	char rest[760];
};

static _Atomic uint64_t allocated_bytes;

/*
 * What is done with streams and events when a library puts work on them that is not done at once,
 * as the stub of NCCL does. Without one, all work is done as soon as it is asked for.
 */
struct stub_streams {
	void (*record)(cudaHandle event, cudaHandle stream);
	void (*stream_waits)(cudaHandle stream, cudaHandle event);
	int (*event_result)(cudaHandle event); /* 0, or 600 while it is not done */
	int (*stream_result)(cudaHandle stream);
	void (*await_event)(cudaHandle event);
	void (*await_stream)(cudaHandle stream);
	void (*await_device)(void);
};

static const struct stub_streams *streams;

EXPORT void stub_set_streams(const struct stub_streams *of_library)
{
	streams = of_library;
}

#define STREAMS(function, arguments)                                                               \
	if (streams)                                                                               \
	streams->function arguments
#define ANSWER(function, arguments)                                                                \
	if (streams)                                                                               \
	return streams->function arguments
static _Atomic uintptr_t handles = 0x1000;
static __thread int current_device;

#define ALLOCATE(where, size_bytes)                                                                \
	*(where) = (void *)new_address(FIRST_ADDRESS, &allocated_bytes, size_bytes)
#define CREATE(where) *(where) = (cudaHandle)atomic_fetch_add(&handles, 0x10)
#define NOTHING	      ((void)0)

/* Initialised eagerly, so that no lookup time lands inside a timed call. */
static void *driver;

__attribute__((constructor)) static void open_driver(void)
{
	const char *text = getenv("CUDA_STUB");

	if (text && strstr(text, "nest=1"))
		driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
}

static void *driver_function(const char *name)
{
	void *function;

	if (!driver)
		driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	function = driver ? dlsym(driver, name) : NULL;
	if (!function) {
		fprintf(stderr, "stub: no driver call %s: %s\n", name, dlerror());
		abort();
	}
	return function;
}

/* What the real runtime would make of its own structures. */
static const void *driver_copy, *driver_array;

EXPORT void stub_set_driver_structures(const void *copy, const void *array)
{
	driver_copy = copy;
	driver_array = array;
}

/* The driver call of a runtime call, when the runtime call is to make one. */
#define DRIVER(name, parameters, arguments)                                                        \
	if (behaviour->nest)                                                                       \
	return ((int(*) parameters)driver_function(name))arguments

#define STUB_PTSZ(name, parameters, arguments, work)                                               \
	STUB(name, parameters, arguments, work)                                                    \
	STUB(name##_ptsz, parameters, arguments, work)

STUB_PTSZ(cudaLaunchKernel,
	  (const void *f, dim3 grid, dim3 block, void **parameters, size_t shared_bytes,
	   cudaHandle stream),
	  (f, grid, block, parameters, shared_bytes, stream),
	  DRIVER("cuLaunchKernel",
		 (const void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
		  unsigned, cudaHandle, void **, void **),
		 (f, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes, stream,
		  parameters, NULL)))
STUB_PTSZ(cudaLaunchKernelExC, (const cudaLaunchConfig_t *config, const void *f, void **parameters),
	  (config, f, parameters), NOTHING)
STUB_PTSZ(cudaLaunchCooperativeKernel,
	  (const void *f, dim3 grid, dim3 block, void **parameters, size_t shared_bytes,
	   cudaHandle stream),
	  (f, grid, block, parameters, shared_bytes, stream), NOTHING)
STUB_PTSZ(cudaGraphLaunch, (cudaHandle graph, cudaHandle stream), (graph, stream),
	  DRIVER("cuGraphLaunch", (cudaHandle, cudaHandle), (graph, stream)))

STUB_PTSZ(cudaStreamSynchronize, (cudaHandle stream), (stream), STREAMS(await_stream, (stream));
	  DRIVER("cuStreamSynchronize", (cudaHandle), (stream)))
STUB(cudaDeviceSynchronize, (void), (), STREAMS(await_device, ());
     DRIVER("cuCtxSynchronize", (void), ()))
STUB(cudaEventSynchronize, (cudaHandle event), (event), STREAMS(await_event, (event));
     DRIVER("cuEventSynchronize", (cudaHandle), (event)))
/* With fail=600, the work is not done. */
STUB_PTSZ(cudaStreamQuery, (cudaHandle stream), (stream), ANSWER(stream_result, (stream));
	  DRIVER("cuStreamQuery", (cudaHandle), (stream)))
STUB(cudaEventQuery, (cudaHandle event), (event), ANSWER(event_result, (event));
     DRIVER("cuEventQuery", (cudaHandle), (event)))
STUB(cudaEventElapsedTime, (float *milliseconds, cudaHandle start, cudaHandle end),
     (milliseconds, start, end),
     DRIVER("cuEventElapsedTime_v2", (float *, cudaHandle, cudaHandle), (milliseconds, start, end));
     tell_elapsed(milliseconds, end))
STUB_PTSZ(cudaLaunchHostFunc, (cudaHandle stream, void *function, void *argument),
	  (stream, function, argument), NOTHING)
STUB_PTSZ(cudaStreamAddCallback,
	  (cudaHandle stream, void *function, void *argument, unsigned flags),
	  (stream, function, argument, flags), NOTHING)
STUB_PTSZ(cudaStreamWaitEvent, (cudaHandle stream, cudaHandle event, unsigned flags),
	  (stream, event, flags), STREAMS(stream_waits, (stream, event)))

STUB(cudaMalloc, (void **address, size_t size_bytes), (address, size_bytes),
     DRIVER("cuMemAlloc_v2", (void **, size_t), (address, size_bytes));
     ALLOCATE(address, size_bytes))
STUB(cudaMallocManaged, (void **address, size_t size_bytes, unsigned flags),
     (address, size_bytes, flags), ALLOCATE(address, size_bytes))
STUB(cudaMallocHost, (void **address, size_t size_bytes), (address, size_bytes),
     ALLOCATE(address, size_bytes))
STUB(cudaHostAlloc, (void **address, size_t size_bytes, unsigned flags),
     (address, size_bytes, flags), ALLOCATE(address, size_bytes))
STUB(cudaMallocPitch, (void **address, size_t *pitch, size_t width_bytes, size_t height),
     (address, pitch, width_bytes, height), *pitch = (width_bytes + 511) / 512 * 512;
     ALLOCATE(address, *pitch *height))
STUB_PTSZ(cudaMallocAsync, (void **address, size_t size_bytes, cudaHandle stream),
	  (address, size_bytes, stream), ALLOCATE(address, size_bytes))
STUB_PTSZ(cudaMallocFromPoolAsync,
	  (void **address, size_t size_bytes, cudaHandle pool, cudaHandle stream),
	  (address, size_bytes, pool, stream), ALLOCATE(address, size_bytes))
STUB(cudaMalloc3D, (struct pitched_pointer * pointer, struct extent extent), (pointer, extent),
     pointer->pitch = (extent.width + 511) / 512 * 512;
     ALLOCATE(&pointer->pointer, pointer->pitch *extent.height *extent.depth))
STUB(cudaMallocArray,
     (cudaHandle * array, const struct channel_format *format, size_t width, size_t height,
      unsigned flags),
     (array, format, width, height, flags),
     DRIVER("cuArrayCreate_v2", (cudaHandle *, const void *), (array, driver_array));
     CREATE(array))
STUB(cudaMalloc3DArray,
     (cudaHandle * array, const struct channel_format *format, struct extent extent,
      unsigned flags),
     (array, format, extent, flags), CREATE(array))
STUB(cudaFreeArray, (cudaHandle array), (array), DRIVER("cuArrayDestroy", (cudaHandle), (array)))
STUB_PTSZ(cudaMemPrefetchAsync,
	  (const void *address, size_t size_bytes, uint64_t location, unsigned flags,
	   cudaHandle stream),
	  (address, size_bytes, location, flags, stream), NOTHING)
STUB(cudaFree, (void *address), (address), DRIVER("cuMemFree_v2", (void *), (address)))
STUB(cudaFreeHost, (void *address), (address), NOTHING)
STUB_PTSZ(cudaFreeAsync, (void *address, cudaHandle stream), (address, stream), NOTHING)
STUB(cudaHostRegister, (void *address, size_t size_bytes, unsigned flags),
     (address, size_bytes, flags), NOTHING)

STUB(cudaMemcpy, (void *to, const void *from, size_t size_bytes, int kind),
     (to, from, size_bytes, kind),
     DRIVER(kind == HOST_TO_DEVICE   ? "cuMemcpyHtoD_v2"
	    : kind == DEVICE_TO_HOST ? "cuMemcpyDtoH_v2"
				     : "cuMemcpyDtoD_v2",
	    (void *, const void *, size_t), (to, from, size_bytes)))
STUB(cudaMemcpy_ptds, (void *to, const void *from, size_t size_bytes, int kind),
     (to, from, size_bytes, kind), NOTHING)
STUB_PTSZ(cudaMemcpyAsync,
	  (void *to, const void *from, size_t size_bytes, int kind, cudaHandle stream),
	  (to, from, size_bytes, kind, stream),
	  DRIVER(kind == HOST_TO_DEVICE	  ? "cuMemcpyHtoDAsync_v2"
		 : kind == DEVICE_TO_HOST ? "cuMemcpyDtoHAsync_v2"
					  : "cuMemcpyDtoDAsync_v2",
		 (void *, const void *, size_t, cudaHandle), (to, from, size_bytes, stream)))
STUB(cudaMemcpy2D,
     (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width_bytes,
      size_t height, int kind),
     (to, to_pitch, from, from_pitch, width_bytes, height, kind), NOTHING)
STUB_PTSZ(cudaMemcpy2DAsync,
	  (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width_bytes,
	   size_t height, int kind, cudaHandle stream),
	  (to, to_pitch, from, from_pitch, width_bytes, height, kind, stream), NOTHING)
STUB(cudaMemcpyPeer,
     (void *to, int to_device, const void *from, int from_device, size_t size_bytes),
     (to, to_device, from, from_device, size_bytes), NOTHING)
STUB(cudaMemcpyPeerAsync,
     (void *to, int to_device, const void *from, int from_device, size_t size_bytes,
      cudaHandle stream),
     (to, to_device, from, from_device, size_bytes, stream), NOTHING)
STUB(cudaMemcpy3D, (const struct copy_3d *copy), (copy),
     DRIVER("cuMemcpy3D_v2", (const void *), (driver_copy)))
STUB_PTSZ(cudaMemcpy3DAsync, (const struct copy_3d *copy, cudaHandle stream), (copy, stream),
	  NOTHING)
STUB_PTSZ(cudaMemcpyBatchAsync,
	  (void *const *to, const void *const *from, const size_t *sizes_bytes, size_t count,
	   void *attributes, size_t *attribute_numbers, size_t attribute_count, cudaHandle stream),
	  (to, from, sizes_bytes, count, attributes, attribute_numbers, attribute_count, stream),
	  NOTHING)
STUB(cudaMemset, (void *to, int value, size_t size_bytes), (to, value, size_bytes),
     DRIVER("cuMemsetD8_v2", (void *, unsigned char, size_t), (to, value, size_bytes)))
STUB_PTSZ(cudaMemsetAsync, (void *to, int value, size_t size_bytes, cudaHandle stream),
	  (to, value, size_bytes, stream), NOTHING)

STUB_PTSZ(cudaStreamBeginCapture, (cudaHandle stream, int mode), (stream, mode), NOTHING)
STUB_PTSZ(cudaStreamEndCapture, (cudaHandle stream, cudaHandle *graph), (stream, graph),
	  CREATE(graph))
STUB(cudaGraphInstantiate, (cudaHandle * executable, cudaHandle graph, unsigned long long flags),
     (executable, graph, flags), CREATE(executable))
STUB(cudaGraphInstantiateWithFlags,
     (cudaHandle * executable, cudaHandle graph, unsigned long long flags),
     (executable, graph, flags), CREATE(executable))

STUB(cudaGraphInstantiateWithParams, (cudaHandle * executable, cudaHandle graph, void *parameters),
     (executable, graph, parameters), CREATE(executable))
STUB_PTSZ(cudaStreamBeginCaptureToGraph,
	  (cudaHandle stream, cudaHandle graph, const cudaHandle *dependencies, const void *edges,
	   size_t count, int mode),
	  (stream, graph, dependencies, edges, count, mode), NOTHING)

STUB(cudaGetKernel, (cudaHandle * kernel, const void *function), (kernel, function), CREATE(kernel))
STUB(__cudaGetKernel, (cudaHandle * kernel, const void *function), (kernel, function),
     CREATE(kernel))
STUB(cudaGetFuncBySymbol, (cudaHandle * handle, const void *function), (handle, function),
     CREATE(handle))
STUB(cudaLibraryGetKernel, (cudaHandle * kernel, cudaHandle library, const char *name),
     (kernel, library, name), CREATE(kernel))

STUB(cudaStreamCreate, (cudaHandle * stream), (stream), CREATE(stream))
/* Ends in a jump to another API, as compilers make of a call in the last place. */
EXPORT __attribute__((optimize("optimize-sibling-calls"))) int
cudaStreamCreateWithFlags(cudaHandle *stream, unsigned flags)
{
	return cudaStreamCreate(stream);
}

STUB(cudaStreamCreateWithPriority, (cudaHandle * stream, unsigned flags, int priority),
     (stream, flags, priority), CREATE(stream))
STUB(cudaStreamDestroy, (cudaHandle stream), (stream), NOTHING)
STUB(cudaEventCreate, (cudaHandle * event), (event), CREATE(event))
STUB(cudaEventCreateWithFlags, (cudaHandle * event, unsigned flags), (event, flags), CREATE(event))
STUB(cudaEventDestroy, (cudaHandle event), (event), NOTHING)
STUB_PTSZ(cudaEventRecord, (cudaHandle event, cudaHandle stream), (event, stream),
	  STREAMS(record, (event, stream)))
STUB_PTSZ(cudaEventRecordWithFlags, (cudaHandle event, cudaHandle stream, unsigned flags),
	  (event, stream, flags), STREAMS(record, (event, stream)))

STUB(cudaSetDevice, (int device), (device),
     if (device < 0 || device >= DEVICES) return INVALID_DEVICE;
     current_device = device)
STUB(cudaGetDevice, (int *device), (device), *device = current_device)

/* The device's number is the last byte of the UUID and of the name. */
static int device_properties(struct device_properties *properties, int device)
{
	if (device < 0 || device >= DEVICES)
		return INVALID_DEVICE;
	memset(properties, 0, sizeof(*properties));
	snprintf(properties->name, sizeof(properties->name), "Stub GPU %d", device);
	for (int i = 0; i < 16; i++)
		properties->uuid[i] = (char)(0xa0 + i);
	properties->uuid[15] = (char)device;
	return 0;
}

STUB(cudaGetDeviceProperties, (struct device_properties * properties, int device),
     (properties, device), result = device_properties(properties, device))

/* A second name of the same code, as libcudart.so.12 has it: one probe, not two. */
EXPORT __typeof__(cudaGetDeviceProperties) cudaGetDeviceProperties_v2
	__attribute__((alias("cudaGetDeviceProperties")));

/* Exported by every libcudart, and not in the probe table. */
EXPORT int cudaGetDeviceCount(int *count)
{
	*count = DEVICES;
	return 0;
}

EXPORT int cudaRuntimeGetVersion(int *version)
{
	*version = 12000;
	return 0;
}

EXPORT int cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
					    unsigned long long flags, int *status)
{
	int (*find)(const char *, void **, int, uint64_t, int *) =
		driver_function("cuGetProcAddress_v2");

	return find(symbol, function, version, flags, status);
}

EXPORT int cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
				   int *status)
{
	return cudaGetDriverEntryPointByVersion(symbol, function, 12000, flags, status);
}

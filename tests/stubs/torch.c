/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What PyTorch needs of CUDA besides the calls of the probe table, so that a real PyTorch runs
 * on the stubs: no device computes anything, and no copy copies. As a runtime (with -DRUNTIME), it
 * comes after cudart.c; as a driver it is all that PyTorch opens of libcuda.so.1.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DOES_NOTHING(name)                                                                         \
	int name(void)                                                                             \
	{                                                                                          \
		return 0;                                                                          \
	}

#if defined(RUNTIME)

#define ATTRIBUTES_BYTES 64 /* of struct cudaFuncAttributes, those that are read */
#define MEMORY_BYTES	 (1ull << 34)

struct size {
	uint32_t x, y, z;
};

static __thread struct {
	struct size grid, block;
	size_t shared_bytes;
	void *stream;
} pushed;
static void *fat_binary;

/* What <<<...>>> is compiled to: the wrapper of a kernel takes its arguments from here. */
unsigned __cudaPushCallConfiguration(struct size grid, struct size block, size_t shared_bytes,
				     void *stream)
{
	pushed.grid = grid;
	pushed.block = block;
	pushed.shared_bytes = shared_bytes;
	pushed.stream = stream;
	return 0;
}

int __cudaPopCallConfiguration(struct size *grid, struct size *block, size_t *shared_bytes,
			       void **stream)
{
	*grid = pushed.grid;
	*block = pushed.block;
	*shared_bytes = pushed.shared_bytes;
	*stream = pushed.stream;
	return 0;
}

void **__cudaRegisterFatBinary(void *binary)
{
	return &fat_binary;
}

const char *cudaGetErrorString(int error)
{
	return "an error of the stub";
}

const char *cudaGetErrorName(int error)
{
	return "stub";
}

int cudaDriverGetVersion(int *version)
{
	*version = 12040;
	return 0;
}

int cudaDeviceGetAttribute(int *value, int attribute, int device)
{
	*value = 1;
	return 0;
}

int cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	*least = 0;
	*greatest = -5;
	return 0;
}

int cudaDeviceCanAccessPeer(int *can_access, int device, int peer)
{
	*can_access = 0;
	return 0;
}

int cudaStreamIsCapturing(void *stream, int *status)
{
	*status = 0;
	return 0;
}

int cudaStreamGetCaptureInfo_v2(void *stream, int *status)
{
	*status = 0;
	return 0;
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function,
							   int size, size_t shared_bytes,
							   unsigned flags)
{
	*blocks = 8;
	return 0;
}

int cudaFuncGetAttributes(void *attributes, const void *function)
{
	memset(attributes, 0, ATTRIBUTES_BYTES);
	return 0;
}

int cudaPointerGetAttributes(int *attributes, const void *pointer)
{
	*attributes = 0;
	return 0;
}

int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
	*free_bytes = *total_bytes = MEMORY_BYTES;
	return 0;
}

DOES_NOTHING(__cudaRegisterFatBinaryEnd)
DOES_NOTHING(__cudaRegisterFunction)
DOES_NOTHING(__cudaRegisterVar)
DOES_NOTHING(__cudaUnregisterFatBinary)
DOES_NOTHING(cudaGetLastError)
DOES_NOTHING(cudaPeekAtLastError)
DOES_NOTHING(cudaThreadExchangeStreamCaptureMode)

#else

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is_active)
{
	*flags = 0;
	*is_active = 1;
	return 0;
}

DOES_NOTHING(cuInit)
DOES_NOTHING(cuGetErrorString)

#endif

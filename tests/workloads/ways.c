/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ways WAY
 *
 * Makes known numbers of calls that it comes by in one of the ways that programs have, and says how
 * many the libraries saw. Linked with libcudart. Ends when its standard input does.
 */
#include "workload.h"

#define LAUNCHES     101
#define COPIES	     53
#define COPIED_BYTES 1009
#define WAITS	     31
#define ALLOCATIONS  7

int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *);
int cudaMemcpyAsync(void *, const void *, size_t, int, void *);
int cudaStreamSynchronize(void *);
int cudaMalloc(void **, size_t);
int cudaGetDriverEntryPoint(const char *, void **, unsigned long long, int *);
int cudaGetDriverEntryPointByVersion(const char *, void **, unsigned, unsigned long long, int *);

typedef int (*lookup)(const char *, void **, int, uint64_t, int *);
typedef int (*old_lookup)(const char *, void **, int, uint64_t);

struct runtime {
	__typeof__(&cudaLaunchKernel) launch;
	__typeof__(&cudaMemcpyAsync) copy;
	__typeof__(&cudaStreamSynchronize) wait;
	__typeof__(&cudaMalloc) allocate;
};

struct driver {
	int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
		      void *, void **, void **);
	int (*copy)(unsigned long long, const void *, size_t);
	int (*wait)(void *);
	int (*allocate)(unsigned long long *, size_t);
};

static void check(int status)
{
	if (status)
		fail("a call failed");
}

static void use_runtime(const struct runtime *runtime)
{
	dim3 grid = {3, 2, 1}, block = {64, 1, 1};
	void *address;

	for (int i = 0; i < ALLOCATIONS; i++)
		check(runtime->allocate(&address, 64));
	for (int i = 0; i < LAUNCHES; i++)
		check(runtime->launch((void *)check, grid, block, NULL, 0, NULL));
	for (int i = 0; i < COPIES; i++)
		check(runtime->copy(address, &address, COPIED_BYTES, HOST_TO_DEVICE, NULL));
	for (int i = 0; i < WAITS; i++)
		check(runtime->wait(NULL));
}

static void use_driver(const struct driver *driver)
{
	unsigned long long address;

	for (int i = 0; i < ALLOCATIONS; i++)
		check(driver->allocate(&address, 64));
	for (int i = 0; i < LAUNCHES; i++)
		check(driver->launch((void *)check, 3, 2, 1, 64, 1, 1, 0, NULL, NULL, NULL));
	for (int i = 0; i < COPIES; i++)
		check(driver->copy(address, &address, COPIED_BYTES));
	for (int i = 0; i < WAITS; i++)
		check(driver->wait(NULL));
}

static void find_runtime(struct runtime *runtime, void *handle)
{
	runtime->launch = symbol(handle, "cudaLaunchKernel");
	runtime->copy = symbol(handle, "cudaMemcpyAsync");
	runtime->wait = symbol(handle, "cudaStreamSynchronize");
	runtime->allocate = symbol(handle, "cudaMalloc");
}

static void find_driver(struct driver *driver, void *handle)
{
	driver->launch = symbol(handle, "cuLaunchKernel");
	driver->copy = symbol(handle, "cuMemcpyHtoD_v2");
	driver->wait = symbol(handle, "cuStreamSynchronize_ptsz");
	driver->allocate = symbol(handle, "cuMemAlloc_v2");
}

static void ask(lookup find, struct driver *driver, uint64_t flags)
{
	lookup found;

	check(find("cuGetProcAddress", (void **)&found, 12000, flags, NULL));
	check(found("cuLaunchKernel", (void **)&driver->launch, 12000, flags, NULL));
	check(found("cuMemcpyHtoD", (void **)&driver->copy, 12000, flags, NULL));
	check(found("cuStreamSynchronize", (void **)&driver->wait, 12000, flags, NULL));
	check(found("cuMemAlloc", (void **)&driver->allocate, 12000, flags, NULL));
	if (!found("cuNothing", (void **)&found, 12000, flags, NULL))
		fail("there is no cuNothing");
}

static void ask_old(old_lookup find, struct driver *driver)
{
	check(find("cuLaunchKernel", (void **)&driver->launch, 11030, 0));
	check(find("cuMemcpyHtoD", (void **)&driver->copy, 11030, 0));
	check(find("cuStreamSynchronize", (void **)&driver->wait, 11030, 0));
	check(find("cuMemAlloc", (void **)&driver->allocate, 11030, 0));
}

static void ask_runtime(struct driver *driver, int by_version)
{
	static const char *const names[] = {"cuLaunchKernel", "cuMemcpyHtoD", "cuStreamSynchronize",
					    "cuMemAlloc"};
	void **functions = (void **)driver;

	for (int i = 0; i < 4; i++)
		check(by_version ? cudaGetDriverEntryPointByVersion(names[i], &functions[i], 12000,
								    2, NULL)
				 : cudaGetDriverEntryPoint(names[i], &functions[i], 0, NULL));
}

int main(int argc, char **argv)
{
	struct runtime linked = {cudaLaunchKernel, cudaMemcpyAsync, cudaStreamSynchronize,
				 cudaMalloc};
	const char *way = argc > 1 ? argv[1] : "linked";
	struct runtime runtime = {NULL};
	struct driver driver = {NULL};
	void *libcuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!libcuda)
		fail(dlerror());
	if (!strcmp(way, "linked"))
		runtime = linked;
	else if (!strcmp(way, "handle"))
		find_runtime(&runtime, dlopen("libcudart.so.12", RTLD_NOW | RTLD_LOCAL));
	else if (!strcmp(way, "default"))
		find_runtime(&runtime, RTLD_DEFAULT);
	else if (!strcmp(way, "next"))
		find_runtime(&runtime, RTLD_NEXT);
	else if (!strcmp(way, "driver"))
		find_driver(&driver, libcuda);
	else if (!strcmp(way, "address"))
		ask(symbol(libcuda, "cuGetProcAddress_v2"), &driver, 0);
	else if (!strcmp(way, "address-per-thread"))
		ask(symbol(libcuda, "cuGetProcAddress_v2"), &driver, 2);
	else if (!strcmp(way, "address-old"))
		ask_old(symbol(libcuda, "cuGetProcAddress"), &driver);
	else if (!strcmp(way, "entry-point"))
		ask_runtime(&driver, 0);
	else if (!strcmp(way, "entry-point-by-version"))
		ask_runtime(&driver, 1);
	else
		fail(way);
	if (dlsym(RTLD_DEFAULT, "cuMemcpyHtoD_v2") || !dlerror())
		fail("nobody has the driver in the scope of all");
	if (runtime.launch)
		use_runtime(&runtime);
	else
		use_driver(&driver);
	puts("done");
	fflush(stdout);
	return getchar() != EOF;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * odd_library HOW CALLS LIBRARY [wait]
 *
 * Opens a library that is not where it seems to be, and calls cudaMalloc CALLS times.
 *
 *     path       it is
 *     linked     it came with the program (LD_PRELOAD)
 *     memory     a copy in memory, whose name says nothing
 *     deleted    its file is gone once it is open
 *     replaced   another file has its name once it is open
 *
 * Prints a JSON line; with "wait" one before its calls, too, which wait for a line then.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void copy(int to, const char *path)
{
	char buffer[65536];
	int from = open(path, O_RDONLY);
	ssize_t size;

	while ((size = read(from, buffer, sizeof(buffer))) > 0)
		if (write(to, buffer, size) != size)
			exit(71);
	close(from);
}

int main(int argc, char **argv)
{
	const char *how = argc > 3 ? argv[1] : "", *path = argc > 3 ? argv[3] : "";
	char place[4096], spare[4096];
	int (*allocate)(void **, size_t);
	void *library, *address;

	snprintf(place, sizeof(place), "%s", path);
	snprintf(spare, sizeof(spare), "%s.spare", path);
	if (!strcmp(how, "memory")) {
		int memory = memfd_create("anything", 0);

		copy(memory, path);
		snprintf(place, sizeof(place), "/proc/self/fd/%d", memory);
	}
	library = dlopen(strcmp(how, "linked") ? place : NULL, RTLD_NOW);
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 70;
	}
	if (!strcmp(how, "replaced")) {
		copy(open(spare, O_CREAT | O_WRONLY, 0755), path);
		rename(spare, path);
	} else if (!strcmp(how, "deleted")) {
		unlink(path);
	}
	allocate = (int (*)(void **, size_t))dlsym(library, "cudaMalloc");
	if (argc > 4) {
		puts("{}");
		fflush(stdout);
		getchar();
	}
	for (int i = 0; i < atoi(argv[2]); i++)
		allocate(&address, 256);
	printf("{\"pid\": %d, \"cudaMalloc\": %s}\n", getpid(), argv[2]);
	return 0;
}

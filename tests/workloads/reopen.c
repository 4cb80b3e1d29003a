/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reopen close|namespace CALLS LIBRARY...
 *
 * Opens one library after the other and calls cudaMalloc CALLS times in each.
 *
 *     close      each is closed before the next is opened, so that the dynamic linker
 *                can put the next one's records where the last one's were
 *     namespace  each is opened in a link-map namespace of its own (dlmopen)
 */
#include "workload.h"

int main(int argc, char **argv)
{
	uint64_t calls, made = 0;

	if (argc < 4)
		fail("reopen close|namespace CALLS LIBRARY...");
	calls = number(argv[2]);
	for (int i = 3; i < argc; i++) {
		struct cuda cuda;
		void *address;

		if (!strcmp(argv[1], "namespace"))
			cuda_find(&cuda, dlmopen(LM_ID_NEWLM, argv[i], RTLD_NOW));
		else
			cuda_open(&cuda, argv[i]);
		for (uint64_t call = 0; call < calls; call++, made++)
			cuda.malloc(&address, 256);
		if (!strcmp(argv[1], "close"))
			dlclose(cuda.handle);
	}
	printf("{\"pid\": %d, \"cudaMalloc\": %" PRIu64 "}\n", getpid(), made);
	return 0;
}

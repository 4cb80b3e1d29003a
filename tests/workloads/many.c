/* SPDX-License-Identifier: Apache-2.0 */
/*
 * many LIBRARY...
 *
 * Opens one library after the other, makes one call in each, and prints a JSON line
 * after each. Under an agent every dlopen is a moment at which this program waits.
 */
#include "workload.h"

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 1; i < argc; i++) {
		struct cuda cuda;
		void *address;

		cuda_open(&cuda, argv[i]);
		cuda.malloc(&address, 256);
		printf("{\"pid\": %d, \"opened\": %d}\n", getpid(), i);
	}
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * devices LIBRARY
 *
 * Reads the properties of two devices, then allocates, copies and frees on each.
 */
#include "workload.h"

int main(int argc, char **argv)
{
	struct cuda cuda;
	char properties[1024];

	if (argc < 2)
		fail("devices LIBRARY");
	cuda_open(&cuda, argv[1]);
	for (int device = 0; device < 2; device++) {
		void *address;

		cuda.get_device_properties(properties, device);
		cuda.set_device(device);
		for (int i = 0; i < 3 + device; i++) {
			cuda.malloc(&address, 1000);
			cuda.memcpy(address, properties, 100, HOST_TO_DEVICE);
			if (!device)
				cuda.free(address);
		}
	}
	printf("{\"pid\": %d}\n", getpid());
	return 0;
}

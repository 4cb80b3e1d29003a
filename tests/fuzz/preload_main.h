/*
 * The frame of a target in C: inputs come through a pipe, as a length of 4 bytes and so many bytes. Each
 * is answered with a byte. Compiled with -fsanitize=fuzzer, libFuzzer takes its place.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

void run_input(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* In memory of its own size: what is read behind it is seen. */
	run_input(data, size);
	return 0;
}

#ifndef LIBFUZZER
int main(void)
{
	uint32_t size;

	while (fread(&size, sizeof(size), 1, stdin) == 1) {
		uint8_t *data = malloc(size ? size : 1);

		if (!data || fread(data, 1, size, stdin) != size)
			return 1;
		LLVMFuzzerTestOneInput(data, size);
		free(data);
		putchar('.');
		fflush(stdout);
	}
	return 0;
}
#endif

/*
 * Ranges and names of a program, by any calls of NVTX in any order.
 *
 * An input is a list of calls: a byte for the call and a byte for its argument, then a message, which
 * ends with a NUL as the contract wants it. Each message has a buffer of its own size, so that a read
 * behind its end is seen.
 */
#define _GNU_SOURCE
#include "preload_main.h"

#include "../../preload/libotel_gpu_nvtx.c"

#define NAMES 8

static struct name *known_names[NAMES];
static uint64_t known_starts[NAMES];

static void run_call(uint8_t call, uint8_t argument, const char *text, size_t length)
{
	struct event_attributes event = {.message_kind = argument % 5, .message = text};
	const struct name *domain = known_names[argument / 8 % NAMES];
	wchar_t *wide = calloc(length / 4 + 1, sizeof(*wide));

	memcpy(wide, text, length / 4 * sizeof(*wide));
	if (event.message_kind == UNICODE)
		event.message = wide;
	if (event.message_kind == REGISTERED)
		event.message = known_names[argument % NAMES];
	switch (call % 12) {
	case 0:
		domain_push(domain, argument & 1 ? &event : NULL);
		break;
	case 1:
		pop(domain);
		break;
	case 2:
		known_starts[argument % NAMES] = domain_start(domain, &event);
		break;
	case 3:
		domain_end(domain, known_starts[argument % NAMES]);
		break;
	case 4:
		end(length >= sizeof(uint64_t) ? *(const uint64_t *)text : argument);
		break;
	case 5:
		domain_mark(domain, &event);
		break;
	case 6:
		known_names[argument % NAMES] = create_a(argument & 1 ? text : NULL);
		break;
	case 7:
		known_names[argument % NAMES] = register_w(domain, wide);
		break;
	case 8:
		push_a(text);
		break;
	case 9:
		push_w(wide);
		break;
	case 10:
		pop_default();
		break;
	case 11:
		clear_in_child();
		break;
	}
	free(wide);
}

void run_input(const uint8_t *data, size_t size)
{
	static bool is_prepared;

	if (!is_prepared)
		prepare();
	is_prepared = true;
	while (size > 2) {
		size_t length = strnlen((const char *)data + 2, size - 2);
		char *text = malloc(length + 1);

		memcpy(text, data + 2, length);
		text[length] = 0;
		run_call(data[0], data[1], text, length);
		free(text);
		size -= length + 2;
		data += length + 2;
		if (size) {
			size--;
			data++;
		}
	}
	/* The next input begins without ranges, domains and names. */
	end_thread(own_thread);
	clear_in_child();
	for (int i = 0; i < NAMES; i++) {
		free(known_names[i]);
		known_names[i] = NULL;
	}
	atomic_store(&named, 0);
}

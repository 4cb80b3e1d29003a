/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Code objects of CPython: how they are distinguished, and what is sent of each, once.
 *
 * A frame names its code object by a number. What belongs to the number (name, file, line
 * table) is sent when it is met for the first time, while it is there: a moment later the
 * process may be gone, or the code object with whatever it was made for.
 */
#ifndef OTEL_GPU_BPF_PYTHON_CODE_OBJECTS_H
#define OTEL_GPU_BPF_PYTHON_CODE_OBJECTS_H

#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/tasks.bpf.h"
#include "core/user_memory.bpf.h"
#include "events.h"

#define MAX_CODE_BYTES	  (1 << 24) /* of instructions, of a line table, characters of a text */
#define CODE_WINDOW_BYTES 512
#define CODE_UNREAD	  16 /* of a code object, from its beginning on */
#define SMALL_LINE_TABLE  512
#define RECENT_CODE_BITS  13
#define MAX_CODE_SENT	  8

/* Of the state of a PyUnicode. */
#define TEXT_KIND_SHIFT 2
#define TEXT_KIND_MASK	7
#define TEXT_COMPACT	(1 << 5)
#define TEXT_ASCII	(1 << 6)

/* The beginning of a code object. Any offset up to the window leaves space for a word. */
struct code_head {
	__u64 address;
	__u8 bytes[CODE_WINDOW_BYTES + sizeof(__u64)];
};

struct code_key {
	__u64 program_ktime_ns;
	__u64 code;
	__u32 pid;
	__u32 padding;
};

/*
 * How often code objects were sent; MAX_CODE_SENT: the agent has all of it, or a page of it
 * is not in memory and will not be. LRU: what is forgotten is sent again.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 32768);
	__type(key, struct code_key);
	__type(value, __u32);
} sent_code __weak SEC(".maps");

/* Tags of those that were used lately, at a part of the tag: most frames are found here. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << RECENT_CODE_BITS);
	__type(key, __u32);
	__type(value, __u64);
} recent_code __weak SEC(".maps");

/* Samples and code objects must not displace the records that they belong to. */
static __always_inline bool may_send_samples(void)
{
	return bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) < settings.sample_limit_bytes;
}

static __always_inline bool read_word(user_memory memory, __u64 *word, __u64 address)
{
	return !READ_MEMORY(memory, word, sizeof(*word), address);
}

static __always_inline __u64 code_word(const struct code_head *head, __u32 offset)
{
	return *(__u64 *)(head->bytes + (offset & (CODE_WINDOW_BYTES - 1)));
}

/*
 * Read the beginning of a code object. The first words, a count and a type, are left out: what
 * is then left of it, 128 bytes in most versions, is read a fifth faster.
 */
static __always_inline bool read_code(user_memory memory, struct code_head *head,
				      const struct interpreter *interpreter, __u64 code)
{
	__u32 size = interpreter->code_bytes - CODE_UNREAD;

	/* A layout may be a lie, and what was here may be another process's. */
	__builtin_memset(head->bytes, 0, CODE_UNREAD);
	head->address = code;
	return size <= CODE_WINDOW_BYTES - CODE_UNREAD &&
	       !READ_MEMORY(memory, head->bytes + CODE_UNREAD, size, code + CODE_UNREAD);
}

/*
 * Memory of a code object is used again after it: its size and what it points to belong to
 * its name. The products do not wait for each other; any odd numbers with many bits will do.
 */
static __always_inline __u64 name_code(const struct code_head *head,
				       const struct interpreter *interpreter)
{
	__u32 first_line = code_word(head, interpreter->code_first_line);
	__u64 hash = head->address * 0x9e3779b97f4a7c15ULL + first_line * 0xd1b54a32d192ed03ULL;

	hash += code_word(head, interpreter->code_line_table) * 0x8cb92ba72f3d8dd7ULL;
	hash += code_word(head, interpreter->code_name) * 0xabc98388fb8fac03ULL;
	hash += code_word(head, interpreter->code_file) * 0xf1357aea2e62a9c5ULL;
	/* Where a variable object, as code is from 3.11 on, has its size. */
	hash += code_word(head, interpreter->bytes_length) * 0xda942042e4dd58b5ULL;
	return (hash ^ hash >> 32) * 0x9e3779b97f4a7c15ULL;
}

/* False: it could not be read, as opposed to being of a kind that we do not know. */
LINKAGE __noinline int read_text(user_memory memory, struct code_text *text,
				 const struct interpreter *interpreter, __u64 address)
{
	__u64 length = 0, from = address, bytes; /* wide, or older verifiers lose its bounds */
	__u32 state = 0, kind;

	if (!text || !interpreter)
		return false;
	text->length = 0;
	text->character_bytes = 1;
	if (!read_word(memory, &length, address + interpreter->text_length) ||
	    READ_MEMORY(memory, &state, sizeof(state), address + interpreter->text_state))
		return false;
	kind = state >> TEXT_KIND_SHIFT & TEXT_KIND_MASK;
	if (!(state & TEXT_COMPACT) || (kind != 1 && kind != 2 && kind != 4) ||
	    length > MAX_CODE_BYTES)
		return true;
	from += state & TEXT_ASCII ? interpreter->text_ascii : interpreter->text_compact;
	bytes = length > TEXT_BYTES ? TEXT_BYTES : length * kind;
	if (bytes > TEXT_BYTES)
		bytes = TEXT_BYTES;
	if (READ_MEMORY(memory, text->data, bytes, from))
		return false;
	text->length = length;
	text->character_bytes = kind;
	return true;
}

/* How many times it counts as sent: MAX_CODE_SENT if it is whole, 0 if the ring was full. */
static __always_inline __u32 send_with_table(user_memory memory, const struct record_header *header,
					     const struct code_head *head,
					     const struct interpreter *interpreter, __u64 code,
					     __u64 length, const __u32 capacity)
{
	const __u32 size = __builtin_offsetof(struct code_record, line_table) + capacity;
	__u64 line_table = code_word(head, interpreter->code_line_table) + interpreter->bytes_data;
	struct code_record *record = bpf_ringbuf_reserve(&events, size, 0);
	bool is_whole;

	if (!record)
		return 0;
	fill_header(&record->header, RECORD_CODE, size, bpf_ktime_get_ns(),
		    header->program_ktime_ns, header->pid, header->tid);
	record->code = code;
	record->address = head->address;
	record->first_line = code_word(head, interpreter->code_first_line);
	record->version = interpreter->version;
	record->line_table_length = length;
	record->line_table_bytes = 0;
	/* Every one has a table, if only of a few bytes. */
	is_whole = length > 0;
	is_whole &= read_text(memory, &record->file, interpreter,
			      code_word(head, interpreter->code_file));
	is_whole &= read_text(memory, &record->qualified_name, interpreter,
			      code_word(head, interpreter->code_name));
	barrier_var(length); /* or what is checked is another copy of it than what is used */
	if (length > capacity)
		length = capacity;
	if (READ_MEMORY(memory, record->line_table, length, line_table))
		is_whole = false;
	else
		record->line_table_bytes = length;
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	return is_whole ? MAX_CODE_SENT : 1;
}

/*
 * Send a code object, of the process and thread in the header. It is behind a sample that
 * is being taken, but before the record that the sample is for. Returns how many times it
 * counts as sent.
 */
LINKAGE __noinline int send_code(user_memory memory, const struct record_header *header,
				 const struct code_head *head,
				 const struct interpreter *interpreter, __u64 code)
{
	__u64 length = 0;
	__u32 sent = 0;
	bool is_below_limit;

	if (!header || !head || !interpreter)
		return 0;
	if (!read_word(memory, &length,
		       code_word(head, interpreter->code_line_table) + interpreter->bytes_length) ||
	    length > MAX_CODE_BYTES)
		length = 0;
	is_below_limit = may_send_samples();
	if (is_below_limit && length <= SMALL_LINE_TABLE)
		sent = send_with_table(memory, header, head, interpreter, code, length,
				       SMALL_LINE_TABLE);
	else if (is_below_limit)
		sent = send_with_table(memory, header, head, interpreter, code, length,
				       LINE_TABLE_BYTES);
	if (!sent)
		count(COUNTER_LOST_SAMPLE);
	else if (sent < MAX_CODE_SENT)
		count(COUNTER_LOST_PYTHON);
	return sent;
}

#endif

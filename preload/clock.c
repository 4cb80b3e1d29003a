// SPDX-License-Identifier: Apache-2.0
/*
 * What time it is: ktime, at half the price.
 *
 * The system's clock costs as much as all else that is done for a call. Where it is made of the
 * processor's counter, so is this one: a thread asks the system every few milliseconds, and counts
 * on from there at the rate that was seen. Until that is known, and where the system does not trust
 * the counter, the system is asked.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "compiler.h"
#include "layout.h"

#define ANCHOR_NS     10000000ull   /* a thread asks the system so often */
#define MIN_BASE_NS   2000000ull    /* from which a rate is known */
#define MAX_BASE_NS   1000000000ull /* then the next one begins: the system may be corrected */
#define MAX_CHANGE    1000	    /* a thousandth: more than any correction */
#define MAX_ASKING_NS 1000	    /* or the thread was interrupted while it asked */
#define ASKING_NS     100	    /* as it takes at most where nothing comes in between */
#define CLOCK_SOURCE  "/sys/devices/system/clocksource/clocksource0/current_clocksource"
#define ASKS_IN_A_ROW 4

struct rate preload_rate;

static __u64 system_ktime_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

/*
 * Read both clocks at one time, the latest: a reading before an interruption is out of date. False:
 * the second try was interrupted, too.
 */
static bool ask_both(struct anchor *anchor)
{
	__u64 per_cycle = __atomic_load_n(&preload_rate.ns_per_cycle, __ATOMIC_RELAXED), asking_ns;
	int asked = 0;

	do {
		__u64 before = cycles_now(), ktime_ns = system_ktime_ns(), after = cycles_now();

		/* Without a rate: taken as four cycles in a nanosecond. */
		asking_ns = per_cycle
				    ? (unsigned __int128)(after - before) * per_cycle >> RATE_SHIFT
				    : (after - before) / 4;
		anchor->cycles = before + (after - before) / 2;
		anchor->ktime_ns = ktime_ns;
	} while (asking_ns > ASKING_NS && ++asked < ASKS_IN_A_ROW);
	return asking_ns <= MAX_ASKING_NS;
}

/* Before the first call is counted. */
void preload_begin_clock(void)
{
	char name[16] = "";
	int file = open(CLOCK_SOURCE, O_RDONLY | O_CLOEXEC);

	if (file >= 0) {
		if (read(file, name, sizeof(name) - 1) < 0)
			name[0] = 0;
		close(file);
	}
	preload_rate.is_changing = 0;
	preload_rate.is_usable =
		(!strncmp(name, "tsc", 3) || !strncmp(name, "arch_sys_counter", 15)) &&
		ask_both(&preload_rate.base);
}

/* One thread at a time; no other thread waits for it. */
static void learn_rate(const struct anchor *now)
{
	__u64 base_ns = now->ktime_ns - preload_rate.base.ktime_ns;

	if (base_ns < MIN_BASE_NS ||
	    __atomic_exchange_n(&preload_rate.is_changing, 1, __ATOMIC_ACQUIRE))
		return;
	if (now->cycles > preload_rate.base.cycles && now->ktime_ns > preload_rate.base.ktime_ns) {
		__u64 cycles = now->cycles - preload_rate.base.cycles,
		      known = preload_rate.ns_per_cycle, seen;

		base_ns = now->ktime_ns - preload_rate.base.ktime_ns;
		seen = ((unsigned __int128)base_ns << RATE_SHIFT) / cycles;
		/* The host slept, or is another one now. */
		if (known && (seen > known ? seen - known : known - seen) > known / MAX_CHANGE)
			seen = 0;
		__atomic_store_n(&preload_rate.ns_per_cycle, seen, __ATOMIC_RELAXED);
		__atomic_store_n(&preload_rate.base_ns, base_ns, __ATOMIC_RELAXED);
		if (!seen || base_ns > MAX_BASE_NS)
			preload_rate.base = *now;
	}
	__atomic_store_n(&preload_rate.is_changing, 0, __ATOMIC_RELEASE);
}

/* Asks the system, and goes on from there. */
__u64 preload_anchor_clock(struct own_clock *own)
{
	__u64 base_ns;

	own->span_cycles = 0;
	if (!preload_rate.is_usable || !ask_both(&own->anchor))
		return system_ktime_ns();
	learn_rate(&own->anchor);
	own->ns_per_cycle = __atomic_load_n(&preload_rate.ns_per_cycle, __ATOMIC_RELAXED);
	/* No longer than it was looked at, or what is wrong with it adds up. */
	base_ns = __atomic_load_n(&preload_rate.base_ns, __ATOMIC_RELAXED);
	if (own->ns_per_cycle)
		own->span_cycles = ((base_ns < ANCHOR_NS ? base_ns : ANCHOR_NS) << RATE_SHIFT) /
				   own->ns_per_cycle;
	return own->anchor.ktime_ns;
}

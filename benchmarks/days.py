"""
A long capture, made up: trainers at work, with now and then a call that somebody delays.

Its counts are cumulative, as the kernel's are, so that it can be kept and played from
anywhere in it.
"""

import random
from bisect import bisect_left
from collections.abc import Iterator

from otel_gpu import wire
from otel_gpu.config import Config
from otel_gpu.enrich.activities import Activity, PressureActivity, Series
from otel_gpu.enrich.identity.identities import Program
from otel_gpu.enrich.thread_times import ThreadTime
from otel_gpu.wire.histogram_layout import duration_bounds_ns
from otel_gpu.wire.readings import Aggregate
from tests.activities import (
    H100,
    SECOND,
    T0,
    call,
    capture,
    counters,
    gap,
    image,
    series,
    snapshot,
    stall,
    status,
    thread_time,
    times,
)

US = 1_000
MS = 1_000_000
APIS = ("cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize")
USUAL_NS = (6 * US, 12 * US, 900 * US)
CALLS_PER_READING = (8_000, 300, 100)
# One kept activity in so many shows something slow, and is followed by what delayed it.
SLOW_ONE_IN = 50
_STACK = ("anon_pipe_read", "vfs_read", "ksys_read", "do_syscall_64")
_BOUNDS_NS = duration_bounds_ns(Config())


class Trainer:
    """One process, and what the kernel has counted of it so far."""

    def __init__(self, number: int) -> None:
        self.image: Program = image(1_000 + number, (number + 1) * MS, f"train-{number}.py")
        self._buckets = [[0] * wire.MAX_BUCKETS for _ in APIS]
        self._sums = [0] * len(APIS)
        self._account = [0, 0, 0]

    def counted(self) -> list[Series]:
        """A second's calls more, and what that comes to in all."""
        found = []
        for place, (api, usual_ns, count) in enumerate(
            zip(APIS, USUAL_NS, CALLS_PER_READING, strict=True)
        ):
            buckets = self._buckets[place]
            at = bisect_left(_BOUNDS_NS, usual_ns)
            for bucket, part in ((at, count - count // 5), (at + 1, count // 5)):
                buckets[bucket] += part
            self._sums[place] += count * usual_ns
            aggregate = Aggregate(self._sums[place], usual_ns, 2 * usual_ns, 0, tuple(buckets))
            number = next(a for a, name in enumerate(APIS) if name == api)
            found.append(
                series(
                    self.image,
                    wire.METRIC_CALL_DURATION,
                    aggregate,
                    api=(1, 31, 5)[number],
                    device=H100,
                )
            )
        return found

    def accounted(self) -> list[ThreadTime]:
        """A second more of its threads' time."""
        ways = (
            (wire.STATE_ON_CPU, wire.CONTEXT_GAP, ""),
            (wire.STATE_BLOCKED, wire.CONTEXT_SYNCHRONIZE, "driver"),
            (wire.STATE_RUN_QUEUE, wire.CONTEXT_GAP, ""),
        )
        for place, part in enumerate((600 * MS, 380 * MS, 20 * MS)):
            self._account[place] += part
        return [
            thread_time(self.image, state, context, self._account[place], reason=reason)
            for place, (state, context, reason) in enumerate(ways)
        ]


def day(
    rows: int, seconds: int, *, trainers: int = 4, slow_one_in: int = SLOW_ONE_IN
) -> Iterator[Activity]:
    """
    Yield a capture.

    Args:
        rows: How many calls, stalls and gaps it holds, about.
        seconds: How long it is; the counters are read every second.
        trainers: How many processes work.
        slow_one_in: How seldom something slow is among them.
    """
    chance = random.Random(1)  # noqa: S311 -- the same stream every time
    alive = [Trainer(number) for number in range(trainers)]
    yield capture()
    made = 0
    for second in range(seconds):
        begin = (second + 10) * SECOND
        due = rows * (second + 1) // seconds - made
        made += due
        for number in range(due):
            now = begin + number * SECOND // max(1, due)
            trainer = chance.choice(alive)
            yield from _kept(chance, trainer.image, now, is_slow=not chance.randrange(slow_one_in))
        end_s = (begin + SECOND) / SECOND
        yield snapshot(end_s, *(one for trainer in alive for one in trainer.counted()))
        yield times(end_s, *(one for trainer in alive for one in trainer.accounted()))
        yield counters(end_s, probe_entries=second * 10_000, spans_chosen=made)
        yield status(end_s, cpu_ns=second * 10 * MS, rss_bytes=60 << 20, rejected={}, dropped={})
        yield PressureActivity(T0 + round(end_s * SECOND), _PRESSURE)


_PRESSURE = {
    "psi": {name: {"some_avg10": 0.5, "some_total_us": 1} for name in ("cpu", "io", "memory")},
    "load1": 1.5,
    "cpus": 16,
    "cgroups": {},
}


def _kept(
    chance: random.Random, process: Program, now: int, *, is_slow: bool
) -> Iterator[Activity]:
    tid = process.pid + chance.randrange(3)
    place = chance.randrange(len(APIS))
    if not is_slow:
        duration = USUAL_NS[place] + chance.randrange(2 * US)
        values = {"address": 0x7F00_0000_0000 + now % MS, "stream": 0x55AA_0011_2233}
        yield call(
            process,
            APIS[place],
            now - duration,
            duration,
            device=H100,
            tid=tid,
            cpu=chance.randrange(16),
            choices=wire.CHOICE_SAMPLED,
            weight=1_000,
            grid=(128, 1, 1),
            block=(256, 1, 1),
            **values,
        )
        return
    duration = chance.randrange(20, 90) * MS
    hog = {"culprit_pid": 9_000, "culprit_tid": 9_001, "culprit_comm": "cc1plus"}
    start = now - duration
    if place:
        inside = {"call_start_ktime_ns": start, "root_start_ktime_ns": start, "call_api": 1}
        switch = {"switch_type": wire.SWITCH_INVOLUNTARY, "kernel_stack": -1}
        yield stall(process, start + MS, start + MS, now - MS, tid=tid, **hog, **inside, **switch)
        yield call(
            process,
            APIS[0],
            start,
            duration,
            device=H100,
            tid=tid,
            choices=wire.CHOICE_SLOW | wire.CHOICE_STALLED,
            run_queue_ns=duration - 2 * MS,
            involuntary_switches=1,
        )
        return
    waker = {"waker_pid": process.pid, "waker_tid": tid + 10, "waker_comm": "pt_data_worker"}
    yield stall(
        process, start + MS, now - MS, now, tid=tid, reason="ipc", functions=_STACK, **waker
    )
    yield gap(process, APIS[0], APIS[1], start, now, tid=tid, blocked_ns=duration - MS)

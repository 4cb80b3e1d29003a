"""Reading a preloaded program's memory, whatever wrote it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu import wire
from otel_gpu.capture.preload.shared_memory import MAX_PRELOAD_SERIES, PreloadError, read_memory
from otel_gpu.wire.probe_table import APIS

LAUNCH = next(api.number for api in APIS if api.name == "cudaLaunchKernel")
SLOT = wire.PRELOAD_SLOTS_OFFSET
SERIES = wire.PRELOAD_SLOT_BYTES - wire.PRELOAD_SLOT_SERIES * wire.PRELOAD_SERIES.size


class Memory:
    """Bytes of which most are holes."""

    def __init__(self, size=wire.PRELOAD_BYTES, **header):
        self.data = bytearray(size)
        self.write(
            0,
            wire.PRELOAD_HEADER.build(
                **{
                    "magic": wire.PRELOAD_MAGIC,
                    "version": wire.PRELOAD_VERSION,
                    "size_bytes": wire.PRELOAD_BYTES,
                    "start_ktime_ns": 5,
                    **header,
                }
            ),
        )

    def write(self, offset, data):
        self.data[offset : offset + len(data)] = data

    def read(self, offset, size):
        return bytes(self.data[offset : offset + size])

    def slot(self, number, *series, **fields):
        offset = SLOT + number * wire.PRELOAD_SLOT_BYTES
        self.write(offset, wire.PRELOAD_SLOT.build(series_begun=len(series), **fields))
        self.write(offset + SERIES, b"".join(series))


def series(key, **values):
    named = {f"key.{name}": value for name, value in key.items()}
    named |= {f"aggregate.{name}": value for name, value in values.items()}
    return wire.PRELOAD_SERIES.build(**named)


CALL = {"metric": wire.METRIC_CALL_DURATION, "api": LAUNCH, "copy_kind": wire.COPY_NONE}


def test_series_of_all_threads_are_summed():
    """And of those that are gone, whose slots have their counts; extremes are not sums."""
    memory = Memory(slots_begun=3, common_begun=1)
    least = (1 << 64) - 1 - 7
    memory.write(wire.PRELOAD_COMMON_OFFSET, series(CALL, sum=10, max=10, buckets_3=1))
    memory.slot(0, series(CALL, sum=7, min_complement=least, max=7, buckets_2=1), tid=11)
    memory.slot(2, series(CALL, sum=20, min_complement=least - 6, max=13, buckets_3=2))

    reading = read_memory(memory.read)

    (key,) = reading.series
    assert wire.PRELOAD_KEY.named(key) == CALL | {"status": 0, "device": 0, "nested": 0}
    total = wire.AGGREGATE.named(reading.series[key])
    assert (total["sum"], total["min_complement"], total["max"]) == (37, least, 13)
    assert {name: n for name, n in total.items() if n and name.startswith("buckets")} == {
        "buckets_2": 1,
        "buckets_3": 3,
    }
    assert [thread.tid for thread in reading.threads] == [11]
    assert (reading.start_ktime_ns, reading.left_out) == (5, 0)


@pytest.mark.parametrize(
    "key",
    [
        {"metric": wire.METRIC_OFF_CPU},
        {"api": 255},
        {"api": 60_000},
        {"copy_kind": 9},
        {"nested": 2},
        {"metric": wire.METRIC_LAUNCH_GAP},
    ],
)
def test_a_series_that_makes_no_sense_is_left_out(key):
    """What the preload library itself would never write."""
    memory = Memory(slots_begun=1)
    memory.slot(0, series(CALL | key, buckets_0=1), series(CALL, buckets_0=1))

    reading = read_memory(memory.read)

    assert (len(reading.series), reading.left_out) == (1, 1)


def test_more_series_than_a_process_can_have_are_left_out():
    """So a stranger cannot fill the agent."""
    memory = Memory(slots_begun=60_000, common_begun=60_000)
    for slot in range(20):
        keys = (CALL | {"status": 64 * slot + number} for number in range(wire.PRELOAD_SLOT_SERIES))
        memory.slot(slot, *(series(key, buckets_0=1) for key in keys))

    reading = read_memory(memory.read)

    assert len(reading.series) == MAX_PRELOAD_SERIES
    assert reading.left_out == 20 * wire.PRELOAD_SLOT_SERIES - MAX_PRELOAD_SERIES


@pytest.mark.parametrize(("last_return_ktime_ns", "depth"), [(99, 1), (100, 1), (101, 0)])
def test_a_call_is_over_once_its_return_is_the_threads_last(last_return_ktime_ns, depth):
    """Though it is published until it was counted."""
    memory = Memory(slots_begun=1)
    call = wire.PRELOAD_OPEN_CALL.build(start_ktime_ns=100, api=LAUNCH)
    memory.slot(0, tid=11, depth=1, last_return_ktime_ns=last_return_ktime_ns, calls=call)

    (thread,) = read_memory(memory.read).threads

    assert (thread.depth, bool(thread.open_api)) == (depth, bool(depth))


@pytest.mark.parametrize(
    "header", [{"magic": 1}, {"version": 99}, {"size_bytes": 4096}, {"magic": 0, "version": 0}]
)
def test_memory_of_another_version_is_refused(header):
    """Before anything else is read of it."""
    with pytest.raises(PreloadError):
        read_memory(Memory(**header).read)


@pytest.mark.parametrize("size", [0, 8, 4096, SLOT, SLOT + 100])
def test_a_memory_that_ends_early_is_read_as_far_as_it_goes(size):
    """It is sealed in size, but by whom?"""
    memory = Memory(slots_begun=4)
    del memory.data[size:]
    if size < wire.PRELOAD_HEADER.size:
        with pytest.raises(PreloadError, match="header"):
            read_memory(memory.read)
    else:
        assert read_memory(memory.read).series == {}


@given(st.integers(min_value=0), st.integers(1, 200))
def test_no_bytes_bring_the_reader_down(seed, most):
    """Whatever is in the slots, numbers stay numbers of their width."""
    noise = random.Random(seed)  # noqa: S311
    memory = Memory(
        size=SLOT + 2 * wire.PRELOAD_SLOT_BYTES, slots_begun=noise.getrandbits(32), common_begun=2
    )
    memory.write(SLOT, noise.randbytes(wire.PRELOAD_SLOT_BYTES))
    rows = [series(CALL | {"status": noise.randrange(3)}) for _ in range(most % 60)]
    noisy = [row[: wire.PRELOAD_KEY.size] + noise.randbytes(len(row) - 16) for row in rows]
    memory.slot(1, *noisy)

    reading = read_memory(memory.read)

    for key, aggregate in reading.series.items():
        assert (len(key), len(aggregate)) == (wire.PRELOAD_KEY.size, wire.AGGREGATE.size)

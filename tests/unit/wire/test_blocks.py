"""Records of blocks that frameworks hand out, and of requests that failed."""

from collections import Counter

import pytest

from otel_gpu import wire
from otel_gpu.wire.agent_records import json_record, memory_records
from otel_gpu.wire.blocks import (
    DeviceKey,
    Holder,
    HolderKey,
    Holders,
    Memory,
    MemoryMap,
    MemoryTotals,
    OutOfMemory,
)
from otel_gpu.wire.decoder import decode
from otel_gpu.wire.event_text import describe
from tests.synthetic import kernel_record

MAP = {"device": 1, "segments": [[4096, 8192]], "blocks": [[4096, 512, 7]]}
MAP |= {"left_out": 0, "smallest_bytes": 0}
INT64_MAX = (1 << 63) - 1


def decoded(*records):
    rejected = Counter()
    events = list(decode(records, rejected))
    assert not rejected
    return events


def holders_record(**values):
    key = wire.HOLDER_KEY.build(program_ktime_ns=3, stack=7, pid=4, device=1)
    entries = [(key, wire.HOLDER.build(**values))]
    return next(memory_records(wire.RECORD_HOLDERS, 5, entries))


def test_totals_are_by_device():
    """What was allocated before the first report may be less than nothing, where frees were missed."""
    key = wire.DEVICE_KEY.build(program_ktime_ns=3, pid=4, device=1)
    totals = wire.MEMORY_TOTALS.build(before_bytes=-8, rate_limited_bytes=9)

    [memory] = decoded(*memory_records(wire.RECORD_MEMORY, 5, [(key, totals)]))

    [entry] = memory.totals
    assert isinstance(memory, Memory)
    assert entry == (
        DeviceKey(3, 4, 1),
        MemoryTotals(0, 0, 0, 0, 0, -8, 0, 0, 0, 0, 0, 0, 0, 9),
    )


def test_holders_are_by_stack():
    """What a program makes up may be too large for a counter; it is cut to the largest."""
    [holders] = decoded(holders_record(live_bytes=-1, allocated_bytes=(1 << 64) - 1))

    assert holders == Holders(5, ((HolderKey(3, 7, 4, 1), Holder(-1, 0, INT64_MAX, 0, 0)),))
    head, line = describe(holders)
    assert head == "holders 5 0/0 holders=1"
    assert line.startswith("holder 5 4/0 program_ktime_ns=3 stack=0x7 device=1 live_bytes=-1 ")


def test_a_request_may_ask_for_anything():
    """Of a size there is at most what fits a counter."""
    record = kernel_record(
        wire.RECORD_OUT_OF_MEMORY,
        asked_bytes=(1 << 64) - 1,
        device_ktime_ns=6,
        api=10,
        comm="python",
    )

    [failed] = decoded(record)

    assert isinstance(failed, OutOfMemory)
    assert (failed.asked_bytes, failed.device_ktime_ns, failed.api) == (INT64_MAX, 6, 10)
    assert failed.comm == "python"


def test_a_map_says_whose_it_is():
    """Its body is as it was sent."""
    record = json_record(wire.RECORD_MEMORY_MAP, 5, MAP, pid=4, program_ktime_ns=3)
    segments, blocks = (list(map(tuple, MAP[name])) for name in ("segments", "blocks"))

    assert decoded(record) == [
        MemoryMap(5, 3, 4, 1, MAP | {"segments": segments, "blocks": blocks})
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"device": 1 << 31},
        {"segments": [[1]]},
        {"segments": [[1, -2]]},
        {"segments": [[1, 1 << 63]]},
        {"blocks": [[1, 2]]},
        {"blocks": [[-1, 2, 3]]},
        {"blocks": [[1, 1 << 63, 3]]},
        {"blocks": [["1", 2, 3]]},
        {"left_out": -1},
        {"smallest_bytes": None},
    ],
)
def test_a_map_that_cannot_be_is_rejected(wrong):
    """Whoever reads it may rely on its numbers."""
    rejected = Counter()

    assert list(decode([json_record(wire.RECORD_MEMORY_MAP, 5, MAP | wrong)], rejected)) == []
    assert rejected == {"bad_body": 1}


@pytest.mark.parametrize("cut", [1, 40, 64])
def test_entries_that_are_not_whole_are_rejected(cut):
    """As is a record that says that it has more of them than there are."""
    record = bytearray(holders_record()[:-cut])
    record[4:8] = len(record).to_bytes(4, "little")
    rejected = Counter()

    assert list(decode([bytes(record)], rejected)) == []
    assert rejected == {"size_mismatch": 1}

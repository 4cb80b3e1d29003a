"""Blocks: each key of a stack is where it was, and a request that failed has its map."""

import pytest

from otel_gpu import wire
from otel_gpu.enrich.activities import BlocksActivity, CountersActivity, OutOfMemoryActivity
from otel_gpu.enrich.blocks import MAP_PATIENCE_NS
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.enrich.identity.processes import REMEMBER_DEAD_NS
from otel_gpu.wire.blocks import (
    BlockStack,
    DeviceKey,
    Holder,
    HolderKey,
    Holders,
    Memory,
    MemoryMap,
    MemoryTotals,
    OutOfMemory,
)
from otel_gpu.wire.events import Capture, Clock, Device, Exit
from otel_gpu.wire.frames import Frame
from otel_gpu.wire.readings import Counters
from otel_gpu.wire.symbol_records import FunctionSeen, ProcessSeen, UserStack

T0 = 1_700_000_000_000_000_000
START = [
    Capture(10, {"host": {"name": "node1", "boot_id": "b"}, "layout": {}}),
    Clock(20, T0 + 20),
]
SEEN = ProcessSeen(30, 5, 42, {"exe": "/usr/bin/python3", "command_args": ["python", "t.py"]})
DEVICE = Device(40, 5, 42, 43, 1, bytes(16), "H100")
FRAMES = (Frame("cpython", "step", "/app/train.py", 74),)
STACK = UserStack(50, 0x77, FRAMES, True, "ok", "ok")
KEYED = BlockStack(60, 5, 42, 43, stack=0xABC, user_stack=0x77, device=1)
TOTALS = MemoryTotals(100, 4096, 8192, 4096, 8192, 1024, 0, 3, 1, 4096, 1024, 0, 0, 0)
HOLDER = Holder(2048, 2, 4096, 4, 2048)
MAP = {"segments": [[0x1000, 4096]], "blocks": [[0x1000, 512, 0xABC], [0x1800, 512, 0xDEF]]}


def failed(ktime_ns=100, *, tid=43, source=wire.OUT_OF_MEMORY_FRAMEWORK, **fields):
    """A request for 256 bytes that failed on device 1."""
    values = dict.fromkeys(OutOfMemory._fields, 0) | {
        "ktime_ns": ktime_ns,
        "program_ktime_ns": 5,
        "pid": 42,
        "tid": tid,
        "asked_bytes": 256,
        "user_stack": 0x77,
        "device": 1,
        "source": source,
        "comm": "pt_main",
    }
    return OutOfMemory(**(values | fields))


def mapped(ktime_ns=110, device=1):
    return MemoryMap(ktime_ns, 5, 42, device, MAP)


@pytest.fixture
def enricher():
    enricher = Enricher()
    list(enricher.enrich([*START, SEEN, DEVICE, STACK, KEYED]))
    return enricher


def stream(enricher, *events):
    """Activities that come while more may follow."""
    made = []

    def feed():
        yield from events
        made.append(None)

    for activity in enricher.enrich(feed()):
        if not made:
            yield activity


def test_a_reading_says_of_each_device_what_it_holds_and_where(enricher):
    """Totals and holders of one device of one image are an activity, stacks by their keys."""
    keys = DeviceKey(5, 42, 1), DeviceKey(5, 42, 0)
    totals, others = enricher.enrich([Memory(100, tuple((key, TOTALS) for key in keys))])
    holders = ((HolderKey(5, 0xABC, 42, 1), HOLDER), (HolderKey(5, 0, 42, 1), HOLDER))
    (held,) = enricher.enrich([Holders(100, holders)])

    assert (totals.number, totals.device.model, totals.totals) == (1, "H100", TOTALS)
    assert (others.number, others.unix_ns) == (0, T0 + 100)
    assert [(key, one) for key, one, _ in held.holders] == [(0xABC, HOLDER), (0, HOLDER)]
    assert [stack and stack.frames for _, _, stack in held.holders] == [FRAMES, None]


def test_what_is_held_waits_for_the_name_of_its_process():
    """A reading that comes first is of the process as it is called in the end."""
    readings = [Memory(25, ((DeviceKey(5, 42, 1), TOTALS),))]
    (_, *told) = Enricher().enrich([*START, *readings, SEEN])

    assert [type(one) for one in told] == [BlocksActivity]
    assert told[0].process.service_name == "t.py"
    assert told[0].unix_ns == T0 + 25


def test_a_key_is_known_as_long_as_its_capture(enricher):
    """A later capture may use the same number for another place."""
    holders = Holders(100, ((HolderKey(5, 0xABC, 42, 1), HOLDER),))
    *_, held = enricher.enrich([*START, SEEN, holders])

    assert held.holders[0][2] is None


def test_what_is_known_of_a_program_goes_with_it(enricher):
    """Its keys, kernels and devices are kept for late records only, a minute of the stream."""
    resolver = enricher._resolver
    list(enricher.enrich([FunctionSeen(70, 5, 42, 0xF00, "add")]))
    key = (42, 5)
    before = (resolver.block_stacks.find(key, 0xABC), len(resolver._kernels))
    later = 100 + REMEMBER_DEAD_NS
    list(enricher.enrich([Exit(100, 5, 42, 42, 0, 0, "python")]))
    list(enricher.enrich([ProcessSeen(later, later, 43, {})]))

    assert (before[0].frames, before[1]) == (FRAMES, 1)
    assert resolver.block_stacks.find(key, 0xABC) is None
    assert len(resolver._kernels) == 0
    assert resolver.devices.find(key, 1).model is None


def test_a_request_that_failed_has_its_map(enricher):
    """It waits until the map of its device has come."""
    (found,) = stream(enricher, failed(), mapped(device=0), mapped())

    assert found.map == MAP
    assert {key: stack.frames for key, stack in found.stacks.items()} == {0xABC: FRAMES}
    assert found.stack.frames == FRAMES
    assert (found.unix_ns, found.process.pid, found.device.model) == (T0 + 100, 42, "H100")
    assert found.api is None
    assert found.parent_span_id == b""


def test_what_fails_before_the_map_came_is_told_once_each(enricher):
    """A map is of the moment of the last that failed until then."""
    late = failed(120)
    first, second, third = stream(
        enricher, failed(100), failed(110), late, mapped(110), mapped(120)
    )

    assert [one.map for one in (first, second, third)] == [None, MAP, MAP]
    assert len({one.span_id for one in (first, second, third)}) == 3


def test_a_failed_call_is_told_by_the_framework_that_made_it(enricher):
    """It tries again before it gives up: one thread's calls and its report are one request."""
    call = failed(90, source=wire.OUT_OF_MEMORY_CALL, api=1)
    retry, other = call._replace(ktime_ns=95), call._replace(tid=44)
    found = list(stream(enricher, call, retry, other, failed(), mapped()))

    assert [(one.event.tid, one.event.source) for one in found] == [
        (44, wire.OUT_OF_MEMORY_CALL),
        (43, wire.OUT_OF_MEMORY_FRAMEWORK),
    ]
    assert found[0].api is not None


def test_a_request_without_a_map_waits_for_a_bounded_time(enricher):
    """No map comes of a process that is gone."""
    readings = (Counters(100 + MAP_PATIENCE_NS, ()), Counters(101 + MAP_PATIENCE_NS, ()))
    early, found, _ = stream(enricher, failed(), *readings)
    assert isinstance(early, CountersActivity)

    assert isinstance(found, OutOfMemoryActivity)
    assert (found.map, found.stacks) == (None, {})


def test_a_request_waits_no_longer_than_its_stream(enricher):
    """What waits at the end is told."""
    (found,) = enricher.enrich([failed()])

    assert found.event.asked_bytes == 256

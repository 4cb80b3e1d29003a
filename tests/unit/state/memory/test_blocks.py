"""Blocks: who holds what of a device, now, at the peak and in a window; nothing is said twice."""

import pytest

from otel_gpu.state.memory import blocks as ledger
from otel_gpu.state.memory.blocks import MAX_READINGS, AllocatorState, By
from otel_gpu.state.memory.snapshot import BEFORE_ATTACH, NOT_SAMPLED
from otel_gpu.state.window import Window
from tests.activities import (
    SECOND,
    T0,
    blocks,
    holder,
    image,
    line_stack,
    out_of_memory,
    totals,
)

MIB = 1 << 20
TRAINER = image()
ACTIVATIONS, WEIGHTS = line_stack(40), line_stack(12)


def kept(*activities, window=None):
    keeper = AllocatorState(window or Window())
    for activity in activities:
        keeper.observe(activity)
    return keeper


def held(keeper, by):
    """By line, or by what stands for none: bytes and blocks."""
    return {
        one.stack and (one.stack.frames[0].line or one.stack.frames[0].function): (
            one.size_bytes,
            one.blocks,
        )
        for one in keeper.memory_stacks(by)
    }


def test_each_stack_holds_what_its_blocks_hold():
    """What has no place is one row, so that all of them are what the allocator says."""
    said = totals(100 * MIB, before_bytes=30 * MIB, before_freed_bytes=10 * MIB)
    keeper = kept(
        blocks(TRAINER, 1, said),
        blocks(
            TRAINER,
            1,
            holders=[
                (1, holder(40 * MIB, 4), ACTIVATIONS),
                (2, holder(25 * MIB, 1), WEIGHTS),
                (0, holder(7 * MIB), None),
            ],
        ),
    )
    (device,) = keeper.devices()

    assert held(keeper, "in-use") == {
        40: (40 * MIB, 4),
        12: (25 * MIB, 1),
        "(before the attach)": (20 * MIB, 0),
        None: (15 * MIB, 0),
    }
    assert (device.before_bytes, device.unknown_bytes) == (20 * MIB, 15 * MIB)
    assert [one.place for one in device.holders(By.IN_USE)] == [
        ACTIVATIONS.place,
        WEIGHTS.place,
        BEFORE_ATTACH,
        NOT_SAMPLED,
    ]


def test_a_holder_is_what_was_last_said_of_it():
    """A reading holds what changed; a key that is not named again keeps its stack and its bytes."""
    keeper = kept(
        blocks(TRAINER, 1, totals(9 * MIB)),
        blocks(
            TRAINER, 1, holders=[(1, holder(4 * MIB), WEIGHTS), (2, holder(5 * MIB), ACTIVATIONS)]
        ),
        blocks(TRAINER, 2, totals(4 * MIB)),
        blocks(TRAINER, 2, holders=[(2, holder(0, 0, 5 * MIB, 1), None)]),
    )

    assert held(keeper, "in-use") == {12: (4 * MIB, 1)}
    assert held(keeper, "allocated") == {12: (4 * MIB, 1), 40: (5 * MIB, 1)}
    assert held(keeper, "peak") == {12: (4 * MIB, 1), 40: (5 * MIB, 1)}


@pytest.mark.parametrize("holders_first", [True, False])
def test_the_peak_is_a_whole_reading(holders_first):
    """Its totals and its holders come apart, in any order."""
    parts = [
        blocks(TRAINER, 2, totals(50 * MIB)),
        blocks(TRAINER, 2, holders=[(1, holder(50 * MIB), WEIGHTS)]),
    ]
    keeper = kept(
        blocks(TRAINER, 1, totals(10 * MIB)),
        *(reversed(parts) if holders_first else parts),
        blocks(TRAINER, 3, totals(20 * MIB)),
        blocks(TRAINER, 3, holders=[(1, holder(20 * MIB), WEIGHTS)]),
    )
    (device,) = keeper.devices()

    assert held(keeper, "peak") == {12: (50 * MIB, 1)}
    assert device.peak == (T0 + 2 * SECOND, 50 * MIB, 50 * MIB)
    assert [one.live_bytes for one in device.readings] == [10 * MIB, 50 * MIB, 20 * MIB]


def test_stacks_that_are_the_same_are_one():
    """Where no key could tell, each chosen block had one of its own."""
    keeper = kept(
        blocks(TRAINER, 1, totals(3 * MIB)),
        blocks(TRAINER, 1, holders=[(key, holder(MIB), WEIGHTS) for key in (1, 2, 3)]),
    )

    assert held(keeper, "in-use") == {12: (3 * MIB, 3)}


def test_blocks_that_are_followed_in_windows_begin_with_nothing():
    """What is held is that of the last window; what was allocated is that of all of them."""
    keeper = kept(
        blocks(TRAINER, 1, totals(8 * MIB), [(1, holder(8 * MIB, 2, 30 * MIB, 7), WEIGHTS)]),
        blocks(TRAINER, 2, holders=[(1, holder(0, 0), None)]),
        blocks(TRAINER, 3, totals(8 * MIB), [(1, holder(2 * MIB, 1, 5 * MIB, 3), WEIGHTS)]),
        blocks(TRAINER, 4, totals(8 * MIB), [(1, holder(2 * MIB, 1, 6 * MIB, 4), WEIGHTS)]),
    )

    assert held(keeper, "in-use") == {12: (2 * MIB, 1), None: (6 * MIB, 0)}
    assert held(keeper, "allocated") == {12: (36 * MIB, 11)}


def test_a_key_of_one_block_takes_no_room_for_good():
    """Where stacks cannot be told apart, each block has a key; it goes with the block."""
    keys = [1 << 63 | number for number in range(3)]
    keeper = kept(
        *(
            reading
            for at, key in enumerate(keys, 1)
            for reading in (
                blocks(TRAINER, 2 * at, totals(MIB), [(key, holder(MIB), WEIGHTS)]),
                blocks(TRAINER, 2 * at + 1, totals(0), [(key, holder(0, 0, MIB, 1), None)]),
            )
        )
    )
    (device,) = keeper.devices()

    assert len(device) == 0
    assert held(keeper, "allocated") == {12: (3 * MIB, 3)}


def test_in_a_window_counts_what_was_allocated_there():
    """What a window begins with it did not allocate; what is in use at its end is."""
    readings = [
        part
        for at, live, allocated in ((1, 4, 4), (3, 6, 10), (5, 8, 20), (7, 30, 50))
        for part in (
            blocks(TRAINER, at, totals(live * MIB, handed_out_bytes=allocated * MIB)),
            blocks(
                TRAINER,
                at,
                holders=[(1, holder(live * MIB, 1, allocated * MIB, allocated), WEIGHTS)],
            ),
        )
    ]
    keeper = kept(*readings, window=Window(T0 + 2 * SECOND, T0 + 4 * SECOND))
    (device,) = keeper.devices()

    assert held(keeper, "allocated") == {12: (16 * MIB, 16)}
    assert held(keeper, "in-use") == {12: (8 * MIB, 1)}
    assert device.readings[-1].live_bytes == 8 * MIB


def test_readings_are_bounded_and_keep_what_was_most():
    """Of two that become one the larger stays, and the last one is the last one."""
    keeper = kept(*(blocks(TRAINER, at, totals((at % 7) * MIB)) for at in range(1, 3_000)))
    (device,) = keeper.devices()

    assert MAX_READINGS // 2 <= len(device.readings) <= MAX_READINGS
    assert max(one.live_bytes for one in device.readings) == 6 * MIB
    assert device.readings[-1].unix_ns == T0 + 2_999 * SECOND


def test_devices_are_bounded(monkeypatch):
    """Those that were read last stay."""
    monkeypatch.setattr(ledger, "MAX_DEVICES", 3)
    keeper = kept(*(blocks(image(pid), 1, totals(MIB)) for pid in range(1, 9)))

    assert [one.process.pid for one in keeper.devices()] == [6, 7, 8]


def test_stacks_are_bounded(monkeypatch):
    """What finds no room has no place; what is known goes on to be."""
    monkeypatch.setattr(ledger, "MAX_STACKS", 2)
    held_by = [(key, holder(MIB), line_stack(key)) for key in (1, 2, 3)]
    keeper = kept(
        blocks(TRAINER, 1, totals(3 * MIB), held_by),
        blocks(TRAINER, 2, totals(3 * MIB), [(1, holder(2 * MIB), None)]),
    )

    assert held(keeper, "in-use") == {1: (2 * MIB, 1), 2: (MIB, 1)}


def test_coverage_is_the_share_of_reports_that_agreed():
    """None, where there was no report."""
    keeper = kept(
        blocks(TRAINER, 1, totals(MIB, allocations=70, frees=30, unequal=5)),
        blocks(TRAINER, 1, totals(0, allocations=0), number=1),
    )

    assert [one.coverage for one in keeper.devices()] == [0.95, None]


def test_a_request_that_failed_says_how_large_its_device_is():
    """From then on it is known what is left of it."""
    keeper = kept(
        blocks(TRAINER, 1, totals(30 * MIB, 40 * MIB)),
        out_of_memory(
            TRAINER,
            2,
            MIB,
            reserved_bytes=40 * MIB,
            device_free_bytes=10 * MIB,
            device_total_bytes=80 * MIB,
        ),
    )
    (device,) = keeper.devices()

    assert (device.capacity_bytes, device.outside_bytes) == (80 * MIB, 30 * MIB)
    assert device.free_bytes == 20 * MIB

"""Out of memory: why a request failed that was seen live, by its effect and not by an index."""

import pytest

from otel_gpu import wire
from otel_gpu.explain.explainer import Explainer
from otel_gpu.explain.incidents import worst_first
from otel_gpu.explain.kinds import CauseKind, EffectKind, Severity
from otel_gpu.explain.memory.advice import advise
from otel_gpu.explain.memory.out_of_memory import can_expand
from otel_gpu.wire.frames import Frame
from tests.activities import (
    MS,
    SECOND,
    T0,
    blocks,
    call_stack,
    calls,
    capture,
    holder,
    image,
    line_stack,
    out_of_memory,
    snapshot,
    totals,
)

MIB, GIB = 1 << 20, 1 << 30
TRAINER = image()
CACHE, STEP, WEIGHTS = line_stack(61, "remember"), line_stack(40), line_stack(12, "build")
BASE = 0x7F00_0000_0000


def explained(*activities):
    explainer = Explainer()
    chains = [
        chain
        for activity in (capture(), *activities)
        for chain in explainer.push(activity)
        if chain.effect.kind == EffectKind.OUT_OF_MEMORY
    ]
    explainer.close()
    return chains, explainer.incidents()


def judged(*activities):
    (chain,), _ = explained(*activities)
    return chain.failure


def fragments(count, held_bytes, segment_bytes=20 * MIB, keys=(1,)):
    """Segments with a block at the beginning of each, and what is left of them free."""
    starts = [BASE + number * GIB for number in range(count)]
    return {
        "segments": [[start, segment_bytes] for start in starts],
        "blocks": [
            [start, held_bytes, keys[number % len(keys)]] for number, start in enumerate(starts)
        ],
        "left_out": 0,
        "smallest_bytes": 0,
    }


def in_pieces(asked_bytes=256 * MIB, at_s=2, **more):
    """A gibibyte of segments of 20 MiB, each with 4 MiB in use: no hole is large enough."""
    values = {
        "reserved_bytes": 1_040 * MIB,
        "allocated_bytes": 208 * MIB,
        "device_free_bytes": 60 * MIB,
        "device_total_bytes": 1_100 * MIB,
        "map": fragments(52, 4 * MIB),
        "stacks": {1: CACHE},
        "stack": STEP,
    }
    return out_of_memory(TRAINER, at_s, asked_bytes, **(values | more))


def test_holes_that_would_have_done_together_are_fragmentation():
    """The line whose blocks keep them apart is named, and what was there."""
    failure = judged(in_pieces())

    assert failure.cause == CauseKind.FRAGMENTATION
    assert (failure.hole_bytes, failure.largest_hole_bytes) == (832 * MIB, 16 * MIB)
    assert failure.pins[0] == (CACHE.place, 832 * MIB, 208 * MIB, 52)
    assert [(one.place, one.size_bytes) for one in failure.holders] == [(CACHE.place, 208 * MIB)]
    assert (failure.place, failure.asked_bytes) == (STEP.place, 256 * MIB)


def test_without_a_map_what_was_free_says_it():
    """The largest hole is not known, but that there was enough is."""
    failure = judged(in_pieces(map=None))

    assert failure.cause == CauseKind.FRAGMENTATION
    assert (failure.hole_bytes, failure.largest_hole_bytes, failure.pins) == (832 * MIB, None, ())


def test_where_blocks_are_not_followed_no_hole_is_larger_than_what_is_free():
    """A hole that would have served the request is none."""
    failure = judged(
        in_pieces(
            map={**fragments(2, 4 * MIB, 520 * MIB), "left_out": 50}, allocated_bytes=700 * MIB
        )
    )

    assert failure.hole_bytes == 340 * MIB
    assert failure.largest_hole_bytes is None
    assert failure.holders[0].place.function == "(not sampled)"
    assert sum(one.size_bytes for one in failure.holders) == 700 * MIB


def test_a_map_without_blocks_knows_no_hole():
    """Whole segments seem to be free; how much is free of all is what the allocator says."""
    failure = judged(in_pieces(map=fragments(52, 0) | {"blocks": []}))

    assert failure.cause == CauseKind.FRAGMENTATION
    assert (failure.hole_bytes, failure.largest_hole_bytes, failure.pins) == (832 * MIB, None, ())


def test_where_no_block_is_in_the_way_it_is_no_fragmentation():
    """Half of the segments are free as a whole: they were not given back, and could not have been moved."""
    used, free = fragments(26, 20 * MIB), fragments(52, 0)
    whole = {**free, "blocks": used["blocks"]}

    failure = judged(in_pieces(map=whole, allocated_bytes=520 * MIB))

    assert failure.cause == CauseKind.KEPT_CACHE
    assert failure.pins == ()
    (advice,) = advise(failure)
    assert advice.startswith("545 MB is free and was not released")
    assert "private pools" in advice


def test_what_is_used_up_is_exhausted():
    """There is no hole, nobody else, and nothing that grows."""
    failure = judged(
        in_pieces(
            allocated_bytes=1_040 * MIB,
            map=fragments(52, 20 * MIB),
            device_free_bytes=60 * MIB,
        )
    )

    assert (failure.cause, failure.hole_bytes) == (CauseKind.EXHAUSTED, 0)


def test_others_on_the_device_are_named_where_they_matter():
    """What the process took itself, past its allocator, is not theirs."""
    event = {
        "reserved_bytes": 200 * MIB,
        "allocated_bytes": 190 * MIB,
        "device_free_bytes": 50 * MIB,
        "device_total_bytes": GIB,
        "map": None,
    }
    failure = judged(in_pieces(**event))
    own = snapshot(1, calls(TRAINER, "cudaMalloc", [MS], size_bytes=960 * MIB))

    assert failure.cause == CauseKind.OTHER_PROCESS
    assert failure.outside_bytes == GIB - 250 * MIB
    assert judged(own, in_pieces(**event)).cause == CauseKind.EXHAUSTED


def leaking(seconds=40):
    for at in range(1, seconds):
        live = at * 8 * MIB + (at % 3) * 50 * MIB
        yield blocks(
            TRAINER,
            at,
            totals(live, frees=at * 10),
            [
                (1, holder(at * 8 * MIB, at), CACHE),
                (2, holder((at % 3) * 50 * MIB), STEP),
            ],
        )


def test_what_grew_from_step_to_step_is_a_leak():
    """The line that holds more and more is named, with how much more."""
    failure = judged(
        *leaking(),
        out_of_memory(
            TRAINER,
            40,
            64 * MIB,
            reserved_bytes=330 * MIB,
            allocated_bytes=320 * MIB,
            device_free_bytes=2 * MIB,
            device_total_bytes=332 * MIB,
        ),
    )

    assert failure.cause == CauseKind.LEAK
    assert failure.leaks[0].place == CACHE.place
    assert failure.leaks[0].size_bytes >= 200 * MIB


def test_a_request_that_failed_is_an_incident_of_high_severity():
    """It took no time, and is worse than what did; the advice has its number."""
    chains, (incident,) = explained(in_pieces(), in_pieces(200 * MIB))

    assert [chain.effect.stack for chain in chains] == [STEP, STEP]
    assert (incident.severity, incident.effects) == (Severity.HIGH, 2)
    assert incident.causes[0].kind == CauseKind.FRAGMENTATION
    assert incident.processes == (TRAINER,)
    assert incident.start_unix_ns == T0 + 2 * SECOND
    assert "expandable_segments:True, which is off: 872 MB" in incident.advice[0]
    assert "210 MB of train.py:40 step" in incident.advice[1]


def test_what_ran_out_of_memory_comes_before_what_was_slow():
    """It took no time at all."""
    _, (incident,) = explained(in_pieces())
    slow = incident._replace(id="slow", chains=(), lost_ns=9 * SECOND)

    assert sorted([slow, incident], key=worst_first) == [incident, slow]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", True),
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:128, expandable_segments:True", True),
        ("PYTORCH_ALLOC_CONF", "expandable_segments:False", False),
        ("PYTORCH_ALLOC_CONF", "my_expandable_segments:True", False),
        ("OTHER", "expandable_segments:True", False),
    ],
)
def test_what_is_on_already_is_not_advised(name, value, expected):
    """The environment of the process says so."""
    process = image()
    process.attributes[f"process.environment_variable.{name}"] = value
    event = in_pieces()._replace(process=process)
    _, (incident,) = explained(event)

    assert can_expand(process.attributes) is expected
    assert any("expandable_segments" in text for text in incident.advice) is not expected


def test_segments_that_grew_are_one():
    """What was mapped one after the other is no border between holes."""
    process = image()
    process.attributes["process.environment_variable.PYTORCH_ALLOC_CONF"] = (
        "expandable_segments:True"
    )
    made = {
        "segments": [[BASE + number * 20 * MIB, 20 * MIB] for number in range(8)],
        "blocks": [[BASE, 20 * MIB, 1], [BASE + 7 * 20 * MIB, 20 * MIB, 1]],
    }
    failure = judged(
        in_pieces(map=made, reserved_bytes=160 * MIB, allocated_bytes=40 * MIB)._replace(
            process=process
        )
    )

    assert failure.largest_hole_bytes == 120 * MIB


@pytest.mark.parametrize(("module", "count"), [("libc10.so", 0), ("libcupy.so", 1)])
def test_a_call_that_an_allocator_makes_may_be_tried_again(module, count):
    """If that fails too, the allocator says so; a call of others is a request that failed."""
    stack = call_stack(9, (Frame("native", "raw_alloc", module=module), *STEP.frames))
    api = calls(TRAINER, "cudaMalloc", [MS]).api
    failed = in_pieces(
        source=wire.OUT_OF_MEMORY_CALL, api=api.number, stack=stack, map=None, device_total_bytes=0
    )
    chains, _ = explained(failed)

    assert [chain.effect.api for chain in chains] == ["cudaMalloc"] * count
    assert all(chain.failure.device_free_bytes is None for chain in chains)

"""Programs on a model of PyTorch's allocator: what is said of their snapshots is what happened."""

import pytest

from otel_gpu.importers import open_capture
from otel_gpu.importers.torch_memory.capture import SnapshotCapture
from otel_gpu.options import Config
from otel_gpu.state.memory.history import MAX_READINGS
from otel_gpu.wire.memory_snapshot import BlockState
from tests.torch_allocator import (
    ACTIVATIONS,
    CACHE,
    EXAMPLE_NAMES,
    EXAMPLES,
    GIB,
    SCENARIOS,
    WEIGHTS,
    WORKSPACE,
)
from tests.unit.importers.snapshots import MIB, write
from tests.unit.importers.test_torch_memory import explain

CAUSES = {
    # What ran out, why, and in which line it was asked for.
    "fragmentation": ("fragmentation", WORKSPACE),
    "leak": ("leak", None),
    "exhaustion": ("exhausted", ACTIVATIONS),
    "other-process": ("other_process", ACTIVATIONS),
}


@pytest.fixture(scope="module", params=SCENARIOS)
def scenario(request, tmp_path_factory):
    """A scenario: its name, its allocator, and what is said of its snapshot."""
    made = SCENARIOS[request.param]()
    path = write(tmp_path_factory.mktemp("scenario") / "s.pickle", made.snapshot())
    (row,) = explain(path).memory
    return request.param, made, row


def test_every_byte_is_where_the_model_has_it(scenario):
    """In use by line, reserved, and the most that ever was in use, to the byte."""
    _, made, row = scenario

    assert row.requested_bytes == made.live.total()
    assert row.reserved_bytes == made.reserved_bytes
    assert {one.line: one.size_bytes for one in row.holders if one.size_bytes} == dict(
        +made.at_peak
    )
    assert row.peak_bytes - (row.rounding_bytes or 0) == made.peak_bytes
    parts = (row.requested_bytes, row.rounding_bytes, row.pending_bytes, row.stuck_bytes)
    assert sum(parts) + row.whole_free_bytes == row.reserved_bytes


def test_what_was_in_use_over_time_has_the_peak_and_the_end(scenario):
    """Merged to some hundred moments, in order, of which none is made up."""
    _, _, row = scenario
    times = [one.unix_ns for one in row.readings]

    assert times == sorted(times)
    assert 2 < len(times) <= MAX_READINGS + 1
    assert max(one.live_bytes for one in row.readings) == row.peak_bytes
    assert row.readings[-1][1:] == (row.live_bytes, row.reserved_bytes)
    assert all(0 <= one.reserved_bytes <= row.peak_reserved_bytes for one in row.readings)


def test_the_cause_is_the_one_that_was_made(scenario):
    """And a program that is well raises nothing, whatever its holes look like."""
    name, made, row = scenario

    if name not in CAUSES:
        assert row.ooms == ()
        assert bool(row.alarms) == (name == "empty-cache")
        return
    (failed,) = row.ooms
    cause, line = CAUSES[name]
    assert failed.cause == cause
    assert line is None or failed.line == line
    assert failed.free_bytes == made.free_bytes
    assert failed.reserved_bytes == made.reserved_bytes
    assert sum(one.size_bytes for one in failed.holders) == failed.live_bytes
    assert row.alarms
    assert row.advice


def test_fragmentation_names_the_line_that_pins_the_holes():
    """256 MiB are wanted, eight times that is free, and no hole is as large."""
    made = SCENARIOS["fragmentation"]()

    assert made.free_bytes < 256 * MIB
    holes = made.holes()
    assert max(holes) < 256 * MIB < sum(holes)


@pytest.mark.parametrize(
    ("name", "line", "says"),
    [
        ("fragmentation", CACHE, "expandable_segments:True"),
        ("leak", CACHE, f"Let go of what train.py:{CACHE}"),
        ("exhaustion", WEIGHTS, f"Use less where most is held: train.py:{WEIGHTS}"),
        ("other-process", None, "outside of this allocator"),
        ("empty-cache", None, "empty_cache()"),
    ],
)
def test_advice_has_the_line_and_its_number(tmp_path, name, line, says):
    """What to do first, with what it rests on."""
    (row,) = explain(write(tmp_path / "s.pickle", SCENARIOS[name]().snapshot())).memory

    assert says in row.advice[0]
    if name == "fragmentation":
        (failed,) = row.ooms
        assert failed.pins[0].line == line
        assert failed.pins[0].hole_bytes == failed.hole_bytes


def test_what_others_hold_is_exact_where_the_device_is_known(tmp_path):
    """7 GiB and a tenth were taken, of a device of 8."""
    made = SCENARIOS["other-process"]()
    path = write(tmp_path / "s.pickle", made.snapshot())

    ((failed,),) = (row.ooms for row in explain(path, device_bytes=8 * GIB).memory)

    assert (failed.cause, failed.outside_bytes) == ("other_process", made.others_bytes)


def test_a_snapshot_is_read_as_the_model_wrote_it(tmp_path):
    """Segments and blocks, in order, with their addresses."""
    made = SCENARIOS["healthy"]()
    path = write(tmp_path / "s.pickle", made.snapshot())

    with open_capture("torch-memory", path, Config()) as capture:
        assert isinstance(capture, SnapshotCapture)
        *_, read = capture.events()

    blocks = [block for one in read.snapshot.segments for block in one.blocks]
    used = {block.address for block in blocks if block.state is BlockState.ALLOCATED}
    assert used == made.addresses()


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_the_shipped_examples_are_the_scenarios(tmp_path, name):
    """What the pages ask about is what is tested here: python -m tests.torch_allocator."""
    fresh = explain(write(tmp_path / "s.pickle", SCENARIOS[name]().snapshot())).memory

    assert explain(EXAMPLES / f"{name}.pickle").memory == fresh

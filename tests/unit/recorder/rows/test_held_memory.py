"""What holds the memory of devices, kept in a store: for any window, for SQL, and when it is full."""

import pytest

from otel_gpu.recorder.limits import StoreLimits
from otel_gpu.recorder.recorder import open_writer
from otel_gpu.recorder.rows import held_memory
from otel_gpu.report.document import Window
from otel_gpu.report.memory.stacks import MemoryStackCollector
from otel_gpu.report.stacks.folding import fold
from otel_gpu.report.stacks.top_stacks import MEMORY
from tests.activities import SECOND, T0, call, capture, image, line_stack, out_of_memory
from tests.memory_activities import CACHE, MIB, STEP, WEIGHTS, blocks, held
from tests.unit.recorder.stores import ask, read, write

MINUTE = 60
TRAINER = image(42)


def story(minutes=10):
    """What builds once is never said again; what is remembered grows by 4 MiB a minute."""
    yield capture()
    yield blocks(TRAINER, 10, held(WEIGHTS, 200 * MIB), allocated_bytes=200 * MIB)
    for minute in range(1, minutes + 1):
        kept = held(CACHE, 4 * minute * MIB, blocks=minute)
        step = held(STEP, 0, 100 * minute * MIB, blocks=100)
        yield blocks(
            TRAINER, minute * MINUTE, kept, step, allocated_bytes=(200 + 4 * minute) * MIB,
            handed_out_bytes=(200 + 104 * minute) * MIB,
        )  # fmt: skip
        yield call(TRAINER, "cudaMalloc", minute * MINUTE * SECOND, 1_000_000)


def graph(activities, kind, window):
    collector = MemoryStackCollector(window, kind=kind)
    for activity in activities:
        collector.observe(activity)
    report = collector.finish("a capture")
    return {stack.frames: stack.weight for stack in fold(report.rows, report.by)}


WINDOWS = [
    Window(),
    Window(T0 + 5 * MINUTE * SECOND, None),
    Window(T0 + 3 * MINUTE * SECOND, T0 + 7 * MINUTE * SECOND),
]


@pytest.mark.parametrize("window", WINDOWS, ids=["all", "late", "middle"])
@pytest.mark.parametrize("kind", MEMORY)
def test_a_window_of_a_store_has_what_that_of_a_recording_has(tmp_path, kind, window):
    """Also of holders that were said long before it: a chunk says what everything stands at."""
    path = write(
        tmp_path / "store.db", story(), StoreLimits(batch_rows=2, chunk_span_ns=20 * SECOND)
    )

    found = graph(read(path, *window), kind, window)

    assert found
    assert found == graph(story(), kind, window)
    assert ask(path, "SELECT count(*) > 5 FROM chunks") == [(1,)]


def test_what_is_held_survives_the_chunk_that_said_it(tmp_path):
    """The stack of what was built at first is there when all that told of it has gone."""
    limits = StoreLimits(max_bytes=2 << 20, batch_rows=100, chunk_rows=1_000)
    with open_writer(tmp_path / "store.db", limits, live=False) as writer:
        for activity in story(3):
            writer.observe(activity)
        for number in range(40_000):
            at_s = 4 * MINUTE + number / 100
            writer.observe(call(TRAINER, "cudaMalloc", round(at_s * SECOND), 1_000))
            if number % 2_000 == 0:
                writer.observe(
                    blocks(TRAINER, at_s, held(CACHE, 8 * MIB), allocated_bytes=208 * MIB)
                )
        assert writer.lost() == {}
    path = tmp_path / "store.db"
    assert ask(path, "SELECT min(first_seq) > 1000 FROM chunks") == [(1,)]

    window = Window(ask(path, "SELECT max(start_unix_ns) FROM chunks")[0][0], None)
    found = graph(read(path, *window), "in-use", window)

    assert sorted(weight // MIB for weight in found.values()) == [8, 200]


def test_figures_can_be_asked_for_in_sql(tmp_path):
    """What was in use when, by line, and what failed."""
    failed = out_of_memory(
        TRAINER, 11 * MINUTE, 9 * MIB, stack=line_stack(41), device_free_bytes=MIB
    )
    path = write(tmp_path / "store.db", [*story(), failed])

    assert ask(
        path, "SELECT allocated_bytes / 1048576, coverage FROM v_memory ORDER BY seq LIMIT 3"
    ) == [(200, 1.0), (204, 1.0), (208, 1.0)]
    assert ask(
        path,
        "SELECT place, live_bytes / 1048576, allocated_bytes / 1048576 FROM v_memory_holders "
        "ORDER BY live_bytes DESC",
    ) == [
        ("train.py:12 build", 200, 200),
        ("train.py:61 remember", 40, 40),
        ("train.py:40 forward", 0, 1_000),
    ]
    assert ask(
        path, "SELECT service, place, asked_bytes, device_free_bytes, api FROM v_out_of_memory"
    ) == [("trainer", "train.py:41 step", 9 * MIB, MIB, "")]


def test_a_map_that_is_too_large_loses_its_small_blocks(tmp_path):
    """They come last; how many is said."""
    blocks_of_map = [(n << 20, 1 << 20, n) for n in range(50_000)]
    failed = out_of_memory(
        TRAINER, 20, MIB,
        map={
            "device": 0, "segments": [[0, MIB]], "blocks": blocks_of_map, "left_out": 7,
            "smallest_bytes": MIB,
        },
    )  # fmt: skip
    _, found = read(write(tmp_path / "store.db", [capture(), failed]))

    kept = found.map["blocks"]
    assert 1_000 < len(kept) < 50_000
    assert list(map(tuple, kept)) == blocks_of_map[: len(kept)]
    assert found.map["left_out"] == 7 + 50_000 - len(kept)


def test_no_more_is_followed_than_can_be(tmp_path, monkeypatch):
    """What is beyond that is in its rows, and is not known to later chunks; it is counted."""
    monkeypatch.setattr(held_memory, "MAX_HOLDERS", 2)
    with open_writer(tmp_path / "store.db", live=False) as writer:
        for activity in story(2):
            writer.observe(activity)
        lost = writer.lost()

    assert lost == {"process_not_followed": 2}
    assert len(ask(tmp_path / "store.db", "SELECT * FROM memory_holder_totals")) == 2
    assert len(ask(tmp_path / "store.db", "SELECT * FROM memory_holders")) == 5

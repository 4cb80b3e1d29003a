"""Who holds memory, by stack: live readings, and snapshots."""

import pytest

from otel_gpu.report.document import Window
from otel_gpu.report.memory.stacks import MemoryStackCollector
from otel_gpu.report.stacks.folding import fold
from otel_gpu.report.stacks.top_stacks import ALLOCATED, IN_USE, MEMORY, PEAK
from tests.activities import SECOND, T0, capture, image
from tests.memory_activities import CACHE, MIB, STEP, WEIGHTS, blocks, held

TRAINER = image(name="train.py")
OTHER = image(pid=77, name="serve.py")
# 100 MiB are older than the capture, of which 10 are freed at once; 50 MiB have no stack.
STORY = (
    capture(),
    blocks(
        TRAINER, 1, held(WEIGHTS, 200 * MIB), allocated_bytes=350 * MIB, before_bytes=100 * MIB,
        handed_out_bytes=250 * MIB,
    ),
    blocks(
        TRAINER, 2, held(STEP, 500 * MIB), held(CACHE, 40 * MIB), allocated_bytes=880 * MIB,
        before_bytes=100 * MIB, before_freed_bytes=10 * MIB, handed_out_bytes=790 * MIB,
    ),
    blocks(
        TRAINER, 3, held(STEP, 0, 500 * MIB), held(CACHE, 80 * MIB, blocks=2), allocated_bytes=420 * MIB,
        before_bytes=100 * MIB, before_freed_bytes=10 * MIB, handed_out_bytes=830 * MIB,
    ),
    blocks(OTHER, 3, held(WEIGHTS, 7 * MIB), device=1),
)  # fmt: skip


def report_of(kind, *, story=STORY, **asked):
    collector = MemoryStackCollector(kind=kind, **asked)
    for activity in story:
        collector.observe(activity)
    return collector.finish("a capture")


def folded(report):
    return {
        ";".join(frame.text.partition(" (/")[0] for frame in stack.frames): stack.weight // MIB
        for stack in fold(report.rows, report.by)
    }


def of_trainer(**places):
    return {f"train.py (42);device 0;{path}": size for path, size in places.items()}


OTHERS = {"serve.py (77);device 1;<module>;build": 7}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (IN_USE, {"<module>;build": 200, "<module>;remember": 80}),
        (PEAK, {"<module>;build": 200, "<module>;remember": 40, "<module>;forward": 500}),
        (ALLOCATED, {"<module>;build": 200, "<module>;remember": 80, "<module>;forward": 500}),
    ],
)
def test_all_of_what_the_allocator_says_is_in_the_graph(kind, expected):
    """By stack, and in named rows what is older, and what has no stack."""
    before = {} if kind == ALLOCATED else {"(before the attach)": 90}

    assert folded(report_of(kind)) == {
        **of_trainer(**expected, **before, **{"(not sampled)": 50}),
        **OTHERS,
    }


def test_a_window_has_what_was_allocated_in_it():
    """And holds what was in use at its end."""
    late = Window(T0 + 5 * SECOND // 2, None)
    early = Window(None, T0 + SECOND)

    assert folded(report_of(ALLOCATED, window=late, pids=[42])) == of_trainer(
        **{"<module>;remember": 40}
    )
    assert folded(report_of(IN_USE, window=early)) == of_trainer(
        **{"<module>;build": 200, "(before the attach)": 100, "(not sampled)": 50}
    )


def test_of_one_process_there_is_only_its_own():
    """Also where another one has the same device."""
    report = report_of(IN_USE, pids=[77])

    assert folded(report) == OTHERS
    assert (report.seen, report.without_stack, report.rows[0].device) == (1, 0, 1)


@pytest.mark.parametrize("kind", MEMORY)
def test_without_readings_there_is_nothing(kind):
    """And no row of nothing."""
    assert report_of(kind, story=STORY[:1]).rows == ()

"""Which sizes the memory of a snapshot has: blocks, files, churn, segments and holes, to the byte."""

import json
import os
from pathlib import Path

import pytest

from otel_gpu import cli
from otel_gpu.report import json_form
from otel_gpu.report.memory.types import Holding
from tests.schemas import REPORT
from tests.unit.importers.snapshots import (
    MIB,
    block,
    event,
    frame,
    freed,
    segment,
    snapshot,
    stack,
    write,
)
from tests.unit.importers.test_torch_memory import REAL, explain, places

A, B, C = 1 << 40, 2 << 40, 3 << 40
TRAIN, LOSS = (stack("/app/train.py", line, name) for line, name in ((20, "step"), (31, "loss")))
MODEL = stack("/app/model.py", 44, "forward")


@pytest.fixture
def row_of(tmp_path):
    """What is said of the one device of a snapshot."""

    def of(made, **choices):
        document = explain(write(tmp_path / "snapshot.pickle", made), **choices)
        REPORT.validate(json_form.make_document(document))
        (row,) = document.memory
        return row

    return of


def test_the_largest_blocks_are_listed_each_by_itself(row_of):
    """Ten of them, with their places; two of one line are two."""
    sizes = [*range(2, 15), 14]
    starts = [sum(sizes[:number]) * MIB for number in range(len(sizes))]
    blocks = [
        block(A + start, size * MIB, frames=TRAIN if size % 2 else MODEL)
        for start, size in zip(starts, sizes, strict=True)
    ]

    found = row_of(snapshot([segment(A, blocks)])).largest_blocks

    assert [one.size_bytes // MIB for one in found] == [14, 14, 13, 12, 11, 10, 9, 8, 7, 6]
    assert found[1] == Holding("forward", "/app/model.py", 44, 14 * MIB, 1)
    assert found[2] == Holding("step", "/app/train.py", 20, 13 * MIB, 1)


def test_files_are_all_that_is_in_use(row_of):
    """Their lines are summed; three functions are named, and what has no file stands for itself."""
    lines = [stack("/app/train.py", 20 + n, f"step{n}") for n in range(5)]
    blocks = [
        block(A + n * MIB, MIB, frames=frames)
        for n, frames in enumerate([*lines, lines[3], MODEL, MODEL, ()])
    ]

    row = row_of(snapshot([segment(A, blocks)]))

    assert [(one.file, one.size_bytes // MIB, one.blocks) for one in row.files] == [
        ("/app/train.py", 6, 6),
        ("/app/model.py", 2, 2),
        ("", 1, 1),
    ]
    assert row.files[0].functions == ("step3", "step0", "step1")
    assert row.files[2].functions == ("(older than the recording)",)


def test_files_that_find_no_room_are_one_row(row_of):
    """Nothing of what is in use is lost."""
    blocks = [
        block(A + n * MIB, MIB, frames=stack(f"/app/part{n:02}.py", 1, "run")) for n in range(20)
    ]

    files = row_of(snapshot([segment(A, blocks)])).files

    assert len(files) == 16
    assert files[-1] == ("", ("(5 others)",), 5 * MIB, 5)
    assert sum(one.size_bytes for one in files) == 20 * MIB


def test_sizes_are_ranked_by_what_was_allocated_of_them(row_of):
    """Count times size, from 1 MiB on, with the three lines that allocated the most."""
    plan = [
        (7, 3 * MIB, TRAIN), (2, 3 * MIB, MODEL), (1, 3 * MIB, LOSS),
        (1, 3 * MIB, stack("/app/z.py", 9)), (2, 20 * MIB, MODEL), (3, MIB, TRAIN), (999, MIB - 1, LOSS),
    ]  # fmt: skip
    trace = []
    for times, size, frames in plan:
        for _ in range(times):
            trace += [event("alloc", A, size, len(trace), frames), *freed(A, size, len(trace))]

    sizes = row_of(snapshot([segment(A, [block(A, 40 * MIB, "inactive")])], trace)).churn_sizes

    assert [(one.block_bytes, one.blocks, one.size_bytes) for one in sizes] == [
        (20 * MIB, 2, 40 * MIB),
        (3 * MIB, 11, 33 * MIB),
        (MIB, 3, 3 * MIB),
    ]
    assert places(sizes[1].holders) == [
        ("train.py:20", 21 * MIB),
        ("model.py:44", 6 * MIB),
        ("train.py:31", 3 * MIB),
    ]


def test_segments_are_counted_by_size(row_of):
    """Bounds are of the larger class; what no segment has is left out."""
    whole = [2048, 1024, 1023, 256, 64, 63, 2, 1]
    segments = [
        segment((n + 1) << 40, [block((n + 1) << 40, size * MIB, "inactive")])
        for n, size in enumerate(whole)
    ]
    segments.append(
        segment(99 << 40, [block(99 << 40, 20 * MIB), block((99 << 40) + 20 * MIB, 10 * MIB, "inactive")])
    )  # fmt: skip

    found = row_of(snapshot(segments)).segment_sizes

    assert [tuple(one) for one in found] == [
        (1024 * MIB, None, 2, 3072 * MIB, 0, 3072 * MIB),
        (256 * MIB, 1024 * MIB, 2, 1279 * MIB, 0, 1279 * MIB),
        (64 * MIB, 256 * MIB, 1, 64 * MIB, 0, 64 * MIB),
        (2 * MIB, 64 * MIB, 3, 95 * MIB, 20 * MIB, 65 * MIB),
        (0, 2 * MIB, 1, MIB, 0, MIB),
    ]
    assert not any(one.segments == 0 for one in row_of(snapshot(segments[:1])).segment_sizes)


def test_holes_name_the_blocks_beside_them(row_of):
    """The most stuck first; a segment that is free as a whole is none, nor is what can be unmapped."""
    mixed = segment(
        A,
        [
            block(A, 40 * MIB, "inactive"),
            block(A + 40 * MIB, MIB, frames=TRAIN),
            block(A + 41 * MIB, 60 * MIB, "inactive"),
            block(A + 101 * MIB, 3 * MIB, frames=MODEL),
        ],
    )
    whole = segment(B, [block(B, 500 * MIB, "inactive")])
    growing = segment(
        C, [block(C, 10 * MIB, frames=LOSS), block(C + 10 * MIB, 30 * MIB, "inactive")], is_expandable=True
    )  # fmt: skip

    row = row_of(snapshot([whole, mixed, growing]))

    assert [(one.hole_bytes // MIB, one.stuck_bytes // MIB) for one in row.holes] == [
        (60, 60),
        (40, 40),
        (30, 10),
    ]
    assert {one.segment_bytes for one in row.holes[:2]} == {104 * MIB}
    assert [places(one.holders) for one in row.holes] == [
        [("model.py:44", 3 * MIB), ("train.py:20", MIB)],
        [("train.py:20", MIB)],
        [("train.py:31", 10 * MIB)],
    ]
    assert sum(one.stuck_bytes for one in row.holes) == row.stuck_bytes


def test_room_is_what_is_not_reserved_and_what_blocks_could_have(row_of):
    """What is cached can be given back; what is stuck or pending is lost. It raises no alarm."""
    partly = segment(
        A,
        [
            block(A, 5 * MIB),
            block(A + 5 * MIB, 3 * MIB, "inactive"),
            block(A + 8 * MIB, 2 * MIB, "active_pending_free"),
        ],
    )
    made = snapshot([partly, segment(B, [block(B, 20 * MIB, "inactive")])])

    row = row_of(made, device_bytes=31 * MIB)

    assert (row.unreserved_bytes, row.usable_bytes) == (MIB, 26 * MIB)
    assert row.alarms == ()
    for unknown in (row_of(made), row_of(made, device_bytes=29 * MIB)):
        assert (unknown.unreserved_bytes, unknown.usable_bytes) == (None, None)


def test_text_and_page_have_them(tmp_path, capsys):
    """Each once, holes from 32 MiB on."""
    blocks = [
        block(A, 33 * MIB, "inactive"),
        block(A + 33 * MIB, MIB, frames=TRAIN),
        block(A + 34 * MIB, 31 * MIB, "inactive"),
        block(A + 65 * MIB, MIB, frames=[frame("/app/<b>.py", 3, "\x1b[31m")]),
    ]
    trace = [event("alloc", A + 33 * MIB, MIB, 1, TRAIN)]
    path = write(tmp_path / "s.pickle", snapshot([segment(A, blocks)], trace))

    assert cli.main(["import", "torch-memory", str(path), "--device-gib", "1"]) == 0
    text = capsys.readouterr().out
    assert "In the end 1 GB are not reserved, and blocks could have 1.01 GB in all" in text
    assert "64 MiB to 256 MiB" in text
    assert text.count("of a segment of") == 1
    assert "34.6 MB" in text.split("of a segment of")[1].split("at its peak")[0]
    assert "32.5 MB" not in text
    assert "/app/train.py: step" in text
    assert "\x1b[31m" not in text
    assert cli.main(["report", str(path), "--html", str(tmp_path / "p.html")]) == 0
    page = (tmp_path / "p.html").read_text("utf-8")
    for title in ("Which files hold it", "Of which sizes", "How large segments", "Where most is"):
        assert page.count(f"<summary>{title}") == 1
    assert "<b>.py" not in page


def test_two_snapshots_are_compared_by_file(tmp_path, capsys):
    """What a file holds in the end, of both."""
    a = write(tmp_path / "a.pickle", snapshot([segment(A, [block(A, 4 * MIB, frames=MODEL)])]))
    b = write(
        tmp_path / "b.pickle",
        snapshot([segment(A, [block(A, 4 * MIB, frames=MODEL), block(B, 6 * MIB, frames=MODEL)])]),
    )

    assert cli.main(["compare", str(a), str(b), "--json"]) == 0
    deltas = json.loads(capsys.readouterr().out)["deltas"]
    assert [
        (one["what"], one["a"], one["b"]) for one in deltas if one["kind"] == "memory_file"
    ] == [("device 0: /app/model.py", 4 * MIB, 10 * MIB)]


FIGURES = {
    # segments by size in MiB, the largest blocks, the largest holes, (size, times) of what churns
    "MAGMA27__memory_snapshot": (
        [(256, 6, 1_975_517_184), (64, 96, 9_663_676_416), (2, 114, 2_541_748_224)],
        [327_680_000, 31_457_280, 31_457_280, 30_720_000, 30_720_000] + [9_437_184] * 5,
        [242_647_040] + [66_060_288] * 5 + [56_623_104] * 6 + [25_165_824],
        [
            (100_663_296, 336), (25_165_824, 649), (327_680_000, 11), (12_582_912, 264),
            (50_331_648, 25), (9_437_184, 36), (2_359_296, 48), (30_720_000, 2),
        ],
    ),
    "Wedsonlin__results_medium_512_training_memory_snapshot": (
        [(64, 80, 5_469_372_416), (2, 320, 7_191_134_208)],
        [41_943_040] * 6 + [40_960_000] * 3 + [17_760_256],
        [75_366_400, 66_125_824, 62_914_560, 58_720_256, 58_720_256, 58_720_256, 54_525_952],
        [
            (16_777_216, 1_465), (67_108_864, 240), (4_194_304, 2_882), (33_554_432, 264),
            (8_388_608, 949), (40_960_000, 37), (2_097_152, 384), (81_920_000, 8), (20_480_000, 2),
        ],
    ),
}  # fmt: skip


@pytest.mark.skipif(not REAL, reason="needs OTEL_GPU_TEST_TORCH_DATA: a folder of real artefacts")
@pytest.mark.parametrize("name", FIGURES)
def test_the_sizes_of_real_snapshots_are_right_to_the_byte(name):
    """Worked out before by another program, from the pickle itself."""
    (row,) = explain(Path(REAL, "snapshots", f"{name}.pickle"), device_bytes=80 << 30).memory
    classes, blocks, holes, churn = FIGURES[name]

    assert [(o.least_bytes // MIB, o.segments, o.reserved_bytes) for o in row.segment_sizes] == (
        classes
    )
    assert [one.size_bytes for one in row.largest_blocks] == blocks
    assert [one.stuck_bytes for one in row.holes][: len(holes)] == holes
    assert [(one.block_bytes, one.blocks) for one in row.churn_sizes] == churn
    assert row.unreserved_bytes == (80 << 30) - row.reserved_bytes
    assert row.usable_bytes == (80 << 30) - row.stuck_bytes - row.pending_bytes


@pytest.mark.skipif(not REAL, reason="needs OTEL_GPU_TEST_TORCH_DATA: a folder of real artefacts")
@pytest.mark.parametrize("path", sorted(Path(REAL or os.devnull, "snapshots").glob("*.pickle")), ids=lambda path: path.stem)  # fmt: skip
def test_parts_of_real_snapshots_are_what_the_whole_is(path):
    """Files and classes of segments sum to the split, and holes are of what is stuck."""
    for row in explain(path).memory:
        classes = row.segment_sizes
        assert sum(one.reserved_bytes for one in classes) == row.reserved_bytes
        assert sum(one.live_bytes for one in classes) == row.live_bytes
        assert sum(one.whole_free_bytes for one in classes) == row.whole_free_bytes
        assert sum(one.segments for one in classes) == row.segments
        assert sum(one.size_bytes for one in row.files) == row.live_bytes + row.pending_bytes
        assert sum(one.stuck_bytes for one in row.holes) <= row.stuck_bytes
        assert sum(one.size_bytes for one in row.churn_sizes) <= sum(
            one.size_bytes for one in row.churn
        )

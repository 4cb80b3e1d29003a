"""PyTorch's memory snapshots: every byte has its place, its line, and its moment."""

import itertools
import json
import os
import pickle
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_gpu import cli, pipeline
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.errors import RecordingError
from otel_gpu.explain.explainer import Explainer
from otel_gpu.importers import open_capture
from otel_gpu.options import Config
from otel_gpu.report import json_form
from otel_gpu.report.collector import Collector
from tests.schemas import REPORT
from tests.unit.importers.snapshots import (
    BACKWARD,
    MIB,
    T0_US,
    block,
    event,
    frame,
    freed,
    oom,
    segment,
    snapshot,
    stack,
    write,
)

REAL = os.environ.get("OTEL_GPU_TEST_TORCH_DATA", "")
A, B = 1 << 40, 2 << 40
LOOP, CACHE, MODEL = (stack("/app/train.py", line) for line in (20, 31, 44))


def explain(path, **choices):
    """The document of a snapshot."""
    with open_capture("torch-memory", path, Config(), **choices) as capture:
        collector = Collector(Explainer())
        pipeline.process_events(capture.events(), Enricher(), [collector])
        return collector.finish(str(path), capture.counts.notes)


@pytest.fixture
def rows(tmp_path):
    """What is said of the devices of a snapshot."""

    def of(made, protocol=4, **choices):
        document = explain(write(tmp_path / "snapshot.pickle", made, protocol), **choices)
        REPORT.validate(json_form.make_document(document))
        return document.memory

    return of


def places(holdings):
    return [(f"{one.file.rpartition('/')[2]}:{one.line}", one.size_bytes) for one in holdings]


def test_reserved_memory_is_split_to_the_byte(rows):
    """Asked for, rounding, pending, stuck and whole free are all of it."""
    whole = segment(B, [block(B, 20 * MIB, "inactive")])
    partly = segment(
        A,
        [
            block(A, 5 * MIB, requested=5 * MIB - 100),
            block(A + 5 * MIB, 3 * MIB, "inactive"),
            block(A + 8 * MIB, 2 * MIB, "active_pending_free"),
            block(A + 10 * MIB, 1 * MIB, "active_awaiting_free"),
            block(A + 11 * MIB, 9 * MIB, "inactive"),
        ],
    )

    (row,) = rows(snapshot([whole, partly]))

    assert (row.reserved_bytes, row.live_bytes) == (40 * MIB, 5 * MIB)
    assert (row.requested_bytes, row.rounding_bytes) == (5 * MIB - 100, 100)
    assert (row.pending_bytes, row.stuck_bytes, row.whole_free_bytes) == (
        3 * MIB,
        12 * MIB,
        20 * MIB,
    )
    assert row.largest_hole_bytes == 20 * MIB
    parts = (row.requested_bytes, row.rounding_bytes, row.pending_bytes, row.stuck_bytes)
    assert sum(parts) + row.whole_free_bytes == row.reserved_bytes


def test_the_peak_holds_what_is_older_than_the_recording(rows):
    """A walk from zero would miss the old block, and the peak with it."""
    trace = [
        event("alloc", A + 10 * MIB, 4 * MIB, 10, LOOP),
        # Freed, and never seen to be allocated: it was there before.
        *freed(B, 30 * MIB, 20),
        event("alloc", A + 20 * MIB, 2 * MIB, 30, CACHE),
        *freed(A + 10 * MIB, 4 * MIB, 40),
    ]
    end = segment(
        A, [block(A + 20 * MIB, 2 * MIB, frames=CACHE), block(A + 22 * MIB, 18 * MIB, "inactive")]
    )

    (row,) = rows(snapshot([end], trace))

    assert row.peak_bytes == 34 * MIB
    assert row.peak_unix_ns == (T0_US + 20) * 1_000
    assert [(one.function, one.size_bytes) for one in row.holders] == [
        ("(older than the recording)", 30 * MIB),
        ("step", 4 * MIB),
    ]
    assert places(row.end_holders) == [("train.py:31", 2 * MIB)]
    assert places(row.churn) == [("train.py:20", 4 * MIB), ("train.py:31", 2 * MIB)]
    assert (row.allocations, row.frees) == (2, 2)


def test_a_block_is_in_use_until_its_free_is_complete(rows):
    """Between request and completion a stream still uses it, and the peak counts it."""
    trace = [
        event("alloc", A, 8 * MIB, 1, LOOP),
        event("free_requested", A, 8 * MIB, 2),
        event("alloc", A + 8 * MIB, 8 * MIB, 3, CACHE),
        event("free_completed", A, 8 * MIB, 4),
        *freed(A + 8 * MIB, 8 * MIB, 5),
    ]
    end = segment(A, [block(A, 20 * MIB, "inactive")])

    assert rows(snapshot([end], trace))[0].peak_bytes == 16 * MIB
    requested_only = [one for one in trace if one["action"] != "free_completed"]
    assert rows(snapshot([end], requested_only))[0].peak_bytes == 8 * MIB


def test_the_ring_may_have_dropped_the_oldest(rows):
    """Frees without their allocations, and a block whose stack only the end knows."""
    trace = [*freed(A, 3 * MIB), *freed(A + 3 * MIB, 4 * MIB)]
    end = segment(A, [block(A, 7 * MIB, "inactive"), block(A + 7 * MIB, 5 * MIB, frames=MODEL)])

    (row,) = rows(snapshot([end], trace))

    assert row.peak_bytes == 12 * MIB
    assert places(row.end_holders) == [("train.py:44", 5 * MIB)]


@given(seed=st.randoms(use_true_random=False), drop=st.integers(0, 60))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_peak_is_that_of_a_model(tmp_path, seed, drop):
    """Random allocations and frees, of which the first are not recorded: the walk finds the peak."""
    live, trace, totals, numbers = {}, [], [0], itertools.count()
    for at in range(120):
        if live and seed.random() < 0.45:
            address = seed.choice(sorted(live))
            trace.append(
                (freed(address, live.pop(address)[0], at), sum(one[0] for one in live.values()))
            )
        else:
            address, size = A + next(numbers) * MIB, 512 * seed.randint(1, 2_000)
            line = seed.choice([LOOP, CACHE, MODEL])
            live[address] = (size, line)
            trace.append(
                ([event("alloc", address, size, at, line)], sum(o[0] for o in live.values()))
            )
        totals.append(trace[-1][1])
    end = [
        segment(
            address,
            [
                block(address, size, frames=line),
                block(address + size, MIB - size % MIB, "inactive"),
            ],
        )
        for address, (size, line) in live.items()
    ]
    events = [one for some, _ in trace[drop:] for one in some]
    path = write(tmp_path / "model.pickle", snapshot(end, events))

    (row,) = explain(path).memory

    assert row.peak_bytes == max(totals[drop:])
    assert sum(one.size_bytes for one in row.holders) == row.peak_bytes
    assert sum(one.size_bytes for one in row.end_holders) == row.live_bytes == totals[-1]


def test_the_line_is_the_programs_own(rows):
    """Not that of the framework, also on Windows; a backward pass has a name of its own."""
    windows = [
        frame(r"D:\x\.venv\Lib\site-packages\torch\functional.py", 373, "einsum"),
        frame(r"D:\x\model.py", 39, "forward"),
    ]
    backward = [
        frame("??", 0, "torch::unwind::unwind()"),
        frame("??", 0, "at::_ops::sum_dim_IntList::call(at::Tensor const&)"),
        frame("engine.cpp", 0, "torch::autograd::Engine::thread_main(int)"),
    ]
    blocks = [block(A, 3 * MIB, frames=windows), block(A + 3 * MIB, 2 * MIB, frames=backward)]

    (row,) = rows(snapshot([segment(A, blocks)]))

    assert [(one.file, one.line, one.function) for one in row.end_holders] == [
        ("D:/x/model.py", 39, "forward"),
        ("engine.cpp", 0, "torch::autograd::Engine::thread_main(int)"),
    ]


def test_pools_streams_and_devices_stay_apart(rows):
    """A graph's private pool, another stream and another device each have their row."""
    made = [
        segment(A, [block(A, 4 * MIB), block(A + 4 * MIB, 16 * MIB, "inactive")]),
        segment(B, [block(B, 20 * MIB)], segment_pool_id=(0, 1)),
        segment(3 << 40, [block(3 << 40, 2 * MIB, "inactive")], stream=7, kind="small"),
        segment(A, [block(A, 6 * MIB)], device=1),
    ]

    first, second = rows(snapshot(made, [], [event("alloc", A, 6 * MIB, 5, LOOP)]))

    assert [(pool.pool, pool.stream, pool.small, pool.free_bytes) for pool in first.pools] == [
        ((0, 0), 0, False, 16 * MIB),
        ((0, 0), 7, True, 2 * MIB),
        ((0, 1), 0, False, 0),
    ]
    assert (second.device, second.live_bytes, second.allocations) == (1, 6 * MIB, 1)
    assert places(second.end_holders) == [("train.py:20", 6 * MIB)]


def test_segments_that_grow_give_back_whole_pages(rows):
    """Of an expandable segment, what is free is stuck only where a page is partly used."""
    made = segment(
        A,
        [
            block(A, 30 * MIB),
            block(A + 30 * MIB, 75 * MIB, "inactive"),
            block(A + 105 * MIB, 15 * MIB),
        ],
        is_expandable=True,
    )

    (row,) = rows(snapshot([made]))

    assert (row.whole_free_bytes, row.stuck_bytes) == (60 * MIB, 15 * MIB)


def test_the_formats_of_older_versions_are_read(rows):
    """A list of segments, blocks without addresses, and what was asked for in a history."""
    old = {"device": 0, "address": A, "total_size": 20 * MIB, "stream": 0, "segment_type": "large"}
    history = [{"addr": A, "real_size": 3 * MIB - 10, "frames": LOOP}]
    blocks = [
        {"size": 3 * MIB, "state": "active_allocated", "history": history},
        {"size": 17 * MIB, "state": "inactive"},
    ]

    (from_list,) = rows([{**old, "blocks": blocks}])
    assert (from_list.requested_bytes, from_list.rounding_bytes) == (3 * MIB - 10, 10)
    assert places(from_list.end_holders) == [("train.py:20", 3 * MIB)]
    (oldest,) = rows([{**old, "blocks": [{"size": 20 * MIB, "state": "active_allocated"}]}])
    assert (oldest.live_bytes, oldest.requested_bytes) == (20 * MIB, None)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_that_pytorch_writes_is_read(rows, protocol):
    """Python's dump and the one of C++."""
    made = snapshot(
        [segment(A, [block(A, 5 * MIB, frames=LOOP)])], [event("alloc", A, 5 * MIB, 1, LOOP)]
    )

    assert places(rows(made, protocol)[0].holders) == [("train.py:20", 5 * MIB)]


def holed(count=10, hole=8 * MIB):
    """Segments of which every second half is used, by a line that pins what is beside it."""
    return [
        segment(
            A + number * 20 * MIB,
            [
                block(A + number * 20 * MIB, 20 * MIB - hole, frames=CACHE),
                block(A + (number + 1) * 20 * MIB - hole, hole, "inactive"),
            ],
        )
        for number in range(count)
    ]


def test_fragmentation_is_a_cause_where_the_holes_together_would_have_done(rows):
    """With who pins them, and advice by the bytes that are stuck; only if it is off."""
    made = snapshot(holed(), [oom(50 * MIB, 2 * MIB, 9, MODEL)])

    (row,) = rows(made)

    (failed,) = row.ooms
    assert (failed.cause, failed.asked_bytes, failed.free_bytes) == (
        "fragmentation",
        50 * MIB,
        2 * MIB,
    )
    assert (failed.hole_bytes, failed.largest_hole_bytes) == (80 * MIB, 8 * MIB)
    assert (failed.file, failed.line) == ("/app/train.py", 44)
    assert [(pin.line, pin.hole_bytes, pin.blocks) for pin in failed.pins] == [(31, 80 * MIB, 10)]
    assert "expandable_segments:True" in row.advice[0]
    assert "83.9 MB" in row.advice[0]
    on = made | {"allocator_settings": {"expandable_segments": True}}
    assert not [text for text in rows(on)[0].advice if "expandable" in text]


def test_holes_of_another_stream_or_pool_do_not_help(rows):
    """They are free, and could not have served the request: it was exhausted."""
    elsewhere = [one | {"stream": 3} for one in holed(5)] + [
        one | {"segment_pool_id": (0, 2), "address": one["address"] + B} for one in holed(5)
    ]

    (failed,) = rows(snapshot(elsewhere, [oom(30 * MIB, MIB, 9, MODEL)]))[0].ooms

    assert (failed.cause, failed.hole_bytes, failed.elsewhere_bytes) == ("exhausted", 0, 80 * MIB)


def test_a_private_pool_is_judged_by_its_own_holes(rows):
    """Where the snapshot says which pool was asked, what is free for others is elsewhere."""
    own = [
        one
        | {"segment_pool_id": (0, 2), "address": one["address"] + B}
        | {"blocks": [part | {"address": part["address"] + B} for part in one["blocks"]]}
        for one in holed(5)
    ]
    failed = oom(30 * MIB, MIB, 9, MODEL)

    (asked,) = rows(snapshot([*holed(5), *own], [failed | {"pool_id": (0, 2)}]))[0].ooms
    assert (asked.cause, asked.hole_bytes, asked.elsewhere_bytes) == (
        "fragmentation",
        40 * MIB,
        40 * MIB,
    )
    (shared,) = rows(snapshot(own, [failed | {"pool_id": (0, 0)}]))[0].ooms
    assert (shared.cause, shared.hole_bytes) == ("exhausted", 0)
    (other,) = rows(snapshot(own, [failed | {"pool_id": (0, 3)}]))[0].ooms
    assert (other.cause, other.elsewhere_bytes) == ("exhausted", 40 * MIB)


GIB = 1 << 30
CAPTURE = stack("/app/graphs.py", 12, "capture")


def test_a_hole_that_fits_is_no_lack_of_memory(rows):
    """It became free only while the request was tried, and asking once more would do (pytorch#189504)."""
    segments = [
        segment(A, [block(A, 10 * GIB, "inactive")]),
        segment(A + 20 * GIB, [block(A + 20 * GIB, 5 * GIB, frames=CACHE)]),
    ]
    freed_late = [
        event("alloc", A, 10 * GIB, 1, MODEL),
        event("alloc", A + 20 * GIB, 5 * GIB, 3, CACHE),
        event("free_requested", A, 10 * GIB, 50, MODEL),
        event("free_completed", A, 10 * GIB, 99, MODEL),
        oom(8 * GIB, GIB, 100, MODEL) | {"pool_id": (0, 0)},
    ]

    (row,) = rows(snapshot(segments, freed_late))

    (failed,) = row.ooms
    assert (failed.cause, failed.largest_hole_bytes, failed.kept) == ("fitting_hole", 10 * GIB, ())
    assert row.alarms[0].endswith("failed in train.py:44 step: fitting hole.")
    assert row.advice[0].startswith("A hole of 10.7 GB fits.")
    assert "became free only while the request was tried" in row.advice[0]
    assert not [text for text in row.advice if "more is needed" in text or "expandable" in text]


def test_a_hole_that_fits_may_be_there_for_long(rows):
    """Why it was not used is not known then."""
    segments = [
        segment(A, [block(A, 10 * MIB, "inactive"), block(A + 10 * MIB, MIB, frames=CACHE)])
    ]
    trace = [*freed(A, 10 * MIB, 5), event("alloc", B, MIB, 7, CACHE), oom(8 * MIB, 0, 9, MODEL)]

    (row,) = rows(snapshot(segments, trace))

    assert row.ooms[0].cause == "fitting_hole"
    assert "max_split_size_mb" in row.advice[0]


def pooled(asked, pool, **more):
    """A pool of CUDA graphs in which all is free, 13 GiB that are used, and a request that failed."""
    private = segment(A, [block(A, 10 * GIB, "inactive")], segment_pool_id=(0, 1), **more)
    used = segment(B + 20 * GIB, [block(B + 20 * GIB, 13 * GIB, frames=CACHE)])
    trace = [
        event("alloc", A, 10 * GIB, 1, CAPTURE, pool_id=(0, 1)),
        *freed(A, 10 * GIB, 2),
        event("alloc", B + 20 * GIB, 13 * GIB, 3, CACHE),
        oom(asked, GIB, 9, MODEL) | {"pool_id": pool},
    ]
    return snapshot([private, used], trace)


def test_what_a_private_pool_keeps_cannot_be_given_back(rows):
    """Whose it is, is said (pytorch#121932)."""
    (row,) = rows(pooled(4 * GIB, (0, 0)))

    (failed,) = row.ooms
    assert failed.cause == "private_pool"
    (kept,) = failed.kept
    assert (kept.pool, kept.free_bytes, kept.whole_bytes) == ((0, 1), 10 * GIB, 10 * GIB)
    assert places(kept.holders) == [("graphs.py:12", 10 * GIB)]
    assert (
        "Private pool 0.1, in which graphs.py:12 capture allocated, keeps 10.7 GB" in row.advice[0]
    )
    assert "cannot be released" in row.advice[0]
    assert (row.whole_free_bytes, row.pooled_bytes, row.stuck_bytes) == (0, 10 * GIB, 0)
    parts = (row.requested_bytes, row.rounding_bytes, row.pending_bytes, row.stuck_bytes)
    assert sum(parts) + row.pooled_bytes + row.whole_free_bytes == row.reserved_bytes


def test_a_pool_that_has_to_grow_is_no_fragmentation(rows):
    """Nothing is in the way of what is free in a MemPool; it is not given back (pytorch#159674)."""
    (row,) = rows(pooled(11 * GIB, (0, 1)))

    (failed,) = row.ooms
    assert (failed.cause, failed.hole_bytes, failed.pins) == ("private_pool", 10 * GIB, ())
    assert "Allocate what is largest in it first" in row.advice[0]
    assert not [text for text in row.advice if "expandable_segments" in text]


def test_a_private_pool_that_is_too_small_is_not_to_blame(rows):
    """With all of it there would not have been enough."""
    (row,) = rows(pooled(12 * GIB, (0, 0)))

    assert row.ooms[0].cause == "exhausted"
    assert "10.7 GB" not in row.advice[0]


def test_nothing_is_given_back_while_a_graph_is_captured(rows):
    """The cache would have been enough."""
    cached = segment(A, [block(A, 6 * GIB, "inactive")])
    used = segment(B + 20 * GIB, [block(B + 20 * GIB, GIB)], segment_pool_id=(3, 0))
    failed = oom(4 * GIB, GIB, 9, CAPTURE) | {"pool_id": (3, 0)}

    (row,) = rows(snapshot([cached, used], [failed]))

    assert row.ooms[0].cause == "kept_cache"
    assert "Call torch.cuda.empty_cache() before the capture" in row.advice[0]


def test_a_hole_that_fits_for_another_stream_is_named(rows):
    """Beside a block that is in use, so that it could not be given back."""
    other = segment(
        A,
        [block(A, 6 * GIB, "inactive"), block(A + 6 * GIB, GIB, frames=CACHE)],
        stream=7,
    )
    trace = [event("alloc", A + 6 * GIB, GIB, 1, CACHE), oom(4 * GIB, MIB, 9, MODEL)]

    (row,) = rows(snapshot([other], trace))

    (failed,) = row.ooms
    assert (failed.cause, failed.kept[0].stream) == ("other_stream", 7)
    assert "Stream 7, in which train.py:31" in row.advice[0]
    assert "keeps 6.44 GB, the largest hole has 6.44 GB" in row.advice[0]


def test_a_request_that_failed_is_an_incident(tmp_path):
    """Of high severity, with the advice of its row; a snapshot does not say whose process it was."""
    made = snapshot(holed(), [oom(50 * MIB, 2 * MIB, 9, MODEL)])

    document = explain(write(tmp_path / "snapshot.pickle", made))

    (incident,) = document.incidents
    assert (incident.severity, incident.causes[0].kind) == ("high", "fragmentation")
    assert incident.advice == document.memory[0].advice
    assert document.processes == ()
    (chain,) = json_form.make_document(document)["chains"]
    assert chain["failure"]["asked_bytes"] == 50 * MIB


def test_exhaustion_names_who_holds_the_most(rows):
    """Nothing is free: less has to be used, and where most is."""
    made = [
        segment(A, [block(A, 100 * MIB, frames=CACHE), block(A + 100 * MIB, 20 * MIB, frames=LOOP)])
    ]

    (row,) = rows(snapshot(made, [oom(64 * MIB, 4 * MIB, 9, MODEL)]))

    assert row.ooms[0].cause == "exhausted"
    assert places(row.ooms[0].holders) == [("train.py:31", 100 * MIB), ("train.py:20", 20 * MIB)]
    assert "62.9 MB more is needed" in row.advice[0]
    assert "train.py:31" in row.advice[0]


def test_what_others_hold_is_a_cause_where_it_is_known(rows):
    """The size of the device is told, or what this allocator once had is not to be had again."""
    end = [segment(A, [block(A, 100 * MIB, frames=CACHE)])]
    failed = [oom(64 * MIB, 4 * MIB, 9, MODEL)]

    (told,) = rows(snapshot(end, failed), device_bytes=400 * MIB)[0].ooms
    assert (told.cause, told.outside_bytes) == ("other_process", 296 * MIB)
    (alone,) = rows(snapshot(end, failed), device_bytes=110 * MIB)[0].ooms
    assert (alone.cause, alone.outside_bytes) == ("exhausted", 6 * MIB)
    given_back = [event("segment_free", B, 200 * MIB, 5)]
    (shrunk,) = rows(snapshot(end, given_back + failed))[0].ooms
    assert (shrunk.cause, shrunk.outside_bytes) == ("other_process", 196 * MIB)


def leaking(steps=8, kept=4 * MIB, last=BACKWARD):
    """A step allocates and frees a lot, and ends with a backward pass; one line keeps a little."""
    trace, blocks = [], []
    for step in range(steps):
        at, base = step * 100, A + step * kept
        trace.append(event("alloc", base, kept, at, CACHE))
        blocks.append(block(base, kept, frames=CACHE))
        trace += [event("alloc", B + n * 50 * MIB, 50 * MIB, at + n + 1, LOOP) for n in range(2)]
        trace.append(event("alloc", B + 100 * MIB, 50 * MIB, at + 3, last))
        for part in range(3):
            trace += freed(B + part * 50 * MIB, 50 * MIB, at + 10 + part)
    return [segment(A, blocks), segment(B, [block(B, 150 * MIB)])], trace


def test_a_leak_is_what_each_phase_leaves_behind(rows):
    """Phases end with a backward pass; the leak is named as the cause where it was enough."""
    segments, trace = leaking()

    (row,) = rows(snapshot(segments, [*trace, oom(10 * MIB, MIB, 9_999, MODEL)]))

    assert [one.line for one in row.leaks] == [31]
    assert row.ooms[0].cause == "leak"
    assert "train.py:31" in row.advice[0]
    (short,) = rows(snapshot(segments, [*trace, oom(100 * MIB, MIB, 9_999, MODEL)]))
    assert short.ooms[0].cause == "exhausted"


def test_layers_of_one_pass_are_no_phases(rows):
    """Memory rises and falls in each, and each keeps what the backward pass will want."""
    segments, trace = leaking(last=MODEL)

    (row,) = rows(snapshot(segments, [*trace, oom(10 * MIB, MIB, 9_999, MODEL)]))

    assert (row.leaks, row.ooms[0].cause) == ((), "exhausted")


def test_phases_that_the_program_names_hold(rows):
    """Marks of an optimizer's steps tell phases apart where memory itself does not."""
    blocks = [block(A + n * MIB, MIB, frames=CACHE) for n in range(5)]
    trace = [event("alloc", A + n * MIB, MIB, n * 100 + 50, CACHE) for n in range(5)]
    marks = [
        {"stage": stage, "name": "Optimizer.step", "device": 0, "time_us": T0_US + n * 100 + at}
        for n in range(5)
        for stage, at in (("START", 0), ("END", 10))
    ]
    made = snapshot([segment(A, blocks)], trace)

    assert not rows(made)[0].leaks
    assert [one.line for one in rows(made | {"external_annotations": marks})[0].leaks] == [31]


def test_a_healthy_program_raises_nothing(rows):
    """However small its largest hole is: 98 % "fragmentation" is no alarm."""
    (row,) = rows(snapshot(holed(100), leaking(2)[1]))

    assert 1 - row.largest_hole_bytes / (row.stuck_bytes + row.whole_free_bytes) > 0.98
    assert (row.alarms, row.advice, row.ooms) == ((), (), ())


def test_segments_that_come_and_go_are_an_alarm(rows):
    """empty_cache() in a loop: each time the device has to be waited for."""
    trace = [
        event(action, A, 20 * MIB, at * 100_000 + (action == "segment_free"))
        for at in range(20)
        for action in ("segment_alloc", "segment_free")
    ]

    (row,) = rows(snapshot([segment(B, [block(B, 5 * MIB)])], trace))

    assert (row.segment_allocations, row.segment_frees) == (20, 20)
    assert "20 segments were released to the device" in row.alarms[0]
    assert "empty_cache" in row.advice[0]


def test_a_nearly_full_device_with_much_stuck_is_an_alarm(rows):
    """Both, and only where the size of the device is told."""
    assert rows(snapshot(holed()))[0].alarms == ()
    (row,) = rows(snapshot(holed()), device_bytes=220 * MIB)
    assert "40 % of what is reserved is stuck" in row.alarms[0]
    assert rows(snapshot(holed()), device_bytes=2_000 * MIB)[0].alarms == ()


def test_memory_before_a_failure_is_what_it_was_then(rows):
    """What came after it, segments given back and blocks freed, is undone."""
    trace = [
        event("alloc", A, 12 * MIB, 1, LOOP),
        oom(50 * MIB, MIB, 5, MODEL),
        *freed(A, 12 * MIB, 6),
        event("segment_free", A, 20 * MIB, 7),
        event("segment_unmap", B + 40 * MIB, 20 * MIB, 8),
        event("segment_map", B + 20 * MIB, 20 * MIB, 9),
    ]
    end = [
        segment(
            B,
            [block(B, 15 * MIB, frames=CACHE), block(B + 15 * MIB, 25 * MIB, "inactive")],
            is_expandable=True,
        )
    ]

    (failed,) = rows(snapshot(end, trace))[0].ooms

    assert failed.reserved_bytes == 60 * MIB
    assert failed.live_bytes == 27 * MIB
    assert places(failed.holders) == [("train.py:31", 15 * MIB), ("train.py:20", 12 * MIB)]
    # 5 of the first stretch, 20 of what was mapped, 8 of the segment that was given back.
    assert (failed.hole_bytes, failed.largest_hole_bytes) == (33 * MIB, 20 * MIB)


BAD = {
    "an event without a size": lambda made: made["device_traces"][0][0].update(size=None),
    "a negative size": lambda made: made["device_traces"][0][0].update(size=-1),
    "a huge address": lambda made: made["device_traces"][0][0].update(addr=1 << 63),
    "an address that is text": lambda made: made["device_traces"][0][0].update(addr="0x1"),
    "a time that is a list": lambda made: made["device_traces"][0][0].update(time_us=[1]),
    "an action that is a list": lambda made: made["device_traces"][0][0].update(action=[]),
    "frames that are text": lambda made: made["device_traces"][0][0].update(frames="main"),
    "frames of numbers": lambda made: made["device_traces"][0][0].update(frames=[1, 2]),
    "a frame without its file": lambda made: made["device_traces"][0][0].update(
        frames=[{"line": 1}]
    ),
    "a line that is text": lambda made: made["device_traces"][0][0].update(
        frames=[frame("a", "1")]
    ),
    "a trace that is text": lambda made: made.update(device_traces=["events"]),
    "traces that are a number": lambda made: made.update(device_traces=5),
    "events outside of traces": lambda made: made.update(more=[event("alloc", 1, 1)]),
    "too many devices": lambda made: made.update(device_traces=[[]] * 300),
    "a device that is huge": lambda made: made["segments"][0].update(device=1 << 40),
    "segments that are numbers": lambda made: made.update(segments=[1]),
    "no segments": lambda made: made.pop("segments"),
    "blocks that are text": lambda made: made["segments"][0].update(blocks="blocks"),
    "blocks larger than their segment": lambda made: made["segments"][0].update(total_size=5),
    "a state that is unknown": lambda made: made["segments"][0]["blocks"][0].update(state="gone"),
    "a block larger than a device": lambda made: made["segments"][0]["blocks"][0].update(
        size=1 << 62
    ),
    "a pool of three": lambda made: made["segments"][0].update(segment_pool_id=(1, 2, 3)),
}


def small():
    """A snapshot with something of everything."""
    segments, trace = leaking(2)
    trace += [event("user_defined", 0, 0, 400), oom(5, 5, 500, LOOP)]
    marks = [{"stage": "START", "name": "step", "device": 0, "time_us": T0_US}]
    return snapshot(segments, trace, external_annotations=marks)


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_snapshot_is_one_clear_error(tmp_path, name):
    """Wrong types, huge numbers and missing parts."""
    made = pickle.loads(pickle.dumps(small()))  # noqa: S301 -- a copy of our own
    BAD[name](made)
    path = write(tmp_path / "bad.pickle", made)

    with pytest.raises(RecordingError) as caught:
        explain(path)

    assert str(path) in str(caught.value)
    assert "_dump_snapshot" in caught.value.hint


def test_an_event_that_is_there_twice_is_refused(tmp_path):
    """References to references cannot make more of it than was written."""
    one = event("alloc", A, 5)
    for made in (snapshot([], [one] * 3), snapshot([], [{"again": one}, one])):
        with pytest.raises(RecordingError):
            explain(write(tmp_path / "twice.pickle", made))
    trace = [event("alloc", A, 5)]
    (row,) = explain(write(tmp_path / "trace.pickle", snapshot([], *[trace] * 200))).memory
    assert row.allocations == 1


@given(data=st.data())
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whatever_is_in_a_snapshot_it_is_read_or_refused(tmp_path, data):
    """Values of any type anywhere, and bytes anywhere: a document that holds, or one error."""
    made = pickle.loads(pickle.dumps(small()))  # noqa: S301 -- a copy of our own
    spots = list(_spots(made))
    for _ in range(data.draw(st.integers(1, 3))):
        inside, key = data.draw(st.sampled_from(spots))
        inside[key] = data.draw(
            st.integers(-(1 << 64), 1 << 64) | st.integers(-2, 9) | st.text(max_size=5) | st.none()
            | st.just([]) | st.just({}) | st.just(()) | st.floats() | st.booleans()
        )  # fmt: skip
    whole = pickle.dumps(made, protocol=data.draw(st.sampled_from([2, 4])))
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(whole)))
        whole = (
            whole[:at]
            + data.draw(st.binary(max_size=4))
            + whole[at + data.draw(st.integers(0, 4)) :]
        )
    path = tmp_path / "fuzzed.pickle"
    path.write_bytes(whole)

    with suppress(RecordingError):
        REPORT.validate(json_form.make_document(explain(path)))


def _spots(value):
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in list(inside):
        yield value, key
        if isinstance(one, dict | list):
            yield from _spots(one)


def test_the_report_says_what_went_wrong_first(tmp_path, capsys):
    """As text: the alarm, what to do, the failure, then who held the memory."""
    path = write(tmp_path / "oom.pickle", snapshot(holed(), [oom(50 * MIB, 2 * MIB, 9, MODEL)]))

    assert cli.main(["import", "torch-memory", str(path)]) == 0

    text = capsys.readouterr().out
    order = [
        "What to do   Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "what went wrong",
        "A request for 52.4 MB failed in train.py:44 step: fragmentation.",
        "do: Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "train.py:31 step: 10 blocks of 126 MB beside holes of 83.9 MB",
        "free between blocks (stuck)",
        "large, stream 0",
        "in the end",
        "taken            10  segments",
    ]
    found = [text.find(line) for line in order]
    assert found == sorted(found)
    assert found[0] >= 0
    assert "no gap was far slower" not in text


def test_the_device_is_told_in_gib(tmp_path, capsys):
    """Its size is in the document; of other kinds of captures it says nothing."""
    path = write(tmp_path / "small.pickle", small())

    assert cli.main(["import", "torch-memory", str(path), "--device-gib", "24", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["report"]["memory"]
    assert row["capacity_bytes"] == 24 << 30
    assert cli.main(["import", "torch-memory", str(path), "--device-gib", "24"]) == 0
    assert "Of 25.8 GB at most" in capsys.readouterr().out
    assert cli.main(["import", "nsys", str(path), "--device-gib", "24"]) == 2


def test_text_of_a_stranger_is_no_trouble(tmp_path, capsys):
    """What a terminal obeys and halves of pairs are in no output."""
    hostile = "a\x1b[31m\ud800\u202eb"
    made = small() | {"allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": hostile}}
    made["segments"][0]["blocks"][0]["frames"] = [frame(f"/{hostile}.py", 5, hostile)]
    made["device_traces"][0][0]["action"] = hostile
    data = pickle.dumps(made, protocol=4)
    path = tmp_path / "hostile.pickle"
    path.write_bytes(data)

    for flags in ([], ["--json"]):
        assert cli.main(["import", "torch-memory", str(path), *flags]) == 0
        out = capsys.readouterr().out
        assert not {"\x1b", "\ud800", "\u202e"} & set(out)


def test_a_folder_a_pipe_and_a_missing_file_are_errors(tmp_path, capsys):
    """Nothing waits for a pipe that nobody writes to."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "missing"):
        assert cli.main(["import", "torch-memory", str(path)]) == 1
        assert str(path) in capsys.readouterr().err


FIGURES = {
    # reserved, allocated, whole-free, stuck, largest hole, rounding, peak
    "MAGMA27__memory_snapshot": (
        14_180_941_824, 1_377_753_600, 11_773_411_328, 1_029_776_896, 329_252_864, 3_834_364, 13_927_832_064
    ),
    "Wedsonlin__results_medium_512_training_memory_snapshot": (
        12_660_506_624, 6_838_108_672, 4_771_020_800, 1_051_377_152, 83_886_080, 8_847_868, 12_435_476_996
    ),
    "bcrafton__memory_snapshot": (
        4_238_344_192, 3_072_871_424, 985_661_440, 179_811_328, 155_189_248, 8_453_120, 3_857_685_760
    ),
    "notHanmin__memory_snapshot_forward": (
        47_234_154_496, 44_607_570_432, 1_774_190_592, 852_393_472, 65_011_712, 879_830_526, 44_634_604_032
    ),
}  # fmt: skip


@pytest.mark.skipif(not REAL, reason="needs OTEL_GPU_TEST_TORCH_DATA: a folder of real artefacts")
@pytest.mark.parametrize("name", FIGURES)
def test_the_figures_of_real_snapshots_are_right_to_the_byte(name):
    """Worked out before by another program; and no healthy one raises an alarm."""
    (row,) = explain(Path(REAL, "snapshots", f"{name}.pickle")).memory

    assert FIGURES[name] == (
        row.reserved_bytes, row.live_bytes, row.whole_free_bytes, row.stuck_bytes,
        row.largest_hole_bytes, row.rounding_bytes, row.peak_bytes,
    )  # fmt: skip
    assert sum(one.size_bytes for one in row.end_holders) == row.live_bytes + row.pending_bytes
    # By what was asked for, which is less than the peak by the rounding of the end.
    assert sum(one.size_bytes for one in row.holders) == row.peak_bytes - row.rounding_bytes
    assert (row.alarms, row.leaks) == ((), ())


@pytest.mark.skipif(not REAL, reason="needs OTEL_GPU_TEST_TORCH_DATA: a folder of real artefacts")
def test_the_figures_of_mosaics_snapshot_are_its_own():
    """Of what the recording saw: its peak is that of the tool that made it."""
    (row,) = explain(Path(REAL, "snapshots", "mosaic_synthetic.pickle")).memory

    recorded = [one for one in row.holders if not one.function.startswith("(older")]
    assert sum(one.size_bytes for one in recorded) == 2_255_398_132
    assert row.peak_bytes == 2_255_398_132 + row.live_bytes

"""Memory snapshots that are sent and stored: as what a live capture would have said."""

import json
import os

import pytest

from otel_gpu import cli
from tests.torch_allocator import EXAMPLES, SCENARIOS, leak
from tests.unit.importers.snapshots import write
from tests.unit.importers.test_torch_memory import explain
from tests.unit.recorder.stores import ask, read

NS_PER_US = 1_000


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def keep(tmp_path, capsys):
    def made(snapshot, *more):
        store, sent = tmp_path / "store.db", tmp_path / "sent.jsonl"
        arguments = ["--store", str(store), "--otlp-file", str(sent), *more]
        assert cli.main(["import", "torch-memory", str(snapshot), *arguments]) == 0
        capsys.readouterr()
        return store, [json.loads(line) for line in sent.read_text().splitlines()]

    return made


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_store_has_what_the_report_says(keep, tmp_path, name):
    """In use in the end and at the peak, by line, and what failed."""
    snapshot = write(tmp_path / "s.pickle", SCENARIOS[name]().snapshot())
    (row,) = explain(snapshot).memory
    store, _ = keep(snapshot)

    ((last, peak, reserved),) = ask(
        store,
        "SELECT allocated_bytes, peak_allocated_bytes, reserved_bytes FROM v_memory ORDER BY seq DESC LIMIT 1",
    )
    assert (last, peak, reserved) == (row.live_bytes, row.peak_bytes, row.reserved_bytes)
    assert ask(store, "SELECT max(allocated_bytes) FROM v_memory") == [(row.peak_bytes,)]
    held = dict(ask(store, "SELECT place, live_bytes FROM v_memory_holders WHERE live_bytes > 0"))
    assert {place.partition(":")[2].split()[0]: size for place, size in held.items()} == {
        str(one.line): one.size_bytes for one in row.end_holders if one.line
    }
    ever = dict(ask(store, "SELECT place, allocated_bytes FROM v_memory_holders"))
    churn = {one.line: one.size_bytes for one in row.churn if one.line}
    # What is in use counts as large as it is, which may be more than was asked for.
    for place, size in ever.items():
        assert 0 <= size - churn[int(place.partition(":")[2].split()[0])] <= 1 << 20
    failed = ask(
        store, "SELECT asked_bytes, device_free_bytes, reserved_bytes FROM v_out_of_memory"
    )
    assert failed == [(one.asked_bytes, one.free_bytes, one.reserved_bytes) for one in row.ooms]


def test_what_is_sent_has_the_original_times(keep):
    """Figures at the end, and the request that failed at its moment, without a word of ours on coverage."""
    (row,) = explain(EXAMPLES / "leak.pickle").memory
    _, requests = keep(EXAMPLES / "leak.pickle")

    metrics = {
        metric["name"]: metric
        for request in requests
        for resource in request.get("resourceMetrics", ())
        for scope in resource["scopeMetrics"]
        for metric in scope["metrics"]
    }
    (point,) = metrics["gpu.memory.allocated"]["sum"]["dataPoints"]
    assert (int(point["asInt"]), int(point["timeUnixNano"])) == (
        row.live_bytes,
        row.readings[-1].unix_ns,
    )
    assert "otel_gpu.memory.coverage" not in metrics
    (span,) = (
        span
        for request in requests
        for resource in request.get("resourceSpans", ())
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
        if span["name"] == "gpu.memory.oom"
    )
    assert int(span["startTimeUnixNano"]) == row.ooms[0].unix_ns


def test_a_failure_is_kept_with_what_was_where(keep):
    """All of the blocks of the model, each with its stack, and none outside of its segments."""
    made = leak()
    store, _ = keep(EXAMPLES / "leak.pickle")
    (failure,) = (one for one in read(store) if type(one).__name__ == "OutOfMemoryActivity")

    blocks = failure.map["blocks"]
    assert failure.map["left_out"] == 0
    assert {address for address, _, _ in blocks} == made.addresses()
    assert sum(size for _, size in failure.map["segments"]) == made.reserved_bytes
    lines = {stack.place.line for stack in failure.stacks.values()}
    assert {failure.stacks[key].place.line for _, _, key in blocks} == lines
    assert any("backward" in frame.function for frame in failure.stack.frames)


def test_the_same_snapshot_is_sent_the_same(keep, tmp_path):
    """Byte for byte, so that it can be sent again."""
    _, first = keep(EXAMPLES / "leak.pickle")
    (tmp_path / "store.db").unlink()
    _, second = keep(EXAMPLES / "leak.pickle")

    assert first == second

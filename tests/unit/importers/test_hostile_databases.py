"""Whatever a database holds: events or one clear error, never anything else."""

import json
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_gpu import pipeline
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.errors import RecordingError
from otel_gpu.explain.explainer import Explainer
from otel_gpu.export.exports import open_exports
from otel_gpu.findings.collector import Collector
from otel_gpu.findings.json_form import make_document, to_text
from otel_gpu.importers import open_capture
from otel_gpu.options import Config, ExportConfig
from tests.unit.importers.databases import MS, PID, SECOND, T0, Database

VALUES = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-5, 5),
    st.floats(),
    st.text(max_size=30),
    st.binary(max_size=30),
    st.none(),
)
COLUMNS = {
    "events": (
        *("timestamp", "pid", "tid", "source", "op", "duration", "arg0", "arg1", "ret_code"),
        *("stack_hash", "cgroup_id"),
    ),
    "event_aggregates": (
        *("bucket", "source", "op", "pid", "count", "stored", "sum_dur", "min_dur", "max_dur"),
        "sum_arg0",
    ),
    "sessions": ("started_at", "stopped_at", "gpu_model", "cpu_cores", "ingero_ver"),
    "process_names": ("name", "seen_at"),
    "ops": ("source_id", "op_id", "name"),
    "system_snapshots": ("timestamp", "load_avg"),
    "cgroup_metadata": ("container_id", "cgroup_path", "pod_name", "namespace"),
    "stack_traces": ("frames",),
}
STACKS = "stacks of functions"
CHANGES = st.lists(
    st.sampled_from([(table, column) for table in COLUMNS for column in COLUMNS[table]]).flatmap(
        lambda place: st.tuples(st.just(place), st.integers(1, 4), VALUES)
    ),
    min_size=1,
    max_size=4,
)


def make(path):
    """A database with a few rows in every table."""
    database = Database(path)
    database.insert("sessions", started_at=T0, stopped_at=T0 + 9 * SECOND, cpu_cores=4)
    for number in range(25):
        at = T0 + number * 200 * MS
        duration = 5 * MS if number % 5 == 0 else 50_000
        database.event("cudaMalloc", at, duration, cgroup_id=7, stack_hash=1 + number % 3)
        database.event("cuMemAlloc", at + 10, 1_000)
        database.event("sched_switch", at + 3 * MS, MS)
    database.event("process_fork", T0 + SECOND, arg1=5000)
    database.event("net_recv", T0 + 2 * SECOND, 1, pid=5000)
    database.event("process_exec", T0 + 3 * SECOND, pid=5000)
    database.event("process_exit", T0 + 8 * SECOND)
    database.counted("cudaMalloc", 100, 25, SECOND, sum_arg0=9)
    database.counted("sched_switch", 100, 25, SECOND)
    for number in range(1, 4):
        frames = json.dumps([{"pf": "/a.py", "pfn": f"f{number}"}, {"s": "g+0x1", "f": "lib.so"}])
        database.insert("stack_traces", hash=number, ips="", frames=frames)
    database.insert("process_names", pid=PID, name="python3", seen_at=0)
    database.insert("ops", source_id=1, op_id=1, name="cudaMalloc")
    database.insert("system_snapshots", timestamp=T0 + SECOND, load_avg=1.0)
    database.insert("cgroup_metadata", cgroup_id=7, cgroup_path="/a", container_id="c")
    return database


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return make(tmp_path_factory.mktemp("hostile") / "x.db")


def import_all(path):
    """Take a database all the way: spans, metrics, chains, report."""
    with tempfile.TemporaryDirectory() as folder:
        config = Config(export=ExportConfig(otlp_file=str(Path(folder) / "out.jsonl")))
        with (
            open_capture("ingero", path, config) as capture,
            open_exports(config, {}, live=False) as exports,
        ):
            blame = pipeline.Blame(config, exports)
            collector = Collector(Explainer(), rejected=capture.tally.rejected)
            observers = [exports.observe, blame.observe, collector.observe]
            pipeline.process_events(capture.events(), Enricher(), observers)
            blame.close()
            report = collector.finish(str(path), capture.tally.notes)
            assert exports.shutdown(9)
    to_text(make_document(report))
    return capture.tally


def count_rows(tally):
    """How many rows of events are accounted for."""
    kinds = ("CUDA calls", "intervals off the CPU", "forks", "execs", "exits")
    taken = sum(tally.taken[kind] for kind in kinds)
    others = ("counted ", STACKS)
    left_out = sum(n for what, n in tally.left_out.items() if not what.startswith(others))
    return taken + left_out + tally.rejected.total() - tally.rejected["bad_stack"]


def count_stacks(tally):
    """How many rows of stack_traces are."""
    left_out = sum(n for what, n in tally.left_out.items() if what.startswith(STACKS))
    return tally.taken[STACKS] + left_out + tally.rejected["bad_stack"]


def test_the_original_is_sound(original):
    """So that what follows is about the changes."""
    tally = import_all(original.path)

    assert tally.taken["CUDA calls"] == 50
    assert tally.taken[STACKS] == 3
    assert tally.rejected == Counter()
    assert count_rows(tally) == 25 * 3 + 4


@given(changes=CHANGES)
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
def test_no_value_stops_an_import(original, tmp_path_factory, changes):
    """
    Any value in any column of a few rows: each row is taken, left out or rejected, and
    counted once.
    """
    path = tmp_path_factory.mktemp("values") / "x.db"
    shutil.copyfile(original.path, path)
    database = Database.__new__(Database)
    database.path = path
    for (table, column), row, value in changes:
        database.run(
            f"UPDATE OR IGNORE {table} SET {column} = ifnull(?, {column}) WHERE rowid = ?",
            value,
            row,
        )

    tally = import_all(path)

    assert count_rows(tally) == 25 * 3 + 4
    assert count_stacks(tally) == 3


@given(data=st.data())
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
def test_a_damaged_file_is_imported_or_refused(original, tmp_path_factory, data):
    """Bytes changed, a piece cut off: one error of ours at most."""
    content = bytearray(original.path.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=20)):
        content[place] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(16, len(content))) :]
    path = tmp_path_factory.mktemp("bytes") / "x.db"
    path.write_bytes(content)

    try:
        import_all(path)
    except RecordingError as error:
        assert str(path) in str(error)  # noqa: PT017 -- it may also succeed


def test_a_file_that_is_cut_off_is_refused_with_a_hint(original, tmp_path):
    """The hint says how to copy one that is in use."""
    path = tmp_path / "cut.db"
    path.write_bytes(original.path.read_bytes()[:8192])

    with pytest.raises(RecordingError, match="is damaged, or not what it seems") as error:
        import_all(path)

    assert ".backup" in error.value.hint

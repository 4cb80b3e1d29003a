"""Exports of Nsight Systems: rows become the columns of their process, and what is wrong is counted."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_gpu.errors import RecordingError
from otel_gpu.explain.traces.device_use import examine
from otel_gpu.importers import open_capture
from otel_gpu.importers.nsys import tables
from otel_gpu.options import Config
from otel_gpu.state.traces.device_time import timelines
from otel_gpu.state.traces.kernel_kinds import kinds_of
from otel_gpu.state.traces.launches import NO_ROW
from otel_gpu.wire.device_activity import DeviceModel, HostWork, Thread, Work
from otel_gpu.wire.events import Capture, Clock, DeviceRead
from tests.unit.importers.exports import MAIN, PID, US, UTC_NS, Export, whose
from tests.unit.importers.test_torch_trace import explain

LOOSE = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ("start", "end", "deviceId", "streamId", "correlationId", "globalPid",
                                   "demangledName", "shortName"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("start", "end", "deviceId", "streamId", "correlationId", "globalPid",
                                   "bytes", "copyKind", "srcKind", "dstKind"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "globalTid", "correlationId", "nameId"),
    "NVTX_EVENTS": ("start", "end", "eventType", "globalTid", "text", "textId"),
}  # fmt: skip
REAL = os.environ.get("OTEL_GPU_TEST_TORCH_DATA", "")


def read(path):
    """All events of an export, and the account of it."""
    with open_capture("nsys", path, Config()) as capture:
        return list(capture.events()), capture.counts


@pytest.fixture
def traces(tmp_path):
    """What is read of an export: one trace for each process, and the account."""

    def of(export):
        (_, _, *found), tally = read(export.write(tmp_path / "report.sqlite"))
        return [one.trace for one in found], tally

    return of


def healthy():
    """A step of two launches, an operator and a copy."""
    export = Export()
    export.range(0, 500, "step 1")
    export.range(5, 90, "aten::mm, seq = 3, op_id = 77, sizes = [[4, 8], [8, 2]]")
    export.call(10, 5, 1)
    export.kernel(30, 100, 1)
    export.call(20, 4, 2, "cudaMemcpyAsync")
    export.copy(140, 20, 2, size=8192)
    export.add("CUPTI_ACTIVITY_KIND_MEMSET", 200 * US, 201 * US, 0, 7, 3, whose(), 64, 2)
    export.add("TARGET_INFO_GPU", 0, "NVIDIA H100", 9, 0, 132, 80 << 30)
    export.add("ThreadNames", export.string("python3"), whose(PID, MAIN))
    return export


def test_rows_become_columns(traces):
    """Who did what when, in nanoseconds after the session's start, and which call enqueued it."""
    (found,), tally = traces(healthy())

    done, host = found.activities, found.host
    assert list(done.kinds) == [Work.KERNEL, Work.COPY, Work.FILL]
    assert [found.names[number] for number in done.names] == [
        "void gemm<float>(int)",
        "Memcpy HtoD (Pageable -> Device)",
        "Memset (Device)",
    ]
    assert list(done.starts_ns) == [30 * US, 140 * US, 200 * US]
    assert list(done.durations_ns) == [100 * US, 20 * US, 1 * US]
    assert list(done.correlations) == [1, 2, 3]
    assert list(done.sizes_bytes) == [0, 8192, 64]
    assert list(host.kinds) == [
        HostWork.CALL,
        HostWork.CALL,
        HostWork.ANNOTATION,
        HostWork.OPERATION,
    ]
    assert [found.names[number] for number in host.names] == [
        "cudaLaunchKernel",
        "cudaMemcpyAsync",
        "step 1",
        "aten::mm",
    ]
    assert found.shapes[host.shapes[3]] == "[[4, 8], [8, 2]]"
    assert found.threads == (Thread(0, 0), Thread(PID, MAIN, "python3"))
    assert found.models == {0: DeviceModel("NVIDIA H100", 90, 132, 80 << 30)}
    assert (found.base_unix_ns, found.is_dated, found.has_shapes) == (UTC_NS, True, True)
    assert tally.source == {"tool": "Nsight Systems", "version": "2026.2.1", "schema": "3.25.0"}
    assert tally.taken["activities of devices"] == 3
    assert not tally.rejected
    assert not tally.notes


def test_events_are_those_of_an_import(tmp_path):
    """First what it is, then the clock, then each process, at the end of what it did."""
    (first, clock, one), _ = read(healthy().write(tmp_path / "report.sqlite"))

    assert isinstance(first, Capture)
    assert (first.info["mode"], first.ktime_ns) == ("import", UTC_NS)
    assert clock == Clock(UTC_NS, UTC_NS)
    assert isinstance(one, DeviceRead)
    assert one.ktime_ns == UTC_NS + 500 * US


def test_processes_are_kept_apart(traces):
    """Correlations are unique in a process only: each has a trace of its own."""
    export = healthy()
    export.call(10, 5, 1, pid=200, tid=201)
    export.kernel(40, 60, 1, "other", pid=200, device=1)
    export.call(10, 5, 9, pid=300)

    (first, second), tally = traces(export)

    assert [first.threads[1].pid, second.threads[1].pid] == [PID, 200]
    assert first.source == f"report.sqlite, process {PID}"
    assert list(second.activities.devices) == [1]
    assert list(second.host.correlations) == [1]
    assert tally.left_out["rows of processes without device activity"] == 1


def test_an_export_without_processes_is_one(traces):
    """Old versions do not say whose a kernel is."""
    export = Export(
        without=[
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            "CUPTI_ACTIVITY_KIND_MEMSET",
            "CUPTI_ACTIVITY_KIND_KERNEL",
        ]
    )
    name = export.string("k")
    table = (
        'CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ("start" INTEGER, "end" INTEGER, deviceId INTEGER, '
        "streamId INTEGER, correlationId INTEGER, shortName INTEGER)"
    )
    export.extra = [
        table,
        f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (0, 1000, 0, 7, 5, {name})",
    ]
    export.call(-3, 1, 5)

    (found,), _ = traces(export)

    assert found.names[found.activities.names[0]] == "k"
    # What began before the session is where time begins.
    assert list(found.host.starts_ns) == [0]
    assert list(found.activities.starts_ns) == [3 * US]
    assert found.base_unix_ns == UTC_NS - 3 * US


def test_what_is_not_there_is_said(tmp_path, traces):
    """No ranges, no calls, no date: a reader has to know it."""
    export = Export(
        without=["NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "TARGET_INFO_SESSION_START_TIME"]
    )
    export.kernel(10, 5)

    (found,), tally = traces(export)

    assert not found.is_dated
    ends = found.base_unix_ns + 15 * US
    assert ends == (tmp_path / "report.sqlite").stat().st_mtime_ns
    said = " ".join(tally.notes)
    assert "Calls of CUDA were not recorded" in said
    assert "No ranges of NVTX" in said
    assert "does not say when" in said


def test_ranges_that_lie_across_others_are_left_out(traces):
    """Starts and ends need not be of one thread, and marks have no length."""
    export = healthy()
    export.range(1, 5, "start/end", kind=60)
    export.add("NVTX_EVENTS", 5, None, 59, whose(PID, MAIN), "open", None)

    (found,), tally = traces(export)

    assert len(found.host) == 4
    assert tally.left_out["marks of NVTX, and ranges that may overlap"] == 1
    assert tally.left_out["ranges of NVTX that did not end"] == 1


@pytest.mark.parametrize(
    ("start", "end", "reason"),
    [
        ("soon", 5, "rows whose times are no numbers"),
        (5, 4, "rows of impossible durations"),
        (0, 1 << 59, "rows of impossible durations"),
        (1 << 61, 1 << 61, "rows at impossible times"),
        (5, b"\xff", "rows whose times are no numbers"),
    ],
)
def test_rows_that_make_no_sense_are_counted(traces, start, end, reason):
    """They cost themselves only."""
    export = healthy()
    export.add("CUPTI_ACTIVITY_KIND_KERNEL", start, end, 0, 7, 1, whose(), 1, 1)

    (found,), tally = traces(export)

    assert tally.rejected == {reason: 1}
    assert len(found.activities) == 3


def test_numbers_that_are_none_are_not_known(traces):
    """Of a row whose times are right, the rest may be anything."""
    export = healthy()
    export.add("CUPTI_ACTIVITY_KIND_KERNEL", 1, 2, "x", 1 << 62, -4, whose(), "name", 10**9)
    export.add("CUPTI_ACTIVITY_KIND_MEMCPY", 1, 2, 0, 7, 4, whose(), -1, 99, None, "x")
    export.add("CUPTI_ACTIVITY_KIND_KERNEL", 1, 2, 0, 7, 1, None, 1, 1)

    (found,), tally = traces(export)

    done = found.activities
    assert (done.devices[1], done.streams[1], done.correlations[1], done.names[1]) == (-1, -1, 0, 0)
    assert (found.names[done.names[3]], done.sizes_bytes[3]) == ("Memcpy ", 0)
    assert tally.rejected == {"rows that do not say whose they are": 1}


def test_too_many_rows_are_refused(tmp_path, monkeypatch):
    """What a stranger's file may cost is bounded."""
    monkeypatch.setattr(tables, "MAX_ROWS", 10)

    with pytest.raises(RecordingError, match="more than 10 rows"):
        read(healthy().write(tmp_path / "report.sqlite"))


def test_what_is_no_export_says_so(tmp_path):
    """Another database, or an export of what no device did."""
    other = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE t (a)")
    with pytest.raises(RecordingError, match="the table StringIds"):
        read(other)
    devices = [name for name in tables.DEVICE_TABLES if not name.endswith("GRAPH_TRACE")]
    with pytest.raises(RecordingError, match="device activities") as caught:
        read(Export(without=devices).write(tmp_path / "host.sqlite"))
    assert "--trace=cuda" in caught.value.hint


def test_views_are_not_run(tmp_path):
    """A view of the name of a table is a program of whoever wrote the file."""
    export = Export(without=["CUPTI_ACTIVITY_KIND_KERNEL"])
    view = (
        "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(x) AS "
        "(SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS start FROM n"
    )
    export.extra = [view]
    export.copy(1, 2)

    (*_, found), tally = read(export.write(tmp_path / "report.sqlite"))

    assert len(found.trace.activities) == 1
    assert tally.taken["activities of devices"] == 1


VALUES = st.one_of(
    st.none(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-5, 1_000),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
)
ROWS = st.tuples(
    st.lists(st.tuples(*[VALUES] * 8), max_size=5),
    st.lists(st.tuples(*[VALUES] * 10), max_size=5),
    st.lists(st.tuples(*[VALUES] * 5), max_size=5),
    st.lists(st.tuples(*[VALUES] * 6), max_size=5),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(ROWS)
def test_any_value_may_stand_in_any_place(tmp_path, rows):
    """Each row is taken, left out or rejected, and what is taken can be explained."""
    path = tmp_path / "report.sqlite"
    path.unlink(missing_ok=True)
    export = healthy()
    for table, added in zip(LOOSE, rows, strict=True):
        columns = ", ".join(f'"{name}"' for name in LOOSE[table])
        # Without NOT NULL, which a stranger's table need not have either.
        export.rows.pop(table)
        export.extra.append(f"CREATE TABLE {table} ({columns})")
        export.fill.append((table, added))

    (_, _, *found), tally = read(export.write(path))

    taken = sum(tally.taken.values())
    left_out = (
        sum(tally.left_out.values()) - tally.left_out["rows of processes without device activity"]
    )
    assert taken + left_out + sum(tally.rejected.values()) == 1 + sum(map(len, rows))
    for one in found:
        examine(one.trace)


@pytest.mark.skipif(not REAL, reason="needs OTEL_GPU_TEST_TORCH_DATA: a folder of real exports")
@pytest.mark.parametrize(
    ("name", "kernel_ms", "processes", "rows"),
    [
        ("mfu_2gpu_before", 535.20, 2, 5_299),
        ("mfu_2gpu_after", 488.84, 2, 4_733),
        ("healthy_1pct", 400.0, 1, 400),
        ("healthy_judged_1pct", 4_000.0, 1, 20),
    ],
)
def test_real_exports_have_the_time_that_others_assert(name, kernel_ms, processes, rows):
    """Total time of kernels as nsys-ai's tests have it; every row has a place."""
    (_, _, *found), tally = read(Path(REAL, "nsys", f"{name}.sqlite"))

    total_ns = sum(
        duration_ns
        for one in found
        for kind, duration_ns in zip(
            one.trace.activities.kinds, one.trace.activities.durations_ns, strict=True
        )
        if kind == Work.KERNEL
    )
    assert round(total_ns / 1e6, 2) == kernel_ms
    assert len(found) == processes
    assert tally.taken["activities of devices"] == rows
    assert not tally.rejected


@pytest.mark.skipif(not REAL, reason="needs OTEL_GPU_TEST_TORCH_DATA: a folder of real exports")
@pytest.mark.parametrize(
    ("name", "exposed_ms", "step_ms"),
    [("mfu_2gpu_before", 25.400, 598.52), ("mfu_2gpu_after", 33.740, 598.46)],
)
def test_timelines_of_real_exports_are_those_that_others_assert(name, exposed_ms, step_ms):
    """Sums over both devices, of all that was recorded, also of what was launched before."""
    (_, _, *found), _ = read(Path(REAL, "nsys", f"{name}.sqlite"))

    exposed_ns = step_ns = 0
    for one in found:
        trace = one.trace
        unknown = [NO_ROW] * len(trace.activities)
        for timeline in timelines(trace, unknown, kinds_of(trace.names, trace.activities)):
            phases = timeline.phases(timeline.start_ns, timeline.end_ns)
            parts = (
                phases.compute_ns, phases.exposed_communication_ns, phases.exposed_copy_ns,
                phases.idle_ns,
            )  # fmt: skip
            assert sum(parts) == phases.window_ns
            exposed_ns += phases.exposed_communication_ns
            step_ns += phases.window_ns
    assert exposed_ns / 1e6 == pytest.approx(exposed_ms, abs=0.005)
    # Of the second, theirs ends with the last kernel.
    assert step_ns / 1e6 == pytest.approx(step_ms, abs=0.1)


def managed(*, prefetched_us=987_000, faults=()):
    """A kernel after pages were moved ahead of it: 128 of another buffer before, 64 of its own, one at its end."""
    export = Export()
    export.call(prefetched_us, 22_000, 121, "cudaMemPrefetchAsync_v8000")
    export.call(1_570_000, 1_000, 122)
    export.kernel(1_571_000, 34_000, 122, "softmax")
    for number in range(128):
        export.copy(950_000 + 100 * number, 50, size=65_536, way=12, memory=(4, 4))
    for number in range(64):
        export.copy(prefetched_us + 330 * number, 320, size=2 << 20, way=11, memory=(4, 4))
    export.copy(1_600_000, 50, size=65_536, way=13, memory=(4, 4))
    for table, count in faults:
        export.extra.append(f'CREATE TABLE {table} ("start" INTEGER)')
        export.fill.append((table, [(n,) for n in range(count)]))
    return export


def test_pages_that_move_are_launched_by_nobody_and_count(tmp_path):
    """What the device waited for with them is due to the thread that launched what came next."""
    found = explain(managed().write(tmp_path / "managed.sqlite"))

    (row,) = found.devices
    copies = {one.way: (one.times, one.size_bytes) for one in row.copies}
    assert copies == {
        "HtoD, migrated": (64, 64 * (2 << 20)),
        "DtoH, migrated": (128, 128 * 65_536),
        "DtoD, migrated": (1, 65_536),
    }
    assert row.window_ns == 655_000_000
    assert row.compute_ns == 34_000_000
    assert row.exposed_copy_ns == (128 * 50 + 64 * 320) * 1_000
    assert row.idle["host_other"] >= 590_000_000
    assert "no_launch" not in row.idle
    assert any(
        "pages of managed memory moved by no launch (193 copies)" in text for text in row.gate
    )
    assert not any("launched before" in text or "overlap" in text for text in row.gate)


def test_pages_that_move_when_all_is_done_end_gaps_too(tmp_path):
    """The host reads the result: nothing is launched any more, and it is not known who read it."""
    export = managed()
    for number in range(9):
        export.copy(1_700_000 + 1_000 * number, 500, way=12, memory=(4, 4))

    (row,) = explain(export.write(tmp_path / "managed.sqlite")).devices

    assert row.window_ns == 758_500_000
    assert sum(row.idle.values()) == row.idle_ns
    assert "no_launch" not in row.idle


def test_page_faults_are_named(tmp_path):
    """They are not read, and it is said how many there are; where there are none, nothing is said."""
    tables = [("CUDA_UM_CPU_PAGE_FAULT_EVENTS", 7), ("CUDA_UM_GPU_PAGE_FAULT_EVENTS", 5)]

    notes = explain(managed(faults=tables).write(tmp_path / "managed.sqlite")).notes

    assert "What waited for page faults of the host on managed memory is not known, of which there are 7." in notes  # fmt: skip
    assert "What waited for page faults of devices on managed memory is not known, of which there are 5." in notes  # fmt: skip
    assert not any("page fault" in one for one in explain(managed().write(tmp_path / "none.sqlite")).notes)  # fmt: skip


def test_an_export_without_rows_is_refused(tmp_path):
    """It has the tables, and nothing in them."""
    path = Export().write(tmp_path / "empty.sqlite")

    with pytest.raises(RecordingError, match="its tables of devices and calls are empty"):
        explain(path)

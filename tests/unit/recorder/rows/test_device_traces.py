"""What devices did is read back as it was written, or not at all."""

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_gpu import cli
from otel_gpu.enrich.activities import CaptureActivity, DeviceTraceActivity
from otel_gpu.recorder.limits import StoreLimits
from otel_gpu.recorder.reader import StoreReader
from otel_gpu.recorder.recorder import open_writer
from otel_gpu.wire.device_activity import (
    UNKNOWN_COLLECTIVE,
    Collective,
    DeviceActivities,
    DeviceModel,
    DeviceStep,
    DeviceTrace,
    HostOperations,
    HostWork,
    Names,
    Thread,
    Work,
)
from tests.activities import T0, capture
from tests.unit.importers.exports import Export
from tests.unit.importers.traces import T0_US, call, host, kernel, step, trace, write
from tests.unit.recorder.stores import MIB, ask, read, report_of
from tests.unit.recorder.stores import write as write_store

REAL = os.environ.get("OTEL_GPU_TEST_TORCH_DATA", "")
MS = 1_000_000


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


def told(made: DeviceTrace):
    """All that a trace tells: numbers of names are whatever they are."""
    names, shapes, done, on_host = made.names, made.shapes, made.activities, made.host
    return made._replace(
        names=None,
        shapes=None,
        models=dict(made.models),
        rejected=dict(made.rejected),
        activities=[
            (*row, names[name], made.collectives[collective])
            for name, collective, *row in zip(
                *(done.names, done.collectives, done.kinds, done.devices, done.streams),
                *(done.starts_ns, done.durations_ns, done.correlations, done.sizes_bytes),
                *(done.occupancies, done.blocks),
                strict=True,
            )
        ],
        host=[
            (*row, names[name], shapes[shape], made.threads[thread])
            for name, shape, thread, *row in zip(
                *(on_host.names, on_host.shapes, on_host.threads, on_host.kinds),
                *(on_host.starts_ns, on_host.durations_ns, on_host.correlations),
                strict=True,
            )
        ],
    )


TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=9
)
TIME, LENGTH = st.integers(0, 1 << 62), st.integers(0, 10**14)
U32 = st.integers(0, (1 << 32) - 1)
INDEX = st.integers(0, 5)
SHARE = st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.25])


@st.composite
def recorded(draw):
    """Any trace, whose rows need not make sense."""
    names, shapes = Names(), Names(1 << 16)
    known = [0, *(names.number(one) for one in draw(st.lists(TEXT, max_size=4)))]
    known_shapes = [0, *(shapes.number(one) for one in draw(st.lists(TEXT, max_size=3)))]
    threads = (Thread(0, 0), *draw(st.lists(st.builds(Thread, INDEX, TIME, TEXT), max_size=3)))
    collectives = (
        UNKNOWN_COLLECTIVE,
        *draw(st.lists(st.builds(Collective, TEXT, TEXT, INDEX, TIME, INDEX), max_size=3)),
    )
    done, on_host = DeviceActivities(), HostOperations()
    for _ in range(draw(st.integers(0, 12))):
        done.add(
            *(
                draw(st.sampled_from(Work)),
                draw(st.integers(-1, 3)),
                draw(st.integers(-1, 1 << 40)),
            ),
            *(draw(TIME), draw(LENGTH), draw(st.sampled_from(known))),
            correlation=draw(U32),
            size_bytes=draw(st.integers(0, 1 << 50)),
            collective=draw(st.integers(0, len(collectives) - 1)),
            occupancy=draw(SHARE),
            blocks=draw(SHARE),
        )
    for _ in range(draw(st.integers(0, 12))):
        on_host.add(
            *(draw(st.sampled_from(HostWork)), draw(st.integers(0, len(threads) - 1))),
            *(draw(TIME), draw(LENGTH), draw(st.sampled_from(known)), draw(U32)),
            draw(st.sampled_from(known_shapes)),
        )
    return DeviceTrace(
        *(
            draw(TEXT),
            draw(TEXT),
            draw(st.integers(0, 1 << 61)),
            draw(st.booleans()),
            names,
            shapes,
        ),
        *(done, on_host, threads, collectives),
        draw(st.dictionaries(INDEX, st.builds(DeviceModel, TEXT, INDEX, INDEX, TIME), max_size=2)),
        *(draw(st.none() | INDEX), draw(st.none() | INDEX)),
        *(draw(TEXT), draw(TEXT), draw(INDEX)),
        tuple(draw(st.lists(st.builds(DeviceStep, INDEX, TEXT, TIME, LENGTH), max_size=3))),
        *(draw(st.booleans()), draw(st.booleans()), draw(LENGTH)),
        draw(st.dictionaries(TEXT, U32, max_size=2)),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(recorded(), min_size=1, max_size=3), st.integers(1, 9), st.integers(5, 40))
def test_traces_are_read_as_they_were_written(tmp_path_factory, made, batch_rows, chunk_rows):
    """However many pieces they are written in, and whatever lies before and after them."""
    path = tmp_path_factory.mktemp("store") / "store.db"
    limits = StoreLimits(batch_rows=batch_rows, chunk_rows=chunk_rows)
    activities = [capture(), *(DeviceTraceActivity(T0 + 5, one) for one in made)]

    first, *found = read(write_store(path, activities, limits))

    assert isinstance(first, CaptureActivity)
    assert [told(one.trace) for one in found] == [told(one) for one in made]
    assert {one.unix_ns for one in found} == {T0 + 5}


# Two steps of 50 ms: a data loader, a copy and a kernel.
def steps(rank=0, device=0):
    """The events of one rank."""
    for number in range(6):
        at, of = number * 50_000, number * 10
        yield step(number, at, 50_000)
        yield host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 100, 30_000)
        yield host("aten::to", at + 30_500, 1_000, **{"Input Dims": [[8, number]]})
        yield call("cudaMemcpyAsync", at + 30_600, 50, of + 1)
        yield kernel(
            *(at + 30_700, 300, of + 1),
            "Memcpy HtoD (Pageable -> Device)",
            device=device,
            bytes=4096,
        )
        yield call("cudaLaunchKernel", at + 32_000, 10, of + 2)
        yield kernel(at + 32_100, 10_000 + rank, of + 2, "sgemm", device=device)
        yield call("cudaLaunchKernel", at + 42_300, 10, of + 3)
        yield kernel(
            *(at + 42_500, 5_000, of + 3), "ncclKernel_AllReduce_RING", device=device,
            **{"Collective name": "allreduce", "Process Group Name": "0", "Seq": number,
               "In msg nelems": 100, "dtype": "Float", "Group size": 2},
        )  # fmt: skip


def rank(folder, number):
    made = trace(
        steps(number, number),
        distributedInfo={"rank": number, "world_size": 2},
        deviceProperties=[{"id": number, "name": "A100", "computeMajor": 8, "computeMinor": 0}],
    )
    return write(folder / f"rank{number}.json", made)


@pytest.fixture
def run(tmp_path):
    """A folder with the traces of two ranks."""
    folder = tmp_path / "run"
    folder.mkdir()
    for number in (0, 1):
        rank(folder, number)
    return folder


@pytest.fixture
def stored(tmp_path, capsys):
    """What an import says, and what is explained of the store that it is kept in."""

    def both(kind, path):
        store = tmp_path / f"{Path(path).name}.db"
        assert cli.main(["import", kind, str(path), "--store", str(store), "--json"]) == 0
        imported = json.loads(capsys.readouterr().out)["report"]
        assert cli.main(["explain", "--store", str(store), "--json"]) == 0
        return imported, json.loads(capsys.readouterr().out), store

    return both


def test_a_store_is_explained_as_the_traces_were(stored, run):
    """Devices, steps, causes of idle time, kernels, stragglers and advice; the window, and all else."""
    imported, explained, store = stored("torch-trace", run)

    assert len(imported["devices"]) == 2
    assert imported["advice"]
    assert explained == imported | {"source": str(store)}


def test_an_export_of_nsight_systems_likewise(stored, tmp_path):
    """Two processes, which share the names of their kernels."""
    export = Export()
    for pid in (144, 145):
        for number in range(20):
            export.call(number * 1_000, 20, number + 1, pid=pid)
            export.kernel(number * 1_000 + 100, 400, number + 1, f"k{number % 3}_{pid}", pid=pid)
    path = export.write(tmp_path / "report.sqlite")

    imported, explained, store = stored("nsys", path)

    assert len(imported["devices"]) == 2
    assert explained == imported | {"source": str(store)}
    # Each process has rows for the names that it uses, and for no others.
    assert ask(store, "SELECT trace, count(*) FROM device_names GROUP BY trace") == [
        (2, 4),
        (ask(store, "SELECT max(seq) FROM device_traces")[0][0], 4),
    ]


def test_views_have_names_and_the_original_times(stored, run):
    """To the nanosecond, by rank."""
    _, explained, store = stored("torch-trace", run)

    assert ask(
        store,
        "SELECT kind, name, duration_ms, device, stream, size_bytes, collective, start_unix_ns, time "
        "FROM v_device_activities WHERE rank = 1 ORDER BY start_unix_ns LIMIT 3",
    ) == [
        ("copy", "Memcpy HtoD (Pageable -> Device)", 0.3, 1, 7, 4096, "",
         (T0_US + 30_700) * 1_000, "2025-06-15T15:06:40.030700000Z"),
        ("kernel", "sgemm", 10.001, 1, 7, 0, "",
         (T0_US + 32_100) * 1_000, "2025-06-15T15:06:40.032100000Z"),
        ("kernel", "ncclKernel_AllReduce_RING", 5.0, 1, 7, 0, "allreduce",
         (T0_US + 42_500) * 1_000, "2025-06-15T15:06:40.042500000Z"),
    ]  # fmt: skip
    device = explained["devices"][0]
    assert ask(
        store,
        "SELECT name, start_unix_ns, duration_ms, compute_ms, exposed_communication_ms, idle_ms, "
        "data_loader_ms, set_aside FROM v_device_steps WHERE rank = 0 ORDER BY seq",
    ) == [
        (one["name"], one["start_unix_ns"], *(one[name] / MS for name in (
            "duration_ns", "compute_ns", "exposed_communication_ns", "idle_ns")),
         one["parts"]["data_loader"] / MS, one["set_aside"])
        for one in device["step_rows"]
    ]  # fmt: skip
    idle = dict(
        ask(store, "SELECT cause, sum(idle_ms) FROM v_device_idle WHERE rank = 0 GROUP BY 1")
    )
    assert idle == {cause: pytest.approx(time_ns / MS) for cause, time_ns in device["idle"].items()}
    assert ask(
        store, "SELECT start_unix_ns, cause, name FROM v_device_gaps WHERE rank = 0 ORDER BY seq"
    ) == [(one["start_unix_ns"], one["cause"], one["name"]) for one in device["gaps"]]
    assert ask(store, "SELECT window_ms, idle_ms, verdict, device_model FROM v_device_time") == [
        (one["window_ns"] / MS, one["idle_ns"] / MS, one["verdict"], "A100")
        for one in explained["devices"]
    ]
    assert ask(
        store,
        "SELECT kind, name, shapes, thread, duration_ms FROM v_host_operations "
        "WHERE rank = 0 AND shapes <> '' ORDER BY seq LIMIT 1",
    ) == [("operation", "aten::to", "[[8, 0]] ", "", 1.0)]
    # What a call enqueued.
    assert ask(
        store,
        "SELECT h.name, count(*) FROM host_operations o JOIN device_activities e ON e.trace = o.trace "
        "AND e.correlation = o.correlation AND o.correlation > 0 JOIN device_names h ON h.seq = o.name "
        "GROUP BY 1 ORDER BY 1",
    ) == [("cudaLaunchKernel", 24), ("cudaMemcpyAsync", 12)]


def activity_of(rows):
    """A trace of so many kernels, and when it ended."""
    made = DeviceTrace(
        *("big.json", "torch.profiler", T0, True, Names(), Names(), DeviceActivities()),
        *(HostOperations(), (Thread(0, 0),), (UNKNOWN_COLLECTIVE,), {}),
    )
    name = made.names.number("sgemm")
    for number in range(rows):
        made.activities.add(Work.KERNEL, 0, 7, number * 10_000, 6_000, name)
    return DeviceTraceActivity(T0 + rows * 10_000, made)


def test_a_trace_goes_as_a_whole(tmp_path):
    """The oldest makes room: what is left of it is in no view, and is not called damage."""
    path, limits = tmp_path / "store.db", StoreLimits(max_bytes=5 * MIB, chunk_rows=3_000)
    for number in range(9):
        with open_writer(path, limits, live=False) as writer:
            writer.observe(capture(unix_ns=T0 + number))
            writer.observe(activity_of(20_000))
            assert writer.close()
            assert path.stat().st_size <= limits.max_bytes

    found = [one for one in read(path) if isinstance(one, DeviceTraceActivity)]

    assert 1 <= len(found) < 9
    assert {len(one.trace.activities) for one in found} == {20_000}
    counted = ask(path, "SELECT count(*) FROM v_device_activities")[0][0]
    assert counted == 20_000 * len(found)
    assert ask(path, "SELECT count(*) FROM device_activities")[0][0] >= counted


def test_what_would_not_fit_is_not_begun(tmp_path):
    """It would take the place of all else, and then its own."""
    path, limits = tmp_path / "store.db", StoreLimits(max_bytes=2 * MIB)
    with open_writer(path, limits, live=False) as writer:
        writer.observe(capture())
        writer.observe(activity_of(40_000))

        writer.close()
        assert writer.lost() == {"trace_too_large": 40_002}

    assert [type(one) for one in read(path)] == [CaptureActivity]
    assert ask(path, "SELECT reason, rows FROM losses") == [("trace_too_large", 40_002)]


def test_a_trace_that_is_being_written_is_not_there_yet(tmp_path):
    """Nor is it damaged."""
    path = tmp_path / "store.db"
    with open_writer(path, StoreLimits(batch_rows=100), live=False) as writer:
        writer.observe(capture())
        pieces = iter(range(3))
        writer._journal.put, put = (
            (lambda batch: put(batch) if next(pieces, None) is not None else None),
            writer._journal.put,
        )
        writer.observe(activity_of(1_000))

        assert ask(path, "SELECT count(*) FROM device_activities")[0][0] > 0
        assert [type(one) for one in read(path)] == [CaptureActivity]


DAMAGE = (
    "DELETE FROM device_activities WHERE seq = (SELECT max(seq) FROM device_activities)",
    "DELETE FROM device_names",
    "UPDATE device_activities SET trace = 99",
    "UPDATE device_traces SET parts = parts + 1",
    "UPDATE device_traces SET rejected = '[]'",
    "UPDATE device_activities SET kind = 9 WHERE device = 1",
    "UPDATE device_activities SET duration_ns = -1 WHERE device = 1",
    "UPDATE device_activities SET start_ns = 9223372036854775807 WHERE device = 1",
)
STRANGE = (
    "UPDATE device_activities SET name = 9223372036854775807, collective = 0",
    "UPDATE host_operations SET thread = 1, shapes = 1, name = NULL",
    "UPDATE device_names SET name = 'same'",
    "UPDATE device_traces SET base_unix_ns = 9223372036854775807, overhead_ns = 9223372036854775807",
)


def tampered(store, path, statement):
    """A copy of a store in which somebody changed something."""
    path.write_bytes(store.read_bytes())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)
    return path


@pytest.mark.parametrize("statement", DAMAGE)
def test_a_trace_that_lacks_something_is_rejected(stored, run, tmp_path, statement):
    """It says so, and the others are as they were."""
    _, _, store = stored("torch-trace", run)
    with StoreReader(tampered(store, tmp_path / "t.db", statement)) as reader:
        found = [one for one in reader.activities() if isinstance(one, DeviceTraceActivity)]
        rejected = reader.rejected

    assert rejected["device_traces"] == 2 - len(found)
    assert len(found) < 2


@pytest.mark.parametrize("statement", STRANGE)
def test_what_makes_no_sense_is_not_known(stored, run, tmp_path, statement):
    """A store of a stranger raises nothing: it is explained as far as it goes."""
    _, _, store = stored("torch-trace", run)
    with StoreReader(tampered(store, tmp_path / "t.db", statement)) as reader:
        found = list(reader.activities())

    assert len(report_of(found)["devices"]) == 2


@pytest.mark.skipif(not REAL, reason="needs OTEL_GPU_TEST_TORCH_DATA: a folder of real artefacts")
@pytest.mark.parametrize(("kind", "pattern"), [("torch-trace", "*.json.gz"), ("nsys", "*.sqlite")])
def test_real_traces_are_kept_as_they_are(stored, kind, pattern):
    """Every file: the same document."""
    paths = sorted(Path(REAL).rglob(pattern))
    assert paths
    for path in paths:
        imported, explained, store = stored(kind, path)
        different = [name for name, value in imported.items() if explained[name] != value]
        assert different == ["source"], path
        store.unlink()

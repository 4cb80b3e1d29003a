"""Rows of Ingero's databases as events."""

from collections import Counter

import pytest

from otel_gpu import wire
from otel_gpu.config import Config
from otel_gpu.decode.events import (
    CPU_UNKNOWN,
    STALL_STATE_UNKNOWN,
    Capture,
    Clock,
    CudaCall,
    Exec,
    Exit,
    Fork,
    Stall,
)
from otel_gpu.decode.readings import Pressure
from otel_gpu.decode.referents import ProcessSeen
from otel_gpu.errors import RecordingError
from otel_gpu.importers import open_capture
from otel_gpu.importers.ingero import capture as ingero_capture
from otel_gpu.importers.ingero import rows
from tests.activities import APIS_BY_NAME
from tests.unit.importers.databases import MS, PID, SECOND, T0, Database


@pytest.fixture
def database(tmp_path):
    return Database(tmp_path / "x.db")


@pytest.fixture
def newer(tmp_path):
    """A database with what later versions added."""
    return Database(tmp_path / "x.db", newer=True)


def read(database, **options):
    """All events, and the account."""
    with open_capture("ingero", database.path, Config(), **options) as capture:
        return list(capture.events()), capture.tally


def of(kind, database, **options):
    return [event for event in read(database, **options)[0] if type(event) is kind]


def test_a_stream_begins_with_the_capture_and_its_clock(database):
    """So that all rooms after it know what they deal with."""
    database.event("cudaMalloc", T0 + SECOND, MS, arg0=4096)
    database.insert("sessions", started_at=T0, stopped_at=T0 + 9 * SECOND, cpu_cores=4)

    (capture, clock, seen, *_), _ = read(database)

    assert (type(capture), type(clock), type(seen)) == (Capture, Clock, ProcessSeen)
    assert (capture.ktime_ns, clock) == (T0, Clock(T0, T0))
    assert capture.info["unknown"] == ["thread_states", "distributions", "freed_bytes"]
    assert capture.info["layout"]["durations"]["kind"] == "exponential"
    assert capture.info["host"] == {"cpus": 4}


def test_a_call_begins_at_the_time_of_its_row(database):
    """The time of a CUDA row is its start. What the row does not say stays unknown."""
    database.event("cudaMalloc", T0 + SECOND, 3 * MS, tid=7, arg0=4096, ret_code=2)

    (call,) = of(CudaCall, database)

    assert (call.start_ktime_ns, call.end_ktime_ns) == (T0 + SECOND, T0 + SECOND + 3 * MS)
    assert (call.pid, call.tid, call.status, call.size_bytes) == (PID, 7, 2, 4096)
    assert call.api == APIS_BY_NAME["cudaMalloc"].number
    assert (call.parent_start_ktime_ns, call.root_start_ktime_ns) == (0, T0 + SECOND)
    assert (call.device, call.cpu, call.choices, call.depth) == (-1, CPU_UNKNOWN, 0, 0)


def test_an_interval_off_the_cpu_ends_at_the_time_of_its_row(database):
    """The time of a sched_switch row is its end. Nothing says what state the thread was in."""
    database.event("cudaFree", T0, 1)
    database.event("sched_switch", T0 + SECOND, 4 * MS, arg1=99)

    (stall,) = of(Stall, database)

    assert (stall.start_ktime_ns, stall.end_ktime_ns) == (T0 + SECOND - 4 * MS, T0 + SECOND)
    assert stall.runnable_ktime_ns == stall.end_ktime_ns
    assert stall.flags == STALL_STATE_UNKNOWN
    assert (stall.culprit_pid, stall.culprit_tid, stall.waker_pid, stall.waker_tid) == (0, 0, 0, 0)
    assert (stall.kernel_stack, stall.system_call, stall.switch_type) == (-1, -1, 0)
    assert (stall.call_start_ktime_ns, stall.call_api) == (0, 0)


def test_a_call_within_a_call_of_its_thread_is_inside_it(database):
    """The runtime calls the driver; another thread's call at the same time is something else."""
    database.event("cuMemAlloc", T0 + 10, 50, tid=1)
    database.event("cudaMalloc", T0, 100, tid=1)
    database.event("cuMemAlloc", T0 + 20, 50, tid=2)
    database.event("cuMemAlloc", T0 + 100, 50, tid=1)

    inside = {
        (call.tid, call.start_ktime_ns - T0): (call.parent_start_ktime_ns, call.depth)
        for call in of(CudaCall, database)
    }

    assert inside == {(1, 0): (0, 0), (1, 10): (T0, 1), (2, 20): (0, 0), (1, 100): (0, 0)}


def test_calls_of_a_thread_that_cross_are_in_no_other(database):
    """A thread cannot do that, so one of the rows is wrong."""
    database.event("cudaMalloc", T0, 100)
    database.event("cudaFree", T0 + 50, 100)

    assert [call.parent_start_ktime_ns for call in of(CudaCall, database)] == [0, 0]


def test_an_interval_within_a_call_names_the_call(database):
    """Only if it is the same thread's."""
    database.event("cudaLaunchKernel", T0, 10 * MS)
    database.event("cuLaunchKernel", T0 + MS, 8 * MS)
    database.event("sched_switch", T0 + 5 * MS, 2 * MS)
    database.event("cudaLaunchKernel", T0, 10 * MS, tid=7)

    (stall,) = of(Stall, database)

    assert stall.call_start_ktime_ns == T0 + MS
    assert stall.root_start_ktime_ns == T0
    assert stall.call_api == APIS_BY_NAME["cuLaunchKernel"].number
    assert stall.call_depth == 1


def test_events_come_in_the_order_of_their_ends(database):
    """As those of a recording do: a record is written when something is over."""
    database.event("cudaMalloc", T0, 100)
    database.event("cudaFree", T0 + 200, 100)
    database.event("cuMemAlloc", T0 + 10, 50)
    database.event("sched_switch", T0 + 40, 20)
    database.insert("system_snapshots", timestamp=T0 + 120, load_avg=1.5)

    events, _ = read(database)

    assert [type(event) for event in events if event[0] > T0] == [
        *(Stall, CudaCall, CudaCall, Pressure, CudaCall),
        type(events[-1]),
    ]
    times = [event[0] for event in events]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("cudaStreamSync", "cudaStreamSynchronize"),
        ("cudaDeviceSync", "cudaDeviceSynchronize"),
        ("cudaMemcpy2D", "cudaMemcpy2D"),
        ("cuLaunchKernel", "cuLaunchKernel"),
        ("graphLaunch", "cudaGraphLaunch"),
    ],
)
def test_operations_are_apis_of_our_table(database, op, name):
    """The tool shortens some names, and its own table lacks some operations."""
    database.event(op, T0, 1)

    assert [call.api for call in of(CudaCall, database)] == [APIS_BY_NAME[name].number]


def test_the_databases_own_names_win(database):
    """A later version may use a number anew."""
    database.event("cudaMalloc", T0, 1)
    database.insert("ops", source_id=1, op_id=1, name="cudaMallocHost")

    assert [call.api for call in of(CudaCall, database)] == [APIS_BY_NAME["cudaMallocHost"].number]


@pytest.mark.parametrize("name", ["cudaNew", "cuMemAlloc", "", "sched_switch"])
def test_an_operation_that_is_not_known_is_counted(database, name):
    """Nothing is guessed: not even for a name of the other library."""
    database.event((1, 77), T0, 1)
    database.insert("ops", source_id=1, op_id=77, name=name)

    events, tally = read(database)

    assert [event for event in events if isinstance(event, CudaCall)] == []
    shown = name or "operation 77 of source 1"
    assert tally.left_out == {f"{shown}: no API that is known here": 1}


def test_what_arguments_mean_depends_on_the_call(database):
    """Bytes, a function, a direction, a stream or an address."""
    database.event("cudaMemcpyAsync", T0, 1, arg0=512, arg1=1)
    database.event("cudaLaunchKernel", T0 + 10, 1, arg0=-1, arg1=0)
    database.event("cudaStreamSync", T0 + 20, 1, arg0=99)
    database.event("cudaFree", T0 + 30, 1, arg0=0xABC)
    database.event("cudaMemcpy2D", T0 + 40, 1, arg0=512, arg1=77)

    copy, launch, wait, free, copy_2d = of(CudaCall, database)

    assert (copy.size_bytes, copy.copy_kind) == (512, wire.COPY_HOST_TO_DEVICE)
    assert (launch.function, launch.size_bytes) == ((1 << 64) - 1, 0)
    assert (wait.stream, wait.size_bytes) == (99, 0)
    assert (free.address, free.size_bytes, free.copy_kind) == (0xABC, 0, wire.COPY_NONE)
    # Of a copy in two dimensions the tool has the width.
    assert (copy_2d.size_bytes, copy_2d.copy_kind) == (0, wire.COPY_NONE)


def test_a_thread_is_of_the_process_that_another_row_says(database):
    """A sched_switch row calls the thread's number the process's."""
    database.event("cudaMalloc", T0, 1)
    database.event("process_exit", T0 + 9 * SECOND, tid=4250)
    database.event("sched_switch", T0 + SECOND, 5, pid=4250)

    (stall,) = of(Stall, database)

    assert (stall.pid, stall.tid) == (PID, 4250)


def test_a_thread_of_nobody_is_left_out(database):
    """As is a thread of a process that has nothing to do with CUDA."""
    database.event("cudaMalloc", T0, 1)
    database.event("sched_switch", T0 + SECOND, 5, pid=4250)
    database.event("net_recv", T0, 5, pid=700)
    database.event("sched_switch", T0 + SECOND, 5, pid=700)

    events, tally = read(database)

    assert [event for event in events if isinstance(event, Stall)] == []
    assert tally.left_out == {
        "sched_switch: of a thread whose process is not recorded": 1,
        "sched_switch: of a process that does not use CUDA": 1,
        "net_recv": 1,
    }


def test_a_number_that_two_processes_used_for_a_thread_says_nothing(database):
    """It was used again."""
    database.event("cudaMalloc", T0, 1, pid=1000, tid=4250)
    database.event("cudaMalloc", T0, 1, pid=2000, tid=4250)
    database.event("sched_switch", T0 + SECOND, 5, pid=4250)

    assert of(Stall, database) == []


def test_a_fork_makes_a_process_that_is_seen_to_be_one(database):
    """The tool has the same row for a new thread. Children are imported with their parents."""
    database.event("cudaMalloc", T0, 1)
    database.event("process_fork", T0 + SECOND, arg1=5001)
    database.event("process_fork", T0 + 2 * SECOND, arg1=5002)
    database.event("net_recv", T0 + 3 * SECOND, 1, pid=5001)
    database.event("sched_switch", T0 + 4 * SECOND, 5, pid=5001)
    database.insert("process_names", pid=5001, name="pt_data_worker", seen_at=0)

    events, tally = read(database)

    (fork,) = (event for event in events if isinstance(event, Fork))
    assert (fork.end_ktime_ns, fork.start_ktime_ns) == (T0 + SECOND, T0 + SECOND)
    assert (fork.pid, fork.child_pid, fork.child_image_ktime_ns) == (PID, 5001, T0 + SECOND)
    (stall,) = (event for event in events if isinstance(event, Stall))
    assert (stall.pid, stall.image_ktime_ns, stall.comm) == (5001, T0 + SECOND, "pt_data_worker")
    names = {e.pid: e.facts["comm"] for e in events if isinstance(e, ProcessSeen)}
    assert names == {PID: "", 5001: "pt_data_worker"}
    assert (
        tally.left_out[
            "process_fork: of a thread, or not recorded whether of a thread or of a process"
        ]
        == 1
    )


def test_an_exec_begins_a_new_image(database):
    """What follows is another program's."""
    database.event("cudaMalloc", T0, 1)
    database.event("process_exec", T0 + SECOND)
    database.event("cudaMalloc", T0 + 2 * SECOND, 1)

    events, _ = read(database)

    (one,) = (event for event in events if isinstance(event, Exec))
    assert (one.old_image_ktime_ns, one.image_ktime_ns) == (T0, T0 + SECOND)
    images = [event.image_ktime_ns for event in events if isinstance(event, CudaCall)]
    assert images == [T0, T0 + SECOND]


def test_a_process_ends_with_its_last_thread(database):
    """Every thread has a row; one of the first thread alone ends nothing while others go on."""
    database.event("cudaMalloc", T0, 1)
    database.event("process_exit", T0 + SECOND)
    database.event("process_exit", T0 + 2 * SECOND, tid=4250)

    events, tally = read(database)

    assert [(e.pid, e.ktime_ns) for e in events if isinstance(e, Exit)] == [(PID, T0 + 2 * SECOND)]
    assert tally.left_out == {"process_exit: of a thread": 1}


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("timestamp", "yesterday", "not_a_number"),
        ("timestamp", 1.5, "not_a_number"),
        ("timestamp", -1, "bad_time"),
        ("timestamp", (1 << 63) - 1, "bad_time"),
        ("duration", b"\x00", "not_a_number"),
        ("duration", -1, "negative_duration"),
        ("pid", 1 << 40, "bad_process"),
        ("tid", 0, "bad_process"),
        ("ret_code", 1 << 40, "bad_status"),
        ("arg0", "x" * 1_000_000, "not_a_number"),
    ],
)
def test_a_row_that_makes_no_sense_is_counted(database, column, value, reason):
    """SQLite stores anything in any column. The other rows are taken."""
    database.event("cudaMalloc", T0, 5)
    database.event("cudaMalloc", T0 + SECOND, 5)
    database.run(f"UPDATE events SET {column} = ? WHERE id = 2", value)

    events, tally = read(database)

    assert len([event for event in events if isinstance(event, CudaCall)]) == 1
    assert tally.rejected == {reason: 1}
    assert tally.taken["CUDA calls"] == 1


def test_a_kind_that_is_no_number_is_counted(database):
    """It is not known what the row is about."""
    database.event("cudaMalloc", T0, 5)
    database.run(
        "INSERT INTO events SELECT 9, timestamp, pid, tid, 'CUDA', op, duration, 0, 0, 0, "
        "0, 0, '', 0 FROM events"
    )

    assert read(database)[1].rejected == Counter({"not_a_number": 1})


def test_names_and_cgroups_are_those_of_the_database(database):
    """What it says of a process is what /proc would have said."""
    database.event("cudaMalloc", T0, 1, cgroup_id=77)
    database.event("cudaFree", T0 + 1, 1, tid=7)
    database.insert("process_names", pid=PID, name="python3", seen_at=0)
    database.insert("process_names", pid=7, name="autograd", seen_at=0)
    database.insert(
        "cgroup_metadata",
        cgroup_id=77,
        cgroup_path="/kubepods/pod1",
        container_id="ab" * 32,
        pod_name="trainer-0",
        namespace="ml",
    )

    events, _ = read(database)

    (seen,) = (event for event in events if isinstance(event, ProcessSeen))
    assert seen.facts == {
        "comm": "python3",
        "cgroups": ["0::/kubepods/pod1"],
        "mountinfo_container_id": "ab" * 32,
        "otel_context": {"k8s.pod.name": "trainer-0", "k8s.namespace.name": "ml"},
    }
    assert [event.comm for event in events if isinstance(event, CudaCall)] == [
        "python3",
        "autograd",
    ]


def test_long_names_are_cut(database):
    """A name is a name, and not a book."""
    database.event("cudaMalloc", T0, 1)
    database.insert("process_names", pid=PID, name="x" * 5_000_000, seen_at=0)

    (call,) = of(CudaCall, database)

    assert call.comm == "x" * 64


def test_later_versions_say_the_name_in_the_row(newer):
    """Then that is the thread's."""
    newer.event("cudaMalloc", T0, 1, comm="pt_main", node="n1", rank=None)
    newer.insert("process_names", pid=PID, name="python3", seen_at=0)

    events, tally = read(newer)

    assert [event.comm for event in events if isinstance(event, CudaCall)] == ["pt_main"]
    assert tally.source["host"] == "n1"


def test_one_host_is_imported_at_a_time(newer):
    """Process numbers of different hosts have nothing to do with each other."""
    newer.event("cudaMalloc", T0, 1, node="n1")
    newer.event("cudaFree", T0 + SECOND, 1, node="n2")

    with pytest.raises(RecordingError, match="holds events of 2 hosts") as error:
        read(newer)
    assert error.value.hint == "name one with --host: n1, n2"
    with pytest.raises(RecordingError, match="holds nothing of n3"):
        read(newer, host="n3")

    (call,) = of(CudaCall, newer, host="n2")
    assert (call.api, call.start_ktime_ns) == (APIS_BY_NAME["cudaFree"].number, T0 + SECOND)


def test_only_so_many_rows_are_read(database, monkeypatch):
    """The first ones, and that is said."""
    for number in range(5):
        database.event("cudaMalloc", T0 + 5 * number, 1)
    monkeypatch.setattr(rows, "MAX_ROWS", 3)
    monkeypatch.setattr(ingero_capture, "MAX_ROWS", 3)

    events, tally = read(database)

    starts = [event.start_ktime_ns for event in events if isinstance(event, CudaCall)]
    assert starts == [T0, T0 + 5, T0 + 10]
    assert "Only the first 3 of 5 rows were looked at." in tally.notes


def test_what_waits_for_its_turn_is_bounded(database, monkeypatch):
    """Of a file in which nothing ever ends, not everything is held."""
    for number in range(9):
        database.event("cudaMalloc", T0 + number, 1_000 - number, tid=100 + number)
    monkeypatch.setattr(ingero_capture, "_MAX_WAITING", 3)

    assert len(of(CudaCall, database)) == 9


def test_the_tables_own_conclusions_are_not_imported(database):
    """They are counted, like all that has no place here."""
    database.event("cudaMalloc", T0, 1)
    database.insert("causal_chains", id="c1", summary="123 sched_switch events")

    assert read(database)[1].left_out == {"causal chains: the tool's own conclusions": 1}


@pytest.mark.parametrize(
    "table",
    [
        *("stack_traces", "causal_chains", "ops", "schema_info", "system_snapshots", "sessions"),
        *("process_names", "event_aggregates", "cgroup_metadata"),
    ],
)
def test_every_other_table_may_be_missing(database, table):
    """Older versions lack some."""
    database.event("cudaMalloc", T0, 1, cgroup_id=3)
    database.run(f"DROP TABLE {table}")

    assert len(of(CudaCall, database)) == 1


def test_a_database_without_events_is_none_of_this_tool(database):
    """The message says what it lacks."""
    database.run("DROP TABLE events")

    with pytest.raises(RecordingError, match=r"lacks the table events$") as error:
        read(database)
    assert error.value.hint == "it is of another tool, or of a version that is not known here"


def test_an_empty_capture_is_a_capture(database):
    """There was nothing to be seen."""
    database.insert("sessions", started_at=T0, stopped_at=T0 + SECOND)

    events, tally = read(database)

    assert [type(event) for event in events] == [Capture, Clock]
    assert events[0].ktime_ns == T0
    assert +tally.taken == Counter()

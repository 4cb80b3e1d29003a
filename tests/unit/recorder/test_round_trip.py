"""What is written is read back: activities, their order, chains and incidents."""

import json
import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_gpu import pipeline, wire
from otel_gpu.capture.recording import read_recording
from otel_gpu.enrich.activities import PressureActivity, ResourceActivity, WhoActivity
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.enrich.identity.identities import Culprit, DeviceIdentity, Program, Resource, Who
from otel_gpu.enrich.thread_times import Wait
from otel_gpu.explain.explainer import Explainer
from otel_gpu.recorder.limits import StoreLimits
from otel_gpu.recorder.reader import StoreReader
from otel_gpu.recorder.recorder import open_writer
from otel_gpu.wire.probe_table import Api
from tests.activities import (
    APIS_BY_NAME,
    H100,
    SECOND,
    T0,
    blocks,
    call,
    call_stack,
    calls,
    capture,
    copies,
    counters,
    device_fault,
    ended,
    fork,
    forks,
    gap,
    holder,
    image,
    line_stack,
    open_call,
    out_of_memory,
    probes,
    sample,
    snapshot,
    stall,
    status,
    thread_time,
    times,
)
from tests.activities import (
    totals as said,
)
from tests.adapters import fabric, port
from tests.replay.make_recordings import recording_path
from tests.scenarios.all_scenarios import SCENARIOS
from tests.unit.cli.commands import starved
from tests.unit.recorder.stores import (
    MIB,
    as_kept,
    ask,
    causes_of,
    hand_on,
    kept_chains,
    read,
    report_of,
    without_images,
    write,
)

MS = 1_000_000
STACK = ("anon_pipe_read", "vfs_read", "ksys_read")
TRAINER = image(42)
WORKER = Program(
    77,
    6 * SECOND,
    "pt_data_worker",
    T0 + 6 * SECOND,
    {
        "service.name": "loader",
        "process.command_args": ("python3", "-c", "x"),
        "container.id": "c0ffee",
        "process.parent_pid": 42,
        "share": 0.5,
        "flags": (True, False),
    },
)

SHARE = Resource(
    "file", "/data/é.bin", "nfs4", "/data", is_remote=True, peers=(7, 8), source="h:/x"
)
FEEDER = Culprit(42, 43, "feeder")
PIPE = Wait(5, FEEDER, Culprit(77, 77, "☃"), wire.STATE_BLOCKED, "sleep", Resource("pipe", ""))
SLOW_DISK = Wait(0, None, None, wire.STATE_NONE, "", SHARE)
HOG = Wait(3, Culprit(9, 0, ""), None, wire.STATE_NONE, "", None)
GAP = (wire.STATE_BLOCKED, wire.CONTEXT_GAP)

# As a view has it.
KEPT_BY_FEEDER = ("feeder", 42, "cudaStreamSynchronize", "☃", 77, "blocked", "sleep", "pipe")


def waits(at_s, ns):
    """The time account of two processes, of which one waits for the other, for a file and for a CPU."""
    return times(
        at_s,
        thread_time(TRAINER, wire.STATE_ON_CPU, wire.CONTEXT_GAP, ns, ended_ns=ns),
        thread_time(TRAINER, *GAP, ns + 5, count=2, reason="ipc"),
        thread_time(TRAINER, *GAP, 0, count=2, reason="ipc", ended_ns=ns, wait=PIPE),
        thread_time(WORKER, wire.STATE_RUN_QUEUE, wire.CONTEXT_OTHER, 0, ended_ns=1, wait=HOG),
        thread_time(WORKER, *GAP, 0, reason="io", ended_ns=2 * ns, wait=SLOW_DISK),
        thread_time(WORKER, *GAP, 0, reason="ipc", ended_ns=2 * ns, wait=PIPE),
    )


def memory_map(blocks, segments=(), left_out=0):
    return {
        "segments": list(segments),
        "blocks": blocks,
        "left_out": left_out,
        "smallest_bytes": 0,
    }


def memory(at_s, size=3 * MIB):
    """Readings of two devices, with and without a stack, and a request that failed."""
    there, api = (1 << 64) - 7, APIS_BY_NAME["cudaMalloc"].number
    held = (
        (5, holder(size), line_stack(12)),
        (there, holder(-4, 0, size)._replace(large_live_bytes=0), None),
    )
    where = memory_map([(1 << 47, 512, there)], segments=[(1 << 47, size)], left_out=3)
    return [
        blocks(TRAINER, at_s, said(size, 2 * size, unequal=2), held),
        blocks(TRAINER, at_s, None, held[:1], number=1, device=None),
        out_of_memory(
            TRAINER, at_s, 1 << 40, stack=line_stack(40), map=where, stacks={there: line_stack(61)},
            root_start_ktime_ns=9 * SECOND, user_stack=(1 << 64) - 9, device_total_bytes=1 << 34,
        ),
        out_of_memory(WORKER, at_s, size, source=2, api=api),
    ]  # fmt: skip


def everything():
    """One activity of each kind, and two of some."""
    unknown = Api(99, "unknown_api_99", wire.LAYER_RUNTIME, wire.FAMILY_OTHER)
    future = call(TRAINER, "cudaMalloc", 12 * SECOND, MS)
    future = future._replace(api=unknown, event=future.event._replace(api=99))
    return [
        capture(),
        probes(9, "/usr/lib/libcudart.so.13", symbols=12, exported=80),
        snapshot(10, calls(TRAINER, "cudaMalloc", [100, 300], size_bytes=64), forks(TRAINER, 3)),
        times(10, thread_time(TRAINER, wire.STATE_ON_CPU, wire.CONTEXT_GAP, 5 * MS)),
        waits(10, 7 * MS),
        WhoActivity(
            T0 + 10 * SECOND, Who(9, 0, "hog", "hog --all", "c0", "p0", "hog.service", "me")
        ),
        WhoActivity(T0 + 10 * SECOND, Who(42, 43, "python3", function="naïve ☃")),
        ResourceActivity(T0 + 10 * SECOND, SHARE, 3),
        counters(10, lost_no_entry=2, probe_entries=7),
        status(10, cpu_ns=5, rss_bytes=6, rejected={"short": 1}, dropped={}),
        device_fault(10, 79, process=TRAINER, message="naïve ☃", times=3),
        device_fault(10, 48, reported_by="nvml"),
        PressureActivity(T0 + 10 * SECOND, {"load1": 0.5, "cpus": 2, "cgroups": {}}),
        call(
            TRAINER,
            "cudaMemcpy",
            11 * SECOND,
            2 * MS,
            device=H100,
            grid=(1, 2, 3),
            block=(4, 5, 6),
            address=(1 << 64) - 1,
            status=-3,
            comm="naïve ☃",
        ),
        future,
        stall(
            WORKER,
            11 * SECOND,
            11 * SECOND + MS,
            11 * SECOND + 3 * MS,
            reason="ipc",
            functions=STACK,
            argument=(1 << 64) - 100,
            waker_comm="x",
        ),
        stall(WORKER, 11 * SECOND, 11 * SECOND, 12 * SECOND),
        stall(
            WORKER,
            11 * SECOND,
            12 * SECOND,
            12 * SECOND,
            reason="io",
            resource=Resource(
                *("file", "/data/naïve ☃", "nfs4", "/data", True), source="store:/a", peers=(7, 8)
            ),
        ),
        WhoActivity(
            T0 + 12 * SECOND,
            Who(900, 0, "hog", "hog --all", "c0ffee", "5ac0", "hog.service", "ada"),
        ),
        WhoActivity(T0 + 12 * SECOND, Who(WORKER.pid, 901, "python", function="_feed")),
        gap(TRAINER, "cudaMalloc", "cudaFree", 12 * SECOND, 13 * SECOND),
        call(TRAINER, "cudaLaunchKernel", 12 * SECOND, MS, kernel="add<float>", function=1 << 63),
        call(WORKER, "cuLaunchKernel", 12 * SECOND, MS, function=7),
        call(WORKER, "cuLaunchKernel", 12 * SECOND, MS, kernel="add<float>", function=8),
        fork(TRAINER, WORKER, 12 * SECOND, 13 * SECOND),
        open_call(TRAINER, "cudaStreamSynchronize", 5 * SECOND, 14 * SECOND, device=H100),
        sample(
            TRAINER,
            14 * SECOND,
            20 * MS,
            functions=STACK,
            stack=call_stack(),
            in_call="cudaMalloc",
        ),
        sample(WORKER, 14 * SECOND, user_stack=(1 << 64) - 1, cpu=7, tid=901, comm="naïve ☃"),
        *memory(14),
        snapshot(
            15,
            calls(TRAINER, "cudaMalloc", [100, 300, 500], size_bytes=96),
            copies(WORKER, [4_096], device=DeviceIdentity(1, None, None)),
        ),
        waits(15, 9 * MS),
        ResourceActivity(T0 + 15 * SECOND, SHARE, 8),
        counters(15, lost_no_entry=3, probe_entries=7),
        ended(WORKER, 16, exit_code=9),
        ended(TRAINER, 16, exit_code=None),
        snapshot(17),
    ]


def test_every_kind_of_activity_is_read_back(tmp_path):
    """Each field of each kind, in the order in which they were seen."""
    written = everything()

    found = read(write(tmp_path / "store.db", written))

    assert list(map(without_images, found)) == list(map(without_images, written))


def test_processes_have_the_names_that_became_known_last(tmp_path):
    """An image that was known by its thread's name only is shown with its service later on."""
    early = Program(42, 5 * SECOND, "python3", T0, {"service.name": "python3"})
    written = [
        capture(),
        call(early, "cudaMalloc", 10 * SECOND, MS),
        call(TRAINER, "cudaMalloc", 11 * SECOND, MS),
    ]

    found = read(write(tmp_path / "store.db", written))

    assert [activity.process.service_name for activity in found[1:]] == ["trainer", "trainer"]
    assert found[1].process is found[2].process


def recordings():
    paths = [scenario.recording for scenario in SCENARIOS.values() if scenario.recording.exists()]
    return [*paths, *map(recording_path, ("training", "neighbours", "strangers"))]


@pytest.mark.parametrize("path", recordings(), ids=lambda path: path.stem)
def test_a_recording_is_told_the_same_from_a_store(path, tmp_path):
    """What explains activities cannot tell where they come from."""
    written = []
    pipeline.process(read_recording(path), Enricher(), [written.append], Counter())

    found = read(write(tmp_path / "store.db", written, StoreLimits(batch_rows=17)))

    assert report_of(found) == report_of(written)


ops = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("call", "stall", "gap", "fork", "open", "sample", "exit", "read", "count"),
                *("load", "who", "sent", "held", "failed"),
            ]
        ),
        st.sampled_from([TRAINER, WORKER, image(9, 7 * SECOND, "other")]),
        st.integers(1, 10 * SECOND),
        st.integers(0, SECOND),
    ),
    max_size=60,
)


def make(op, number, totals):
    kind, process, start, duration = op
    end = start + duration
    # Nobody is read long after its end.
    at_s = 20 + number / 20
    totals[process] = totals.get(process, 0) + duration
    state = (wire.STATE_BLOCKED, wire.CONTEXT_GAP, totals[process])
    makers = {
        "call": lambda: call(process, "cudaMalloc", start, duration, device=H100),
        "stall": lambda: stall(
            process, start, start + duration // 2, end, functions=STACK, reason="io"
        ),
        "gap": lambda: gap(process, "cudaMalloc", "cudaFree", start, end),
        "fork": lambda: fork(process, image(1_000 + number, start), start, end),
        "open": lambda: open_call(process, "cudaMalloc", start, end),
        "sample": lambda: sample(process, start, duration, functions=STACK, stack=call_stack()),
        "exit": lambda: ended(process, at_s),
        "read": lambda: snapshot(at_s, calls(process, "cudaMalloc", [5] * (number + 1))),
        "count": lambda: counters(at_s, lost_no_entry=number),
        "load": lambda: times(
            at_s,
            thread_time(process, *state, reason="io", count=number + 1),
            thread_time(process, *state, reason="io", count=number + 1, wait=PIPE),
            thread_time(process, *GAP, 0, reason="io", ended_ns=number + 1, wait=SLOW_DISK),
        ),
        "who": lambda: WhoActivity(
            T0 + round(at_s * SECOND), Who(process.pid, 0, process.comm, str(number))
        ),
        "held": lambda: blocks(
            process,
            at_s,
            said(number) if number % 3 else None,
            [(n, holder(number), line_stack(n)) for n in range(number % 4)],
            number=number % 2,
        ),
        "failed": lambda: out_of_memory(process, at_s, number, map=memory_map([(1, 2, number)])),
        "sent": lambda: ResourceActivity(T0 + round(at_s * SECOND), SHARE, number),
    }
    return makers[kind]()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(ops, st.integers(1, 9), st.integers(1, 30))
def test_any_stream_is_read_back(tmp_path, ops, batch_rows, chunk_rows):
    """However it is cut into batches and chunks."""
    totals = {}
    written = [capture(), *(make(op, number, totals) for number, op in enumerate(ops))]
    path = tmp_path / f"{os.urandom(8).hex()}.db"

    found = read(write(path, written, StoreLimits(batch_rows=batch_rows, chunk_rows=chunk_rows)))

    assert list(map(without_images, found)) == list(map(without_images, written))


def test_chains_and_incidents_are_kept_whole(tmp_path):
    """With all of their causes, the causes of those, and the evidence for them."""
    recording = starved.write(tmp_path / "starved.otelgpu")
    activities = []
    pipeline.process(read_recording(recording), Enricher(), [activities.append], Counter())
    explainer = Explainer()
    chains = [chain for activity in activities for chain in explainer.push(activity)]
    chains += explainer.close()
    incidents = list(explainer.closed_incidents())
    path = write(tmp_path / "store.db", activities, blame=True)

    assert [len(chains), len(incidents)] == [2, 2]
    assert kept_chains(path) == [
        (chain.id, row_of(chain), as_kept(chain.causes)) for chain in chains
    ]
    assert any(cause.via for chain in chains for cause in chain.causes)
    kept = ask(
        path, "SELECT seq, id, severity, lost_ns, effects, advice FROM incidents ORDER BY seq"
    )
    assert [(*row[1:-1], json.loads(row[-1]), causes_of(path, row[0])) for row in kept] == [
        (one.id, one.severity, one.lost_ns, one.effects, list(one.advice), as_kept(one.causes))
        for one in incidents
    ]
    assert ask(path, "SELECT chain_id FROM incident_chains ORDER BY chain_id") == sorted(
        (chain.id,) for chain in chains
    )


def row_of(chain):
    effect = chain.effect
    return (
        *(effect.kind, effect.api, effect.process.pid, effect.tid, effect.start_unix_ns),
        *(effect.duration_ns, effect.excess_ns, effect.trace_id.hex(), effect.span_id.hex()),
        *(chain.unexplained_ns, chain.severity),
    )


def test_views_have_names_for_people(tmp_path):
    """One question to each of them, with its answer."""
    path = write(tmp_path / "store.db", everything())

    assert ask(
        path, "SELECT time, api, service, duration_ms, error, device_model FROM v_calls"
    ) == [
        ("2027-01-15T08:00:11.000000000Z", "cudaMemcpy", "trainer", 2.0, "error -3", H100.model),
        ("2027-01-15T08:00:12.000000000Z", "unknown_api_99", "trainer", 1.0, "", None),
        ("2027-01-15T08:00:12.000000000Z", "cudaLaunchKernel", "trainer", 1.0, "", None),
        *[("2027-01-15T08:00:12.000000000Z", "cuLaunchKernel", "loader", 1.0, "", None)] * 2,
    ]
    assert ask(path, "SELECT kernel, api, service FROM v_launches") == [
        ("add<float>", "cudaLaunchKernel", "trainer"),
        ("add<float>", "cuLaunchKernel", "loader"),
    ]
    assert ask(path, "SELECT reason, blocked_ms, run_queue_ms, functions FROM v_stalls") == [
        ("ipc", 1.0, 2.0, json.dumps(STACK, separators=(",", ":"))),
        ("", 0.0, 1_000.0, "[]"),
        ("io", 1_000.0, 0.0, "[]"),
    ]
    assert ask(path, "SELECT waited_for, waited_for_name FROM v_stalls") == [
        *[("", "")] * 2,
        ("file", "/data/naïve ☃"),
    ]
    assert ask(path, "SELECT after_call, before_call, chosen_for FROM v_gaps") == [
        ("cudaMalloc", "cudaFree", "slow")
    ]
    assert ask(path, "SELECT service, child_service, child_pid FROM v_forks") == [
        ("trainer", "loader", 77)
    ]
    assert ask(path, "SELECT api, age_ms FROM v_open_calls") == [("cudaStreamSynchronize", 9_000.0)]
    assert ask(
        path,
        "SELECT time, weight_ms, service, tid, thread, place, context, in_call, functions, cpu "
        "FROM v_samples",
    ) == [
        (
            *("2027-01-15T08:00:14.000000000Z", 20.0, "trainer", 42, "trainer"),
            *("train.py:74 fragmentation_pattern", "call", "cudaMalloc"),
            *(json.dumps(STACK, separators=(",", ":")), 0),
        ),
        (
            *("2027-01-15T08:00:14.000000000Z", 10.0, "loader", 901, "naïve ☃"),
            *("", "gap", "", "[]", 7),
        ),
    ]
    assert ask(path, "SELECT api, calls, total_ms, stored FROM v_counts") == [
        ("cudaMalloc", 3, 0.0009, 0)
    ]
    assert ask(path, "SELECT metric, what, count, sum, unit FROM v_series WHERE seq = 8") == []
    assert ask(path, "SELECT metric, what, sum(count), sum(sum) FROM v_series GROUP BY metric") == [
        ("call_duration", "cudaMalloc", 3, 900),
        ("copy_size", "", 1, 4_096),
        ("fork", "", 3, 0),
    ]
    assert ask(
        path,
        "SELECT state, context, reason, who_comm, who_pid, api, end_comm, end_pid, end_state, end_reason, "
        "waited_for, sum(time_ms), sum(ended_ms) FROM v_thread_times "
        "GROUP BY pid, 1, 2, 3, 4 ORDER BY pid, 1, 3, 4",
    ) == [
        ("blocked", "gap", "ipc", None, None, "", None, None, "", "", "", 9.000005, 0.0),
        ("blocked", "gap", "ipc", *KEPT_BY_FEEDER, 0.0, 9.0),
        ("on_cpu", "gap", "", None, None, "", None, None, "", "", "", 9.0, 9.0),
        ("blocked", "gap", "io", None, None, "", None, None, "", "", "file /data/é.bin", 0.0, 18.0),
        ("blocked", "gap", "ipc", *KEPT_BY_FEEDER, 0.0, 18.0),
        (
            "run_queue",
            "other",
            "",
            "",
            9,
            "cudaLaunchCooperativeKernel",
            None,
            None,
            "",
            "",
            "",
            0.0,
            0.000001,
        ),
    ]
    assert ask(path, "SELECT comm, command, unit FROM identities WHERE pid = 9") == [
        ("hog", "hog --all", "hog.service")
    ]
    assert ask(path, "SELECT waited_for ->> 'name', max(retransmits) FROM connections") == [
        ("/data/é.bin", 8)
    ]
    assert ask(path, "SELECT place, reason, count FROM v_losses") == [
        ("kernel side", "no_entry", 3)
    ]
    assert ask(path, "SELECT load1, cpus FROM v_pressure") == [(0.5, 2)]


def test_the_view_of_losses_has_every_reason_that_reports_have(tmp_path):
    """Losses of the kernel side, errors, and unread devices, memory and files, of each capture."""
    lost = {
        "errors": {"stacks": 2},
        "skipped": {"explain": 3},
        "devices": {"nvml_failed": 5},
        "preload": {"preload_unread": 7},
        "files": {"file_unread": 11, "end_unread": 0},
    }
    more = lost | {"files": {"file_unread": 13, "end_unread": 17}}
    stream = [
        *(capture(), counters(1, lost_no_entry=3), status(1, **lost, still_running=1)),
        *(counters(2, lost_no_entry=4), status(2, **more, still_running=2)),
        *(
            capture(unix_ns=T0 + SECOND),
            status(3, **lost, rejected={"short": 23}, dropped={"queue_full": 29}),
        ),
    ]

    found = ask(write(tmp_path / "store", stream), "SELECT place, reason, count FROM v_losses")

    assert sorted(found) == [
        ("agent", "end_unread", 17),
        ("agent", "error_stacks", 4),
        ("agent", "file_unread", 24),
        ("agent", "nvml_failed", 10),
        ("agent", "preload_unread", 14),
        ("agent", "skipped_explain", 6),
        ("agent", "still_running", 2),
        ("kernel side", "no_entry", 4),
    ]


def test_what_network_adapters_counted_is_kept_and_asked_for(tmp_path):
    """A window begins with the reading before it."""
    readings = [fabric(n, port(out_of_sequence=n, np_cnp_sent=7)) for n in (11, 12, 13)]
    path = write(tmp_path / "store", [capture(), *readings])

    assert read(path)[1:] == readings
    assert ask(
        path,
        "SELECT adapter, port, state, value FROM v_fabric_readings "
        "WHERE counter = 'out_of_sequence' ORDER BY seq",
    ) == [("mlx5_0", 1, "active", n) for n in (11, 12, 13)]


def test_chains_and_incidents_have_views(tmp_path):
    """The first cause stands beside its effect."""
    recording = starved.write(tmp_path / "starved.otelgpu")
    activities = []
    pipeline.process(read_recording(recording), Enricher(), [activities.append], Counter())
    path = write(tmp_path / "store.db", activities, blame=True)

    assert ask(path, "SELECT kind, api, cause, culprit_comm, excess_ms > 100 FROM v_chains") == [
        ("slow_call", "cudaLaunchKernel", "preemption", "cc1plus", 1),
        ("slow_gap", "cudaMemcpy", "ipc", "pt_data_worker", 1),
    ]
    assert {row[0] for row in ask(path, "SELECT cause FROM v_incidents")} == {"preemption", "ipc"}
    assert ask(path, "SELECT count(*) FROM evidence")[0][0] > 2


def test_a_percentile_of_a_span_of_time_is_a_question(tmp_path):
    """Buckets and their middles are tables, so SQL can do what explain does."""
    path = write(tmp_path / "store.db", everything())

    (row,) = ask(
        path,
        """
        WITH counted AS (
          SELECT CAST(j.key AS INTEGER) AS bucket, sum(j.value) AS n
          FROM aggregates a JOIN series s ON s.series = a.series AND s.metric = 1,
            json_each(a.buckets) j GROUP BY bucket)
        SELECT round(b.middle) FROM counted c
          JOIN buckets b ON b.bucket = c.bucket AND b.quantity = 'duration'
        WHERE (SELECT sum(n) FROM counted WHERE bucket <= c.bucket) >=
          0.5 * (SELECT sum(n) FROM counted) ORDER BY c.bucket LIMIT 1
        """,
    )

    assert 270 < row[0] < 330


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(data=st.data())
def test_a_damaged_stream_is_kept_as_far_as_it_makes_sense(tmp_path, data):
    """
    Records in any order with any bytes changed: what enrich makes of them is read back, or
    mended where SQLite cannot hold it, and nothing stops the writer.
    """
    damaged = []
    for record in data.draw(st.permutations(list(starved.tell()))):
        place = data.draw(st.integers(min_value=8, max_value=len(record) - 1))
        byte = data.draw(st.sampled_from([record[place], 0, 1, 127, 128, 255]))
        damaged.append(record[:place] + bytes([byte]) + record[place + 1 :])
    activities = []
    pipeline.process([damaged], Enricher(), [activities.append], Counter())
    path = tmp_path / f"{os.urandom(8).hex()}.db"
    explainer = Explainer()
    with open_writer(path, StoreLimits(batch_rows=7, chunk_rows=9), live=False) as writer:
        for activity in activities:
            writer.observe(activity)
            hand_on(writer, explainer, explainer.push(activity))
        hand_on(writer, explainer, explainer.close())
        assert set(writer.lost()) <= {"process_not_followed"}

    with StoreReader(path) as reader:
        found = list(reader.activities())
        rejected = dict(reader.rejected)

    assert len(found) + sum(rejected.values()) <= len(activities)
    report_of(found)

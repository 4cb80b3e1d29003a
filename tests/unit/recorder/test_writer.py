"""The writer: what it loses it counts, and it never waits for a disk while live."""

import threading
from collections import Counter

import pytest

from benchmarks.days import day
from otel_gpu import wire
from otel_gpu.config import Config
from otel_gpu.enrich.activities import CaptureActivity, PressureActivity
from otel_gpu.enrich.ids import NO_SEED
from otel_gpu.explain.chains import Cause, Chain, Culprit, Effect, Incident
from otel_gpu.recorder import names, processes
from otel_gpu.recorder.limits import StoreLimits
from otel_gpu.recorder.lock import read_lock
from otel_gpu.recorder.losses import describe_losses
from otel_gpu.recorder.reader import StoreReader
from otel_gpu.recorder.recorder import open_writer
from otel_gpu.recorder.rows import chains as blame
from otel_gpu.recorder.writer import StoreWriter
from otel_gpu.wire.frames import Frame
from otel_gpu.wire.histogram_layout import layout_description
from tests.activities import (
    SECOND,
    T0,
    call,
    call_stack,
    calls,
    capture,
    image,
    snapshot,
    stall,
)
from tests.unit.recorder.stores import as_kept, ask, kept_chains, read, write

MS = 1_000_000
NEVER = 1 << 63
TRAINER = image(42)
FIRST = dict.fromkeys(
    ("seq", "chunks", "writers", "captures", "processes", "devices", "stacks", "series", "probes"),
    1,
)


class Disk:
    """A journal that is as busy as it is told."""

    def __init__(self):
        self.ready = True
        self.batches = []
        self.lost = Counter(disk_full=1)

    def is_ready(self):
        return self.ready

    def put(self, batch):
        self.batches.append(batch)

    def close(self, timeout_s):
        return True


def some_calls(count, first=0):
    return [call(TRAINER, "cudaMalloc", SECOND + n * MS, MS) for n in range(first, first + count)]


def writer_to(disk, limits, *, live, reach=lambda _: NEVER):
    return StoreWriter(disk, limits, FIRST, live=live, reach=reach)


def observe(writer, activities):
    for activity in activities:
        writer.observe(activity)


def test_rows_leave_in_batches():
    """When there are enough of them, and at the end."""
    disk = Disk()
    writer = writer_to(disk, StoreLimits(batch_rows=10), live=False)

    observe(writer, some_calls(25))
    before = [batch.count for batch in disk.batches]
    writer.close()

    assert before == [10, 10]
    assert [batch.count for batch in disk.batches] == [10, 10, 5]
    assert [batch.extent[:2] for batch in disk.batches] == [(1, 10), (11, 20), (21, 25)]


def test_memory_is_bounded_in_bytes_while_a_disk_is_busy():
    """Rows with large documents, and stacks, are not counted by their number only."""
    disk = Disk()
    disk.ready = False
    limits = StoreLimits(max_bytes=16 << 20, waiting_bytes=300_000)
    writer = writer_to(disk, limits, live=True)

    for number in range(29):
        writer.observe(PressureActivity(T0 + number, {"x": "y" * 20_000}))

    # When fifteen of them wait, the limit is reached.
    assert writer.lost() == {"disk_full": 1, "disk_too_slow": 15}


def test_stacks_that_wait_for_a_busy_disk_are_bounded(monkeypatch):
    """Each call has another one; the latest are kept."""
    monkeypatch.setattr(names, "MAX_PENDING_BYTES", 100_000)
    disk = Disk()
    disk.ready = False
    writer = writer_to(disk, StoreLimits(), live=True)

    for number in range(1, 998):
        frames = tuple(Frame("native", f"f{number}", module="x" * 500) for _ in range(7))
        writer.observe(
            call(TRAINER, "cudaMalloc", number * MS, MS, stack=call_stack(number, frames))
        )
    assert writer._names.pending.bytes <= 100_000
    disk.ready = True
    writer.close()

    ids = [row[3] for table, _, row in disk.batches[0].pending if table == "stacks"]
    assert 10 < len(ids) < 30
    assert ids[-1] == f"{997:016x}"
    # The process is there too.
    assert writer.lost() == {"disk_full": 1, "names_disk_too_slow": 997 - len(ids)}


def test_large_stacks_make_small_batches():
    """They go through the log with the calls that they are of."""
    disk = Disk()
    limits = StoreLimits(max_bytes=16 << 20)
    writer = writer_to(disk, limits, live=False)

    for number in range(1, 102):
        frames = (Frame("native", f"f{number}", module="x" * 500),) * 20
        writer.observe(
            call(TRAINER, "cudaMalloc", number * MS, MS, stack=call_stack(number, frames))
        )

    sizes = [batch.bytes + batch.pending.bytes for batch in disk.batches]
    assert len(sizes) > 5
    assert max(sizes) < 2 * limits.batch_bytes


def test_large_rows_make_small_batches():
    """So that the size limit holds within one of them."""
    disk = Disk()
    limits = StoreLimits(max_bytes=16 << 20)
    writer = writer_to(disk, limits, live=False)

    for number in range(10):
        writer.observe(PressureActivity(T0 + number, {"x": "y" * 50_000}))

    assert [batch.count for batch in disk.batches] == [3, 3, 3]
    assert all(batch.bytes < 2 * limits.batch_bytes for batch in disk.batches)


def test_while_live_a_batch_leaves_when_it_is_old(monkeypatch):
    """A second after the one before, however few rows there are."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    disk = Disk()
    writer = writer_to(disk, StoreLimits(), live=True)

    observe(writer, some_calls(3))
    assert disk.batches == []
    now[0] += 1.0
    observe(writer, some_calls(1))

    assert [batch.count for batch in disk.batches] == [4]


def test_what_a_busy_disk_has_no_time_for_is_lost_and_counted():
    """Memory is bounded; the capture goes on, and so do names."""
    disk = Disk()
    disk.ready = False
    writer = writer_to(disk, StoreLimits(batch_rows=10, waiting_rows=30), live=True)

    observe(writer, [capture(), *some_calls(75)])
    assert disk.batches == []
    assert writer.lost() == {"disk_full": 1, "disk_too_slow": 60}
    disk.ready = True
    observe(writer, some_calls(1))

    (batch,) = disk.batches
    assert batch.count == 16
    assert batch.lost == {"disk_too_slow": 60}
    assert {table for table, _, _ in batch.pending} == {"captures", "buckets", "processes"}


def test_numbers_are_told_as_they_are_given():
    """So that somebody knows how far it got."""
    seen = []

    def reach(seq):
        seen.append(seq)
        return seq + 2

    observe(writer_to(Disk(), StoreLimits(), live=False, reach=reach), some_calls(8))

    assert seen == [2, 5, 8]


def test_a_thread_writes_while_the_capture_goes_on(tmp_path):
    """What it wrote is what was seen; the thread ends with the writer."""
    path = tmp_path / "store.db"
    activities = list(day(20_000, 20))
    with open_writer(path, StoreLimits(batch_rows=1_000), live=True) as writer:
        threads = [thread.name for thread in threading.enumerate()]
        for activity in activities:
            writer.observe(activity)
            # As fast as a capture could be, and not faster than a disk.
            if writer._batch.count >= 1_000:
                writer._journal._batches.join()
    lost = writer.lost()

    assert "otel-gpu-store" in threads
    assert "otel-gpu-store" not in [thread.name for thread in threading.enumerate()]
    assert lost == {}
    assert len(read(path)) == len(activities)


def test_each_batch_of_a_capture_outlives_a_power_cut(tmp_path):
    """Live, the disk is asked to have it; a replay can be made again."""
    synchronous = {}
    for live in (True, False):
        with open_writer(tmp_path / f"{live}.db", live=live) as writer:
            connection = writer._journal._connection
            (synchronous[live],) = connection.execute("PRAGMA synchronous").fetchone()

    assert synchronous == {True: 2, False: 1}


def test_numbers_beyond_what_sqlite_holds_are_mended(tmp_path):
    """A broken record does not take its batch with it."""
    broken = call(TRAINER, "cudaMalloc", SECOND, MS, blocked_ns=(1 << 64) - 1, comm="x\ud800")
    path = write(tmp_path / "store.db", [capture(), *some_calls(3), broken])

    found = read(path)

    assert found[-1].event.blocked_ns == (1 << 63) - 1
    assert found[-1].event.comm == "x?"
    assert [one.event for one in found[1:4]] == [one.event for one in some_calls(3)]


def test_a_document_that_is_too_large_is_left_out_and_counted(tmp_path):
    """The row is there, so that its time is."""
    path = tmp_path / "store.db"
    with open_writer(path, live=False) as writer:
        writer.observe(capture())
        writer.observe(PressureActivity(T0, {"cgroups": {"/x" * 200_000: {}}}))
        assert writer.lost() == {"too_large": 1}

    assert read(path)[-1] == PressureActivity(T0, {})
    with StoreReader(path) as reader:
        assert reader.losses() == {"too_large": 1}


def test_too_many_series_are_counted(tmp_path, monkeypatch):
    """Those that were there first go on."""
    monkeypatch.setattr(processes, "MAX_SERIES", 2)
    path = tmp_path / "store.db"
    apis = ("cudaMalloc", "cudaFree", "cudaMemcpy")
    with open_writer(path, live=False) as writer:
        writer.observe(capture())
        writer.observe(snapshot(10, *(calls(TRAINER, api, [5]) for api in apis)))
        assert writer.lost() == {"too_many_series": 1}

    assert [one.api.name for one in read(path)[-1].series] == ["cudaMalloc", "cudaFree"]


def chain(number, at_s=0.0, causes=()):
    effect = Effect(
        "slow_call", TRAINER, "cudaMalloc", 42, "trainer", T0 + round(at_s * SECOND), MS, MS,
        bytes(16), bytes(8),
    )  # fmt: skip
    return Chain(f"slow_call-{number}", effect, causes, 0, "low")


def test_chains_that_are_not_kept_are_counted_and_are_no_warning(tmp_path):
    """By the reason that was decided; only rows that should be there and are not are said in words."""
    path = tmp_path / "store.db"
    with open_writer(path, live=False) as writer:
        writer.limit_chains("rate", 7)
        writer.limit_chains("trace_full", 1)
        writer.observe_chain(chain(9))
        lost = writer.lost()

    assert lost == {"chains_over_rate": 7, "chains_over_trace_full": 1}
    assert list(describe_losses(lost)) == []
    assert list(describe_losses({"disk_full": 1_234} | lost)) == [
        "rows that did not reach the store: disk_full 1,234"
    ]
    with StoreReader(path) as reader:
        assert reader.losses() == lost
    assert [name for name, *_ in kept_chains(path)] == ["slow_call-9"]


def deep(levels):
    cause = Cause("ipc", 1, 0.5, Culprit(1, 2, "x"), ())
    for _ in range(levels - 1):
        cause = Cause("ipc", 1, 0.5, Culprit(1, 2, "x"), (), (cause,))
    return cause


def test_causes_of_causes_are_kept_in_their_places(tmp_path):
    """Several to one, and one below the other."""
    causes = (
        Cause("lock", 5, 0.5, None, (), (deep(2), deep(1))),
        deep(3),
        Cause("io", 1, 0.1, None, ()),
    )
    path = tmp_path / "store.db"
    with open_writer(path, live=False) as writer:
        writer.observe_chain(chain(1, causes=causes))

    ((_, _, kept),) = kept_chains(path)

    assert kept == as_kept(causes)


def test_more_causes_than_anybody_reads_are_cut(tmp_path, monkeypatch):
    """Those of the effect itself come first."""
    monkeypatch.setattr(blame, "MAX_CAUSES", 4)
    path = tmp_path / "store.db"
    with open_writer(path, live=False) as writer:
        writer.observe_chain(chain(1, causes=(deep(3), deep(3))))

    ((_, _, kept),) = kept_chains(path)

    assert kept == as_kept((deep(2), deep(2)))


def test_incidents_know_the_chains_that_were_kept(tmp_path):
    """One that was not kept is missing, and no error."""
    chains = (chain(1), chain(2))
    incident = Incident("incident-1", "high", T0, T0 + MS, MS, (), 0, ("Do less.",), chains, 2)
    path = tmp_path / "store.db"
    with open_writer(path, live=False) as writer:
        writer.observe_chain(chains[1])
        writer.observe_incident(incident)

    kept = "SELECT c.id, i.effects, i.advice FROM incidents i JOIN incident_chains l USING (seq) "
    assert ask(path, kept + "JOIN chains c ON c.id = l.chain_id") == [
        ("slow_call-2", 2, '["Do less."]')
    ]


def test_closing_twice_is_closing_once(tmp_path):
    """And the lock is free after the first."""
    writer = open_writer(tmp_path / "store.db", live=True)

    assert writer.close()
    assert writer.close()
    assert read_lock(tmp_path / "store.db") is not None


def test_a_capture_without_facts_is_one_all_the_same(tmp_path):
    """From an importer, or a recording of a later version."""
    odd = CaptureActivity(T0, {"layout": layout_description(Config())}, NO_SEED)
    path = write(tmp_path / "store.db", [odd, *some_calls(2)])

    assert ask(path, "SELECT host, boot_id, version FROM captures") == [("", "", "")]
    with StoreReader(path) as reader:
        found = list(reader.activities())
        assert reader.rejected == {}
    assert len(found) == 3


@pytest.mark.parametrize("functions", [(), ("a",), tuple(f"f{n}" for n in range(24))])
def test_stacks_are_kept_once(tmp_path, functions):
    """However many stalls have them."""
    stalls = [stall(TRAINER, n, n + 1, n + 2, functions=functions) for n in range(1, 50)]

    path = write(tmp_path / "store.db", stalls)

    assert ask(path, "SELECT count(*) FROM stacks") == [(1 if functions else 0,)]
    assert {one.functions for one in read(path)} == {functions}


def test_every_choice_can_be_asked_for_by_name(tmp_path):
    """A sum of numbers is a list of words."""
    everything = sum(wire.CHOICE_NAMES)
    path = write(tmp_path / "store.db", [call(TRAINER, "cudaMalloc", 1, 2, choices=everything)])

    assert ask(path, "SELECT chosen_for FROM v_calls") == [
        ("failed, slow, sampled, full, stalled, parent, first_use",)
    ]


def test_a_writer_that_is_renewed_counts_on(tmp_path):
    """A chunk begins in which all is named again; what was counted before is not counted twice."""
    path = tmp_path / "store.db"
    process = image()
    with open_writer(path, live=False) as writer:
        writer.observe(capture())
        for made in (7, 11, 29):
            reading = snapshot(made, calls(process, "cudaMalloc", [MS] * made))
            writer.observe(reading)
            assert writer.renew() is writer
        assert writer.close()
        assert writer.lost() == {}

    assert ask(path, "SELECT sum(calls) FROM v_counts") == [(29,)]
    assert ask(path, "SELECT count(*) FROM chunks") == [(3,)]

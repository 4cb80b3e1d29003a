"""Two captures of real GPU hosts, with the conclusions of the tool that made them."""

import json
import sqlite3
from contextlib import closing

import pytest

from otel_gpu import pipeline
from otel_gpu.config import Config
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.explain.explainer import Explainer
from otel_gpu.findings.collector import Collector
from otel_gpu.importers import open_capture
from tests.hosts import captures_folder

pytestmark = pytest.mark.captures

EMPTY_CACHE = "pytorch-173382-empty-cache.db"
STARVATION = "pytorch-dataloader-starvation.db"
OF_THE_SCHEDULER = {"preemption", "run_queue", "cpu_quota"}
NAMES = {"cudaStreamSync": "cudaStreamSynchronize", "cudaDeviceSync": "cudaDeviceSynchronize"}

# Of each minute the count of the table and, where there are more rows than it says it
# stored, the rows that it does not count. Without a table: the rows.
TRUE_COUNTS = """
    SELECT o.name, sum(a.count + max(0, a.rows - a.stored)) FROM (
        SELECT source, op, count, stored, (
            SELECT count(*) FROM events e WHERE e.source = a.source AND e.op = a.op
            AND e.pid = a.pid AND e.timestamp / 60000000000 * 60000000000 = a.bucket
        ) AS rows FROM event_aggregates a WHERE source IN (1, 4)
    ) a JOIN ops o ON o.source_id = a.source AND o.op_id = a.op GROUP BY 1"""
OVERLAP = """
    SELECT ifnull(sum(min(timestamp, :end) - max(timestamp - duration, :start)), 0) FROM events
    WHERE source = 3 AND op = 1 AND tid = :tid AND timestamp > :start
    AND timestamp - duration < :end"""


class Imported:
    """One capture, taken all the way to a report."""

    def __init__(self, name):
        self.path = captures_folder() / "ingero" / name
        with open_capture("ingero", self.path, Config()) as capture:
            collector = Collector(Explainer(), rejected=capture.tally.rejected)
            pipeline.process_events(capture.events(), Enricher(), [collector.observe])
            self.tally = capture.tally
            self.report = collector.finish(name, self.tally.notes)

    def ask(self, query, parameters=()):
        """What the database itself says."""
        uri = f"{self.path.as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            return connection.execute(query, parameters).fetchall()

    def off_cpu_ns(self, effect):
        """How long the thread of an effect was off the CPU within it, as the rows say."""
        start = effect.start_unix_ns
        window = {"tid": effect.tid, "start": start, "end": start + effect.duration_ns}
        ((overlap_ns,),) = self.ask(OVERLAP, window)
        return overlap_ns


@pytest.fixture(scope="module")
def empty_cache():
    return Imported(EMPTY_CACHE)


@pytest.fixture(scope="module")
def starvation():
    return Imported(STARVATION)


@pytest.fixture(params=["empty_cache", "starvation"])
def imported(request):
    return request.getfixturevalue(request.param)


def test_every_call_is_counted(imported):
    """As often as the database says, for every API."""
    expected = {NAMES.get(name, name): count for name, count in imported.ask(TRUE_COUNTS)}

    assert {row.api: row.calls for row in imported.report.apis} == expected


def test_the_counts_of_the_first_capture(empty_cache):
    """The table alone says 31,074 launches: of 906 rows the count was written over."""
    assert {row.api: row.calls for row in empty_cache.report.apis} == {
        "cudaLaunchKernel": 31_980,
        "cuLaunchKernel": 33_024,
        "cudaMemcpyAsync": 979,
        "cudaStreamSynchronize": 408,
        "cudaFree": 54,
        "cuMemAlloc": 53,
        "cudaMalloc": 51,
    }


def test_the_counts_of_the_second_capture(starvation):
    """Here nothing was written over."""
    assert {row.api: row.calls for row in starvation.report.apis} == {
        "cuLaunchKernel": 75,
        "cudaLaunchKernel": 30,
        "cudaMemcpyAsync": 21,
        "cudaStreamSynchronize": 21,
        "cuMemAlloc": 10,
        "cudaMalloc": 7,
        "cuCtxSynchronize": 3,
        "cudaDeviceSynchronize": 3,
    }


def test_every_row_is_accounted_for(imported):
    """Taken or left out, once; nothing was rejected."""
    ((rows,),) = imported.ask("SELECT count(*) FROM events")
    tally = imported.tally
    kinds = ("CUDA calls", "intervals off the CPU", "forks", "exits")
    others = {"causal chains: the tool's own conclusions"}

    taken = sum(tally.taken[kind] for kind in kinds)
    left_out = sum(count for what, count in tally.left_out.items() if what not in others)
    assert (taken + left_out, tally.rejected.total()) == (rows, 0)


def test_every_stack_of_a_call_is_taken(imported):
    """Each is of a call that was taken, and none of them is called complete."""
    ((stacks,),) = imported.ask("SELECT count(*) FROM stack_traces")
    effects = [chain.effect for chain in imported.report.chains]

    assert imported.tally.taken["stacks of functions"] == stacks
    assert [effect for effect in effects if effect.stack is None] == []
    assert {effect.stack.complete for effect in effects} <= {False}


def test_a_slow_call_says_where_it_was_made(empty_cache):
    """
    In the innermost Python that its row has; its line is not told, since the file has that
    of "def".
    """
    with_python = 0
    for chain in empty_cache.report.chains:
        effect = chain.effect
        found = empty_cache.ask(
            "SELECT s.frames FROM events e JOIN stack_traces s ON s.hash = e.stack_hash "
            "WHERE e.timestamp = ? AND e.duration = ? AND e.tid = ?",
            (effect.start_unix_ns, effect.duration_ns, effect.tid),
        )
        frames = [frame for (text,) in found for frame in json.loads(text)]
        python = [frame["pfn"] for frame in frames if "pfn" in frame]

        place = effect.stack.place
        assert place.line == 0
        assert (place.kind == "cpython") == bool(python)
        if python:
            with_python += 1
            assert place.function == python[0]
    assert with_python > 20


def test_nothing_is_blamed_on_the_scheduler(imported):
    """The rows do not say who had the CPU, nor that the thread could have run."""
    causes = [cause for chain in imported.report.chains for cause in chain.causes]

    assert [cause for cause in causes if cause.kind in OF_THE_SCHEDULER] == []
    assert [cause for cause in causes if cause.culprit is not None] == []
    assert imported.report.blames == ()


def test_time_off_the_cpu_is_what_the_rows_of_the_thread_say(imported):
    """Of each slow call, computed by SQL: no more, and no less."""
    for chain in imported.report.chains:
        off_cpu_ns = sum(cause.time_ns for cause in chain.causes if cause.kind == "off_cpu")
        assert off_cpu_ns == imported.off_cpu_ns(chain.effect)


def test_slow_calls_of_the_first_capture_are_not_due_to_time_off_the_cpu(empty_cache):
    """
    The tool says of the copies "123 context switches (16.91s off-CPU)": 0 of that was in a
    copy, and less than a thousandth of all slow calls was off the CPU.
    """
    ((timeline,),) = empty_cache.ask(
        "SELECT timeline FROM causal_chains WHERE cuda_op = 'cudaMemcpyAsync'"
    )
    assert "123 context switches (16.91s off-CPU)" in timeline

    effects = [chain.effect for chain in empty_cache.report.chains]
    copies = [effect for effect in effects if effect.api == "cudaMemcpyAsync"]
    assert [empty_cache.off_cpu_ns(effect) for effect in copies] == [0, 0, 0]
    assert (len(effects), sum(effect.duration_ns for effect in effects)) == (33, 381_084_582)
    assert sum(map(empty_cache.off_cpu_ns, effects)) == 329_471


def test_no_chain_of_the_second_capture_is_kept(starvation):
    """The tool made 316, all of the scheduler. No call there is far slower than its like."""
    assert starvation.ask("SELECT count(*) FROM causal_chains") == [(316,)]

    assert starvation.report.chains == ()
    assert starvation.report.incidents == ()


def test_what_bounds_the_starved_program_is_said_as_far_as_it_is_known(starvation):
    """
    The GPU is starved by what the program does between its calls. What that is, the
    capture cannot tell, and the verdict is no other; but who was started is in it.
    """
    assert starvation.report.judged == ()

    (note,) = [note for note in starvation.report.notes if note.startswith("What bounds")]
    assert note == (
        "What bounds python3 (2233) is not known for certain: in the 76.9 s in which its threads "
        "that call CUDA were seen they were inside the calls that Ingero traces for 752 ms (1 %) "
        "at most; 1.47 s of it was off the CPU. What they did otherwise was not recorded. Unless "
        "the GPU was given work by calls that Ingero does not trace, it was starved by what the "
        "program did between its calls. Meanwhile it started 3 x pt_data_worker, 1 x python3."
    )

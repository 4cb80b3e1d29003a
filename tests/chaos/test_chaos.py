"""
Anything of ours fails at any time: the capture goes on, what is lost is counted, the rest is exact.

A few hundred steps here; ``tests/soak`` plays 10,000 sequences. ``OTEL_GPU_TEST_CHAOS`` says how
many are played here.
"""

import contextlib
import logging
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from otel_gpu import pipeline
from otel_gpu.capture import session as session_module
from otel_gpu.capture.maps.kernel_stacks import KernelStacks
from otel_gpu.capture.processes import stale_entries as leftovers_module
from otel_gpu.capture.processes import watchlist as watchlist_module
from otel_gpu.capture.schedule import Schedule
from otel_gpu.capture.session import Session
from otel_gpu.cli import flight_recorder as recorder_module
from otel_gpu.cli.flight_recorder import live_store
from otel_gpu.config import load
from otel_gpu.enrich.activities import AggregatesActivity, CallActivity, CountersActivity
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.export.exports import Exports, open_exports
from otel_gpu.faults import Faults, Isolated
from otel_gpu.recorder.limits import StoreLimits
from otel_gpu.recorder.reader import StoreReader
from tests.chaos.injection import ERRORS, Injection
from tests.chaos.kernel_side import KernelSide
from tests.kernel.agent import wait_until

SEQUENCES = int(os.environ.get("OTEL_GPU_TEST_CHAOS", "15"))
STEPS = 25
# Where a disk is not what takes the time.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
# What fails, and where that may be counted.
STORE = {"store", "store.journal"}
PLACES = {
    "otel_gpu.recorder.writer:StoreWriter.observe": STORE,
    "otel_gpu.recorder.writer:StoreWriter._hand_over": STORE,
    "otel_gpu.recorder.writer:StoreWriter._next_seq": STORE,
    "otel_gpu.recorder.names:StoredNames.follow": STORE,
    "otel_gpu.recorder.journal:Background.is_ready": STORE,
    "otel_gpu.recorder.journal:Background.put": STORE,
    "otel_gpu.recorder.journal:Journal._transact": STORE,
    "otel_gpu.recorder.eviction:Eviction.free": STORE,
    "otel_gpu.recorder.journal:Journal._keep_books": STORE,
    "otel_gpu.export.exports:Exports.observe": {"export"},
    "otel_gpu.export.spans.activity_spans:SpanBuilder.spans": {"export"},
    "otel_gpu.export.metrics.exporter:MetricExports.observe": {"export"},
    "otel_gpu.export.otlp.sender:BackgroundSender.put": {"export"},
    "otel_gpu.export.otlp.file:FileTransport.deliver": {"export.spans"},
    "otel_gpu.explain.explainer:Explainer.push": {"explain"},
    "otel_gpu.stacks.user_stacks:UserStacks.resolve": {"stacks"},
    "otel_gpu.stacks.resolved_programs:MappedPrograms.ask_due": {"stacks"},
    "otel_gpu.stacks.user_stacks:UserStacks.drop_ended": {"stacks"},
    "otel_gpu.stacks.resolved_programs:MappedPrograms.end": {"after_exit", "after_exec", "sweep"},
    "otel_gpu.capture.processes.discovery:read_facts": {"introductions", "after_exec"},
    "otel_gpu.capture.processes.discovery:ProcessDiscovery.make_some": {
        "introductions",
        "after_exec",
    },
    "otel_gpu.capture.processes.watchlist:mapped_files": {"probes"},
    "otel_gpu.capture.processes.interpreters:Interpreters.examine": {"probes"},
    "otel_gpu.capture.processes.interpreters:Interpreters.examine_again": {"discovery"},
    "otel_gpu.capture.probes.attachments:Attachments.examine": {"probes"},
    "otel_gpu.capture.probes.attachments:Attachments.forget": {"after_exit", "after_exec", "sweep"},
    "otel_gpu.capture.probes.attachments:Attachments.detach_unused": {"discovery"},
    "otel_gpu.capture.host.pressure:PressureReader.read": {"pressure"},
    "tests.chaos.kernel_side:KernelSide.read_aggregates": {
        "aggregates",
        "last_aggregates",
        "sweep",
    },
    "tests.chaos.kernel_side:KernelSide.read_times": {"times", "last_times", "sweep"},
    "tests.chaos.kernel_side:KernelSide.read_counters": {"counters"},
    "tests.chaos.kernel_side:KernelSide.open_threads": {"open_calls"},
    "tests.chaos.kernel_side:KernelSide.read_ticks": {"on_cpu"},
    "tests.chaos.kernel_side:KernelSide.set_threshold": {"thresholds"},
    "tests.chaos.kernel_side:KernelSide.programs": {"discovery", "sweep"},
    "tests.chaos.kernel_side:KernelSide.threads": {"sweep"},
    "otel_gpu.capture.processes.stale_entries:StaleEntries.free_memory": {"sweep"},
    "tests.chaos.kernel_side:KernelSide.mark_known": {"after_exec"},
    "otel_gpu.enrich.enricher:Enricher._enrich_call": {"enrich"},
    "otel_gpu.wire.decoder:_decode_record": {"decode"},
}
# Their errors are counted a moment later than they are raised.
IN_THREADS = {
    name for name in PLACES if "Journal." in name or "Room." in name or "FileTransport." in name
}
# Of these the record is what is lost.
ENRICH_CALL = "otel_gpu.enrich.enricher:Enricher._enrich_call"
DECODE = "otel_gpu.wire.decoder:_decode_record"
DELIVER = "otel_gpu.export.otlp.file:FileTransport.deliver"
READING = "tests.chaos.kernel_side:KernelSide.read_aggregates"


class Clock:
    """A monotonic clock, and what the wall clock is off by."""

    def __init__(self):
        self.now_s = 100.0
        self.step_ns = 0

    def __call__(self):
        return self.now_s


class Witness:
    """An observer that never fails: what it has seen is what was handed on."""

    def __init__(self):
        self.calls = 0
        self.counted = {}
        self.lost = 0

    def observe(self, activity):
        if isinstance(activity, CallActivity):
            self.calls += 1
        elif isinstance(activity, AggregatesActivity):
            for one in activity.series:
                self.counted[one.key.pid, one.key.program_ktime_ns] = one.aggregate.counted
        elif isinstance(activity, CountersActivity):
            self.lost = activity.values["counter_lost_ring_full"]


class Chaos(RuleBasedStateMachine):
    """One agent, with everything of it but the kernel's side."""

    def __init__(self):
        super().__init__()
        self.open = contextlib.ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="otel-gpu-chaos-", dir=MEMORY))
        self.open.callback(shutil.rmtree, self.folder)
        self.clock = Clock()
        self.open.enter_context(patched(Schedule.__init__, "__defaults__", (self.clock,)))
        read_clocks = session_module.read_clocks
        self.open.enter_context(
            patched(session_module, "read_clocks", lambda *most: self.stepped(*read_clocks(*most)))
        )
        # Nothing of this host is to be looked at, and each batch of rows written at once.
        self.open.enter_context(patched(watchlist_module, "all_pids", list))
        self.open.enter_context(patched(KernelStacks, "prepare", lambda _: None))
        limits = StoreLimits(batch_interval_s=0.0)
        self.open.enter_context(patched(recorder_module, "limits_of", lambda _: limits))
        logging.disable(logging.CRITICAL)
        self.open.callback(logging.disable, logging.NOTSET)
        self.injection = Injection(PLACES)
        self.open.callback(self.injection.undo)
        self.kernel = KernelSide()
        self.open.enter_context(patched(leftovers_module, "all_pids", self.kernel.alive))
        self.open.callback(self.kernel.close)
        self.faults = Faults(self.clock)
        self.rejected = Counter()
        self.witness = Witness()
        self.steps = 0
        self.is_off = False

    def stepped(self, ktime_ns, unix_ns):
        return ktime_ns, unix_ns + self.clock.step_ns

    @initialize()
    def begin(self):
        config = load(
            None,
            {},
            {
                "export.otlp_file": str(self.folder / "telemetry.jsonl"),
                "store.path": str(self.folder / "store.db"),
                "store.enabled": "on",
                "spans.mode": "full",
            },
        )
        environ = {"OTEL_METRIC_EXPORT_INTERVAL": "3600000"}
        self.exports = self.open.enter_context(
            open_exports(config, environ, live=True, faults=self.faults)
        )
        self.store = self.open.enter_context(live_store(config, self.faults))
        sinks = [Isolated(self.faults, "export", self.exports, Exports.renew), self.store]
        self.blame = Isolated(
            self.faults,
            "explain",
            pipeline.ExplainStage(config, *sinks),
            lambda _: pipeline.ExplainStage(config, *sinks),
        )
        self.parts = [*sinks, self.blame, Isolated(self.faults, "witness", self.witness)]
        self.enricher = Enricher()
        self.session = Session(self.kernel, config, watch_all=True, faults=self.faults)
        self.batches = self.session.batches()
        self.take()

    def take(self):
        """One turn of the loop, at most a second later than the last one."""
        batch = next(self.batches)
        pipeline.process([batch], self.enricher, self.parts, self.rejected, self.faults)

    @rule(
        name=st.sampled_from(sorted(PLACES)),
        error=st.sampled_from(sorted(ERRORS)),
        calls=st.integers(1, 12),
    )
    def fail(self, name, error, calls):
        self.injection.arm(name, error, calls)

    @rule(seconds=st.sampled_from([0.2, 1.0, 2.0, 5.0, 31.0, 61.0]))
    def turn(self, seconds):
        self.clock.now_s += seconds
        self.take()

    @rule(step_s=st.sampled_from([-3_600, -1, 1, 86_400]))
    def step_the_clock(self, step_s):
        self.clock.step_ns += step_s * 1_000_000_000

    @rule()
    def start_a_process(self):
        self.kernel.begin()

    @precondition(lambda self: self.kernel.alive())
    @rule(which=st.integers(0, 99), count=st.sampled_from([1, 7, 31, 101]))
    def make_calls(self, which, count):
        alive = self.kernel.alive()
        self.kernel.call(alive[which % len(alive)], count)

    @precondition(lambda self: self.kernel.alive())
    @rule(which=st.integers(0, 99))
    def end_a_process(self, which):
        alive = self.kernel.alive()
        self.kernel.end(alive[which % len(alive)])

    def has_raised(self, name):
        if not self.injection.raised[name]:
            self.make_calls(0, 7)
            self.turn(1.0)
        return self.injection.raised[name]

    @invariant()
    def every_error_is_counted_where_it_was(self):
        self.check_errors(name for name in PLACES if name not in IN_THREADS)

    def check_errors(self, names):
        errors = self.faults.status()["errors"]
        for name in names:
            counted = sum(errors.get(place, 0) for place in PLACES[name])
            assert counted >= self.injection.fired[name], (name, errors)
        # And nowhere else.
        hit = set().union(*(PLACES[name] for name in PLACES if self.injection.raised[name]), set())
        assert errors.keys() <= hit, errors

    def teardown(self):
        try:
            if hasattr(self, "batches"):
                self.recover()
        finally:
            self.open.close()

    def recover(self):
        """When nothing fails any more, all are exact again, without a restart."""
        self.injection.disarm()
        # What was switched off is tried again.
        self.clock.now_s += 3_700
        self.take()
        pid = self.kernel.begin()
        for _ in range(3):
            self.clock.now_s += 1
            self.take()
        lost = self.kernel.events.lost
        for one in self.kernel.alive():
            self.kernel.call(one, 1)
        self.kernel.call(pid, 3)
        self.clock.now_s += 1
        self.take()
        self.session.stop()
        for batch in self.batches:
            pipeline.process([batch], self.enricher, self.parts, self.rejected, self.faults)

        raised = self.injection.raised
        assert self.kernel.events.lost == lost
        if not raised[DECODE]:
            assert self.witness.lost == lost
        assert self.witness.calls == self.kernel.sent - raised[ENRICH_CALL]
        self.check_counts(self.witness.counted)
        errors = self.faults.status()["errors"]
        if not raised[DELIVER]:
            assert self.exports.dropped() == {}
        assert self.exports.shutdown(10.0) or self.exports.dropped()
        writer = self.store.part
        assert writer.close() or writer.lost()
        with StoreReader(self.folder / "store.db") as reader:
            rows = reader.execute(f"SELECT coalesce(sum(calls), 0) FROM v_counts WHERE pid = {pid}")
            ((counted,),) = rows.rows
        assert counted == 4
        self.check_errors(PLACES)
        self.check_store(is_whole=not errors.keys() & STORE and not writer.lost())

    def check_counts(self, counted):
        # A process whose last reading failed, or was not understood, is short of that.
        is_short = self.injection.raised[READING] or self.injection.raised[DECODE]
        alive = {(pid, self.kernel.program_ktime_ns(pid)) for pid in self.kernel.alive()}
        for program, made in self.kernel.made.items():
            if program in alive or not is_short:
                assert counted[program] == made, program
            else:
                assert counted.get(program, 0) <= made

    def check_store(self, *, is_whole):
        with StoreReader(self.folder / "store.db") as reader:
            rows = reader.execute("SELECT pid, sum(calls) FROM v_counts GROUP BY pid").rows
        made = {program[0]: count for program, count in self.kernel.made.items()}
        for pid, count in rows:
            assert count <= made[pid], "more than there was"
        if is_whole and not (self.injection.raised[READING] or self.injection.raised[DECODE]):
            assert dict(rows) == made


@contextlib.contextmanager
def patched(owner, name, value):
    """Another value for an attribute, for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def test_nothing_that_fails_ends_the_capture():
    """
    Faults of every function, in any order, with processes, full rings and clock steps between them.
    """
    run_state_machine_as_test(
        Chaos,
        settings=settings(
            max_examples=SEQUENCES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("name", sorted(PLACES))
def test_each_function_fails_alone(name):
    """
    Some calls in a row, with an error that nobody expects and with those of a full disk and a lock.
    """
    for error in ("runtime", "disk_full", "sqlite_locked"):
        machine = Chaos()
        try:
            machine.begin()
            machine.start_a_process()
            machine.make_calls(0, 7)
            machine.turn(1.0)
            machine.fail(name, error, 3)
            machine.start_a_process()
            machine.make_calls(1, 101)
            machine.end_a_process(0)
            for seconds in (1.0, 2.0, 5.0, 31.0):
                machine.make_calls(0, 7)
                machine.turn(seconds)
            # Threads of the store and the exports come to it when they do.
            wait_until(lambda machine=machine: machine.has_raised(name), name)
            machine.every_error_is_counted_where_it_was()
        finally:
            machine.teardown()

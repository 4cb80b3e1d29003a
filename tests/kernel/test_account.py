"""Where the time of threads goes: the account adds up, and says why a thread waited."""

import functools
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from otel_gpu import wire
from otel_gpu.capture.recording import read_recording
from otel_gpu.enrich.activities import StallActivity, TimesActivity
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.state.differences import without_waits
from otel_gpu.wire.decoder import decode
from otel_gpu.wire.events import CudaCall, Event, Exit, Gap, Stall
from otel_gpu.wire.symbol_records import Stack
from tests.kernel.agent import FIRST, Agent
from tests.kernel.recorded_events import unseen_waits
from tests.stubs.build import StubLibraries

# What other tests do to the machine must not be a cause as large as the injected one.
pytestmark = [
    *(pytest.mark.kernel, pytest.mark.alone(among="kernel")),
    pytest.mark.usefixtures("counted_by"),
]

MS = 1_000_000
WORKLOAD = Path(__file__).resolve().parents[1] / "workloads" / "account.py"
FEEDING = {wire.CONTEXT_GAP, wire.CONTEXT_SYNCHRONIZE, wire.CONTEXT_CALL}


class Recorded(NamedTuple):
    """What a workload said of itself, and what was recorded of it."""

    said: dict[str, Any]
    events: Sequence[Event]

    def of_feeder(self, kind: type) -> list[Any]:
        """Events of one kind of the thread that makes the calls."""
        return [e for e in self.events if type(e) is kind and e.tid == self.said["tid"]]

    @property
    def reasons(self) -> list[tuple[Stall, str]]:
        """Stalls of the feeder, with what it was blocked on."""
        return [
            (activity.event, activity.reason)
            for activity in Enricher().enrich(self.events)
            if isinstance(activity, StallActivity) and activity.event.tid == self.said["tid"]
        ]

    @property
    def times(self) -> Counter[tuple[int, int, str]]:
        """The last word of the account: time by state, context and reason."""
        last: Counter[tuple[int, int, str]] = Counter()
        for activity in Enricher().enrich(self.events):
            if isinstance(activity, TimesActivity):
                for time in without_waits(activity.times):
                    if time.process.pid == self.said["pid"]:
                        last[time.state, time.context, time.reason] = time.time_ns
        return last


@pytest.fixture(scope="module")
def record(
    counted_by: str, stubs: StubLibraries, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Recorded]:
    """Record the workload; tests of the same arguments share what they look at."""
    folder = tmp_path_factory.mktemp("account")

    @functools.cache
    def make(*arguments: str) -> Recorded:
        return make_record(folder, stubs, arguments)

    return make


def make_record(folder: Path, stubs: StubLibraries, arguments: Sequence[str]) -> Recorded:
    path = folder / "account.otelgpu"
    command = [sys.executable, WORKLOAD, stubs.runtime, *arguments]
    flags = ("--record", str(path), "--spans", "full", "--summary", "never")
    # Of what others do on this machine, the account would have to say it too.
    with Agent(None, command, flags=flags, inside=FIRST) as agent:
        finished = agent.wait()
    assert finished.returncode == 0, finished.stderr
    rejected: Counter[str] = Counter()
    records = [record for batch in read_recording(path) for record in batch]
    events = list(decode(records, rejected))
    assert not rejected
    [said] = finished.lines
    return Recorded(said, events)


def off_cpu_ns(event: CudaCall | Gap) -> int:
    return event.blocked_ns + event.run_queue_ns


def test_the_parts_of_calls_and_gaps_sum_to_the_whole(record: Callable[..., Recorded]) -> None:
    """
    What is not on a CPU is blocked or in a run queue, and the account of the process is the sum
    of the accounts of its calls and gaps: to the nanosecond, as all of them are recorded.
    """
    recorded = record("spin_and_sleep", "30", "3000000", "5000000")
    calls, gaps = recorded.of_feeder(CudaCall), recorded.of_feeder(Gap)
    times = recorded.times

    assert len(calls) == 30
    assert all(
        0 <= off_cpu_ns(event) <= event.end_ktime_ns - event.start_ktime_ns
        for event in calls + gaps
    )
    for states, total_ns in (
        ([wire.STATE_BLOCKED], sum(call.blocked_ns for call in calls)),
        ([wire.STATE_RUN_QUEUE], sum(call.run_queue_ns for call in calls)),
        (
            [wire.STATE_ON_CPU],
            sum(call.end_ktime_ns - call.start_ktime_ns - off_cpu_ns(call) for call in calls),
        ),
    ):
        accounted_ns = sum(
            time_ns
            for (state, context, _), time_ns in times.items()
            if state in states and context in (wire.CONTEXT_CALL, wire.CONTEXT_SYNCHRONIZE)
        )
        assert accounted_ns == total_ns


def test_spinning_and_sleeping_are_told_apart(record: Callable[..., Recorded]) -> None:
    """A call that spins 3 ms and sleeps 5 ms has both within 5 %, and says that it slept."""
    recorded = record("spin_and_sleep", "30", "3000000", "5000000")
    calls = recorded.of_feeder(CudaCall)
    # The median call: a busy machine may disturb some.
    on_cpu_ns = sorted(c.end_ktime_ns - c.start_ktime_ns - off_cpu_ns(c) for c in calls)
    blocked_ns = sorted(call.blocked_ns for call in calls)
    awake_ns = sorted(c.end_ktime_ns - c.start_ktime_ns - c.blocked_ns for c in calls)

    # It spins to a time, also where it waits for its CPU meanwhile.
    assert awake_ns[15] >= 3 * MS
    assert on_cpu_ns[15] <= 1.05 * 3 * MS
    assert on_cpu_ns[-1] >= 0.95 * 3 * MS
    assert blocked_ns[15] == pytest.approx(5 * MS, rel=0.05)
    slept = [stall for stall, reason in recorded.reasons if reason == "sleep"]
    assert {stall.root_start_ktime_ns for stall in slept} >= {c.start_ktime_ns for c in calls}


def test_what_is_kept_of_a_call_lies_in_it_and_comes_first(
    record: Callable[..., Recorded],
) -> None:
    """
    The intervals of a call precede it, name it, do not overlap, and are no more than its total.
    """
    recorded = record("spin_and_sleep", "30", "3000000", "5000000")
    waiting: list[Stall] = []

    for event in recorded.events:
        if getattr(event, "tid", None) != recorded.said["tid"]:
            continue
        if type(event) is Stall and event.root_start_ktime_ns:
            waiting.append(event)
        if type(event) is CudaCall:
            inside = sorted(waiting, key=lambda stall: stall.start_ktime_ns)
            assert 1 <= len(inside) <= 4
            assert {s.root_start_ktime_ns for s in inside} == {event.start_ktime_ns}
            edges = [edge for s in inside for edge in (s.start_ktime_ns, s.end_ktime_ns)]
            assert edges == sorted(edges)
            assert event.start_ktime_ns <= edges[0]
            assert edges[-1] <= event.end_ktime_ns
            kept_ns = sum(s.end_ktime_ns - s.start_ktime_ns for s in inside)
            assert kept_ns <= off_cpu_ns(event)
            waiting.clear()
    assert waiting == []


def test_gaps_are_accounted_for_like_calls(record: Callable[..., Recorded]) -> None:
    """
    A gap that spins 3 ms and sleeps 12 ms has both, from the return before to the entry after.
    """
    recorded = record("gap", "40", "3000000", "12000000")
    calls, gaps = recorded.of_feeder(CudaCall), recorded.of_feeder(Gap)

    assert len(calls) == 40
    assert len(gaps) == 39
    ends = {call.end_ktime_ns for call in calls}
    for gap in gaps:
        assert gap.start_ktime_ns in ends
        assert 0 <= off_cpu_ns(gap) <= gap.end_ktime_ns - gap.start_ktime_ns
    blocked_ns = sorted(gap.blocked_ns for gap in gaps)
    on_cpu_ns = sorted(g.end_ktime_ns - g.start_ktime_ns - off_cpu_ns(g) for g in gaps)
    assert blocked_ns[19] == pytest.approx(12 * MS, rel=0.05)
    awake_ns = sorted(gap.end_ktime_ns - gap.start_ktime_ns - gap.blocked_ns for gap in gaps)
    # It spins to a time, also where it waits for its CPU meanwhile. Python's own work comes on top.
    assert awake_ns[19] >= 3 * MS
    assert on_cpu_ns[19] <= 4 * MS
    assert on_cpu_ns[-1] >= 3 * MS
    inside = [stall for stall, reason in recorded.reasons if reason == "sleep"]
    for gap in gaps:
        assert any(
            gap.start_ktime_ns <= stall.start_ktime_ns and stall.end_ktime_ns <= gap.end_ktime_ns
            for stall in inside
        )
    assert {stall.call_start_ktime_ns for stall in inside} == {0}


def test_the_account_of_a_feeder_is_its_wall_time(record: Callable[..., Recorded]) -> None:
    """
    From its first call to its last, and on until it ends, all of a thread's time is in a state,
    within 1 %.
    """
    recorded = record("gap", "40", "3000000", "12000000")
    calls = recorded.of_feeder(CudaCall)
    feeding_ns = sum(
        time_ns for (_, context, _), time_ns in recorded.times.items() if context in FEEDING
    )
    start_ktime_ns = calls[0].start_ktime_ns
    [end_ktime_ns] = {
        event.ktime_ns
        for event in recorded.events
        if type(event) is Exit and event.pid == recorded.said["pid"]
    }

    # Whoever has its CPU may keep it from ending.
    assert 0.99 * (calls[-1].end_ktime_ns - start_ktime_ns) <= feeding_ns
    assert feeding_ns <= 1.01 * (end_ktime_ns - start_ktime_ns)


def test_a_thread_that_waits_for_the_gil_is_said_to(record: Callable[..., Recorded]) -> None:
    """Another thread keeps the GIL for 20 ms: the gaps between calls are blocked on it."""
    recorded = record("gil", "10", "20000000")
    waits = [stall for stall, reason in recorded.reasons if reason == "gil"]

    assert sum(s.runnable_ktime_ns - s.start_ktime_ns for s in waits) >= 5 * 20 * MS
    assert all(stall.flags & wire.STALL_GIL for stall in waits)
    # Python waits for it in slices; whoever wakes the feeder at the end held it.
    assert recorded.said["holder"] in {stall.waker_tid for stall in waits}
    gil_ns = recorded.times[wire.STATE_BLOCKED, wire.CONTEXT_GAP, "gil"]
    assert gil_ns >= 5 * 20 * MS


def test_who_let_go_of_the_gil_is_kept(record: Callable[..., Recorded]) -> None:
    """A thread that got the GIL may wait for it again at once: that was not what took so long."""
    recorded = record("handover", "11", "20000000")
    waits = [
        stall
        for stall in recorded.of_feeder(Stall)
        if stall.flags & wire.STALL_GIL and stall.end_ktime_ns - stall.start_ktime_ns >= 15 * MS
    ]

    assert len(waits) == 11
    assert {stall.waker_tid for stall in waits} == {recorded.said["holder"]}


def test_a_lock_that_is_not_the_gil_is_a_lock(record: Callable[..., Recorded]) -> None:
    """A futex outside of the interpreter's state is a lock, and its holder is named."""
    recorded = record("lock", "5", "20000000")
    waits = [
        stall
        for stall, reason in recorded.reasons
        if reason == "lock" and stall.runnable_ktime_ns - stall.start_ktime_ns >= 10 * MS
    ]

    assert len(waits) == 5
    assert {stall.system_call for stall in waits} == {202 if is_x86(recorded) else 98}
    assert not any(stall.flags & wire.STALL_GIL for stall in waits)
    assert {stall.waker_tid for stall in waits} == {recorded.said["holder"]}
    stacks = {e.kernel_stack: e.functions for e in recorded.events if type(e) is Stack}
    # A wait whose end the kernel did not report, or whose walk was interrupted, has no stack.
    walked = [stall for stall in waits if stall.kernel_stack >= 0]
    assert all(any("futex" in name for name in stacks[stall.kernel_stack]) for stall in walked)
    assert walked
    assert len(waits) - len(walked) <= unseen_waits(recorded.events)


def is_x86(recorded: Recorded) -> bool:
    capture: Any = recorded.events[0]
    return bool(capture.info["host"]["arch"] == "x86_64")

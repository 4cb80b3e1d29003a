"""The time account of a thread that fights for its CPU, against the scheduler's own."""

# Some facts about two ways to measure
# ------------------------------------
#
# A call's time on the CPU is what is left of its duration when the run queue and blocked
# time are taken away, so that the three sum to it by construction. What can be wrong is how
# the time was divided. The workload asks the kernel for that by other means: the clock of
# the thread's CPU time and the wait of its schedstat, around each call and inside of it. The
# probes fire in between, so that what the record says has to lie between the two.
#
# A call that never left its CPU lies there to the microsecond. At a switch, the two ways look
# at the clock in different places: the scheduler before it chooses who is next, the probe
# after it; the scheduler when a thread is put into the queue, the probe when that begins. On
# this project's machines that is 5 to 10 us for each time off the CPU, which is allowed for.
# A hypervisor that takes the CPU away is seen by the scheduler's clocks only, and may do so
# in any call, and a switch may take longer than usual: so a few calls may be off, and all of them
# together by what it took.

import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from otel_gpu import wire
from otel_gpu.capture.recording import read_recording
from otel_gpu.wire.decoder import decode
from otel_gpu.wire.events import CudaCall, Event
from otel_gpu.wire.readings import Counters, Times
from tests.kernel.agent import Agent
from tests.kernel.stolen_time import read_stolen_ns
from tests.stubs.build import StubLibraries, workload

# Other agents would look at each switch, too.
pytestmark = [pytest.mark.kernel, pytest.mark.alone(among="kernel")]

CALLS = 10_007
SEED = 20_011
US, MS = 1_000, 1_000_000
SWITCH_NS, MEAN_SWITCH_NS = 20 * US, 15 * US
CLOCK_NS = {
    "probes": 0,
    "preload": 100,
}  # its clock counts on from the last time that it asked the system
TICK_NS = 10 * MS
PROBE_NS = 5 * US
SETTINGS = {"OTEL_GPU_SPANS_RATE_PER_PROCESS": "1000000", "OTEL_GPU_EXPLAIN_ENABLED": "false"}
FEEDING = {wire.CONTEXT_GAP, wire.CONTEXT_SYNCHRONIZE, wire.CONTEXT_CALL}


class Reading(NamedTuple):
    """What the workload read at one moment, in nanoseconds."""

    now: int
    cpu: int
    wait: int


class Call(NamedTuple):
    """A call as it was recorded, and what the workload read of it."""

    event: CudaCall
    before: Reading
    begun: Reading
    done: Reading
    after: Reading

    @property
    def on_cpu_ns(self) -> int:
        """What is left of its duration."""
        event = self.event
        off_cpu_ns = event.blocked_ns + event.run_queue_ns
        return event.end_ktime_ns - event.start_ktime_ns - off_cpu_ns

    @property
    def switches(self) -> int:
        """How often it left its CPU."""
        return self.event.voluntary_switches + self.event.involuntary_switches

    @property
    def off_by_ns(self) -> int:
        """How far CPU time or wait is from between those inside of it and those around it."""
        slack_ns = US + self.switches * SWITCH_NS
        return max(
            self.done.cpu - self.begun.cpu - slack_ns - self.on_cpu_ns,
            self.on_cpu_ns - (self.after.cpu - self.before.cpu) - slack_ns,
            self.done.wait - self.begun.wait - slack_ns - self.event.run_queue_ns,
            self.event.run_queue_ns - (self.after.wait - self.before.wait) - slack_ns,
            0,
        )


class Contended(NamedTuple):
    """
    What a run was, by the workload and by the recording.

    ``cpu_ns`` and ``wait_ns`` are what schedstat grew by over all calls and gaps, with so many ``switches``;
    ``account`` is time by state and context, from so many ``readings``.
    """

    calls: Sequence[Call]
    cpu_ns: int
    wait_ns: int
    switches: int
    account: Counter[tuple[int, int]]
    losses: dict[str, int]
    stolen_ns: int
    readings: int

    def feeding_ns(self, state: int) -> int:
        """Time of the thread in a state, from its first call to its last."""
        return sum(
            ns for (s, context), ns in self.account.items() if s == state and context in FEEDING
        )


@pytest.fixture(scope="module")
def contended(
    counted_by: str, tmp_path_factory: pytest.TempPathFactory, stubs: StubLibraries
) -> Contended:
    """Make the calls, while hogs come and go on the same CPU."""
    cpu = max(os.sched_getaffinity(0))
    recording = tmp_path_factory.mktemp("contention") / "contended.otelgpu"
    command = [workload("contended"), stubs.runtime, CALLS, cpu, SEED]
    flags = ("--record", str(recording), "--spans", "full", "--summary", "never")
    stolen_ns = read_stolen_ns()
    with (
        # Not below the command, so that they are not watched.
        subprocess.Popen([workload("hogs"), str(cpu), str(SEED)], stdin=subprocess.PIPE),
        Agent(None, command, flags=flags, env=SETTINGS) as agent,
    ):
        finished = agent.wait(120)
    stolen_ns = read_stolen_ns() - stolen_ns
    assert finished.returncode == 0, finished.stderr
    [said] = finished.lines
    events = list(events_of(recording))
    calls = [e for e in events if type(e) is CudaCall and e.tid == said["tid"]]
    read = [map(Reading._make, moments) for moments in said["calls"]]
    return Contended(
        [Call(event, *moments) for event, moments in zip(calls, read, strict=True)],
        said["after"][0] - said["before"][0],
        said["after"][1] - said["before"][1],
        said["switches"],
        account_of(events, said["pid"]),
        losses_of(events),
        stolen_ns,
        sum(type(event) is Times for event in events),
    )


def events_of(recording: Path) -> Iterator[Event]:
    rejected: Counter[str] = Counter()
    for batch in read_recording(recording):
        yield from decode(batch, rejected)
    assert not rejected


def account_of(events: Sequence[Event], pid: int) -> Counter[tuple[int, int]]:
    """Return the last word of the account, summed over what threads were blocked on."""
    last = {
        entry.key: entry.time_ns
        for event in events
        if type(event) is Times
        for entry in event.entries
        if entry.key.pid == pid
    }
    account: Counter[tuple[int, int]] = Counter()
    for key, time_ns in last.items():
        account[key.state, key.context] += time_ns
    return account


def losses_of(events: Sequence[Event]) -> dict[str, int]:
    # Of stacks of ticks, which these tests are not about, a busy machine can lose some.
    *_, counters = (event for event in events if type(event) is Counters)
    return {
        name: count
        for number, name in wire.COUNTER_NAMES.items()
        if name.startswith("counter_lost_")
        and number != wire.COUNTER_LOST_SAMPLE
        and (count := counters.values[number])
    }


def test_all_calls_are_recorded_as_long_as_they_were(contended: Contended, counted_by: str) -> None:
    """A record begins and ends between the readings around the call and those inside of it."""
    assert len(contended.calls) == CALLS
    assert contended.losses == {}
    slack_ns = CLOCK_NS[counted_by]
    for event, before, begun, done, after in contended.calls:
        assert before.now - slack_ns <= event.start_ktime_ns <= begun.now + slack_ns
        assert done.now - slack_ns <= event.end_ktime_ns <= after.now + slack_ns


def test_calls_are_slept_in_waited_in_and_preempted(contended: Contended) -> None:
    """Else the other tests of this file would be about nothing."""
    events = [call.event for call in contended.calls]

    assert sum(event.voluntary_switches > 0 for event in events) >= 1_000
    assert sum(event.involuntary_switches > 0 for event in events) >= 100
    assert sum(event.run_queue_ns > MS for event in events) >= 100
    assert contended.wait_ns >= 1_000 * MS


def test_on_cpu_run_queue_and_blocked_sum_to_each_duration(contended: Contended) -> None:
    """No part is negative, and a call that never left its CPU was on it all the time."""
    for call in contended.calls:
        event = call.event
        assert min(call.on_cpu_ns, event.run_queue_ns, event.blocked_ns) >= 0
        if not call.switches:
            assert event.run_queue_ns == event.blocked_ns == 0


def off_by_ns(calls: Sequence[Call], one_in: int) -> int:
    """Return what calls are off by together, but for those one in so many that are furthest off."""
    return sum(sorted(call.off_by_ns for call in calls)[: -(len(calls) // one_in)])


def test_calls_that_never_left_their_cpu_agree_with_its_clock_to_a_microsecond(
    contended: Contended,
) -> None:
    """All but one in a hundred, and for as long as the hypervisor had the CPU."""
    calls = [call for call in contended.calls if not call.switches]

    assert len(calls) >= 1_000
    assert off_by_ns(calls, 100) <= contended.stolen_ns


def test_calls_that_left_their_cpu_agree_with_the_scheduler(contended: Contended) -> None:
    """
    All but one in fifty, to what the two ways to measure differ by at each switch: on the average
    no more than a microsecond above it, and for as long as the hypervisor had the CPU.
    """
    calls = [call for call in contended.calls if call.switches]

    assert off_by_ns(calls, 50) <= sum(c.switches for c in calls) * US + contended.stolen_ns


def test_the_totals_agree_with_schedstat(contended: Contended) -> None:
    """
    Of calls and gaps together: time on the CPU within 2 %, and time in the run queue within 1 % and
    what the two ways to measure differ by at each switch on the average.
    """
    on_cpu_ns = contended.feeding_ns(wire.STATE_ON_CPU)
    run_queue_ns = contended.feeding_ns(wire.STATE_RUN_QUEUE)
    cpu_ns, wait_ns, stolen_ns = contended.cpu_ns, contended.wait_ns, contended.stolen_ns

    # Schedstat knows the CPU time of a running thread to the last tick.
    assert abs(on_cpu_ns - cpu_ns) <= 0.02 * cpu_ns + stolen_ns + 2 * TICK_NS
    differs_ns = contended.switches * MEAN_SWITCH_NS
    assert abs(run_queue_ns - wait_ns) <= 0.01 * wait_ns + differs_ns + stolen_ns


def test_the_account_of_calls_is_the_sum_of_the_calls(contended: Contended) -> None:
    """
    As each of them is recorded; the whole account is the time it took.

    To the nanosecond, but for time on the CPU: a reading of the account that comes while a probe ends a
    call books what that takes to the call.
    """
    calls = contended.calls

    states = (wire.STATE_ON_CPU, wire.STATE_RUN_QUEUE, wire.STATE_BLOCKED)
    account_ns = [contended.account[state, wire.CONTEXT_SYNCHRONIZE] for state in states]
    calls_ns = [
        sum(call.on_cpu_ns for call in calls),
        sum(call.event.run_queue_ns for call in calls),
        sum(call.event.blocked_ns for call in calls),
    ]
    assert account_ns[0] == pytest.approx(calls_ns[0], rel=0, abs=contended.readings * PROBE_NS)
    assert account_ns[1:] == calls_ns[1:]
    wall_ns = calls[-1].event.end_ktime_ns - calls[0].event.start_ktime_ns
    assert sum(map(contended.feeding_ns, states)) == pytest.approx(wall_ns, rel=0.01)

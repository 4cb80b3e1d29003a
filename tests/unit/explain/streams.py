"""Streams of activities, as ``enrich`` makes them, for the tests of ``explain``."""

from otel_gpu import wire
from otel_gpu.enrich.activities import ForkActivity, GapActivity, PressureActivity, TimesActivity
from otel_gpu.enrich.thread_times import ThreadTime
from otel_gpu.explain.explainer import Explainer
from otel_gpu.explain.settings import Settings
from otel_gpu.wire.events import Fork, Gap
from otel_gpu.wire.frames import Frame
from tests.activities import (
    APIS_BY_NAME,
    IDS,
    SECOND,
    T0,
    aggregate,
    call,
    call_stack,
    calls,
    capture,
    image,
    sample,
    series,
    snapshot,
    stall,
)

MS = 1_000_000
TRAINER = image(42)
WORKER = image(77, name="worker", parent_pid=42)
STRANGER = image(88, name="server")
START = 100 * SECOND  # ktime of most effects
HOG = {"culprit_pid": 900, "culprit_tid": 901, "culprit_comm": "hog"}


def usual(process=TRAINER, api="cudaStreamSynchronize", duration_ns=MS, count=100, at_s=10):
    """A reading in which an API's calls usually take this long."""
    return snapshot(at_s, calls(process, api, [duration_ns] * count))


def readings_of(api, durations_ns, at_s):
    """A reading with these calls of an API."""
    return snapshot(at_s, calls(TRAINER, api, durations_ns))


def usual_gap(process=TRAINER, duration_ns=MS, count=100, at_s=10):
    """A reading in which gaps usually take this long."""
    return snapshot(at_s, series(process, wire.METRIC_LAUNCH_GAP, aggregate([duration_ns] * count)))


def slow(api="cudaStreamSynchronize", duration_ms=100, process=TRAINER, start=START, **event):
    """A chosen call that was slow."""
    values = {"choices": wire.CHOICE_SLOW} | event
    return call(process, api, start, duration_ms * MS, **values)


def slow_gap(duration_ms=100, process=TRAINER, start=START, tid=None, **event):
    """A chosen gap before a launch."""
    end = start + duration_ms * MS
    values = dict.fromkeys(Gap._fields, 0) | {
        "end_ktime_ns": end,
        "program_ktime_ns": process.program_ktime_ns,
        "pid": process.pid,
        "tid": process.pid if tid is None else tid,
        "start_ktime_ns": start,
        "device": -1,
        "previous_api": APIS_BY_NAME["cudaStreamSynchronize"].number,
        "next_api": APIS_BY_NAME["cudaLaunchKernel"].number,
        "choices": wire.CHOICE_SLOW,
        "comm": process.comm,
    }
    made = Gap(**(values | event))
    return GapActivity(
        process,
        made,
        APIS_BY_NAME["cudaStreamSynchronize"],
        APIS_BY_NAME["cudaLaunchKernel"],
        T0 + start,
        T0 + end,
        None,
        *IDS.of_gap(made),
    )


def off_cpu(at_ms, blocked_ms, run_queue_ms=0, *, process=TRAINER, reason="", start=START, **event):
    """A stall that begins ``at_ms`` after the effect's start."""
    begin = start + round(at_ms * MS)
    runnable = begin + round(blocked_ms * MS)
    end = runnable + round(run_queue_ms * MS)
    return stall(process, begin, runnable, end, **event)._replace(reason=reason)


def preempted(at_ms, run_queue_ms, **event):
    """A stall in which another thread took the CPU away."""
    return off_cpu(at_ms, 0, run_queue_ms, switch_type=wire.SWITCH_INVOLUNTARY, **event)


def woken_by(process, tid=None):
    """The fields of a stall that another thread ended."""
    return {
        "waker_pid": process.pid,
        "waker_tid": process.pid if tid is None else tid,
        "waker_comm": process.comm,
    }


def stack_at(function, line=7, file="/app/pictures.py"):
    """Where a program is: on a line of a function of its own."""
    frames = (Frame("cpython", function, file, line), Frame("cpython", "main", file, 1))
    return call_stack(hash((function, line, file)) & 0xFFFFFFFF, frames)


def sampled(counts, at_ms, every_ms=10, process=TRAINER, tid=None, start=START, **event):
    """Samples of a thread from a moment on; ``counts`` says how many are at each stack."""
    stacks = [stack for stack, count in counts.items() for _ in range(count)]
    tid = process.pid if tid is None else tid
    return [
        sample(
            process, start + round((at_ms + number * every_ms) * MS), stack=stack, tid=tid, **event
        )
        for number, stack in enumerate(stacks)
    ]


def fork_by(tid, at_ms, duration_ms, process=TRAINER, start=START):
    """A fork by one thread of a process."""
    begin = start + round(at_ms * MS)
    event = Fork(
        end_ktime_ns=begin + round(duration_ms * MS),
        program_ktime_ns=process.program_ktime_ns,
        pid=process.pid,
        tid=tid,
        start_ktime_ns=begin,
        child_program_ktime_ns=begin + 1,
        call_start_ktime_ns=0,
        root_start_ktime_ns=0,
        child_pid=4343,
        comm=process.comm,
    )
    child = image(4343, begin + 1)
    return ForkActivity(
        process, event, child, T0 + begin, T0 + event.end_ktime_ns, *IDS.of_fork(event)
    )


def throttled(at_ms, count, pids=(42,), start=START, throttled_ms=0):
    """How often, and how long, a cgroup was throttled by then."""
    cgroups = {
        "/pod": {"nr_throttled": count, "throttled_ns": throttled_ms * MS, "pids": list(pids)}
    }
    return PressureActivity(T0 + start + round(at_ms * MS), {"cgroups": cgroups})


def time_of(state, context, time_ms, reason="", process=TRAINER):
    """One entry of the time account."""
    return ThreadTime(process, state, context, reason, round(time_ms * MS), 1)


def account(at_s, *times):
    """The time account."""
    return TimesActivity(T0 + round(at_s * SECOND), times)


def explain(*activities, settings=None):
    """Every chain of a stream, and the explainer that made them."""
    explainer = Explainer(settings or Settings())
    chains = []
    for activity in (capture(), *activities):
        chains += explainer.push(activity)
    chains += explainer.close()
    return chains, explainer


def chain_of(*activities, settings=None):
    """The only chain of a stream."""
    chains, _ = explain(*activities, settings=settings)
    assert len(chains) == 1
    return chains[0]


def in_ms(causes):
    """Kinds and times of causes, in their order."""
    return [(cause.kind, cause.time_ns / MS) for cause in causes]

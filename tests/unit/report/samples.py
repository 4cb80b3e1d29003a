"""Chains and snapshots that reports are made of in these tests."""

from otel_gpu import wire
from otel_gpu.enrich.activities import TimesActivity
from otel_gpu.enrich.thread_times import ThreadTime
from otel_gpu.explain.chains import (
    Cause,
    Chain,
    Culprit,
    Effect,
    Evidence,
    Incident,
    TimeNode,
    Verdict,
)
from otel_gpu.explain.examples import Examples
from otel_gpu.explain.memory.allocator_churn import AllocatorChurn
from otel_gpu.explain.settings import Settings
from otel_gpu.state.memory.blocks import AllocatorState
from otel_gpu.state.nccl.communicators import CommunicatorStates
from otel_gpu.wire.frames import Frame
from tests.activities import SECOND, T0, call_stack

MS = 1_000_000
HOG = Culprit(900, 901, "cc1plus")
WORKER = Culprit(42, 43, "pt_data_worker")


def evidence(name, kind, start_ns, end_ns, **values):
    """One interval, in nanoseconds after ktime 0."""
    given = {"culprit": None, "waker": None, "reason": "", "functions": (), "span_id": b""} | values
    return Evidence(name, kind, T0 + start_ns, T0 + end_ns, **given)


def effect(process, start_ns, duration_ns, excess_ns=None, **values):
    """A slow launch, in nanoseconds after ktime 0."""
    given = {
        "kind": "slow_call",
        "api": "cudaLaunchKernel",
        "tid": process.pid,
        "comm": process.comm,
        "trace_id": b"t" * 16,
        "span_id": b"s" * 8,
    } | values
    return Effect(
        process=process,
        start_unix_ns=T0 + start_ns,
        duration_ns=duration_ns,
        excess_ns=duration_ns if excess_ns is None else excess_ns,
        **given,
    )


def preempted(process, start_ns, name="c1", *, duration_ns=10 * MS, stolen_ns=7 * MS):
    """A launch that lost 7 of its 10 ms to a compiler, and 1 ms to a late worker."""
    intervals = (
        evidence(f"{name}-rq", "run_queue", start_ns + MS, start_ns + MS + stolen_ns, culprit=HOG),
        evidence(
            f"{name}-b",
            "blocked",
            start_ns + 8 * MS,
            start_ns + 9 * MS,
            waker=WORKER,
            reason="ipc",
            functions=("pipe_read", "vfs_read", "ksys_read", "do_syscall_64"),
        ),
    )
    late = evidence(
        f"{name}-w", "run_queue", start_ns + 8 * MS, start_ns + 9 * MS - MS // 2, culprit=HOG
    )
    causes = (
        Cause("preemption", stolen_ns, stolen_ns / duration_ns, HOG, intervals[:1]),
        Cause(
            "ipc",
            MS,
            MS / duration_ns,
            WORKER,
            intervals[1:],
            via=(Cause("run_queue", MS // 2, MS / 2 / duration_ns, HOG, (late,)),),
        ),
    )
    return Chain(
        name,
        effect(process, start_ns, duration_ns, duration_ns - 4_000),
        causes,
        duration_ns - stolen_ns - MS,
        "medium",
    )


def with_stacks(chain):
    """The same, knowing where its call was made, and where it then waited for a worker."""
    get = Frame("cpython", "Queue.get", "/usr/lib/python3.11/queue.py", 180)
    step = Frame("cpython", "step", "/app/train.py", 40)
    waiting = call_stack(0xAB, (get, step), complete=False)
    preemption, waited = chain.causes
    (interval,) = waited.evidence
    waited = waited._replace(evidence=(interval._replace(stack=waiting),))
    return chain._replace(
        effect=chain.effect._replace(stack=call_stack()), causes=(preemption, waited)
    )


def incident(*chains, name="i1", severity="high", advice=("Give it CPUs of its own.",)):
    """Chains of the same causes."""
    first, last = chains[0].effect, chains[-1].effect
    return Incident(
        name,
        severity,
        first.start_unix_ns,
        last.start_unix_ns + last.duration_ns,
        sum(chain.effect.excess_ns for chain in chains),
        chains[0].causes,
        sum(chain.unexplained_ns for chain in chains),
        advice,
        chains,
        len(chains),
    )


def verdict(process, name="cpu-starved"):
    """Two thirds of its time wait for a CPU."""
    return Verdict(
        process,
        name,
        {"starved": 0.6, "gpu": 0.25, "cpu": 0.15},
        {"run_queue": 600 * MS, "host": 150 * MS, "gpu_wait": 250 * MS, "io": 0},
        TimeNode(
            "all",
            1_000 * MS,
            1.0,
            children=(
                TimeNode("run_queue", 600 * MS, 0.6),
                TimeNode("gpu_wait", 250 * MS, 0.25),
                TimeNode("host", 150 * MS, 0.15),
            ),
        ),
    )


def times(at_s, process, *entries):
    """The time account; an entry is (state, context, reason, milliseconds, count)."""
    return TimesActivity(
        T0 + round(at_s * SECOND),
        tuple(
            ThreadTime(process, state, context, reason, round(ms * MS), count)
            for state, context, reason, ms, count in entries
        ),
    )


RUN_QUEUE_IN_GAP = (wire.STATE_RUN_QUEUE, wire.CONTEXT_GAP, "")
BLOCKED_IN_GAP = (wire.STATE_BLOCKED, wire.CONTEXT_GAP, "ipc")


ON_CPU_IN_GAP = (wire.STATE_ON_CPU, wire.CONTEXT_GAP, "")
ON_CPU_WAITING = (wire.STATE_ON_CPU, wire.CONTEXT_SYNCHRONIZE, "")


def feeding(at_s, process):
    """The time account of who has that ``verdict``."""
    return times(
        at_s,
        process,
        (*RUN_QUEUE_IN_GAP, 600, 10),
        (*ON_CPU_IN_GAP, 150, 10),
        (*ON_CPU_WAITING, 250, 10),
    )


class FakeExplainer:
    """Says what the test planned, when the activity that it is planned for arrives."""

    def __init__(self, *, planned=(), late=(), incidents=(), given_up=()):
        self.settings = Settings()
        self.given_up = dict(given_up)
        self.blocks, self.histories = AllocatorState(), {}
        self.communicators = CommunicatorStates()
        self.churn = AllocatorChurn(self.settings)
        self.examples = Examples(None, self.settings.max_processes)
        self.pushed = []
        self._planned = dict(planned)
        self._late = late
        self._incidents = incidents

    def push(self, activity):
        self.pushed.append(activity)
        return self._planned.get(len(self.pushed), ())

    def close(self):
        return self._late

    def incidents(self):
        return self._incidents

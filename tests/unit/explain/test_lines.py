"""Which lines causes were at work on: time is of the account, samples say which lines."""

import pytest

from otel_gpu import wire
from otel_gpu.enrich.thread_times import NO_WAIT
from otel_gpu.explain.chains import Culprit, stack_of_cause
from tests.unit.explain.streams import (
    MS,
    TRAINER,
    WORKER,
    account,
    chain_of,
    explain,
    in_ms,
    off_cpu,
    preempted,
    sampled,
    slow,
    slow_gap,
    stack_at,
    time_of,
    usual,
    usual_gap,
    woken_by,
)

AUGMENT, DECODE, IDLE = stack_at("slow_augment", 88), stack_at("decode", 12), stack_at("poll", 3)
GAP, SYNC, OTHER = wire.CONTEXT_GAP, wire.CONTEXT_SYNCHRONIZE, wire.CONTEXT_OTHER


def said(lines):
    """Function, share and samples of each line, and of how many."""
    return [
        (line.where.function, round(lines.share_of(line), 2), line.samples) for line in lines.each
    ], lines.samples


def worked_for(process, tid, time_ms, state=wire.STATE_ON_CPU, reason="lock", by=None):
    """
    The account before and after: a thread was on a CPU while others waited for it.

    ``by`` is the thread of its process that the loop waited for, if that waited for it in turn.
    """
    end = Culprit(process.pid, tid, process.comm)
    who = end if by is None else end._replace(tid=by)
    wait = NO_WAIT._replace(who=who, end=end, end_state=state)
    times = [time_of(wire.STATE_BLOCKED, GAP, time_ms, reason)._replace(wait=wait)]
    if by is not None:
        own = time_of(wire.STATE_BLOCKED, OTHER, time_ms, "lock", process)
        times.append(own._replace(wait=wait._replace(who=end)))
    before = [time._replace(time_ns=0) for time in times]
    return account(99, *before), account(
        101, *(time._replace(ended_ns=time.time_ns) for time in times)
    )


def test_a_gap_says_which_lines_its_feeder_worked_on():
    """Exactly as long as it was on a CPU; those of other threads and of other moments are not its."""
    chain = chain_of(
        usual_gap(),
        *sampled({IDLE: 5}, -100),
        *sampled({AUGMENT: 6, DECODE: 1}, 5),
        *sampled({IDLE: 7}, 5, tid=43),
        *sampled({IDLE: 3}, 20, context=SYNC),
        *sampled({IDLE: 5}, 100),
        off_cpu(70, 30, reason="io"),
        slow_gap(blocked_ns=30 * MS),
    )

    assert in_ms(chain.causes) == [("host_work", 70), ("io", 30)]
    assert said(chain.causes[0].lines) == ([("slow_augment", 0.86, 6), ("decode", 0.14, 1)], 7)
    assert chain.causes[1].lines.samples == 0
    assert stack_of_cause(chain.causes[0]) is AUGMENT


def test_who_was_waited_for_says_which_lines_it_worked_on():
    """In the interval in which it was waited for, and no other."""
    before, after = worked_for(TRAINER, 43, 70)
    chain = chain_of(
        usual_gap(),
        before,
        *sampled({IDLE: 5}, -60, tid=43, context=OTHER),
        *sampled({AUGMENT: 4, DECODE: 3}, 1, tid=43, context=OTHER),
        *sampled({IDLE: 9}, 101, tid=43, context=OTHER),
        off_cpu(75, 20, tid=43, reason="io"),
        off_cpu(0, 100, reason="lock", **woken_by(TRAINER, 43)),
        slow_gap(blocked_ns=100 * MS),
        after,
    )

    work, io, rest = chain.causes[0].via
    assert in_ms((work, io, rest)) == [("host_work", 70), ("io", 20), ("unexplained", 10)]
    assert said(work.lines) == ([("slow_augment", 0.57, 4), ("decode", 0.43, 3)], 7)
    assert rest.lines.samples == 0
    assert chain.causes[0].lines.samples == 0


def test_each_hop_has_its_own_lines():
    """The feeder waits for a thread that waits for a worker process that works."""
    feed = woken_by(WORKER, 79)
    before, after = worked_for(WORKER, 77, 60, reason="ipc", by=79)
    chain = chain_of(
        usual_gap(),
        before,
        *sampled({DECODE: 2}, 70, process=WORKER, tid=79, context=OTHER),
        *sampled({AUGMENT: 6}, 1, process=WORKER, context=OTHER),
        off_cpu(0, 60, process=WORKER, tid=79, reason="lock", **woken_by(WORKER, 77)),
        off_cpu(0, 100, reason="queue", **feed),
        slow_gap(blocked_ns=100 * MS),
        after,
    )

    (ipc,) = chain.causes
    lock = next(via for via in ipc.via if via.kind == "lock")
    rest = next(via for via in ipc.via if via.kind == "unexplained")
    (work,) = lock.via
    assert (work.kind, said(work.lines)) == ("host_work", ([("slow_augment", 1.0, 6)], 6))
    assert said(rest.lines) == ([("decode", 1.0, 2)], 2)


def test_the_holder_of_the_gil_says_what_it_held_it_for():
    """Slice by slice: the lines are of all slices together."""
    before, after = worked_for(TRAINER, 43, 100, reason="gil")
    slices = [off_cpu(n * 10, 10, reason="gil", **woken_by(TRAINER, 43)) for n in range(10)]
    chain = chain_of(
        usual_gap(),
        before,
        *sampled({AUGMENT: 9, DECODE: 1}, 1, tid=43, context=OTHER),
        *slices,
        slow_gap(blocked_ns=100 * MS),
        after,
    )

    (gil,) = chain.causes
    assert (gil.kind, gil.via[0].kind) == ("gil", "host_work")
    assert said(gil.via[0].lines) == ([("slow_augment", 0.9, 9), ("decode", 0.1, 1)], 10)


def test_where_nobody_knows_who_held_the_gil_the_other_threads_say_what_they_did():
    """Timers ended all of the waits."""
    chain = chain_of(
        usual_gap(),
        *sampled({AUGMENT: 4}, 1, tid=43, context=OTHER),
        *sampled({IDLE: 2}, 1),
        *sampled({IDLE: 2}, 1, process=WORKER),
        *sampled({IDLE: 9}, 50, tid=44, context=SYNC),
        *(off_cpu(n * 10, 10, reason="gil") for n in range(9)),
        slow_gap(blocked_ns=90 * MS),
    )

    gil = chain.causes[0]
    assert (gil.kind, gil.culprit, gil.via) == ("gil", None, ())
    assert said(gil.lines) == ([("slow_augment", 1.0, 4)], 4)
    assert stack_of_cause(gil) is None


@pytest.mark.parametrize("is_watched", [True, False])
def test_who_had_the_cpu_says_what_it_did_with_it_if_it_is_watched(is_watched):
    """Any of its threads, in the time in which the CPU was waited for."""
    hog = {"culprit_pid": 77, "culprit_tid": 77, "culprit_comm": "worker"}
    samples = sampled({AUGMENT: 3}, 1, process=WORKER, tid=80, context=OTHER)
    chain = chain_of(
        usual(),
        *(samples if is_watched else ()),
        preempted(0, 40, **hog),
        slow(run_queue_ns=40 * MS),
    )

    cause = next(cause for cause in chain.causes if cause.kind == "preemption")
    assert cause.lines.samples == (3 if is_watched else 0)
    # It is not where the thread was that lost its CPU.
    assert stack_of_cause(cause) is None


def test_an_incident_adds_up_the_lines_of_its_effects():
    """All of them: the worst ones are not the only ones that count."""
    stream = []
    for number in range(4):
        start = (100 + number) * 1000 * MS
        stream += sampled({AUGMENT: 3, DECODE: 1 + number % 2}, 5, start=start)
        stream.append(slow_gap(start=start))
    _, explainer = explain(usual_gap(), *stream)

    (incident,) = explainer.incidents()
    assert said(incident.causes[0].lines) == ([("slow_augment", 0.67, 12), ("decode", 0.33, 6)], 18)

"""A thread has one name in a document, whatever it was called when it was seen."""

import dataclasses

from otel_gpu import wire
from otel_gpu.enrich.activities import WhoActivity
from otel_gpu.enrich.identity.identities import Culprit, Who
from otel_gpu.enrich.thread_times import Wait
from otel_gpu.explain.explainer import Explainer
from otel_gpu.report.causes import walk
from otel_gpu.report.collector import Collector
from otel_gpu.report.document import Document
from tests.activities import MS, T0, capture, thread_time, times
from tests.unit.explain.streams import TRAINER, off_cpu, slow, usual


def document_of(*activities) -> Document:
    """The document of a stream."""
    collector = Collector(Explainer())
    for activity in (capture(), *activities):
        collector.observe(activity)
    return collector.finish("test")


def preempted(at_ms, for_ms, comm, pid=900, **more):
    """Another program has the CPU for some time."""
    return off_cpu(
        at_ms,
        0,
        for_ms,
        switch_type=wire.SWITCH_INVOLUNTARY,
        culprit_pid=pid,
        culprit_tid=pid,
        culprit_comm=comm,
        **more,
    )


def culprits_in(document):
    """All threads that are blamed for anything."""
    causes = [one for incident in document.incidents for one in incident.causes]
    causes += [one for chain in document.chains for one in chain.causes]
    found = {step.cause.culprit for step in walk(causes)}
    found |= {one.culprit for step in walk(causes) for one in step.cause.evidence}
    return {one for one in found if one} | {row.culprit for row in document.culprit_times}


def test_a_hog_that_ran_another_program_in_its_place_is_one():
    """``taskset`` was it for a moment, and then the shell that it started."""
    document = document_of(
        usual(),
        preempted(0, 10, "taskset"),
        slow(duration_ms=30, run_queue_ns=10 * MS),
        preempted(200, 70, "sh"),
        slow(duration_ms=90, start=100_200_000_000, run_queue_ns=70 * MS),
        usual(at_s=130),
    )

    assert culprits_in(document) == {Culprit(900, 900, "sh")}
    (row,) = document.culprit_times
    assert (row.time_ns, row.effects) == (80 * MS, 2)


def test_what_was_found_when_it_was_looked_up_is_its_name():
    """The account knows it by the name of its first moment, and so may all waits that were sent."""
    known = WhoActivity(T0, Who(900, comm="sh", command="sh hog.sh"))
    account = thread_time(
        TRAINER,
        wire.STATE_RUN_QUEUE,
        wire.CONTEXT_GAP,
        80 * MS,
        ended_ns=80 * MS,
        wait=Wait(0, Culprit(900, 0, "taskset"), None, wire.STATE_NONE, "", None),
    )
    document = document_of(
        usual(),
        preempted(0, 70, "taskset"),
        slow(duration_ms=90, run_queue_ns=70 * MS),
        times(100.5, account),
        known,
        usual(at_s=130),
    )

    assert culprits_in(document) == {Culprit(900, 900, "sh")}
    (process,) = [one for one in document.processes if one.time_tree]
    (waiting,) = process.time_tree.children
    assert [node.who.comm for node in waiting.children] == ["sh"]


def test_a_program_that_was_started_by_a_link_has_the_name_of_its_file():
    """The kernel calls it after /proc/self/exe."""
    named = dataclasses.replace(
        TRAINER,
        comm="exe",
        attributes={**TRAINER.attributes, "process.executable.name": "ranks"},
    )
    document = document_of(
        usual(named),
        preempted(0, 60, "exe", pid=TRAINER.pid, process=named, tid=43),
        slow(process=named, tid=43, comm="exe", duration_ms=90, run_queue_ns=60 * MS),
        usual(named, at_s=130),
    )

    assert {one.comm for one in culprits_in(document)} == {"ranks"}
    assert {chain.effect.comm for chain in document.chains} == {"ranks"}


def test_threads_of_one_process_keep_their_names():
    """They are several."""
    document = document_of(
        usual(),
        preempted(0, 10, "main"),
        off_cpu(
            20,
            0,
            60,
            switch_type=wire.SWITCH_INVOLUNTARY,
            culprit_pid=900,
            culprit_tid=901,
            culprit_comm="helper",
        ),
        slow(duration_ms=100, run_queue_ns=70 * MS),
        usual(at_s=130),
    )

    assert {(one.tid, one.comm) for one in culprits_in(document)} >= {(901, "helper")}
    assert (900, "helper") not in {(one.tid, one.comm) for one in culprits_in(document)}

"""Who others are: the last word about each, and the name of what ran."""

from otel_gpu import wire
from otel_gpu.enrich.activities import WhoActivity
from otel_gpu.enrich.identity.identities import Culprit, Who
from otel_gpu.enrich.thread_times import Wait
from otel_gpu.explain.explainer import Explainer
from otel_gpu.report.collector import Collector
from otel_gpu.state import thread_names as module
from otel_gpu.state.thread_names import ThreadNames
from tests.activities import SECOND, T0, calls, capture, image, snapshot, thread_time, times

WAITED = (wire.STATE_RUN_QUEUE, wire.CONTEXT_GAP)


def told(*everybody):
    names = ThreadNames()
    for second, who in enumerate(everybody):
        names.observe(WhoActivity(T0 + second * SECOND, who))
    return names


def test_a_process_that_ran_another_program_has_its_name():
    """``taskset sh`` is sh for all but a moment, and the account knows it by what came first."""
    names = told(Who(900, 0, "taskset", "taskset -c 1 sh"), Who(900, 0, "sh", "sh -c spin"))

    assert names.named(Culprit(900, 0, "taskset")) == Culprit(900, 0, "sh")
    found = names.find(Who(900, 0, "taskset"))
    assert (found.comm, found.command) == ("sh", "sh -c spin")


def test_a_thread_keeps_the_name_that_it_had():
    """It was seen itself; and whoever is not known is called as before."""
    names = told(Who(900, 0, "sh", "sh -c spin"))

    assert names.named(Culprit(900, 901, "worker")) == Culprit(900, 901, "worker")
    assert names.find(Who(900, 901, "worker")).comm == "worker"
    assert names.named(Culprit(7, 0, "hog")) == Culprit(7, 0, "hog")


def test_watched_processes_keep_the_names_that_they_give_themselves():
    """Their threads are seen one by one, and rename themselves."""
    names = ThreadNames()
    names.learn_programs([image(900, 1, name="python")])

    assert names.named(Culprit(900, 0, "hog")) == Culprit(900, 0, "hog")
    assert names.find(Who(900, 0, "hog")).comm == "hog"


def test_names_are_bounded(monkeypatch):
    """Those that were named last stay."""
    monkeypatch.setattr(module, "MAX_NAMES", 2)
    names = told(*(Who(pid, 0, f"p{pid}") for pid in (1, 2, 3)))

    named = [names.named(Culprit(pid, 0, "x")).comm for pid in (1, 2, 3)]
    assert named == ["x", "p2", "p3"]


def test_the_account_and_the_incident_call_a_hog_by_what_ran():
    """Time tree and chronic incident, of which the account alone tells, agree with the stalls."""
    process, wrapper = image(42, 1), Culprit(900, 0, "taskset")
    wait = Wait(0, wrapper, wrapper, wire.STATE_ON_CPU, "", None)
    collector = Collector(Explainer())
    for activity in (
        capture(),
        snapshot(1, calls(process, "cudaLaunchKernel", [5_000] * 50)),
        WhoActivity(T0 + SECOND, Who(900, 0, "sh", "sh -c spin")),
        times(
            5,
            thread_time(process, *WAITED, 3 * SECOND, wait=wait, ended_ns=3 * SECOND),
            thread_time(process, wire.STATE_ON_CPU, wire.CONTEXT_GAP, SECOND),
        ),
    ):
        collector.observe(activity)

    document = collector.finish("test")

    leading = [one.causes[0] for one in document.incidents if one.chronic]
    (waited,) = [cause for cause in leading if cause.kind == "run_queue"]
    assert waited.culprit == Culprit(900, 0, "sh")
    (judged,) = document.judged
    named = {
        node.who.comm
        for branch in judged.time_tree.children
        for node in branch.children
        if node.who
    }
    assert named == {"sh"}

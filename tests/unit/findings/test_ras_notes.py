"""What NCCL's own service says of a job, in a document."""

from otel_gpu.explain.explainer import Explainer
from otel_gpu.findings.collector import Collector
from tests.activities import RAS, capture, ras


def notes_of(*activities):
    collector = Collector(Explainer())
    for activity in (capture(), *activities):
        collector.observe(activity)
    return [note for note in collector.finish("test").notes if "RAS" in note]


def test_ranks_that_do_not_answer_are_told_with_their_processes():
    """And errors, with how many ranks have them."""
    silent = (
        "NCCL's own service (RAS) hears nothing of 2 of 4 ranks of communicator ae94423cfbb2ef4a "
        "(1 unresponsive, 1 dead): rank 2 (pid 5002 on 10.0.0.2), rank 3 (pid 5003 on 10.0.0.2)."
    )
    error = (
        "NCCL's own service (RAS) says of 1 rank of communicator ae94423cfbb2ef4a: ncclSystemError."
    )

    assert notes_of(ras(1, RAS)) == [silent, error]


def test_a_healthy_job_and_one_that_is_gone_say_nothing():
    """The latest answer counts."""
    healthy = RAS | {"silent": {}, "absent": [], "errors": {}}

    assert notes_of(ras(1, RAS), ras(2, healthy)) == []
    assert notes_of(ras(1, RAS), ras(2, is_there=False)) == []


def test_of_many_communicators_some_are_told():
    """The others are counted."""
    many = [RAS | {"id": f"{number:016x}", "errors": {}} for number in range(20)]

    notes = notes_of(ras(1, *many))
    assert len(notes) == 9
    assert notes[-1] == "NCCL's own service (RAS) says so of 12 more communicators."

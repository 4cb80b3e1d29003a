"""What was said of a process holds for those that it makes, until it ends."""

from otel_gpu.ledger.annotations import MAX_KEYS, MAX_PROCESSES, Annotations
from tests.activities import SECOND, annotation, ended, fork, image

JOB, RANK, HELPER = image(10), image(20, parent_pid=10), image(30)


def observed(*activities):
    said = Annotations()
    for activity in activities:
        said.observe(activity)
    return said


def test_what_was_said_of_a_process_goes_before_what_was_of_its_parents():
    said = observed(
        fork(JOB, RANK, SECOND, SECOND),
        fork(RANK, HELPER, SECOND, SECOND),
        annotation(JOB, 2, "epoch=1", "job=7"),
        annotation(RANK, 2, "epoch=2"),
        annotation(JOB, 3, "epoch=3"),
    )

    assert said.of(JOB) == {"epoch": "3", "job": "7"}
    assert said.of(RANK) == said.of(HELPER) == {"epoch": "2", "job": "7"}
    assert said.of(image(99)) == {}


def test_a_parent_is_known_by_its_child_too():
    """It may have been made before the capture."""
    assert observed(annotation(JOB, 2, "epoch=1")).of(RANK) == {"epoch": "1"}


def test_nothing_holds_after_the_end():
    """Neither when another process has the number."""
    said = observed(annotation(JOB, 2, "epoch=1"), ended(JOB, 3))
    assert said.of(RANK) == said.of(JOB) == {}
    said = observed(annotation(RANK, 2, "epoch=1"), fork(image(44), RANK, SECOND, SECOND))
    assert said.of(RANK) == {}


def test_memory_is_bounded():
    said = observed(
        *(annotation(image(pid), 1, "k=v") for pid in range(3, 3 * MAX_PROCESSES)),
        *(annotation(JOB, 1, f"k{n}={n}") for n in range(2 * MAX_KEYS)),
    )

    assert len(said._said) == MAX_PROCESSES
    assert list(said.of(JOB).values()) == [str(n) for n in range(MAX_KEYS, 2 * MAX_KEYS)]


def test_processes_that_make_each_other_are_no_end():
    """Numbers come again."""
    said = observed(
        fork(JOB, RANK, 1, 1), fork(RANK, JOB, 1, 1), annotation(JOB, 2, "a=1"),
        annotation(RANK, 2, "b=2"),
    )  # fmt: skip

    assert said.of(JOB) == {"a": "1", "b": "2"}

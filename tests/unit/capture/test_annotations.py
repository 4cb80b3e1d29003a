"""Whose an annotation is: the process around who said it that uses CUDA, or that it may name."""

import os

import pytest

from otel_gpu import wire
from otel_gpu.capture.annotations import Annotations

ROOT, OTHER = 0, 12_345
SHELL, JOB, TRAINER, SH, SAYS = 1_000_001, 1_000_002, 1_000_003, 1_000_004, 1_000_005


def placed(
    images, using=(), *, caller=SAYS, asked=0, uid=ROOT, flags=1, chain=None, watch_all=True
):
    """The pid that it is about, or how many are lost."""
    lost = []
    found = Annotations(
        dict.fromkeys(images, 7),
        set(using).__contains__,
        lambda: lost.append(1),
        watch_all=watch_all,
    )
    for parent, child in chain or [(SHELL, JOB), (JOB, TRAINER), (TRAINER, SH), (SH, SAYS)]:
        found.after_fork(parent, child)
    record = wire.ANNOTATION_RECORD.build(
        kind=wire.RECORD_ANNOTATION,
        size=wire.ANNOTATION_RECORD.size,
        ktime_ns=5,
        pid=caller,
        asked_pid=asked,
        uid=uid,
        annotation_flags=flags,
        text=b"epoch=3\0",
        text_bytes=8,
    )
    records = list(found.place(record))
    if not records:
        return f"lost {len(lost)}"
    (fields,) = map(wire.ANNOTATION_RECORD.named, records)
    assert (fields["image_ktime_ns"], fields["text"][:8], fields["ktime_ns"]) == (
        7,
        b"epoch=3\0",
        5,
    )
    assert lost == []
    return fields["pid"]


def test_it_is_of_the_next_process_around_that_uses_cuda():
    """A shell between is not, though it is watched, nor is who says it."""
    watched = (JOB, TRAINER, SH, SAYS)

    assert placed(watched, using=(TRAINER, SAYS)) == TRAINER
    assert placed(watched, using=(TRAINER, JOB)) == TRAINER
    assert placed(watched) == JOB
    assert placed((SAYS,)) == placed(()) == "lost 1"


def test_a_process_can_speak_of_itself():
    self = wire.ANNOTATE_SELF
    assert placed((SAYS,), asked=self) == SAYS
    assert placed((JOB,), asked=self) == "lost 1"


@pytest.mark.parametrize(
    ("values", "whose"),
    [
        ({}, "own"),
        ({"uid": OTHER}, "lost 1"),
        ({"flags": 0}, "lost 1"),
        ({"images": ()}, "lost 1"),
        ({"asked": 4_194_303}, 4_194_303),
        ({"asked": 4_194_303, "uid": OTHER}, "lost 1"),
    ],
)
def test_a_process_is_named_by_its_owner_alone(values, whose):
    """Who counts processes otherwise, as in a container, names none; root names who is gone, too."""
    own = os.getpid()
    given = {"images": (own, 4_194_303), "asked": own, "uid": ROOT} | values

    assert placed(given.pop("images"), **given) == (own if whose == "own" else whose)


def test_what_is_said_to_another_agent_is_no_loss():
    """Who watches some processes hears what is said anywhere; of these, all counts."""
    assert placed((), watch_all=False) == "lost 0"
    assert placed((), watch_all=False, asked=JOB) == "lost 0"
    assert placed((JOB,), watch_all=False, asked=JOB, uid=OTHER) == "lost 1"
    assert placed((SAYS,), watch_all=False, asked=1) == "lost 1"


def test_a_circle_is_no_end():
    """Numbers come again."""
    assert placed((SH,), chain=[(SH, SAYS), (SAYS, SH)]) == SH


def test_who_made_a_process_is_spoken_of_by_the_same_user_or_root_alone():
    """Root can start programs of other users, and they do not speak for it."""
    own = os.getpid()
    watched, chain = (own, TRAINER), [(own, TRAINER), (TRAINER, SAYS)]

    assert placed(watched, using=(own,), chain=chain) == own
    assert placed(watched, using=(own,), chain=chain, uid=OTHER) == "lost 1"

"""Sentences: who did what to whom, read aloud."""

import pytest

from otel_gpu.explain.accounting.verdicts import STATES
from otel_gpu.explain.chains import Cause, Culprit
from otel_gpu.explain.kinds import Bound, CauseKind, TimeClass
from otel_gpu.explain.rules import KINDS
from otel_gpu.report.causes import path_of
from otel_gpu.report.wording import phrases
from otel_gpu.report.wording.sentences import because, fault
from tests.unit.report.render.html.pages import text_of

HOG, LOADER, OWN = Culprit(900, 901, "hog"), Culprit(50, 50, "loader"), Culprit(42, 43, "saver")


def cause(kind, culprit=None, time_ns=100, via=()):
    return Cause(kind, time_ns, time_ns / 100, culprit, (), via)


def test_every_kind_state_and_class_can_be_told():
    """What the rules of blame can say has words and a colour here."""
    assert set(KINDS) == set(CauseKind)
    assert set(KINDS) - set(phrases.PHRASES) == set()
    assert set(STATES) - set(phrases.STATES) == set()
    assert set(TimeClass) - set(phrases.CLASSES) == set()
    assert set(Bound) - {Bound.COPIES} == set(phrases.VERDICTS)


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        (cause("preemption", HOG), "hog (900/901) took its CPU away"),
        (cause("run_queue"), "It was ready to run, and no CPU was free"),
        (cause("gpu_wait"), "It waited for the GPU"),
        (
            cause("ipc", LOADER, via=(cause("run_queue", HOG, 97), cause("host_work", LOADER, 3))),
            "It waited for data from loader (50), which hog (900/901) kept from running",
        ),
        (
            cause("lock", OWN, via=(cause("sleep", OWN, 99),)),
            "It waited for a lock of saver (42/43), which slept",
        ),
        (
            cause("ipc", LOADER, via=(cause("ipc", OWN, via=(cause("io", OWN),)),)),
            (
                "It waited for data from loader (50), which waited for data from saver (42/43), "
                "which waited for a disk or file system"
            ),
        ),
        # Nobody kept the sender waiting: then the data came from outside.
        (
            cause("ipc", LOADER, via=(cause("ipc", LOADER),)),
            "It waited for data from loader (50), which waited for data from outside",
        ),
        # No single thing was behind it.
        (
            cause("ipc", LOADER, via=(cause("run_queue", HOG, 49), cause("io", LOADER, 48))),
            "It waited for data from loader (50)",
        ),
        (cause("<b>", HOG), "<b>"),
        (cause("ipc", LOADER, via=(cause("<b>"),)), "It waited for data from loader (50), <b>"),
    ],
)
def test_a_cause_is_told_to_its_end(told, sentence):
    """The sentence follows the chain as long as one thing is behind most of it."""
    assert text_of(because(told)) == sentence


@pytest.mark.parametrize(
    ("told", "whose"),
    [
        (cause("preemption", HOG), "hog (900/901), another process"),
        (cause("lock", OWN), "saver (42/43), a thread of the same program"),
        (cause("ipc", LOADER, via=(cause("run_queue", HOG),)), "hog (900/901), another process"),
        (cause("ipc", LOADER, via=(cause("io", LOADER),)), "the disk or file system"),
        (
            cause("lock", OWN, via=(cause("sleep", OWN),)),
            "saver (42/43), which chose to sleep",
        ),
        (cause("gpu_wait"), "no program on the host: the device was busy"),
        (cause("ipc"), "not known: the sender was not seen"),
        (cause("<b>", HOG), "not known"),
    ],
)
def test_fault_is_the_last_ones(told, whose):
    """Who was waited for is not to blame for what somebody else did to it."""
    assert text_of(fault(told, 42)) == whose


def test_a_path_has_an_end():
    """It is as long as the chain."""
    told = cause("ipc", LOADER, via=(cause("ipc", OWN, via=(cause("io", OWN),)),))

    assert [step.kind for step in path_of(told)] == ["ipc", "ipc", "io"]

"""What is detached by a child, with links whose last descriptor tells when it is closed."""

import errno
import os
import threading
from contextlib import ExitStack

import pytest

from otel_gpu.capture import detaching
from otel_gpu.capture.detaching import Links


class Uprobe:
    """A link whose descriptor is one end of a pipe: at the other one it is seen when it is detached."""

    def __init__(self, stack: ExitStack) -> None:
        self.end, self.fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        stack.callback(os.close, self.end)

    def detach(self) -> None:
        os.close(self.fd)

    @property
    def is_detached(self) -> bool:
        try:
            return os.read(self.end, 1) == b""
        except BlockingIOError:
            return False


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


def add(links: Links, stack: ExitStack, count: int) -> list[Uprobe]:
    uprobes = [Uprobe(stack) for _ in range(count)]
    for uprobe in uprobes:
        links.add(uprobe.detach, uprobe.fd)
    return uprobes


@pytest.mark.parametrize("is_patient", [True, False])
@pytest.mark.parametrize("count", [0, 7, 211])
def test_all_are_detached(stack, monkeypatch, count, is_patient):
    """What is at no uprobe is detached by the agent itself."""
    # Close descriptors of pipes, too, as if they were of BPF.
    monkeypatch.setattr(detaching, "_KERNEL_SIDE", ("pipe:",))
    monkeypatch.setattr(detaching, "_WAITS_S", 60.0)
    links, mine = Links(), []
    links.add(lambda: mine.append(1))
    uprobes = add(links, stack, count)

    assert links.detach_all(is_patient=is_patient) is None
    assert all(uprobe.is_detached for uprobe in uprobes)
    assert mine == [1]


def test_what_takes_long_is_left_to_a_child(stack, monkeypatch):
    """The child that is named is at the one that is left, and ends when that can be detached."""
    monkeypatch.setattr(detaching, "_KERNEL_SIDE", ("pipe:",))
    monkeypatch.setattr(detaching, "_WAITS_S", 0.0)
    links, late = Links(), Uprobe(stack)
    uprobes = add(links, stack, 4)
    held, release = os.pipe2(os.O_CLOEXEC)
    stack.callback(os.close, held)

    def wait() -> None:
        # The child has the other end, too.
        os.close(release)
        os.read(held, 1)
        late.detach()

    links.add(wait, late.fd)
    left = links.detach_all(is_patient=False)

    assert left is not None
    assert 1 <= left.links <= 5
    assert not late.is_detached
    os.close(release)
    assert os.waitpid(left.pid, 0) == (left.pid, 0)
    assert late.is_detached
    assert all(uprobe.is_detached for uprobe in uprobes)


def refuse(*_):
    raise OSError(errno.EAGAIN, "no more processes")


def refuse_thread(*_):
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize(
    ("place", "name", "function"),
    [(os, "fork", refuse), (threading.Thread, "start", refuse_thread)],
)
def test_all_are_detached_where_there_can_be_no_process_or_thread(
    stack, monkeypatch, place, name, function
):
    """It takes longer."""
    monkeypatch.setattr(detaching, "_KERNEL_SIDE", ("pipe:",))
    monkeypatch.setattr(detaching, "_WAITS_S", 60.0)
    links = Links()
    uprobes = add(links, stack, 23)
    monkeypatch.setattr(place, name, function)

    assert links.detach_all(is_patient=False) is None
    assert all(uprobe.is_detached for uprobe in uprobes)


def test_one_that_fails_keeps_no_other():
    links, detached = Links(), []
    links.add(refuse)
    links.add(lambda: detached.append(1))
    assert links.detach_all() is None
    assert detached == [1]


def test_it_is_detached_once():
    links, detached = Links(), []
    one = links.add(lambda: detached.append(1))
    links.add(lambda: detached.append(2))
    links.detach([one])
    links.detach_all()
    links.detach_all()
    assert detached == [1, 2]

"""
What is placed by another process, with links whose last descriptor shows when they are taken away.

A link is one end of a pipe here: at the other one it is seen when the last process has closed it.
"""

import errno
import os
import signal
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from otel_gpu.capture.probes import attacher as module
from otel_gpu.capture.probes.attacher import Attacher, waiting
from otel_gpu.capture.probes.detaching import detach_side_by_side
from otel_gpu.errors import BpfError
from otel_gpu.procfs import uninterruptible_waits

PLACES = [(0x40, 7), (0x50, (1 << 64) - 1)]


class Kernel:
    """
    Places probes: a pipe's end for each program, and more for some.

    ``gate`` keeps it waiting when the program is "waits": until a byte comes.
    """

    def __init__(self, stack: ExitStack, count: int = 1) -> None:
        self.ends, self.fds = zip(*(os.pipe2(os.O_CLOEXEC) for _ in range(count)), strict=True)
        self.gate, self.opened = os.pipe2(os.O_CLOEXEC)
        self.asked, self.note = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for end in (*self.ends, self.gate, self.opened, self.asked, self.note):
            stack.callback(os.close, end)

    def attach(self, program, path, places, on_return):
        assert [tuple(place) for place in places] == PLACES
        os.write(self.note, f"{program}:{on_return}:{Path(path).readlink()}\n".encode())
        if program.startswith("waits"):
            os.read(self.gate, 1)
        if program == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if program.endswith("refused"):
            number = {"none": errno.ENOENT, "many": errno.EMFILE, "waits": errno.EINVAL}
            text = os.strerror(number[program.partition("_")[0]])
            raise BpfError(f"{program} is not attached: {text}", hint="do that", log="said so")
        fds = [os.dup(fd) for fd in self.fds]
        return [(lambda fd=fd: os.close(fd), fd) for fd in fds]

    @property
    def kept(self):
        return {*self.fds, self.gate, self.note}

    def let_go(self):
        """Close ours, so that the links' descriptors are the last ones."""
        for fd in self.fds:
            os.close(fd)

    def asks(self):
        try:
            return os.read(self.asked, 1 << 16).decode().splitlines()
        except BlockingIOError:
            return []


@contextmanager
def attaching(stack, *, count=1, at_turn=lambda: None):
    kernel = Kernel(stack, count)
    attacher = Attacher(kernel.attach, kernel.kept, at_turn)
    with Path(__file__).open("rb") as file:
        yield kernel, attacher, file.fileno()


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def impatient(monkeypatch):
    """The attacher is thought to wait as soon as it does not answer."""
    monkeypatch.setattr(module, "_WAITS_S", 0.2)


def answered(attacher, link):
    until_s = time.monotonic() + 30
    while link.is_waiting and time.monotonic() < until_s:
        attacher.take_answers()
        time.sleep(0.01)
    return not link.is_waiting


def test_the_other_process_places_probes_where_it_is_told_to(stack):
    """It gets the file, the places and the cookies, whole."""
    with attaching(stack) as (kernel, attacher, file):
        link = attacher.attach("enter", file, PLACES, on_return=True)
        assert not waiting([link, object()])
        assert len(link.fds) == 1
        assert 0 < attacher.cpu_ns() < 60e9
        assert kernel.asks() == [f"enter:True:{__file__}"]
        kernel.let_go()
        assert attacher.close() is None


def test_many_links_come_in_several_messages(stack):
    with attaching(stack, count=501) as (kernel, attacher, file):
        link = attacher.attach("enter", file, PLACES, on_return=False)
        assert len(link.fds) == 501
        kernel.let_go()
        assert attacher.close() is None
        assert all(os.read(end, 1) == b"" for end in kernel.ends)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EMFILE])
def test_an_error_comes_back_as_it_was(stack, number):
    name = {errno.ENOENT: "none_refused", errno.EMFILE: "many_refused"}[number]
    with attaching(stack) as (_, attacher, file):
        with pytest.raises(BpfError, match=os.strerror(number)) as raised:
            attacher.attach(name, file, PLACES, on_return=False)
        assert (raised.value.hint, raised.value.log) == ("do that", "said so")
        assert not attacher.is_late
        attacher.attach("enter", file, PLACES, on_return=False)
        attacher.close()


def test_what_is_not_answered_in_time_is_placed_later(stack, impatient, monkeypatch):
    """Others wait behind it, in order; nobody waits for them any more."""
    with attaching(stack) as (kernel, attacher, file):
        late = attacher.attach("waits", file, PLACES, on_return=False)
        # As long would each of the others be waited for.
        monkeypatch.setattr(module, "_WAITS_S", 30.0)
        asked_s = time.monotonic()
        others = [attacher.attach("enter", file, PLACES, on_return=False) for _ in range(5)]
        took_s = time.monotonic() - asked_s
        assert attacher.is_late
        assert waiting([late, *others]) == [late, *others]
        assert took_s < 30.0
        os.write(kernel.opened, b"\0")
        assert all(answered(attacher, link) for link in [late, *others])
        assert not attacher.is_late
        assert len(kernel.asks()) == 6
        attacher.close()


def test_an_error_that_comes_late_is_kept_and_logged(stack, impatient, caplog):
    with attaching(stack) as (kernel, attacher, file):
        late = attacher.attach("waits_refused", file, PLACES, on_return=False)
        os.write(kernel.opened, b"\0")
        assert answered(attacher, late)
        assert os.strerror(errno.EINVAL) in str(late.error)
        assert os.strerror(errno.EINVAL) in caplog.text
        attacher.close()


def test_links_go_in_the_other_process(stack):
    with attaching(stack) as (kernel, attacher, file):
        link = attacher.attach("enter", file, PLACES, on_return=False)
        kernel.let_go()
        attacher.detach([link])
        attacher.detach([link])
        # The process itself was given one, too.
        os.kill(attacher.pid, 0)
        assert link.fds == []
        attacher.close()
        assert os.read(kernel.ends[0], 1) == b""


def test_what_is_detached_before_it_is_placed_is_not_left_behind(stack, impatient):
    """One was asked for already, and one was not."""
    with attaching(stack) as (kernel, attacher, file):
        asked = attacher.attach("waits", file, PLACES, on_return=False)
        queued = attacher.attach("enter", file, PLACES, on_return=False)
        attacher.detach([asked, queued])
        os.write(kernel.opened, b"\0")
        last = attacher.attach("enter", file, PLACES, on_return=False)
        assert answered(attacher, last)
        assert asked.fds == queued.fds == []
        assert len(kernel.asks()) == 2
        attacher.close()


def test_when_it_dies_another_one_takes_its_place(stack, caplog):
    """It has all links, and what the first died of is not tried for ever."""
    with attaching(stack) as (kernel, attacher, file):
        first = attacher.attach("enter", file, PLACES, on_return=False)
        pid = attacher.pid
        os.kill(pid, signal.SIGKILL)
        second = attacher.attach("enter", file, PLACES, on_return=False)
        assert attacher.pid not in {0, pid}
        assert f"process {pid}, which places probes, has ended" in caplog.text
        with pytest.raises(BpfError, match="has ended"):
            attacher.attach("dies", file, PLACES, on_return=False)
        attacher.detach([first])
        assert first.fds == []
        assert len(second.fds) == 1
        kernel.let_go()
        assert attacher.close() is None
        assert os.read(kernel.ends[0], 1) == b""


def test_without_another_process_errors_say_so(stack, monkeypatch):
    with attaching(stack) as (kernel, attacher, file):
        attacher.attach("enter", file, PLACES, on_return=False)
        os.kill(attacher.pid, signal.SIGKILL)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fork", refuse)
            for _ in range(2):
                with pytest.raises(BpfError, match=r"no process|has ended"):
                    attacher.attach("enter", file, PLACES, on_return=False)
        kernel.let_go()
        assert attacher.close() is None
        assert os.read(kernel.ends[0], 1) == b""


def test_the_end_waits_for_a_second_only(stack, monkeypatch, impatient):
    """Who is left behind is named, and ends when the kernel lets it; all is taken away then."""
    monkeypatch.setattr(module, "_ENDS_S", 0.1)
    turns = []
    with attaching(stack, at_turn=lambda: turns.append(1)) as made:
        kernel, attacher, file = made
        attacher.attach("enter", file, PLACES, on_return=False)
        attacher.attach("waits", file, PLACES, on_return=False)
        pid = attacher.pid
        kernel.let_go()
        left = attacher.close()
        assert left is not None
        assert left.pid == pid
        assert turns
        os.write(kernel.opened, b"\0")
        os.waitpid(pid, 0)
        assert os.read(kernel.ends[0], 1) == b""


def test_a_capture_that_ends_waits_for_no_answer(stack):
    with attaching(stack) as (kernel, attacher, file):
        threading.Timer(0.3, attacher.end_soon).start()
        link = attacher.attach("waits", file, PLACES, on_return=False)
        assert link.is_waiting
        os.write(kernel.opened, b"\0")
        attacher.close()


def test_too_many_that_wait_are_refused(stack, monkeypatch, impatient):
    monkeypatch.setattr(module, "_MAX_QUEUED", 3)
    with attaching(stack) as (kernel, attacher, file):
        for _ in range(4):
            attacher.attach("waits", file, PLACES, on_return=False)
        with pytest.raises(BpfError, match="3 other probes are waiting"):
            attacher.attach("enter", file, PLACES, on_return=False)
        os.write(kernel.opened, b"\0" * 4)
        attacher.close()


def test_memory_maps_may_be_locked_while_probes_wait(stack, monkeypatch, impatient):
    """Of processes that wait in the kernel, which none does here."""
    with attaching(stack) as (kernel, attacher, file):
        monkeypatch.setattr(uninterruptible_waits, "place_of_wait", lambda _pid: "some_function")
        assert not uninterruptible_waits.is_locked(os.getpid())
        late = attacher.attach("waits", file, PLACES, on_return=False)
        assert uninterruptible_waits.is_locked(os.getpid())
        with pytest.raises(OSError, match="some_function"):
            uninterruptible_waits.check_lock(os.getpid())
        os.write(kernel.opened, b"\0")
        assert answered(attacher, late)
        assert not uninterruptible_waits.is_locked(os.getpid())
        attacher.close()


def refuse(*_):
    raise OSError(errno.EAGAIN, "no more processes")


def refuse_thread(*_):
    raise RuntimeError("can't start new thread")


def test_all_are_detached_where_there_can_be_no_thread(monkeypatch):
    """It takes longer; one that fails keeps no other."""
    monkeypatch.setattr(threading.Thread, "start", refuse_thread)
    detached = []
    detach_side_by_side([refuse, *(lambda n=n: detached.append(n) for n in range(23))])
    assert detached == list(range(23))

"""The nice value of the thread that captures: higher while nothing waits for it, and never for good."""

import os
import threading

import pytest

from otel_gpu.capture import priority
from otel_gpu.capture.priority import Priority, allow_return


def nice():
    return os.getpriority(os.PRIO_PROCESS, 0)


def in_a_thread(act):
    """Do something that leaves this thread's nice value alone."""
    found = []
    thread = threading.Thread(target=lambda: found.append(act()))
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture
def own():
    if not priority._can_return(nice()):
        pytest.skip("this user may not lower a nice value again")
    return nice()


@pytest.mark.parametrize("lowered_by", [1, 7, 19])
def test_it_is_higher_until_something_waits(own, lowered_by):
    """And again afterwards; other threads keep theirs."""

    def act():
        one = Priority(lowered_by)
        values = [nice()]
        for is_urgent in (False, True, False, False, True):
            one.adjust(is_urgent=is_urgent)
            values.append(nice())
        return values

    low = min(19, own + lowered_by)
    assert in_a_thread(act) == [own, low, own, low, low, own]
    assert nice() == own


def test_nothing_changes_where_it_is_to_stay(own):
    """An operator has a better idea, such as a cgroup."""

    def act():
        one = Priority(0)
        one.adjust(is_urgent=False)
        return nice()

    assert in_a_thread(act) == own


def test_nothing_changes_where_there_is_no_way_back(monkeypatch):
    """A thread that stays low on a busy machine loses records."""
    own = nice()
    set_priority = os.setpriority

    def refuse(which, who, value):
        if value < os.getpriority(which, who):
            raise PermissionError
        set_priority(which, who, value)

    monkeypatch.setattr(priority.os, "setpriority", refuse)

    def act():
        one = Priority(10)
        one.adjust(is_urgent=False)
        return nice()

    assert in_a_thread(act) == own


def test_the_way_back_is_allowed_once_and_never_narrowed(monkeypatch):
    """A limit that already allows more stays."""
    limits = {"now": (0, 0)}
    monkeypatch.setattr(priority.resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(priority.resource, "setrlimit", lambda _, limit: limits.update(now=limit))
    monkeypatch.setattr(priority.os, "getpriority", lambda *_: 3)

    assert allow_return()
    assert limits["now"] == (17, 17)
    limits["now"] = (40, 40)
    assert allow_return()
    assert limits["now"] == (40, 40)


def test_what_may_not_raise_its_limit_needs_a_capability(monkeypatch):
    """As root of a container, which may change nice values and not limits."""

    def refuse(*_):
        raise ValueError

    monkeypatch.setattr(priority.resource, "getrlimit", lambda _: (0, 0))
    monkeypatch.setattr(priority.resource, "setrlimit", refuse)

    assert not allow_return()

"""Which tests run beside which, and in what order."""

import fcntl
from types import SimpleNamespace

import pytest

from tests import turns

KERNEL, ALONE, AMONG = pytest.mark.kernel, pytest.mark.alone, pytest.mark.alone(among="kernel")
AMONG_PRELOAD = pytest.mark.alone(among="preload")
ALL = {"room", "kernel", "preload"}


def item(path, *marks):
    named = {mark.name: mark.mark for mark in marks}
    return SimpleNamespace(
        nodeid=f"{path}::test", path=turns.Path(path), get_closest_marker=named.get
    )


@pytest.fixture
def free(tmp_path, monkeypatch):
    """Say which locks of test processes a further process would get, and share."""
    monkeypatch.setattr(turns, "FOLDER", tmp_path)
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")

    def try_locks(how):
        found = set()
        for name in ALL:
            with (tmp_path / f"{name}.lock").open("w") as file:
                try:
                    fcntl.flock(file, how | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                found.add(name)
        return found

    return lambda: (try_locks(fcntl.LOCK_EX), try_locks(fcntl.LOCK_SH))


@pytest.mark.parametrize(
    ("marks", "for_one", "for_several"),
    [
        ((), {"kernel", "preload"}, ALL),
        ((KERNEL,), {"preload"}, ALL),
        ((KERNEL, AMONG_PRELOAD), set(), {"room", "kernel"}),
        ((KERNEL, AMONG), set(), {"room"}),
        ((KERNEL, ALONE), {"preload"}, {"preload"}),
        ((ALONE,), {"kernel", "preload"}, {"kernel", "preload"}),
    ],
)
def test_who_may_run_meanwhile(free, marks, for_one, for_several):
    """Nobody beside one that is alone, no programs beside one that is so among them."""
    with turns.Turns().turn(item("tests/x.py", *marks), None):
        assert free() == (for_one, for_several)
    assert free() == (ALL, ALL)


def test_an_agent_of_preloaded_programs_is_not_beside_one_that_watches_everything(free):
    """That one would be an agent of the same programs."""
    with turns.Turns().turn(item(f"{turns.WITH_PRELOAD}x.py"), None):
        assert free() == ({"kernel"}, ALL)


def test_tests_that_are_alone_share_a_turn(free):
    """Between them nobody comes in, and after the last one everybody does."""
    mine, one = turns.Turns(), item("tests/x.py", KERNEL, ALONE)
    with mine.turn(one, one):
        pass
    assert free() == ({"preload"}, {"preload"})
    with mine.turn(one, item("tests/x.py", KERNEL)):
        pass
    assert free() == (ALL, ALL)


def test_what_is_alone_or_takes_long_comes_first():
    """And unit tests last."""
    unit, plain = item("tests/unit/e.py"), item("tests/kernel/d.py", KERNEL)
    preload, among, alone = (
        item("tests/kernel/a.py", KERNEL, mark) for mark in (AMONG_PRELOAD, AMONG, ALONE)
    )
    long = item(f"{turns.LONGEST[0]}c.py", KERNEL)

    found = sorted([unit, plain, long, preload, among, alone], key=turns.order)

    assert found == [alone, among, preload, long, plain, unit]


@pytest.mark.parametrize(
    ("worker", "count", "is_it"),
    [
        *(("gw3", 4, True), ("gw2", 4, False), ("gw1", 4, False), ("gw1", 2, True)),
        *(("gw0", 2, False), ("gw0", 1, False), ("gw4", 4, False)),
    ],
)
def test_the_last_of_several_processes_stands_back(worker, count, is_it):
    """One that replaces another that has crashed does not, nor does the only one."""
    assert turns.stands_back(worker, count) == is_it

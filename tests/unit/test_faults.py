"""Errors that nobody expected: counted by place, said rarely, and kept where they are."""

import logging
import threading

import pytest

from otel_gpu.faults import Faults, Isolated, Stage


class Clock:
    """A monotonic clock that moves when it is told to."""

    def __init__(self):
        self.now_s = 1_000.0

    def __call__(self):
        return self.now_s


class Flaky:
    """Fails while it is told to."""

    def __init__(self):
        self.seen = []
        self.is_broken = True

    def observe(self, item):
        if self.is_broken:
            raise RuntimeError(item)
        self.seen.append(item)


def hand(part, items):
    """Hand items over as the pipeline does."""
    for item in items:
        try:
            part.observe(item)
        except Exception as error:  # noqa: BLE001 -- as the pipeline does
            part.failed(error)


def test_an_error_is_said_with_its_traceback_once(caplog):
    """The first of a place at once, the others as a number, a minute and then two minutes later."""
    clock = Clock()
    faults = Faults(clock)
    lines = []
    for second in range(181):
        clock.now_s = 1_000.0 + second
        with faults.at("store"):
            raise KeyError(second)
        lines += [second] * (len(caplog.records) > len(lines))

    assert lines == [0, 60, 180]
    assert faults.status()["errors"] == {"store": 181}
    first, second, third = caplog.records
    assert first.exc_info
    assert "KeyError: 0" in first.getMessage()
    assert not second.exc_info
    assert "store failed 60 times more" in second.getMessage()
    assert "store failed 120 times more" in third.getMessage()
    assert all(record.levelno == logging.ERROR for record in caplog.records)


def test_a_place_is_left_with_its_error():
    """The context ends, and what follows it goes on; an interrupt is no error."""
    faults = Faults()
    reached = []

    with faults.at("discovery"):
        raise OSError("gone")
    reached.append("after")
    for interrupt in (KeyboardInterrupt, SystemExit, GeneratorExit):
        with pytest.raises(interrupt), faults.at("discovery"):
            raise interrupt

    assert reached == ["after"]
    assert faults.status() == {"errors": {"discovery": 1}, "skipped": {}, "off": {}}


def test_errors_of_several_threads_all_count():
    """Threads of the store and the exports count beside the loop."""
    faults = Faults()

    def fail():
        for _ in range(1009):
            faults.add("store.journal", ValueError("x"))

    threads = [threading.Thread(target=fail) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert faults.status()["errors"] == {"store.journal": 4 * 1009}


def test_a_part_loses_the_items_that_it_fails_at():
    """And no others."""
    faults = Faults(Clock())
    flaky = Flaky()
    part = Isolated(faults, "store", flaky)

    hand(part, [1, 2])
    flaky.is_broken = False
    hand(part, [3, 5])

    assert flaky.seen == [3, 5]
    assert faults.status() == {"errors": {"store": 2}, "skipped": {}, "off": {}}


def test_a_part_that_fails_again_and_again_gets_a_clean_state():
    """After ten errors it is made anew, and works."""
    faults = Faults(Clock())
    clean = Flaky()
    clean.is_broken = False
    part = Isolated(faults, "explain", Flaky(), lambda broken: clean if broken else broken)

    hand(part, range(13))

    assert part.part is clean
    assert clean.seen == [10, 11, 12]
    assert faults.status()["errors"] == {"explain": 10}


def test_a_part_that_no_clean_state_helps_is_switched_off_and_tried_again():
    """
    After a thousand errors it is skipped for a minute, then for two: each item is accounted for.
    It works when what broke it is over.
    """
    clock = Clock()
    faults = Faults(clock)
    flaky = Flaky()
    part = Isolated(faults, "store", flaky)

    hand(part, range(1_200))
    assert faults.status() == {
        "errors": {"store": 1_000}, "skipped": {"store": 200}, "off": {"store": 1}
    }  # fmt: skip
    part.call(lambda store: store.observe("chain"))
    assert faults.status()["skipped"] == {"store": 201}

    clock.now_s += 60
    hand(part, range(100))
    assert faults.status() == {
        "errors": {"store": 1_010}, "skipped": {"store": 291}, "off": {"store": 1}
    }  # fmt: skip
    assert faults.summary() == "errors: store 1,010; switched off: store"

    flaky.is_broken = False
    clock.now_s += 60
    hand(part, [1])
    assert flaky.seen == []
    clock.now_s += 60
    hand(part, [2, 3])

    assert flaky.seen == [2, 3]
    assert faults.status()["off"] == {"store": 0}
    assert faults.cost_a_part


def test_a_quiet_minute_forgives():
    """An error now and then never switches anything off."""
    clock = Clock()
    faults = Faults(clock)
    part = Isolated(faults, "store", Flaky(), lambda _: pytest.fail("it was renewed"))

    for _ in range(1_500):
        clock.now_s += 61
        hand(part, ["x"])

    assert faults.status() == {"errors": {"store": 1_500}, "skipped": {}, "off": {}}
    assert not faults.cost_a_part


def test_a_part_that_cannot_be_made_anew_is_switched_off():
    """The error of that counts too."""
    faults = Faults(Clock())

    def fail(_):
        raise OSError("disk full")

    part = Isolated(faults, "store", Flaky(), fail)
    hand(part, range(12))

    assert faults.status() == {
        "errors": {"store": 11}, "skipped": {"store": 2}, "off": {"store": 1}
    }  # fmt: skip


def test_a_part_that_is_not_isolated_raises():
    """A tool that runs once ends with the error."""
    part = Stage(Flaky())

    with pytest.raises(RuntimeError):
        hand(part, [1])
    with pytest.raises(RuntimeError):
        part.call(lambda flaky: flaky.observe(1))

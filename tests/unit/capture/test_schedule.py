"""The schedule of the capture's loop."""

from otel_gpu.capture.schedule import Schedule
from otel_gpu.faults import Faults


class Clock:
    """A monotonic clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_actions_run_when_they_are_due():
    """Each at its own interval, the first time one interval from the start."""
    clock = Clock()
    schedule = Schedule(Faults(), clock)
    schedule.every(1.0, "one", lambda: [b"second"])
    schedule.every(2.0, "two", lambda: [b"two"])

    seen = []
    for now_s in (100.5, 101.0, 101.5, 102.0, 103.0):
        clock.now_s = now_s
        seen.append(list(schedule.run_due()))

    assert seen == [[], [b"second"], [], [b"second", b"two"], [b"second"]]


def test_a_late_loop_runs_an_action_once():
    """Ten missed snapshots are one snapshot."""
    clock = Clock()
    schedule = Schedule(Faults(), clock)
    schedule.every(1.0, "one", lambda: [b"snapshot"])

    clock.now_s += 10

    assert list(schedule.run_due()) == [b"snapshot"]
    assert schedule.wait_s() == 1.0


def test_the_wait_is_to_the_next_action():
    """It is never negative."""
    clock = Clock()
    schedule = Schedule(Faults(), clock)
    schedule.every(3.0, "three", list)
    schedule.every(2.0, "two", list)

    assert schedule.wait_s() == 2.0
    clock.now_s += 5
    assert schedule.wait_s() == 0.0


def test_an_action_that_fails_costs_its_own_rest(caplog):
    """What it had yielded stands, the next action has its turn, and so has it an interval later."""
    clock = Clock()
    faults = Faults(clock)
    schedule = Schedule(faults, clock)

    def fail():
        yield b"first"
        raise KeyError("second")

    schedule.every(1.0, "failing", fail)
    schedule.every(1.0, "working", lambda: [b"third"])

    for _ in range(2):
        clock.now_s += 1
        assert list(schedule.run_due()) == [b"first", b"third"]

    assert faults.status()["errors"] == {"failing": 2}
    assert caplog.text.count("KeyError: 'second'\n") >= 1


def test_what_is_due_at_about_the_same_time_wakes_the_loop_up_once():
    """However long each takes, and for as long as it goes on."""
    clock = Clock()
    schedule = Schedule(Faults(), clock)
    for delay_s in (0.0, 0.003, 0.004):
        clock.now_s += delay_s
        schedule.every(0.5, "often", lambda: [b"often"])
    clock.now_s += 0.001
    schedule.every(1.0, "seldom", lambda: [b"seldom"])

    woken, ran = 0, []
    while len(ran) < 70:
        clock.now_s += schedule.wait_s() + 1e-6
        woken += 1
        ran += schedule.run_due()

    assert (woken, ran.count(b"often"), ran.count(b"seldom")) == (20, 60, 10)


def test_what_runs_at_each_turn_wakes_nobody_up():
    """It runs when something else does."""
    clock = Clock()
    schedule = Schedule(Faults(), clock)
    schedule.every(1.0, "one", lambda: [b"one"])
    schedule.at_each_turn("always", lambda: [b"always"])

    assert schedule.wait_s() == 1.0
    assert list(schedule.run_due()) == [b"always"]
    clock.now_s += 1
    assert list(schedule.run_due()) == [b"always", b"one"]

"""What the agent makes of the periods that the kernel side keeps."""

import os
import random

import pytest

from otel_gpu import wire
from otel_gpu.capture.preload.step_detection import PreloadDetectors
from otel_gpu.capture.steps.detector import FoundSteps
from otel_gpu.capture.steps.period import CallSequence, Period
from otel_gpu.limits.work_budget import Share, WorkBudget
from tests.unit.capture.step_detectors import KERNEL, TO_DEVICE, TO_HOST, WAIT, thread

STEP = [TO_DEVICE, *range(KERNEL, KERNEL + 8), WAIT]
IMAGE = (7, 50)
WATCHED = dict([IMAGE])
FULL = wire.DETECTOR_CALLS


class Maps:
    """StepDetectors in memory, as ``PeriodMaps`` has them."""

    def __init__(self):
        self.detectors, self.kept, self.followed, self.freed = {}, {}, {}, []
        self.told = 0  # periods, so far

    def claim(self, index, log, *, tid=9, image=IMAGE, **fields):
        pid, program_ktime_ns = image
        who = {"pid": pid, "tid": tid, "program_ktime_ns": program_ktime_ns}
        calls = {"area": 1, "kept": len(log.calls.symbols), "made": len(log.calls.symbols)}
        named = wire.STEP_DETECTOR.named(wire.STEP_DETECTOR.build(**who, **(calls | fields)))
        self.detectors[index], self.kept[index] = named, log.calls

    def make_more(self, index, log):
        self.kept[index] = log.calls
        self.detectors[index] |= dict.fromkeys(("kept", "made"), len(log.calls.symbols))

    def taken(self):
        return ((index, self.detector(index)) for index in list(self.detectors))

    def detector(self, index):
        return dict(self.detectors[index])

    def calls(self, index):
        return self.kept[index]

    def holds(self, index):
        return index in self.detectors

    def iterations(self, _index, *, is_last=False):
        return ()

    def follow(self, index, period):
        assert isinstance(period, Period)
        self.followed[index] = period
        self.told += 1

    def stop(self, index):
        self.followed.pop(index, None)

    def free(self, index):
        del self.detectors[index]
        self.freed.append(index)

    def take_area(self, index):
        self.detectors[index]["area"] = 0
        self.kept[index] = CallSequence([], [], [], {})

    def share_areas(self, wanting):
        for index in wanting:
            if not self.detectors[index]["area"]:
                self.detectors[index] |= {"area": 1, "kept": 0}


class Clock:
    """A clock that is set by hand."""

    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def maps():
    return Maps()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def steps(maps, clock):
    return FoundSteps([maps], lambda pid: WATCHED.get(pid, 0), clock)


def read(steps):
    """What is said of steps in one reading, as (start, end, number)."""
    return named(steps.read())


def named(records):
    fields = ("start_ktime_ns", "ktime_ns", "number")
    return [tuple(map(wire.STEP_RECORD.named(record).get, fields)) for record in records]


def bounds(log):
    """When the steps of a log began and ended, as far as a call after them says it."""
    starts, gaps = log.calls.starts_ns, log.calls.gaps_ns
    return [
        (starts[first] - gaps[first], starts[last + 1] - gaps[last + 1])
        for first, last, _ in log.steps
        if last + 1 < len(starts)
    ]


def round_of(start_ktime_ns, end_ktime_ns, *, tid=9, image=IMAGE, index=0):
    pid, program_ktime_ns = image
    return wire.ITERATION_RECORD.build(
        kind=wire.RECORD_ITERATION,
        size=wire.ITERATION_RECORD.size,
        ktime_ns=end_ktime_ns,
        start_ktime_ns=start_ktime_ns,
        program_ktime_ns=program_ktime_ns,
        detector=index,
        pid=pid,
        tid=tid,
    )


def test_steps_before_the_period_was_known_come_before_those_after_it(maps, steps):
    """Each of them once, also those that are in both."""
    log = thread([("step", STEP)] * 20, host_us=1_000)
    maps.claim(0, log)
    known = bounds(log)
    last_ns = known[-1][1]

    assert read(steps) == []
    assert named(steps.take(round_of(*known[-1]))) == []
    assert named(steps.take(round_of(last_ns, last_ns + 100))) == []
    assert read(steps) == [
        (*step, at) for at, step in enumerate([*known, (last_ns, last_ns + 100)], 1)
    ]
    assert named(steps.take(round_of(last_ns + 100, last_ns + 250))) == [
        (last_ns + 100, last_ns + 250, 21)
    ]
    assert steps.counts == {"found": 1}


def test_a_period_that_is_the_same_among_more_calls_is_not_told_again(maps, steps):
    """A round that is under way while it is told would have no beginning."""
    step = ("step", STEP)
    maps.claim(0, thread([step] * 20, host_us=1_000))
    read(steps)
    maps.make_more(0, thread([step] * 60, host_us=1_000))
    read(steps)
    read(steps)

    assert maps.told == 1


def test_steps_that_are_made_while_another_period_is_told_are_in_the_calls(maps, steps):
    """None of them is reported; each comes once, and is numbered on."""
    first = [("step", STEP)] * 20
    others = [("step", [*range(KERNEL + 20, KERNEL + 40), TO_HOST])] * 60
    log = thread([*first, *others], host_us=1_000)
    maps.claim(0, thread(first, host_us=1_000))
    found = read(steps) + read(steps)
    maps.make_more(0, log)
    found += read(steps) + read(steps)

    assert maps.told == 2
    assert found == [(*step, at) for at, step in enumerate(bounds(log)[:19] + bounds(log)[20:], 1)]


def test_a_thread_that_ends_has_all_steps_that_it_made(maps, steps):
    """Its last one ended with its last call."""
    log = thread([("step", STEP)] * 20, host_us=1_000)
    last_ns = log.calls.starts_ns[-1] + 10_000
    maps.claim(0, log, has_ended=1, last_return_ktime_ns=last_ns)

    found = read(steps)

    start_ns = bounds(log)[-1][1]
    assert found == [(*step, at) for at, step in enumerate([*bounds(log), (start_ns, last_ns)], 1)]
    assert maps.freed == [0]
    assert steps.counts == {"found": 1}


def test_a_thread_that_ends_just_when_its_period_is_known_has_its_last_step(maps, steps):
    """The kernel side did not see where that began."""
    log = thread([("step", STEP)] * 20, host_us=1_000)
    maps.claim(0, log)
    read(steps)
    last_ns = log.calls.starts_ns[-1] + 10_000
    maps.detectors[0] |= {"has_ended": 1, "last_return_ktime_ns": last_ns}

    found = read(steps)

    assert len(found) == 20
    assert found[-1][1] == last_ns
    assert named(steps.take(round_of(found[-1][0], last_ns))) == []


def test_a_thread_that_ends_while_it_is_looked_at_has_its_last_step(maps):
    """What was read of it a moment before did not say so."""
    log = thread([("step", STEP)] * 20, host_us=1_000)
    last_ns = log.calls.starts_ns[-1] + 10_000
    maps.claim(0, log)

    def watched(_pid):
        maps.detectors[0] |= {"has_ended": 1, "last_return_ktime_ns": last_ns}
        return 0

    found = read(FoundSteps([maps], watched))

    assert len(found) == 20
    assert found[-1][1] == last_ns


def test_an_image_that_ends_has_its_steps_before_its_end(maps, steps):
    """Others have none of theirs then."""
    log = thread([("step", STEP)] * 20, host_us=1_000)
    maps.claim(0, log)
    maps.claim(1, log, image=(8, 60))

    assert len(named(steps.last({IMAGE}))) == 19
    assert maps.freed == [0]


@pytest.mark.parametrize(("times", "found"), [(0, 1), (1, 1), (2, 0)])
def test_an_iteration_that_comes_after_the_end_of_its_thread_is_a_step(maps, steps, times, found):
    """The ring is read before the maps, and once between two times that they are."""
    log = thread([("step", STEP)] * 20, host_us=1_000)
    maps.claim(0, log)
    read(steps)
    read(steps)
    maps.detectors[0]["has_ended"] = 1
    read(steps)
    for _ in range(times):
        read(steps)
    last_ns = bounds(log)[-1][1]

    told = named(steps.take(round_of(last_ns, last_ns + 100)))
    assert told == [(last_ns, last_ns + 100, 20)][:found]


def test_a_program_that_tells_its_steps_has_no_found_ones(maps, steps):
    """From the first one on that it tells."""
    log = thread([("step", STEP)] * 20, host_us=1_000)
    maps.claim(0, log)
    pid, program_ktime_ns = IMAGE
    told = wire.STEP_RECORD.build(kind=wire.RECORD_STEP, pid=pid, program_ktime_ns=program_ktime_ns)

    read(steps)
    steps.note_reported(told)

    assert read(steps) == []
    assert named(steps.take(round_of(1, 2))) == []
    assert (steps.counts, maps.followed) == ({"reported": 1}, {})


def test_iterations_that_are_very_short_are_no_steps(maps, steps):
    """A loop that does nothing but call."""
    maps.claim(0, thread([("step", STEP)] * 20, host_us=10))

    assert read(steps) + read(steps) == []
    assert (steps.counts, maps.followed) == ({"too_short": 1}, {})


def test_short_rounds_at_the_beginning_do_not_hide_the_steps_that_follow(maps, steps):
    """As when parameters are made on the device one by one, before the first step."""
    copies = [("", [TO_DEVICE, KERNEL, WAIT])] * 20
    step = [TO_DEVICE, *range(KERNEL, KERNEL + 97), WAIT]
    log = thread([*copies, *[("step", step)] * 60])
    maps.claim(0, thread(copies))
    assert read(steps) == []
    assert steps.counts == {"too_short": 1}

    maps.make_more(0, log)
    read(steps)

    assert set(bounds(log)) <= {(start, end) for start, end, _ in read(steps)}
    assert steps.counts == {"found": 1}


def test_another_thread_in_the_same_period_is_of_the_same_steps(maps, steps):
    """As the one that goes backward through a model."""
    log = thread([("step", STEP)] * 20, host_us=1_000)
    maps.claim(0, log)
    maps.claim(1, log, tid=10)

    for _ in range(4):
        read(steps)

    assert steps.counts == {"found": 1, "same_as_another_thread": 1}


def test_who_has_no_period_is_looked_at_again_ever_more_rarely(maps, steps, clock):
    """After 30 s, and 60 s after that; by the reason it is said why there is none."""
    chance = random.Random(1)  # noqa: S311 -- the same each time
    log = thread([("", [KERNEL + chance.randrange(99)]) for _ in range(FULL)])
    waited_s = []
    for _ in range(3):
        maps.claim(0, log)
        began_s = clock.now_s
        read(steps)
        assert (maps.detectors[0]["area"], steps.counts) == (0, {"no_iterations": 1})
        while not maps.detectors[0]["area"]:
            clock.now_s += 1
            read(steps)
        waited_s.append(clock.now_s - began_s)

    assert waited_s == [30, 60, 120]


def test_a_period_that_is_gone_is_looked_for_again(maps, steps, clock):
    """Many calls were made, and none of them was in a step."""
    log = thread([("step", STEP)] * 20, host_us=1_000)
    maps.claim(0, log)
    read(steps)
    read(steps)
    maps.detectors[0]["made"] += 10_000

    read(steps)
    read(steps)

    assert (steps.counts, maps.followed) == ({"lost": 1}, {})
    clock.now_s += 31
    read(steps)
    assert maps.detectors[0]["area"] == 1


def test_calls_without_a_period_have_a_share_of_the_time_and_keep_no_other_from_being_looked_at(
    maps, clock, monkeypatch
):
    """Whoever begins one thread after the other makes the same calls in another order each time."""
    other = (8, 60)
    watched = dict([IMAGE, other])
    lost = []
    steps = FoundSteps(
        [maps], lambda pid: watched.get(pid, 0), clock, lambda *who: lost.append(who)
    )
    look = steps._search_period

    def look_long(index, thread):
        clock.now_s += 4.0 if thread.program == IMAGE else 0.0
        look(index, thread)

    monkeypatch.setattr(steps, "_search_period", look_long)
    log = thread([("step", STEP)] * 40, host_us=2000)
    for tid in range(4):
        maps.claim(1, thread([("", [KERNEL + 1, WAIT])] * 20), tid=100 + tid)
        read(steps)
    begun_s = clock.now_s
    maps.claim(2, log, image=other)

    read(steps)
    # Of the third it is known before that a moment of the share is left.
    assert clock.now_s == begun_s == 12.0
    assert set(maps.followed) == {2}
    assert [pid for pid, _ in lost] == [IMAGE[0]]
    clock.now_s += 100
    read(steps)
    assert clock.now_s == begun_s + 104.0


def test_once_the_capture_is_to_end_no_long_search_begins(maps, steps):
    """Nobody may wait for it; of a thread that made few calls its steps are found all the same."""
    steps.end_soon()
    maps.claim(1, thread([("step", STEP)] * 40, host_us=2000))
    maps.claim(2, thread([("step", STEP)] * 2000, host_us=3000), tid=10)

    for _ in range(3):
        read(steps)

    assert set(maps.followed) == {1}


def test_a_program_that_gives_its_periods_back_itself_keeps_no_other_from_being_looked_at(maps):
    """Its memory is let go when it has ended, and with it what was known of its threads."""
    plenty = Share(100.0, 1.0)
    preloaded = PreloadDetectors([0] * wire.COUNTER_COUNT, WorkBudget(plenty, plenty, plenty))
    fd = os.memfd_create("preload")
    os.ftruncate(fd, wire.PRELOAD_BYTES)
    preloaded.add(IMAGE, fd, uid=1)
    os.pwrite(fd, wire.STEP_DETECTOR.build(tid=9, pid=IMAGE[0]), wire.PRELOAD_DETECTORS_OFFSET)
    steps = FoundSteps([maps, preloaded], lambda pid: WATCHED.get(pid, 0))
    assert read(steps) == []
    assert sum(steps.counts.values()) == 1

    os.pwrite(fd, bytes(wire.STEP_DETECTOR.size), wire.PRELOAD_DETECTORS_OFFSET)
    preloaded.leave(IMAGE)
    other = thread([("step", STEP)] * 20, host_us=1_000)
    maps.claim(0, other, tid=11)

    assert read(steps) == named(steps.read_iterations()) == []
    assert [step[:2] for step in read(steps)] == bounds(other)
    assert steps.counts == {"few_calls": 1, "found": 1}
    os.close(fd)

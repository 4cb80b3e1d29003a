"""Which lines threads were at work on."""

import pytest

from otel_gpu import wire
from otel_gpu.state.code_lines import MAX_LINES, NO_LINES, Where, merge
from otel_gpu.state.cpu_samples import EVERYWHERE, Samples, SampleSums
from otel_gpu.wire.frames import Frame
from tests.activities import SECOND, call_stack, image, sample

MS = 1_000_000
TRAINER, WORKER = image(42), image(77, name="worker")


def at(function, line=7, number=None):
    frames = (Frame("cpython", function, "/app/train.py", line),)
    return call_stack(number or abs(hash((function, line))), frames)


AUGMENT, DECODE = at("slow_augment", 88), at("decode", 12)


def keeping(*samples, most=1000):
    kept = Samples(most)
    for one in samples:
        kept.observe(one)
    return kept


def counted(lines):
    """Function, samples and share of each line."""
    return [
        (line.where.function, line.samples, pytest.approx(lines.share_of(line), abs=0.001))
        for line in lines.each
    ]


def test_lines_of_an_interval_are_counts_of_the_samples_in_it():
    """Its first moment belongs to it, and its end does not."""
    stacks = [AUGMENT, DECODE, AUGMENT, AUGMENT, DECODE]
    kept = keeping(*(sample(TRAINER, n * 10 * MS, stack=stack) for n, stack in enumerate(stacks)))

    lines = kept.of(42, 42, 0, 50 * MS)
    part = kept.of(42, 42, 10 * MS, 30 * MS)

    assert counted(lines) == [("slow_augment", 3, 0.6), ("decode", 2, 0.4)]
    assert lines.first.where == Where("slow_augment", "/app/train.py", 88)
    assert counted(part) == [("decode", 1, 0.5), ("slow_augment", 1, 0.5)]
    assert kept.of(42, 42, 50 * MS, 90 * MS) is NO_LINES


def test_a_sample_counts_for_the_time_that_it_stands_for():
    """Where the budget rate-limited samples, the others weigh more."""
    kept = keeping(
        sample(TRAINER, 1, stack=AUGMENT, weight_ns=30 * MS),
        *(sample(TRAINER, n, stack=DECODE, weight_ns=5 * MS) for n in (2, 3)),
    )

    lines = kept.of(42, 42, 0, 10)

    assert counted(lines) == [("slow_augment", 1, 0.75), ("decode", 2, 0.25)]
    assert (lines.samples, lines.weight_ns) == (3, 40 * MS)


def test_threads_and_processes_are_told_apart():
    """A process is all its threads; what is inside CUDA calls is not its own work."""
    kept = keeping(
        sample(TRAINER, 1, stack=AUGMENT),
        sample(TRAINER, 2, stack=DECODE, tid=43),
        sample(WORKER, 3, stack=DECODE),
        sample(TRAINER, 4, stack=DECODE, context=wire.CONTEXT_SYNCHRONIZE),
    )

    assert counted(kept.of(42, 42, 0, 10)) == [("slow_augment", 1, 1.0)]
    assert kept.of(42, None, 0, 10).samples == 2
    assert kept.of(42, None, 0, 10, EVERYWHERE).samples == 3
    assert kept.of(77, 42, 0, 10) is NO_LINES


def test_samples_that_come_late_are_put_in_their_place():
    """Rings of several CPUs are read one after the other."""
    kept = keeping(*(sample(TRAINER, ktime, stack=AUGMENT) for ktime in (5, 3, 4, 1)))

    assert [kept.of(42, 42, 0, end).samples for end in (1, 2, 4, 5, 6)] == [0, 1, 2, 3, 4]


def test_samples_are_bounded_and_counted():
    """The oldest go first, of whichever thread; what is old is no loss."""
    young = keeping(*(sample(TRAINER, n, stack=AUGMENT, tid=n % 3) for n in range(17)), most=10)
    old = keeping(*(sample(TRAINER, n * SECOND, stack=AUGMENT) for n in range(100)), most=50)

    assert young.of(42, None, 0, 100).samples == 10
    assert young.of(42, None, 0, 7).samples == 0
    assert young.given_up == 7
    assert old.given_up == 0


def test_samples_are_kept_for_two_minutes():
    """One sample a second for 1,000 seconds leaves 121, and what is that old counts as no loss."""
    kept = keeping(*(sample(TRAINER, n * SECOND, stack=AUGMENT) for n in range(1_000)), most=10_000)

    assert kept.of(42, 42, 0, 1_000 * SECOND).samples == 121
    assert kept.of(42, 42, 0, 879 * SECOND) is NO_LINES
    assert kept.given_up == 0


def test_an_image_that_ended_is_forgotten_and_its_successor_is_not():
    """Another program runs under the same pid, and the bound counts for that one."""
    kept = keeping(*(sample(TRAINER, n, stack=AUGMENT) for n in range(1, 6)), most=10)
    successor = image(42, program_ktime_ns=9 * SECOND)
    kept.observe(sample(successor, 6, stack=DECODE))

    kept.forget((42, TRAINER.program_ktime_ns))
    for ktime in range(7, 20):
        kept.observe(sample(successor, ktime, stack=DECODE))

    assert counted(kept.of(42, None, 0, 100)) == [("decode", 10, 1.0)]
    kept.forget((42, successor.program_ktime_ns))
    assert kept.of(42, None, 0, 100) is NO_LINES


def test_a_sample_without_a_place_counts_and_names_nothing():
    """Shares are of all samples, so that a lost stack makes no line larger."""
    nameless = call_stack(5, (Frame("native", "", module="libcustom.so", address=0x10),))
    kept = keeping(
        sample(TRAINER, 1, stack=AUGMENT),
        sample(TRAINER, 2, stack=None),
        sample(TRAINER, 3, stack=nameless),
    )

    lines = kept.of(42, 42, 0, 10)

    assert [line.where for line in lines.each] == [
        Where("", "libcustom.so", 0),
        Where("slow_augment", "/app/train.py", 88),
    ]
    assert [lines.share_of(line) for line in lines.each] == [pytest.approx(1 / 3)] * 2
    assert lines.samples == 3


def test_a_line_has_the_stack_that_most_of_it_was_in():
    """The same line is reached in several ways."""
    ways = [at("decode", 12, number) for number in (1, 2, 3)]
    kept = keeping(
        *(sample(TRAINER, n, stack=way) for n, way in enumerate(ways * 2 + [ways[1]] * 5))
    )

    (line,) = kept.of(42, 42, 0, 100).each
    assert (line.samples, line.stack.id) == (11, 2)


def test_lines_of_several_intervals_are_added_up():
    """Also what had no line."""
    kept = keeping(
        *(sample(TRAINER, n, stack=AUGMENT) for n in range(3)),
        *(sample(TRAINER, n, stack=DECODE) for n in range(3, 10)),
        sample(TRAINER, 11, stack=None),
    )

    both = merge([kept.of(42, 42, 0, 5), kept.of(42, 42, 5, 20), NO_LINES])

    assert counted(both) == [("decode", 7, 7 / 11), ("slow_augment", 3, 3 / 11)]
    assert both.samples == 11


def test_many_lines_are_bounded_and_the_largest_stay():
    """Also one that comes after very many others."""
    sums = SampleSums()
    for number in range(10 * MAX_LINES):
        sums.observe(sample(TRAINER, number, stack=at("f", number + 1)))
    for number in range(MAX_LINES):
        sums.observe(sample(TRAINER, number, stack=DECODE))
        sums.observe(sample(TRAINER, number, stack=at("g", number + 1)))

    lines = sums.of(42)
    assert len(lines.each) <= MAX_LINES
    assert (lines.first.where.function, lines.first.samples) == ("decode", MAX_LINES)
    assert lines.samples == 12 * MAX_LINES


def test_sums_are_of_threads_that_were_seen_last():
    """What found no room is counted."""
    sums = SampleSums(most=3)
    for tid in (1, 2, 1, 3, 4):
        sums.observe(sample(TRAINER, tid, stack=AUGMENT, tid=tid))

    assert [sums.of(42, tid).samples for tid in (1, 2, 3, 4)] == [2, 0, 1, 1]
    assert sums.left_out == 1
    assert sums.of(42).samples == 4
    sums.forget(42)
    assert sums.of(42) is NO_LINES

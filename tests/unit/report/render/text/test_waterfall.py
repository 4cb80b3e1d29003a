"""The waterfall: where bars begin and end, and what stands beside them."""

import pytest

from otel_gpu.explain.chains import Cause, Chain
from otel_gpu.report.render.text.waterfall import BAR_COLUMNS, draw_waterfall
from tests.activities import image
from tests.unit.report.samples import HOG, MS, WORKER, effect, evidence, preempted

TRAINER = image(42, 1)
START_NS = 1_000 * MS


def chain_of(*causes, duration_ns=50 * MS):
    return Chain("c", effect(TRAINER, START_NS, duration_ns), causes, 0, "low")


def cause_of(*intervals, kind="run_queue", time_ns=10**12, via=()):
    return Cause(kind, time_ns, 1.0, None, intervals, via)


@pytest.mark.parametrize(
    ("first_ms", "last_ms", "drawn"),
    [
        (0, 50, "#" * 50),
        (0, 1, "#" + " " * 49),
        (10, 20, " " * 10 + "#" * 10 + " " * 30),
        (49, 50, " " * 49 + "#"),
        # Too short to be seen, but there.
        (10, 10.001, " " * 10 + "#" + " " * 39),
        (20, 20, " " * 20 + "#" + " " * 29),
        # Before the effect began, and after it ended.
        (-10, 10, "<" + "#" * 9 + " " * 40),
        (40, 70, " " * 40 + "#" * 9 + ">"),
        (-20, -10, "<" + " " * 49),
        (60, 70, " " * 49 + ">"),
        # A clock that stepped.
        (20, 10, " " * 20 + "#" + " " * 29),
    ],
)
def test_bars_are_to_scale(first_ms, last_ms, drawn):
    """A column is a fiftieth of the effect; what lies outside is clipped and marked."""
    interval = evidence(
        "a", "run_queue", START_NS + round(first_ms * MS), START_NS + round(last_ms * MS)
    )

    (whole, bar), left_out = draw_waterfall(chain_of(cause_of(interval)))

    assert whole.drawn == "-" * BAR_COLUMNS
    assert bar.drawn == drawn
    assert (bar.offset_ns, bar.length_ns) == (
        round(first_ms * MS),
        max(0, round(last_ms * MS) - round(first_ms * MS)),
    )
    assert left_out == 0


def test_an_effect_of_no_length_can_be_drawn():
    """A damaged record is no reason to fail."""
    interval = evidence("a", "blocked", START_NS, START_NS)

    bars, _ = draw_waterfall(chain_of(cause_of(interval), duration_ns=0))

    assert [len(bar.drawn) for bar in bars] == [BAR_COLUMNS, BAR_COLUMNS]


def test_intervals_are_in_order_of_time_and_the_shortest_are_left_out():
    """A moment with hundreds of switches is still read at a glance."""
    intervals = [
        evidence(f"e{n}", "blocked", START_NS + (40 - n) * MS, START_NS + (40 - n) * MS + n)
        for n in range(10)
    ]

    bars, left_out = draw_waterfall(chain_of(cause_of(*intervals)), most=4)

    assert [bar.length_ns for bar in bars[1:]] == [9, 8, 7, 6]
    assert left_out == 6


def test_an_interval_that_two_causes_rest_on_is_drawn_once():
    """The same nanoseconds twice would look like twice the time."""
    shared = evidence("same", "blocked", START_NS, START_NS + MS)

    bars, _ = draw_waterfall(chain_of(cause_of(shared), cause_of(shared, kind="io")))

    assert len(bars) == 2


def test_a_wait_for_a_cpu_that_nobody_had_is_said_to_be_one():
    """Without a name it could be read as one that was not recorded."""
    waiting = evidence("w", "run_queue", START_NS, START_NS + MS, is_cpu_idle=True)

    bars, _ = draw_waterfall(chain_of(cause_of(waiting, kind="run_queue")))

    assert bars[1].label == "run_queue, no thread had the CPU"


def test_labels_say_why_who_and_where():
    """Cause, reason, who had the CPU, kernel functions; hops are marked, parts measured."""
    hop = cause_of(
        evidence("h", "run_queue", START_NS + MS, START_NS + 2 * MS, culprit=HOG), kind="preemption"
    )
    blocked = evidence(
        "b", "blocked", START_NS, START_NS + 4 * MS, reason="futex", functions=("futex_wait",)
    )

    bars, _ = draw_waterfall(chain_of(cause_of(blocked, kind="lock", time_ns=3 * MS, via=(hop,))))

    assert [bar.label for bar in bars] == [
        "slow cudaLaunchKernel",
        "lock (futex) for 3 ms of it, in futex_wait",
        "<- preemption, cc1plus (900/901) had the CPU",
    ]


def test_a_part_of_a_whole_says_how_much_of_it_counts():
    """A call that stands for its totals is longer than what is put down to it."""
    whole = evidence("w", "call", START_NS, START_NS + 50 * MS)
    piece = evidence("p", "run_queue", START_NS + MS, START_NS + 2 * MS)
    alone, together = cause_of(whole, time_ns=3 * MS), cause_of(whole, piece, time_ns=3 * MS)

    assert draw_waterfall(chain_of(alone))[0][1].label == "run_queue for 3 ms of it"
    assert draw_waterfall(chain_of(together))[0][1].label == "run_queue for at most 3 ms of it"


def test_a_thread_that_nobody_kept_waiting_is_named():
    """Of the one that was waited for it is said what it did, and who it is."""
    asleep = evidence("s", "blocked", 0, 4 * MS, culprit=WORKER)
    waited = evidence("w", "blocked", 0, 5 * MS)
    slept = Cause("sleep", 4 * MS, 0.4, WORKER, (asleep,))
    chain = preempted(image(42, 1), 0)._replace(
        causes=(Cause("lock", 5 * MS, 0.5, WORKER, (waited,), (slept,)),)
    )

    bars, _ = draw_waterfall(chain)

    assert [bar.label for bar in bars[1:]] == ["lock", "<- sleep, pt_data_worker (42/43)"]

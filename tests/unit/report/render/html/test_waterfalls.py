"""Waterfalls: bars are to scale, and what is drawn is what matters."""

import re

import pytest

from otel_gpu.explain.chains import Cause, Chain
from otel_gpu.report.render.html.waterfalls import MOST_INTERVALS
from tests.activities import image
from tests.unit.report.render.html.pages import Seen, part, text_of
from tests.unit.report.samples import HOG, MS, WORKER, effect, evidence, preempted

TRAINER = image(42, 1)
START_NS = 1_000 * MS


def waterfall(chain):
    return part("waterfall", chain)


def chain_of(*causes, duration_ns=50 * MS):
    return Chain("c", effect(TRAINER, START_NS, duration_ns), causes, 0, "low")


def at(name, first_ms, last_ms, **values):
    start, end = (START_NS + round(ms * MS) for ms in (first_ms, last_ms))
    return evidence(name, "run_queue", start, end, **values)


def bars_of(markup):
    """Left edge and width of each bar below the effect's own, in hundredths of the width."""
    rows = re.findall(r"<li class=\"(?:own|of-another)\">.*?</li>", markup)
    found = [re.search(r' x="([^"]+)" width="([^"]+)"', row) for row in rows]
    return [(float(bar[1]), float(bar[2])) for bar in found]


@pytest.mark.parametrize(
    ("first_ms", "last_ms", "bar"),
    [
        (0, 50, (0, 100)),
        (10, 20, (20, 20)),
        # Too short to be seen, but there.
        (25, 25.1, (50, 0.25)),
        (49.88, 50, (99.75, 0.25)),
        # Before the effect began, and after it ended.
        (-10, 10, (0, 20)),
        (40, 70, (80, 20)),
    ],
)
def test_bars_are_to_scale(first_ms, last_ms, bar):
    """What lies outside of the effect is cut off."""
    cause = Cause("run_queue", 10**12, 1.0, None, (at("a", first_ms, last_ms),))

    assert bars_of(waterfall(chain_of(cause))) == [bar]


def test_offsets_are_told_to_the_microsecond():
    """Each row says when it began, how long it was, and whose doing that was."""
    text = text_of(waterfall(preempted(TRAINER, START_NS)))

    assert text.startswith(
        "slow cudaLaunchKernel of trainer (42), thread trainer (42): 10 ms, 10 ms more than usual, "
        "from 2027-01-15 08:00:01.000000 UTC"
    )
    assert "preempted cc1plus (900/901) had the CPU +1,000 µs 7,000 µs" in text
    assert (
        "waited for data woken by pt_data_worker (42/43), in pipe_read ← vfs_read +8,000 µs 1,000 µs"
        in text
    )
    assert text.endswith(
        "pt_data_worker (42/43), at the same time waited for a CPU cc1plus (900/901) had the CPU "
        "+8,000 µs 500 µs Not explained: 2 ms."
    )


def test_time_of_which_only_the_sum_is_known_comes_last():
    """A bar of which a part counts says how much, and does not cover the effect's own row."""
    whole = evidence("w", "call", START_NS, START_NS + 50 * MS)
    causes = (
        Cause("gpu_backpressure", 3 * MS, 0.06, None, (whole,)),
        Cause("preemption", 40 * MS, 0.8, HOG, (at("a", 5, 45, culprit=HOG),)),
    )

    seen = Seen(waterfall(chain_of(*causes)))

    assert "launch queue full 3 ms of this" in seen.text
    assert [value for value in seen.values_of("class") if value.startswith("tone-")] == [
        "tone-whole",
        "tone-cpu",
        "tone-cpu",
        "tone-gpu partial",
    ]


def test_the_whole_is_not_taken_for_its_part():
    """
    Where a cause rests on the call itself and on intervals, the call is drawn pale all the same.
    """
    whole = evidence("w", "gap", START_NS, START_NS + 50 * MS)
    cause = Cause("run_queue", 2 * MS, 0.04, None, (whole, at("a", 10, 11)))

    seen = Seen(waterfall(chain_of(cause)))

    assert "waited for a CPU at most 2 ms of this +0 µs 50,000 µs" in seen.text
    assert seen.values_of("class").count("tone-cpu partial") == 1


def test_what_is_left_out_is_counted():
    """A thousand slices of a hog are one picture, not a thousand rows."""
    slices = tuple(at(f"s{n}", n, n + 0.5, culprit=HOG) for n in range(40))
    tiny = Cause("io", MS // 1_000, 0.0, WORKER, (at("t", 1, 2),))
    chain = chain_of(Cause("preemption", 10**12, 0.4, HOG, slices), tiny)

    markup = waterfall(chain)

    assert len(bars_of(markup)) == MOST_INTERVALS
    assert text_of(markup).endswith("25 intervals are too short to be drawn.")


def test_an_effect_of_no_length_can_be_drawn():
    """A damaged recording may hold one."""
    cause = Cause("run_queue", 5, 0.0, None, (at("a", 0, 1),))

    assert len(bars_of(waterfall(chain_of(cause, duration_ns=0)))) == 1

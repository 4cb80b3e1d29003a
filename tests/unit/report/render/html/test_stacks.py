"""Stacks in a page: the line of code first, then the frames, with what was slow or waited."""

import re

import pytest

from otel_gpu.explain.chains import Cause, Culprit
from otel_gpu.report.headline import places_of
from otel_gpu.report.render.html.page import make_page
from otel_gpu.report.render.html.stories import MOST_FRAMES, MOST_STACKS, stacks_of
from otel_gpu.wire.frames import Frame
from tests.activities import T0, call_stack, image
from tests.unit.report.render.html.pages import Seen, part, report_named, text_of
from tests.unit.report.samples import MS, effect, evidence, incident, preempted, with_stacks

TRAINER = image(42, 1)
FRAMES = "cudaMalloc (libcudart.so.12) at::native::empty_cuda (libtorch_cuda.so) "
OWN = "fragmentation_pattern (/app/train.py:74)"


def at_line(number, line):
    frames = (
        Frame("native", "cudaMalloc", module="libcudart.so.12"),
        Frame("cpython", "step", "/app/train.py", line),
    )
    return call_stack(number, frames)


def stack_details(*values):
    return part("stack_details", *values)


def stacks_of_chain(chain):
    return part("chain_stacks", chain)


def card_of(told):
    return part("incident_card", 1, told, T0)


def slow_at(number, line):
    chain = preempted(TRAINER, number * 100 * MS, f"c{number}")
    return chain._replace(effect=chain.effect._replace(stack=at_line(line, line)))


def test_the_line_of_code_comes_first_and_stands_out():
    """Below it are the frames around it, innermost first."""
    markup = stack_details("slow call", call_stack())

    assert text_of(markup) == (
        f"slow call at train.py:74 fragmentation_pattern {FRAMES}{OWN} <module> (/app/train.py:102)"
    )
    assert [text_of(row) for row in re.findall('<li class="place">.*?</li>', markup)] == [OWN]


def test_what_is_not_known_of_a_stack_is_said():
    """A stack without its outer end is not the whole of it, and one without a line has none."""
    nameless = call_stack(5, (Frame("native", "", module=""),), complete=False)

    assert text_of(stack_details("x", nameless)) == ("x ?? Incomplete: native eh_frame, Python ok.")


def test_a_deep_stack_loses_its_middle():
    """Which is said; the program's own line is still in the heading."""
    deep = call_stack(5, tuple(Frame("cpython", "f", "/app/f.py", n) for n in range(1, 101)))

    markup = stack_details("x", deep)

    assert markup.count("<li") == MOST_FRAMES
    assert f"… {100 - MOST_FRAMES + 1} frames left out …" in text_of(markup)
    assert text_of(markup).startswith("x at f.py:1 f")


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([74], "train.py:74 step"),
        ([74, 74, 80], "train.py:74 step 2 x, train.py:80 step 1 x"),
        (
            [1, 2, 3, 4, 5],
            ("train.py:1 step 1 x, train.py:2 step 1 x, train.py:3 step 1 x, 2 other places"),
        ),
    ],
)
def test_an_incident_says_where_it_was(lines, told):
    """The lines that most of its effects were at, with how many."""
    chains = [slow_at(number, line) for number, line in enumerate(lines, 1)]

    said = text_of(places_of(incident(*chains))).replace("\N{MULTIPLICATION SIGN}", "x")
    assert said == told


def test_a_gap_is_where_it_waited():
    """Between two calls there is no stack of a call; that of what took most of it is as good."""
    stack = at_line(7, 31)
    waiting = evidence("w", "blocked", 0, 5 * MS, stack=stack)
    chain = preempted(TRAINER, 0)._replace(
        effect=effect(TRAINER, 0, 10 * MS, kind="slow_gap"),
        causes=(Cause("sleep", 5 * MS, 0.5, None, (waiting,)),),
    )

    assert text_of(places_of(incident(chain))) == "train.py:31 step"


def test_without_stacks_nothing_is_said_of_them():
    """As of captures of other tools, and of hosts that do not allow it."""
    chain = preempted(TRAINER, 0)

    assert places_of(incident(chain)) == ()
    assert stacks_of(chain) == []
    assert "Where" not in text_of(card_of(incident(chain)))


def test_the_effect_and_its_waits_have_their_stacks():
    """That of the call is open; that of a wait is told with what was waited for, and how long."""
    listed = stacks_of_chain(with_stacks(preempted(TRAINER, 0)))

    text = text_of(listed)
    assert text.startswith(
        "Where in the program slow cudaLaunchKernel at train.py:74 fragmentation_pattern cudaMalloc"
    )
    assert "waited for data for 1 ms at train.py:40 step Queue.get" in text
    assert re.findall("<details [^>]*>", listed) == [
        '<details class="program" open>',
        '<details class="program">',
    ]


def test_a_thread_that_was_waited_for_is_named():
    """Its stack is not the slow thread's."""
    other = Culprit(42, 43, "holder")
    asleep = evidence("s", "blocked", 0, 4 * MS, stack=at_line(9, 12))
    locked = evidence("l", "blocked", 0, 5 * MS, stack=at_line(8, 11))
    cause = Cause(
        "lock", 5 * MS, 0.5, other, (locked,), (Cause("sleep", 4 * MS, 0.4, other, (asleep,)),)
    )

    listed = stacks_of_chain(preempted(TRAINER, 0)._replace(causes=(cause,)))

    told = [text_of(summary) for summary in re.findall("<summary>.*?</summary>", listed)]
    assert told == [
        "waited for a lock for 5 ms at train.py:11 step",
        "holder (42/43): slept for 4 ms at train.py:12 step",
    ]


def test_the_longest_waits_are_shown_and_each_place_once():
    """A hundred waits at one line are one stack."""
    intervals = tuple(
        evidence(f"e{n}", "blocked", 0, (n + 1) * MS, stack=at_line(1 + n % 7, n % 7 + 1))
        for n in range(100)
    )
    cause = Cause("io", 5 * MS, 0.5, None, intervals)

    listed = stacks_of_chain(preempted(TRAINER, 0)._replace(causes=(cause,)))

    told = [text_of(summary) for summary in re.findall("<summary>.*?</summary>", listed)]
    assert len(told) == MOST_STACKS
    assert told[:2] == [
        "waited for a disk for 100 ms at train.py:2 step",
        "waited for a disk for 99 ms at train.py:1 step",
    ]


def test_a_card_tells_where_at_first_and_in_full_below():
    """
    For who skims, and for who looks into it; the cause says where it waited, not the call again.
    """
    text = text_of(card_of(incident(with_stacks(preempted(TRAINER, 0)))))
    assert "Where train.py:74 fragmentation_pattern What to do" in text
    assert "It waited for data, at train.py:40 step ipc" in text.replace(
        " from pt_data_worker (42/43)", ""
    )
    assert f"{FRAMES}{OWN}" in text


def test_the_top_of_the_page_says_where():
    """Which line is the second question, after what happened."""
    report = report_named("x")
    told = report._replace(incidents=(incident(with_stacks(preempted(TRAINER, 0))),))

    header = re.search("<header>.*?</header>", make_page(told), re.DOTALL)[0]

    assert "Where: train.py:74 fragmentation_pattern" in text_of(header)


def test_a_waterfall_says_where_a_thread_waited():
    """Beside what it waited for; of the effect's own row it is said elsewhere."""
    text = text_of(part("waterfall", with_stacks(preempted(TRAINER, 0))))

    assert "woken by pt_data_worker (42/43), at train.py:40 step, in pipe_read ← vfs_read" in text
    assert "fragmentation_pattern" not in text


def test_a_wait_for_a_cpu_that_nobody_had_is_said_to_be_one():
    """
    Where nobody is named it could be read as one that was not recorded; it is not, and it is
    no neighbour's fault.
    """
    waiting = evidence("w", "run_queue", 0, 8 * MS, is_cpu_idle=True)
    chain = preempted(TRAINER, 0)._replace(
        causes=(Cause("run_queue", 8 * MS, 0.8, None, (waiting,)),)
    )

    text = text_of(card_of(incident(chain)))
    assert text.startswith("high It was ready to run, and no thread had its CPU trainer (42) lost")
    assert "Whose fault no thread's: the hypervisor, an interrupt, or a CPU that was slow" in text
    assert "waited for a CPU no thread had the CPU +0 µs 8,000 µs" in text


def test_a_wait_for_a_cpu_that_was_mostly_taken_is_not():
    """The longer part of it says what it was."""
    idle = evidence("w", "run_queue", 0, 3 * MS, is_cpu_idle=True)
    busy = evidence("v", "run_queue", 3 * MS, 8 * MS)
    chain = preempted(TRAINER, 0)._replace(
        causes=(Cause("run_queue", 8 * MS, 0.8, None, (idle, busy)),)
    )

    assert text_of(card_of(incident(chain))).startswith(
        "high It was ready to run, and no CPU was free"
    )


def test_the_classes_of_frames_have_a_style():
    """What stands out in the markup does so on the screen."""
    style = Seen(make_page(report_named("x"))).sources["style"]

    for name in ("frames", "place", "program", "programs", "flame", "flamegraph", "flame-key"):
        assert f".{name} " in style

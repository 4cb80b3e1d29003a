"""Lines of code at the end of causes: from samples to what a reader sees."""

import io
import itertools

import pytest
from rich.console import Console

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import Culprit
from otel_gpu.enrich.thread_times import NO_WAIT
from otel_gpu.explain.chains import Cause
from otel_gpu.explain.explainer import Explainer
from otel_gpu.explain.settings import Settings
from otel_gpu.report.causes import ranked_places
from otel_gpu.report.collector import Collector
from otel_gpu.report.document import Window
from otel_gpu.report.json_form import make_document
from otel_gpu.report.render.text.document import write_text
from otel_gpu.report.wording.sentences import because, plain, sentence_of, what_happened
from tests.activities import SECOND, T0, capture, lines_at
from tests.schemas import REPORT
from tests.unit.explain.streams import (
    MS,
    START,
    WORKER,
    account,
    off_cpu,
    sampled,
    slow_gap,
    stack_at,
    time_of,
    usual_gap,
    woken_by,
)
from tests.unit.report.render.html.pages import part, text_of

GAP, OTHER = wire.CONTEXT_GAP, wire.CONTEXT_OTHER
LOADER, HOG = Culprit(77, 77, "worker"), Culprit(900, 901, "hog")
AUGMENT, LOAD, STEP = stack_at("slow_augment", 88), stack_at("load", 40), stack_at("step", 3)
LATE = {"process": WORKER, "context": OTHER}


def loaded_slowly():
    """Ten gaps, in which the feeder waits for a worker process that works, and then works itself."""
    waits = NO_WAIT._replace(api=1, who=LOADER, end=LOADER, end_state=wire.STATE_ON_CPU)

    def read(at_s, waited_ms, worked_ms):
        late = time_of(wire.STATE_BLOCKED, GAP, waited_ms, "ipc")
        late = late._replace(ended_ns=late.time_ns, wait=waits)
        own = time_of(wire.STATE_ON_CPU, GAP, worked_ms)
        return account(at_s, late, own._replace(wait=NO_WAIT._replace(api=1)))

    yield usual_gap()
    yield read(99, 0, 0)
    for number in range(10):
        start = START + number * SECOND
        yield from sampled({AUGMENT: 8, LOAD: 1}, 1, start=start, **LATE)
        yield off_cpu(0, 90, start=start, reason="queue", stack=STEP, **woken_by(WORKER))
        yield from sampled({STEP: 1}, 95, start=start)
        yield slow_gap(start=start, blocked_ns=90 * MS)
        # Meanwhile nobody waits for it.
        yield from sampled({LOAD: 20}, 300, start=start, **LATE)
        yield read(100.5 + number, 90 * (number + 1), 10 * (number + 1))
    yield read(112, 900, 100)


def document_of(*activities, **options):
    collector = Collector(Explainer(Settings()), **options)
    for activity in (capture(), *activities):
        collector.observe(activity)
    return collector.finish("train.otelgpu")


@pytest.fixture(scope="module")
def document():
    return document_of(*loaded_slowly())


def test_a_chain_ends_at_the_line_that_was_waited_for(document):
    """In the intervals of the wait; what the worker did else is not its cause."""
    ipc, own = document.chains[3].causes

    (work,) = ipc.via
    assert [(line.where.function, line.samples) for line in work.lines.each] == [
        ("slow_augment", 8),
        ("load", 1),
    ]
    assert [line.where.function for line in own.lines.each] == ["step"]
    assert plain(because(ipc)) == (
        "It waited for data from worker (77), which was working on a CPU, "
        "in pictures.py:88 slow_augment: 89 % of 9 samples"
    )


def test_a_gap_that_was_work_is_where_most_of_that_was():
    """One that was a wait is where it waited, which the wait says."""
    worked = document_of(usual_gap(), *sampled({AUGMENT: 3, LOAD: 4}, 1), slow_gap(100))
    waited = document_of(*loaded_slowly())

    assert worked.chains[0].effect.stack is LOAD
    (incident,) = worked.incidents
    assert [(frame.function, count) for frame, count in ranked_places(incident)] == [("load", 1)]
    assert waited.chains[0].effect.stack is None


def test_the_document_holds_lines_and_is_as_the_schema_says(document):
    """Of causes, of processes with a verdict that work made, and of work in the tree."""
    written = make_document(document)

    REPORT.validate(written)
    (incident,) = written["incidents"]
    (via,) = incident["causes"][0]["via"]
    first = {
        "function": "slow_augment",
        "file": "/app/pictures.py",
        "line": 88,
        "samples": 80,
        "share": pytest.approx(80 / 90),
        "work": None,
    }
    assert via["lines"][0] == first
    assert (via["samples"], via["where"]) == (
        90,
        {k: first[k] for k in ("function", "file", "line")},
    )
    assert written["stacks"][via["stack"]]["place"]["function"] == "slow_augment"
    assert "lines" not in incident["causes"][0]
    (process,) = [one for one in written["processes"] if one["lines"]]
    assert process["verdict"] == "data-bound"
    # All of what the worker did: in a whole window nobody knows what of it was waited for.
    assert process["where"]["function"] == "load"
    (waits, _) = process["time_tree"]["children"]
    (work,) = waits["children"][0]["children"]
    assert (work["state"], work["samples"]) == ("host_work", 290)
    assert [line["state"] for line in work["children"]] == ["line", "line"]


def test_samples_of_other_windows_are_of_none_of_its_lines():
    """As with all that is counted."""
    window = Window(T0 + START + 5 * SECOND, None)
    written = make_document(document_of(*loaded_slowly(), window=window))

    (process,) = [one for one in written["processes"] if one.get("lines")]
    assert process["samples"] == 5 * 29


def test_known_work_is_said_with_its_line_and_is_absent_elsewhere():
    """JSON has null for what is not known; a node has nothing."""
    cause = Cause("host_work", 90, 0.9, None, (), lines=lines_at(("f", 7, 3), work="gc"))

    assert plain(what_happened(cause)) == (
        "The program worked on the CPU, in pictures.py:7 f (gc): 100 % of 3 samples"
    )
    assert plain(what_happened(cause._replace(lines=lines_at(lost=4)))) == (
        "The program worked on the CPU"
    )


def test_lines_of_what_is_unexplained_are_all_that_was_seen_of_it():
    """The account does not say that it worked, and samples say that it did now and then."""
    rest = Cause("unexplained", 90, 0.9, None, (), lines=lines_at(("spin", 7, 2)))
    cause = Cause("lock", 90, 0.9, LOADER, (), (rest,))

    assert plain(because(cause)) == (
        "It waited for a lock of worker (77), which did what was not seen, but for samples "
        "in pictures.py:7 spin: 100 % of 2 samples"
    )


def test_who_may_have_held_the_gil_is_said_as_no_more_than_that():
    """Others of the process worked meanwhile; one of them held it."""
    cause = Cause("gil", 90, 0.9, None, (), lines=lines_at(("spin", 7, 2)))

    assert plain(because(cause)) == (
        "It waited for Python's GIL, while others of its process worked "
        "in pictures.py:7 spin: 100 % of 2 samples"
    )


def test_who_had_the_cpu_is_said_with_its_line():
    """It was at work, and not who waited."""
    cause = Cause("preemption", 90, 0.9, HOG, (), lines=lines_at(("spin", 7, 2), ("f", 1, 1)))

    assert plain(because(cause)) == (
        "hog (900/901) took its CPU away, which was in pictures.py:7 spin: 67 % of 3 samples"
    )


def text(document):
    printed = io.StringIO()
    write_text(document, Console(file=printed, width=200, highlight=False, markup=False))
    return printed.getvalue()


def test_the_text_names_lines_in_causes_verdicts_and_the_tree(document):
    """Each where a reader looks for it."""
    lines = [line.strip() for line in text(document).splitlines()]

    assert (
        "90 %   900 ms     which was working on a CPU, in pictures.py:88 slow_augment: "
        "89 % of 90 samples  host_work" in lines
    )
    assert (
        "data: in pictures.py:3 step, for worker (77), which was working on a CPU, "
        "in pictures.py:40 load: 72 % of 290 samples" in lines
    )
    tree = list(
        itertools.takewhile(
            bool, itertools.dropwhile(lambda line: "launching threads" not in line, lines)
        )
    )
    assert [line.partition("  ")[2].split("ms  ")[-1].strip() for line in tree[1:]] == [
        "data from others, in pictures.py:3 step",
        "for worker (77)",
        "which was working on a CPU: 290 samples",
        "in pictures.py:40 load: 72 % of 290 samples",
        "in pictures.py:88 slow_augment: 28 % of 290 samples",
        "its own work, in pictures.py:3 step: 100 % of 10 samples",
    ]


def test_the_page_names_lines(document):
    """In the headline of an incident, in its tree, and on the card of a verdict."""
    (incident,) = document.incidents
    card = text_of(part("incident_card", 1, incident, T0))
    (judged,) = document.judged

    said = "in pictures.py:88 slow_augment: 89 % of 90 samples"
    assert plain(sentence_of(incident)).endswith(said)
    assert card.count(said) >= 2
    assert (
        "data: disks, other processes: in pictures.py:3 step, for worker (77), which was working on a CPU, "
        "in pictures.py:40 load: 72 %"
    ) in text_of(part("verdict_card", judged))


def test_a_name_of_a_line_cannot_command_a_terminal():
    """Functions and files are named by strangers."""
    evil = lines_at(("\x1b[2J\u202e<b>", 7, 3), file="/app/\x1b]0;x\x07.py")
    cause = Cause("host_work", 90, 0.9, None, (), lines=evil)

    assert plain(what_happened(cause)).isprintable()
    assert "<b>" not in str(part("cause_tree", (cause,), 0, 100, None))

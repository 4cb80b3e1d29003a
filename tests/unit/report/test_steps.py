"""Steps in the document, and what text makes of them."""

import json
from io import StringIO
from pathlib import Path

from jsonschema import Draft202012Validator
from rich.console import Console

import otel_gpu.report
from otel_gpu.explain.explainer import Explainer
from otel_gpu.report.collector import Collector
from otel_gpu.report.document import Document, Window
from otel_gpu.report.json_form import make_document
from otel_gpu.report.render.html.page import make_page
from otel_gpu.report.render.text.document import write_text
from otel_gpu.report.steps import step_rows
from otel_gpu.state.steps import ThreadSteps
from tests.activities import MS, SECOND, T0, calls, capture, image, snapshot, step
from tests.unit.report.samples import preempted

SCHEMA = json.loads(Path(otel_gpu.report.__file__).with_name("schema.json").read_text())
TRAIN = image(name="train")
STEPS = 17


def steps(process=TRAIN):
    """Seventeen, of which the last is slow."""
    usual = [step(process, n, n * 20 * MS, 10 * MS) for n in range(STEPS - 1)]
    waited = {"loader_wait_ns": 21 * MS, "trace_id": b"T" * 16, "span_id": b"S" * 8}
    return [*usual, step(process, 412, SECOND, 40 * MS, **waited)]


def test_a_slow_step_has_its_causes_in_the_document_and_in_the_text():
    """What is slow in it says why, and the program how long it waited for its data."""
    ledger = ThreadSteps()
    for one in steps():
        ledger.observe(one)
    document = Document(
        "test",
        Window(T0, T0 + 2 * SECOND),
        chains=(preempted(TRAIN, SECOND + 2 * MS),),
        steps=step_rows(ledger, [preempted(TRAIN, SECOND + 2 * MS)]),
    )

    written = make_document(document)
    Draft202012Validator(SCHEMA).validate(written)
    (row,) = written["steps"]
    (slow,) = row["slow"]

    assert (row["steps"], row["slow_steps"], row["source"], row["kind"]) == (
        *(STEPS, 1),
        *("program", "training"),
    )
    assert (slow["number"], slow["usual_ns"], slow["duration_ns"]) == (412, 10 * MS, 40 * MS)
    assert slow["trace_id"] == "54" * 16
    assert [cause["kind"] for cause in slow["causes"]] == ["preemption", "ipc"]
    named = {name for cause in slow["causes"] for name in cause["evidence"]}
    assert named <= written["evidence"].keys()
    page = make_page(document)
    assert "step 412 was slow: 40 ms instead of 10 ms" in page
    assert page.count('<ul class="causes">') == 1


def test_what_is_collected_is_of_the_window_and_the_processes_that_are_asked_for():
    """Steps before the window only say what is usual."""
    other = image(77, name="other")

    def collected(**asked):
        collector = Collector(Explainer(), **asked)
        stream = (
            capture(),
            *steps(),
            *steps(other),
            snapshot(1.5, calls(TRAIN, "cudaMalloc", [2_000] * 7)),
        )
        for activity in stream:
            collector.observe(activity)
        made = collector.finish("test")
        Draft202012Validator(SCHEMA).validate(make_document(made))
        console = Console(file=StringIO(), width=250)
        write_text(made, console)
        return made.steps, console.file.getvalue()

    rows, text = collected()
    assert sorted((row.process.pid, row.steps) for row in rows) == sorted(
        [(TRAIN.pid, STEPS), (77, STEPS)]
    )
    assert "step 412 was slow: 40 ms instead of 10 ms; it waited 21 ms for the data" in text
    rows, _ = collected(window=Window(T0 + SECOND, T0 + 2 * SECOND), pids=(77,))
    assert [(row.process.pid, row.steps, row.slow_steps) for row in rows] == [(77, 1, 1)]

"""Why a GPU is not busy: the time tree and chronic incidents, as an assistant reads them."""

import json

import pytest

from otel_gpu.enrich.identity.identities import Who
from otel_gpu.explain.chains import Cause, Culprit, Incident, Verdict
from otel_gpu.mcp.answers import MAX_BYTES
from otel_gpu.mcp.captures import ServedDocument
from otel_gpu.mcp.server import answer
from otel_gpu.report.document import Document, TimeNode, Where, Window, processes_of
from otel_gpu.report.health import Health
from tests.activities import SECOND, T0, image, lines_at
from tests.unit.mcp import served
from tests.unit.report.render.html.pages import report_named

MS = 1_000_000
TRAINER = image(42, 1)
LOADER = Who(77, 79, "loader", "python load.py", unit="job.service")


def node(state, share, *children, **values):
    return TimeNode(state, round(share * SECOND), share, children=children, **values)


def judged(process, tree):
    return Verdict(process, "data-bound", {"data": 1.0}, {"ipc": tree.time_ns}, tree)


def document_of(*verdicts, incidents=()):
    images = [verdict.process for verdict in verdicts]
    processes = tuple(processes_of(images, verdicts))
    return Document("x", Window(T0, T0 + SECOND), processes, incidents=tuple(incidents))


@pytest.fixture
def ask(monkeypatch):
    capture = served.capture_of(served.DEMO)

    def ask(document, tool="get_time_budget", **arguments):
        monkeypatch.setattr(
            capture, "examine", lambda _: ServedDocument(document, Health(), {}, "")
        )
        text, is_error = answer(capture, tool, arguments)
        assert not is_error, text
        return text

    return ask


def test_the_tree_says_who_was_waited_for_and_what_that_one_did(ask):
    """Each row is a part of the one above it of less depth; a command is said once."""
    work = node("host_work", 0.5, who=LOADER, where=Where("decode", "/app/data.py", 7), samples=9)
    late = node("run_queue", 0.1, who=LOADER)
    waits = node("ipc", 0.6, node("ipc", 0.6, work, late, who=LOADER))
    tree = node("all", 1.0, waits, node("host", 0.4))

    told = json.loads(ask(document_of(judged(TRAINER, tree))))["time_tree"]

    assert served.rows(told)[1] == {
        "pid": 42,
        "depth": 1,
        "share": 0.6,
        "time_us": 600_000,
        "state": "ipc",
        "what": "for loader (77/79), job.service",
        "their_command": "python load.py",
    }
    assert [(row["depth"], row["what"], row["their_command"]) for row in served.rows(told)] == [
        (0, "data from others", ""),
        (1, "for loader (77/79), job.service", "python load.py"),
        (2, "which was working on a CPU, in data.py:7 decode", ""),
        (2, "which waited for a CPU", ""),
        (0, "its own work", ""),
    ]
    assert "more" not in told


@pytest.mark.parametrize("path", [served.STARVED, served.DEMO], ids=lambda path: path.stem)
def test_the_states_of_the_tree_are_the_budget(path):
    """What the verdict was judged by is the first level of the tree, but for what is tiny."""
    told = served.ask(served.capture_of(path), "get_time_budget")

    for verdict in told["verdicts"]["rows"]:
        states = {
            row["state"]: row
            for row in served.rows(told["time_tree"])
            if (row["pid"], row["depth"]) == (verdict["pid"], 0)
        }
        assert {name: row["time_us"] for name, row in states.items()} == {
            name: time_us for name, time_us in verdict["budget_us"].items() if name in states
        }
        assert sum(row["share"] for row in states.values()) == pytest.approx(1, abs=0.03)


def test_a_chronic_incident_answers_too(ask):
    """With its share of the time of the threads that feed the GPU; acute ones are elsewhere."""
    culprit = Culprit(900, 0, "hog")
    causes = (Cause("run_queue", SECOND // 4, 0.25, culprit, ()),)
    chronic = Incident(
        "c", "high", T0, T0 + SECOND, SECOND // 4, causes, 0, ("Move it.",), (), 0, True, TRAINER
    )
    document = document_of(
        judged(TRAINER, node("all", 1.0, node("run_queue", 1.0))),
        incidents=(chronic, *report_named("x").incidents[:1]),
    )

    assert json.loads(ask(document))["chronic"]["rows"] == [
        {
            "id": "c",
            "severity": "high",
            "severity_reason": "",
            "lost_us": 250_000,
            "share": 0.25,
            "pids": [42],
            "what": "It was ready to run, and hog (900) had the CPU",
            "advice": ["Move it."],
        }
    ]
    told, acute = json.loads(ask(document, "get_causal_chains"))["incidents"]["rows"]
    assert (told["chronic"], acute["chronic"]) == (True, False)
    assert told["services"] == [{"pid": 42, "service": "trainer"}]


def test_trees_are_bounded(ask):
    """Of many large ones the largest are shown, and what is left out is counted."""
    hogs = [node("run_queue", 0.02, who=Who(pid, 0, "h" * 15, "c" * 400)) for pid in range(50)]
    trees = [node("all", 1.0, node("run_queue", 1.0, *hogs)) for _ in range(60)]
    verdicts = [
        judged(image(pid, 1), tree._replace(time_ns=SECOND + pid)) for pid, tree in enumerate(trees)
    ]

    told = json.loads(ask(document_of(*verdicts), limit=10))

    rows = served.rows(told["time_tree"])
    assert [row["pid"] for row in rows] == [pid for pid in (59, 58, 57, 56) for _ in range(10)]
    assert len(rows) + told["time_tree"]["more"] == 60 * 51
    text = ask(document_of(*verdicts), limit=200)
    assert len(text.encode()) <= MAX_BYTES
    assert json.loads(text)["verdicts"]["rows"]


@pytest.mark.parametrize("name", served.HOSTILE)
def test_hostile_names_in_the_tree_come_back_inert(ask, name):
    """Whoever is waited for may be called anything."""
    text = ask(report_named(name, kind=name))

    assert text.isprintable()
    assert not set("<>&`\u202e\x1b") & set(text)
    assert "](" not in text
    assert len(text.encode()) <= MAX_BYTES
    assert len(json.loads(text)["time_tree"]["rows"]) == 6


def test_verdicts_and_causes_name_their_lines(ask):
    """By share of the samples, at most three; what is not known of one is left out."""
    lines = lines_at(("decode", 7, 6), ("", 0, 3), ("f", 1, 2), ("g", 2, 1), work="json")
    verdict = judged(TRAINER, node("all", 1.0, node("ipc", 1.0)))._replace(lines=lines)
    work = Cause("host_work", 500 * MS, 0.5, Culprit(77, 77, "loader"), (), lines=lines)
    waits = Cause("ipc", 500 * MS, 0.5, Culprit(77, 79, "loader"), (), (work,))
    late = Incident("i1", "high", T0, T0 + SECOND, 1, (waits,), 0, (), (), 0, True, TRAINER)

    document = document_of(verdict, incidents=[late])
    (told,) = json.loads(ask(document))["verdicts"]["rows"]
    (incident,) = json.loads(ask(document, "get_causal_chains"))["incidents"]["rows"]

    (cause,) = incident["causes"]
    assert "lines" not in cause
    for shown in (told, cause["of_which"][0]):
        assert shown["samples"] == 12
        assert shown["lines"][0] == {
            "function": "decode",
            "file": "/app/pictures.py",
            "line": 7,
            "work": "json",
            "share": 0.5,
            "samples": 6,
        }
        assert shown["lines"][1].keys() == {"file", "work", "share", "samples"}
        assert len(shown["lines"]) == 3

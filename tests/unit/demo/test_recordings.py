"""What the recordings of the scenarios are explained by: on the right lines, and nearly all of it."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from otel_gpu import cli
from otel_gpu.demo.truth import lines_of
from tests.scenarios.all_scenarios import LINES, SCENARIOS
from tests.scenarios.lost_time import MOST_UNEXPLAINED, faults_of_lines, nodes, unexplained
from tests.scenarios.outcomes import OUTCOMES, faults_of_outcome
from tests.scenarios.truth import InjectedPlace

Document = Mapping[str, Any]


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Document]:
    """Explain the recording of a scenario, once."""
    folder = tmp_path_factory.mktemp("explained")

    @cache
    def explain(name: str) -> Document:
        written: Path = folder / f"{name}.json"
        recording = str(SCENARIOS[name].recording)
        assert cli.main(["explain", recording, "--json", "--output", str(written)]) == 0
        document: Document = json.loads(written.read_text(encoding="utf-8"))
        return document

    return explain


def tree_of(document: Document) -> Document:
    trees = [one["time_tree"] for one in document["processes"] if one.get("time_tree")]
    tree: Document = max(trees, key=lambda one: int(one["time_ns"]))
    return tree


@pytest.mark.parametrize("name", LINES)
def test_time_is_lost_on_the_lines_where_the_loop_was(
    explained: Callable[[str], Document], name: str
) -> None:
    """Also where its CPU was taken from it. Which number a line had is the recording's."""
    lines = [
        (kind, InjectedPlace(**{**place, "first_line": 0, "last_line": 0}))
        for kind, place in lines_of(SCENARIOS[name]).items()
    ]

    assert not list(faults_of_lines(tree_of(explained(name)), lines))


def test_a_thread_that_is_waited_for_is_on_a_line_of_its_own(
    explained: Callable[[str], Document],
) -> None:
    """The holder of the GIL runs no function of the loop."""
    tree = tree_of(explained("gil-holder"))
    found = [node for node in nodes(tree) if (node["who"] or {}).get("comm") == "holder"]

    assert found
    functions = {node["where"]["function"] for node in found if node["where"]}
    assert "tokenise" in functions
    below = [child for node in found for child in node["children"]]
    assert not [one for one in below if one["where"] and "Trainer" in one["where"]["function"]]


@pytest.mark.parametrize("name", SCENARIOS)
def test_nearly_all_of_what_is_lost_is_explained(
    explained: Callable[[str], Document], name: str
) -> None:
    """What is not was measured by nobody."""
    assert {
        of: share for of, share in unexplained(explained(name)) if share > MOST_UNEXPLAINED
    } == {}


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_verdict_and_the_first_advice_are_those_of_the_truth(
    explained: Callable[[str], Document], name: str
) -> None:
    """Who is behind it, too; and what is healthy has no incident of high severity."""
    document = explained(name)
    feeding = [one for one in document["processes"] if one.get("time_tree")]
    pid = max(feeding, key=lambda one: int(one["time_tree"]["time_ns"]))["pid"]

    assert set(OUTCOMES) == set(SCENARIOS)
    assert not list(faults_of_outcome(document, pid, OUTCOMES[name]))

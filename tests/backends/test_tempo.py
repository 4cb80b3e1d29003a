"""What our spans are in Tempo: docs/collector.md, the dashboards, and what was sent."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.backends.conftest import Replay
from tests.backends.otelcol import Otelcol
from tests.backends.processes import wait_for
from tests.backends.recordings import moved_to_now
from tests.backends.tempo import Range, Tempo, needs_tempo
from tests.backends.tempo_page import (
    LATE,
    Asked,
    Filled,
    answer_of,
    asked,
    fill,
    late_data,
    prepare,
    section,
    settings,
)
from tests.backends.traces import traces_of
from tests.backends.truth import truth_of
from tests.deploy.dashboards import Question, filled_in, questions
from tests.investigating import missing
from tests.receiver import ReceivedSpan

pytestmark = [pytest.mark.backends, needs_tempo]

REAL = os.environ.get("OTEL_GPU_TEST_TORCH_DATA", "")
QUERIES = asked(section())
RECORDINGS = QUERIES[0].filling


class Kept(NamedTuple):
    """Tempo with all that the page sends."""

    tempo: Tempo
    filled: Mapping[str, Filled]

    @property
    def recordings(self) -> Filled:
        """What the recordings became."""
        return self.filled[RECORDINGS]

    def found(self, query: str) -> set[str]:
        """Ids of what a query finds in them."""
        return {span.span_id for span in self.tempo.search(query, self.recordings.within)}

    def sent(self, holds: Callable[[ReceivedSpan], Any]) -> set[str]:
        """Ids of what was sent that this is true of."""
        return {one.span.span_id.hex() for one in self.recordings.sent if holds(one)}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    folder = prepare(tmp_path_factory.mktemp("page"))
    with Tempo(settings()) as tempo:
        yield Kept(tempo, {one: fill(tempo, one, folder) for one in {q.filling for q in QUERIES}})


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.example.text[:70])
def test_tempo_answers_as_the_page_says(kept: Kept, query: Asked) -> None:
    """What stands below each query of docs/collector.md is what Tempo finds."""
    promised, text = query.example.promised, query.example.text
    answered = answer_of(kept.tempo, text, kept.filled[query.filling].within)

    assert promised.strip()
    assert not missing(promised, answered), f"{text}\n{answered}"
    assert "..." in promised or len(promised.splitlines()) == len(answered.splitlines()), answered


def test_every_span_is_found_at_its_own_time(kept: Kept) -> None:
    """All that was sent is found by one search, to the nanosecond."""
    for filled in kept.filled.values():
        assert found_in(kept.tempo, filled) == times_of(filled)


@pytest.mark.skipif(not REAL, reason="needs OTEL_GPU_TEST_TORCH_DATA: a folder of real traces")
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("torch-trace", "kineto/workers_0.1623143089861.pt.trace.json.gz"),
        ("torch-trace", "hta/nccl_data.json.gz"),
        ("nsys", "nsys/mfu_2gpu_before.sqlite"),
    ],
)
def test_a_real_run_is_found_at_its_own_time(
    kept: Kept, tmp_path: Path, kind: str, name: str
) -> None:
    """Traces of 2021, 2024 and 2026 are found where they were, with a run for each device."""
    filling = f"otel-gpu import {kind} {Path(REAL, name)} --otlp"
    filled = fill(kept.tempo, filling, tmp_path)
    runs = [one.span.span_id.hex() for one in filled.sent if one.span.name == "gpu.run"]
    found = kept.tempo.search('{ name = "gpu.run" }', filled.within)

    assert found_in(kept.tempo, filled) == times_of(filled)
    assert sorted(span.span_id for span in found) == sorted(runs)
    assert len(runs) == (2 if kind == "nsys" else 1)


def test_steps_of_an_imported_run_are_at_their_original_times(kept: Kept) -> None:
    """As the profiler wrote them, which was long before they were sent."""
    (run,) = (filled for filling, filled in kept.filled.items() if " import " in filling)
    steps = [event for event in late_data() if event["name"].startswith("ProfilerStep#")]
    found = kept.tempo.search('{ name = "gpu.step" } | select(span.otel_gpu.step.name)', run.within)

    assert len(steps) == 8
    assert [
        (s.attributes["otel_gpu.step.name"], s.start_unix_ns, s.duration_ns) for s in found
    ] == [(event["name"], 1_000 * event["ts"], 1_000 * event["dur"]) for event in steps]
    slow = kept.tempo.search('{ name = "gpu.step" && duration > 6ms }', run.within)
    assert [s.start_unix_ns for s in slow] == [1_000 * steps[at - 1]["ts"] for at in LATE]


def test_incidents_are_found_by_culprit(kept: Kept) -> None:
    """Each culprit's incidents, and no others: those of nobody are another query."""
    culprits = {
        one.attributes.get("otel_gpu.culprit.comm")
        for one in kept.recordings.sent
        if one.span.name == "gpu.incident"
    }
    assert {"hog", "holder"} <= culprits
    for comm in culprits:
        value = f'"{comm}"' if comm else "nil"
        query = f'{{ name = "gpu.incident" && span.otel_gpu.culprit.comm = {value} }}'

        assert kept.found(query) == kept.sent(
            lambda one, comm=comm: (
                one.span.name == "gpu.incident"
                and one.attributes.get("otel_gpu.culprit.comm") == comm
            )
        )


def test_causes_are_found_below_the_chain_of_a_loss(kept: Kept) -> None:
    """A structural query returns each cause that is directly below a chain that lost 50 ms."""
    chains = kept.sent(
        lambda one: (
            one.span.name == "gpu.causal_chain" and one.attributes["otel_gpu.excess.time"] > 0.05
        )
    )
    query = (
        '{ name = "gpu.causal_chain" && span.otel_gpu.excess.time > 0.05 } '
        '> { name =~ "gpu.cause.*" }'
    )

    assert chains
    assert kept.found(query) == kept.sent(
        lambda one: (
            one.span.parent_span_id.hex() in chains and one.span.name.startswith("gpu.cause.")
        )
    )


def test_slow_calls_are_found_by_api(kept: Kept) -> None:
    """As many as the recordings say, read without the code that exports them."""
    calls = [call for name in ("two-causes", "lock") for call in truth_of(name).calls]
    slow = {call.times for call in calls if call.duration_ns > 20e6}
    query = (
        '{ instrumentation:name = "otel_gpu.cuda" && duration > 20ms && span.gpu.cuda.api != nil }'
    )
    found = kept.tempo.search(query, kept.recordings.within)

    assert len(slow) >= 8
    assert {(s.start_unix_ns, s.start_unix_ns + s.duration_ns) for s in found} == slow


def test_a_trace_is_whole(kept: Kept) -> None:
    """By its id, a trace has every span that was sent of it, and links lead to traces there are."""
    sent: dict[str, set[str]] = {}
    for one in kept.recordings.sent:
        sent.setdefault(one.span.trace_id.hex(), set()).add(one.span.span_id.hex())
    incidents = [one.span for one in kept.recordings.sent if one.span.name == "gpu.incident"]
    linked = {link.trace_id.hex() for incident in incidents for link in incident.links}

    assert len(linked) >= 8
    for trace_id in linked | {incident.trace_id.hex() for incident in incidents}:
        assert kept.tempo.trace(trace_id) == sent[trace_id]


@pytest.mark.parametrize("question", questions("tempo"), ids=str)
def test_dashboards_find_spans(kept: Kept, question: Question) -> None:
    """Every query of a dashboard is understood, and finds something in the recordings."""
    query = filled_in(question.target["query"], 60, 60)

    assert kept.found(query)


def test_a_condition_that_nothing_fulfils_finds_nothing(kept: Kept) -> None:
    """The tests above can fail: a misspelt attribute, or a name that is not there, is no error."""
    for query in (
        '{ name = "gpu.incident" && span.otel_gpu.culprit.com = "hog" }',
        '{ name = "gpu.incidents" }',
        '{ name = "gpu.cause.lock" } > { name = "gpu.causal_chain" }',
    ):
        assert kept.found(query) == set()


def test_what_is_new_is_found_with_its_own_settings(replay: Replay, tmp_path: Path) -> None:
    """
    What just happened is found, through tempo.yaml of the Collector and without more settings.

    What happened long before it arrived is found by the id of its trace only, as the page says.
    """
    new, old = tmp_path / "new.otelgpu", truth_of("lock").path
    end_s = int(moved_to_now(truth_of("two-causes").path, new))
    with Tempo() as tempo, Otelcol("tempo", env={"OTELCOL_TEMPO": tempo.http_endpoint}) as otelcol:
        replay(old, otelcol.endpoint)
        replay(new, otelcol.endpoint)
        expected = sum(map(len, traces_of(new).values()))
        now: Range = (end_s - 60, int(time.time()) + 60)
        assert wait_for(lambda: len(tempo.search("{ }", now)) >= expected)
        trace_id, spans = max(traces_of(old).items(), key=lambda one: len(one[1]))

        # It came first, so it is as far on its way as what was found.
        assert tempo.search("{ }", within(old)) == []
        assert tempo.trace(trace_id.hex()) == {one.span.span_id.hex() for one in spans}


def times_of(filled: Filled) -> list[tuple[str, int, int]]:
    """Id, start and duration of each span that was sent."""
    return sorted(
        (s.span_id.hex(), s.start_time_unix_nano, s.end_time_unix_nano - s.start_time_unix_nano)
        for s in (one.span for one in filled.sent)
    )


def found_in(tempo: Tempo, filled: Filled) -> list[tuple[str, int, int]]:
    """The same of each that Tempo finds in that time."""
    found = tempo.search("{ }", filled.within)
    return sorted((span.span_id, span.start_unix_ns, span.duration_ns) for span in found)


def within(recording: Path) -> Range:
    """The seconds of Unix time that a recording is of."""
    times = [times for call in truth_of(recording.stem).calls for times in call.times]
    return min(times) // 1_000_000_000, max(times) // 1_000_000_000 + 1

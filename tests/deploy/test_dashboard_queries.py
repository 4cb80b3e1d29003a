"""Every question of every dashboard, asked of real backends that our exporter filled."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.backends.jaeger import JaegerSpan
from tests.deploy.dashboards import (
    FILES,
    GRAFANA,
    Json,
    Question,
    filled_in,
    load,
    questions,
    variables,
)
from tests.deploy.feed import CLUSTER, LAYOUTS, RATE_S, SCENARIO, Feed, feed
from tests.deploy.traceql import conditions_of, find_matches

pytestmark = [pytest.mark.kernel, pytest.mark.backends]

RANGE_S = 60
PROMETHEUS = questions("prometheus")
# What did not happen here has no series. It is shown as 0.
NOTHING_TO_SHOW = {
    ("agent", "Spans dropped"): "the endpoint answered all the time",
    ("agent", "Spans dropped, by reason"): "as above",
    ("agent", "Series dropped"): "as above",
    ("agent", "Records rejected, by reason"): "every record was understood",
    ("agent", "Errors inside the agents, by place"): "there were none",
}
# Of programs that the feed does not run. tests/backends/test_fleet.py asks for those of ranks.
NOT_FED = {("memory", title) for title in ("Blocks in use", "Reserved, and not in use", "Known")}
NOT_FED |= {(q.dashboard, q.panel) for q in PROMETHEUS if q.dashboard == "ranks"}
OR_ZERO = " or on () vector(0)"


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Feed]:
    with feed(tmp_path_factory.mktemp("feed")) as filled:
        yield filled


def answers(fed: Feed, layout: str, query: str, **chosen: str) -> list[dict[str, Any]]:
    """The series of an answer that are numbers or histograms."""
    asked = filled_in(query, RATE_S, RANGE_S, **chosen)
    found = fed.prometheus[layout].query(asked, fed.unix_s)
    return [series for series in found if "histogram" in series or series["value"][1] != "NaN"]


def by_label(fed: Feed, layout: str, panel: tuple[str, str], label: str = "") -> dict[str, float]:
    """What a panel shows, as numbers by a label."""
    (question,) = (q for q in PROMETHEUS if (q.dashboard, q.panel) == panel)
    return {
        series["metric"].get(label, ""): float(series["value"][1])
        for series in answers(fed, layout, question.target["expr"])
    }


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("question", PROMETHEUS, ids=str)
def test_it_has_data(fed: Feed, question: Question, layout: str) -> None:
    """
    In either layout of histograms the answer is not empty, also where an empty one is shown as 0.
    """
    query = question.target["expr"]
    if (question.dashboard, question.panel) in NOT_FED:
        pytest.skip("no program of the feed has a framework's allocator, or is a rank")

    if (question.dashboard, question.panel) in NOTHING_TO_SHOW:
        assert answers(fed, layout, query.replace(OR_ZERO, "")) == []
        assert [series["value"][1] for series in answers(fed, layout, query)] == ["0"]
    else:
        assert answers(fed, layout, query.replace(OR_ZERO, ""))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_wrong_name_has_no_data(fed: Feed, layout: str) -> None:
    """The test above can fail: a metric or a label that does not exist gives nothing."""
    (question,) = (q for q in PROMETHEUS if (q.dashboard, q.panel) == ("process", "Calls"))
    query = question.target["expr"]

    assert answers(fed, layout, query)
    assert answers(fed, layout, query.replace("gpu_cuda_call_duration", "gpu_cuda_calls")) == []
    assert answers(fed, layout, query.replace("host_name=~", "hostname=")) == []
    assert answers(fed, layout, query, node="no-such-node") == []


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.stem != "ranks"], ids=lambda path: path.stem
)
def test_every_variable_has_values(fed: Feed, path: Any) -> None:
    """
    Each list to choose from has entries: in Prometheus there is such a label on such a metric.
    """
    for variable in variables(load(path)).values():
        if variable["type"] != "query":
            continue
        metric, label = re.fullmatch(
            r"label_values\((.*), (\w+)\)", variable["definition"]
        ).groups()
        for layout in LAYOUTS:
            found = fed.prometheus[layout].get(
                f"/api/v1/label/{label}/values", **{"match[]": filled_in(metric, RATE_S, RANGE_S)}
            )
            assert found["data"], (variable["name"], layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_figures_are_those_of_the_programs(fed: Feed, layout: str) -> None:
    """
    One node, one call that hangs; each eleventh allocation fails, each seventh is not given back,
    and twice as many bytes go to the device as come back.
    """
    assert by_label(fed, layout, ("fleet", "Nodes reporting"))[""] == 1
    assert by_label(fed, layout, ("fleet", "Calls that hang"))[""] == 1
    calls = by_label(fed, layout, ("process", "Calls"), "gpu_cuda_api")
    failed = by_label(fed, layout, ("process", "Failed calls"), "gpu_cuda_api")
    assert set(failed) == {"cudaMalloc"}
    assert failed["cudaMalloc"] / calls["cudaMalloc"] == pytest.approx(1 / 11, rel=0.1)
    copied = by_label(fed, layout, ("memory", "Copied"), "cuda_memcpy_kind")
    kinds = ("MemcpyHostToDevice", "MemcpyDeviceToHost")
    assert copied[kinds[0]] / copied[kinds[1]] == pytest.approx(2, rel=0.02)
    allocated = by_label(fed, layout, ("memory", "Allocated"), "job")["trainer"]
    assert allocated / (3 << 20) == pytest.approx(calls["cudaMalloc"] * 10 / 11, rel=0.02)
    states = by_label(fed, layout, ("process", "What its threads do"), "state")
    assert {"gpu_wait", "api", "host", "sleep"} <= set(states)
    assert 0 < by_label(fed, layout, ("fleet", "Stalled share"))[""] < 1


def test_exemplars_lead_to_traces(fed: Feed) -> None:
    """
    Each panel with exemplars has some, in one layout at least, and a trace that one names is there.
    """
    asked = [question for question in PROMETHEUS if question.target["exemplar"]]
    traces = set()
    for question in asked:
        found = fed.exemplars(question)
        assert found, str(question)
        traces |= set(found)

    assert [trace for trace in traces if fed.jaeger.trace(trace)]


def test_spans_lead_to_metrics(fed: Feed) -> None:
    """The queries that a span is linked to have data for the span's service and instance."""
    path = GRAFANA / "provisioning" / "datasources" / "otel-gpu.yaml"
    sources = yaml.safe_load(path.read_text(encoding="utf-8"))["datasources"]
    (tempo,) = (source for source in sources if source["type"] == "tempo")
    linked = tempo["jsonData"]["tracesToMetrics"]
    span = fed.jaeger.find("trainer", limit=1)[0]
    tags = ", ".join(f'{tag["value"]}="{span.resource[tag["key"]]}"' for tag in linked["tags"])
    for query in linked["queries"]:
        # As Grafana reads the file, and then the tags.
        text = query["query"].replace("$$", "$").replace("$__tags", tags)
        assert fed.prometheus["exponential"].query(text, fed.unix_s), text


@pytest.mark.parametrize("question", questions("jaeger"), ids=str)
def test_jaeger_finds_what_its_panels_ask_for(fed: Feed, question: Question) -> None:
    """Jaeger's own search, which Grafana uses, has traces for service and operation."""
    found = fed.jaeger.get(
        "/api/traces",
        service=filled_in(question.target["service"], RATE_S, RANGE_S, service=SCENARIO),
        operation=question.target["operation"],
        limit=str(question.target["limit"]),
        start=str(int((fed.unix_s - 3600) * 1e6)),
        end=str(int((fed.unix_s + 3600) * 1e6)),
    )

    names = {span["operationName"] for trace in found["data"] for span in trace["spans"]}
    assert question.target["operation"] in names


@pytest.mark.parametrize("question", questions("tempo"), ids=str)
def test_spans_match_what_tempo_is_asked_for(fed: Feed, question: Question) -> None:
    """Spans of the run fulfil every condition of the query."""
    assert len(list(conditions_of(question.target["query"]))) >= 2
    assert find_matches(fed.jaeger, SCENARIO, question)


def test_the_reader_of_traceql_tells_spans_apart() -> None:
    """
    The test above can fail: each kind of condition is false for a span that does not fulfil it.
    """
    span = JaegerSpan(
        {"service.name": "trainer"}, "", "", "", "", "gpu.incident", 0, 20_000_000,
        {"otel_gpu.severity": "low"}, (),
    )  # fmt: skip
    for query, expected in (
        ('{ resource.service.name =~ "train.*" && name = "gpu.incident" }', [True, True]),
        ('{ resource.service.name =~ "train" && name = "gpu" }', [False, False]),
        ('{ span.otel_gpu.severity = "high" && duration > 10ms }', [False, True]),
        ('{ span.absent =~ ".*" && duration > 30ms }', [False, False]),
    ):
        assert [holds(span) for holds in conditions_of(query)] == expected


def test_the_cluster_that_the_agent_was_told_is_on_everything(fed: Feed) -> None:
    """OTEL_RESOURCE_ATTRIBUTES of the agent places its own metrics and those of programs."""
    for query in ('target_info{job="otel-gpu"}', 'target_info{job="trainer"}'):
        found: list[Json] = answers(fed, "exponential", query)
        assert {series["metric"]["k8s_cluster_name"] for series in found} == {CLUSTER}

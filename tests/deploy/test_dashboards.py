"""The dashboards are what their source says, and hang together."""

import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from tests.deploy.dashboards import FILES, GRAFANA, ROOT, Json, load, panels, questions, variables

# Variables that Grafana itself has.
BUILT_IN = {"__rate_interval", "__range", "__from", "__to", "__url_time_range", "__data", "__all"}
UNITS = {"short", "s", "bytes", "Bps", "ops", "percentunit"}
ids = [path.stem for path in FILES]


@pytest.fixture(params=FILES, ids=ids)
def dashboard(request: pytest.FixtureRequest) -> Json:
    return load(request.param)


def test_the_files_are_what_is_generated() -> None:
    """Nobody edited the JSON and left its source behind, or the reverse."""
    command = [sys.executable, "-m", "tools.grafana", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert ids == ["agent", "chains", "fleet", "inference", "memory", "node", "process", "ranks"]


def test_the_check_finds_an_edited_file(tmp_path: Path) -> None:
    """A dashboard that differs from its source, or that has none, fails the check."""
    script = (
        "import sys, pathlib, tools.grafana.__main__ as made\n"
        "made.TARGET = pathlib.Path(sys.argv[1])\n"
        "assert made.main([]) == 0\n"
        "assert made.main(['--check']) == 0\n"
        "(made.TARGET / 'fleet.json').write_text('{}')\n"
        "(made.TARGET / 'other.json').write_text('{}')\n"
        "sys.exit(made.main(['--check']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert [Path(line.split()[0]).name for line in done.stderr.splitlines()] == [
        "fleet.json",
        "other.json",
    ]


def test_every_panel_says_what_it_means(dashboard: Json) -> None:
    """Title, explanation, unit and data source are there; the source is a variable."""
    for panel in panels(dashboard):
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        for target in panel["targets"]:
            kind = target["datasource"]["type"]
            assert target["datasource"] == {"type": kind, "uid": f"${{{kind}}}"}
            assert variables(dashboard)[kind]["type"] == "datasource"


def test_panels_lie_beside_and_below_one_another(dashboard: Json) -> None:
    """None overlaps another or leaves the 24 columns, and no two have one id."""
    taken: set[tuple[int, int]] = set()
    numbers = []
    for panel in (*panels(dashboard), *(p for p in dashboard["panels"] if p["type"] == "row")):
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken
        taken |= cells
        numbers.append(panel["id"])
    assert len(numbers) == len(set(numbers)) > 8


def test_every_variable_that_is_used_is_there_and_the_reverse(dashboard: Json) -> None:
    """Neither a query nor a link names what the dashboard does not let one choose."""
    defined = variables(dashboard)
    body = json.dumps([dashboard["panels"], dashboard["templating"]])

    used = set(re.findall(r"\$\{?(\w+)", body)) - BUILT_IN

    assert used == set(defined)
    for variable in defined.values():
        if variable["type"] == "query" and variable["multi"]:
            assert variable["allValue"] == ".*"


def test_links_lead_to_dashboards_that_are_there(dashboard: Json) -> None:
    """A link names a dashboard of ours and variables of it, or a query for Explore that is JSON."""
    known = {load(path)["uid"]: variables(load(path)) for path in FILES}
    for panel in panels(dashboard):
        for link in panel["fieldConfig"]["defaults"].get("links", ()):
            url = urlsplit(link["url"])
            query = parse_qs(url.query)
            if url.path == "/explore":
                ((pane),) = json.loads(query["panes"][0]).values()
                assert pane["queries"][0]["query"].startswith("{ resource.service.name =~ ")
                assert pane["datasource"] == "${tempo}"
            else:
                chosen = {name.removeprefix("var-") for name in query if name.startswith("var-")}
                assert chosen <= set(known[url.path.removeprefix("/d/")])
                assert chosen
    assert dashboard["links"][0]["tags"] == dashboard["tags"]


def test_a_node_leads_to_processes_and_those_to_traces() -> None:
    """The way down: fleet, node, process, traces."""
    urls = {
        path.stem: [
            link["url"].partition("?")[0]
            for panel in panels(load(path))
            for link in panel["fieldConfig"]["defaults"].get("links", ())
        ]
        for path in FILES
    }

    assert "/d/otel-gpu-node" in urls["fleet"]
    assert {"/d/otel-gpu-process", "/explore"} <= set(urls["node"])
    assert "/explore" in urls["process"]


def test_the_provisioned_data_sources_are_what_is_linked_to() -> None:
    """Exemplars lead to the traces that are provisioned, and spans to the metrics."""
    path = GRAFANA / "provisioning" / "datasources" / "otel-gpu.yaml"
    sources = yaml.safe_load(path.read_text(encoding="utf-8"))["datasources"]
    by_uid = {source["uid"]: source for source in sources}

    assert {source["type"] for source in sources} == {"prometheus", "tempo", "jaeger"}
    (exemplars,) = by_uid["otel-gpu-prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert exemplars == {"name": "trace_id", "datasourceUid": "otel-gpu-tempo"}
    for uid in ("otel-gpu-tempo", "otel-gpu-jaeger"):
        assert by_uid[uid]["jsonData"]["tracesToMetrics"]["datasourceUid"] == "otel-gpu-prometheus"
    assert sum(question.target["exemplar"] for question in questions("prometheus")) >= 4


def test_all_dashboards_are_in_the_kustomization() -> None:
    """Where Grafana takes dashboards from ConfigMaps, none is forgotten."""
    document = yaml.safe_load((GRAFANA / "kustomization.yaml").read_text(encoding="utf-8"))

    files = [file for each in document["configMapGenerator"] for file in each["files"]]

    assert sorted(files) == [f"dashboards/{path.name}" for path in FILES]

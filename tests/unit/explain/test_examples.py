"""What always takes time has examples: a recorded call or gap of the worst incident, with its causes and links."""

import json
from types import SimpleNamespace

import pytest

from otel_gpu import cli
from otel_gpu.explain.examples import Examples
from tests.scenarios.all_scenarios import SCENARIOS
from tests.schemas import REPORT
from tests.unit.mcp import served

# By recording, what takes most of the time of each, and whose it is.
CHRONIC = {
    "busy-loader": ("ipc", "loader"),
    "gil-holder": ("gil", "holder"),
    "noisy-neighbour": ("run_queue", "neighbour"),
    "steady-contention": ("run_queue", "hog"),
    "steady-host-work": ("host_work", None),
    "steady-loader": ("ipc", "loader"),
    "steady-sleep": ("sleep", None),
}
ALIKE = {"run_queue": {"run_queue", "preemption"}}


def recording(name):
    return SCENARIOS[name].recording


def document_of(capsys, *arguments):
    assert cli.main(["explain", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def taken_ns(chain, kind, comm):
    """How much of a call or gap a cause took."""
    return sum(
        cause["time_ns"]
        for cause in chain["causes"]
        if cause["kind"] in ALIKE.get(kind, {kind})
        and (comm is None or (cause["culprit"] or {}).get("comm") == comm)
    )


@pytest.mark.parametrize("name", CHRONIC)
def test_the_worst_incident_has_an_example_that_shows_its_cause(name, capsys):
    """It took at least a fifth of that call or gap, and no example is counted as an effect."""
    kind, comm = CHRONIC[name]
    document = document_of(capsys, recording(name))

    REPORT.validate(document)
    (incident, *_) = [one for one in document["incidents"] if one["chronic"]]
    cause = incident["causes"][0]
    assert (cause["kind"], (cause["culprit"] or {}).get("comm")) == (kind, comm)
    chains = {one["id"]: one for one in (*document["chains"], *document["examples"])}
    example = chains[incident["examples"][0]]
    effect = example["effect"]
    assert taken_ns(example, kind, comm) >= effect["duration_ns"] / 5
    assert incident["start_unix_ns"] <= effect["start_unix_ns"]
    assert effect["start_unix_ns"] + effect["duration_ns"] <= incident["end_unix_ns"]
    assert {one["effect"]["kind"] for one in document["examples"]} <= {"usual_call", "usual_gap"}
    assert not {one["id"] for one in document["examples"]} & {
        one["id"] for one in document["chains"]
    }


@pytest.mark.parametrize("name", ["allocator-bypass", "empty-cache"])
def test_what_calls_for_memory_lose_is_shown_by_one_of_them(name, capsys):
    """Whatever each of them waited for: there are many, and the longest is an example."""
    document = document_of(capsys, recording(name))

    (incident, *_) = document["incidents"]
    assert incident["causes"][0]["kind"] == name.replace("-", "_")
    chains = {one["id"]: one for one in (*document["chains"], *document["examples"])}
    shown = [chains[name]["effect"] for name in incident["examples"]]
    assert {one["api"] for one in shown} <= {"cudaMalloc", "cudaFree", "cudaMallocAsync"}
    assert shown[0]["duration_ns"] == max(one["duration_ns"] for one in shown) > 1_000_000


@pytest.mark.parametrize("name", CHRONIC)
def test_the_worst_moment_is_in_the_worst_incident(name, capsys):
    """The text draws the example, and an assistant that names no window is shown around it."""
    document = document_of(capsys, recording(name))
    chains = {one["id"]: one for one in (*document["chains"], *document["examples"])}
    (incident, *_) = document["incidents"]
    effect = chains[[*incident["examples"], *incident["chains"]][0]]["effect"]

    window = served.ask(served.capture_of(recording(name)), "get_timeline")["window"]
    assert cli.main(["explain", str(recording(name))]) == 0

    around_ns = effect["duration_ns"] // 5
    assert window["start_unix_ns"] == effect["start_unix_ns"] - around_ns
    assert window["chosen"].startswith("around an example of the worst incident")
    told = capsys.readouterr().out
    moment = told[told.index("The worst moment") :].split("\n\n")[0]
    assert f"{effect['api']} of" in moment
    assert f"thread {effect['tid']}" in moment


def test_an_example_can_be_asked_for(capsys):
    """By its id, with the intervals that it rests on; the incident names it."""
    (incident, *_) = document_of(capsys, recording("busy-loader"))["incidents"]
    busy = served.capture_of(recording("busy-loader"))

    told = served.ask(busy, "get_causal_chains", id=incident["examples"][0])["chain"]
    shown = served.ask(busy, "get_causal_chains")["incidents"]["rows"][0]

    assert told["effect"]["kind"] == "usual_gap"
    assert told["intervals"]["rows"]
    assert shown["example_ids"] == incident["examples"]


def test_a_window_has_examples_of_its_own(capsys):
    """They touch the window, whatever is longer outside of it."""
    whole = document_of(capsys, recording("steady-contention"))
    start_unix_ns = whole["window"]["start_unix_ns"] + 600_000_000
    start = f"{start_unix_ns // 10**9}.{start_unix_ns % 10**9:09}"

    document = document_of(capsys, recording("steady-contention"), "--from", start)

    chains = {one["id"]: one for one in (*document["chains"], *document["examples"])}
    shown = [name for one in document["incidents"] for name in one["examples"]]
    assert shown
    for name in shown:
        effect = chains[name]["effect"]
        assert effect["start_unix_ns"] + effect["duration_ns"] >= start_unix_ns


@pytest.mark.parametrize("name", CHRONIC)
def test_the_spans_of_a_chronic_incident_link_to_what_was_recorded(name, tmp_path):
    """To a call or gap, to its causal chain, and to waits in it: all of them are exported."""
    kind = CHRONIC[name][0]
    path = tmp_path / "spans.jsonl"
    assert cli.main(["replay", str(recording(name)), "--otlp-file", str(path)]) == 0

    spans = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        for resource in json.loads(line).get("resourceSpans", ()):
            for scope in resource["scopeSpans"]:
                spans |= {(one["traceId"], one["spanId"]): one for one in scope["spans"]}
    incidents = [
        one
        for one in spans.values()
        if one["name"] == "gpu.incident" and value_of(one, "otel_gpu.incident.chronic")
    ]
    (worst,) = [one for one in incidents if value_of(one, "otel_gpu.cause.kind") == kind][:1]
    linked = [spans[link["traceId"], link["spanId"]] for link in worst["links"]]
    names = {one["name"] for one in linked}
    assert "gpu.causal_chain" in names
    assert names & {"cudaStreamSynchronize", "cudaLaunchKernel", "gpu.launch_gap"}
    if kind != "host_work":
        assert names & {"sched.blocked", "sched.run_queue_wait"}
    # The causal chain is below the call or gap, and its causes link to the same waits.
    (chain, *_) = [one for one in linked if one["name"] == "gpu.causal_chain"]
    assert (chain["traceId"], chain["parentSpanId"]) in spans
    below = [one for one in spans.values() if one.get("parentSpanId") == chain["spanId"]]
    for one in below:
        for link in one.get("links", ()):
            assert (link["traceId"], link["spanId"]) in spans
    if kind != "host_work":
        assert any(one.get("links") for one in below)


def value_of(span, key):
    """An attribute of a span; None where it has none."""
    found = [one["value"] for one in span["attributes"] if one["key"] == key]
    return next(iter(found[0].values())) if found else None


def test_the_end_of_a_process_leaves_the_examples_of_others():
    """A process comes and goes every second: what the others lost is still shown."""
    examples = Examples(lambda _: pytest.fail("nothing is to be explained"), 97)
    trainer, short = (SimpleNamespace(pid=pid, program_ktime_ns=7) for pid in (11, 13))
    for process in (trainer, short):
        cause = SimpleNamespace(kind="sleep", time_ns=5, culprit=None)
        effect = SimpleNamespace(
            process=process, start_unix_ns=100, duration_ns=5, kind="usual_gap", api=""
        )
        examples.add(SimpleNamespace(id=str(process.pid), effect=effect, causes=[cause]))
    examples.forget((short.pid, short.program_ktime_ns))

    def shown(process):
        cause = SimpleNamespace(kind="sleep")
        window = {"start_unix_ns": 0, "end_unix_ns": 200}
        chronic = SimpleNamespace(process=process, cause=cause, culprit_pid=0, **window)
        return [chain.id for chain in examples.find(chronic)]

    assert (shown(trainer), shown(short)) == (["11"], [])

import json

import pytest

from otel_gpu.explain.chains import Cause, Chain, Culprit, Effect, Evidence, Incident
from otel_gpu.export.exports import open_exports
from otel_gpu.options import Config, ExplainConfig, ExportConfig
from tests.activities import T0, capture, counters
from tests.unit.export import samples
from tests.unit.export.samples import BOOT_UNIX_NS

SECOND = 1_000_000_000
WORKER = {"call_start_ktime_ns": 0, "root_start_ktime_ns": 0, "tid": 51}


def chain_of(call, stall, number=1):
    """A slow call that a stall is to blame for, as the explainer would say it."""
    effect = Effect(
        "slow_call",
        call.process,
        call.api.name,
        call.event.tid,
        call.event.comm,
        call.start_unix_ns,
        call.end_unix_ns - call.start_unix_ns,
        1_500,
        call.trace_id,
        call.span_id,
    )
    culprit = Culprit(90, 91, "hog")
    evidence = Evidence(
        "e1",
        "run_queue",
        stall.runnable_unix_ns,
        stall.end_unix_ns,
        culprit,
        None,
        "",
        (),
        stall.run_queue_span_id,
    )
    causes = (Cause("run_queue", 500, 0.25, culprit, (evidence,)),)
    return Chain(f"c{number}", effect, causes, 1_500, "high")


class Written:
    """The spans and counters of an OTLP/JSON file."""

    def __init__(self, path):
        self.spans = []
        self.counts = {}
        for line in path.read_text().splitlines():
            request = json.loads(line)
            for resource in request.get("resourceSpans", ()):
                for scope in resource["scopeSpans"]:
                    self.spans += scope["spans"]
            for resource in request.get("resourceMetrics", ()):
                for scope in resource["scopeMetrics"]:
                    for metric in scope["metrics"]:
                        self._count(metric)

    def _count(self, metric):
        for point in metric.get("sum", {}).get("dataPoints", ()):
            values = [a["value"]["stringValue"] for a in point.get("attributes", ())]
            self.counts[(metric["name"], *values)] = int(point.get("asInt", 0))

    def named(self, name):
        return [span for span in self.spans if span["name"] == name]

    def one(self, name):
        (span,) = self.named(name)
        return span


@pytest.fixture
def write(tmp_path):
    """Export what a function observes; return what was written."""

    def run(observe, environ=None, **explain):
        path = tmp_path / "out.jsonl"
        config = Config(export=ExportConfig(otlp_file=str(path)), explain=ExplainConfig(**explain))
        with open_exports(config, environ or {}, live=False) as exports:
            exports.observe(samples.CAPTURE)
            observe(exports)
            exports.observe(counters(BOOT_UNIX_NS // SECOND - T0 // SECOND + 60))
        return Written(path)

    return run


def test_a_chain_lies_below_its_call_and_every_link_leads_somewhere(write):
    """Parents and links are spans that were exported in the same trace or another."""
    hog = samples.call(tid=91, start_ktime_ns=1_800, end_ktime_ns=2_600)
    call, stall = samples.call(), samples.stall()

    def observe(exports):
        for activity in (hog, stall, call):
            exports.observe(activity)
        exports.observe_chain(chain_of(call, stall))

    written = write(observe)

    chain = written.one("gpu.causal_chain")
    by_id = {span["spanId"]: span for span in written.spans}
    assert by_id[chain["parentSpanId"]]["name"] == "cudaMalloc"
    links = [by_id[link["spanId"]] for link in chain["links"]]
    assert [span["name"] for span in links] == ["sched.run_queue_wait", "cudaMalloc"]
    assert [link["traceId"] for link in chain["links"]] == [span["traceId"] for span in links]
    assert by_id[written.one("gpu.cause.run_queue")["parentSpanId"]] == chain
    assert written.counts["otel_gpu.chains", "high"] == 1


def test_a_link_to_a_stall_that_still_waits_leads_somewhere(write):
    """A worker's stall is held back for a gap that never comes; the chain cannot wait."""
    call, stall = samples.call(), samples.stall(**WORKER)

    def observe(exports):
        exports.observe(stall)
        exports.observe(call)
        exports.observe_chain(chain_of(call, stall))

    written = write(observe)

    (link,) = written.one("gpu.causal_chain")["links"]
    targets = [s for s in written.named("sched.run_queue_wait") if s["spanId"] == link["spanId"]]
    assert [span["traceId"] for span in targets] == [link["traceId"]]


def test_a_stall_that_was_not_exported_is_not_linked(write):
    """Its record was lost, or it was too short for a span."""
    call = samples.call()

    def observe(exports):
        exports.observe(call)
        exports.observe_chain(chain_of(call, samples.stall()))

    chain = write(observe).one("gpu.causal_chain")

    assert "links" not in chain


def test_chains_that_are_rate_limited_are_counted(write):
    """They make no spans."""
    calls = [samples.call(start_ktime_ns=1_000 + n) for n in range(10)]

    def observe(exports):
        for number, call in enumerate(calls):
            chain = chain_of(call, samples.stall(), number)
            exports.observe(call)
            if number < 4:
                exports.observe_chain(chain)
            else:
                exports.limit_chains("rate", 1)

    written = write(observe)

    assert len(written.named("gpu.causal_chain")) == 4
    assert written.counts["otel_gpu.chains", "high"] == 4
    assert written.counts["otel_gpu.chains.rate_limited", "rate"] == 6


def incident_of(*chains):
    return Incident(
        "i1", "high", BOOT_UNIX_NS, BOOT_UNIX_NS + SECOND, 10, chains[0].causes, 0, (), chains, 3
    )


def test_an_incident_leads_to_the_chains_that_became_spans(write):
    """One of three found no room."""
    calls = [samples.call(start_ktime_ns=1_000 + n) for n in range(3)]
    chains = [chain_of(call, samples.stall(), n) for n, call in enumerate(calls)]

    def observe(exports):
        for call, chain in zip(calls[:2], chains[:2], strict=True):
            exports.observe(call)
            exports.observe_chain(chain)
        exports.limit_chains("rate", 1)
        exports.observe_incident(incident_of(*chains))

    written = write(observe)

    incident = written.one("gpu.incident")
    exported = {span["spanId"] for span in written.named("gpu.causal_chain")}
    assert "parentSpanId" not in incident
    assert {link["spanId"] for link in incident["links"]} == exported
    assert len(exported) == 2
    assert written.counts["otel_gpu.incidents", "high"] == 1


def test_nothing_is_explained_where_that_is_turned_off(write):
    """Neither spans nor counts."""
    call, stall = samples.call(), samples.stall()

    def observe(exports):
        exports.observe(call)
        exports.observe_chain(chain_of(call, stall))
        exports.limit_chains("rate", 7)
        exports.observe_incident(incident_of(chain_of(call, stall)))

    written = write(observe, enabled=False)

    assert [span["name"] for span in written.spans] == ["cudaMalloc"]
    assert not [key for key in written.counts if key[0] == "otel_gpu.chains"]


def test_span_limits_hold_for_chains(write):
    """What they take away is counted in the span, as everywhere."""
    call, stall = samples.call(), samples.stall()

    def observe(exports):
        for activity in (stall, call):
            exports.observe(activity)
        exports.observe_chain(chain_of(call, stall))

    chain = write(
        observe,
        environ={"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "3", "OTEL_SPAN_LINK_COUNT_LIMIT": "0"},
    ).one("gpu.causal_chain")

    assert len(chain["attributes"]) == 3
    assert chain["droppedAttributesCount"] == 11
    assert chain["droppedLinksCount"] == 1


def test_a_new_capture_leaves_no_stall_behind(write):
    """Stalls that still wait belong to the capture before."""

    def observe(exports):
        exports.observe(samples.stall(**WORKER))
        exports.observe(capture())

    assert len(write(observe).spans) == 2

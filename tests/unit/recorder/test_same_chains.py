"""Spans and store have the same chains: which are kept is decided once."""

import json

from benchmarks.days import day
from otel_gpu import pipeline
from otel_gpu.explain.explainer import Explainer
from otel_gpu.export.exports import open_exports
from otel_gpu.export.spans.causal import chain_reference
from otel_gpu.options import Config, ExplainConfig, ExportConfig
from otel_gpu.recorder.recorder import open_writer
from tests.unit.recorder.stores import kept_chains

SECONDS, PER_SECOND = 17, 7


def exported_spans(path, name):
    for line in path.read_text().splitlines():
        for resource in json.loads(line).get("resourceSpans", ()):
            for scope in resource["scopeSpans"]:
                yield from (span for span in scope["spans"] if span["name"] == name)


def test_what_becomes_a_span_is_in_the_store(tmp_path):
    """Of some dozens of slow calls in each second the worst few, in both."""
    activities = list(day(3_001, SECONDS, slow_one_in=4))
    path, store_path = tmp_path / "spans.jsonl", tmp_path / "store.db"
    config = Config(
        explain=ExplainConfig(chains_per_second=PER_SECOND),
        export=ExportConfig(otlp_file=str(path)),
    )
    with (
        open_exports(config, {}, live=False) as exports,
        open_writer(store_path, live=False) as writer,
    ):
        blame = pipeline.ExplainStage(config, exports, writer)
        for activity in activities:
            exports.observe(activity)
            writer.observe(activity)
            blame.observe(activity)
        blame.close()
        lost = writer.lost()

    kept = {name for name, *_ in kept_chains(store_path)}
    in_spans = {span["spanId"] for span in exported_spans(path, "gpu.causal_chain")}
    all_chains = find_chains(activities)
    assert in_spans == {
        chain_reference(chain).span_id.hex() for chain in all_chains if chain.id in kept
    }
    assert len(all_chains) > 2 * len(kept)
    assert len(kept) + sum(lost.values()) == len(all_chains)
    assert len(kept) <= PER_SECOND * (SECONDS + 1)
    assert kept == worst(all_chains)


def find_chains(activities):
    explainer = Explainer()
    found = [chain for activity in activities for chain in explainer.push(activity)]
    return found + list(explainer.close())


def worst(chains):
    """Those of each second that lost most; the first of equals."""
    seconds = {}
    for chain in chains:
        effect = chain.effect
        second = (effect.start_unix_ns + effect.duration_ns) // 10**9
        seconds.setdefault(second, []).append(chain)
    return {
        chain.id
        for found in seconds.values()
        for chain in sorted(found, key=lambda chain: -chain.effect.excess_ns)[:PER_SECOND]
    }

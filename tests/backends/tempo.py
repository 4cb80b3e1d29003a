"""Tempo, and questions to it through its own API."""

import base64
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.backends.jaeger import plain
from tests.backends.processes import LOOPBACK, Backend, free_ports

HERE = Path(__file__).resolve().parent
NAMED = "OTEL_GPU_TEST_TEMPO"

# It is in no registry that a test could build it from: docs/collector.md says how it is built.
needs_tempo = pytest.mark.skipif(NAMED not in os.environ, reason=f"needs {NAMED}: its program")

Range = tuple[int, int]


class TempoSpan(NamedTuple):
    """
    A span that a search found.

    Attributes:
        trace_id: Of its trace, in 32 hexadecimal digits.
        span_id: Of itself, in 16.
        name: Its name; empty where the query does not name it.
        start_unix_ns: When it began.
        duration_ns: How long it lasted.
        attributes: Those that the query names.
    """

    trace_id: str
    span_id: str
    name: str
    start_unix_ns: int
    duration_ns: int
    attributes: Mapping[str, Any]


class Tempo(Backend):
    """
    Tempo in one process, its storage in a folder that goes with it.

    Args:
        settings: Laid over those of ``tempo/config.yaml``.

    Attributes:
        endpoint: Where it takes OTLP over gRPC.
        http_endpoint: The same over HTTP.
    """

    # Its scheduler of compactions ends when its next cycle of 30 s is due. What it has is thrown away.
    end_timeout_s = 1.0

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        http, grpc, otlp_grpc, otlp_http, gossip = map(str, free_ports(5))
        self.endpoint = f"http://{LOOPBACK}:{otlp_grpc}"
        self.http_endpoint = f"http://{LOOPBACK}:{otlp_http}"
        flags = ["-config.expand-env=true", "-config.file=config.yaml"]
        env = {
            "TEMPO_HTTP": http,
            "TEMPO_GRPC": grpc,
            "TEMPO_OTLP_GRPC": otlp_grpc,
            "TEMPO_OTLP_HTTP": otlp_http,
            "TEMPO_GOSSIP": gossip,
            "TEMPO_FOLDER": ".",
        }
        api = f"http://{LOOPBACK}:{http}"
        super().__init__([os.environ[NAMED], *flags], env, f"{api}/ready", api)
        text = (HERE / "tempo" / "config.yaml").read_text(encoding="utf-8")
        document = _laid_over(yaml.safe_load(text), settings or {})
        (self.folder / "config.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")

    def search(self, query: str, within: Range, limit: int = 1000) -> list[TempoSpan]:
        """
        Return what a query finds in whole seconds of Unix time, in the order of their starts.

        Args:
            query: In TraceQL.
            within: From when to when.
            limit: Most traces, and most spans of each.
        """
        start_s, end_s = within
        found = self.get(
            "/api/search",
            q=query,
            start=str(start_s),
            end=str(end_s),
            limit=str(limit),
            spss=str(limit),
        )
        return sorted(_spans(found.get("traces", ())), key=lambda span: span.start_unix_ns)

    def values(self, query: str, within: Range) -> dict[tuple[str, ...], float]:
        """Return what a query of metrics comes to in that time, by the values of its labels."""
        start_s, end_s = within
        found = self.get("/api/metrics/query", q=query, start=str(start_s), end=str(end_s))
        return {
            tuple(map(str, plain(series["labels"]).values())): float(series["value"])
            for series in found.get("series", ())
        }

    def trace(self, trace_id: str) -> set[str]:
        """Ids of all spans of a trace; none where there is no such trace."""
        found = self.get(f"/api/v2/traces/{trace_id}")
        return set(_ids(found["trace"])) if found and found.get("trace") else set()


def _spans(traces: Any) -> Iterator[TempoSpan]:
    for trace in traces:
        for spans in trace["spanSets"]:
            for span in spans["spans"]:
                yield TempoSpan(
                    trace["traceID"].zfill(32),
                    span["spanID"].zfill(16),
                    span.get("name", ""),
                    int(span["startTimeUnixNano"]),
                    int(span["durationNanos"]),
                    plain(span.get("attributes", ())),
                )


def _ids(trace: Any) -> Iterator[str]:
    for resource_spans in trace["resourceSpans"]:
        for scope_spans in resource_spans["scopeSpans"]:
            for span in scope_spans["spans"]:
                yield base64.b64decode(span["spanId"]).hex()


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        name: _laid_over(below[name], value) if isinstance(below.get(name), Mapping) else value
        for name, value in above.items()
    }
    return {**below, **both}

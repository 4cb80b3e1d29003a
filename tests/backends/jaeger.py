"""Jaeger, and questions to it through its own API."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.backends import builds
from tests.backends.processes import LOOPBACK, Backend, free_ports

HERE = Path(__file__).resolve().parent
# All of a recording's spans lie within this.
SEARCHED = {
    "query.start_time_min": "2026-01-01T00:00:00Z",
    "query.start_time_max": "2027-01-01T00:00:00Z",
}


class JaegerSpan(NamedTuple):
    """A span as Jaeger gives it back, with what it is of."""

    resource: Mapping[str, Any]
    scope: str
    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_unix_ns: int
    end_unix_ns: int
    attributes: Mapping[str, Any]
    links: Sequence[tuple[str, str]]

    @property
    def times(self) -> tuple[int, int]:
        """When it was, in nanoseconds of Unix time."""
        return self.start_unix_ns, self.end_unix_ns


class Jaeger(Backend):
    """
    Jaeger 2 with its storage in memory.

    Attributes:
        endpoint: ``host:port`` where it takes OTLP over gRPC.
        http_endpoint: The URL of the same over HTTP.
    """

    def __init__(self) -> None:
        ports = free_ports(4)
        query, query_grpc, grpc, http = (f"{LOOPBACK}:{port}" for port in ports)
        self.endpoint, self.http_endpoint = grpc, f"http://{http}"
        super().__init__(
            [builds.jaeger(), f"--config={HERE / 'jaeger' / 'config.yaml'}"],
            {
                "JAEGER_QUERY": query,
                "JAEGER_QUERY_GRPC": query_grpc,
                "JAEGER_OTLP_GRPC": grpc,
                "JAEGER_OTLP_HTTP": http,
            },
            ready=f"http://{query}/api/v3/services",
            api=f"http://{query}",
        )

    def services(self) -> set[str]:
        """Names of all services."""
        return set(self.get("/api/v3/services").get("services", ()))

    def operations(self, service: str) -> set[str]:
        """Names of all spans of a service."""
        found = self.get("/api/v3/operations", service=service)
        return {operation["name"] for operation in found["operations"]}

    def find(
        self, service: str, operation: str = "", *, duration_min: str = "0s", limit: int = 1000
    ) -> list[JaegerSpan]:
        """
        All spans of the traces in which a span matches.

        Args:
            service: Of the span.
            operation: Its name; any if empty.
            duration_min: The least that it lasted, as Go writes durations.
            limit: Most traces.
        """
        query = SEARCHED | {
            "query.service_name": service,
            "query.operation_name": operation,
            "query.duration_min": duration_min,
            "query.num_traces": str(limit),
        }
        return _spans(self.get("/api/v3/traces", **query))

    def trace(self, trace_id: str) -> list[JaegerSpan]:
        """All spans of one trace; none where there is no such trace."""
        return _spans(self.get(f"/api/v3/traces/{trace_id}"))


def _spans(answer: Any) -> list[JaegerSpan]:
    return list(_each(answer["result"])) if answer else []


def _each(result: Mapping[str, Any]) -> Iterator[JaegerSpan]:
    for resource_spans in result["resourceSpans"]:
        resource = plain(resource_spans["resource"].get("attributes", ()))
        for scope_spans in resource_spans["scopeSpans"]:
            for span in scope_spans["spans"]:
                yield JaegerSpan(
                    resource,
                    scope_spans["scope"]["name"],
                    span["traceId"],
                    span["spanId"],
                    span.get("parentSpanId", ""),
                    span["name"],
                    int(span["startTimeUnixNano"]),
                    int(span["endTimeUnixNano"]),
                    plain(span.get("attributes", ())),
                    tuple((link["traceId"], link["spanId"]) for link in span.get("links", ())),
                )


def plain(pairs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """OTLP/JSON attributes as a dictionary."""
    return {pair["key"]: _value(pair["value"]) for pair in pairs}


def _value(document: Mapping[str, Any]) -> Any:
    ((kind, value),) = document.items()
    if kind == "arrayValue":
        return tuple(map(_value, value.get("values", ())))
    return int(value) if kind == "intValue" else value

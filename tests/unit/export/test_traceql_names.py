"""Queries in TraceQL that we ship name spans and attributes that there are."""

import re
from pathlib import Path

import pytest

from tests.deploy.dashboards import questions
from tools.generate_semconv import read_registry

DOCS = sorted((Path(__file__).resolve().parents[3] / "docs").glob("*.md"))
QUERIES = [
    *(
        block[1]
        for path in DOCS
        for block in re.finditer(
            r"^```traceql\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        )
    ),
    *(question.target["query"] for question in questions("tempo")),
]
REGISTRY = read_registry()
NAMES = [
    span["name"]
    .replace("{gpu.cuda.api}", r"cu(da)?[A-Z]\w+")
    .replace("{otel_gpu.cause.kind}", ".+")
    for span in REGISTRY["spans"].values()
]


def unknown(query: str) -> set[str]:
    """Attributes, scopes and names in a query that are of nothing that we send."""
    own = {"span": REGISTRY["attributes"], "resource": REGISTRY["resource_attributes"]}
    attributes = {
        f"{scope}.{name}"
        for scope, name in re.findall(r"\b(span|resource)\.([a-z][\w.]*)", query)
        if name not in own[scope]
    }
    scopes = set(re.findall(r'instrumentation:name = "(.*?)"', query)) - REGISTRY["scopes"].keys()
    names = {
        name
        for name in re.findall(r'(?<![:.])\bname =~? "(.*?)"', query)
        if not any(re.fullmatch(pattern, name) for pattern in NAMES)
    }
    return attributes | scopes | names


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: str(query)[:70])
def test_a_query_names_what_there_is(query: str) -> None:
    """A misspelt name is no error to Tempo: it finds nothing."""
    assert unknown(query) == set()


def test_a_misspelt_name_is_seen() -> None:
    """The test of the test above."""
    assert len(QUERIES) >= 12
    assert unknown('{ span.otel_gpu.severety = "high" }') == {"span.otel_gpu.severety"}
    assert unknown('{ resource.service.nam =~ "a" }') == {"resource.service.nam"}
    assert unknown('{ instrumentation:name = "otel_gpu.cud" }') == {"otel_gpu.cud"}
    assert unknown('{ name = "gpu.incidents" } > { name =~ "gpu.cause.*" }') == {"gpu.incidents"}

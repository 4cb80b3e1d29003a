"""The part of TraceQL that the dashboards use: spans that fulfil a query. No Tempo is run for it."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.backends.jaeger import Jaeger, JaegerSpan
from tests.deploy.dashboards import Question, filled_in

# No query depends on it.
RANGE_S = 60


def find_matches(jaeger: Jaeger, service: str, question: Question) -> list[JaegerSpan]:
    """Find spans that fulfil a question in the service's traces of incidents and chains."""
    conditions = list(conditions_of(question.target["query"]))
    return [
        span
        for name in ("gpu.incident", "gpu.causal_chain")
        for span in jaeger.find(service, name)
        if all(holds(span) for holds in conditions)
    ]


def conditions_of(query: str) -> Iterator[Callable[[JaegerSpan], bool]]:
    """Read a query that is one spanset of comparisons, all of which have to hold."""
    inside = re.fullmatch(r"\{ (.*) \}", filled_in(query, RANGE_S, RANGE_S))
    assert inside, query
    for text in inside[1].split(" && "):
        field, operator, value = re.fullmatch(r'([\w.]+) (=~|=|>) "?(.*?)"?', text).groups()
        yield lambda span, f=field, o=operator, v=value: _compare(_field(span, f), o, v)


def _field(span: JaegerSpan, name: str) -> Any:
    kind, _, rest = name.partition(".")
    if kind == "duration":
        return span.end_unix_ns - span.start_unix_ns
    of: Mapping[str, Any] = {"resource": span.resource, "span": span.attributes}.get(kind, {})
    return span.name if kind == "name" else of.get(rest)


def _compare(found: Any, operator: str, wanted: str) -> bool:
    if found is None:
        return False
    if operator == ">":
        return bool(found > int(wanted.removesuffix("ms")) * 1_000_000)
    return bool(re.fullmatch(wanted, found)) if operator == "=~" else found == wanted

"""
Generate ``otel_gpu/export/semconv.py`` and ``docs/metrics.md``.

Both come from ``otel_gpu/export/semconv.yaml``. ``--check`` compares instead of
writing, and fails on any difference.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from otel_gpu import wire

ROOT = Path(__file__).resolve().parent.parent
REGISTRY = ROOT / "otel_gpu" / "export" / "semconv.yaml"
MODULE = ROOT / "otel_gpu" / "export" / "semconv.py"
PAGE = ROOT / "docs" / "metrics.md"

Registry = Mapping[str, Any]

_MODULE_PREAMBLE = '''"""
GENERATED from otel_gpu/export/semconv.yaml by tools/generate_semconv.py. Do not edit.

``*_VALUES`` map wire numbers to names in telemetry. ``COUNTS`` and ``SUMS`` map a family or API to
the metric of its number of calls, or of their bytes.
"""

from collections.abc import Mapping
from typing import NamedTuple

from otel_gpu import wire


class Instrument(NamedTuple):
    """A metric; what it means and its scope are looked up by its name."""

    name: str
    unit: str = ""
    kind: str = "counter"

    @property
    def description(self) -> str:
        return _DESCRIPTIONS[self.name]

    @property
    def scope(self) -> str:
        return next(s for prefix, s in _METRIC_SCOPES.items() if self.name.startswith(prefix))


def _named(names: Mapping[int, str], prefix: str) -> dict[int, str]:
    return {n: name.removeprefix(prefix) for n, name in names.items() if name.startswith(prefix)}

'''

_PAGE_PREAMBLE = """# What otel_gpu emits

<!-- GENERATED from otel_gpu/export/semconv.yaml by tools/generate_semconv.py. Do not edit. -->

Durations are in seconds and sizes in bytes. Every metric and span carries the Resource of the
observed process, and the version of otel_gpu as the version of its scope. The scope
`otel_gpu.agent` carries the agent's own Resource. Stability is *development* unless stated otherwise.

*OBI* marks a name, unit and meaning from OpenTelemetry eBPF Instrumentation, *semconv*
one from the OpenTelemetry semantic conventions. Two of OBI's metrics are not emitted,
`gpu.cuda.kernel.grid.size` and `gpu.cuda.kernel.block.size`: spans contain the dimensions.

The agent *observes* what happens after the capture began. *Rate-limited* items exceed one of its limits, *dropped* ones
were not exported, and *lost* ones did not reach it.

## How to read the metrics

- The kernel counts every call, whether or not it becomes a span. The scope `otel_gpu.device` comes from imported
  traces: its points cover the recorded window and contain device time, which a capture does not observe.
- `histograms.layout` decides the buckets, since the kernel counts in them;
  `OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION` has no effect.
- Points are cumulative since the program began, or deltas if
  `OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE` asks for them. A delta starts where the last
  successful export ended, so a failed export loses nothing. Deltas have no minimum and no
  maximum: the kernel keeps those for the whole life of a process only.
- A metric of a process has at most 2000 attribute sets. The rest is summed under `otel.metric.overflow`.
- Metrics of an ended process are exported once more in their final form.
"""

_SECTIONS = ("metrics", "spans", "events", "logs", "profiles")
_UPSTREAM = {"obi": "OBI", "semconv": "semconv"}


def read_registry() -> Registry:
    """Read the YAML, expand its abbreviations, and check that its references are defined."""
    registry: Registry = yaml.safe_load(REGISTRY.read_text())
    scopes = {
        prefix: name
        for name, scope in registry["scopes"].items()
        for prefix in scope.get("metrics", [])
    }
    for name, metric in registry["metrics"].items():
        metric.setdefault("unit", "")
        metric.setdefault("instrument", "counter")
        fitting = (scope for prefix, scope in scopes.items() if name.startswith(prefix))
        metric["scope"] = next(fitting, "none")
    for section in ("attributes", "resource_attributes"):
        for name, attribute in registry[section].items():
            for field in ("upstream", "stability"):
                if found := _first(name, registry[field]):
                    attribute[field] = found
            if isinstance(attribute.get("values"), list):
                attribute["values"] = {value: value for value in attribute["values"]}
                attribute["is_listed"] = True
            if "names" in attribute:
                table, prefix = attribute["names"]
                attribute["renamed"] = attribute.get("values", {})
                names = (n for n in getattr(wire, table).values() if n.startswith(prefix))
                known = {n.upper(): n.removeprefix(prefix) for n in names}
                attribute["values"] = known | attribute["renamed"]
    for section in _SECTIONS:
        for item in registry[section].values():
            named = item.get("attributes", ())
            written = [a for n in named for a in registry["groups"].get(n, [n])]
            # Groups can have attributes in common.
            item["attributes"] = list(dict.fromkeys(written))
    _check(registry)
    return registry


def _first(name: str, prefixes: Mapping[str, Iterable[str]]) -> str:
    return next((key for key, known in prefixes.items() if name.startswith(tuple(known))), "")


def _check(registry: Registry) -> None:
    for section in ("metrics", "spans", "profiles"):
        for name, item in registry[section].items():
            if item["scope"] not in registry["scopes"]:
                sys.exit(f"{section}: {name}: no such scope: {item['scope']}")
    for section in _SECTIONS:
        for name, item in registry[section].items():
            for attribute in (*item["attributes"], *item.get("frames", ())):
                if attribute not in registry["attributes"]:
                    sys.exit(f"{section}: {name}: no such attribute: {attribute}")
            for event in item.get("events", ()):
                if event not in registry["events"]:
                    sys.exit(f"{section}: {name}: no such event: {event}")


def module_text(registry: Registry) -> str:
    """Return the formatted text of semconv.py."""
    text = "\n".join(_module_lines(registry)) + "\n"
    command = [sys.executable, "-m", "ruff", "format", "--quiet", f"--stdin-filename={MODULE}", "-"]
    return subprocess.run(command, input=text, text=True, capture_output=True, check=True).stdout


def _module_lines(registry: Registry) -> Iterator[str]:
    yield _MODULE_PREAMBLE
    yield f'SCHEMA_URL = "{registry["schema_url"]}"'
    yield ""
    yield "# Scopes"
    for name in registry["scopes"]:
        yield f'SCOPE_{_constant(name.removeprefix("otel_gpu."))} = "{name}"'
    yield ""
    yield "# Attributes"
    for name in registry["attributes"]:
        yield f'{_constant(name)} = "{name}"'
    for name, attribute in registry["attributes"].items():
        if "values" in attribute and "is_listed" not in attribute:
            yield f"{_constant(name)}_VALUES: Mapping[int, str] = {_values_text(attribute)}"
    yield ""
    yield "# Spans that are not named after an API"
    for key, span in registry["spans"].items():
        fixed, brace, _ = span["name"].partition("{")
        if fixed:
            yield f'SPAN_{_constant(key)}{"_PREFIX" if brace else ""} = "{fixed}"'
    yield ""
    yield "# Events of spans, and log records"
    yield from _name_lines(registry["events"], "EVENT")
    yield from _name_lines(registry["logs"], "LOG")
    yield ""
    yield from _metric_lines(registry)
    yield from _calls_lines(registry["metrics"], "counts")
    yield from _calls_lines(registry["metrics"], "sums")


def _values_text(attribute: Mapping[str, Any]) -> str:
    values = attribute.get("renamed", attribute["values"])
    shown = ", ".join(f'wire.{number}: "{value}"' for number, value in values.items())
    parts = [f"{{{shown}}}"] if shown else []
    if "names" in attribute:
        table, prefix = attribute["names"]
        parts.insert(0, f'_named(wire.{table}, "{prefix}")')
    return " | ".join(parts)


def _metric_lines(registry: Registry) -> Iterator[str]:
    yield "# Metrics"
    for name, metric in registry["metrics"].items():
        values = [name, metric["unit"], metric["instrument"]]
        while values[-1] in ("", "counter"):
            values.pop()
        shown = ", ".join(f'"{value}"' for value in values)
        yield f"METRIC_{_constant(name)} = Instrument({shown})"
    yield ""
    yield "_DESCRIPTIONS: Mapping[str, str] = {"
    for name, metric in registry["metrics"].items():
        yield f'    "{name}": "{metric["brief"]}",'
    yield "}"
    yield ""
    yield "_METRIC_SCOPES: Mapping[str, str] = {"
    for name, scope in registry["scopes"].items():
        for prefix in scope.get("metrics", []):
            yield f'    "{prefix}": SCOPE_{_constant(name.removeprefix("otel_gpu."))},'
    yield "}"


def _calls_lines(metrics: Mapping[str, Any], field: str) -> Iterator[str]:
    yield ""
    yield f"{field.upper()}: Mapping[int | str, Instrument] = {{"
    for name, metric in metrics.items():
        for calls in metric.get(field, ()):
            key = f"wire.{calls}" if calls.isupper() else f'"{calls}"'
            yield f"    {key}: METRIC_{_constant(name)},"
    yield "}"


def _name_lines(items: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, item in items.items():
        yield f'{prefix}_{_constant(key)} = "{item["name"]}"'


def page_text(registry: Registry) -> str:
    """Return the text of docs/metrics.md."""
    return "\n".join(_page_lines(registry)) + "\n"


def _page_lines(registry: Registry) -> Iterator[str]:
    yield _PAGE_PREAMBLE
    yield "## Metrics"
    for scope, described in registry["scopes"].items():
        metrics = {n: m for n, m in registry["metrics"].items() if m["scope"] == scope}
        if not metrics:
            continue
        yield from ("", f"### Scope `{scope}`", "", described["brief"], "")
        yield "| metric | instrument | unit | attributes | meaning |"
        yield "| --- | --- | --- | --- | --- |"
        for name, metric in metrics.items():
            unit = f"`{metric['unit']}`" if metric["unit"] else "-"
            meaning = " ".join(filter(None, (metric["brief"], metric.get("note"), _origin(metric))))
            attributes = _code_list(metric.get("attributes", ()))
            yield f"| `{name}` | {metric['instrument']} | {unit} | {attributes} | {meaning} |"
    yield from ("", "## Spans", "")
    yield "| span | scope | kind | meaning |"
    yield "| --- | --- | --- | --- |"
    for span in registry["spans"].values():
        name = _span_name(span) or "the API's name"
        meaning = " ".join(filter(None, (span["brief"], span.get("note"))))
        yield f"| {name} | `{span['scope']}` | INTERNAL | {meaning} |"
    for span in registry["spans"].values():
        name = _span_name(span) or "named after a CUDA API"
        attributes = _code_list(span["attributes"])
        events = _code_list(registry["events"][key]["name"] for key in span.get("events", ()))
        also = f" Events: {events}." if "events" in span else ""
        yield from ("", f"Attributes of spans {name} (`{span['scope']}`): {attributes}.{also}")
    yield from ("", "## Span events and log records", "")
    yield "| name | what | attributes | meaning |"
    yield "| --- | --- | --- | --- |"
    for section, what in (("events", "span event"), ("logs", "log record")):
        for item in registry[section].values():
            attributes = _code_list(item["attributes"])
            yield f"| `{item['name']}` | {what} | {attributes} | {item['brief']} |"
    yield from ("", "## Profiles", "")
    yield "| profile | scope | unit | attributes of samples | attributes of frames | meaning |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for profile in registry["profiles"].values():
        name, unit = profile["type"]
        lists = (_code_list(profile[key]) for key in ("attributes", "frames"))
        cells = (f"`{name}`", f"`{profile['scope']}`", unit, *lists, profile["brief"])
        yield f"| {' | '.join(cells)} |"
    yield from ("", "## Attributes", "")
    yield from _attribute_table(registry["attributes"])
    yield from ("", "## Resource attributes", "")
    yield "Attributes of the observed process. Its own declarations (its published OpenTelemetry context,"
    yield "or `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` in its environment) are added."
    yield ""
    yield from _attribute_table(registry["resource_attributes"])


def _span_name(span: Mapping[str, Any]) -> str:
    fixed, brace, _ = span["name"].partition("{")
    return f"`{fixed}{'*' if brace else ''}`" if fixed else ""


def _attribute_table(attributes: Mapping[str, Any]) -> Iterator[str]:
    yield "| attribute | type | meaning | values or examples |"
    yield "| --- | --- | --- | --- |"
    for name, attribute in attributes.items():
        values = dict.fromkeys(attribute.get("values", {}).values())
        shown = [*values, *attribute.get("examples", ())]
        meaning = " ".join(filter(None, (attribute["brief"], _origin(attribute))))
        yield f"| `{name}` | {attribute.get('type', 'string')} | {meaning} | {_code_list(shown)} |"


def _origin(item: Mapping[str, Any]) -> str:
    notes = [_UPSTREAM[item["upstream"]]] if "upstream" in item else []
    if "stability" in item:
        notes.append(item["stability"].replace("_", " "))
    return f"*({', '.join(notes)})*" if notes else ""


def _code_list(items: Any) -> str:  # noqa: ANN401 - whatever YAML holds
    return ", ".join(f"`{item}`" for item in items) or "-"


def _constant(name: str) -> str:
    return name.upper().replace(".", "_")


def main() -> None:
    """Write both files, or check that they are up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when a file differs")
    check = parser.parse_args().check
    registry = read_registry()
    for path, text in ((MODULE, module_text(registry)), (PAGE, page_text(registry))):
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{path.relative_to(ROOT)} differs from semconv.yaml: run `make semconv`")


if __name__ == "__main__":
    main()

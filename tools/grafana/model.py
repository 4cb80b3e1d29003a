"""
Dashboards as Grafana's classic JSON, which every Grafana since 10 reads.

A dashboard is rows of panels; their positions follow from their widths. Data sources are variables, so
the JSON works in every installation.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

# The version that Grafana 11 writes. Newer versions migrate it when they load it.
SCHEMA_VERSION = 39
COLUMNS = 24
TAG = "otel-gpu"
FOLDER_LINK = {
    "type": "dashboards",
    "tags": [TAG],
    "title": "otel-gpu",
    "asDropdown": True,
    "includeVars": True,
    "keepTime": True,
    "targetBlank": False,
    "icon": "external link",
    "tooltip": "",
    "url": "",
}

Json = dict[str, Any]

PROMETHEUS: Json = {"type": "prometheus", "uid": "${prometheus}"}
TEMPO: Json = {"type": "tempo", "uid": "${tempo}"}
JAEGER: Json = {"type": "jaeger", "uid": "${jaeger}"}


@dataclass(frozen=True)
class Query:
    """
    One query of a panel.

    Attributes:
        text: PromQL, TraceQL, or an operation name for Jaeger.
        legend: Names the series, with ``{{label}}`` for labels.
        source: The data source.
        exemplars: Whether the graph shows exemplars, which link to traces.
        more: Further fields of the target.
    """

    text: str
    legend: str = ""
    source: Mapping[str, str] = field(default_factory=lambda: PROMETHEUS)
    exemplars: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Panel:
    """
    A panel.

    Attributes:
        title: Its title.
        about: The meaning, and what to do about it; shown at the title.
        unit: Grafana's id of the unit.
        queries: Its queries.
        kind: Grafana's id of the visualisation.
        width: In columns, of 24.
        height: In rows of 30 pixels.
        stacked: ``normal``, ``percent``, or empty.
        options: Options of the visualisation.
        config: Further field configuration.
        transformations: Transformations of tables.
    """

    title: str
    about: str
    unit: str
    queries: Sequence[Query]
    kind: str = "timeseries"
    width: int = 12
    height: int = 8
    stacked: str = "none"
    options: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    transformations: Sequence[Json] = ()

    def render(self, number: int, x: int, y: int) -> Json:
        """Return the panel's JSON at a place of the grid."""
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.about,
            "datasource": dict(self.queries[0].source),
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "targets": [self._target(query, "ABCDEFGH"[n]) for n, query in enumerate(self.queries)],
            "fieldConfig": {"defaults": self._defaults(), "overrides": []},
            "options": {**_OPTIONS.get(self.kind, {}), **self.options},
            "transformations": list(self.transformations),
        }

    def _defaults(self) -> Json:
        defaults: Json = {"unit": self.unit, "min": 0, **self.config}
        if self.kind == "timeseries":
            filled = self.stacked != "none"
            defaults["custom"] = {
                "fillOpacity": 60 if filled else 8,
                "lineWidth": 1,
                "showPoints": "never",
                "stacking": {"mode": self.stacked, "group": "A"},
            }
        return defaults

    def _target(self, query: Query, letter: str) -> Json:
        target: Json = {"refId": letter, "datasource": dict(query.source)}
        if query.source["type"] == "prometheus":
            instant = self.kind in {"stat", "table", "bargauge"}
            target |= {
                "expr": query.text,
                "legendFormat": query.legend,
                "instant": instant,
                "range": not instant,
                "exemplar": query.exemplars,
                "format": {"table": "table", "heatmap": "heatmap"}.get(self.kind, "time_series"),
                "editorMode": "code",
            }
        elif query.source["type"] == "tempo":
            target |= {"queryType": "traceql", "query": query.text, "limit": 50}
            target["tableType"] = "spans"
        else:
            target |= {"queryType": "search", "operation": query.text, "limit": 50}
        return target | dict(query.more)


_OPTIONS: Mapping[str, Json] = {
    "timeseries": {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["mean", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "none", "textMode": "auto"},
    "bargauge": {"reduceOptions": {"calcs": ["lastNotNull"]}, "orientation": "horizontal"},
    "table": {"cellHeight": "sm", "showHeader": True},
    "heatmap": {"calculate": False, "yAxis": {"unit": "s"}, "cellGap": 1},
}


@dataclass(frozen=True)
class Row:
    """Panels below a heading; they wrap after 24 columns."""

    title: str
    panels: Sequence[Panel]
    collapsed: bool = False


@dataclass(frozen=True)
class Dashboard:
    """A dashboard with a stable uid, by which others link to it."""

    uid: str
    title: str
    about: str
    variables: Sequence[Json]
    rows: Sequence[Row]

    def render(self) -> Json:
        """Return the JSON that Grafana loads."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.about,
            "tags": [TAG],
            "schemaVersion": SCHEMA_VERSION,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "1m",
            "time": {"from": "now-1h", "to": "now"},
            "links": [FOLDER_LINK],
            "templating": {"list": list(self.variables)},
            "annotations": {"list": []},
            "panels": list(self._panels()),
        }

    def _panels(self) -> Iterable[Json]:
        number, y = 1, 0
        for row in self.rows:
            heading: Json = {
                "id": number,
                "type": "row",
                "title": row.title,
                "collapsed": row.collapsed,
                "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
                "panels": [],
            }
            number, y = number + 1, y + 1
            inside = []
            x = height = 0
            for panel in row.panels:
                if x + panel.width > COLUMNS:
                    x, y, height = 0, y + height, 0
                inside.append(panel.render(number, x, y))
                number, x, height = number + 1, x + panel.width, max(height, panel.height)
            y += height
            if row.collapsed:
                heading["panels"] = inside
                yield heading
            else:
                yield heading
                yield from inside


def red_above_zero(**more: Any) -> Json:  # noqa: ANN401 -- any field of the configuration
    """Return a field configuration that shows values above 0 in red."""
    steps = [{"color": "green", "value": None}, {"color": "red", "value": 0.000001}]
    return {"thresholds": {"mode": "absolute", "steps": steps}, **more}


def table(names: Mapping[str, str], hidden: Sequence[str] = ("Time",)) -> Sequence[Json]:
    """Return transformations that make one table of several queries, with columns renamed."""
    excluded = dict.fromkeys((*hidden, "__name__"), True)
    return (
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"renameByName": dict(names), "excludeByName": excluded}},
    )


def link(title: str, uid: str, **variables: str) -> Json:
    """Return a data link to another dashboard, with the same time range."""
    chosen = "&".join(f"var-{name}={value}" for name, value in variables.items())
    kept = "${cluster:queryparam}&${prometheus:queryparam}&${__url_time_range}"
    return {"title": title, "url": f"/d/{uid}?{chosen}&{kept}"}


def traces_of(service: str) -> Json:
    """Return a data link to the traces of a service with a causal chain, in Tempo."""
    source = {"type": "tempo", "uid": "${tempo}"}
    query = f'{{ resource.service.name =~ "{service}" && name = "gpu.causal_chain" }}'
    asked = {"refId": "A", "datasource": source, "queryType": "traceql", "query": query}
    shown = {"from": "${__from}", "to": "${__to}"}
    pane = {"datasource": source["uid"], "queries": [asked], "range": shown}
    # Everything is escaped except the variables, which Grafana replaces.
    escaped = re.sub(r"%24%7B(.+?)%7D", _unescape, quote(json.dumps({"a": pane})))
    url = f"/explore?schemaVersion=1&panes={escaped}"
    return {"title": "Traces with causal chains", "url": url}


def _unescape(match: re.Match[str]) -> str:
    return f"${{{unquote(match[1])}}}"

"""The dashboards as Grafana would read them: their panels, their questions, their variables."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
GRAFANA = ROOT / "deploy" / "grafana"
FILES = sorted((GRAFANA / "dashboards").glob("*.json"))

Json = Mapping[str, Any]


class Question(NamedTuple):
    """What one target of a panel asks."""

    dashboard: str
    panel: str
    target: Json

    @property
    def source(self) -> str:
        """The kind of its data source."""
        return str(self.target["datasource"]["type"])

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.panel} {self.target['refId']}"


@cache
def load(path: Path) -> Json:
    """Return a dashboard."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


def panels(dashboard: Json) -> Iterator[Json]:
    """Yield the panels that show something, also those in collapsed rows."""
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            yield panel
        yield from panel.get("panels", ())


def questions(source: str) -> list[Question]:
    """Return everything that is asked of one kind of data source."""
    found = (
        Question(path.stem, panel["title"], target)
        for path in FILES
        for panel in panels(load(path))
        for target in panel["targets"]
    )
    return [question for question in found if question.source == source]


def variables(dashboard: Json) -> dict[str, Json]:
    """Return the variables by name."""
    return {variable["name"]: variable for variable in dashboard["templating"]["list"]}


def filled_in(query: str, interval_s: int, range_s: int, **chosen: str) -> str:
    """Return a query as Grafana sends it; a variable that is not given is "All"."""
    query = query.replace("$__rate_interval", f"{interval_s}s").replace("$__range", f"{range_s}s")
    return re.sub(r"\$(\w+)", lambda match: chosen.get(match[1], ".*"), query)

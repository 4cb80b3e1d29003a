"""
What docs/fleet.md asks ClickHouse and Prometheus, and what it says that they answered.

    python -m tests.backends.fleet_page             # say which figures are old
    python -m tests.backends.fleet_page --update    # write those of the answers

As in ``tests.investigating``: figures are rewritten and nothing else, but for questions without any
answer, which get one.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.backends import fleet
from tests.backends.clickhouse import ClickHouse
from tests.backends.conftest import send
from tests.backends.otelcol import Otelcol
from tests.backends.processes import wait_for
from tests.backends.prometheus import Prometheus
from tests.deploy.feed import Unordered
from tests.investigating import Example, examples, refresh

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "fleet.md"
RANKS = sum(job.ranks for job in fleet.JOBS)
# Of ranks that wait: all but one of the job that hangs, and all of the one that disagrees.
LOGS = fleet.HUNG.ranks - 1 + fleet.DISAGREEING.ranks
# Of all agents. They come one by one, so nothing else says that all are there.
INCIDENTS = 6
# A view that later questions ask.
_VIEW = "CREATE OR REPLACE VIEW"
_TIMEOUT_S = 90.0
_QUICK = {
    # The shim does not know blocks that are compressed.
    "exporters.clickhouse.compress": "none",
    "connectors.span_metrics.metrics_flush_interval": "1s",
}


class Stores(NamedTuple):
    """The fleet's data where the gateway put it, and when it ends."""

    clickhouse: ClickHouse
    prometheus: Prometheus
    end_unix_s: float

    def answer(self, example: Example) -> str:
        """Ask what an example asks, and return the answer as the page has it."""
        if example.kind == "sql":
            return _table(self.clickhouse.query(example.text))
        return _series(self.prometheus.query(example.text, self.end_unix_s + 1))


@contextmanager
def filled(folder: Path) -> Iterator[Stores]:
    """Replay the fleet through the gateway, and make the page's views."""
    agents, end_unix_s = fleet.record(folder)
    with ClickHouse() as clickhouse, Unordered() as prometheus:
        env = {
            "OTELCOL_CLICKHOUSE": clickhouse.endpoint,
            "OTELCOL_CLICKHOUSE_FLUSH": "200ms",
            "OTELCOL_REMOTE_WRITE": prometheus.remote_write,
        }
        stores = Stores(clickhouse, prometheus, end_unix_s)
        with Otelcol("gateway-clickhouse", env=env, sets=_QUICK) as gateway:
            metrics = {"OTEL_TRACES_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
            _replay([agent.before for agent in agents], gateway.endpoint, metrics)
            _wait(stores, 1)
            _replay([agent.now for agent in agents], gateway.endpoint, {})
            _wait(stores, 2)
        for example in asked():
            if example.text.startswith(_VIEW):
                clickhouse.query(example.text)
        yield stores


def asked() -> list[Example]:
    """Return the questions of the page, in their order."""
    page = PAGE.read_text(encoding="utf-8")
    return [example for example in examples(page) if example.kind in {"sql", "promql"}]


def questions() -> list[Example]:
    """Return those that have an answer."""
    return [example for example in asked() if not example.text.startswith(_VIEW)]


def _replay(recordings: Sequence[Path], endpoint: str, env: Mapping[str, str]) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda path: send(path, endpoint, env=env), recordings))


def _wait(stores: Stores, readings: int) -> None:
    """Wait until so many readings of all ranks, and what comes with them, are in both stores."""
    metrics = "FROM otel.otel_metrics_sum WHERE MetricName"
    counts = {
        "readings": f"SELECT count() AS n {metrics} = 'gpu.nccl.completions'",
        "logs": "SELECT count() AS n FROM otel.otel_logs",
        "incidents": "SELECT count() AS n FROM otel.otel_traces WHERE SpanName = 'gpu.incident'",
        # What the agents themselves say that they sent.
        "sent": f"SELECT sum(Value) AS n {metrics} = 'otel_gpu.incidents'",
    }

    def found() -> dict[str, int]:
        rows = {name: stores.clickhouse.query(sql) for name, sql in counts.items()}
        return {name: int(row["n"]) for name, (row,) in rows.items()}

    def is_there() -> bool:
        now = found()
        wanted = {"readings": readings * RANKS}
        if readings > 1:
            wanted |= {"logs": LOGS, "incidents": INCIDENTS, "sent": INCIDENTS}
        return wanted.items() <= now.items()

    assert wait_for(is_there, _TIMEOUT_S), f"only this is in ClickHouse: {found()}"
    at_unix_s = stores.end_unix_s - 60 * (2 - readings) + 1
    asked = {f"count(timestamp(gpu_nccl_completions_total) > {at_unix_s - 5})": RANKS}
    if readings == 2:
        asked['sum(traces_span_metrics_calls_total{span_name="gpu.incident"})'] = INCIDENTS
    for query, wanted in asked.items():
        there = partial(_is, stores, query, at_unix_s, wanted)
        assert wait_for(there, _TIMEOUT_S), f"it is not {wanted} in Prometheus: {query}"


def _is(stores: Stores, query: str, at_unix_s: float, wanted: int) -> bool:
    return stores.prometheus.value(query, max(at_unix_s, time.time())) == wanted


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as text, in columns."""
    if not rows:
        return ""
    cells = [list(rows[0]), *([_shown(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        + "\n"
        for line in cells
    )


def _series(found: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for series in found:
        labels = ", ".join(f'{name}="{value}"' for name, value in sorted(series["metric"].items()))
        lines.append(f"{float(series['value'][1]):.4g}  {{{labels}}}\n")
    return "".join(sorted(lines))


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Refresh the page, or say what is stale."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--update", action="store_true", help="write the figures of the answers")
    update = parser.parse_args(arguments).update
    page, stale = PAGE.read_text(encoding="utf-8"), 0
    with tempfile.TemporaryDirectory() as folder, filled(Path(folder)) as stores:
        for example in reversed(questions()):
            answered = stores.answer(example)
            fresh = refresh(example.promised, answered)
            if example.promised and fresh.promised == example.promised and not fresh.missing:
                continue
            stale += 1
            print(f"{example.heading}:\n{answered}")  # noqa: T201 -- a script
            if example.promised:
                end = example.promise_begin + len(example.promised)
                page = page[: example.promise_begin] + fresh.promised + page[end:]
            else:
                end = page.index("```\n", example.begin) + len("```\n")
                page = f"{page[:end]}\n```text\n{answered}```\n{page[end:]}"
    if update:
        PAGE.write_text(page, encoding="utf-8")
    return 1 if stale and not update else 0


if __name__ == "__main__":
    sys.exit(main())

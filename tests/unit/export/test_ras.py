"""What NCCL's own service says of a job, as metrics."""

import dataclasses
import json

from otel_gpu.config import Config
from otel_gpu.export.exports import open_exports
from otel_gpu.options import ExportConfig
from tests.activities import RAS, capture, counters, ras

COMM = RAS["id"]


def metrics_of(tmp_path, *activities):
    """The latest value of each metric of the service, by its name and attributes."""
    path = tmp_path / "sent.jsonl"
    config = dataclasses.replace(Config(), export=ExportConfig(otlp_file=str(path)))
    with open_exports(config, {}, live=False) as exports:
        for activity in (capture(), *activities, counters(5)):
            exports.observe(activity)
    found = {}
    for line in path.read_text().splitlines():
        for resource in json.loads(line).get("resourceMetrics", ()):
            for scope in resource["scopeMetrics"]:
                for metric in scope["metrics"]:
                    if "ras" in metric["name"].split("."):
                        found |= dict(_points(scope["scope"]["name"], metric))
    return found


def _points(scope, metric):
    assert scope == ("otel_gpu.nccl" if metric["name"].startswith("gpu.") else scope)
    (data,) = (metric[kind] for kind in ("sum", "gauge") if kind in metric)
    for point in data["dataPoints"]:
        values = [one["value"]["stringValue"] for one in point.get("attributes", ())]
        yield (metric["name"], *sorted(values)), float(point.get("asInt", point.get("asDouble")))


def test_ranks_are_counted_by_whether_they_answer(tmp_path):
    """All states, also at zero, so that a rank that comes back leaves the one that it was in."""
    found = metrics_of(
        tmp_path, ras(1, RAS, communicators_count=7, timeouts=2, failed={"timeout": 3})
    )

    assert found == {
        ("gpu.nccl.ras.communicators",): 7,
        ("gpu.nccl.ras.timeouts",): 2,
        ("gpu.nccl.ras.ranks", COMM, "answering"): 2,
        ("gpu.nccl.ras.ranks", COMM, "unresponsive"): 1,
        ("gpu.nccl.ras.ranks", COMM, "dead"): 1,
        ("gpu.nccl.ras.ranks", COMM, "missing"): 0,
        ("gpu.nccl.ras.lag", COMM): 2,
        ("gpu.nccl.ras.errors", COMM, "ncclSystemError"): 1,
        ("otel_gpu.ras.failed", "timeout"): 3,
    }


def test_of_a_job_that_is_gone_nothing_is_left(tmp_path):
    """But how often it was asked in vain."""
    gone = ras(2, is_there=False, failed={"timeout": 1})

    assert metrics_of(tmp_path, ras(1, RAS), gone) == {("otel_gpu.ras.failed", "timeout"): 1}


def test_a_question_that_failed_leaves_the_last_answer(tmp_path):
    """It is the latest that is known."""
    failed = ras(2, failed={"timeout": 1})
    failed = failed._replace(info={"address": "localhost:28028", "failed": {"timeout": 1}})

    found = metrics_of(tmp_path, ras(1, RAS), failed)
    assert found["gpu.nccl.ras.ranks", COMM, "dead"] == 1
    assert found["otel_gpu.ras.failed", "timeout"] == 1

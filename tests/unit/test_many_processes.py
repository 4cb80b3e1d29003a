"""A host that runs short programs for hours, through the whole pipeline."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from otel_gpu import pipeline
from otel_gpu.config import Config, ExportConfig
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.export.exports import open_exports
from tests.otlp_servers import HttpServer
from tests.receiver import attributes_of
from tests.short_processes import ACTIVITIES_OF_ONE, short_processes

# A million activities are 100,000 processes, which takes some minutes of a core.
PROCESSES = int(os.environ.get("OTEL_GPU_TEST_PROCESSES", "2000"))
# What is remembered of the dead for late records is full by then.
STEADY_FROM = 20_000
MAX_RESIDENT_MIB = 100
MAX_GROWTH = 0.02
_OF_REQUEST = {
    "traces": (ExportTraceServiceRequest, "resource_spans", "scope_spans", "spans"),
    "metrics": (ExportMetricsServiceRequest, "resource_metrics", "scope_metrics", "metrics"),
}


class Backend:
    """A real OTLP endpoint that keeps of all it gets only who it was about."""

    def __init__(self):
        self.resources = {}
        self.incidents = 0
        self.chains = 0
        self._lock = threading.Lock()

    def answer(self, request):
        kind, resources, scopes, items = _OF_REQUEST[request.signal]
        with self._lock:
            for of_resource in getattr(kind.FromString(request.body), resources):
                digest = hash(of_resource.resource.SerializeToString())
                if digest not in self.resources:
                    found = attributes_of(of_resource.resource.attributes)
                    identity = (found.get("process.pid"), found["service.instance.id"])
                    self.resources[digest] = (*identity, found["service.name"])
                for of_scope in getattr(of_resource, scopes):
                    for item in getattr(of_scope, items):
                        self.incidents += item.name == "gpu.incident"
                        self.chains += item.name == "gpu.causal_chain"
        answers = {"traces": ExportTraceServiceResponse, "metrics": ExportMetricsServiceResponse}
        return answers[request.signal]().SerializeToString()


@pytest.fixture
def backend():
    backend = Backend()
    server = HttpServer(0, backend.answer)
    backend.endpoint = f"http://127.0.0.1:{server.port}"
    yield backend
    server.close()


def run_through_pipeline(processes, **environ):
    """What a pipeline of its own says that took so many processes in."""
    environ = {name: value for name, value in os.environ.items() if "OTEL" not in name} | environ
    command = [sys.executable, "-m", "tests.short_processes", str(processes)]
    done = subprocess.run(command, env=environ, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def middle_and_last(sizes):
    """The mean of the second and of the last third of some sizes."""
    third = len(sizes) // 3
    middle, last = sizes[third : 2 * third], sizes[2 * third :]
    return sum(middle) / len(middle), sum(last) / len(last)


def test_short_processes_leave_nothing_behind(backend):
    """
    Memory is bounded and in the end flat, each process has one resource, and those that are
    healthy make no incident.
    """
    said = run_through_pipeline(
        PROCESSES,
        OTEL_EXPORTER_OTLP_ENDPOINT=backend.endpoint,
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
    )

    assert said["activities"] >= PROCESSES * ACTIVITIES_OF_ONE
    assert said["rejected"] == said["dropped"] == {}
    # Whoever was forked and executed had two images; only that of the program did anything.
    of_processes = [found for found in backend.resources.values() if found[2] != "otel-gpu"]
    assert len(of_processes) == PROCESSES + 1
    assert len({instance for _, instance, _ in of_processes}) == PROCESSES + 1
    assert "unknown_service" not in {name for _, _, name in of_processes}
    assert (backend.incidents, backend.chains) == (0, 0)
    sizes_mib = said["resident_mib"]
    assert max(sizes_mib) < MAX_RESIDENT_MIB, sizes_mib
    if PROCESSES >= STEADY_FROM:
        middle, last = middle_and_last(sizes_mib)
        assert last <= middle * (1 + MAX_GROWTH), sizes_mib


def resources_by_pid(path):
    """Every resource in a file of OTLP/JSON lines, by its process.pid."""
    found = {}
    for line in path.read_text().splitlines():
        for of_resources in json.loads(line).values():
            for of_resource in of_resources:
                resource = of_resource["resource"]
                pids = [a["value"] for a in resource["attributes"] if a["key"] == "process.pid"]
                pid = int(pids[0]["intValue"])
                found.setdefault(pid, set()).add(json.dumps(resource, sort_keys=True))
    return found


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 120))
def test_late_records_leave_a_process_one_resource(random, late_by):
    """
    Whatever order records come in, spans and metrics of a process agree on who it is.
    """
    first, *batches = short_processes(12)
    records = [record for batch in batches for record in batch]
    order = sorted(range(len(records)), key=lambda index: index + random.random() * late_by)
    stream = [first, [records[index] for index in order]]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "otlp.jsonl"
        config = Config(export=ExportConfig(otlp_file=str(path)))
        with open_exports(config, {}, live=False) as exports:
            blame = pipeline.Blame(config, exports)
            pipeline.process(stream, Enricher(), [exports.observe, blame.observe], Counter())
            blame.close()
        found = resources_by_pid(path)

    assert set(found) >= {1000 + number for number in range(12)}
    assert {pid: len(resources) for pid, resources in found.items()} == dict.fromkeys(found, 1)

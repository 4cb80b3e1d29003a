"""A host that runs short programs for hours, through the whole pipeline."""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu import pipeline
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.export.exports import open_exports
from otel_gpu.options import Config, ExportConfig
from tests.short_processes import ACTIVITIES_OF_ONE, short_processes

# 500,000 activities; `make soak` takes a million.
PROCESSES = int(
    os.environ.get("OTEL_GPU_TEST_PROCESSES", "50000" if "CI" in os.environ else "5000")
)
# All that is remembered of the dead is full by then.
STEADY_FROM = 20_000
MAX_RESIDENT_MIB = 100
# One block of Python's, or 40 bytes of the C library's, of every process would be more: 16,667 of them
# come between two thirds. Caches are emptied in bursts, which moves the most by up to 2 %.
MAX_GROWTH = 0.03


def run_through_pipeline(processes):
    """
    What a pipeline of its own says that took so many processes in: names by resource, how
    often spans had each name, and the rest.
    """
    command = [sys.executable, "-m", "tests.short_processes", str(processes)]
    resources = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        for line in running.stdout:
            if line.startswith("{"):
                break
            instance, name, digest = line.split()
            resources.setdefault(instance, set()).add((name, digest))
        return resources, json.loads(line), json.loads(running.stdout.read())


def assert_flat(sizes):
    """The most in the last third is about that of the middle third."""
    third = len(sizes) // 3
    assert third > 3
    assert max(sizes[2 * third :]) <= max(sizes[third : 2 * third]) * (1 + MAX_GROWTH), sizes


@pytest.mark.timeout(900)
def test_short_processes_leave_nothing_behind():
    """
    Memory is bounded and in the end flat, each process has one resource, and those that are
    healthy make no incident.
    """
    resources, spans, said = run_through_pipeline(PROCESSES)

    assert said["activities"] >= PROCESSES * ACTIVITIES_OF_ONE
    assert said["rejected"] == said["dropped"] == {}
    # Whoever was forked and executed had two images; only that of the program did anything.
    # The others are the launcher and the agent.
    assert len(resources) == PROCESSES + 2
    assert [found for found in resources.values() if len(found) != 1] == []
    names = {name for found in resources.values() for name, _ in found}
    assert names > {"launcher", "otel-gpu"}
    assert "unknown_service" not in names
    assert spans["cudaMalloc"] == PROCESSES
    assert not {"gpu.incident", "gpu.causal_chain"} & spans.keys()
    blocks, heap_bytes, resident_mib = zip(*said["memory"], strict=True)
    assert max(resident_mib) < MAX_RESIDENT_MIB
    if PROCESSES >= 2 * STEADY_FROM:
        assert_flat(blocks)
        assert_flat(heap_bytes)


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
    """Whatever order records come in, spans and metrics of a process agree on who it is."""
    first, *batches = short_processes(12)
    records = [record for batch in batches for record in batch]
    order = sorted(range(len(records)), key=lambda index: index + random.random() * late_by)
    stream = [first, [records[index] for index in order]]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "otlp.jsonl"
        config = Config(export=ExportConfig(otlp_file=str(path)))
        with open_exports(config, {}, live=False) as exports:
            blame = pipeline.ExplainStage(config, exports)
            pipeline.process(stream, Enricher(), [exports.observe, blame.observe], Counter())
            blame.close()
        found = resources_by_pid(path)

    assert set(found) >= {1000 + number for number in range(12)}
    assert {pid: len(resources) for pid, resources in found.items()} == dict.fromkeys(found, 1)

"""``otel-gpu run --store``: a capture in a file, and what can be asked about it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.agent import ROOT, Agent, environment_for
from tests.stubs.build import StubLibraries, workload

pytestmark = pytest.mark.kernel

KEEP = {"OTEL_GPU_STORE_ENABLED": "auto"}


def otel_gpu(*arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "otel_gpu", *map(str, arguments)],
        cwd=ROOT,
        env=environment_for(None),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_capture_without_an_endpoint_is_kept(stubs: StubLibraries, tmp_path: Path) -> None:
    """In the user's own place; counts are exact, and nothing is lost."""
    command = [workload("exact"), stubs.runtime, "503", "2"]
    place = KEEP | {"STATE_DIRECTORY": str(tmp_path)}
    with Agent(None, command, env=place) as agent:
        done = agent.wait()
    assert done.returncode == 0, done.stderr
    store = tmp_path / "store.db"

    counts = json.loads(
        otel_gpu(
            *("query", "--store", store, "--json"),
            "SELECT api, sum(calls) FROM v_counts GROUP BY api",
        )
    )
    document = json.loads(otel_gpu("explain", "--store", store, "--json"))

    exact = dict(counts["rows"])
    assert (exact["cudaMalloc"], exact["cudaFree"]) == (101, 100)
    rows = {row["api"]: row["calls"] for row in document["apis"]}
    assert (rows["cudaMalloc"], rows["cudaFree"]) == (101, 100)
    assert document["losses"] == {}
    assert f"kept in {store}" in done.stderr


def test_a_store_says_what_its_recording_says(stubs: StubLibraries, tmp_path: Path) -> None:
    """Both were written by one capture, also where telemetry goes elsewhere."""
    recording, store = tmp_path / "run.otelgpu", tmp_path / "store.db"
    command = [workload("exact"), stubs.runtime, "503", "1"]
    flags = ("--store", str(store), "--record", str(recording), "--summary", "never")
    with Agent(None, command, flags=flags, env=KEEP | {"OTEL_TRACES_EXPORTER": "none"}) as agent:
        done = agent.wait()
    assert done.returncode == 0, done.stderr

    from_store = json.loads(otel_gpu("explain", "--store", store, "--json"))
    from_recording = json.loads(otel_gpu("explain", recording, "--json"))

    assert from_store | {"source": ""} == from_recording | {"source": ""}
    assert done.stderr == ""

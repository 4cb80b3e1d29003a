"""``otel-gpu explain`` live: what it says while the program runs as it always did."""

import json
from pathlib import Path

import pytest

from tests.kernel.agent import otel_gpu
from tests.schemas import REPORT
from tests.stubs.build import StubLibraries, workload

pytestmark = pytest.mark.kernel


def test_a_command_is_explained_when_it_ends(stubs: StubLibraries, tmp_path: Path) -> None:
    """Counts are exact, the document is valid, and its recording is explained alike."""
    recording, output = tmp_path / "run.otelgpu", tmp_path / "report.json"
    command = [workload("exact"), stubs.runtime, "503", "2"]

    done = otel_gpu("explain", "--json", "--output", output, "--record", recording, "--", *command)

    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    document = json.loads(output.read_text(encoding="utf-8"))
    REPORT.validate(document)
    counts = {row["api"]: row["calls"] for row in document["apis"]}
    assert (counts["cudaMalloc"], counts["cudaFree"]) == (101, 100)
    assert said[0]["pid"] in {process["pid"] for process in document["processes"]}

    again = otel_gpu("explain", "--json", recording)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == document | {"source": str(recording)}


def test_the_report_of_a_command_leaves_its_output_alone(stubs: StubLibraries) -> None:
    """Standard output is the command's; the text goes to standard error."""
    done = otel_gpu("explain", "--", workload("exact"), stubs.runtime, "503", "1")

    assert done.returncode == 0, done.stderr
    assert all(json.loads(line) for line in done.stdout.splitlines())
    assert "\nVerdict\n" in done.stderr


def test_the_exit_code_is_the_commands() -> None:
    """A wrapper that hides a failure is no wrapper."""
    assert otel_gpu("explain", "--", "sh", "-c", "exit 7").returncode == 7

"""A real data loader: the chain ends at what its worker does."""

import os
from pathlib import Path

import pytest

from otel_gpu.demo.build import build
from otel_gpu.demo.scenarios import SCENARIOS
from tests.scenarios.blame import Blame, capture, explain
from tests.scenarios.test_steady import MOST_UNKNOWN, faults_of, process_of, unknown_share

PYTHON = os.environ.get("OTEL_GPU_TEST_TORCH", "")
PROGRAM = Path(__file__).with_name("torch_loader.py")

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.alone,
    pytest.mark.skipif(not PYTHON, reason="OTEL_GPU_TEST_TORCH names no Python that has torch"),
]


def test_the_worker_of_a_data_loader_is_blamed(tmp_path: Path) -> None:
    """Its main process waits for a thread of the worker, and that for what the worker computes."""
    scenario = SCENARIOS["steady-loader"]
    *_, library, _ = build(scenario, tmp_path)
    recording = tmp_path / "torch.otelgpu"
    truth = capture(scenario, [PYTHON, str(PROGRAM), library], recording)
    blame = Blame(truth, explain(recording))

    wrong = [fault for loss in truth.losses for fault in faults_of(blame, loss)]
    assert not wrong
    assert unknown_share(process_of(blame)["time_tree"]) < MOST_UNKNOWN

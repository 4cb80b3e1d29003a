"""A real data loader: the chain ends at what its worker does."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_gpu.demo.build import build
from tests.scenarios.all_scenarios import SCENARIOS
from tests.scenarios.explained_runs import ExplainedRun, capture, explain
from tests.scenarios.lost_time import MOST_UNEXPLAINED, unexplained
from tests.scenarios.test_steady import (
    MOST_UNKNOWN,
    chronic,
    faults_of,
    unknown_share,
)
from tests.stubs.build import library

PYTHON = os.environ.get("OTEL_GPU_TEST_TORCH", "")
PROGRAM = Path(__file__).with_name("torch_loader.py")
SECONDS = 20
SHARES = {50: 0.5, 25: 0.25, 15: 0.15, 7: 0.07, 3: 0.03}

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.alone,
    pytest.mark.skipif(not PYTHON, reason="OTEL_GPU_TEST_TORCH names no Python that has torch"),
]


@pytest.fixture
def explained_run(tmp_path: Path) -> Callable[..., ExplainedRun]:
    """Run the program, and explain it."""

    def run(*arguments: object) -> ExplainedRun:
        scenario = SCENARIOS["steady-loader"]
        *_, runtime, _ = build(scenario, tmp_path)
        recording = tmp_path / "torch.otelgpu"
        truth = capture(scenario, [PYTHON, str(PROGRAM), runtime, *map(str, arguments)], recording)
        return ExplainedRun(truth, explain(recording))

    return run


def test_the_worker_of_a_data_loader_is_blamed(explained_run: Callable[..., ExplainedRun]) -> None:
    """The main process waits for a thread of the worker, and that for what the worker computes."""
    explained = explained_run()

    wrong = [fault for loss in explained.truth.losses for fault in faults_of(explained, loss)]
    assert not wrong
    assert unknown_share(explained) < MOST_UNKNOWN
    assert all(share <= MOST_UNEXPLAINED for _, share in unexplained(explained.document))


def test_lines_of_the_worker_have_their_shares(explained_run: Callable[..., ExplainedRun]) -> None:
    """Each of the five within 3 percentage points, at the last hop of what the loop waited for."""
    explained = explained_run(library("shares"), SECONDS)

    (loss,) = explained.truth.losses
    assert not list(faults_of(explained, loss))
    assert loss.via
    assert loss.via.place
    # Of several of that kind, the worker is behind the first.
    causes = [one for one in chronic(explained)[0]["causes"] if one["kind"] == loss.kind]
    lines = {line["line"]: line for line in causes[0]["via"][0]["lines"]}
    first = loss.via.place.first_line
    found = {share: lines[first + number]["share"] for number, share in enumerate(SHARES)}
    # What the loader itself does in the worker, pickling and handing over files, is the rest.
    whole = sum(found.values())
    assert 0.9 < whole <= 1
    assert {key: share / whole for key, share in found.items()} == pytest.approx(SHARES, abs=0.03)

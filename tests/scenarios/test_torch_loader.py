"""A real data loader: the chain ends at what its worker does."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_gpu.demo.build import build
from tests.scenarios.blame import Blame, capture, explain
from tests.scenarios.more import SCENARIOS
from tests.scenarios.test_steady import (
    MOST_UNKNOWN,
    chronic,
    faults_of,
    unknown_share,
)
from tests.scenarios.where import MOST_UNEXPLAINED, unexplained
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
def blame_of(tmp_path: Path) -> Callable[..., Blame]:
    """Run the program, and explain it."""

    def run(*arguments: object) -> Blame:
        scenario = SCENARIOS["steady-loader"]
        *_, runtime, _ = build(scenario, tmp_path)
        recording = tmp_path / "torch.otelgpu"
        truth = capture(scenario, [PYTHON, str(PROGRAM), runtime, *map(str, arguments)], recording)
        return Blame(truth, explain(recording))

    return run


def test_the_worker_of_a_data_loader_is_blamed(blame_of: Callable[..., Blame]) -> None:
    """The main process waits for a thread of the worker, and that for what the worker computes."""
    blame = blame_of()

    wrong = [fault for loss in blame.truth.losses for fault in faults_of(blame, loss)]
    assert not wrong
    assert unknown_share(blame) < MOST_UNKNOWN
    assert all(share <= MOST_UNEXPLAINED for _, share in unexplained(blame.document))


def test_lines_of_the_worker_have_their_shares(blame_of: Callable[..., Blame]) -> None:
    """Each of the five within 3 percentage points, at the last hop of what the loop waited for."""
    blame = blame_of(library("shares"), SECONDS)

    (loss,) = blame.truth.losses
    assert not list(faults_of(blame, loss))
    assert loss.via
    assert loss.via.place
    # Of several of that kind, the worker is behind the first.
    causes = [one for one in chronic(blame)[0]["causes"] if one["kind"] == loss.kind]
    lines = {line["line"]: line for line in causes[0]["via"][0]["lines"]}
    first = loss.via.place.first_line
    found = {share: lines[first + number]["share"] for number, share in enumerate(SHARES)}
    # What the loader itself does in the worker, pickling and handing over files, is the rest.
    whole = sum(found.values())
    assert 0.9 < whole <= 1
    assert {key: share / whole for key, share in found.items()} == pytest.approx(SHARES, abs=0.03)

"""Whether waits for a data loader come every so many steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.explain.traces.loader_period import find_loader_period

MS = 1_000_000


@given(st.integers(2, 12), st.integers(3, 20), st.integers(0, 11), st.integers(1, 500))
def test_workers_that_end_together_are_seen(workers, rounds, first, waits_ms):
    """Whatever their number, and wherever the recording begins."""
    steps = [
        waits_ms * MS if (number + first) % workers == 0 else MS // 20
        for number in range(workers * rounds)
    ]

    found = find_loader_period(steps)

    assert (found.period, found.long, found.steps) == (workers, rounds, workers * rounds)


@pytest.mark.parametrize(
    "waits_ms",
    [
        pytest.param([], id="no-steps"),
        pytest.param([50] * 20, id="every-step"),
        pytest.param([50, 0, 0, 50, 0, 0], id="twice"),
        pytest.param([50, 0, 50, 0, 0, 0, 0, 50, 0, 0, 0, 50, 0, 0, 0], id="irregular"),
        pytest.param([0] * 20, id="never"),
        pytest.param([50] + [0] * 19, id="at-the-front"),
        pytest.param([0.05, 0, 0, 0] * 5, id="too-short-to-matter"),
    ],
)
def test_other_waits_have_no_period(waits_ms):
    """All steps, too few of them, or at no constant distance."""
    assert find_loader_period([round(one * MS) for one in waits_ms]) is None


@given(st.lists(st.integers(0, 1 << 40), max_size=50))
def test_a_period_is_no_more_than_the_steps(waits_ns):
    """Of any waits there is an answer."""
    found = find_loader_period(waits_ns)

    assert found is None or (2 <= found.period < found.steps and 3 <= found.long <= found.steps)

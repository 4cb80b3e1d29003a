"""What of a window is not in spans, at its ends and between them."""

import pytest

from otel_gpu.state.traces.interval_sets import union

BUSY = [(10, 20), (30, 40)]


@pytest.mark.parametrize(
    ("start_ns", "end_ns", "expected"),
    [
        (0, 50, [(0, 10), (20, 30), (40, 50)]),
        (10, 40, [(20, 30)]),
        (15, 35, [(20, 30)]),
        (20, 30, [(20, 30)]),
        (12, 18, []),
        (10, 20, []),
        (41, 44, [(41, 44)]),
        (44, 44, []),
    ],
)
def test_gaps(start_ns: int, end_ns: int, expected: list[tuple[int, int]]) -> None:
    assert list(union(BUSY).gaps(start_ns, end_ns)) == expected


def test_all_of_a_stretch_where_there_are_none() -> None:
    assert list(union([]).gaps(3, 7)) == [(3, 7)]

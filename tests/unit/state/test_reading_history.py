"""The readings around a window."""

import pytest

from otel_gpu.state.reading_history import ReadingHistory


@pytest.mark.parametrize(
    ("window", "found"),
    [((15, 25), (10, 30)), ((10, 20), (10, 20)), ((5, 25), None), ((25, 35), None)],
)
def test_a_window_lies_between_two_readings(window, found):
    """What was read within it says nothing about it as a whole."""
    history = ReadingHistory(8)
    for unix_ns in (10, 20, 30):
        history.add(unix_ns, -unix_ns)

    around = history.around(*window)

    assert around == (found and tuple((unix_ns, -unix_ns) for unix_ns in found))


def test_the_oldest_readings_go_first():
    """What is not kept any more cannot be asked about."""
    history = ReadingHistory(2)
    for unix_ns in (10, 20, 30):
        history.add(unix_ns, 0)

    assert history.around(12, 25) is None
    assert history.around(22, 25) is not None

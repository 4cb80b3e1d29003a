"""What ports counted, over resets, and what of it in a window."""

from otel_gpu.state.fabric import FabricState
from tests.activities import SECOND, T0
from tests.adapters import fabric, port


def kept(*readings):
    ledger = FabricState()
    for reading in readings:
        ledger.observe(reading)
    return ledger


def counted(ledger, start_s, end_s):
    found = ledger.counted(T0 + round(start_s * SECOND), T0 + round(end_s * SECOND))
    return {(one.adapter, one.port): (one.counts, one.went_down) for one in found}


def test_a_counter_that_begins_again_goes_on():
    """It lost nothing: what it had counted, and what it counts now."""
    ledger = kept(
        fabric(1, port(symbol_error=1009)),
        fabric(2, port(symbol_error=1013)),
        fabric(3, port(symbol_error=7)),
        fabric(4, port(symbol_error=11)),
    )

    ((_, one),) = ledger.ports()
    assert one.sums == {"symbol_error": 1024}
    assert counted(ledger, 2, 3) == {("mlx5_0", 1): ({"symbol_error": 7}, False)}


def test_a_port_that_comes_back_goes_on():
    """It is not up while it is away, and what it counted meanwhile is known when it is back."""
    ledger = kept(fabric(1, port(out_of_sequence=5)), fabric(2, port("mlx5_1")))
    (_, gone), _ = ledger.ports()
    assert not gone.is_up
    assert counted(ledger, 1, 2) == {("mlx5_0", 1): ({}, True)}

    ledger.observe(fabric(3, port(out_of_sequence=3), port("mlx5_1")))
    assert counted(ledger, 2, 3) == {("mlx5_0", 1): ({"out_of_sequence": 3}, False)}


def test_what_a_new_port_says_may_be_from_long_ago():
    """Only what it adds to that was counted in a window."""
    ledger = kept(
        fabric(1, port("mlx5_1")),
        fabric(2, port("mlx5_1"), port(link_downed=9)),
        fabric(3, port("mlx5_1"), port(link_downed=10)),
    )

    assert counted(ledger, 1, 2) == {}
    assert counted(ledger, 1, 3) == {}
    assert counted(ledger, 2, 3) == {("mlx5_0", 1): ({"link_downed": 1}, False)}


def test_traffic_is_nothing_that_counts_in_a_window():
    """It flows all the time."""
    ledger = kept(fabric(1, port(port_xmit_data=4)), fabric(2, port(port_xmit_data=8_000)))

    assert counted(ledger, 1, 2) == {}


def test_a_window_that_no_reading_follows_is_counted_up_to_the_last_inside_it():
    """A call that hangs has no end yet."""
    ledger = kept(*(fabric(at, port(out_of_sequence=at)) for at in (1, 2, 3)))

    assert counted(ledger, 1.5, 9) == {("mlx5_0", 1): ({"out_of_sequence": 2}, False)}
    assert counted(ledger, 0.5, 9) == {("mlx5_0", 1): ({"out_of_sequence": 2}, False)}
    assert counted(ledger, 3, 9) == {}
    assert counted(ledger, 0, 0.5) == {}


def test_what_is_usual_is_what_was_counted_before():
    """As much in a second as before is nothing new; the first second has no before."""
    ledger = kept(*(fabric(at, port(np_cnp_sent=100 * at)) for at in range(1, 6)))
    ledger.observe(fabric(6, port(np_cnp_sent=900)))

    def rates(start_s, end_s):
        (one,) = ledger.counted(T0 + start_s * SECOND, T0 + end_s * SECOND)
        return one.per_s, one.usual_per_s

    assert rates(1, 2) == (100, 0)
    assert rates(4, 5) == (100, 100)
    assert rates(5, 6) == (400, 100)


def test_adapters_that_somebody_makes_up_are_bounded():
    """A recording may name as many as it likes."""
    ledger = kept(*(fabric(at, port(f"made_up_{at}", symbol_error=1)) for at in range(1000)))

    assert len(list(ledger.ports())) == 256

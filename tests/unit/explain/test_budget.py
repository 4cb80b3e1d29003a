from otel_gpu.export.budget import ChainBudget

SECOND = 1_000_000_000
T0 = 1_700_000_000 * SECOND


def trace(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_a_second_has_room_for_so_many_chains():
    """The rest of a burst is withheld for its rate."""
    budget = ChainBudget(50)

    taken = [budget.take(trace(n), T0) for n in range(60)]

    assert taken == [None] * 50 + ["rate"] * 10


def test_the_room_comes_back_with_the_time_of_the_stream():
    """A fifth of a second is room for ten of fifty; an hour is room for no more than fifty."""
    budget = ChainBudget(50)
    for n in range(50):
        budget.take(trace(n), T0)

    later = [budget.take(trace(100 + n), T0 + SECOND // 5) for n in range(12)]
    much_later = [budget.take(trace(200 + n), T0 + 3600 * SECOND) for n in range(51)]

    assert later == [None] * 10 + ["rate"] * 2
    assert much_later == [None] * 50 + ["rate"]


def test_effects_that_come_out_of_order_make_no_room():
    """Time that was counted once is not counted again."""
    budget = ChainBudget(1)

    assert budget.take(trace(1), T0 + SECOND) is None
    assert budget.take(trace(2), T0) == "rate"
    assert budget.take(trace(3), T0 + SECOND) == "rate"


def test_one_trace_has_room_for_sixteen():
    """A trace with a hundred reasons is read by nobody; others do not suffer for it."""
    budget = ChainBudget(1000)

    taken = [budget.take(trace(1), T0) for _ in range(18)]

    assert taken == [None] * 16 + ["trace_full"] * 2
    assert budget.take(trace(2), T0) is None


def test_memory_is_bounded():
    """Traces of the past are forgotten."""
    budget = ChainBudget(100_000)

    for n in range(10_007):
        budget.take(trace(n), T0 + n * SECOND)

    assert len(budget._traces) == 4096

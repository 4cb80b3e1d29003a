"""Which chains are kept: those that lost most time in each second, whatever their order."""

import random
from dataclasses import replace

import pytest

from otel_gpu.explain.budget import ChainBudget
from otel_gpu.explain.chains import Chain, Effect
from tests.activities import SECOND, T0, image
from tests.unit.explain.memory.test_out_of_memory import explained, in_pieces

MS = 1_000_000
SETTLE_NS = 3 * SECOND
TRAINER = image(42)


OTHER = replace(TRAINER, attributes={**TRAINER.attributes, "process.owner": "alice"})


def chain(number, excess_ns=MS, at_s=0.0, trace=None, process=TRAINER):
    trace_id = (number + 1 if trace is None else trace).to_bytes(16, "big")
    start_unix_ns = T0 + round(at_s * SECOND)
    effect = Effect(
        "slow_call", process, "cudaMalloc", 42, "trainer", start_unix_ns, 0, excess_ns,
        trace_id, number.to_bytes(8, "big"),
    )  # fmt: skip
    return Chain(f"c{number}", effect, (), 0, "low")


class Decided:
    """Takes decisions of a budget."""

    def __init__(self, chains_per_second):
        self.budget = ChainBudget(chains_per_second, SETTLE_NS)
        self.kept, self.limited = [], []

    def take(self, decisions):
        for one, reason in decisions:
            if reason:
                self.limited.append((one.id, reason))
            else:
                self.kept.append(one.id)

    def add(self, *chains):
        for one in chains:
            self.take(self.budget.add(one))

    def advance(self, at_s):
        self.take(self.budget.advance(T0 + round(at_s * SECOND)))

    def close(self):
        self.take(self.budget.close())


def test_the_chains_of_the_user_that_has_most_make_room():
    """Those of another one stay, though they lost less; who made room is counted."""
    decided = Decided(50)
    decided.add(*(chain(number, process=OTHER) for number in range(7)))
    decided.add(*(chain(number, excess_ns=number * MS) for number in range(10, 110)))
    decided.close()

    assert decided.kept == [f"c{number}" for number in (*range(7), *range(67, 110))]
    assert decided.budget.cut.take() == {TRAINER: 57}


@pytest.mark.parametrize("order", range(5))
def test_those_that_lost_most_are_kept(order):
    """However late in their second they come; they leave in the order in which they came."""
    chains = [chain(number, excess_ns=number * MS) for number in range(997)]
    random.Random(order).shuffle(chains)  # noqa: S311 -- the same order every time
    decided = Decided(50)
    decided.add(*chains)
    decided.close()

    assert sorted(decided.kept) == sorted(f"c{number}" for number in range(947, 997))
    assert decided.kept == [one.id for one in chains if one.id in set(decided.kept)]
    assert len(decided.limited) == 947
    assert {reason for _, reason in decided.limited} == {"rate"}


def test_a_request_for_memory_that_failed_is_kept():
    """It took no time, and is worse than all that did."""
    (failed,), _ = explained(in_pieces(at_s=0))
    decided = Decided(3)
    decided.add(failed, *(chain(number, excess_ns=number * MS) for number in range(7)))
    decided.close()

    assert decided.kept == [failed.id, "c5", "c6"]


def test_of_equals_the_first_are_kept():
    """So that a replay keeps what the capture kept."""
    decided = Decided(3)
    decided.add(*(chain(number) for number in range(7)))
    decided.close()

    assert decided.kept == ["c0", "c1", "c2"]


def test_each_second_has_room_of_its_own():
    """It is over when all its effects have settled; until then nothing of it is handed on."""
    decided = Decided(2)
    decided.add(*(chain(number, at_s=0.5) for number in range(5)))
    decided.add(*(chain(number, at_s=1.5) for number in range(5, 10)))
    decided.advance(3.9)
    assert decided.kept == []
    decided.advance(4.1)
    assert decided.kept == ["c0", "c1"]
    decided.advance(5.1)
    assert decided.kept == ["c0", "c1", "c5", "c6"]
    decided.close()
    assert len(decided.kept) + len(decided.limited) == 10


def test_one_that_is_late_is_decided_next():
    """Time that was counted once is not counted again, and nothing is held for ever."""
    decided = Decided(1)
    decided.advance(100)
    decided.add(chain(1, at_s=0), chain(2, at_s=0))
    decided.advance(102)

    assert (decided.kept, decided.limited) == (["c1"], [("c2", "rate")])


def test_one_trace_has_room_for_sixteen():
    """A trace with a hundred reasons is read by nobody; others do not suffer for it."""
    decided = Decided(20)
    decided.add(*(chain(number, excess_ns=number, trace=1) for number in range(101)))
    decided.add(*(chain(number, excess_ns=0) for number in range(201, 205)))
    decided.close()

    assert decided.kept == [f"c{n}" for n in (*range(85, 101), *range(201, 205))]
    assert set(decided.limited) == {(f"c{number}", "trace_full") for number in range(85)}


def test_a_trace_that_was_full_in_one_second_is_full_in_the_next():
    """It is one trace."""
    decided = Decided(50)
    decided.add(*(chain(number, trace=1) for number in range(16)))
    decided.advance(10)
    decided.add(chain(100, at_s=11, excess_ns=SECOND, trace=1))

    assert decided.limited == [("c100", "trace_full")]


def test_effects_without_a_trace_are_not_of_one_trace():
    """Other tools have none."""
    decided = Decided(50)
    decided.add(*(chain(number, trace=0) for number in range(40)))
    decided.close()

    assert len(decided.kept) == 40


def test_memory_is_bounded():
    """Traces of the past are forgotten, and no times of a broken record pile up."""
    decided = Decided(10)
    for number in range(10_007):
        decided.add(chain(number, at_s=60.0 * number))
        assert len(decided.budget._seconds) <= 8
    decided.close()

    assert len(decided.budget._traces) == 4096
    assert len(decided.kept) == 10_007

"""Steps that are found in the calls of a thread."""

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu.capture.steps.period import CallRole, CallSequence, Period, iterations_of
from otel_gpu.capture.steps.period_search import Reason, find_period
from tests.unit.capture.step_detectors import KERNEL, OTHER, TO_DEVICE, TO_HOST, WAIT, thread

CHANCES = st.integers(0, 1 << 32).map(random.Random)
KERNELS = st.lists(st.integers(KERNEL, KERNEL + 30), min_size=1, max_size=40)
FORWARD = [KERNEL + number for number in range(12)]
BACKWARD = [KERNEL + 50 + number for number in range(20)]
TRAINING = [TO_DEVICE, *FORWARD, *BACKWARD, WAIT]


def found(log):
    """What is found, as the program logs it."""
    period = find_period(log.calls)
    assert isinstance(period, Period), period
    return period, list(iterations_of(period, log.calls.symbols))


def edges(turns):
    return [(turn.first, turn.last) for turn in turns]


@settings(max_examples=25)
@given(KERNELS, st.integers(10, 60), st.lists(st.integers(KERNEL + 60, KERNEL + 90), max_size=50))
def test_steps_that_copy_and_wait_are_found_to_the_call(kernels, steps, before):
    """Whatever is launched in them, and whatever came before."""
    log = thread([("", before), *[("step", [TO_DEVICE, *kernels, WAIT])] * steps])

    _, turns = found(log)

    assert edges(turns) == [step[:2] for step in log.steps]


@settings(max_examples=25)
@given(KERNELS.filter(lambda kernels: len(set(kernels)) > 3), st.integers(20, 60))
def test_steps_without_a_copy_begin_after_the_wait(kernels, steps):
    """A wait in the middle of a step of many calls is not taken for its end either."""
    log = thread([("step", [*kernels, WAIT])] * steps)

    _, turns = found(log)

    assert edges(turns) == [step[:2] for step in log.steps]


@settings(max_examples=25)
@given(st.integers(5, 50), st.integers(1, 30), st.integers(0, 30))
def test_an_evaluation_every_so_many_steps_is_no_part_of_any(every, launches, other):
    """The steps around it are as long as the others."""
    evaluation = [KERNEL + 70 + number for number in range(other)]
    parts = []
    for number in range(4 * every + 7):
        parts.append(("training", TRAINING))
        if number % every == every - 1:
            parts.append(("", [*evaluation, *FORWARD] * launches))

    log = thread(parts)
    _, turns = found(log)

    assert edges(turns) == [step[:2] for step in log.steps]


@settings(max_examples=25)
@given(st.integers(10, 50), st.integers(2, 12))
def test_an_evaluation_that_waits_as_well_has_steps_of_its_own(every, batches):
    """It launches some of what training launches."""
    evaluation = [TO_DEVICE, *FORWARD, WAIT]
    cycle = [("training", TRAINING)] * every + [("evaluation", evaluation)] * batches
    log = thread(cycle * 5)

    _, turns = found(log)

    assert edges(turns) == [step[:2] for step in log.steps]


@settings(max_examples=25)
@given(CHANCES, st.integers(4, 40))
def test_long_steps_between_many_short_ones_are_found(chance, most):
    """As a server makes them: after a prefill come as many decodes as the answer is long."""
    prefill = [TO_DEVICE, *range(KERNEL, KERNEL + 30), TO_HOST]
    decode = [TO_DEVICE, *range(KERNEL + 20, KERNEL + 38), TO_HOST]
    parts = []
    for _ in range(40):
        decodes = chance.randint(2, most)
        parts += [("prefill", prefill * 1), *[("decode", decode)] * decodes]
    log = thread(parts)

    _, turns = found(log)

    assert edges(turns) == [step[:2] for step in log.steps]


@settings(max_examples=25)
@given(CHANCES, st.integers(5, 8), st.integers(3, 5))
def test_steps_of_two_kinds_in_turns_are_no_parts_of_each_other(chance, most_plain, most_looks):
    """Those of one kind look at their result, so that before some of them there are others."""
    plain = ("plain", [TO_DEVICE, *FORWARD[:8], WAIT])
    looks = ("looks", [TO_DEVICE, *BACKWARD, TO_HOST, WAIT])
    parts = []
    for _ in range(20):
        parts += [plain] * chance.randint(5, most_plain) + [looks] * chance.randint(3, most_looks)
    log = thread(parts)

    _, turns = found(log)

    assert edges(turns) == [step[:2] for step in log.steps]


@settings(max_examples=25)
@given(CHANCES, st.integers(1, 8), st.integers(0, 3), st.integers(0, 3))
def test_random_calls_have_no_steps(chance, kernels, waits, copies):
    """However few different ones there are."""
    choices = [*range(KERNEL, KERNEL + kernels), *[WAIT] * waits]
    choices += [TO_DEVICE, TO_HOST, OTHER][:copies]
    log = thread([("", [chance.choice(choices)]) for _ in range(1_500)])

    period = find_period(log.calls)

    assert isinstance(period, Reason) or len(set(log.calls.symbols)) == 1


@settings(max_examples=25)
@given(st.integers(2, 60), st.integers(3, 20))
def test_layers_are_no_steps(layers, launches):
    """A step waits once, however often its layers repeat themselves."""
    layer = [KERNEL + number for number in range(launches)]
    log = thread([("step", [TO_DEVICE, *layer * layers, KERNEL + 99, WAIT])] * 12)

    _, turns = found(log)

    assert edges(turns) == [step[:2] for step in log.steps]


@settings(max_examples=25)
@given(CHANCES, st.integers(20, 60))
def test_a_call_that_is_made_any_number_of_times_does_not_matter(chance, steps):
    """As one that asks whether work is done."""
    log = thread(
        [
            ("step", [TO_DEVICE, *FORWARD, *[OTHER] * chance.randint(1, 30), *BACKWARD, WAIT])
            for _ in range(steps)
        ]
    )

    _, turns = found(log)

    assert edges(turns) == [step[:2] for step in log.steps]


@settings(max_examples=25)
@given(CHANCES, st.integers(60, 200))
def test_noise_costs_the_steps_that_it_is_in_at_most(chance, steps):
    """One step in twenty makes a call more, or one call less, anywhere."""
    noisy = set()
    parts = []
    for number in range(steps):
        calls = list(TRAINING)
        if number % 20 == 11:
            noisy.add(number)
            at = chance.randrange(4, len(calls) - 4)
            calls[at : at + chance.randint(0, 1)] = [KERNEL + 99] * chance.randint(1, 2)
        parts.append(("step", calls))
    log = thread(parts)

    _, turns = found(log)

    assert edges(turns) == [step[:2] for step in log.steps]


@settings(max_examples=25)
@given(st.integers(9, 40), st.integers(60, 100))
def test_what_is_done_again_and_again_before_is_another_loop(rounds, steps):
    """As parameters are loaded one by one."""
    loading = [("", [TO_DEVICE, KERNEL + 90, KERNEL + 91])] * rounds
    log = thread([*loading, *[("step", TRAINING)] * steps])

    _, turns = found(log)

    assert edges(turns)[-steps:] == [step[:2] for step in log.steps]
    assert len(turns) <= steps + 1


@settings(max_examples=25)
@given(st.lists(st.integers(1, 120), max_size=400), st.integers(1, 12))
def test_of_any_calls_there_is_an_answer(symbols, times):
    """And steps that are found do not overlap."""
    symbols = symbols * times
    roles = {symbol: list(CallRole)[symbol % 5] for symbol in symbols}
    calls = CallSequence(symbols, range(0, 10 * len(symbols), 10), [4] * len(symbols), roles)

    period = find_period(calls)

    if isinstance(period, Period):
        turns = list(iterations_of(period, symbols))
        assert len(turns) >= 8
        assert all(one.last < two.first for one, two in itertools.pairwise(turns))

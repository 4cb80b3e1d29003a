"""What watched processes can have us do: a share each."""

import pytest

from otel_gpu.limits.work_budget import Share, WorkBudget


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def budget(clock):
    return WorkBudget(Share(2, 0.1), Share(3, 0.2), Share(4, 0.4), clock)


def test_a_process_at_the_end_of_its_share_keeps_no_other_from_theirs(budget, clock):
    """It has some again after a while."""
    budget.pay("one", 7, 2.5)

    assert not budget.allows("one", 7)
    assert budget.allows("other", 7)
    clock.now_s += 5.1
    assert budget.allows("one", 7)


def test_processes_of_a_user_have_no_more_than_their_user(budget):
    """However many they are; other users have theirs."""
    budget.pay("one", 7, 1.5)
    budget.pay("two", 7, 1.5)

    assert not budget.allows("three", 7)
    assert budget.allows("three", 8)


def test_users_have_no_more_than_there_is_for_all(budget, clock):
    budget.pay("one", 7, 2)
    budget.pay("two", 8, 2)

    assert not budget.allows("three", 9)
    clock.now_s += 0.1
    assert budget.allows("three", 9)


def test_what_comes_back_is_no_more_than_the_share(budget, clock):
    clock.now_s += 1e9
    budget.pay("one", 7, 2)

    assert not budget.allows("one", 7)


def test_time_is_paid_that_passes_also_until_an_error(budget, clock):
    def fail():
        clock.now_s += 2
        raise ValueError

    with pytest.raises(ValueError), budget.paying("one", 7):  # noqa: PT011 -- the only one
        fail()

    assert budget.left("one", 7)[1] == 0


def test_who_has_all_of_its_share_again_is_forgotten(budget, clock):
    """Thousands of short processes pay once each, and take no memory for as long as the agent runs."""
    for number in range(100):
        budget.pay(number, 7, 1)
        clock.now_s += 1

    assert len(budget._processes) == 10
    assert len(budget._users) == 1

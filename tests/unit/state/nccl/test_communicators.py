"""What is kept of communicators: who stands where, for how long others waited, and bounds."""

import pytest

from otel_gpu import wire
from otel_gpu.state.nccl.communicators import MAX_MEMBERS, CommunicatorStates
from otel_gpu.state.nccl.rank_calls import MAX_CALLS
from otel_gpu.state.nccl.rank_comparison import MAX_COMPARED
from otel_gpu.state.nccl.rank_positions import RankState
from otel_gpu.state.window import Window
from otel_gpu.wire.communicators import QueuedCollective
from tests.activities import MS, SECOND, T0, image
from tests.communicator_activities import ALL_REDUCE, ID, RECENT, collectives, ranks, reading


def kept(*readings, window=Window()):  # noqa: B008 -- immutable
    """What is kept of these readings."""
    communicators = CommunicatorStates(window)
    for one in readings:
        communicators.observe(one)
    return communicators


def steps(late_ns, *, first, count, step_ns=20 * MS, per_step=1):
    """Two ranks that call so often; the second one always that much later. Readings of each second."""
    world = ranks(2)
    made = [[], []]
    for number in range(1, count + 1):
        at = first + number * step_ns // per_step
        for rank, calls in enumerate(made):
            calls.append(QueuedCollective(number, at + rank * late_ns, ALL_REDUCE))
    for at_s in range(first // SECOND + 1, (first + count * step_ns // per_step) // SECOND + 2):
        for rank, process in enumerate(world):
            done = [one for one in made[rank] if one.called_ktime_ns <= at_s * SECOND]
            yield reading(process, at_s, done, rank=rank, rank_count=2)


class TestStanding:
    @pytest.mark.parametrize(
        ("called", "completed", "state", "number"),
        [
            ([5, 5], [5, 5], RankState.RUNNING, 0),
            ([5, 5], [5, 4], RankState.RUNNING, 0),
            ([5, 5], [4, 4], RankState.QUEUED, 5),
            ([5, 4], [4, 4], RankState.RANK_MISSING, 5),
            ([9, 4], [4, 3], RankState.RANK_MISSING, 5),
            ([5, 4], [5, 4], RankState.UNKNOWN, 0),
            ([0, 0], [0, 0], RankState.RUNNING, 0),
        ],
    )
    def test_follows_from_who_called_and_who_knows(self, called, completed, state, number):
        """What one has done that another did not call says that the numbers are not the same."""
        communicators = kept(
            *(
                reading(process, 10, collectives(range(1, n + 1)), completed=done, rank=rank)
                for rank, (process, n, done) in enumerate(
                    zip(ranks(2), called, completed, strict=True)
                )
            )
        )

        (group,) = communicators.groups()
        standing = group.standing()

        assert (standing.state, standing.number) == (state, number)

    def test_two_communicators_at_one_address_are_two(self):
        """An address is used again, and a program may have the same one at another time."""
        process = image(7)
        communicators = kept(
            reading(process, 10, collectives([1]), handle=(0x7F, 0)),
            reading(process, 11, collectives([2]), handle=(0x7F, 1), identity=ID + 1),
        )

        assert sorted(group.id for group in communicators.groups()) == [ID, ID + 1]

    def test_one_whose_id_becomes_known_moves(self):
        """It is with the others from then on, and nowhere else."""
        process, other = ranks(2)
        communicators = kept(
            reading(process, 10, collectives([1]), identity=0),
            reading(process, 11, collectives([1])),
            reading(other, 11, collectives([1]), rank=1),
        )

        (group,) = communicators.groups()

        assert [one.process for one in group.ranks] == [process, other]


class TestLag:
    def test_is_exact_where_each_call_is_known(self):
        """Of 100 steps the second rank came 5 ms late: the first one waited 500 ms in all."""
        communicators = kept(*steps(5 * MS, first=10 * SECOND, count=100, step_ns=100 * MS))

        lags = communicators.lags(T0 + 21 * SECOND)

        assert lags == {(1000, 5 * SECOND): 500 * MS, (1001, 5 * SECOND): 0}

    def test_is_a_good_guess_where_only_the_latest_calls_are(self):
        """With 50 calls in a second 16 are known of each: what they say stands for the others."""
        communicators = kept(*steps(5 * MS, first=10 * SECOND, count=1000, step_ns=20 * MS))

        lags = communicators.lags(T0 + 31 * SECOND)

        assert lags[1000, 5 * SECOND] == pytest.approx(1000 * 5 * MS, rel=0.1)

    def test_goes_on_while_a_rank_is_missing(self):
        """Nothing changes and nothing is read; the time passes all the same."""
        first, second = ranks(2)
        communicators = kept(
            reading(first, 10, collectives([9 * SECOND, 9 * SECOND + 900 * MS]), rank_count=2),
            reading(second, 10, collectives([9 * SECOND]), rank=1, rank_count=2),
        )

        (group,) = communicators.groups()
        lags = communicators.lags(T0 + 70 * SECOND)

        assert lags[1000, 5 * SECOND] == 60 * SECOND + 100 * MS
        assert [one.late_ns for one in group.ranks] == [0, 60 * SECOND + 100 * MS]

    def test_of_a_window_is_what_was_in_it(self):
        """What was before it is where counting begins."""
        window = Window(T0 + 15 * SECOND, T0 + 18 * SECOND)
        communicators = kept(
            *steps(5 * MS, first=10 * SECOND, count=100, step_ns=100 * MS), window=window
        )

        lags = communicators.lags(T0 + 18 * SECOND)

        assert lags[1000, 5 * SECOND] == pytest.approx(30 * 5 * MS, abs=10 * 5 * MS)


class TestBounds:
    def test_ranks_beyond_the_limit_are_counted(self):
        """Those that were read last are kept."""
        communicators = kept(
            *(
                reading(image(number), 10, collectives([1]), identity=number)
                for number in range(1, MAX_MEMBERS + 12)
            )
        )

        assert communicators.left_out == 11
        assert len(communicators.groups()) == MAX_MEMBERS
        assert not communicators.knows((1, 5 * SECOND))

    def test_a_communicator_with_too_many_ranks_is_compared_with_nothing(self):
        """No host has so many devices; comparing them all would take for ever."""
        communicators = kept(
            *(
                reading(process, 10, collectives([1] * (1 + rank % 2)), rank=rank)
                for rank, process in enumerate(ranks(MAX_COMPARED + 1))
            )
        )

        (group,) = communicators.groups()

        assert group.standing().state == RankState.UNKNOWN

    def test_few_calls_of_a_rank_are_kept(self):
        """However many readings there are."""
        process = image(7)
        communicators = kept(
            *(
                reading(process, at_s, collectives(range(1, 1 + at_s * RECENT)))
                for at_s in range(1, 20)
            )
        )

        ((_, member),) = communicators.of((7, 5 * SECOND))

        assert [call.number for call in member.calls] == list(
            range(19 * RECENT - MAX_CALLS + 1, 19 * RECENT + 1)
        )

    def test_numbers_that_contradict_each_other_time_and_again_are_not_compared(self):
        """One rank that finishes what another never called is no reason to blame that one."""
        first, second = ranks(2)
        communicators = kept(
            *(
                reading(process, at_s, collectives(range(1, n + 1)), completed=n, rank=rank)
                for at_s in range(10, 15)
                for rank, (process, n) in enumerate([(first, at_s), (second, 3)])
            )
        )

        assert communicators.lags(T0 + 20 * SECOND) == {
            (1000, 5 * SECOND): 0,
            (1001, 5 * SECOND): 0,
        }

    def test_hostile_figures_are_taken(self):
        """Nothing says that a reading makes sense."""
        world = ranks(3)
        most = (1 << 63) - 1
        odd = ALL_REDUCE._replace(operation=255, datatype=255, reduction=254, root=-7)
        communicators = kept(
            *(
                reading(
                    process,
                    10 + at_s,
                    [
                        QueuedCollective(most - rank, most - 5 * at_s, odd),
                        QueuedCollective(1, 0, odd),
                    ],
                    completed=most,
                    called=most,
                    completed_ktime_ns=most,
                    waited_ns=most - at_s,
                    rank=-5,
                    rank_count=-9,
                    flags=wire.COMMUNICATOR_ABORTED,
                )
                for at_s in range(3)
                for rank, process in enumerate(world)
            )
        )

        assert set(communicators.lags(T0)) == {(pid, 5 * SECOND) for pid in (1000, 1001, 1002)}

"""What a thread that others wait for does is known by its account, also while it goes on."""

import pytest

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import Culprit
from otel_gpu.enrich.thread_times import NO_WAIT, Wait
from otel_gpu.explain.accounting.recent_times import RecentTimes
from otel_gpu.explain.accounting.waited_for import account_intervals
from otel_gpu.explain.explainer import Explainer
from otel_gpu.explain.intervals import CauseInterval
from otel_gpu.explain.kinds import CauseKind
from otel_gpu.state.time_accounting import Account
from tests.activities import APIS_BY_NAME, MS, SECOND, T0, capture, image, thread_time, times
from tests.unit.explain.nccl.test_collectives import hanging
from tests.unit.explain.streams import TRAINER, WORKER, off_cpu, slow_gap, usual_gap

RANK = image(1002, name="trainer")
OPEN = Wait(1, None, None, wire.STATE_NONE, "", None)


def recent(*readings):
    """The readings of one process: the moment, and what it has spent by then."""
    made = RecentTimes()
    made.begin(T0 + 10 * SECOND)
    account = Account(RANK)
    for at_s, *rows in readings:
        spent = [
            thread_time(RANK, *row[:3], count=0, wait=row[3] if row[3:] else OPEN) for row in rows
        ]
        made.observe(times(at_s, *spent), lambda _: account)
        for time in spent:
            account.times[time.kind] = time
    return made


def spent(made, start_s, end_s, *, is_launching=True, is_whole=False):
    """By state, what was spent in a window, in milliseconds."""
    window = T0 + round(start_s * SECOND), T0 + round(end_s * SECOND)
    found = made.of(RANK.pid, *window, is_launching=is_launching, is_whole=is_whole)
    return {(time.state, time.reason): time.time_ns // MS for time in found}


BLOCKED, GAP = wire.STATE_BLOCKED, wire.CONTEXT_GAP


class TestWindow:
    def test_a_wait_that_goes_on_lies_at_the_end_of_what_was_read(self):
        """Of a second it took seven tenths, and these are the last ones."""
        made = recent(
            (11, (wire.STATE_ON_CPU, GAP, 300 * MS)),
            (12, (wire.STATE_ON_CPU, GAP, 600 * MS), (BLOCKED, GAP, 700 * MS)),
        )

        assert spent(made, 11.5, 12) == {(BLOCKED, ""): 500}
        assert spent(made, 11, 11.5) == {(wire.STATE_ON_CPU, ""): 300, (BLOCKED, ""): 200}

    def test_of_a_short_window_it_is_known_what_went_on_all_the_time(self):
        """When in a second the rest was is not known."""
        made = recent(
            (11, (wire.STATE_ON_CPU, GAP, 300 * MS)),
            (12, (wire.STATE_ON_CPU, GAP, 600 * MS), (BLOCKED, GAP, 700 * MS)),
        )

        assert spent(made, 11.8, 11.9) == {(BLOCKED, ""): 100}
        assert spent(made, 11.1, 11.2) == {}

    def test_what_is_not_read_yet_is_as_it_was(self):
        """The next reading would tell of its end."""
        made = recent((11, (BLOCKED, GAP, SECOND)), (12, (BLOCKED, GAP, 2 * SECOND)))

        assert spent(made, 11, 12.5) == {(BLOCKED, ""): 1500}
        # But not for ever: the process may be over.
        assert spent(made, 11, 60) == {(BLOCKED, ""): 3000}

    def test_the_first_reading_is_of_all_that_was_since_the_capture_began(self):
        made = recent((11, (BLOCKED, GAP, 900 * MS)))

        assert spent(made, 10, 11) == {(BLOCKED, ""): 900}

    def test_of_several_threads_it_is_not_known_which_one_it_was(self):
        """Of a process they count together."""
        made = recent((11, (BLOCKED, GAP, 2 * SECOND)))

        assert spent(made, 10, 11) == {}
        assert spent(made, 10, 11, is_whole=True) == {(BLOCKED, ""): 2000}

    def test_who_makes_no_calls_is_told_apart(self):
        made = recent(
            (11, (BLOCKED, GAP, SECOND), (BLOCKED, wire.CONTEXT_OTHER, 600 * MS)),
        )

        assert spent(made, 10, 11, is_launching=False) == {(BLOCKED, ""): 600}

    def test_what_is_long_ago_is_kept_in_larger_pieces(self):
        """A hang may last for days."""
        made = recent(*((10 + n, (BLOCKED, GAP, n * SECOND)) for n in range(1, 400)))

        assert sum(spent(made, 10, 409).values()) == pytest.approx(399_000, abs=1)
        assert sum(spent(made, 10, 20).values()) == pytest.approx(10_000, abs=1)

    def test_another_program_of_the_same_pid_begins_anew(self):
        made = recent((11, (BLOCKED, GAP, SECOND)))
        other = image(RANK.pid, name="next", program_ktime_ns=99)
        made.observe(
            times(12, thread_time(other, BLOCKED, GAP, 500 * MS, count=0, wait=OPEN)),
            lambda _: None,
        )

        assert sum(spent(made, 11, 12).values()) == 500


def intervals(rows, *, seen=(), window_ns=SECOND):
    """What an account says of a window of a second."""
    culprit = Culprit(RANK.pid, RANK.pid, "trainer")
    made = account_intervals(
        culprit,
        (0, window_ns, T0),
        [thread_time(RANK, *row[:3], **row[3]) for row in rows],
        seen,
        window_ns - sum(one.time_ns for one in seen),
    )
    return {one.kind: (one.time_ns // MS, one.culprit) for one in made}


class TestPieces:
    def test_a_wait_that_has_not_ended_has_its_kind(self):
        found = intervals([(BLOCKED, GAP, SECOND, {"reason": "lock", "wait": OPEN})])

        assert found == {"lock": (1000, Culprit(RANK.pid, RANK.pid, "trainer"))}

    def test_what_was_seen_is_not_told_again(self):
        """Of a lock four tenths were seen, and six in the account."""
        culprit = Culprit(5, 6, "other")
        seen = [CauseInterval("lock", 400 * MS, culprit, None)]

        found = intervals([(BLOCKED, GAP, 600 * MS, {"reason": "lock", "wait": OPEN})], seen=seen)

        assert found["lock"][0] == 200

    def test_several_threads_count_by_what_they_did_on_average(self):
        found = intervals(
            [
                (BLOCKED, GAP, 3 * SECOND, {"reason": "lock", "wait": OPEN}),
                (BLOCKED, GAP, SECOND, {"reason": "sleep", "wait": OPEN}),
            ]
        )

        assert {kind: time_ms for kind, (time_ms, _) in found.items()} == {
            "lock": 750,
            "sleep": 250,
        }

    def test_accounts_without_waits_say_states_only(self):
        found = intervals([(wire.STATE_RUN_QUEUE, GAP, SECOND, {"wait": NO_WAIT})])

        assert found == {"run_queue": (1000, None)}


@pytest.mark.parametrize("polls", [False, True])
def test_a_rank_that_waits_itself_is_explained_by_its_account(polls):
    """Its wait has not ended, so that nothing was sent of it; a watchdog that polls is another thread."""
    query = APIS_BY_NAME["cudaEventQuery"].number
    asks = OPEN._replace(api=query)
    explainer = Explainer()
    started = [capture(), *hanging([5, 5, 4, 5], until_s=110)]
    account = [
        times(
            at_s,
            thread_time(
                image(1002, name="trainer"),
                BLOCKED,
                GAP,
                (at_s - 100) * SECOND,
                reason="ipc",
                count=0,
                wait=OPEN,
            ),
            *(
                [
                    thread_time(
                        image(1002, name="trainer"),
                        BLOCKED,
                        GAP,
                        (at_s - 100) * SECOND,
                        reason="sleep",
                        count=50 * at_s,
                        wait=asks,
                    )
                ]
                if polls
                else []
            ),
        )
        for at_s in range(101, 111)
    ]
    for activity in sorted(
        [*started[1:], *account], key=lambda one: getattr(one, "unix_ns", 0) or 0
    ):
        explainer.push(activity)
    explainer.close()

    # What the rank spends its time in is told for itself, too.
    (incident,) = [one for one in explainer.incidents() if not one.chronic]
    (cause,) = incident.causes
    assert cause.kind == CauseKind.COLLECTIVE_WAIT
    kinds = {one.kind: one.time_ns for one in cause.via}
    assert kinds[CauseKind.IPC] > 0.98 * cause.time_ns
    # What it waits for is no input from outside of the job.
    assert incident.severity == "high"


def test_the_one_who_sends_data_is_explained_by_its_account():
    """The worker that a gap waits for sleeps in a wait that was too short, or is too long, to be sent."""
    explainer = Explainer()
    waited = off_cpu(
        0, 90, reason="ipc", waker_pid=WORKER.pid, waker_tid=WORKER.pid, waker_comm="worker"
    )
    rows = [
        times(
            at_s,
            thread_time(
                WORKER,
                BLOCKED,
                wire.CONTEXT_OTHER,
                (at_s - 99) * SECOND,
                reason="io",
                count=0,
                wait=OPEN,
            ),
        )
        for at_s in range(99, 103)
    ]
    stream = [capture(), usual_gap(TRAINER), *rows[:2], waited, slow_gap(blocked_ns=90 * MS)]
    chains = [chain for one in [*stream, *rows[2:]] for chain in explainer.push(one)]
    chains += explainer.close()

    (chain,) = [one for one in chains if one.effect.process is TRAINER]
    cause = next(one for one in chain.causes if one.kind == CauseKind.IPC)
    assert [(one.kind, one.culprit.pid) for one in cause.via] == [(CauseKind.IO, WORKER.pid)]

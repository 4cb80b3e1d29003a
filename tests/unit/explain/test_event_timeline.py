"""What threads were doing lately."""

from otel_gpu import wire
from otel_gpu.explain.event_timeline import EventTimeline
from otel_gpu.explain.settings import Settings
from tests.activities import T0, image
from tests.unit.explain.streams import MS, START, TRAINER, account, fork_by, off_cpu, slow, time_of

THREAD = (42, 42)


def starts_ms(found):
    return [(item.event.start_ktime_ns - START) // MS for item in found]


def test_stalls_come_in_the_order_of_time_whatever_order_they_came_in():
    """The kernel side sends the longest ones of a call in no order."""
    timeline = EventTimeline(Settings())
    for at_ms in (30, 10, 20):
        timeline.add_stall(off_cpu(at_ms, 5))

    assert starts_ms(timeline.stalls(THREAD, START, START + 100 * MS)) == [10, 20, 30]


def test_a_window_has_the_stalls_that_lie_in_it_partly():
    """Ends are not part of a window, nor are other threads."""
    timeline = EventTimeline(Settings())
    for at_ms in (0, 10, 20, 30):
        timeline.add_stall(off_cpu(at_ms, 5))
    timeline.add_stall(off_cpu(12, 5, tid=43))

    assert starts_ms(timeline.stalls(THREAD, START + 4 * MS, START + 21 * MS)) == [0, 10, 20]
    assert starts_ms(timeline.stalls(THREAD, START + 5 * MS, START + 20 * MS)) == [10]
    assert timeline.stalls((1, 1), START, START + MS) == []


def test_the_oldest_stalls_are_given_up_and_counted():
    """Of one thread, and of all together."""
    timeline = EventTimeline(Settings(max_intervals=4, max_thread_intervals=3))
    for at_ms in range(5):
        timeline.add_stall(off_cpu(10 * at_ms, 5))
    for at_ms in range(2):
        timeline.add_stall(off_cpu(10 * at_ms, 5, tid=43))

    everything = (START, START + 1000 * MS)
    assert starts_ms(timeline.stalls(THREAD, *everything)) == [30, 40]
    assert starts_ms(timeline.stalls((42, 43), *everything)) == [0, 10]
    assert timeline.given_up() == {"stalls": 3, "calls": 0}


def test_a_busy_thread_keeps_its_latest_stalls_however_many_there_were():
    """Also those that come late; one that comes later than all that is kept is given up at once."""
    timeline = EventTimeline(Settings(max_intervals=101, max_thread_intervals=7))
    for at_ms in range(0, 4010, 10):
        timeline.add_stall(off_cpu(at_ms, 5))
    everything = (START, START + 10_000 * MS)
    latest = list(range(3940, 4010, 10))

    assert starts_ms(timeline.stalls(THREAD, *everything)) == latest
    assert timeline.given_up()["stalls"] == 401 - 7
    timeline.add_stall(off_cpu(3955, 2))
    assert starts_ms(timeline.stalls(THREAD, *everything)) == [3950, 3955, *latest[2:]]
    timeline.add_stall(off_cpu(15, 2))
    assert starts_ms(timeline.stalls(THREAD, *everything)) == [3950, 3955, *latest[2:]]
    assert timeline.given_up()["stalls"] == 403 - 7


def test_what_a_thread_gave_up_is_not_given_up_again_for_all():
    """The bound of all threads counts what is kept."""
    timeline = EventTimeline(Settings(max_intervals=10, max_thread_intervals=3))
    for at_ms in range(20):
        timeline.add_stall(off_cpu(10 * at_ms, 5))
    for at_ms in range(7):
        timeline.add_stall(off_cpu(10 * at_ms, 5, tid=43))

    everything = (START, START + 1000 * MS)
    assert starts_ms(timeline.stalls(THREAD, *everything)) == [170, 180, 190]
    assert starts_ms(timeline.stalls((42, 43), *everything)) == [40, 50, 60]
    assert timeline.given_up()["stalls"] == 17 + 4


def test_nothing_is_kept_of_threads_that_ended():
    """Not even their places in the order; what lives is given up in it as before."""
    timeline = EventTimeline(Settings(max_intervals=5000))
    timeline.add_stall(off_cpu(0, 5))
    for number in range(10_000):
        short = image(1000 + number, START + number, "short")
        timeline.add_stall(off_cpu(10, 5, process=short, tid=short.pid))
        timeline.forget((short.pid, short.program_ktime_ns))
        assert len(timeline._stalls._order) < 1100

    everything = (START, START + 100_000 * MS)
    assert starts_ms(timeline.stalls(THREAD, *everything)) == [0]
    assert timeline.given_up()["stalls"] == 0
    for at_ms in range(1, 5001):
        timeline.add_stall(off_cpu(10 * at_ms, 5, tid=43 + at_ms % 50))
    assert timeline.stalls(THREAD, *everything) == []
    assert timeline.given_up()["stalls"] > 0


def test_a_stall_that_is_told_twice_is_remembered_once():
    """Once on its own, and once with the gap around it."""
    timeline = EventTimeline(Settings())
    for _ in range(2):
        timeline.add_stall(off_cpu(10, 5))

    assert starts_ms(timeline.stalls(THREAD, START, START + 100 * MS)) == [10]


def test_only_outermost_calls_are_remembered():
    """What a thread did is said by the call that its program made."""
    timeline = EventTimeline(Settings())
    timeline.add_call(slow(duration_ms=10))
    timeline.add_call(slow(duration_ms=5, start=START + MS, parent_start_ktime_ns=START))

    assert starts_ms(timeline.calls(THREAD, START, START + 100 * MS)) == [0]


def test_a_fork_is_found_when_it_is_seen_to_end_a_moment_late():
    """A fork of another process, or one long before, is not."""
    timeline = EventTimeline(Settings())
    for at_ms, duration_ms in ((-50, 10), (5, 10), (20.5, 1), (60, 5)):
        timeline.add_fork(fork_by(43, at_ms, duration_ms))

    found = timeline.forks(TRAINER.pid, START, START + 20 * MS)

    assert starts_ms(found) == [5, 20]
    assert timeline.forks(7, START, START + 20 * MS) == []


def test_waits_for_a_cpu_without_a_stall_are_known_by_the_totals():
    """Short ones are not sent, but the account of the process has them."""
    timeline = EventTimeline(Settings())
    queued = (wire.STATE_RUN_QUEUE, wire.CONTEXT_OTHER)
    timeline.add_stall(off_cpu(100, 0, 12))
    for at_s, time_ms in ((99, 500), (100.5, 600), (102, 601)):
        timeline.add_times(account(at_s, time_of(*queued, time_ms)))

    def unseen_ms(at_ms):
        return timeline.unseen_run_queue_ns(THREAD, T0 + START + at_ms * MS, 50 * MS) // MS

    assert unseen_ms(100) == 88
    assert unseen_ms(700) == 0
    assert unseen_ms(-2000) == 0
    assert unseen_ms(5000) == 0


def test_totals_of_a_process_with_more_threads_say_nothing_about_one():
    """Nobody knows whose time it was."""
    timeline = EventTimeline(Settings())
    timeline.add_stall(off_cpu(100, 0, 12))
    timeline.add_stall(off_cpu(100, 0, 12, tid=43))
    for at_s, time_ms in ((99, 500), (100.5, 600)):
        timeline.add_times(
            account(at_s, time_of(wire.STATE_RUN_QUEUE, wire.CONTEXT_OTHER, time_ms))
        )

    assert timeline.unseen_run_queue_ns(THREAD, T0 + START, 50 * MS) == 0

"""Very many short processes: the busiest are named, and of the others every call is counted."""

import pytest

from otel_gpu import wire
from otel_gpu.explain.explainer import Explainer
from otel_gpu.report import other_processes as module
from otel_gpu.report.collector import Collector
from otel_gpu.report.document import OTHER_PROCESSES_PID, Window
from otel_gpu.report.wording.formats import process_name
from tests.activities import (
    SECOND,
    T0,
    calls,
    capture,
    ended,
    image,
    replaced,
    snapshot,
    thread_time,
    times,
)

US, MS = 1_000, 1_000_000
CALLS = 7


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(module, "MAX_NAMED", 3)
    monkeypatch.setattr(module, "_LATE", 2)


def storm(count, *, busy=()):
    """One process a second makes seven calls, is read, and ends half a second later."""
    yield capture()
    for number in range(count):
        process = image(100 + number, number * SECOND, "storm" if number % 3 else "drizzle")
        usual_us = 1_000 if number in busy else 10
        yield snapshot(
            number + 0.25,
            calls(process, "cudaMalloc", [usual_us * US] * CALLS),
            calls(process, "cudaFree", [5 * US], status=2),
        )
        blocked = (wire.STATE_BLOCKED, wire.CONTEXT_CALL, 9 * MS)
        yield times(number + 0.25, thread_time(process, *blocked, reason="lock"))
        yield ended(process, number + 0.5)


def report_of(activities, **options):
    collector = Collector(Explainer(), **options)
    for activity in activities:
        collector.observe(activity)
    return collector.finish("test")


def named(report):
    """Processes by pid, then those that stand for many, by their names."""
    processes = [process.process for process in report.processes]
    assert processes == sorted(processes, key=lambda one: one.pid == OTHER_PROCESSES_PID)
    return sorted(map(process_name, processes), key=lambda name: ("more" in name, name))


def test_the_busiest_are_named_and_the_others_are_one_row():
    """Calls, errors, bytes, waits and what happened when are those of all."""
    report = report_of(storm(41, busy=(4, 7, 35)))

    assert named(report) == [
        "storm (104)",
        "storm (107)",
        "storm (135)",
        "14 more processes of drizzle",
        "24 more processes of storm",
    ]
    assert sum(row.calls for row in report.apis) == 41 * (CALLS + 1)
    assert sum(row.errors for row in report.apis) == 41
    assert sum(row.time_ns for row in report.off_cpu) == 41 * 9 * MS
    assert sum(row.allocations for row in report.balances) == 41 * CALLS
    of_all = [slot for slot in report.time_buckets if slot.process is None]
    assert sum(slot.calls for slot in of_all) == pytest.approx(41 * (CALLS + 1))
    (malloc,) = [
        row
        for row in report.apis
        if row.api == "cudaMalloc" and process_name(row.process).startswith("24 more")
    ]
    assert (malloc.calls, malloc.sum_ns, malloc.errors) == (24 * CALLS, 24 * CALLS * 10 * US, 0)
    assert malloc.p50_ns == pytest.approx(10 * US, rel=0.09)
    assert malloc.max_ns == 10 * US
    assert report.processes[-1].verdict == "lock-bound"


def test_what_ended_before_a_window_takes_no_room_in_it(monkeypatch):
    """Series are let go rather than refused, and nothing of them is in the window."""
    monkeypatch.setattr(module, "_NEARLY_FULL", 8)
    window = Window(T0 + 37 * SECOND, T0 + 41 * SECOND)
    collector = Collector(Explainer(), window=window)
    most = 0
    for activity in storm(41):
        collector.observe(activity)
        most = max(most, collector._state.accounts.size)
    report = collector.finish("test")

    assert sum(row.calls for row in report.apis) == 4 * (CALLS + 1)
    assert len(report.apis) == 2 * len(report.processes)
    assert named(report)[-1].endswith("more process of storm")
    assert most < 20
    assert not any("no room" in note for note in report.notes)


def test_only_what_was_asked_for_is_named():
    """The process that was asked for keeps its figures, however idle it was."""
    report = report_of(storm(41, busy=(4, 7, 35)), pids=[106])

    assert named(report) == ["drizzle (106)"]
    assert sum(row.calls for row in report.apis) == CALLS + 1


def test_of_what_went_on_before_a_window_only_the_difference_is_summed_up():
    """Each process is read before the window and in it; then it ends."""
    processes = [image(100 + number, SECOND, "storm") for number in range(11)]

    def read_at(at_s, usual_us, count):
        values = [usual_us * US] * count
        return snapshot(at_s, *(calls(process, "cudaMalloc", values) for process in processes))

    activities = [capture(), read_at(2, 10, 50), read_at(5, 10, 57)]
    activities += [ended(process, 5.5) for process in processes]

    report = report_of(activities, window=Window(T0 + 3 * SECOND, T0 + 6 * SECOND))

    assert sum(row.calls for row in report.apis) == 11 * 7
    assert [row.max_ns for row in report.apis] == pytest.approx([10 * US] * 4, rel=0.09)
    assert named(report)[-1] == "8 more processes of storm"


def test_forks_that_ran_another_program_are_nobody():
    """They are no processes of the report, and none of those that it sums up."""
    activities = [*storm(11)]
    for number in range(23):
        fork = image(500 + number, 20 * SECOND, "storm")
        waits = thread_time(fork, wire.STATE_BLOCKED, wire.CONTEXT_OTHER, MS, reason="io")
        activities += [times(21, waits), replaced(fork, 21)]

    report = report_of(activities)

    assert named(report)[3:] == ["3 more processes of drizzle", "5 more processes of storm"]
    assert sum(row.time_ns for row in report.off_cpu) == 11 * 9 * MS


def test_of_very_many_services_some_are_one(monkeypatch):
    """Names come from others: not even they can fill the memory."""
    monkeypatch.setattr(module, "_MAX_SERVICES", 2)
    activities = [capture()]
    for number in range(13):
        process = image(100 + number, SECOND, f"job-{number}")
        activities.append(snapshot(2, calls(process, "cudaMalloc", [US] * CALLS)))

    report = report_of(activities)

    crowds = [process for process in report.processes if process.process.pid == OTHER_PROCESSES_PID]
    assert [process_name(process.process) for process in crowds] == [
        "1 more process of job-3",
        "1 more process of job-4",
        "8 more processes of other services",
    ]
    assert sum(row.calls for row in report.apis) == 13 * CALLS

"""What a writer keeps of processes: how much at most, and that it goes with them."""

import pytest

from otel_gpu import wire
from otel_gpu.enrich.activities import CountersActivity, DeviceIdentity
from otel_gpu.probe_table import Api
from otel_gpu.store import names, processes, readings
from otel_gpu.store.recorder import open_writer
from tests.activities import (
    SECOND,
    T0,
    call,
    call_stack,
    calls,
    capture,
    counters,
    ended,
    image,
    snapshot,
    stall,
    thread_time,
    times,
)
from tests.unit.store.stores import ask

MS = 1_000_000
TRAINER = image(42)
GRACE_S = processes.GRACE_NS / SECOND


@pytest.fixture
def writer(tmp_path):
    with open_writer(tmp_path / "store.db", live=False) as writer:
        writer.observe(capture())
        yield writer


@pytest.fixture
def asked(writer, tmp_path):
    """Asks what is in the file, after the writer has ended."""

    def ask_later(sql):
        writer.close()
        return ask(tmp_path / "store.db", sql)

    return ask_later


def gpu(number):
    return DeviceIdentity(0, f"uuid-{number}", "H100")


def kept(writer):
    return writer._names.processes


def see(writer, *activities):
    for activity in activities:
        writer.observe(activity)


def work(number, at_s, counted=3, of=image):
    process = of(number)
    return [
        snapshot(at_s, calls(process, "cudaMalloc", [5] * counted)),
        times(at_s, thread_time(process, wire.STATE_ON_CPU, wire.CONTEXT_GAP, counted * MS)),
    ]


COUNTED = "SELECT sum(count), count(DISTINCT series) FROM aggregates"
ACCOUNTED = "SELECT sum(time_ns) FROM thread_times"
PROCESSES = "SELECT count(*), count(end_unix_ns) FROM processes"


def test_what_is_kept_of_a_process_goes_a_little_after_its_end(writer, asked):
    """Its number is left, so that a late record finds the same row, and so is how it ended."""
    see(writer, *work(7, 10), ended(image(7), 10), counters(10), counters(10 + GRACE_S))
    assert [process.number for process in kept(writer)] == [1]

    see(writer, counters(10 + GRACE_S + 1))
    assert list(kept(writer)) == []
    assert len(kept(writer)._ended) == kept(writer)._count == 0
    assert len(kept(writer)._numbers) == 1

    see(writer, call(image(7), "cudaMalloc", 9 * SECOND, MS))
    assert asked(PROCESSES) == [(1, 1)]


def test_last_readings_within_the_grace_count(writer, asked):
    """Some tell them after the end."""
    see(writer, counters(10), *work(7, 10), ended(image(7), 10), counters(11), *work(7, 12, 8))

    assert asked(COUNTED) == [(8, 1)]
    assert asked(ACCOUNTED) == [(8 * MS,)]
    assert writer.lost() == {}


def test_readings_after_the_grace_are_lost_and_not_counted_twice(writer, asked):
    """What had been counted by then is not known any more."""
    see(writer, *work(7, 10), ended(image(7), 10), counters(11), counters(30), *work(7, 31))

    assert writer.lost() == {"process_not_followed": 2}
    assert asked(COUNTED) == [(3, 1)]
    assert asked(ACCOUNTED) == [(3 * MS,)]


def test_a_clock_that_is_set_back_keeps_nobody(writer):
    """Only how far it moved counts."""
    see(writer, ended(image(7), 4_000), counters(4_000), ended(image(8), 10), counters(10))
    assert [process.image.pid for process in kept(writer)] == [8]
    see(writer, counters(20))

    assert list(kept(writer)) == []


def test_a_new_capture_begins_without_the_processes_of_the_one_before(writer):
    """Its kernel side counts from nothing."""
    see(writer, *work(7, 10), ended(image(8), 10), capture(unix_ns=T0 + 20 * SECOND))

    assert list(kept(writer)) == []
    assert (kept(writer)._count, len(kept(writer)._ended), len(kept(writer)._numbers)) == (0, 0, 0)


def test_processes_are_bounded_where_no_end_is_told(writer, asked, monkeypatch):
    """Who was silent for longest makes room, and is not counted twice when it is heard of again."""
    monkeypatch.setattr(processes, "MAX_PROCESSES", 101)
    for number in range(1_009):
        see(writer, *work(1_000 + number, 10 + number / 100))
        assert len(list(kept(writer))) <= 101
        assert kept(writer)._count <= 202
    assert writer.lost() == {}

    see(writer, *work(1_000, 30))
    assert writer.lost() == {"process_not_followed": 2}
    assert asked(COUNTED) == [(3 * 1_009, 1_009)]
    assert asked(PROCESSES) == [(1_009, 0)]


def test_ended_processes_are_bounded_in_a_burst(writer, asked, monkeypatch):
    """Ten thousand ends in one second are no ten thousand processes in memory."""
    monkeypatch.setattr(processes, "MAX_ENDED", 53)
    see(writer, counters(10), *work(42, 10))
    for number in range(1_009):
        see(writer, *work(1_000 + number, 10), ended(image(1_000 + number), 10))
        assert len(list(kept(writer))) <= 55

    assert writer.lost() == {}
    assert asked(COUNTED) == [(3 * 1_010, 1_010)]
    assert asked(PROCESSES) == [(1_010, 1_009)]


def test_numbers_of_the_gone_are_bounded(writer, monkeypatch):
    """Late records of long ago get another row."""
    monkeypatch.setattr(processes, "MAX_NUMBERS", 31)
    for number in range(503):
        see(writer, ended(image(1_000 + number), 10), counters(10 + 7 * number))
        assert len(list(kept(writer))) <= 2

    assert len(kept(writer)._numbers) == 31


def test_series_make_room_of_processes_that_are_silent(writer, asked, monkeypatch):
    """Each was counted exactly by then."""
    monkeypatch.setattr(processes, "MAX_FOLLOWED", 10)
    for number in range(101):
        see(writer, *work(1_000 + number, 10 + number))
        assert kept(writer)._count <= 10

    assert writer.lost() == {}
    assert asked(COUNTED) == [(303, 101)]


def test_many_ways_to_spend_time_are_bounded(writer, monkeypatch):
    """A broken recording has as many states as it likes."""
    monkeypatch.setattr(processes, "MAX_FOLLOWED", 10)
    see(writer, times(10, *(thread_time(TRAINER, state, 0, 5) for state in range(97))))

    assert len(next(iter(kept(writer))).times) == 10
    assert writer.lost() == {"too_many_series": 87}


@pytest.mark.parametrize("keeper", ["_devices", "_stacks", "_apis"])
def test_names_of_other_things_are_bounded(writer, asked, monkeypatch, keeper):
    """The latest are remembered; what is named again has another row."""
    monkeypatch.setattr(names, "MAX_NAMES", 29)
    for number in range(211):
        api = Api(5_000 + number, f"cuNew{number}", wire.LAYER_DRIVER, wire.FAMILY_OTHER)
        see(
            writer,
            call(TRAINER, "cudaMalloc", SECOND, MS, stack=call_stack(number))._replace(api=api),
            stall(TRAINER, 1, 2, 3, functions=(f"f{number}",), reason="io"),
            snapshot(10, calls(TRAINER, "cudaMalloc", [5] * (1 + number), device=gpu(number))),
        )
        assert len(getattr(writer._names, keeper)) <= 29

    assert asked("SELECT count(*) FROM stacks") == [(2 * 211,)]
    assert asked("SELECT count(*) FROM apis WHERE api >= 5000") == [(211,)]
    assert asked("SELECT count(*) FROM devices") == [(211,)]


def test_counters_are_bounded(writer, asked, monkeypatch):
    """Only a broken recording has more than there are; none of them is left out."""
    monkeypatch.setattr(readings, "MAX_COUNTERS", 17)
    for second in (10, 11):
        many = {f"counter_{number}": 5 for number in range(101)}
        see(writer, CountersActivity(T0 + second * SECOND, many))

    assert len(writer._readings._counters) == 17
    assert asked("SELECT count(*), count(DISTINCT name) FROM counters") == [(185, 101)]

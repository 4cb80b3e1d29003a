"""What a writer keeps of processes: how much at most, and that it goes with them."""

import pytest

from otel_gpu import wire
from otel_gpu.enrich.activities import CountersActivity
from otel_gpu.enrich.identity.identities import DeviceIdentity
from otel_gpu.recorder import names, processes
from otel_gpu.recorder.recorder import open_writer
from otel_gpu.recorder.rows import readings
from otel_gpu.state import time_accounting
from otel_gpu.wire.probe_table import API_BY_NUMBER, Api
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
from tests.unit.recorder.stores import ask

MS = 1_000_000
TRAINER = image(42)


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
    return list(writer._names.processes.values())


def gone(writer):
    return writer._names.processes._gone


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


def test_last_readings_after_the_end_count(writer, asked):
    """Some are made after it."""
    see(writer, *work(7, 10), ended(image(7), 10), counters(11), *work(7, 12, 8))

    assert asked(COUNTED) == [(8, 1)]
    assert asked(ACCOUNTED) == [(8 * MS,)]
    assert writer.lost() == {}


def test_what_is_kept_of_ended_processes_is_bounded(writer, asked, monkeypatch):
    """Ten thousand ends in one second are no ten thousand processes in memory."""
    monkeypatch.setattr(processes, "MAX_ENDED", 53)
    see(writer, capture(), *work(42, 10))
    for number in range(1_009):
        see(writer, *work(1_000 + number, 10), ended(image(1_000 + number), 10))
        assert len(kept(writer)) <= 55

    assert writer.lost() == {}
    assert asked(COUNTED) == [(3 * 1_010, 1_010)]
    assert asked(PROCESSES) == [(1_010, 1_009)]


def test_readings_of_what_is_not_kept_are_lost_and_not_counted_twice(writer, asked, monkeypatch):
    """What had been counted by then is not known any more; its number is, and how it ended."""
    monkeypatch.setattr(processes, "MAX_ENDED", 1)
    see(writer, capture(), *work(7, 10), ended(image(7), 10), *work(8, 11), ended(image(8), 11))
    assert [process.process.pid for process in kept(writer)] == [8]

    see(writer, *work(7, 12), call(image(7), "cudaMalloc", 9 * SECOND, MS))

    assert writer.lost() == {"process_not_followed": 2}
    assert asked(COUNTED) == [(6, 2)]
    assert asked(ACCOUNTED) == [(6 * MS,)]
    assert asked(PROCESSES) == [(2, 2)]


def test_a_new_capture_begins_without_the_processes_of_the_one_before(writer):
    """Its kernel side counts from nothing."""
    see(writer, *work(7, 10), ended(image(8), 10), capture(unix_ns=T0 + 20 * SECOND))

    assert (kept(writer), len(gone(writer))) == ([], 0)


def test_processes_are_bounded_where_no_end_is_told(writer, asked, monkeypatch):
    """Who was silent for longest makes room, and is not counted twice when it is heard of again."""
    monkeypatch.setattr(processes, "MAX_SERIES", 101)
    see(writer, capture())
    for number in range(1_009):
        see(writer, *work(1_000 + number, 10 + number / 100))
        assert len(kept(writer)) <= 101
    assert writer.lost() == {}

    see(writer, *work(1_000, 30))
    assert writer.lost() == {"process_not_followed": 2}
    assert asked(COUNTED) == [(3 * 1_009, 1_009)]
    assert asked(PROCESSES) == [(1_009, 0)]


def test_numbers_of_the_gone_are_bounded(writer, monkeypatch):
    """Late records of long ago get another row."""
    monkeypatch.setattr(processes, "MAX_NUMBERS", 31)
    monkeypatch.setattr(processes, "MAX_ENDED", 2)
    see(writer, capture())
    for number in range(503):
        see(writer, ended(image(1_000 + number), 10))
        assert len(kept(writer)) <= 2

    assert len(gone(writer)) == 31


def test_many_ways_to_spend_time_are_bounded(writer, monkeypatch):
    """A broken recording has as many states as it likes."""
    monkeypatch.setattr(time_accounting, "MAX_TIMES", 10)
    see(writer, times(10, *(thread_time(TRAINER, state, 0, 5) for state in range(97))))

    assert len(kept(writer)[0].times) == 10
    assert writer.lost() == {"too_many_series": 87}


def test_names_of_other_things_are_bounded(writer, asked, monkeypatch):
    """The latest are remembered; what is named again has another row."""
    monkeypatch.setattr(names, "MAX_NAMES", 29)
    for known in writer._names._known.values():
        known.limit = 29
    for number in range(211):
        api = Api(5_000 + number, f"cuNew{number}", wire.LAYER_DRIVER, wire.FAMILY_OTHER)
        made = call(TRAINER, "cudaMalloc", SECOND, MS, stack=call_stack(number))
        see(
            writer,
            made._replace(api=api, event=made.event._replace(api=api.number)),
            stall(TRAINER, 1, 2, 3, functions=(f"f{number}",), reason="io"),
            snapshot(10, calls(TRAINER, "cudaMalloc", [5] * (1 + number), device=gpu(number))),
        )
        assert max(map(len, (*writer._names._known.values(), *writer._names._of_chunk))) <= 29
        assert len(writer._names.known_apis - set(API_BY_NUMBER)) <= 29

    assert asked("SELECT count(*) FROM stacks") == [(2 * 211,)]
    assert asked("SELECT count(*) FROM apis WHERE api >= 5000") == [(211,)]
    assert asked("SELECT count(*) FROM devices") == [(211,)]


def test_counters_are_bounded(writer, asked, monkeypatch):
    """Only a broken recording has more than there are; none of them is left out."""
    monkeypatch.setattr(readings, "MAX_COUNTERS", 17)
    for second in (10, 11):
        many = {f"counter_{number}": 5 for number in range(101)}
        see(writer, CountersActivity(T0 + second * SECOND, many))

    assert len(writer._readings.counters) == 17
    assert asked("SELECT count(*), count(DISTINCT name) FROM counters") == [(185, 101)]

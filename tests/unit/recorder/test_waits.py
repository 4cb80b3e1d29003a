"""Who kept threads waiting, in a store: kept once, as long as anybody asks, and never believed unseen."""

import sqlite3
from contextlib import closing

import pytest

from otel_gpu import wire
from otel_gpu.enrich.activities import CaptureActivity, TimesActivity, WhoActivity
from otel_gpu.enrich.identity.identities import Culprit, Resource, Who
from otel_gpu.enrich.thread_times import NO_WAIT, Wait
from otel_gpu.recorder import eviction, names
from otel_gpu.recorder.limits import StoreLimits
from otel_gpu.recorder.reader import StoreReader
from otel_gpu.recorder.recorder import open_writer
from tests.activities import SECOND, T0, call, capture, ended, image, thread_time, times
from tests.unit.recorder.stores import MIB, ask, read, without_images, write

MS = 1_000_000
TRAINER = image(42)
BLOCKED = (wire.STATE_BLOCKED, wire.CONTEXT_GAP)
FILE = Resource("file", "/data/part-0.bin", "ext4", "/data")


def woken_by(number, resource=FILE):
    """A wait that one of many ended."""
    who = Culprit(1_000 + number, 0, f"writer-{number}")
    return Wait(number % 90, who, who, wire.STATE_ON_CPU, "", resource)


def account(at_s, ns, waits, process=TRAINER):
    return times(
        at_s,
        *(thread_time(process, *BLOCKED, 0, reason="io", ended_ns=ns + n, wait=wait)
          for n, wait in enumerate(waits)),
    )  # fmt: skip


def hog(pid):
    return WhoActivity(T0 + 10 * SECOND, Who(pid, comm="hog", command=f"hog {pid}"))


def some_calls(first, count, process=TRAINER):
    return [call(process, "cudaMalloc", (20 + n) * MS, MS) for n in range(first, first + count)]


def change(path, *statements):
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def test_a_wait_is_kept_once(tmp_path):
    """However many readings there are, and in however many chunks."""
    waits = [woken_by(number) for number in range(29)]
    activities = [capture(), *(account(10 + n, n * MS, waits) for n in range(1, 20))]
    path = write(tmp_path / "store.db", activities, StoreLimits(batch_rows=7, chunk_rows=60))

    assert ask(path, "SELECT count(*), max(wait) FROM waits") == [(29, 29)]
    assert ask(path, "SELECT count(*), sum(ended_ns) FROM thread_times") == [
        (19 * 29, sum(19 * MS + n for n in range(29)))
    ]


def test_another_writer_gives_other_numbers(tmp_path):
    """What the first one wrote keeps its meaning."""
    path = write(tmp_path / "store.db", [capture(), account(10, MS, [woken_by(1)])])
    write(path, [capture(unix_ns=T0 + 20 * SECOND), account(30, MS, [woken_by(2)])])

    accounts = [one.times for one in read(path) if type(one) is TimesActivity]

    assert [times[-1].wait for times in accounts] == [woken_by(1), woken_by(2)]


def test_waits_that_are_remembered_are_bounded(tmp_path, monkeypatch):
    """What is forgotten has another number next time, and the account is the same."""
    monkeypatch.setattr(names, "MAX_TIMES", 13)
    activities = [capture(), *(account(10 + n, n * MS, map(woken_by, range(41))) for n in (1, 2))]
    with open_writer(tmp_path / "store.db", live=False) as writer:
        for activity in activities:
            writer.observe(activity)
            assert len(writer._names._known["waits"]) <= 13
            assert max(map(len, writer._names._of_chunk)) <= 13

    assert ask(tmp_path / "store.db", "SELECT count(*) FROM waits")[0][0] >= 82
    *_, last = read(tmp_path / "store.db")
    assert sorted(map(without_images, last.times)) == sorted(
        map(without_images, activities[-1].times)
    )


def test_a_window_begins_with_the_account_and_with_who_everybody_is(tmp_path):
    """What was said and counted in chunks before it, in some of them without a change."""
    waits = [NO_WAIT, *(woken_by(number) for number in range(5))]
    activities = [
        capture(),
        hog(7),
        account(10, MS, waits),
        hog(8),
        hog(7),
        *some_calls(0, 500),
        account(200, 2 * MS, waits[:2]),
        account(201, 2 * MS, waits),
    ]
    limits = StoreLimits(batch_rows=20, chunk_span_ns=7 * SECOND)
    path = write(tmp_path / "store.db", activities, limits)

    found = read(path, T0 + 199 * SECOND)

    assert [one for one in found if type(one) is WhoActivity] == [hog(7), hog(8), hog(7)]
    assert type(found[0]) is CaptureActivity
    before, *_, last = [one for one in found if type(one) is TimesActivity]
    assert list(map(without_images, before.times)) == list(map(without_images, activities[2].times))
    assert without_images(last) == without_images(activities[-1])


def test_eviction_forgets_waits_that_no_account_has(tmp_path):
    """A process that lives keeps those that it had, however long ago that was."""
    idle, kept = image(7), [woken_by(number) for number in range(11)]
    activities = [capture(), hog(7), account(10, MS, kept, idle)]
    for number in range(200):
        process = image(1_000 + number, number + 1)
        activities += some_calls(40 * number, 40, process)
        activities.append(account(20 + number, MS, [woken_by(100 + number)], process))
        activities.append(ended(process, 20 + number))
    path = write(
        tmp_path / "store.db", activities, StoreLimits(max_bytes=MIB, batch_rows=50, chunk_rows=100)
    )

    found = read(path)

    assert len(found) < 0.8 * len(activities)
    ((count, others),) = ask(path, "SELECT count(*), sum(wait > 11) FROM waits")
    assert count - others == 11
    assert 5 < others < 180
    assert [one for one in found if type(one) is WhoActivity] == [hog(7)]
    before = next(one for one in found if type(one) is TimesActivity)
    of_idle = {time.wait for time in before.times if time.process.pid == idle.pid}
    assert of_idle == set(kept)
    # At most one of the others lived where the oldest chunk begins.
    assert len(before.times) <= len(kept) + 1
    assert ask(
        path, "SELECT count(*) FROM thread_times WHERE wait NOT IN (SELECT wait FROM waits)"
    ) == [(0,)]


@pytest.mark.parametrize("captures", [1, 2])
def test_who_everybody_is_is_bounded(tmp_path, captures):
    """The latest that were named are remembered, and none of a capture that is gone."""
    activities = [capture(), *map(hog, range(1, 3_000))]
    if captures == 2:
        activities.append(capture(unix_ns=T0 + SECOND))
    activities += some_calls(0, 12_000)
    path = write(
        tmp_path / "store.db",
        activities,
        StoreLimits(max_bytes=MIB, batch_rows=100, chunk_rows=500),
    )

    ((count, most),) = ask(path, "SELECT count(*), max(pid) FROM identities")

    assert (count, most) == ((1_024, 2_999) if captures == 1 else (0, None))
    assert eviction._IDENTITIES == 1_024


@pytest.mark.parametrize(
    ("statement", "wait", "rejected"),
    [
        ("DELETE FROM waits", NO_WAIT, 0),
        ("UPDATE thread_times SET wait = 9223372036854775807", NO_WAIT, 0),
        ("UPDATE waits SET who_comm = printf('%.*c', 5000, 'x')", NO_WAIT, 1),
        ("UPDATE waits SET end_state = 256", NO_WAIT, 1),
        ("UPDATE waits SET api = -1", NO_WAIT, 1),
        ("UPDATE waits SET who_pid = NULL", woken_by(1)._replace(who=None), 0),
        ("UPDATE waits SET end_tid = NULL, end_comm = NULL", woken_by(1)._replace(end=Culprit(1_001, 0, "")), 0),
        *(
            (f"UPDATE waits SET waited_for = '{text}'", woken_by(1, None), 0)
            for text in ("", "{", "[]", "7", "NaN", '{"resource":1,"kind":7}', "[" * 100_000)
        ),
        ("UPDATE waits SET waited_for = printf('%.*c', 300000, 'x')", NO_WAIT, 1),
    ],
)  # fmt: skip
def test_the_time_of_a_wait_that_is_not_known_counts(tmp_path, statement, wait, rejected):
    """Rows of a stranger: what is no wait is none, and the time is that of nobody."""
    path = write(tmp_path / "store.db", [capture(), account(10, MS, [woken_by(1)])])
    change(path, statement)

    with StoreReader(path) as reader:
        (_, found) = reader.activities()
        counted = dict(reader.rejected)

    assert [(time.wait, time.ended_ns) for time in found.times] == [(wait, MS)]
    assert counted == ({"waits": 1} if rejected else {})


def test_what_others_say_about_somebody_has_bounds(tmp_path):
    """A row that is none is counted, and reading goes on."""
    path = write(tmp_path / "store.db", [capture(), hog(7), hog(8), account(10, MS, [NO_WAIT])])
    change(
        path,
        "UPDATE identities SET command = printf('%.*c', 5000, 'x') WHERE pid = 7",
        "INSERT INTO connections VALUES (99, 1, '{\"kind\":7}', 2)",
        "UPDATE chunks SET last_seq = 99",
        "UPDATE batches SET last_seq = 99",
    )

    with StoreReader(path) as reader:
        _, *found = reader.activities()
        counted = dict(reader.rejected)

    assert [type(one) for one in found] == [WhoActivity, TimesActivity]
    assert counted == {"identities": 1, "connections": 1}


def test_names_that_sqlite_cannot_hold_are_mended(tmp_path):
    """Half a surrogate pair is a question mark."""
    wait = Wait(0, Culprit(7, 0, "x\ud800"), None, wire.STATE_NONE, "", None)
    who = WhoActivity(T0, Who(7, comm="\udfff", command="y" * 5_000))
    path = write(tmp_path / "store.db", [capture(), who, account(10, MS, [wait])])

    assert ask(path, "SELECT who_comm FROM waits") == [("x?",)]
    assert ask(path, "SELECT comm, length(command) FROM identities") == [("?", 4_096)]

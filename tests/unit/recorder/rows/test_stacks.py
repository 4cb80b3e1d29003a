"""Stacks of programs in a store: kept once, asked for in SQL, and never believed unseen."""

import json
import sqlite3
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_gpu.enrich.activities import CallActivity
from otel_gpu.enrich.stack_table import find_place
from otel_gpu.enrich.stack_text import stack_id_text
from otel_gpu.recorder import dictionary
from otel_gpu.recorder.files import open_reading
from otel_gpu.recorder.limits import StoreLimits
from otel_gpu.recorder.pages import Pages
from otel_gpu.recorder.reader import StoreReader
from otel_gpu.recorder.recorder import open_writer
from otel_gpu.recorder.rows.stacks import read_stack, stack_columns
from otel_gpu.recorder.tables.columns import MAX_JSON
from otel_gpu.wire.frames import Frame
from tests.activities import SECOND, call, call_stack, capture, image, open_call, sample, stall
from tests.unit.recorder.stores import MIB, ask, read, without_images, write
from tests.unit.report.samples import preempted, with_stacks

MS = 1_000_000
TRAINER = image(42)
STACK = call_stack()
LAST_ID = (1 << 64) - 1
WAITING = call_stack(
    LAST_ID,
    (
        Frame("native", "pthread_mutex_lock", module="libc.so.6", address=0x91F0),
        Frame("cpython", "Queue.get", "/app/loader.py", 30),
        Frame("cut", "5 frames left out"),
        Frame("cpython", "naïve ☃", "/app/\U0001f600.py", 7),
    ),
    complete=False,
)


def with_stack():
    """A call, a call that hangs and a wait, each with a stack; and one without."""
    return [
        capture(),
        call(TRAINER, "cudaMalloc", SECOND, MS, stack=STACK),
        call(TRAINER, "cudaMalloc", 2 * SECOND, 2 * MS, stack=STACK),
        call(TRAINER, "cudaFree", 3 * SECOND, 4 * MS),
        stall(
            TRAINER, 4 * SECOND, 4 * SECOND + 8 * MS, 4 * SECOND + 9 * MS, reason="lock",
            stack=WAITING, flags=4,
        ),
        open_call(TRAINER, "cudaStreamSynchronize", 5 * SECOND, 6 * SECOND, stack=STACK),
    ]  # fmt: skip


def test_stacks_are_read_back(tmp_path):
    """Every frame, how it was found, and where in the program it was; ids have 64 bits."""
    written = with_stack()

    found = read(write(tmp_path / "store.db", written))

    assert list(map(without_images, found)) == list(map(without_images, written))
    assert found[4].stack.place == Frame("cpython", "Queue.get", "/app/loader.py", 30)


def test_a_stack_is_kept_once(tmp_path):
    """However many calls were made there."""
    calls = [call(TRAINER, "cudaMalloc", n * MS, MS, stack=STACK) for n in range(1, 998)]
    path = write(tmp_path / "store.db", [capture(), *calls], StoreLimits(batch_rows=50))

    assert ask(path, "SELECT count(*) FROM stacks") == [(1,)]
    assert {activity.stack for activity in read(path)[1:]} == {STACK}


def test_which_line_is_a_question_in_sql(tmp_path):
    """The line with the time it cost, and the id that leads to the whole stack, and to spans."""
    path = write(tmp_path / "store.db", with_stack())
    by_line = (
        "SELECT place, stack_id, count(*), sum(duration_ms) FROM v_calls "
        "GROUP BY place ORDER BY 4 DESC"
    )

    assert ask(path, by_line) == [
        ("", "", 1, 4.0),
        ("train.py:74 fragmentation_pattern", "9c1fb4e17d2a6b03", 2, 3.0),
    ]
    assert ask(path, "SELECT place, stack_id, reason, cpu_was_idle FROM v_stalls") == [
        ("loader.py:30 Queue.get", "f" * 16, "lock", 1)
    ]
    assert ask(path, "SELECT place, stack_id FROM v_open_calls") == [
        ("train.py:74 fragmentation_pattern", "9c1fb4e17d2a6b03")
    ]
    whole = (
        "SELECT f.value ->> 1, f.value ->> 3 FROM stacks s, json_each(s.frames, '$.frames') f "
        "WHERE s.id = '9c1fb4e17d2a6b03'"
    )
    assert ask(path, whole) == [
        ("cudaMalloc", 0),
        ("at::native::empty_cuda", 0),
        ("fragmentation_pattern", 74),
        ("<module>", 102),
    ]


def test_chains_and_their_evidence_have_stacks(tmp_path):
    """Where the call was made, and where its thread waited."""
    chain = with_stacks(preempted(TRAINER, SECOND))
    path = tmp_path / "store.db"
    writer_input = [capture(), call(TRAINER, "cudaLaunchKernel", SECOND, 10 * MS, stack=STACK)]
    write(path, writer_input)

    with open_writer(path, live=False) as writer:
        writer.observe_chain(chain)

    stacks = [chain.effect.stack, *(e.stack for cause in chain.causes for e in cause.evidence)]
    assert any(stacks[1:])
    kept = (
        "SELECT 0, 0, s.id FROM chains LEFT JOIN stacks s ON s.stack = program_stack "
        "UNION ALL SELECT cause, evidence + 1, s.id FROM evidence JOIN causes USING (seq, cause) "
        "LEFT JOIN stacks s ON s.stack = program_stack WHERE parent IS NULL ORDER BY 1, 2"
    )
    assert [name for *_, name in ask(path, kept)] == [
        None if stack is None else stack_id_text(stack.id) for stack in stacks
    ]
    assert ask(path, "SELECT place FROM v_chains") == [("train.py:74 fragmentation_pattern",)]


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("x" * 300, 257),
        ("x" * 9_000, 64),
        # Each takes twelve letters of JSON.
        ("\U0001f600" * 9_000, 3),
    ],
)
def test_a_stack_that_is_too_large_loses_its_middle(text, most):
    """What can be read back is written: a document has an end, and frames have one too."""
    frames = tuple(Frame("cpython", text, text, n, text) for n in range(1, 258))

    stack_id, place, document = stack_columns(call_stack(1, frames))

    assert (stack_id, len(document) <= MAX_JSON) == ("0" * 15 + "1", True)
    assert len(place) <= 4_096
    found = read_stack(document)
    assert len(found.frames) == most
    kept = {frame.function for frame in found.frames if frame.kind == "cpython"}
    assert kept == {text[:513]}
    assert (most == 257) != any(frame.kind == "cut" for frame in found.frames)


def document(**changes):
    """A stack as it is kept, but for these fields."""
    found = json.loads(stack_columns(STACK)[2])
    return json.dumps({**found, **changes})


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "null", "[]", "7", '"x"', "{}", "[" * 200_000, '{"a":' * 200_000),
        *("NaN", document(stack=0), document(stack=-1), document(stack=1 << 64)),
        *(document(stack="1"), document(stack=True), document(stack=1.0), document(stack=None)),
        *(document(complete=1), document(complete=None), document(native="guessed")),
        *(document(native=["eh_frame"]), document(python=None), document(frames={})),
        *(document(frames=None), document(frames=[7]), document(frames=[[]])),
        document(frames=[["native", "f", "", 0, "m"]]),
        document(frames=[["native", "f", "", 0, "m", 0, 0]]),
        document(frames=[["alien", "f", "", 0, "m", 0]]),
        document(frames=[["native", "f", "", True, "m", 0]]),
        document(frames=[["native", "f", "", 0, "m", 0.5]]),
        document(frames=[["native", "f", "", 0, "m", -1]]),
        document(frames=[["native", "f", "", 1 << 31, "m", 0]]),
        document(frames=[["native", "f", "", 0, "m", 1 << 64]]),
        document(frames=[["native", "f" * 514, "", 0, "m", 0]]),
        document(frames=[["native", "\ud800", "", 0, "m", 0]]),
        document(frames=[["native", ["f"], "", 0, "m", 0]]),
        document(frames=[["native", "f", "", 0, "m", 0]] * 258),
        document(frames=[[[[[["f"]]]]]]),
        document(stack=int("9" * 4_000)),
    ],
)
def test_what_is_no_stack_is_counted(tmp_path, text):
    """Wrong types, wrong numbers, too much of anything: the call is told without its stack."""
    path = write(tmp_path / "store.db", with_stack()[:2])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE stacks SET frames = ?", (text,))
        connection.commit()

    with StoreReader(path) as reader:
        (call_activity,) = [a for a in reader.activities() if isinstance(a, CallActivity)]
        rejected = dict(reader.rejected)

    assert call_activity.stack is None
    assert rejected == {"stacks": 1}


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE stacks SET frames = CAST(x'7bff22' AS TEXT)",
        "UPDATE stacks SET frames = printf('%.*c', 300000, 'x')",
        "UPDATE stacks SET place = CAST(x'fffe' AS TEXT)",
        "UPDATE stacks SET id = CAST(x'ff' AS TEXT), kind = ''",
        "UPDATE calls SET program_stack = 12345",
        "UPDATE calls SET program_stack = -1",
        "UPDATE calls SET program_stack = NULL",
        "DELETE FROM stacks",
    ],
)
def test_no_value_in_the_table_stops_a_reader(tmp_path, change):
    """Bad UTF-8, a document beyond its bounds, a row that is not there."""
    path = write(tmp_path / "store.db", with_stack()[:2])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(change)
        connection.commit()

    with StoreReader(path) as reader:
        found = list(reader.activities())
        rejected = sum(reader.rejected.values())

    stacks = [activity.stack for activity in found if isinstance(activity, CallActivity)]
    is_told = stacks == [STACK]
    is_known = change.endswith("NULL") or change.startswith("DELETE") or "12345" in change
    assert is_told or stacks == [None] or (stacks == [] and rejected == 1)
    assert (rejected == 0) == (is_told or is_known)


json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 70), 1 << 70),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["native", "cpython", "cut", "eh_frame", "ok", "\ud83d"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=7),
        st.dictionaries(st.sampled_from(["stack", "frames", "complete", "x"]), inner, max_size=4),
    ),
    max_leaves=20,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.dictionaries(st.sampled_from(list(json.loads(document()))), json_values))
def test_any_document_is_a_stack_or_none(changes):
    """And if it is one, it can be written again."""
    text = document(**changes)
    try:
        found = read_stack(text)
    except ValueError:
        return
    assert read_stack(stack_columns(found)[2]) == found
    assert found.place == find_place(found.frames)
    repr(found).encode("utf-8")


def test_a_made_up_store_does_not_say_how_much_is_remembered(tmp_path, monkeypatch):
    """Of stacks as large as they may be, only so many are held at a time."""
    stacks = [call_stack(n, (Frame("cpython", "f" * 500, "/app/f.py", n),)) for n in range(1, 30)]
    calls = [call(TRAINER, "cudaMalloc", n * MS, MS, stack=s) for n, s in enumerate(stacks, 1)]
    path = write(tmp_path / "store.db", [capture(), *calls])
    monkeypatch.setattr(dictionary, "_MAX_STACK_CHARACTERS", 2_000)

    with closing(open_reading(path)) as connection:
        known = dictionary.Dictionary(Pages(connection, path))
        held = []
        for (number,) in connection.execute("SELECT stack FROM stacks").fetchall():
            assert known.program_stack(number) in stacks
            held.append(known.program_stack.cache_info().currsize)

    assert len(held) == len(stacks)
    assert max(held) < 5


def test_large_stacks_do_not_break_the_size_limit(tmp_path):
    """
    A different one with each call takes ten times the room of the call: nothing is lost for
    that, and the store stays as small as it was told to.
    """

    def deep(number):
        names = (f"function_{number}_{depth}" for depth in range(60))
        return call_stack(
            number, tuple(Frame("cpython", name, "/app/some/folder/train.py", 9) for name in names)
        )

    path, sizes = tmp_path / "store.db", []
    log = path.with_name(f"{path.name}-wal")

    with open_writer(path, StoreLimits(max_bytes=4 * MIB, batch_rows=500), live=False) as writer:
        writer.observe(capture())
        for number in range(1, 1_502):
            writer.observe(call(TRAINER, "cudaMalloc", (20 + number) * MS, MS, stack=deep(number)))
            if number % 50 == 0:
                sizes.append(path.stat().st_size + log.stat().st_size)
        assert writer.close()
        assert writer.lost() == {}

    assert max(sizes) <= 4 * MIB
    found = read(path)
    assert found[-1].stack == deep(1_501)
    assert None not in {activity.stack for activity in found[1:]}
    # Those of calls that are gone are gone as well.
    assert ask(path, "SELECT count(*) FROM stacks")[0][0] <= 2 * len(found)


def test_samples_of_the_same_stacks_take_next_to_nothing(tmp_path):
    """A minute of a busy CPU at 99 Hz, in two places: each stack is kept once, a sample is a row."""
    ticks = range(6_000)
    written = [
        capture(),
        *(
            sample(TRAINER, n * 10 * MS, functions=("copy_page",), stack=(STACK, WAITING)[n % 2])
            for n in ticks
        ),
    ]
    path = write(tmp_path / "store.db", written)

    assert list(map(without_images, read(path))) == list(map(without_images, written))
    assert ask(path, "SELECT kind, count(*) FROM stacks GROUP BY kind") == [
        ("kernel", 1),
        ("program", 2),
    ]
    empty = write(tmp_path / "empty.db", written[:1])
    assert (path.stat().st_size - empty.stat().st_size) / len(ticks) < 120


def test_many_places_are_kept_once_each(tmp_path):
    """A program that is seen in ten thousand, again and again, in chunk after chunk."""
    frames = [(Frame("cpython", f"f{n}", "/a.py", 1),) for n in range(10_000)]
    places = [call_stack(1 + n, one) for n, one in enumerate(frames)]
    seen = [sample(TRAINER, n * MS, stack=places[n % 10_000]) for n in range(30_000)]

    path = write(tmp_path / "store.db", [capture(), *seen], StoreLimits(chunk_rows=4_000))

    assert ask(path, "SELECT count(*), count(DISTINCT id) FROM stacks") == [(10_000, 10_000)]
    assert ask(path, "SELECT count(*) FROM samples") == [(30_000,)]


def test_samples_go_with_their_chunks(tmp_path, monkeypatch):
    """And so do the stacks that only they referred to."""
    now = [1_000 * SECOND]
    monkeypatch.setattr("time.time_ns", lambda: now[0])
    places = [call_stack(n, (Frame("cpython", f"f{n}", "/a.py", 1),)) for n in (1, 2)]
    limits = StoreLimits(max_age_s=60, batch_rows=10, chunk_rows=10)
    with open_writer(tmp_path / "store.db", limits, live=False) as writer:
        writer.observe(capture())
        for number in range(100):
            writer.observe(sample(TRAINER, number * MS, functions=("old",), stack=places[0]))
        now[0] += 61 * SECOND
        for number in range(100, 120):
            writer.observe(sample(TRAINER, number * MS, functions=("new",), stack=places[1]))

    path = tmp_path / "store.db"
    assert ask(path, "SELECT count(*) FROM samples") == [(20,)]
    assert ask(path, "SELECT kind, place, frames FROM stacks WHERE kind = 'kernel'") == [
        ("kernel", "", '["new"]')
    ]
    assert ask(path, "SELECT place FROM stacks WHERE kind = 'program'") == [("a.py:1 f2",)]

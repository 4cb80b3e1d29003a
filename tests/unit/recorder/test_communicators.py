"""How far ranks are, kept in a store: for any window, for SQL, and when it is full."""

import json
import sqlite3

import pytest

from otel_gpu import wire
from otel_gpu.enrich.activities import CommunicatorActivity
from otel_gpu.explain.explainer import Explainer
from otel_gpu.recorder.limits import StoreLimits
from otel_gpu.recorder.reader import StoreReader
from otel_gpu.report.collector import Collector
from otel_gpu.report.document import Window
from otel_gpu.report.json_form import make_document
from otel_gpu.wire.communicators import QueuedCollective, Signature
from tests.activities import H100, SECOND, T0, call, capture
from tests.communicator_activities import ALL_REDUCE, ID, RECENT, collectives, ranks, reading
from tests.unit.explain.nccl.test_collectives import hanging
from tests.unit.recorder.stores import ask, read, write

WORLD = ranks(4)
OTHER = Signature(wire.COLLECTIVE_BROADCAST, 77, 2, 255, 3)


def training(seconds=60, late=3):
    """Four ranks that do 40 collectives in a second, one of them always a bit late."""
    yield capture()
    for at_s in range(1, seconds):
        for rank, process in enumerate(WORLD):
            made = [
                QueuedCollective(
                    n + 1,
                    SECOND + n * SECOND // 40 + (rank == late) * 5_000_000,
                    OTHER if n % 10 == 9 else ALL_REDUCE,
                )
                for n in range((at_s - 1) * 40)
            ]
            yield reading(
                process,
                at_s,
                made,
                handle=((1 << 63) + 7, rank),
                device=H100,
                completed=max(0, len(made) - 1),
                waited_ns=len(made) * 1_000_000,
                identity=(1 << 63) + 11,
                rank=rank,
                operations={1: (len(made), 8 * len(made)), 9: (3, 5)} if made else {},
            )
        yield call(WORLD[0], "cudaLaunchKernel", at_s * SECOND, 5_000)


def rows_of(activities, window):
    collector = Collector(Explainer(), window=window)
    for activity in activities:
        collector.observe(activity)
    return make_document(collector.finish("a capture"))["communicators"]


def of_ranks(activities):
    return [one for one in activities if isinstance(one, CommunicatorActivity)]


def as_read(one):
    """An activity without its process, which is another object with the same name."""
    return one.process.pid, *one[:1], *one[2:]


def test_what_is_written_is_read_back(tmp_path):
    """Every figure, handles and ids of all 64 bits, and the latest calls, also across chunks."""
    limits = StoreLimits(batch_rows=7, chunk_span_ns=20 * SECOND)
    path = write(tmp_path / "store.db", training(), limits)

    found = of_ranks(read(path))

    assert list(map(as_read, found)) == list(map(as_read, of_ranks(training())))
    assert len(found[-1].communicator.recent) == RECENT


@pytest.mark.parametrize(
    "window",
    [
        Window(),
        Window(T0 + 45 * SECOND, None),
        Window(T0 + 25 * SECOND, T0 + 50 * SECOND),
    ],
    ids=["all", "late", "middle"],
)
def test_a_window_of_a_store_has_what_that_of_a_recording_has(tmp_path, window):
    """Numbers, counts and bytes; who waited how long is as near as one reading is."""
    limits = StoreLimits(batch_rows=7, chunk_span_ns=10 * SECOND)
    path = write(tmp_path / "store.db", training(), limits)

    (found,), (expected,) = (
        rows_of(stream, window) for stream in (read(path, *window), training())
    )

    for one, other in zip(found["ranks"], expected["ranks"], strict=True):
        for name in ("waited_for_others_ns", "kept_others_waiting_ns"):
            assert one.pop(name) == pytest.approx(other.pop(name), rel=0.1, abs=2 * 10**8)
    assert found == expected
    assert ask(path, "SELECT count(*) > 3 FROM chunks") == [(1,)]


def test_a_hang_is_known_long_after_it_was_last_read(tmp_path):
    """Only what changes is read: what stands still comes from before the window."""
    limits = StoreLimits(batch_rows=7, chunk_span_ns=2 * SECOND)
    path = write(tmp_path / "store.db", [capture(), *hanging([5, 5, 4, 5])], limits)
    window = Window(T0 + 115 * SECOND, None)

    (found,) = rows_of(read(path, *window), window)

    assert (found["state"], found["number"]) == ("rank_missing", 5)
    assert [one["called"] for one in found["ranks"]] == [5, 5, 4, 5]


def test_calls_that_were_written_are_not_written_again(tmp_path):
    """A reading has what is new; in each chunk the first one has all that is known."""
    made = collectives([at * SECOND // 10 for at in range(1, 40)])
    readings = [reading(WORLD[0], 10 + n, made[:n]) for n in range(20, 40)]
    path = write(tmp_path / "store.db", [capture(), *readings])

    found = [
        len(json.loads(text).get("calls", ()))
        for (text,) in ask(path, "SELECT calls FROM communicator_readings ORDER BY seq")
    ]

    assert found == [RECENT, *[1] * 19]


def test_figures_can_be_asked_for_in_sql(tmp_path):
    """Who is behind, by the last reading of each rank, and what was called."""
    path = write(tmp_path / "store.db", [capture(), *hanging([5, 5, 4, 5])])

    assert ask(
        path,
        "SELECT communicator, rank, called, pending FROM v_communicators ORDER BY rank",
    ) == [(f"{ID:016x}", rank, called, called - 4) for rank, called in enumerate([5, 5, 4, 5])]
    behind = """
        SELECT rank, pid, most - called AS behind FROM (
          SELECT *, max(called) OVER (PARTITION BY communicator) AS most FROM v_communicators
          WHERE seq IN (SELECT max(seq) FROM v_communicators GROUP BY communicator, rank))
        WHERE called < most
    """
    assert ask(path, behind) == [(2, 1002, 1)]
    assert ask(path, "SELECT rank, operation, calls, bytes FROM v_collectives ORDER BY rank") == [
        (rank, "all_reduce", called, called * 4096) for rank, called in enumerate([5, 5, 4, 5])
    ]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("calls", '{"offset_ns":0,"signatures":[[1,2,3,4]],"calls":[[1,2,0]]}'),
        ("calls", '{"offset_ns":0,"signatures":[],"calls":[[1,2,7]]}'),
        ("calls", '{"calls":[[1,2,3]]}'),
        ("calls", '{"offset_ns":1e99,"signatures":[],"calls":[]}'),
        ("calls", '{"offset_ns":0,"signatures":[[1,2,3,4,5]],"calls":[[-1,2,0]]}'),
        ("calls", '{"offset_ns":0,"signatures":[[1,2,3,4,5]],"calls":[[true,2,0]]}'),
        ("calls", "[]"),
        ("calls", '"'),
        ("operations", '{"x":[1,2]}'),
        ("operations", '{"1":[1]}'),
        ("operations", '{"1":[-1,2]}'),
        ("operations", '{"1":5}'),
        ("called", -1),
        ("communicator", "no id"),
        ("communicator", "f" * 17),
        ("rank", 1 << 40),
    ],
)
def test_rows_of_strangers_are_refused(tmp_path, column, value):
    """Each that makes no sense is counted, and the others are read."""
    path = write(
        tmp_path / "store.db",
        [
            capture(),
            *(reading(one, 10, collectives([1, 2]), rank=n) for n, one in enumerate(WORLD)),
        ],
    )
    with sqlite3.connect(path) as connection:
        connection.execute(
            f"UPDATE communicator_readings SET {column} = ? WHERE rank = 1", (value,)
        )
    connection.close()

    with StoreReader(path) as reader:
        found = of_ranks(reader.activities(None, None))
        rejected = sum(reader.rejected.values())

    assert ([one.communicator.rank for one in found], rejected) == ([0, 2, 3], 1)

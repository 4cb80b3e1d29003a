"""Rows that others refer to: bounded while they wait, and none is written twice."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.recorder.batch import PendingRows
from otel_gpu.recorder.losses import RowLoss

ROW_BYTES = 160


def test_the_latest_row_of_a_key_counts():
    """A process that is told anew takes the place of what was told before."""
    pending = PendingRows(10_000, Counter())
    pending.add("processes", 1, (1, "python3"))
    pending.add("processes", 2, (2, "x"))
    pending.add("processes", 1, (1, "trainer"))

    assert sorted(pending) == [("processes", 1, (1, "trainer")), ("processes", 2, (2, "x"))]
    assert pending.bytes == 2 * ROW_BYTES + len("trainer") + len("x")


def test_beyond_the_bound_the_oldest_of_the_largest_table_goes():
    """A disk that is full for hours does not fill the memory with stacks; a capture stays named."""
    pending = PendingRows(10_000, lost := Counter())
    pending.add("captures", 1, (1, "x" * 500))
    for number in range(100):
        pending.add("stacks", number, (number, "y" * 1_000))

    stacks = [key for table, key, _ in pending if table == "stacks"]
    assert stacks == list(range(92, 100))
    assert [key for table, key, _ in pending if table == "captures"] == [1]
    assert pending.bytes == 500 + ROW_BYTES + 8 * (1_000 + ROW_BYTES)
    assert lost == {RowLoss.NAMES_BUSY: 92}


def test_a_row_beyond_the_bound_is_dropped():
    """Alone or not."""
    pending = PendingRows(1_000, lost := Counter())
    pending.add("stacks", 1, (1, "y" * 5_000))

    assert (list(pending), pending.bytes, lost) == ([], 0, {RowLoss.NAMES_BUSY: 1})


def test_a_part_is_taken_and_let_go_of():
    """What is not written stays; what is told anew meanwhile is another row."""
    pending = PendingRows(100_000, Counter())
    for number in range(7):
        pending.add("stacks", number, (number, "y" * 840))

    part, part_bytes = pending.part(2_500)

    assert (part, part_bytes) == ({"stacks": {n: (n, "y" * 840) for n in (0, 1)}}, 2_000)
    pending.remove(part)
    assert [key for _, key, _ in pending] == [2, 3, 4, 5, 6]
    assert pending.bytes == 5_000


def test_the_first_row_of_a_part_is_never_too_large():
    """Or nothing behind it would ever be written."""
    pending = PendingRows(100_000, Counter())
    pending.add("stacks", 1, (1, "y" * 5_000))

    assert pending.part(10)[0] == {"stacks": {1: (1, "y" * 5_000)}}


operations = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.text(max_size=400)), max_size=60
)


@given(operations, st.integers(0, 3_000))
def test_the_bound_holds_and_the_sum_is_right(given_rows, most_bytes):
    """Whatever comes, and in whatever pieces it goes."""
    pending = PendingRows(most_bytes, Counter())
    for table, key, text in given_rows:
        pending.add(table, key, (key, text, None))
        assert pending.bytes <= most_bytes
        assert pending.bytes == sum(ROW_BYTES + len(row[1]) for _, _, row in pending)

    waiting = {(table, key): row for table, key, row in pending}
    written = {}
    while pending.bytes:
        part, _ = pending.part(500)
        for table, rows in part.items():
            for key, row in rows.items():
                assert (table, key) not in written
                written[table, key] = row
        pending.remove(part)

    assert written == waiting

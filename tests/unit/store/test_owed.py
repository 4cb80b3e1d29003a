"""Rows that others refer to: bounded while they wait, and none is written twice."""

from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.store.owed import Owed

ROW_BYTES = 160


def test_the_latest_row_of_a_key_counts():
    """A process that is told anew takes the place of what was told before."""
    owed = Owed(10_000)
    owed.add("processes", 1, (1, "python3"))
    owed.add("processes", 2, (2, "x"))
    owed.add("processes", 1, (1, "trainer"))

    assert sorted(owed) == [("processes", 1, (1, "trainer")), ("processes", 2, (2, "x"))]
    assert owed.bytes == 2 * ROW_BYTES + len("trainer") + len("x")


def test_beyond_the_bound_the_oldest_of_the_largest_table_goes():
    """A disk that is full for hours does not fill the memory with stacks; a capture stays named."""
    owed = Owed(10_000)
    owed.add("captures", 1, (1, "x" * 500))
    for number in range(100):
        owed.add("stacks", number, (number, "y" * 1_000))

    stacks = [key for table, key, _ in owed if table == "stacks"]
    assert stacks == list(range(92, 100))
    assert [key for table, key, _ in owed if table == "captures"] == [1]
    assert owed.bytes == 500 + ROW_BYTES + 8 * (1_000 + ROW_BYTES)
    assert owed.dropped == 92


def test_a_row_beyond_the_bound_is_dropped():
    """Alone or not."""
    owed = Owed(1_000)
    owed.add("stacks", 1, (1, "y" * 5_000))

    assert (list(owed), owed.bytes, owed.dropped) == ([], 0, 1)


def test_a_part_is_taken_and_let_go_of():
    """What is not written stays; what is told anew meanwhile is another row."""
    owed = Owed(100_000)
    for number in range(7):
        owed.add("stacks", number, (number, "y" * 840))

    part, part_bytes = owed.part(2_500)

    assert (part, part_bytes) == ({"stacks": {n: (n, "y" * 840) for n in (0, 1)}}, 2_000)
    owed.remove(part)
    assert [key for _, key, _ in owed] == [2, 3, 4, 5, 6]
    assert owed.bytes == 5_000


def test_the_first_row_of_a_part_is_never_too_large():
    """Or nothing behind it would ever be written."""
    owed = Owed(100_000)
    owed.add("stacks", 1, (1, "y" * 5_000))

    assert owed.part(10)[0] == {"stacks": {1: (1, "y" * 5_000)}}


operations = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.text(max_size=400)), max_size=60
)


@given(operations, st.integers(0, 3_000))
def test_the_bound_holds_and_the_sum_is_right(given_rows, most_bytes):
    """Whatever comes, and in whatever pieces it goes."""
    owed = Owed(most_bytes)
    for table, key, text in given_rows:
        owed.add(table, key, (key, text, None))
        assert owed.bytes <= most_bytes
        assert owed.bytes == sum(ROW_BYTES + len(row[1]) for _, _, row in owed)

    waiting = {(table, key): row for table, key, row in owed}
    written = {}
    while owed.bytes:
        part, _ = owed.part(500)
        for table, rows in part.items():
            for key, row in rows.items():
                assert (table, key) not in written
                written[table, key] = row
        owed.remove(part)

    assert written == waiting

"""From totals to what was added, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu import wire
from otel_gpu.recorder.rows.totals import added_row, bounded, read_aggregate, total_row
from otel_gpu.state.differences import aggregate_with
from otel_gpu.wire.readings import Aggregate

NONE_YET = (1 << 64) - 1


def aggregate(counts, *, total=0, least=NONE_YET, most=0, size_bytes=0):
    buckets = [0] * wire.MAX_BUCKETS
    for number, count in counts.items():
        buckets[number] = count
    return Aggregate(total, least, most, size_bytes, tuple(buckets))


def test_a_reading_says_what_it_added():
    """Count, sum, bytes and buckets since the reading before; extremes where they are new."""
    first = aggregate({40: 2, 41: 1}, total=900, least=200, most=400, size_bytes=64)
    second = aggregate({40: 2, 41: 4}, total=2_100, least=200, most=450, size_bytes=96)

    assert added_row(None, first) == (3, 900, 64, 200, 400, '{"40":2,"41":1}')
    assert added_row(first, second) == (3, 1_200, 32, None, 450, '{"41":3}')


def test_a_series_that_fell_was_begun_anew():
    """All that it stands at is new then."""
    before = aggregate({40: 9}, total=900, least=100, most=100)
    after = aggregate({40: 2}, total=300, least=150, most=150)

    assert added_row(before, after) == (2, 300, 0, 150, 150, '{"40":2}')


def test_a_bucket_that_is_empty_again_was_begun_anew():
    """Its sum may be larger all the same."""
    before = aggregate({40: 2, 41: 1}, total=900, least=100, most=100)
    after = aggregate({41: 9}, total=1_800, least=150, most=150)

    assert added_row(before, after) == (9, 1_800, 0, 150, 150, '{"41":9}')


def test_forks_have_no_smallest():
    """The kernel's "none yet" is no number that SQLite could hold."""
    forks = aggregate({0: 3})

    assert added_row(None, forks) == (3, 0, 0, None, 0, '{"0":3}')
    assert total_row(forks) == (0, None, 0, 0, '{"0":3}')


readings = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, wire.MAX_BUCKETS - 1), st.integers(1, 1 << 40), max_size=5),
        st.integers(0, 1 << 50),
        st.integers(0, 1 << 50),
    ),
    max_size=8,
)


@given(readings, st.integers(0, 8))
def test_rows_add_up_to_the_totals(readings, begin):
    """From the beginning, or from what a chunk's end says, every total is put together again."""
    before = summed = None
    now = aggregate({})
    for number, (added, total, size_bytes) in enumerate(readings):
        buckets = list(now.buckets)
        for bucket, count in added.items():
            buckets[bucket] += count
        least = min(now.min, total)
        most = max(now.max, total)
        now = Aggregate(now.sum + total, least, most, now.size_bytes + size_bytes, tuple(buckets))
        _, *row = added_row(before, now)
        before = now
        if summed is not None or begin == 0:
            found = read_aggregate(*row)
            summed = found if summed is None else aggregate_with(summed, found)
        elif number + 1 == begin:
            *counts, size, text = total_row(now)
            summed = read_aggregate(counts[0], size, *counts[1:], text)
        assert summed in (None, now)
        assert summed is None or bounded(summed) is summed


@pytest.mark.parametrize(
    "buckets", ['{"192":1}', '{"-1":1}', '{"x":1}', '{"1":"2"}', '{"1":1.5}', "[]", "no", '{"²":1}']
)
def test_buckets_of_a_stranger_are_refused(buckets):
    """Nothing is added to a bucket that does not exist."""
    with pytest.raises(ValueError):  # noqa: PT011 -- json's own is one, whatever it says
        read_aggregate(1, 0, None, None, buckets)


def test_counts_of_a_stranger_stay_in_their_bounds():
    """Neither below nothing nor beyond 64 bits, however often they are added."""
    most = (1 << 64) - 1
    far = read_aggregate(3 << 63, -5, None, None, '{"3":18446744073709551616,"4":-7}')

    found = bounded(far)

    assert (found.sum, found.size_bytes) == (most, 0)
    assert found.buckets[3:5] == (most, 0)

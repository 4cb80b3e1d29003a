from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.enrich.clock import MAX_SAMPLES, UnixClock

T0 = 1_700_000_000_000_000_000


def test_a_moment_between_two_samples_uses_the_earlier():
    """A step of the clock moves only what happened after it was noticed."""
    clock = UnixClock()
    clock.add_sample(1_000, T0 + 1_000)
    clock.add_sample(2_000, T0 + 5_002_000)

    assert clock.to_unix_ns(1_500) == T0 + 1_500
    assert clock.to_unix_ns(2_000) == T0 + 5_002_000
    assert clock.to_unix_ns(2_500) == T0 + 5_002_500


def test_moments_before_the_first_sample_use_the_first():
    """What happened before the first sample is still dated."""
    clock = UnixClock()
    clock.add_sample(1_000, T0 + 1_000)
    clock.add_sample(2_000, T0 + 9_000)

    assert clock.to_unix_ns(10) == T0 + 10


def test_without_samples_ktime_is_unix_time():
    """A recording without clocks dates to 1970 and does not fail."""
    assert UnixClock().to_unix_ns(123) == 123


def test_a_clock_may_be_set_back():
    """Unix time may go backwards, as it did on the host."""
    clock = UnixClock()
    clock.add_sample(1_000, T0)
    clock.add_sample(2_000, T0 - 60_000_000_000)

    assert clock.to_unix_ns(2_001) == T0 - 59_999_999_999


def test_offset_is_the_one_in_force():
    """The difference of the clocks can be asked for on its own."""
    clock = UnixClock()
    clock.add_sample(1_000, 51_000)
    clock.add_sample(2_000, 62_000)

    assert [clock.offset_ns(moment) for moment in (0, 1_999, 2_000)] == [50_000, 50_000, 60_000]


@given(
    st.lists(st.tuples(st.integers(0, 1 << 61), st.integers(1 << 61, 1 << 62)), min_size=1),
    st.integers(0, 1 << 61),
)
def test_a_later_sample_never_changes_an_earlier_moment(samples, moment):
    """Whatever is learnt later, a moment before it keeps its Unix time."""
    clock = UnixClock()
    samples.sort()
    earlier = [sample for sample in samples if sample[0] <= moment] or samples[:1]
    for sample in earlier:
        clock.add_sample(*sample)
    before = clock.to_unix_ns(moment)

    for sample in samples:
        if sample[0] > moment:
            clock.add_sample(*sample)

    assert clock.to_unix_ns(moment) == before == moment + earlier[-1][1] - earlier[-1][0]


def test_old_samples_are_dropped():
    """A capture that runs for months keeps a bounded number of samples, the newest."""
    clock = UnixClock()
    for ktime in range(3 * MAX_SAMPLES):
        clock.add_sample(ktime, 2 * ktime)

    assert len(clock._ktimes) <= MAX_SAMPLES
    newest = 3 * MAX_SAMPLES - 1
    assert clock.to_unix_ns(newest) == 2 * newest
    assert clock.to_unix_ns(newest - 100) == 2 * (newest - 100)


def test_broken_moments_stay_within_what_otlp_carries():
    """A damaged record must not become a number that no exporter can write."""
    clock = UnixClock()
    clock.add_sample(1_000, T0)
    assert clock.to_unix_ns((1 << 64) - 1) == (1 << 63) - 1

    clock.add_sample(1_000_000, 0)
    clock.add_sample(2_000_000, 0)
    assert clock.to_unix_ns(1_500_000) == 500_000
    assert UnixClock().to_unix_ns(-1) == 0

"""What is usual."""

import pytest

from otel_gpu import wire
from otel_gpu.config import Config
from otel_gpu.explain.baselines import Baselines, of_calls, of_gaps
from otel_gpu.explain.settings import Settings
from otel_gpu.options import HistogramsConfig
from otel_gpu.wire.histogram_layout import layout_description
from tests.activities import APIS_BY_NAME, SECOND, T0, calls, capture, snapshot
from tests.unit.explain.streams import MS, TRAINER, WORKER, readings_of, usual_gap

IMAGE = (TRAINER.pid, TRAINER.program_ktime_ns)
MALLOC = APIS_BY_NAME["cudaMalloc"].number
MALLOCS = of_calls(*IMAGE, MALLOC, wire.COPY_NONE)


@pytest.fixture
def baselines():
    baselines = Baselines(Settings())
    baselines.learn_layout(capture())
    return baselines


def test_a_median_is_within_a_bucket_of_the_true_one(baselines):
    """Four buckets per doubling place it to 9 %."""
    baselines.observe(readings_of("cudaMalloc", [MS] * 30 + [5 * MS] * 40 + [90 * MS] * 30, 10))

    assert baselines.median_ns(MALLOCS) == pytest.approx(5 * MS, rel=0.09)


def test_a_median_needs_calls(baselines):
    """Nineteen calls are not yet usual."""
    baselines.observe(readings_of("cudaMalloc", [MS] * 19, 10))
    few = baselines.median_ns(MALLOCS)
    baselines.observe(readings_of("cudaMalloc", [MS] * 20, 11))

    assert few is None
    assert baselines.median_ns(MALLOCS) == MS


def test_a_series_is_of_one_process_and_of_calls_that_worked(baselines):
    """What fails at once says nothing about what works."""
    baselines.observe(
        snapshot(
            10,
            calls(TRAINER, "cudaMalloc", [1000] * 500, status=2),
            calls(WORKER, "cudaMalloc", [1000] * 500),
            calls(TRAINER, "cudaMalloc", [MS] * 20),
            calls(TRAINER, "cudaMalloc", [MS] * 20, nested=1),
        )
    )

    assert baselines.median_ns(MALLOCS) == MS


def test_gaps_have_a_median_of_their_own(baselines):
    """One for the whole process."""
    baselines.observe(usual_gap(duration_ns=3 * MS))

    assert baselines.median_ns(of_gaps(*IMAGE)) == 3 * MS
    assert baselines.median_ns(of_gaps(WORKER.pid, WORKER.program_ktime_ns)) is None


def test_bounds_are_those_of_the_capture(baselines):
    """A recording with explicit bounds is read with them."""
    config = Config(histograms=HistogramsConfig(layout="explicit", duration_bounds_s=(0.001, 0.1)))
    baselines.learn_layout(capture(config))
    counted = calls(TRAINER, "cudaMalloc", [2 * MS] * 40, bounds=(MS, 100 * MS))

    baselines.observe(snapshot(10, counted))

    assert layout_description(config)["durations"]["kind"] == "explicit"
    assert baselines.median_ns(MALLOCS) == 2 * MS


@pytest.mark.parametrize(
    "durations", [{}, {"kind": "novel"}, {"kind": "explicit", "bounds_ns": []}]
)
def test_a_layout_that_is_not_understood_leaves_medians_unknown(baselines, durations):
    """A later version's recording is explained without them."""
    baselines.learn_layout(capture()._replace(info={"layout": {"durations": durations}}))

    baselines.observe(readings_of("cudaMalloc", [MS] * 50, 10))

    assert baselines.median_ns(MALLOCS) is None


def test_the_first_call_of_an_api_is_known_by_what_was_counted_before(baselines):
    """The call itself may already be counted when its record comes."""
    baselines.observe(readings_of("cudaMalloc", [MS], 10))
    baselines.observe(snapshot(10, calls(WORKER, "cudaMalloc", [MS] * 2)))
    end_unix_ns = T0 + 11 * SECOND

    assert baselines.is_first(*IMAGE, MALLOC, end_unix_ns)
    assert not baselines.is_first(*IMAGE, MALLOC, end_unix_ns)
    assert not baselines.is_first(WORKER.pid, WORKER.program_ktime_ns, MALLOC, end_unix_ns)


def test_what_was_counted_when_the_call_was_over_may_have_come_after_it(baselines):
    """A reading overtook the record of the first call, and has 20 fast ones that followed it."""
    baselines.observe(readings_of("cudaMalloc", [80 * MS, *[MS] * 20], 10))

    assert baselines.is_first(*IMAGE, MALLOC, T0 + 10 * SECOND)


def test_what_was_counted_before_is_known_whatever_is_read_later(baselines):
    baselines.observe(readings_of("cudaMalloc", [MS] * 2, 9))
    baselines.observe(readings_of("cudaMalloc", [MS] * 20, 10))

    assert not baselines.is_first(*IMAGE, MALLOC, T0 + 10 * SECOND)


def test_allocations_rise_when_window_after_window_is_slower(baselines):
    """Three windows, the last of them twice the first."""
    rising = []
    durations = []
    for n, ms in enumerate([1, 1.5, 3]):
        durations += [round(ms * MS)] * 10
        baselines.observe(readings_of("cudaMalloc", durations, 10 + n))
        rising.append(baselines.is_rising(MALLOCS))

    assert rising == [False, False, True]


def test_one_slow_window_is_no_trend(baselines):
    """What goes up and was down before may go down again."""
    durations = []
    for n, ms in enumerate([1, 1, 3]):
        durations += [round(ms * MS)] * 10
        baselines.observe(readings_of("cudaMalloc", durations, 10 + n))

    assert not baselines.is_rising(MALLOCS)


def test_chosen_allocations_that_rise_all_the_time_are_a_trend(baselines):
    """A short run has few readings, and its slow calls tell the same."""
    rising = []
    for n in range(31):
        baselines.follow_allocator(MALLOCS, MS + n * MS // 10)
        rising.append(baselines.is_rising(MALLOCS))

    assert rising == [False] * 29 + [True, True]


def test_chosen_allocations_that_go_up_and_down_are_no_trend(baselines):
    """Slow ones among them are slow by themselves."""
    for n in range(60):
        baselines.follow_allocator(MALLOCS, (1 + n * 7 % 10) * MS)

    assert not baselines.is_rising(MALLOCS)


def test_series_beyond_the_limit_are_forgotten():
    """Those of the process that was silent for longest go first."""
    baselines = Baselines(Settings(max_series=1))
    baselines.learn_layout(capture())
    baselines.observe(readings_of("cudaMalloc", [MS] * 50, 10))
    baselines.observe(usual_gap(WORKER))

    assert baselines.median_ns(MALLOCS) is None
    assert baselines.median_ns(of_gaps(WORKER.pid, WORKER.program_ktime_ns)) == MS

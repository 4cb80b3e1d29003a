"""What is explained of a capture of another tool, which does not know what threads did."""

import pytest

from otel_gpu import wire
from otel_gpu.decode.events import STALL_STATE_UNKNOWN
from otel_gpu.enrich.activities import CaptureActivity
from otel_gpu.enrich.ids import NO_SEED
from otel_gpu.explain.baselines import Baselines, of_calls
from otel_gpu.explain.explainer import Explainer
from otel_gpu.explain.settings import Settings
from tests.activities import APIS_BY_NAME, T0, calls, capture, snapshot
from tests.unit.explain.streams import MS, TRAINER, off_cpu, readings_of, slow, usual

FOREIGN = CaptureActivity(
    T0, capture().info | {"unknown": ["thread_states", "distributions", "freed_bytes"]}, NO_SEED
)
MALLOC = APIS_BY_NAME["cudaMalloc"].number
MALLOCS = of_calls(TRAINER.pid, TRAINER.image_ktime_ns, MALLOC, wire.COPY_NONE)


def causes_of(*activities):
    explainer = Explainer()
    for activity in activities:
        assert list(explainer.push(activity)) == []
    (chain,) = explainer.close()
    return {cause.kind: cause.time_ns // MS for cause in chain.causes}, chain


def unknown(at_ms, length_ms):
    return off_cpu(at_ms, length_ms, reason="unknown", flags=STALL_STATE_UNKNOWN)


@pytest.mark.parametrize(
    "api", ["cudaStreamSynchronize", "cudaLaunchKernel", "cudaMemcpy", "cudaMalloc"]
)
def test_time_off_the_cpu_is_no_more_than_that(api):
    """Wherever it was: neither a wait for the device nor one for a CPU, and nobody's doing."""
    warm = slow(api, 2, start=0)
    causes, chain = causes_of(FOREIGN, usual(api=api), warm, unknown(10, 30), slow(api))

    assert causes["off_cpu"] == 30
    (cause,) = [cause for cause in chain.causes if cause.kind == "off_cpu"]
    assert (cause.culprit, cause.via) == (None, ())
    (interval,) = cause.evidence
    assert (interval.kind, interval.end_unix_ns - interval.start_unix_ns) == ("off_cpu", 30 * MS)
    assert chain.severity == "low"


@pytest.mark.parametrize(
    ("is_foreign", "expected"), [(False, {"gpu_backpressure": 100}), (True, {})]
)
def test_a_long_launch_is_not_said_to_have_found_its_queue_full(is_foreign, expected):
    """That is known from its having burnt a CPU, and nobody saw it do so."""
    first = FOREIGN if is_foreign else capture()
    api = "cudaLaunchKernel"

    causes, chain = causes_of(first, usual(api=api), slow(api, 2, start=0), slow(api))

    assert causes == expected
    assert chain.unexplained_ns == (100 * MS if is_foreign else 0)


def test_a_call_that_synchronizes_waits_for_the_device_all_the_same():
    """Whether on a CPU or off it, it has nothing else to do."""
    warm = slow(duration_ms=2, start=0)

    assert causes_of(FOREIGN, usual(), warm, slow())[0] == {"gpu_wait": 100}


def test_a_median_is_at_most_twice_the_mean_of_all():
    """Other tools keep the slow calls one by one: of 1,020 calls all but these were fast."""
    baselines = Baselines(Settings())
    baselines.learn_layout(FOREIGN)
    series = calls(TRAINER, "cudaMalloc", [10 * MS] * 20)
    more = series.aggregate._replace(sum=300 * MS, unplaced=1_000)

    baselines.observe(snapshot(10, series._replace(aggregate=more)))

    assert baselines.median_ns(MALLOCS) == 2 * 300 * MS // 1_020


@pytest.mark.parametrize(("is_foreign", "expected"), [(False, True), (True, False)])
def test_what_was_kept_tells_no_trend(is_foreign, expected):
    """That the kept calls got slower can be due to which were kept."""
    baselines = Baselines(Settings())
    baselines.learn_layout(FOREIGN if is_foreign else capture())
    counted = []
    for reading in range(4):
        counted += [MS * 2**reading] * 10
        baselines.observe(readings_of("cudaMalloc", counted, 10 + reading))
    for number in range(30):
        baselines.follow_allocator(MALLOCS, (1 + number) * MS)

    assert baselines.is_rising(MALLOCS) is expected

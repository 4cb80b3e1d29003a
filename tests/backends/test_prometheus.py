"""Prometheus, written into by prometheus.yaml, answers about our histograms."""

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.backends.conftest import Replay
from tests.backends.otelcol import Otelcol
from tests.backends.processes import wait_for
from tests.backends.prometheus import Prometheus
from tests.backends.recordings import counted_now, moved_to_now
from tests.backends.truth import SERVICE, truth_of

pytestmark = pytest.mark.backends

S = 1_000_000_000
QUANTILES = (0.5, 0.9, 0.99)
# Scale 2 of OpenTelemetry, which Prometheus calls schema 2: four buckets to a power of two.
GROWTH = 2 ** (1 / 4)


class Bucket(NamedTuple):
    """Bounds in seconds."""

    low_s: float
    high_s: float


def quantile_ns(durations_ns: Sequence[int], quantile: float) -> int:
    """The smallest duration that this share of all is not longer than."""
    ordered = sorted(durations_ns)
    return ordered[math.ceil(quantile * len(ordered)) - 1]


def exponential_bucket(duration_ns: int) -> Bucket:
    number = math.ceil(math.log(duration_ns / S, GROWTH))
    return Bucket(GROWTH ** (number - 1), GROWTH**number)


def test_quantiles_of_a_recording_are_within_their_bucket(
    prometheus: Prometheus, replay: Replay, tmp_path: Path
) -> None:
    """Exponential histograms arrive as native ones, and their quantiles are the recorded calls'."""
    truth = truth_of("lock")
    recording = tmp_path / "now.otelgpu"
    end_s = moved_to_now(truth.path, recording)
    with Otelcol("prometheus", env={"OTELCOL_REMOTE_WRITE": prometheus.remote_write}) as otelcol:
        replay(recording, otelcol.endpoint)
        count = f'sum(histogram_count(gpu_cuda_call_duration_seconds{{job="{SERVICE}"}}))'
        wait_for(lambda: prometheus.value(count, end_s + 1))

    for api in ("cudaLaunchKernel", "cudaStreamSynchronize"):
        durations_ns = [call.duration_ns for call in truth.of_api(api)]
        series = f'gpu_cuda_call_duration_seconds{{job="{SERVICE}",gpu_cuda_api="{api}"}}'
        assert prometheus.value(f"histogram_count({series})", end_s + 1) == len(durations_ns) == 60
        total_s = prometheus.value(f"histogram_sum({series})", end_s + 1)
        assert total_s == pytest.approx(sum(durations_ns) / S, rel=1e-9)
        for quantile in QUANTILES:
            bucket = exponential_bucket(quantile_ns(durations_ns, quantile))
            answer_s = prometheus.value(f"histogram_quantile({quantile}, {series})", end_s + 1)
            assert answer_s is not None
            assert bucket.low_s <= answer_s <= bucket.high_s


@pytest.mark.parametrize("layout", ["explicit", "exponential"])
def test_quantiles_of_many_calls_are_within_their_bucket(
    prometheus: Prometheus, replay: Replay, tmp_path: Path, layout: str
) -> None:
    """
    In either layout, of 1,009 calls from 1 µs to 1 s, the answer is in the true value's bucket.
    """
    seeded = random.Random(20261121)  # noqa: S311 -- the same each time
    durations_ns = [int(10 ** seeded.uniform(3, 9)) for _ in range(1009)]
    recording = tmp_path / "counted.otelgpu"
    end_s = counted_now(recording, durations_ns, layout)
    with Otelcol("prometheus", env={"OTELCOL_REMOTE_WRITE": prometheus.remote_write}) as otelcol:
        replay(recording, otelcol.endpoint)
        name = "gpu_cuda_call_duration_seconds"
        match = '{job="counted",gpu_cuda_api="cudaMalloc"}'
        classic = layout == "explicit"
        count = f"{name}_count{match}" if classic else f"histogram_count({name}{match})"
        counted = wait_for(lambda: prometheus.value(count, end_s + 1))

    assert counted == 1009
    for quantile in QUANTILES:
        true_ns = quantile_ns(durations_ns, quantile)
        if classic:
            bucket = explicit_bucket(prometheus, f"{name}_bucket{match}", true_ns, end_s)
            over = f"sum by (le) ({name}_bucket{match})"
        else:
            bucket, over = exponential_bucket(true_ns), f"{name}{match}"
        answer_s = prometheus.value(f"histogram_quantile({quantile}, {over})", end_s + 1)
        assert answer_s is not None
        assert bucket.low_s <= answer_s <= bucket.high_s


def explicit_bucket(
    prometheus: Prometheus, selector: str, duration_ns: int, end_s: float
) -> Bucket:
    """The bucket that a value falls into, of those that Prometheus has."""
    found = prometheus.query(selector, end_s + 1)
    bounds_s = sorted(float(series["metric"]["le"]) for series in found)
    assert len(bounds_s) > 20
    high = next(n for n, bound_s in enumerate(bounds_s) if duration_ns / S <= bound_s)
    return Bucket(bounds_s[high - 1] if high else 0.0, bounds_s[high])


def test_a_series_is_found_by_process_through_target_info(
    prometheus: Prometheus, replay: Replay, tmp_path: Path
) -> None:
    """Service and instance are labels; all else that is known of the process is joined to them."""
    recording = tmp_path / "now.otelgpu"
    end_s = moved_to_now(truth_of("preemption").path, recording)
    with Otelcol("prometheus", env={"OTELCOL_REMOTE_WRITE": prometheus.remote_write}) as otelcol:
        replay(recording, otelcol.endpoint)
        pid = truth_of("preemption").pid
        joined = (
            "gpu_cuda_kernel_launch_calls_total * on (job, instance) group_left (host_name) "
            f'target_info{{process_pid="{pid}"}}'
        )
        series = wait_for(lambda: prometheus.query(joined, end_s + 1))

    ((labels, (_, value)),) = ((each["metric"], each["value"]) for each in series)
    assert labels["job"] == SERVICE
    assert labels["host_name"] == "gpu-host"
    assert float(value) == 60


def test_exemplars_lead_to_spans(prometheus: Prometheus, replay: Replay, tmp_path: Path) -> None:
    """An exemplar of a histogram names the trace of a call that it counted."""
    recording = tmp_path / "now.otelgpu"
    series = f'gpu_cuda_call_duration_seconds{{job="{SERVICE}"}}'
    with Otelcol("prometheus", env={"OTELCOL_REMOTE_WRITE": prometheus.remote_write}) as otelcol:
        # Prometheus 2.42 takes an exemplar for a series that it knows already.
        for _ in range(2):
            end_s = moved_to_now(truth_of("clean").path, recording)
            replay(recording, otelcol.endpoint)
            count = f"count(timestamp({series}) > {end_s - 60})"
            assert wait_for(lambda count=count, end_s=end_s: prometheus.value(count, end_s + 1))
        asked = {"query": series, "start": f"{end_s - 60:.3f}", "end": f"{end_s + 60:.3f}"}
        found = wait_for(lambda: prometheus.get("/api/v1/query_exemplars", **asked)["data"])

    exemplars = [exemplar for each in found for exemplar in each["exemplars"]]
    durations_s = {call.duration_ns / S for call in truth_of("clean").calls}
    assert exemplars
    for exemplar in exemplars:
        assert len(exemplar["labels"]["trace_id"]) == 32
        assert float(exemplar["value"]) in durations_s


def test_without_native_histograms_prometheus_refuses_and_says_so(
    replay: Replay, tmp_path: Path
) -> None:
    """The remedy that prometheus.yaml names is for a refusal that the Collector reports."""
    recording = tmp_path / "counted.otelgpu"
    end_s = counted_now(recording, [1000, 2000, 3000], "exponential")
    with (
        Prometheus(features="") as prometheus,
        Otelcol("prometheus", env={"OTELCOL_REMOTE_WRITE": prometheus.remote_write}) as otelcol,
    ):
        replay(recording, otelcol.endpoint)
        assert wait_for(lambda: "native histograms are disabled" in otelcol.log)
        assert prometheus.query('gpu_cuda_call_duration_seconds{job="counted"}', end_s + 1) == []

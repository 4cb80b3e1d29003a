import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.metrics.export import AggregationTemporality

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import DeviceIdentity
from otel_gpu.export.metrics.metric_store import MetricStore
from otel_gpu.export.metrics.producer import MetricProducer
from otel_gpu.export.metrics.requests import request_of
from otel_gpu.options import Config, HistogramsConfig
from tests.activities import (
    H100,
    SECOND,
    T0,
    aggregate,
    call,
    calls,
    capture,
    copies,
    counters,
    ended,
    forks,
    image,
    open_call,
    probes,
    series,
    snapshot,
    status,
    thread_time,
    times,
)

DELTA = AggregationTemporality.DELTA
CUMULATIVE = AggregationTemporality.CUMULATIVE
US = 1_000


class Sink:
    """A store with one producer on it, and short ways to what it says."""

    def __init__(self, *, delta=False, max_series=1000, config=None, **store):
        self.store = MetricStore({}, max_series=max_series, **store)
        self.producer = self.add(delta=delta)
        self.observe(capture(config or Config()))

    def add(self, *, delta=False):
        temporality = {"counter": DELTA, "histogram": DELTA} if delta else {}
        return MetricProducer(self.store, temporality)

    def observe(self, *activities):
        for activity in activities:
            self.store.observe(activity)
        return self

    def collect(self, *, arrives=True, producer=None):
        producer = producer or self.producer
        points = list(producer.produce())
        if arrives:
            producer.commit(points)
        return Collected(request_of(points))


class Collected:
    def __init__(self, data):
        self.data = data
        self.by_service = {
            item.resource.attributes["service.name"]: {
                metric.name: metric for scope in item.scope_metrics for metric in scope.metrics
            }
            for item in data.resource_metrics
        }

    def points(self, name, service="trainer"):
        metric = self.by_service.get(service, {}).get(name)
        return list(metric.data.data_points) if metric else []

    def point(self, name, service="trainer"):
        (point,) = self.points(name, service)
        return point

    def values(self, name, service="trainer"):
        return {
            tuple(point.attributes.values()): point.value for point in self.points(name, service)
        }


@pytest.fixture
def sink():
    return Sink()


@pytest.fixture
def delta_sink():
    return Sink(delta=True)


def test_a_series_becomes_an_exponential_point(sink):
    """
    Count, sum, extremes and buckets are the kernel's; empty buckets at both ends are
    left out; times are those of the image and of the snapshot.
    """
    trainer = image()
    sink.observe(snapshot(9, calls(trainer, "cudaMalloc", [300 * US, 310 * US, 2000 * US])))

    point = sink.collect().point("gpu.cuda.call.duration")

    assert point.attributes == {"gpu.cuda.api": "cudaMalloc", "gpu.cuda.layer": "runtime"}
    assert (point.count, point.sum) == (3, 0.00261)
    assert (point.min, point.max) == (0.0003, 0.002)
    assert (point.scale, point.zero_count) == (2, 0)
    # 2^(-47/4) s = 290.3 us, 2^(-46/4) s = 345.3 us; 2^(-36/4) s = 1953 us
    assert point.positive.offset == -47
    assert point.positive.bucket_counts == [2, *[0] * 10, 1]
    assert point.start_time_unix_nano == T0 + 5 * SECOND
    assert point.time_unix_nano == T0 + 9 * SECOND


def test_an_explicit_layout_gives_explicit_points():
    """The bounds are the capture's, in seconds."""
    config = Config(
        histograms=HistogramsConfig(layout="explicit", duration_bounds_s=(0.0001, 0.001))
    )
    sink = Sink(config=config)
    durations = [100 * US, 101 * US, 5000 * US]
    sink.observe(snapshot(9, calls(image(), "cudaFree", durations, bounds=(100 * US, 1000 * US))))

    point = sink.collect().point("gpu.cuda.call.duration")

    assert point.explicit_bounds == [0.0001, 0.001]
    assert point.bucket_counts == [1, 1, 1]


def test_nested_and_outermost_calls_of_an_api_are_one_point(sink):
    """
    How long cuMemAlloc takes does not depend on who called it; how much memory was
    asked for counts the outermost call only.
    """
    trainer = image()
    sink.observe(
        snapshot(
            9,
            calls(trainer, "cudaMalloc", [30 * US], size_bytes=4096),
            calls(trainer, "cuMemAlloc", [20 * US], size_bytes=4096, nested=1),
            calls(trainer, "cuMemAlloc", [10 * US], size_bytes=100),
        )
    )

    collected = sink.collect()

    durations = {
        p.attributes["gpu.cuda.api"]: p for p in collected.points("gpu.cuda.call.duration")
    }
    assert durations["cuMemAlloc"].count == 2
    assert durations["cuMemAlloc"].sum == 3e-05
    assert (durations["cuMemAlloc"].min, durations["cuMemAlloc"].max) == (1e-05, 2e-05)
    assert collected.point("gpu.cuda.memory.allocations").value == 4196


def test_failed_calls_have_an_error_type_and_count_for_nothing_else(sink):
    """A failed allocation allocated nothing."""
    sink.observe(snapshot(9, calls(image(), "cudaMalloc", [9 * US], status=2, size_bytes=4096)))

    collected = sink.collect()

    point = collected.point("gpu.cuda.call.duration")
    assert point.attributes["error.type"] == "cudaErrorMemoryAllocation"
    assert collected.points("gpu.cuda.memory.allocations") == []


@pytest.mark.parametrize(
    ("api", "metric"),
    [
        ("cudaLaunchKernel", "gpu.cuda.kernel.launch.calls"),
        ("cuLaunchKernelEx", "gpu.cuda.kernel.launch.calls"),
        ("cudaGraphLaunch", "gpu.cuda.graph.launch.calls"),
        ("cudaStreamCreateWithPriority", "gpu.cuda.stream.create.calls"),
        ("cuStreamDestroy", "gpu.cuda.stream.destroy.calls"),
        ("cudaStreamSynchronize", "gpu.cuda.stream.synchronize.calls"),
        ("cudaEventRecordWithFlags", "gpu.cuda.event.record.calls"),
        ("cuEventSynchronize", "gpu.cuda.event.synchronize.calls"),
        ("cuCtxSynchronize", "gpu.cuda.device.synchronize.calls"),
    ],
)
def test_calls_feed_the_counter_that_obi_has_for_them(sink, api, metric):
    """Counters with OBI's names count outermost successful calls, and carry no unit."""
    trainer = image()
    sink.observe(
        snapshot(
            9,
            calls(trainer, api, [US] * 7, device=H100),
            calls(trainer, api, [US] * 5, device=H100, nested=1),
            calls(trainer, api, [US] * 3, device=H100, status=1),
        )
    )

    collected = sink.collect()

    assert collected.point(metric).value == 7
    assert collected.point(metric).attributes == {
        "cuda.device.index": 0,
        "cuda.device.uuid": "8f4d1ee8-0b3c-6bd6-a4f1-2e0e1b7b9a10",
        "cuda.device.model": "NVIDIA H100 80GB HBM3",
    }
    assert collected.by_service["trainer"][metric].unit == ""
    assert collected.by_service["trainer"][metric].data.is_monotonic


def test_bytes_go_to_the_metric_of_their_family(sink):
    """Allocations, frees, sets and registrations; host memory is not device memory."""
    trainer = image()
    sink.observe(
        snapshot(
            9,
            calls(trainer, "cudaMallocAsync", [US], size_bytes=1000),
            calls(trainer, "cudaFree", [US], size_bytes=300),
            calls(trainer, "cudaMemset", [US], size_bytes=50),
            calls(trainer, "cudaHostRegister", [US], size_bytes=7),
            calls(trainer, "cudaMallocHost", [US], size_bytes=9999),
            calls(trainer, "cudaFreeHost", [US], size_bytes=9999),
        )
    )

    collected = sink.collect()

    assert collected.point("gpu.cuda.memory.allocations").value == 1000
    assert collected.point("gpu.cuda.memory.free.bytes").value == 300
    assert collected.point("gpu.cuda.memset.bytes").value == 50
    assert collected.point("gpu.cuda.host.register.bytes").value == 7
    assert collected.point("gpu.cuda.memory.in_use").value == 700
    assert not collected.by_service["trainer"]["gpu.cuda.memory.in_use"].data.is_monotonic


def test_copies_are_a_size_histogram_by_direction(sink):
    """Sizes are bytes at scale 0; a copy of nothing is in the lowest bucket."""
    sink.observe(snapshot(9, copies(image(), [0, 1, 4096])))

    point = sink.collect().point("gpu.cuda.memory.copies")

    assert point.attributes == {"cuda.memcpy.kind": "MemcpyHostToDevice"}
    assert (point.count, point.sum, point.scale) == (3, 4097, 0)
    assert point.positive.offset == -1
    assert point.positive.bucket_counts == [2, *[0] * 11, 1]


def test_scheduler_gaps_and_forks_have_their_own_metrics(sink):
    """Thread metrics carry the type of switch where calls carry their API."""
    trainer = image()
    sink.observe(
        snapshot(
            9,
            series(trainer, wire.METRIC_OFF_CPU, aggregate([5000 * US]), api=1),
            series(trainer, wire.METRIC_RUN_QUEUE, aggregate([70 * US]), api=2),
            series(trainer, wire.METRIC_LAUNCH_GAP, aggregate([10 * US]), device=H100),
            forks(trainer, 3),
        )
    )

    collected = sink.collect()

    off_cpu = collected.point("process.scheduler.off_cpu.duration")
    assert off_cpu.attributes == {"process.context_switch.type": "voluntary"}
    assert off_cpu.sum == 0.005
    run_queue = collected.point("process.scheduler.run_queue.duration")
    assert run_queue.attributes == {"process.context_switch.type": "involuntary"}
    assert collected.point("gpu.cuda.launch.gap").attributes["cuda.device.index"] == 0
    assert collected.point("process.forks").value == 3


def test_a_series_that_did_not_change_is_exported_again(sink):
    """Snapshots hold what changed; cumulative points are about everything, up to now."""
    trainer = image()
    sink.observe(
        snapshot(9, calls(trainer, "cudaMalloc", [US])),
        snapshot(10, calls(trainer, "cudaFree", [US])),
    )

    points = sink.collect().points("gpu.cuda.call.duration")

    assert [p.attributes["gpu.cuda.api"] for p in points] == ["cudaMalloc", "cudaFree"]
    assert [p.time_unix_nano for p in points] == [T0 + 10 * SECOND] * 2


def test_a_device_that_becomes_known_later_renames_no_other_series(sink):
    """All series of a device get its UUID at once, also those that did not change since."""
    trainer = image()
    nameless = DeviceIdentity(0, None, None)
    sink.observe(
        snapshot(9, calls(trainer, "cudaMalloc", [US], device=nameless)),
        snapshot(10, calls(trainer, "cudaFree", [US], device=H100)),
    )

    points = sink.collect().points("gpu.cuda.call.duration")

    assert [p.attributes["cuda.device.uuid"] for p in points] == [H100.uuid, H100.uuid]


def test_a_delta_is_the_difference_from_what_arrived(delta_sink):
    """
    The second delta counts the second interval, starts where the first ended, and has
    no extremes: those of the interval are not known.
    """
    trainer = image()
    delta_sink.observe(snapshot(9, calls(trainer, "cudaMalloc", [US, US], size_bytes=10)))
    first = delta_sink.collect()
    delta_sink.observe(snapshot(19, calls(trainer, "cudaMalloc", [US, US, 8 * US], size_bytes=15)))
    second = delta_sink.collect()

    duration = first.point("gpu.cuda.call.duration")
    assert (duration.count, duration.start_time_unix_nano) == (2, T0 + 5 * SECOND)
    duration = second.point("gpu.cuda.call.duration")
    assert (duration.count, duration.sum) == (1, 8e-06)
    assert sum(duration.positive.bucket_counts) == 1
    assert duration.start_time_unix_nano == T0 + 9 * SECOND
    assert duration.time_unix_nano == T0 + 19 * SECOND
    assert (duration.min, duration.max) == (None, None)
    assert second.point("gpu.cuda.memory.allocations").value == 5
    # How much is in use is a state, under every preference.
    assert second.point("gpu.cuda.memory.in_use").value == 15


def test_a_delta_that_did_not_arrive_is_in_the_next_one(delta_sink):
    """After a failed export the next delta covers both intervals."""
    trainer = image()
    delta_sink.observe(snapshot(9, calls(trainer, "cudaMalloc", [US])))
    delta_sink.collect()
    delta_sink.observe(snapshot(19, calls(trainer, "cudaMalloc", [US] * 3)))
    delta_sink.collect(arrives=False)
    delta_sink.observe(snapshot(29, calls(trainer, "cudaMalloc", [US] * 6)))

    point = delta_sink.collect().point("gpu.cuda.call.duration")

    assert point.count == 5
    assert point.start_time_unix_nano == T0 + 9 * SECOND
    assert point.time_unix_nano == T0 + 29 * SECOND


def test_points_can_be_committed_before_all_are_made(delta_sink):
    """What arrived first is not sent again, and exemplars are until everything has arrived."""
    first, second = (image(pid=pid) for pid in (41, 42))
    delta_sink.observe(
        snapshot(9, calls(first, "cudaMalloc", [US] * 2), calls(second, "cudaFree", [US] * 3))
    )
    produced = delta_sink.producer.produce()
    for point in produced:
        if point.instrument.name == "gpu.cuda.call.duration":
            delta_sink.producer.commit([point])
            break
    produced.close()

    again = delta_sink.collect().points("gpu.cuda.call.duration")
    assert [point.count for point in again] == [3]


def test_deltas_of_points_that_arrived_alone_do_not_repeat(delta_sink):
    """Of two requests one may arrive; only the other's points are sent again."""
    trainer = image()
    delta_sink.observe(
        snapshot(9, calls(trainer, "cudaMalloc", [US] * 2), calls(trainer, "cudaFree", [US] * 3))
    )
    produced = list(delta_sink.producer.produce())
    arrived = [p for p in produced if p.data.attributes.get("gpu.cuda.api") == "cudaMalloc"]
    delta_sink.producer.commit(arrived)
    delta_sink.observe(snapshot(19, calls(trainer, "cudaMalloc", [US] * 6)))

    points = delta_sink.collect().points("gpu.cuda.call.duration")

    by_api = {p.attributes["gpu.cuda.api"]: p for p in points}
    assert (by_api["cudaMalloc"].count, by_api["cudaFree"].count) == (4, 3)
    assert by_api["cudaMalloc"].start_time_unix_nano == T0 + 9 * SECOND
    assert by_api["cudaFree"].start_time_unix_nano == T0 + 5 * SECOND


def test_a_delta_of_nothing_is_no_point(delta_sink):
    """What did not happen in an interval is left out."""
    delta_sink.observe(snapshot(9, calls(image(), "cudaDeviceSynchronize", [US])), counters(9))
    delta_sink.collect()
    delta_sink.observe(counters(10))

    assert "trainer" not in delta_sink.collect().by_service


def test_a_device_that_becomes_known_does_not_repeat_a_delta(delta_sink):
    """Differences are taken per series, and those keep their identity."""
    trainer = image()
    nameless = DeviceIdentity(0, None, None)
    delta_sink.observe(snapshot(9, calls(trainer, "cudaMalloc", [US] * 2, device=nameless)))
    delta_sink.collect()
    delta_sink.observe(snapshot(19, calls(trainer, "cudaMalloc", [US] * 3, device=H100)))

    point = delta_sink.collect().point("gpu.cuda.call.duration")

    assert (point.attributes["cuda.device.uuid"], point.count) == (H100.uuid, 1)


def test_an_image_is_forgotten_after_its_final_series_arrived(sink):
    """
    The last series come with a snapshot after the exit; they are exported, and then
    nothing is left of the image.
    """
    trainer = image()
    sink.observe(snapshot(9, calls(trainer, "cudaMalloc", [US])), ended(trainer, 9.5))
    assert sink.collect().point("gpu.cuda.call.duration").count == 1
    sink.observe(snapshot(10, calls(trainer, "cudaMalloc", [US] * 4)), counters(11))

    final = sink.collect().point("gpu.cuda.call.duration")

    assert (final.count, final.time_unix_nano) == (4, T0 + 10 * SECOND)
    assert sink.collect().by_service.keys() == {"otel-gpu"}
    assert not sink.store.holds((trainer.pid, trainer.program_ktime_ns))


def test_an_image_that_ends_before_its_first_snapshot_is_exported(sink):
    """A process can be shorter than the interval of snapshots."""
    trainer = image()
    sink.observe(ended(trainer, 9), snapshot(10, calls(trainer, "cudaMalloc", [US])), counters(11))

    assert sink.collect().point("gpu.cuda.call.duration").count == 1
    assert sink.store.count_final_series() == 0


def test_an_image_is_not_forgotten_in_the_middle_of_a_reading(sink):
    """
    One reading can be several activities of one moment, and the final series may be in
    the last of them.
    """
    trainer = image()
    sink.observe(
        snapshot(9, calls(trainer, "cudaMalloc", [US])),
        ended(trainer, 9.5),
        snapshot(10, calls(image(pid=50, name="other"), "cudaMalloc", [US])),
    )
    sink.collect()
    sink.observe(snapshot(10, calls(trainer, "cudaMalloc", [US] * 4)), counters(11))

    assert sink.collect().point("gpu.cuda.call.duration").count == 4


def test_an_image_without_last_series_is_forgotten_too(sink):
    """Readings hold what changed, so there may be none after the end."""
    trainer = image()
    sink.observe(snapshot(9, calls(trainer, "cudaMalloc", [US])), ended(trainer, 9.5))
    sink.observe(counters(10), counters(11))
    sink.collect()
    assert sink.store.holds((trainer.pid, trainer.program_ktime_ns))
    sink.observe(counters(12))

    assert sink.collect().point("gpu.cuda.call.duration").count == 1
    assert not sink.store.holds((trainer.pid, trainer.program_ktime_ns))


def test_a_clock_that_is_set_back_ends_no_image_early(delta_sink):
    """Which reading is the last is told by the order of the stream, not by the clock."""
    trainer = image()
    delta_sink.observe(snapshot(3600, calls(trainer, "cudaMalloc", [US])), counters(3601))
    delta_sink.collect()
    delta_sink.observe(ended(trainer, 9), counters(9))
    delta_sink.collect()
    delta_sink.observe(snapshot(10, calls(trainer, "cudaMalloc", [US] * 4)), counters(11))

    point = delta_sink.collect().point("gpu.cuda.call.duration")

    assert point.count == 3
    assert point.start_time_unix_nano == point.time_unix_nano == T0 + 10 * SECOND


def test_a_sum_that_is_ahead_of_its_count_waits_for_it(delta_sink):
    """A reading can see a call's nanoseconds before its count; a delta takes both at once."""
    trainer = image()
    outer = calls(trainer, "cuMemAlloc", [5 * US])
    inner = calls(trainer, "cuMemAlloc", [3 * US], nested=1)
    delta_sink.observe(snapshot(9, outer, inner))
    delta_sink.collect()
    torn = inner._replace(aggregate=inner.aggregate._replace(sum=10 * US))
    delta_sink.observe(snapshot(10, calls(trainer, "cuMemAlloc", [5 * US] * 2), torn))
    second = delta_sink.collect().point("gpu.cuda.call.duration")
    whole = calls(trainer, "cuMemAlloc", [3 * US, 7 * US], nested=1)
    delta_sink.observe(snapshot(11, whole))
    third = delta_sink.collect().point("gpu.cuda.call.duration")

    assert (second.count, second.sum) == (1, 5e-06)
    assert (third.count, third.sum) == (1, 7e-06)


def test_an_image_waits_for_the_sink_that_did_not_get_it(sink):
    """Final series are kept until every sink has them."""
    other = sink.add()
    trainer = image()
    sink.observe(snapshot(9, calls(trainer, "cudaMalloc", [US])), ended(trainer, 9))
    sink.observe(snapshot(10), counters(11))

    sink.collect()
    assert "trainer" not in sink.collect().by_service
    assert "trainer" in sink.collect(producer=other, arrives=False).by_service
    assert "trainer" in sink.collect(producer=other).by_service
    assert not sink.store.holds((trainer.pid, trainer.program_ktime_ns))


def test_an_exec_ends_the_image_before_it(sink):
    """One pid has one image at a time, so the older one ends without an exit."""
    old, new = image(), image(program_ktime_ns=8 * SECOND, name="other")
    sink.observe(
        snapshot(7, calls(old, "cudaMalloc", [US])),
        snapshot(9, calls(new, "cudaMalloc", [US])),
        snapshot(10, calls(new, "cudaMalloc", [US] * 2)),
        counters(11),
    )

    assert sink.collect().by_service.keys() == {"otel-gpu", "trainer", "other"}
    assert sink.collect().by_service.keys() == {"otel-gpu", "other"}


def test_memory_is_bounded_while_nothing_arrives():
    """With a dead endpoint the oldest ended images are given up, and counted."""
    sink = Sink(max_series=10)
    for number in range(30):
        short_lived = image(pid=100 + number)
        sink.observe(
            snapshot(9 + number, calls(short_lived, "cudaMalloc", [US])),
            ended(short_lived, 9 + number),
        )
        sink.collect(arrives=False)
    sink.observe(snapshot(60), counters(61))

    assert sink.store.count_final_series() == 10
    assert sink.collect().values("otel_gpu.series.dropped", "otel-gpu") == {("endpoint_down",): 20}


def test_images_whose_end_was_not_seen_do_not_stay_for_ever():
    """The kernel side holds max_series series at a time; twice as many are kept."""
    sink = Sink(max_series=10)
    for number in range(30):
        sink.observe(snapshot(9 + number, calls(image(pid=100 + number), "cudaMalloc", [US])))

    collected = sink.collect()

    assert len(collected.data.resource_metrics) == 1 + 20
    assert collected.values("otel_gpu.series.dropped", "otel-gpu") == {("stale",): 10}


def test_attribute_sets_beyond_the_limit_share_one_point():
    """
    As in the SDK: the 2000th attribute set and all after it overflow, and nothing is
    lost from the sum.
    """
    sink = Sink(max_series=5000)
    trainer = image()
    sink.observe(
        snapshot(9, *(calls(trainer, "cudaMalloc", [US], status=n) for n in range(10_000, 12_500)))
    )

    points = sink.collect().points("gpu.cuda.call.duration")

    assert len(points) == 2000
    assert points[-1].attributes == {"otel.metric.overflow": True}
    assert points[-1].count == 501
    assert sum(point.count for point in points) == 2500


def test_the_age_of_an_open_call_lasts_until_it_returns(sink):
    """
    The gauge holds the longest-open call per API and goes when the call was not
    reported for half of the age that it had when it was reported first.
    """
    trainer = image()
    sink.observe(
        open_call(trainer, "cudaStreamSynchronize", 10 * SECOND, 22 * SECOND, tid=1),
        open_call(trainer, "cudaStreamSynchronize", 14 * SECOND, 24 * SECOND, tid=2),
        counters(24),
    )

    point = sink.collect().point("gpu.cuda.call.open.age")
    assert point.value == 12.0
    assert point.attributes == {
        "gpu.cuda.api": "cudaStreamSynchronize",
        "gpu.cuda.layer": "runtime",
    }
    sink.observe(open_call(trainer, "cudaStreamSynchronize", 10 * SECOND, 25 * SECOND, tid=1))
    assert sink.collect().point("gpu.cuda.call.open.age").value == 15.0
    sink.observe(counters(30))
    assert sink.collect().point("gpu.cuda.call.open.age").value == 15.0
    sink.observe(counters(31.1))
    assert sink.collect().points("gpu.cuda.call.open.age") == []


def test_the_age_of_a_call_that_began_before_the_capture_ends_when_it_is_not_found(sink):
    """It is looked at every second, so nothing is believed for longer because it is old."""
    trainer = image(program_ktime_ns=15 * SECOND)
    sink.observe(open_call(trainer, "cudaMalloc", 7 * SECOND, 5_000 * SECOND), counters(5_001))
    assert sink.collect().point("gpu.cuda.call.open.age").value == 4_993.0

    sink.observe(counters(5_004))

    assert sink.collect().points("gpu.cuda.call.open.age") == []


def test_the_age_of_an_open_call_ends_with_its_return(sink):
    """A call that returned after all is seen as a chosen call, and is open no longer."""
    trainer = image()
    sink.observe(open_call(trainer, "cudaMalloc", 7 * SECOND, 19 * SECOND))
    sink.observe(call(trainer, "cudaMalloc", 7 * SECOND, 13 * SECOND), counters(20))

    assert sink.collect().points("gpu.cuda.call.open.age") == []


def test_the_age_of_an_open_call_ends_with_its_process(sink):
    """Nobody waits in a process that is gone."""
    trainer = image()
    sink.observe(open_call(trainer, "cudaMalloc", SECOND, 12 * SECOND), ended(trainer, 12))

    assert sink.collect().points("gpu.cuda.call.open.age") == []


def test_exemplars_point_at_the_spans_of_chosen_calls(sink):
    """The latest chosen call of each octave, once, with the ids that its span has."""
    trainer = image()
    slow = call(trainer, "cudaMalloc", 6 * SECOND, 3000 * US)
    earlier = call(trainer, "cudaMalloc", 7 * SECOND, 10 * US)
    later = call(trainer, "cudaMalloc", 8 * SECOND, 11 * US)
    counted = calls(trainer, "cudaMalloc", [3000 * US, 10 * US, 11 * US])
    sink.observe(slow, earlier, later, snapshot(9, counted))

    exemplars = sink.collect().point("gpu.cuda.call.duration").exemplars

    assert [(e.value, e.time_unix_nano) for e in exemplars] == [
        (0.003, T0 + 6 * SECOND + 3000 * US),
        (1.1e-05, T0 + 8 * SECOND + 11 * US),
    ]
    assert exemplars[0].span_id == int.from_bytes(slow.span_id)
    assert exemplars[0].trace_id == int.from_bytes(slow.trace_id)
    assert sink.collect().point("gpu.cuda.call.duration").exemplars == ()


def test_exemplars_that_did_not_arrive_come_again(sink):
    """An exemplar is given once it was exported."""
    trainer = image()
    sink.observe(
        call(trainer, "cudaMalloc", 6 * SECOND, US), snapshot(9, calls(trainer, "cudaMalloc", [US]))
    )
    sink.collect(arrives=False)

    assert len(sink.collect().point("gpu.cuda.call.duration").exemplars) == 1


def test_exemplars_can_be_off():
    """``always_off`` keeps none."""
    sink = Sink(is_sampled=lambda trace_id, name: False)
    trainer = image()
    sink.observe(
        call(trainer, "cudaMalloc", 6 * SECOND, US), snapshot(9, calls(trainer, "cudaMalloc", [US]))
    )

    assert sink.collect().point("gpu.cuda.call.duration").exemplars == ()


def test_exemplars_come_from_sampled_traces_only():
    """An exemplar that points at nothing helps nobody."""
    sink = Sink(is_sampled=lambda trace_id, name: name == "cudaFree")
    trainer = image()
    sink.observe(
        call(trainer, "cudaMalloc", 6 * SECOND, US),
        call(trainer, "cudaFree", 7 * SECOND, US),
        snapshot(9, calls(trainer, "cudaMalloc", [US]), calls(trainer, "cudaFree", [US])),
    )

    points = sink.collect().points("gpu.cuda.call.duration")

    assert {p.attributes["gpu.cuda.api"]: len(p.exemplars) for p in points} == {
        "cudaMalloc": 0,
        "cudaFree": 1,
    }


def test_the_agent_says_what_it_lost_and_cost(sink):
    """Losses of zero are said too; everything is under the agent's own Resource."""
    sink.observe(
        counters(
            9,
            lost_ring_full=3,
            spans_rate_limited=4,
            probe_entries=90,
            probe_returns=89,
            scheduler_switches=5,
            spans_chosen=11,
            stalls_chosen=2,
            samples=40,
            samples_rate_limited=6,
            lost_sample=2,
            lost_python=1,
            cpu_samples=50,
            cpu_samples_rate_limited=8,
            lost_cpu_sample=7,
            times_folded=8,
        ),
        status(
            9,
            cpu_ns=1_500_000_000,
            rss_bytes=5_000,
            rejected={"short": 1},
            dropped={"queue_full": 2},
            stacks={
                "resolved": 30,
                "incomplete": 4,
                "distinct": 7,
                "unused": 3,
                "without_sample": 1,
                "rejected": 0,
                "code_rejected": 5,
                "code_forgotten": 0,
                "perf_map_malformed": 13,
                "mapping_left_out": 17,
                "of a later version": 9,
            },
            cache_entries={"intervals": 97},
            cache_bytes={"intervals": 43_000},
            cache_released={"intervals": 11},
        ),
        probes(9, "/lib/libcuda.so.1", 30, 40),
    )

    collected = sink.collect()

    lost = collected.values("otel_gpu.records.lost", "otel-gpu")
    assert lost[("ring_full",)] == 3
    assert lost[("exit_inside_call",)] == 0
    assert (lost[("sample",)], lost[("python_frames",)]) == (2, 1)
    assert lost[("cpu_sample",)] == 7
    assert len(lost) == 29
    assert collected.values("otel_gpu.cpu_samples.taken", "otel-gpu") == {(): 50}
    assert collected.values("otel_gpu.cpu_samples.rate_limited", "otel-gpu") == {("budget",): 8}
    assert collected.values("otel_gpu.stacks.taken", "otel-gpu") == {(): 40}
    assert collected.values("otel_gpu.times.folded", "otel-gpu") == {(): 8}
    assert collected.values("otel_gpu.stacks.rate_limited", "otel-gpu") == {("rate",): 6}
    assert collected.values("otel_gpu.block_stacks.rate_limited", "otel-gpu") == {("rate",): 0}
    assert collected.values("otel_gpu.stacks.resolved", "otel-gpu") == {(True,): 26, (False,): 4}
    assert collected.values("otel_gpu.stacks.distinct", "otel-gpu") == {(): 7}
    assert collected.values("otel_gpu.stacks.dropped", "otel-gpu") == {
        ("unused",): 3,
        ("without_sample",): 1,
        ("rejected",): 0,
    }
    assert collected.values("otel_gpu.symbols.dropped", "otel-gpu") == {
        ("code_rejected",): 5,
        ("code_forgotten",): 0,
        ("perf_map_malformed",): 13,
        ("mapping_left_out",): 17,
    }
    assert collected.values("otel_gpu.records.rejected", "otel-gpu") == {("short",): 1}
    assert collected.values("otel_gpu.spans.rate_limited", "otel-gpu") == {
        ("rate",): 4,
        ("range_rate",): 0,
    }
    assert collected.values("otel_gpu.spans.dropped", "otel-gpu") == {("queue_full",): 2}
    assert collected.values("otel_gpu.spans.chosen", "otel-gpu") == {
        ("call",): 11,
        ("stall",): 2,
        ("gap",): 0,
    }
    assert collected.values("otel_gpu.probe.hits", "otel-gpu") == {
        ("entry",): 90,
        ("return",): 89,
        ("sched_switch",): 5,
    }
    assert collected.point("otel_gpu.overhead.time", "otel-gpu").value == 1.5
    assert collected.point("otel_gpu.overhead.memory", "otel-gpu").value == 5_000
    assert collected.values("otel_gpu.coverage", "otel-gpu") == {("/lib/libcuda.so.1",): 0.75}
    assert collected.values("otel_gpu.cache.entries", "otel-gpu") == {("intervals",): 97}
    assert collected.values("otel_gpu.cache.size", "otel-gpu") == {("intervals",): 43_000}
    assert collected.values("otel_gpu.cache.released", "otel-gpu") == {("intervals",): 11}


def test_the_time_of_feeder_threads_is_counted_by_state(sink):
    """What threads did that make CUDA calls sums to their wall time; other threads are left out."""
    trainer = image()
    account = [
        (wire.STATE_ON_CPU, wire.CONTEXT_GAP, "", 1),
        (wire.STATE_ON_CPU, wire.CONTEXT_CALL, "", 2),
        (wire.STATE_ON_CPU, wire.CONTEXT_SYNCHRONIZE, "", 4),
        (wire.STATE_BLOCKED, wire.CONTEXT_SYNCHRONIZE, "driver", 8),
        (wire.STATE_BLOCKED, wire.CONTEXT_SYNCHRONIZE, "lock", 16),
        (wire.STATE_RUN_QUEUE, wire.CONTEXT_SYNCHRONIZE, "", 32),
        (wire.STATE_RUN_QUEUE, wire.CONTEXT_GAP, "", 64),
        (wire.STATE_BLOCKED, wire.CONTEXT_GAP, "ipc", 128),
        (wire.STATE_BLOCKED, wire.CONTEXT_GAP, "page_fault", 256),
        (wire.STATE_BLOCKED, wire.CONTEXT_OTHER, "ipc", 512),
    ]
    sink.observe(
        times(9, *(thread_time(trainer, s, c, n * SECOND, reason=r) for s, c, r, n in account))
    )

    assert sink.collect().values("gpu.cuda.thread.time", "trainer") == {
        ("host",): 1,
        ("api",): 2,
        ("gpu_wait",): 4 + 8,
        ("lock",): 16,
        ("run_queue",): 32 + 64,
        ("ipc",): 128,
        ("paging",): 256,
    }


def test_later_times_replace_earlier_ones(sink):
    """The account is cumulative; a process that it says nothing new about keeps what it had."""
    one, other = image(pid=1, name="one"), image(pid=2, name="other")
    state = (wire.STATE_ON_CPU, wire.CONTEXT_GAP)
    sink.observe(times(9, thread_time(one, *state, SECOND), thread_time(other, *state, SECOND)))
    sink.observe(times(10, thread_time(one, *state, 3 * SECOND)))

    collected = sink.collect()

    assert collected.values("gpu.cuda.thread.time", "one") == {("host",): 3}
    assert collected.values("gpu.cuda.thread.time", "other") == {("host",): 1}


class Totals:
    """What a store adds up as it goes, beside what it holds."""

    def __init__(self, store):
        kept = store._programs
        images = dict(kept.items())
        ended = [key for key, image in images.items() if image.end_unix_ns is not None]
        self.kept = (kept.size, kept._ended_size, store._final_series, set(kept.ended))
        self.held = (
            sum(image.size for image in images.values()),
            sum(images[key].size for key in ended),
            sum(image.final_series for image in images.values()),
            set(ended),
        )


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["read", "end", "hang", "tick", "collect", "lose"]),
            st.integers(1, 6),
            st.integers(1, 3),
        ),
        max_size=40,
    )
)
def test_what_is_added_up_is_what_is_held(steps):
    """
    Room is made by sums, so that no reading looks at every process that ended; they stay
    true whatever happens, and nothing is left of an image that was released.
    """
    sink = Sink(max_series=6)
    for second, (what, pid, series_count) in enumerate(steps, start=6):
        process = image(pid, pid * SECOND)
        apis = ("cudaMalloc", "cudaFree", "cudaMemcpy")[:series_count]
        if what == "read":
            sink.observe(snapshot(second, *(calls(process, api, [US]) for api in apis)))
        elif what == "end":
            sink.observe(ended(process, second))
        elif what == "hang":
            hung = open_call(process, "cudaFree", pid * SECOND + 1, second * SECOND)
            sink.observe(hung)
        elif what == "tick":
            sink.observe(counters(second))
        else:
            sink.collect(arrives=what == "collect")
        sink.store.count_final_series()

        totals = Totals(sink.store)
        assert totals.kept == totals.held
        if what in ("read", "tick"):
            assert sink.store._programs.size <= 12
            assert sink.store._programs._ended_size <= 6


def test_a_sink_of_cumulative_points_keeps_no_values():
    """Only deltas begin where the last export ended: what was sent need not be kept for others."""
    cumulative, delta = Sink(), Sink(delta=True)
    for sink in (cumulative, delta):
        sink.observe(snapshot(9, calls(image(), "cudaMalloc", [US])))
        sink.collect()

    assert cumulative.producer._given == {}
    assert len(delta.producer._given) > 0


def test_a_user_with_few_programs_is_exported_before_one_with_many(sink):
    """Where there is no time for all at the end, whoever has started thousands is late."""
    programs = [image(pid, name=f"short-{pid}") for pid in range(100, 120)]
    quiet = image(200, name="quiet")
    for one in (*programs, quiet):
        one.attributes["process.owner"] = "alice" if one is quiet else "nobody"
        sink.observe(snapshot(9, calls(one, "cudaMalloc", [300 * US])))

    assert next(iter(sink.collect().by_service)) == "quiet"

"""What devices did, as it leaves: spans at their original times, a bound on them, and metrics of it all."""

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu import cli
from otel_gpu.explain.traces import device_use
from otel_gpu.explain.traces.device_use import examine
from otel_gpu.export.spans.device_parts import LONG
from otel_gpu.export.spans.device_spans import MAX_SPANS, run_spans
from otel_gpu.wire.device_activity import (
    UNKNOWN_COLLECTIVE,
    DeviceActivities,
    DeviceTrace,
    HostOperations,
    HostWork,
    Names,
    Thread,
    Work,
)
from tests.receiver import OtlpReceiver
from tests.unit.importers.exports import Export
from tests.unit.importers.traces import (
    LOADER,
    T0_US,
    call,
    host,
    kernel,
    step,
    trace,
    training,
    write,
)

US, S = 1_000, 1e9
T0 = T0_US * US
REAL = os.environ.get("OTEL_GPU_TEST_TORCH_DATA", "")
LEFT_OUT = {
    "gpu.step": "otel_gpu.steps.left_out",
    "gpu.phase": "otel_gpu.phases.left_out",
    "gpu.idle": "otel_gpu.gaps.left_out",
    "work": "otel_gpu.work.left_out",
}
WORK = {"gpu.kernel", "gpu.copy", "gpu.fill", "gpu.graph"}


@pytest.fixture
def send(monkeypatch):
    """Sends a file to a real receiver, and returns what arrived there."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)

    def of(path, kind="torch-trace", **environ):
        with OtlpReceiver() as receiver:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.grpc_endpoint)
            for name, value in environ.items():
                monkeypatch.setenv(name, value)
            assert cli.main(["import", kind, str(path), "--otlp"]) == 0
            # Processes of several hosts may have one number.
            return receiver.spans(), {
                key._replace(service=found.resource["service.instance.id"]): found
                for key, found in receiver.points()
            }

    return of


@pytest.fixture
def sent(send, tmp_path):
    """What arrives of the events of a trace of torch.profiler."""
    return lambda events, **head: send(write(tmp_path / "trace.json", trace(events, **head)))


def named(spans, name):
    """Spans of one name, in order of time."""
    found = [one for one in spans if one.span.name == name]
    return sorted(found, key=lambda one: one.span.start_time_unix_nano)


def times(one):
    return one.span.start_time_unix_nano, one.span.end_time_unix_nano


def us(start, length):
    """Stretches of a trace as times of spans."""
    return T0 + start * US, T0 + (start + length) * US


def values(metrics, name, attribute):
    """Values of a metric by the value of an attribute."""
    return {
        key.attribute(attribute): found.point.as_double
        for key, found in metrics.items()
        if key.name == name
    }


def histograms(metrics, name, attribute):
    return {
        key.attribute(attribute): found.point for key, found in metrics.items() if key.name == name
    }


def test_steps_gaps_and_work_are_at_their_original_times(sent):
    """To the nanosecond, each below its step, and the steps below the run."""
    spans, _ = sent(training(5, kernels=4))

    (run,) = named(spans, "gpu.run")
    steps = named(spans, "gpu.step")
    assert times(run) == us(0, 5_000)
    assert [times(one) for one in steps] == [us(at * 1_000, 1_000) for at in range(5)]
    assert [times(one) for one in named(spans, "gpu.idle")] == [
        us(at * 1_000, 500) for at in range(5)
    ]
    assert [times(one) for one in named(spans, "gpu.phase")] == [
        us(at * 1_000, 480) for at in range(5)
    ]
    assert [times(one) for one in named(spans, "gpu.copy")] == [
        us(at * 1_000 + 500, 100) for at in range(5)
    ]
    assert [times(one) for one in named(spans, "gpu.kernel")] == [
        us(at * 1_000 + 600 + 100 * one, 100) for at in range(5) for one in range(4)
    ]
    assert len(spans) == 41
    by_id = {one.span.span_id: one for one in spans}
    assert len(by_id) == 41
    assert not run.span.parent_span_id
    assert {one.span.trace_id for one in spans} == {run.span.trace_id}
    assert {one.span.parent_span_id for one in steps} == {run.span.span_id}
    for one in spans:
        if one.span.name not in ("gpu.run", "gpu.step"):
            parent = by_id[one.span.parent_span_id]
            assert parent.span.name == "gpu.step"
            assert times(parent)[0] <= times(one)[0] < times(one)[1] <= times(parent)[1]
    assert {one.scope for one in spans} == {"otel_gpu.device"}


def test_spans_say_where_the_time_went_and_why(sent):
    """The phases of a step are its duration; its idle time has the cause of most of it."""
    model = {"id": 0, "name": "Tesla V100"}
    spans, _ = sent(training(5, kernels=4), deviceProperties=[model])

    first, second, *_ = named(spans, "gpu.step")
    phases = {
        "otel_gpu.compute.time": 0.0004,
        "otel_gpu.communication.time": 0.0,
        "otel_gpu.copy.time": 0.0001,
        "otel_gpu.idle.time": 0.0005,
    }
    device = {"cuda.device.index": 0, "cuda.device.model": "Tesla V100"}
    for number, one in enumerate((first, second)):
        assert (
            one.attributes
            == {
                "otel_gpu.step.name": f"ProfilerStep#{number}",
                "otel_gpu.idle.cause": "data_loader",
            }
            | phases
            | device
        )
    (run,) = named(spans, "gpu.run")
    assert (
        run.attributes
        == {
            "otel_gpu.source.name": "trace.json",
            "otel_gpu.source.tool": "torch.profiler",
            "otel_gpu.verdict": "data-bound",
            "otel_gpu.step.count": 5,
            "otel_gpu.step.median.time": 0.001,
            "otel_gpu.compute.time": 0.002,
            "otel_gpu.communication.time": 0.0,
            "otel_gpu.copy.time": 0.0005,
            "otel_gpu.idle.time": 0.0025,
            "otel_gpu.idle.cause": "data_loader",
        }
        | device
    )
    idle, copy, gemm = (named(spans, f"gpu.{name}")[0] for name in ("idle", "copy", "kernel"))
    assert (
        idle.attributes
        == {
            "otel_gpu.idle.cause": "data_loader",
            "otel_gpu.host.operation": LOADER,
        }
        | device
    )
    assert (
        copy.attributes
        == {
            "otel_gpu.work.kind": "copy",
            "cuda.memcpy.kind": "MemcpyHostToDevice",
            "gpu.cuda.size": 4096,
            "otel_gpu.stream": 7,
        }
        | device
    )
    assert (
        gemm.attributes
        == {
            "otel_gpu.work.kind": "gemm",
            "gpu.cuda.kernel.name": "sgemm_0",
            "otel_gpu.stream": 7,
        }
        | device
    )
    (phase, *_) = named(spans, "gpu.phase")
    assert phase.attributes == {"otel_gpu.phase.name": LOADER, "otel_gpu.thread.tid": 100}


def test_metrics_hold_the_whole_window(sent):
    """States add up to it, causes to the idle time, and every activity is in a histogram."""
    _, metrics = sent(training(5, kernels=4))

    states = values(metrics, "gpu.device.time", "state")
    assert states == {"compute": 0.002, "communication": 0.0, "memcpy": 0.0005, "idle": 0.0025}
    causes = values(metrics, "gpu.device.idle.time", "otel_gpu.idle.cause")
    # Of each gap of 500 µs the loader has 480, and the launch that ends it 10.
    assert causes == {"data_loader": 0.0024, "host_other": 5e-05, "launch_latency": 5e-05}
    work = histograms(metrics, "gpu.device.work.duration", "otel_gpu.work.kind")
    assert {kind: (point.count, point.sum) for kind, point in work.items()} == {
        "gemm": (20, 0.002),
        "copy": (5, 0.0005),
    }
    assert (work["gemm"].min, work["gemm"].max) == (0.0001, 0.0001)
    # 2^(k/4) < 0.0001 s <= 2^((k+1)/4)
    assert (work["gemm"].scale, list(work["gemm"].positive.bucket_counts)) == (2, [20])
    assert work["gemm"].positive.offset == -54
    (delay,) = histograms(metrics, "gpu.device.launch.delay", "state").values()
    # The copy of each step begins 5 µs after its call; kernel n 600 + 100 n after 500 + n + 1.
    delays_us = [5, *(600 + 100 * one - 500 - one - 1 for one in range(4))]
    assert (delay.count, delay.sum) == (25, pytest.approx(5 * sum(delays_us) / 1e6))
    for key, found in metrics.items():
        if key.name.startswith("gpu.device."):
            at = found.point.start_time_unix_nano, found.point.time_unix_nano
            assert at == us(0, 5_000)
            assert found.scope == "otel_gpu.device"


def test_a_file_becomes_no_more_spans_than_may_be(sent):
    """Steps have half of them; what has no span is counted, and is in the metrics all the same."""
    longer = training(1, first_us=1_008_000, length_us=2_000, kernels=23)

    spans, metrics = sent(training(1_008, kernels=23) + longer)

    count = Counter("work" if one.span.name in WORK else one.span.name for one in spans)
    assert sum(count.values()) == len(spans) == MAX_SPANS
    assert count == {"gpu.run": 1, "gpu.step": 999, "gpu.phase": 250, "gpu.idle": 375, "work": 375}
    assert times(named(spans, "gpu.step")[-1]) == us(1_008_000, 2_000)
    (run,) = named(spans, "gpu.run")
    whole = {"gpu.step": 1_009, "gpu.phase": 1_009, "gpu.idle": 1_010, "work": 1_009 * 24}
    assert {
        name: count[name] + run.attributes[attribute] for name, attribute in LEFT_OUT.items()
    } == whole
    work = histograms(metrics, "gpu.device.work.duration", "otel_gpu.work.kind")
    assert {kind: point.count for kind, point in work.items()} == {
        "gemm": 1_009 * 23,
        "copy": 1_009,
    }


def test_processes_of_one_file_share_its_spans(send, tmp_path):
    """Each is a trace of its own, with what the file says of it."""
    made = Export()
    made.extra = [
        "CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT)",
        "CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)",
    ]
    made.fill = [
        ("PROCESSES", [(0, pid, f"trainer{pid}") for pid in (41, 43, 47)]),
        ("TARGET_INFO_SYSTEM_ENV", [("Hostname", "node7")]),
    ]
    number = 1
    for pid in (41, 43, 47):
        for at in range(149):
            made.range(at * 1_000, 1_000, f"ProfilerStep#{at}", pid=pid)
            for one in range(7):
                made.call(at * 1_000 + one, 1, number, pid=pid, tid=pid)
                made.kernel(at * 1_000 + 300 + 100 * one, 100, number, pid=pid)
                number += 1

    spans, metrics = send(made.write(tmp_path / "report.sqlite"), "nsys")

    runs = named(spans, "gpu.run")
    assert {
        (one.resource["process.pid"], one.resource["service.name"], one.resource["host.name"])
        for one in runs
    } == {(pid, f"unknown_service:trainer{pid}", "node7") for pid in (41, 43, 47)}
    by_trace = Counter(one.span.trace_id for one in spans)
    assert set(by_trace.values()) == {MAX_SPANS // 3}
    assert len({one.resource["service.instance.id"] for one in runs}) == 3
    counts = {
        key.pid: found.point.count
        for key, found in metrics.items()
        if key.name == "gpu.device.work.duration"
    }
    assert counts == {41: 149 * 7, 43: 149 * 7, 47: 149 * 7}


def test_each_rank_is_a_trace_of_one_service(send, tmp_path):
    """Under the name that the user gives it, and the same again when it is imported again."""
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(2):
        head = {"distributedInfo": {"rank": rank, "world_size": 2}}
        write(folder / f"rank{rank}.json", trace(training(3, kernels=2), **head))

    spans, metrics = send(folder, OTEL_SERVICE_NAME="resnet")
    again, _ = send(folder, OTEL_SERVICE_NAME="resnet")

    runs = named(spans, "gpu.run")
    assert {one.resource["service.name"] for one in spans} == {"resnet"}
    assert {
        (one.resource["otel_gpu.rank"], one.resource["otel_gpu.world_size"]) for one in runs
    } == {
        (0, 2),
        (1, 2),
    }
    assert len({one.span.trace_id for one in runs}) == 2
    ranks = {
        found.resource["otel_gpu.rank"]
        for key, found in metrics.items()
        if key.name == "gpu.device.time"
    }
    assert ranks == {0, 1}
    assert [one.span for one in spans] == [one.span for one in again]


def test_a_process_with_two_devices_has_a_trace_for_each(sent):
    """They share the spans of the file."""
    other = training(3, kernels=3)
    for event in other:
        if "device" in event["args"]:
            event["args"] |= {"device": 1, "correlation": event["args"]["correlation"] + 500}
        elif event["args"].get("correlation"):
            event["args"]["correlation"] += 500
    steps = {event["name"] for event in other if event["name"].startswith("ProfilerStep")}

    spans, metrics = sent(
        training(3, kernels=3) + [event for event in other if event["name"] not in steps]
    )

    runs = named(spans, "gpu.run")
    assert [one.attributes["cuda.device.index"] for one in runs] == [0, 1]
    assert len({one.span.trace_id for one in runs}) == 2
    assert len({one.resource["service.instance.id"] for one in runs}) == 1
    counts = {
        (key.attribute("cuda.device.index"), key.attribute("otel_gpu.work.kind")): found.point.count
        for key, found in metrics.items()
        if key.name == "gpu.device.work.duration"
    }
    assert counts == {(0, "gemm"): 9, (0, "copy"): 3, (1, "gemm"): 9, (1, "copy"): 3}


def test_what_the_file_cannot_carry_is_not_sent(sent):
    """A graph of which nothing was recorded: no idle time, and no cause of any."""
    spans, metrics = sent([*training(3, kernels=2), call("cudaGraphLaunch", 900, 5, 99)])

    (run,) = named(spans, "gpu.run")
    # Whether what is missing was idle time is not known.
    assert run.attributes["otel_gpu.faults"] == ("lost_graphs",)
    assert run.attributes["otel_gpu.verdict"] == "unknown"
    assert not named(spans, "gpu.idle")
    assert not {
        name for one in spans for name in one.attributes if name.startswith("otel_gpu.idle")
    }
    assert "otel_gpu.gaps.left_out" not in run.attributes
    assert values(metrics, "gpu.device.time", "state").keys() == {
        "compute",
        "communication",
        "memcpy",
    }
    assert not values(metrics, "gpu.device.idle.time", "otel_gpu.idle.cause")


def test_idle_time_may_be_known_and_its_causes_not(sent):
    """Without any call of the host a gap is a gap."""
    spans, metrics = sent([kernel(10, 90), kernel(600, 400)])

    (idle,) = named(spans, "gpu.idle")
    assert times(idle) == us(100, 500)
    assert "otel_gpu.idle.cause" not in idle.attributes
    assert values(metrics, "gpu.device.time", "state")["idle"] == 0.0005
    assert not values(metrics, "gpu.device.idle.time", "otel_gpu.idle.cause")


def test_without_steps_all_is_below_the_run(sent):
    """The run is the root and the only parent."""
    events = [
        event for event in training(30, kernels=7) if not event["name"].startswith("Profiler")
    ]
    events = [event for event in events if event["name"] != LOADER]

    spans, _ = sent(events)

    (run,) = named(spans, "gpu.run")
    assert run.attributes["otel_gpu.step.count"] == 0
    assert "otel_gpu.step.median.time" not in run.attributes
    assert {one.span.parent_span_id for one in spans} == {b"", run.span.span_id}
    assert sum(one.span.name in WORK for one in spans) == 100
    assert run.attributes["otel_gpu.work.left_out"] == 30 * 8 - 100


def test_times_that_the_file_does_not_say_are_marked(send, tmp_path):
    """They are right to each other, and the end is that of the file."""
    events = training(3, kernels=2)
    for event in events:
        event["ts"] -= T0_US
    path = write(tmp_path / "trace.json", trace(events))

    spans, _ = send(path)

    (run,) = named(spans, "gpu.run")
    assert run.attributes["otel_gpu.times.estimated"] is True
    assert times(run)[1] == path.stat().st_mtime_ns
    assert [times(one)[1] - times(one)[0] for one in named(spans, "gpu.step")] == [US * 1_000] * 3


def test_a_trace_without_a_device_sends_nothing(sent):
    """What the agent says of itself aside."""
    spans, metrics = sent([step(1, 0, 100), host("aten::mm", 5, 20)])

    assert spans == []
    assert not [key for key in metrics if key.name.startswith("gpu.")]


def test_a_trace_is_examined_once_and_not_kept(sent, monkeypatch):
    """Those who send it and those who report on it take one result; then the memory is free."""
    examined = []
    real = device_use._examine
    monkeypatch.setattr(device_use, "_examine", lambda trace: examined.append(1) or real(trace))

    sent(training(3))

    assert examined == [1]
    assert device_use._examined == []


def made_trace(work, regions, base_unix_ns=T0):
    """A trace of kernels, each launched at its number, and of regions that the program names."""
    names, activities, on_host = Names(), DeviceActivities(), HostOperations()
    for number, (device, start_ns, duration_ns) in enumerate(work, 1):
        name = names.number(f"sgemm_{number % 5}")
        activities.add(Work.KERNEL, device, 7, start_ns, duration_ns, name, correlation=number)
        launch = names.number("cudaLaunchKernel")
        on_host.add(HostWork.CALL, 1, max(0, start_ns - number), 1, launch, number)
    for name, start_ns, duration_ns in regions:
        on_host.add(HostWork.ANNOTATION, 1, start_ns, duration_ns, names.number(name))
    threads = (Thread(0, 0), Thread(4, 5, "main"))
    rest = (threads, (UNKNOWN_COLLECTIVE,), {})
    return DeviceTrace(
        "made", "tool", base_unix_ns, True, names, Names(), activities, on_host, *rest
    )


SOME = st.integers(0, 200_000)
KERNELS = st.lists(st.tuples(st.integers(-1, 2), SOME, SOME), min_size=1, max_size=40)
REGIONS = st.lists(
    st.tuples(st.sampled_from(["ProfilerStep#1", "ProfilerStep#2", "iteration 1", "optimizer"]), SOME, SOME),
    max_size=30,
)  # fmt: skip


@given(KERNELS, REGIONS, st.integers(1, 40), st.sampled_from([T0, 0, -100_000, (1 << 63) - 1]))
@settings(max_examples=150, deadline=None)
def test_whatever_lies_how_the_bound_holds_and_nothing_is_lost(work, regions, most, base_unix_ns):
    """Ids differ, parents come first, and each kind is sent or counted."""
    for use in examine(made_trace(work, regions, base_unix_ns)):
        spans = list(run_spans(use, None, b"seed", most))

        assert len(spans) <= most
        assert len({span.span_id for span in spans}) == len(spans)
        seen = {b""}
        for span in spans:
            assert span.parent_span_id in seen
            seen.add(span.span_id)
            assert 0 <= span.start_unix_ns <= span.end_unix_ns < 1 << 63
        count = Counter("work" if span.name in WORK else span.name for span in spans)
        left_out = {name: dict(spans[0].attributes).get(key, 0) for name, key in LEFT_OUT.items()}
        assert count["gpu.step"] + left_out["gpu.step"] == len(use.steps)
        assert count["work"] + left_out["work"] == len(use.timeline.rows)
        if use.knows_idle:
            assert count["gpu.idle"] + left_out["gpu.idle"] == len(use.every_gap)


@pytest.mark.skipif(not REAL, reason="needs OTEL_GPU_TEST_TORCH_DATA: a folder of real artefacts")
@pytest.mark.parametrize(
    ("name", "steps", "mean_us", "waits"),
    [("workers_0.1623143089861", 6, 177_592, 6), ("workers_4.1623212756351", 6, 141_068, 0)],
)
def test_real_steps_are_those_that_others_assert(send, name, steps, mean_us, waits):
    """By the kineto plugin's own average; each wait for the loader is a gap."""
    spans, metrics = send(next(Path(REAL).rglob(f"{name}*")))

    found = named(spans, "gpu.step")
    assert len(found) == steps
    whole_ns = sum(end - start for start, end in map(times, found))
    assert whole_ns / steps / US == pytest.approx(mean_us, abs=0.5)
    gaps = named(spans, "gpu.idle")
    loading = [g for g in gaps if g.attributes["otel_gpu.idle.cause"] == "data_loader"]
    assert len(loading) == waits
    assert all(times(g)[1] - times(g)[0] >= LONG * mean_us * US * 0.9 for g in gaps)
    states = values(metrics, "gpu.device.time", "state")
    (window_ns,) = {
        found.point.time_unix_nano - found.point.start_time_unix_nano
        for key, found in metrics.items()
        if key.name == "gpu.device.time"
    }
    assert sum(states.values()) == pytest.approx(window_ns / S, abs=1e-9)


@pytest.mark.skipif(not REAL, reason="needs OTEL_GPU_TEST_TORCH_DATA: a folder of real artefacts")
@pytest.mark.parametrize(
    ("name", "kind", "runs"),
    [
        ("google_owlv2-large-patch14-ensemble__1016001.json.gz", "torch-trace", 1),
        ("qwen_mi300.json.gz", "torch-trace", 1),
        ("nccl_data.json.gz", "torch-trace", 1),
        ("trace_diff_control.json.gz", "torch-trace", 1),
        ("mfu_2gpu_after.sqlite", "nsys", 2),
    ],
)
def test_real_runs_add_up(send, name, kind, runs):
    """States to the window, causes to the idle time; and every span has its parent."""
    spans, metrics = send(next(Path(REAL).rglob(name)), kind)

    assert len(spans) <= MAX_SPANS
    assert len(named(spans, "gpu.run")) == runs
    ids = {one.span.span_id for one in spans}
    assert {one.span.parent_span_id for one in spans} <= {b"", *ids}
    states, idle, causes, windows = Counter(), Counter(), Counter(), {}
    for key, found in metrics.items():
        if key.name == "gpu.device.time":
            states[key.service] += found.point.as_double
            at = found.point.start_time_unix_nano, found.point.time_unix_nano
            windows[key.service] = (at[1] - at[0]) / S
            if key.attribute("state") == "idle":
                idle[key.service] += found.point.as_double
        elif key.name == "gpu.device.idle.time":
            causes[key.service] += found.point.as_double
    assert len(windows) == runs
    assert dict(states) == pytest.approx(windows, abs=1e-9)
    if causes:
        assert dict(causes) == pytest.approx(dict(idle), abs=1e-9)

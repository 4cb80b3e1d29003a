"""What allocators hold as metrics, and requests that failed as spans."""

import dataclasses
import json

from otel_gpu.config import Config
from otel_gpu.export.exports import open_exports
from otel_gpu.export.metrics import observed_program
from otel_gpu.options import ExportConfig
from tests.activities import (
    APIS_BY_NAME,
    H100,
    T0,
    blocks,
    capture,
    counters,
    image,
    line_stack,
    out_of_memory,
    totals,
)

TRAINER = image(name="train.py")
MIB = 1 << 20
GPU = {"cuda.device.index": "0", "cuda.device.uuid": H100.uuid, "cuda.device.model": H100.model}
SECOND_GPU = H100._replace(index=1)


def exported(tmp_path, *activities):
    """All requests that a replay sends, as OTLP has them."""
    path = tmp_path / "sent.jsonl"
    config = dataclasses.replace(Config(), export=ExportConfig(otlp_file=str(path)))
    with open_exports(config, {}, live=False) as exports:
        for activity in (capture(), *activities):
            exports.observe(activity)
    return [json.loads(line) for line in path.read_text().splitlines()]


def attributes_of(one):
    return {pair["key"]: next(iter(pair["value"].values())) for pair in one.get("attributes", ())}


def metrics_of(requests):
    """Points of the process, by the name of their metric."""
    found = {}
    for request in requests:
        for resource in request.get("resourceMetrics", ()):
            if attributes_of(resource["resource"]).get("service.name") != "train.py":
                continue
            for scope in resource["scopeMetrics"]:
                for metric in scope["metrics"]:
                    (data,) = (metric[kind] for kind in ("sum", "gauge") if kind in metric)
                    for point in data["dataPoints"]:
                        value = point.get("asInt", point.get("asDouble"))
                        found.setdefault(metric["name"], []).append(
                            (attributes_of(point), float(value))
                        )
    return found


def test_metrics_say_what_the_allocator_said_last(tmp_path):
    """Of each device; the peak is that of the allocator, and the coverage ours."""
    first = totals(300 * MIB, 400 * MIB, allocations=5)
    last = totals(
        200 * MIB, 400 * MIB, peak_allocated_bytes=350 * MIB, allocations=6, frees=4, unequal=1,
        unsampled_bytes=7 * MIB, rate_limited_bytes=2 * MIB,
    )  # fmt: skip
    other = blocks(TRAINER, 3, totals(MIB), number=1, device=SECOND_GPU)
    requests = exported(tmp_path, blocks(TRAINER, 1, first), blocks(TRAINER, 3, last), other)

    found = metrics_of(requests)
    second = {**GPU, "cuda.device.index": "1"}
    assert found["gpu.memory.allocated"] == [(GPU, 200 * MIB), (second, MIB)]
    assert found["gpu.memory.reserved"] == [(GPU, 400 * MIB), (second, MIB)]
    assert found["gpu.memory.peak"] == [(GPU, 350 * MIB), (second, MIB)]
    assert found["otel_gpu.memory.coverage"] == [(GPU, 0.9), (second, 1)]
    assert ({"reason": "not_sampled", **GPU}, 7 * MIB) in found["otel_gpu.memory.unplaced"]
    assert ({"reason": "rate", **GPU}, 2 * MIB) in found["otel_gpu.memory.unplaced"]
    assert "gpu.memory.failures" not in found


def test_a_request_that_failed_is_a_span_and_is_counted(tmp_path):
    """With its line, what there was, and an error; below the call that it was made in."""
    in_call = out_of_memory(
        TRAINER, 5, 9 * MIB, stack=line_stack(74), allocated_bytes=70 * MIB, reserved_bytes=80 * MIB,
        device_free_bytes=3 * MIB, device_total_bytes=100 * MIB, root_start_ktime_ns=4,
    )  # fmt: skip
    api = APIS_BY_NAME["cudaMalloc"]
    alone = out_of_memory(TRAINER, 6, MIB, source=2, api=api.number)
    requests = exported(tmp_path, in_call, alone)

    spans = [
        span
        for request in requests
        for resource in request.get("resourceSpans", ())
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    first, second = spans
    told = attributes_of(first)
    assert first["name"] == second["name"] == "gpu.memory.oom"
    assert first["status"]["code"] == 2
    assert first["startTimeUnixNano"] == first["endTimeUnixNano"] == str(T0 + 5 * 10**9)
    assert first["parentSpanId"] == in_call.parent_span_id.hex()
    assert not second.get("parentSpanId")
    assert told["error.type"] == "out_of_memory"
    assert (told["code.file.path"], told["code.line.number"]) == ("/app/train.py", "74")
    assert told["otel_gpu.memory.asked"] == str(9 * MIB)
    assert told["otel_gpu.memory.device.free"] == str(3 * MIB)
    assert attributes_of(second)["gpu.cuda.api"] == "cudaMalloc"
    assert "otel_gpu.memory.device.free" not in attributes_of(second)
    assert metrics_of(requests)["gpu.memory.failures"] == [(GPU, 2)]


def test_devices_of_a_stranger_are_bounded(tmp_path, monkeypatch):
    """A made-up recording can have as many as it likes."""
    monkeypatch.setattr(observed_program, "MAX_DEVICES", 3)
    readings = [blocks(TRAINER, n, totals(n), number=n, device=None) for n in range(1, 9)]
    failures = [out_of_memory(TRAINER, n, 1, device=n) for n in range(1, 9)]

    found = metrics_of(exported(tmp_path, *readings, *failures))

    assert sum(value for _, value in found["gpu.memory.allocated"]) == 1 + 2 + 3
    assert sum(value for _, value in found["gpu.memory.failures"]) == 3


def test_stacks_of_blocks_are_counted(tmp_path):
    """Those sent, and those rate-limited."""
    requests = exported(tmp_path, counters(2, block_stacks=7, block_stacks_rate_limited=5))

    text = json.dumps(requests)
    assert "otel_gpu.block_stacks.taken" in text
    assert "otel_gpu.block_stacks.rate_limited" in text

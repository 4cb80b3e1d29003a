"""Recordings moved to the present, for backends that refuse old data, and small synthetic ones."""

import time
from collections.abc import Sequence
from pathlib import Path

from otel_gpu import wire
from otel_gpu.capture.recording import RecordingWriter, read_recording
from otel_gpu.options import Config, HistogramsConfig
from otel_gpu.wire.agent_records import clock_record, json_record
from tests.replay.make_recordings import MALLOC, S, aggregates, at, capture, counted
from tests.synthetic import kernel_record

PROCESS = {"pid": 4243, "program_ktime_ns": 900 * S}


def moved_to_now(source: Path, target: Path) -> float:
    """
    Copy a recording as if its last record had been made just now.

    Returns:
        The Unix time in seconds of that record.
    """
    records = [record for batch in read_recording(source) for record in batch]
    last_ktime_ns = max(_header(record)["ktime_ns"] for record in records)
    now_unix_ns = time.time_ns()
    offset_ns = now_unix_ns - last_ktime_ns
    moved = []
    for record in records:
        header = _header(record)
        if header["kind"] == wire.RECORD_CLOCK:
            ktime_ns = header["ktime_ns"]
            moved.append(clock_record(ktime_ns, ktime_ns + offset_ns))
        else:
            moved.append(record)
    with RecordingWriter(target) as writer:
        writer.write(moved)
    return now_unix_ns / S


def counted_now(target: Path, durations_ns: Sequence[int], layout: str) -> float:
    """
    Make a recording of one program, in which ``cudaMalloc`` took these times.

    Args:
        target: Where it goes.
        durations_ns: Of each call.
        layout: What was counted in: ``explicit`` or ``exponential`` buckets.

    Returns:
        The Unix time in seconds of its end.
    """
    config = Config(histograms=HistogramsConfig(layout=layout))
    end_unix_ns = time.time_ns()
    facts = {"comm": "counted", "exe": "/srv/counted", "command_args": ["/srv/counted"]}
    points = counted(wire.METRIC_CALL_DURATION, durations_ns, config, PROCESS, api=MALLOC)
    records = [
        capture(config, "command"),
        clock_record(at(0), end_unix_ns - 2 * S),
        json_record(wire.RECORD_PROCESS, at(1), facts, **PROCESS),
        aggregates(at(1900), points),
        kernel_record(wire.RECORD_EXIT, ktime_ns=at(2000), **PROCESS),
    ]
    with RecordingWriter(target) as writer:
        writer.write(records)
    return end_unix_ns / S


def _header(record: bytes) -> dict[str, int]:
    return wire.RECORD_HEADER.named(record)

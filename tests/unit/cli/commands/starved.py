"""
The story of a trainer that is starved by a compiler, told record by record.

    python -m tests.unit.cli.commands.starved    # write what explain makes of it

``starved.json`` is what ``otel-gpu explain --json`` says of it. It changes only with what
we say; read the difference before committing it.
"""

import argparse
import bisect
import contextlib
import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from otel_gpu import cli, wire
from otel_gpu.capture.recording import RecordingWriter
from otel_gpu.config import Config
from otel_gpu.wire.agent_records import (
    aggregates_record,
    clock_record,
    counters_record,
    json_record,
    times_record,
)
from otel_gpu.wire.histogram_layout import duration_bounds_ns, layout_description
from tests.synthetic import call_record, kernel_record, series, times_entry

EXPECTED = Path(__file__).with_suffix(".json")

MS = 1_000_000
S = 1_000_000_000
BEGIN_KTIME_NS = 1_000 * S
BEGIN_UNIX_NS = 1_760_000_000 * S
LAUNCH, STREAM_SYNC, MEMCPY = 1, 5, 30
PIPE_READ = 7
TRAINER = {"pid": 4242, "program_ktime_ns": 900 * S}
MAIN = TRAINER | {"tid": 4242, "comm": "python3"}
WORKER = {"pid": 4250, "program_ktime_ns": 950 * S, "tid": 4250, "comm": "pt_data_worker"}
HOG = {"culprit_pid": 900, "culprit_tid": 901}
NOWHERE = {"kernel_stack": -1, "system_call": -1}


def at(milliseconds: float) -> int:
    """The ktime so many milliseconds into the capture."""
    return BEGIN_KTIME_NS + round(milliseconds * MS)


def tell(hog: str = "cc1plus") -> Iterator[bytes]:
    """
    Yield the records; ``hog`` is what the compiler calls itself.

    A launch loses 150 of 160 ms to the compiler. Then the trainer waits 200 ms for its
    worker, which waits 180 of them for a CPU that the compiler has.
    """
    yield json_record(
        wire.RECORD_CAPTURE,
        at(0),
        {
            "agent": {"version": "0.1.0", "pid": 4000},
            "host": {"name": "gpu-node-7", "id": "3f1c", "boot_id": "b2c3", "cpus": 8},
            "mode": "command",
            "layout": layout_description(Config()),
        },
    )
    yield clock_record(at(0), BEGIN_UNIX_NS)
    for image, arguments in (
        (MAIN, ["python3", "train.py", "--lr", "0.1"]),
        (WORKER, ["python3", "worker.py"]),
    ):
        yield json_record(
            wire.RECORD_PROCESS,
            at(0.1),
            {"ppid": 1, "exe": "/usr/bin/python3.11", "command_args": arguments},
            pid=image["pid"],
            program_ktime_ns=image["program_ktime_ns"],
        )
    yield json_record(
        wire.RECORD_STACK,
        at(0.2),
        {"kernel_stack": PIPE_READ, "functions": ["anon_pipe_read", "vfs_read", "ksys_read"]},
    )
    yield counters_record(at(0), [0] * wire.COUNTER_COUNT)
    yield _counted(at(1_000), launches=[4_000] * 999 + [6_000], gaps=[50_000] * 1_000)
    yield _times(at(1_000), run_queue_ms=0, ipc_ms=0)
    yield _stall(
        1_505,
        1_505,
        1_655,
        switch_type=wire.SWITCH_INVOLUNTARY,
        call=1_500,
        **MAIN,
        **HOG,
        culprit_comm=hog,
    )
    yield call_record(
        ktime_ns=at(1_660),
        start_ktime_ns=at(1_500),
        run_queue_ns=150 * MS,
        involuntary_switches=1,
        device=0,
        api=LAUNCH,
        choices=wire.CHOICE_SLOW | wire.CHOICE_STALLED,
        **MAIN,
    )
    yield _stall(
        1_715, 1_715, 1_895, switch_type=wire.SWITCH_INVOLUNTARY, **WORKER, **HOG, culprit_comm=hog
    )
    yield _stall(
        1_700,
        1_900,
        1_900,
        switch_type=wire.SWITCH_VOLUNTARY,
        kernel_stack=PIPE_READ,
        waker_pid=4250,
        waker_tid=4250,
        waker_comm="pt_data_worker",
        **MAIN,
    )
    yield kernel_record(
        wire.RECORD_GAP,
        ktime_ns=at(1_910),
        start_ktime_ns=at(1_690),
        blocked_ns=200 * MS,
        voluntary_switches=1,
        device=0,
        previous_api=LAUNCH,
        next_api=MEMCPY,
        choices=wire.CHOICE_SLOW | wire.CHOICE_STALLED,
        **MAIN,
    )
    yield _counted(
        at(2_000),
        launches=[4_000] * 1_999 + [6_000, 160 * MS],
        gaps=[50_000] * 2_000 + [220 * MS],
    )
    yield _times(at(2_000), run_queue_ms=150, ipc_ms=200)
    counts = [0] * wire.COUNTER_COUNT
    counts[wire.COUNTER_LOST_NO_ENTRY] = 2
    counts[wire.COUNTER_SPANS_RATE_LIMITED] = 1
    yield counters_record(at(2_000), counts)
    yield json_record(wire.RECORD_PRESSURE, at(2_000), _pressure(0.5, 1_000_000, 0))
    yield json_record(wire.RECORD_PRESSURE, at(6_000), _pressure(9.5, 3_000_000, 30 * MS))


def _stall(
    start_ms: float, runnable_ms: float, end_ms: float, *, call: float = 0, **values
) -> bytes:
    inside = {}
    if call:
        inside = {
            "call_start_ktime_ns": at(call),
            "root_start_ktime_ns": at(call),
            "call_api": LAUNCH,
        }
    return kernel_record(
        wire.RECORD_STALL,
        ktime_ns=at(end_ms),
        start_ktime_ns=at(start_ms),
        runnable_ktime_ns=at(runnable_ms),
        cpu=3,
        **NOWHERE | inside | values,
    )


def _counted(ktime_ns: int, *, launches: list[int], gaps: list[int]) -> bytes:
    bounds = duration_bounds_ns(Config())
    pairs = []
    for metric, api, values in (
        (wire.METRIC_CALL_DURATION, LAUNCH, launches),
        (wire.METRIC_LAUNCH_GAP, 0, gaps),
    ):
        buckets: dict[int, int] = {}
        for value in values:
            bucket = bisect.bisect_left(bounds, value)
            buckets[bucket] = buckets.get(bucket, 0) + 1
        totals = {"sum": sum(values), "min": min(values), "max": max(values)}
        pairs.append(series(metric=metric, api=api, device=0, buckets=buckets, **totals, **TRAINER))
    return aggregates_record(ktime_ns, pairs)


def _pressure(load: float, waited_us: int, throttled_ns: int) -> dict:
    return {
        "psi": {"cpu": {"some_avg10": 0.0, "some_total_us": waited_us}},
        "load1": load,
        "cpus": 8,
        "swap_in_pages": 0,
        "swap_out_pages": 0,
        "cgroups": {
            "/train": {
                "nr_throttled": throttled_ns // (10 * MS),
                "throttled_ns": throttled_ns,
                "nr_periods": throttled_ns // MS,
                "pids": [4242],
            }
        },
    }


def _times(ktime_ns: int, *, run_queue_ms: int, ipc_ms: int) -> bytes:
    entries = [
        (wire.STATE_ON_CPU, wire.CONTEXT_CALL, -1, 100 * MS, 1_000),
        (wire.STATE_ON_CPU, wire.CONTEXT_GAP, -1, 50 * MS, 1_000),
        (wire.STATE_RUN_QUEUE, wire.CONTEXT_CALL, -1, run_queue_ms * MS, 1),
        (wire.STATE_BLOCKED, wire.CONTEXT_GAP, PIPE_READ, ipc_ms * MS, 1),
    ]
    return times_record(
        ktime_ns,
        [
            times_entry(
                **TRAINER,
                kernel_stack=stack,
                state=state,
                context=context,
                time_ns=time_ns,
                count=count,
            )
            for state, context, stack, time_ns, count in entries
            if time_ns
        ],
    )


def write(path: Path) -> Path:
    """Write the recording."""
    with RecordingWriter(path) as writer:
        writer.write(list(tell()))
    return path


def explain(path: Path, *arguments: str) -> str:
    """What ``otel-gpu explain`` prints of a recording."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = cli.main(["explain", str(path), *arguments])
    assert code == 0
    return printed.getvalue()


def document(folder: Path) -> dict:
    """The document of the story; the source is what it would be in the folder."""
    made = json.loads(explain(write(folder / "starved.otelgpu"), "--json"))
    return made | {"source": Path(made["source"]).name}


def main() -> None:
    """Write what is expected."""
    argparse.ArgumentParser(description=__doc__.splitlines()[1]).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = json.dumps(document(Path(folder)), indent=2)
    EXPECTED.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

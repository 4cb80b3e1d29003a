"""A recording with samples: a loader that burns a CPU, and a main thread that waits for it."""

from pathlib import Path

from otel_gpu import wire
from otel_gpu.capture.recording import RecordingWriter
from otel_gpu.config import Config
from otel_gpu.wire.agent_records import clock_record, counters_record, json_record, times_record
from tests.replay.make_recordings import (
    BEGIN_UNIX_NS,
    LOADER,
    MAIN,
    MS,
    PIPE_STACK,
    STEP,
    STREAM_SYNC,
    TRAINER,
    at,
    capture,
    counters,
    native,
    stack,
    user_stack,
)
from tests.synthetic import kernel_record, times_entry

SLOW, FAST = 0x61, 0x62
SLOW_MS, FAST_MS, SPIN_MS, WAIT_MS = 910, 90, 200, 700


def tell(slow_ms=SLOW_MS):
    """Yield the records; ``slow_ms``: of one second of the loader's, in the slow function."""
    yield capture(Config(), "command")
    yield clock_record(at(0), BEGIN_UNIX_NS)
    about = {"ppid": 1, "exe": "/usr/bin/python3.11", "command_args": ["python3", "train.py"]}
    yield json_record(wire.RECORD_PROCESS, at(0.1), about, **TRAINER)
    yield stack(at(0.2), PIPE_STACK, "anon_pipe_read vfs_read")
    yield user_stack(at(0.3), SLOW, ["cpython", "slow_augment", "/app/pictures.py", 88, "", 0])
    yield user_stack(at(0.3), FAST, ["cpython", "crop", "/app/pictures.py", 20, "", 0])
    yield user_stack(at(0.3), STEP, native("cudaStreamSynchronize", "libcudart.so.12"))
    for place, time_ms in ((SLOW, slow_ms), (FAST, 1_000 - slow_ms)):
        for tick in range(0, time_ms, 10):
            yield _sample(100 + tick, place, **LOADER)
    for tick in range(0, SPIN_MS, 10):
        inside = {"api": STREAM_SYNC, "context": wire.CONTEXT_SYNCHRONIZE}
        yield _sample(1_100 + tick, STEP, root_start_ktime_ns=at(1_099), **inside, **MAIN)
    yield kernel_record(
        wire.RECORD_STALL,
        ktime_ns=at(2_000),
        start_ktime_ns=at(2_000 - WAIT_MS),
        runnable_ktime_ns=at(2_000),
        switch_type=wire.SWITCH_VOLUNTARY,
        kernel_stack=PIPE_STACK,
        system_call=-1,
        user_stack=SLOW,
        **MAIN,
    )
    entry = times_entry(
        **TRAINER,
        kernel_stack=-1,
        state=wire.STATE_ON_CPU,
        context=wire.CONTEXT_GAP,
        time_ns=1_210 * MS,
        count=9,
    )
    yield times_record(at(2_100), [entry])
    yield counters_record(at(2_100), counters(probe_entries=1))


def write(path: Path, **kwargs) -> Path:
    """Write the recording."""
    with RecordingWriter(path) as writer:
        writer.write(list(tell(**kwargs)))
    return path


def _sample(at_ms, place, **values):
    return kernel_record(
        wire.RECORD_CPU_SAMPLE,
        ktime_ns=at(at_ms),
        user_stack=place,
        weight_ns=10 * MS,
        **values,
    )

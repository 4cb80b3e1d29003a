"""
The synthetic recordings of this folder, and what a replay is to make of them.

    python -m tests.replay.make_recordings             # say what has changed
    python -m tests.replay.make_recordings --update    # write recordings and expectations

Each recording is a story that could have happened, told record by record. An
expectation (``.jsonl``: OTLP/JSON lines, ``.txt``: ``otel-gpu parse``) changes only
with what we send; read the difference before committing it.
"""

import argparse
import bisect
import contextlib
import io
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from unittest import mock

from otel_gpu import cli, wire
from otel_gpu.capture.recording import RecordingWriter, read_recording
from otel_gpu.options import Config, HistogramsConfig
from otel_gpu.wire.agent_records import (
    aggregates_record,
    clock_record,
    counters_record,
    json_record,
    open_call_record,
    times_record,
)
from otel_gpu.wire.histogram_layout import duration_bounds_ns, layout_description, size_bounds_bytes
from tests.synthetic import call_record, kernel_record, series, times_entry

HERE = Path(__file__).resolve().parent

MS = 1_000_000
S = 1_000_000_000
BEGIN_KTIME_NS = 1000 * S
BEGIN_UNIX_NS = 1_760_000_000 * S
TRAINER = {"pid": 4242, "program_ktime_ns": 900 * S}
MAIN = TRAINER | {"tid": 4242, "comm": "python3"}
LOADER = TRAINER | {"tid": 4250, "comm": "pt_data_worker"}
COMPILER = {"culprit_pid": 900, "culprit_tid": 901, "culprit_comm": "cc1plus"}
BY_LOADER = {"waker_pid": 4242, "waker_tid": 4250, "waker_comm": "pt_data_worker"}

PIPE_STACK, FUTEX_STACK, READ, FUTEX = 17, 1204, 0, 202
FAULT_STACK = 1 << 30
# Of user stacks: where a tensor is made, where a batch is waited for, where it all hangs, and
# where one is made.
EMPTY, EMPTY_INSIDE, STEP, COPY, NEXT_BATCH, WAIT = 0x51, 0x52, 0x53, 0x54, 0x55, 0x56
AUGMENT = 0x57
TRAIN = [
    ["cpython", "Trainer.step", "/app/train.py", 40, "", 0],
    ["cpython", "<module>", "/app/train.py", 102, "", 0],
]
LAUNCH, STREAM_SYNC, MALLOC, MEMCPY, CU_MALLOC = 1, 5, 10, 30, 110
UUID = bytes.fromhex("6a1f0c7e3b5d4c2a9f8e7d6c5b4a3921")


def at(milliseconds: float) -> int:
    """The ktime so many milliseconds into the capture."""
    return BEGIN_KTIME_NS + int(milliseconds * MS)


def capture(config: Config, mode: str) -> bytes:
    """The first record of every capture."""
    return json_record(
        wire.RECORD_CAPTURE,
        at(0),
        {
            "agent": {"version": "0.1.0", "pid": 4000},
            "host": {
                "name": "gpu-node-7",
                "id": "3f1c9a52d0b84e0e8d1f4b6a7c2e9051",
                "arch": "x86_64",
                "os_version": "6.18.0",
                "boot_id": "b2c3d4e5-0000-4000-8000-00000000beef",
                "cpus": 8,
            },
            "mode": mode,
            "layout": layout_description(config),
            "settings": {"spans": {"mode": config.spans.mode}},
        },
    )


def stack(ktime_ns: int, number: int, functions: str) -> bytes:
    """A kernel stack, innermost function first."""
    body = {"kernel_stack": number, "functions": functions.split()}
    return json_record(wire.RECORD_STACK, ktime_ns, body)


def user_stack(ktime_ns: int, number: int, *frames: list[str | int], **found: str | bool) -> bytes:
    """A merged stack, innermost frame first, down to the training loop."""
    body = {"stack": number, "complete": True, "native": "eh_frame", "python": "ok"}
    return json_record(
        wire.RECORD_USER_STACK, ktime_ns, body | {"frames": [*frames, *TRAIN]} | found
    )


def native(function: str, module: str, address: int = 0x1F40) -> list[str | int]:
    """A native frame of a user stack."""
    return ["native", function, "", 0, module, address]


def aggregates(ktime_ns: int, *pairs: tuple[bytes, bytes]) -> bytes:
    """All these series, read at one moment."""
    return aggregates_record(ktime_ns, pairs)


def counted(
    metric: int, values: Sequence[int], config: Config, process: Mapping[str, int], **key: int
) -> tuple[bytes, bytes]:
    """A series into which the kernel side has counted these values."""
    sizes = metric == wire.METRIC_COPY_SIZE
    bounds = size_bounds_bytes(config) if sizes else duration_bounds_ns(config)
    buckets: dict[int, int] = {}
    for value in values:
        bucket = bisect.bisect_left(bounds, value)
        buckets[bucket] = buckets.get(bucket, 0) + 1
    return series(
        metric=metric,
        buckets=buckets,
        sum=sum(values),
        min=min(values),
        max=max(values),
        **process,
        **key,
    )


def counters(**values: int) -> list[int]:
    """The kernel side's counters, by the names that the wire has for them."""
    numbers = {name.removeprefix("counter_"): n for n, name in wire.COUNTER_NAMES.items()}
    counts = [0] * wire.COUNTER_COUNT
    for name, value in values.items():
        counts[numbers[name]] = value
    return counts


def tell_training() -> Iterator[bytes]:
    """One process: every kind of record once or more, a stalled launch, a failed copy."""
    config = Config()
    yield capture(config, "command")
    yield clock_record(at(0), BEGIN_UNIX_NS)
    yield json_record(
        wire.RECORD_PROCESS,
        at(0.1),
        {
            "start_boot_ns": 905 * S,
            "boot_offset_ns": 5 * S,
            "ppid": 4000,
            "vpid": 17,
            "exe": "/usr/bin/python3.11",
            "command_args": ["python3", "-X", "dev", "train.py", "--epochs", "3"],
            "comm": "python3",
            "owner": "ada",
            "cgroups": [
                (
                    "0::/kubepods.slice/kubepods-burstable.slice/"
                    "kubepods-burstable-pod5ac0e5c2_8a1d_4f0e_9d65_1f2d3c4b5a69.slice/"
                    "cri-containerd-0123456789abcdef0123456789abcdef"
                    "0123456789abcdef0123456789abcdef.scope"
                )
            ],
            "env": {"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=staging"},
            "otel_context": {},
            "mountinfo_container_id": None,
        },
        **TRAINER,
    )
    yield kernel_record(
        wire.RECORD_LIBRARY,
        ktime_ns=at(1),
        stopped=1,
        path="/usr/local/cuda/lib64/libcudart.so.12",
        **TRAINER,
        tid=4242,
    )
    yield json_record(
        wire.RECORD_PROBES,
        at(20),
        {
            "library": "/usr/local/cuda/lib64/libcudart.so.12",
            "device": 8388609,
            "inode": 1234567,
            "build_id": "5d41402abc4b2a76b9719d911017c592ae41e1f0",
            "symbols": 61,
            "exported": 62,
            "failed": ["cudaGraphLaunch_ptsz"],
        },
    )
    yield kernel_record(
        wire.RECORD_DEVICE,
        ktime_ns=at(30),
        device=0,
        has_name=1,
        uuid=UUID,
        name="NVIDIA H100 80GB HBM3",
        **TRAINER,
        tid=4242,
    )
    # cudaMalloc, and the driver call inside it.
    malloc = [
        native("cudaMalloc", "libcudart.so.12"),
        native("at::native::empty_cuda(c10::ArrayRef<long>)", "libtorch_cuda.so"),
        ["cpython", "fragmentation_pattern", "/app/train.py", 74, "", 0],
    ]
    driver = native("cuMemAlloc", "libcuda.so.1")
    yield user_stack(at(41.9), EMPTY_INSIDE, driver, native("", "libcudart.so.12"), *malloc)
    yield call_record(
        user_stack=EMPTY_INSIDE,
        ktime_ns=at(41.9),
        start_ktime_ns=at(40.1),
        parent_start_ktime_ns=at(40),
        root_start_ktime_ns=at(40),
        size_bytes=1 << 30,
        address=0x7F40_0000_0000,
        device=0,
        api=CU_MALLOC,
        variant=1,
        depth=1,
        choices=wire.CHOICE_SLOW,
        **MAIN,
    )
    yield user_stack(at(42), EMPTY, *malloc)
    yield call_record(
        user_stack=EMPTY,
        ktime_ns=at(42),
        start_ktime_ns=at(40),
        size_bytes=1 << 30,
        address=0x7F40_0000_0000,
        device=0,
        api=MALLOC,
        choices=wire.CHOICE_SLOW | wire.CHOICE_PARENT,
        **MAIN,
    )
    # A launch that was preempted by a compiler and then waited for the CPU.
    launch = {"call_start_ktime_ns": at(50), "root_start_ktime_ns": at(50), "call_api": LAUNCH}
    yield kernel_record(
        wire.RECORD_STALL,
        ktime_ns=at(58),
        start_ktime_ns=at(51),
        runnable_ktime_ns=at(51),
        cpu=3,
        switch_type=wire.SWITCH_INVOLUNTARY,
        **COMPILER,
        **launch,
        **MAIN,
    )
    yield stack(
        at(60.5),
        FUTEX_STACK,
        "schedule futex_do_wait __futex_wait futex_wait do_futex __x64_sys_futex",
    )
    yield kernel_record(
        wire.RECORD_STALL,
        ktime_ns=at(60),
        start_ktime_ns=at(58.5),
        runnable_ktime_ns=at(59.5),
        cpu=3,
        switch_type=wire.SWITCH_VOLUNTARY,
        kernel_stack=FUTEX_STACK,
        system_call=FUTEX,
        argument=0x5581_0300_1000,
        flags=wire.STALL_IDLE_CPU,
        **BY_LOADER,
        **launch,
        **MAIN,
    )
    yield user_stack(at(60.25), STEP, native("cudaLaunchKernel", "libcudart.so.12"))
    yield call_record(
        user_stack=STEP,
        ktime_ns=at(60.25),
        start_ktime_ns=at(50),
        blocked_ns=1 * MS,
        run_queue_ns=7_500_000,
        function=0x5581_0000_4A10,
        stream=0x5581_0200_0000,
        device=0,
        voluntary_switches=1,
        involuntary_switches=1,
        cpu=3,
        grid=(128, 2, 1),
        block=(256, 1, 1),
        api=LAUNCH,
        choices=wire.CHOICE_SLOW | wire.CHOICE_STALLED,
        **MAIN,
    )
    yield user_stack(
        at(70.5),
        COPY,
        native("cudaMemcpy", "libcudart.so.12"),
        ["cut", "31 frames left out", "", 0, "", 0],
        complete=False,
        native="frame_pointer",
        python="cut",
    )
    yield call_record(
        user_stack=COPY,
        ktime_ns=at(70.5),
        start_ktime_ns=at(70),
        size_bytes=4096,
        address=0x7F40_0000_1000,
        status=700,
        device=0,
        api=MEMCPY,
        copy_kind=wire.COPY_HOST_TO_DEVICE,
        choices=wire.CHOICE_FAILED,
        **MAIN,
    )
    # Told again, as if it had been forgotten.
    yield user_stack(at(71), STEP, native("cudaLaunchKernel", "libcudart.so.12"))
    yield call_record(
        user_stack=STEP,
        ktime_ns=at(71.004),
        start_ktime_ns=at(71),
        device=0,
        weight=1000,
        grid=(1, 1, 1),
        block=(32, 1, 1),
        api=LAUNCH,
        variant=3,
        choices=wire.CHOICE_SAMPLED,
        **LOADER,
    )
    yield kernel_record(
        wire.RECORD_FORK,
        ktime_ns=at(81.5),
        start_ktime_ns=at(80),
        child_program_ktime_ns=at(81.5),
        child_pid=4300,
        **MAIN,
    )
    yield kernel_record(
        wire.RECORD_EXEC,
        ktime_ns=at(83),
        pid=4300,
        tid=4300,
        program_ktime_ns=at(83),
        old_program_ktime_ns=at(81.5),
        inode=77,
        device=8388609,
        comm="nvidia-smi",
        path="/usr/bin/nvidia-smi",
    )
    yield kernel_record(
        wire.RECORD_EXIT,
        ktime_ns=at(95),
        pid=4300,
        tid=4300,
        program_ktime_ns=at(83),
        start_boot_ns=1005 * S,
        exit_code=0,
        comm="nvidia-smi",
    )
    yield from _starve_training()
    yield from _snapshot_training(config)
    yield user_stack(
        at(12_000),
        WAIT,
        native("poll", "libc.so.6"),
        native("", "libcuda.so.1", 0x2C0F30),
        native("cuStreamSynchronize", "libcuda.so.1"),
        native("cudaStreamSynchronize", "libcudart.so.12"),
    )
    yield open_call_record(
        at(12_000),
        start_ktime_ns=at(1_500),
        root_start_ktime_ns=at(1_500),
        blocked_ns=10_000 * MS,
        run_queue_ns=0,
        device=0,
        api=STREAM_SYNC,
        depth=0,
        user_stack=WAIT,
        **TRAINER,
        tid=4242,
        comm=b"python3",
    )
    yield json_record(
        wire.RECORD_STATUS,
        at(12_000),
        {
            "cpu_ns": 310 * MS,
            "rss_bytes": 73 << 20,
            "rejected": {"short": 1},
            "dropped": {"queue_full": 2},
            "stacks": {
                "resolved": 8,
                "incomplete": 1,
                "distinct": 6,
                "unused": 3,
                "without_sample": 1,
            },
        },
    )
    yield kernel_record(
        wire.RECORD_EXIT,
        ktime_ns=at(13_000),
        start_boot_ns=905 * S,
        exit_code=9,
        **MAIN,
    )


def _starve_training() -> Iterator[bytes]:
    # A gap: the feeder wants a batch, the loader that makes it waits for a CPU.
    yield stack(at(141), PIPE_STACK, "schedule anon_pipe_read vfs_read ksys_read")
    yield user_stack(
        at(141),
        NEXT_BATCH,
        native("read", "libc.so.6"),
        native("", "python3.11"),
        [
            *("cpython", "Connection._recv"),
            *("/usr/lib/python3.11/multiprocessing/connection.py", 378, "", 0),
        ],
        [
            *("cpython", "_MultiProcessingDataLoaderIter._try_get_data"),
            *("/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 1133, "", 0),
        ],
    )
    yield kernel_record(
        wire.RECORD_STALL,
        ktime_ns=at(138),
        start_ktime_ns=at(100.5),
        runnable_ktime_ns=at(100.5),
        cpu=2,
        switch_type=wire.SWITCH_INVOLUNTARY,
        **COMPILER,
        **LOADER,
    )
    # Two ticks of its clock: one in its own code, one while it gets a page.
    yield user_stack(
        at(138.3),
        AUGMENT,
        native("rotate", "_imaging.cpython-311-x86_64-linux-gnu.so"),
        ["cpython", "augment", "/app/pictures.py", 88, "", 0],
    )
    yield stack(at(138.6), FAULT_STACK, "clear_page_erms do_anonymous_page exc_page_fault")
    for tick, kernel_stack in ((138.3, -1), (138.6, FAULT_STACK)):
        yield kernel_record(
            wire.RECORD_CPU_SAMPLE,
            ktime_ns=at(tick),
            user_stack=AUGMENT,
            weight_ns=20_202_020,
            kernel_stack=kernel_stack,
            cpu=2,
            **LOADER,
        )
    yield kernel_record(
        wire.RECORD_STALL,
        user_stack=NEXT_BATCH,
        ktime_ns=at(140),
        start_ktime_ns=at(100),
        runnable_ktime_ns=at(139),
        root_start_ktime_ns=at(99),
        cpu=3,
        switch_type=wire.SWITCH_VOLUNTARY,
        kernel_stack=PIPE_STACK,
        system_call=READ,
        argument=5,
        **BY_LOADER,
        **MAIN,
    )
    yield kernel_record(
        wire.RECORD_GAP,
        ktime_ns=at(141),
        start_ktime_ns=at(99),
        blocked_ns=39 * MS,
        run_queue_ns=1 * MS,
        device=0,
        voluntary_switches=1,
        previous_api=MEMCPY,
        next_api=LAUNCH,
        **MAIN,
    )
    blocked = {"state": wire.STATE_BLOCKED, **TRAINER}
    yield times_record(
        at(1_000),
        [
            times_entry(
                state=wire.STATE_ON_CPU,
                context=wire.CONTEXT_CALL,
                time_ns=11 * MS,
                count=9,
                **TRAINER,
            ),
            times_entry(
                state=wire.STATE_RUN_QUEUE, context=wire.CONTEXT_GAP, time_ns=1 * MS, **TRAINER
            ),
            times_entry(
                context=wire.CONTEXT_CALL,
                kernel_stack=FUTEX_STACK,
                system_call=FUTEX,
                time_ns=1 * MS,
                **blocked,
            ),
            times_entry(
                context=wire.CONTEXT_CALL,
                kernel_stack=FUTEX_STACK,
                system_call=FUTEX,
                flags=wire.STALL_GIL,
                time_ns=250_000,
                **blocked,
            ),
            times_entry(
                context=wire.CONTEXT_GAP,
                kernel_stack=PIPE_STACK,
                system_call=READ,
                time_ns=39 * MS,
                **blocked,
            ),
            times_entry(context=wire.CONTEXT_OTHER, time_ns=5 * MS, count=2, **blocked),
        ],
    )
    yield json_record(
        wire.RECORD_PRESSURE,
        at(1_000),
        {
            "psi": {
                "cpu": {"some_avg10": 12.5, "some_total_us": 1_200_000.0},
                "io": {"some_avg10": 0.0, "some_total_us": 9_000.0},
                "memory": {},
            },
            "load1": 6.25,
            "cpus": 8,
            "swap_in_pages": 0,
            "swap_out_pages": 0,
            "cgroups": {
                "kubepods.slice/pod5ac0e5c2": {
                    "nr_periods": 100,
                    "nr_throttled": 0,
                    "throttled_ns": 0,
                    "pids": [4242],
                }
            },
        },
    )


def _snapshot_training(config: Config) -> Iterator[bytes]:
    durations = wire.METRIC_CALL_DURATION
    launches = [4_000] * 997 + [5_000] * 2 + [10_250_000]
    yield aggregates(
        at(1_000),
        counted(durations, launches, config, TRAINER, api=LAUNCH, device=0),
        counted(durations, [2 * MS], config, TRAINER, api=MALLOC, device=0, size_bytes=1 << 30),
        counted(
            durations,
            [1_800_000],
            config,
            TRAINER,
            api=CU_MALLOC,
            device=0,
            nested=1,
            size_bytes=1 << 30,
        ),
        counted(
            durations,
            [500_000],
            config,
            TRAINER,
            api=MEMCPY,
            device=0,
            status=700,
            copy_kind=wire.COPY_HOST_TO_DEVICE,
        ),
        counted(
            durations,
            [9_000, 11_000],
            config,
            TRAINER,
            api=MEMCPY,
            device=0,
            copy_kind=wire.COPY_HOST_TO_DEVICE,
            size_bytes=(1 << 20) + 3,
        ),
        counted(
            wire.METRIC_COPY_SIZE,
            [3, 1 << 20],
            config,
            TRAINER,
            copy_kind=wire.COPY_HOST_TO_DEVICE,
            device=0,
        ),
        counted(wire.METRIC_LAUNCH_GAP, [1_000, 8_000_000], config, TRAINER, device=0),
        counted(wire.METRIC_OFF_CPU, [7 * MS], config, TRAINER, api=wire.SWITCH_INVOLUNTARY),
        counted(wire.METRIC_OFF_CPU, [1_500_000], config, TRAINER, api=wire.SWITCH_VOLUNTARY),
        counted(
            wire.METRIC_RUN_QUEUE, [7 * MS, 500_000], config, TRAINER, api=wire.SWITCH_INVOLUNTARY
        ),
        series(metric=wire.METRIC_FORK, buckets={0: 1}, sum=1, min=1, max=1, **TRAINER),
    )
    yield counters_record(
        at(1_000),
        counters(
            lost_ring_full=3,
            lost_no_entry=1,
            spans_rate_limited=17,
            probe_entries=1005,
            probe_returns=1006,
            scheduler_switches=2,
            spans_chosen=7,
            stalls_chosen=4,
            gaps_chosen=1,
            samples=11,
            samples_rate_limited=2,
            cpu_samples=2,
            cpu_samples_rate_limited=2,
            lost_sample=1,
            lost_python=1,
        ),
    )


def tell_neighbours() -> Iterator[bytes]:
    """Two services, one pid used twice, a stepped clock, explicit buckets, late facts."""
    config = Config(
        histograms=HistogramsConfig(layout="explicit", duration_bounds_s=(0.001, 0.1, 10.0))
    )
    web = {"pid": 700, "program_ktime_ns": at(5)}
    batch = {"pid": 700, "program_ktime_ns": at(5_000)}
    yield capture(config, "all")
    yield clock_record(at(0), BEGIN_UNIX_NS)
    yield call_record(
        ktime_ns=at(12), start_ktime_ns=at(10), api=STREAM_SYNC, tid=700, comm="infer", **web
    )
    yield json_record(
        wire.RECORD_PROCESS,
        at(13),
        {
            "start_boot_ns": BEGIN_KTIME_NS,
            "exe": "/opt/infer/bin/infer",
            "command_args": ["infer", "--port", "8000"],
            "comm": "infer",
            "env": {"OTEL_SERVICE_NAME": "chat-inference"},
        },
        **web,
    )
    yield call_record(
        ktime_ns=at(22),
        start_ktime_ns=at(20),
        api=STREAM_SYNC,
        tid=701,
        comm="worker\x1b[31m",
        **web,
    )
    durations = wire.METRIC_CALL_DURATION
    yield aggregates(at(1_000), counted(durations, [2 * MS, 2 * MS], config, web, api=STREAM_SYNC))
    # An hour back: what happened before keeps its time.
    yield clock_record(at(2_000), BEGIN_UNIX_NS + 2 * S - 3600 * S)
    yield kernel_record(
        wire.RECORD_EXIT, ktime_ns=at(3_000), exit_code=256, tid=700, comm="infer", **web
    )
    yield aggregates(
        at(3_100), counted(durations, [2 * MS, 2 * MS, 20 * S], config, web, api=STREAM_SYNC)
    )
    yield call_record(
        ktime_ns=at(5_011), start_ktime_ns=at(5_010), api=CU_MALLOC, tid=700, comm="batch", **batch
    )
    yield json_record(
        wire.RECORD_PROCESS,
        at(5_020),
        {"exe": "/usr/bin/batch", "command_args": ["batch"], "comm": "batch", "truncated": True},
        **batch,
    )
    yield aggregates(at(6_000), counted(durations, [1 * MS], config, batch, api=CU_MALLOC))


def tell_strangers() -> Iterator[bytes]:
    """Records that this version does not understand, between two that it does."""
    yield capture(Config(), "pid")
    yield clock_record(at(0), BEGIN_UNIX_NS)
    yield call_record(ktime_ns=at(2), start_ktime_ns=at(1), api=9999, comm="later", **TRAINER)
    yield wire.RECORD_HEADER.pack(999, 0, wire.RECORD_HEADER.size, at(3), 0, 0, 0)
    yield b"short"
    yield json_record(wire.RECORD_PROBES, at(4), {"library": 5})
    yield wire.RECORD_HEADER.pack(wire.RECORD_STATUS, 0, 33, at(5), 0, 0, 0) + b"{"
    yield call_record(ktime_ns=at(6), start_ktime_ns=at(6), size=9)
    yield call_record(ktime_ns=at(8), start_ktime_ns=at(7), api=MALLOC, comm=b"\xff", **TRAINER)


STORIES: Mapping[str, Callable[[], Iterator[bytes]]] = {
    "training": tell_training,
    "neighbours": tell_neighbours,
    "strangers": tell_strangers,
}


def recording_path(name: str) -> Path:
    """Where the recording of a story lies; its expectations lie next to it."""
    return HERE / f"{name}.otelgpu"


def replay(path: Path) -> bytes:
    """The OTLP/JSON lines of a replay, through the command line."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.jsonl"
        _run("replay", str(path), "--otlp-file", str(out))
        return out.read_bytes()


def parse(path: Path) -> bytes:
    """What ``otel-gpu parse`` prints."""
    return _run("parse", str(path)).encode()


def _run(*arguments: str) -> str:
    # The expectations hold in the default configuration, whatever is set out here.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    printed = io.StringIO()
    with (
        mock.patch.dict(os.environ, environment, clear=True),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(io.StringIO()) as said,
    ):
        code = cli.main(arguments)
    if code:
        raise RuntimeError(f"otel-gpu {' '.join(arguments)} failed: {said.getvalue()}")
    return printed.getvalue()


def main() -> int:
    """Compare, or update; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--update", action="store_true", help="write what has changed")
    update = parser.parse_args().update
    changed = []
    for name, tell in STORIES.items():
        path = recording_path(name)
        # Records and not bytes: how they are packed is zlib's affair.
        held = read_recording(path) if path.exists() else ()
        if list(itertools.chain.from_iterable(held)) != list(tell()):
            changed.append(path)
            if update:
                with RecordingWriter(path) as writer:
                    writer.write(list(tell()))
                path.chmod(0o644)  # nothing in it is private, unlike in a real one
    for path in sorted(HERE.glob("*.otelgpu")):
        for suffix, make in ((".jsonl", replay), (".txt", parse)):
            expectation = path.with_suffix(suffix)
            actual = make(path)
            if not expectation.exists() or expectation.read_bytes() != actual:
                changed.append(expectation)
                if update:
                    expectation.write_bytes(actual)
    for path in changed:
        print(f"{'updated' if update else 'changed'}: {path.name}")  # noqa: T201 - a script
    return 1 if changed and not update else 0


if __name__ == "__main__":
    sys.exit(main())

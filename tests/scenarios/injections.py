"""What is done to some steps of the loop, beside what the demo has; see ``otel_gpu/demo/injections.py``."""

import ctypes
import mmap
import os
import signal
import tempfile
import threading
import time

from otel_gpu.demo.clocks import on_cpu_ns, run_queue_ns, unqueued_ns
from otel_gpu.demo.injections import (
    HOGGING,
    INJECTED_NS,
    allocate,
    await_data,
    start_hog,
    start_loader,
)
from otel_gpu.demo.loop import (
    GPU_NS,
    LAUNCH_NS,
    MALLOC,
    MS,
    Helper,
    Trainer,
    die_with_parent,
    sleep,
    spin,
)

_PART_BYTES, _PARTS = 4 << 20, 64
_WEIGHT_BYTES, _WEIGHT_MAPS = 64 << 20, 96


def late_wakeup(trainer: Trainer) -> None:
    """The device is done, and a hog has the CPU for 40 ms more."""
    thief = start_hog(trainer.cpu)

    def wake_late() -> None:
        waited_ns = run_queue_ns()
        thief.order(INJECTED_NS + GPU_NS, delay_ns=MS)
        sleep(GPU_NS)
        trainer.inject("run_queue", run_queue_ns() - waited_ns, thief, place=HOGGING)
        thief.await_burst()

    trainer.train(in_synchronize=wake_late)


def disk(trainer: Trainer) -> None:
    """Data is late: the data loader reads from the disk for about 40 ms."""
    pages = mmap.mmap(-1, _PART_BYTES)
    pages.write(b"\1" * _PART_BYTES)
    with tempfile.TemporaryFile(dir="/var/tmp") as file:
        # A hole would need no reading, and data not yet written would be written first.
        os.pwritev(file.fileno(), [pages] * _PARTS, 0)
        os.fsync(file.fileno())
        direct = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY | os.O_DIRECT)

    def read_parts(count: int) -> int:
        start_ns = time.monotonic_ns()
        os.preadv(direct, [pages] * count, 0)
        return time.monotonic_ns() - start_ns

    # The same pages take in one part of the file after another.
    read_parts(_PARTS // 2)
    parts = min(_PARTS, 1 + INJECTED_NS * (_PARTS // 2) // read_parts(_PARTS // 2))

    def load_from_disk(helper: Helper, _: int, __: int) -> None:
        cpu_ns = on_cpu_ns()
        read_ns = read_parts(parts)
        helper.report(read_ns - (on_cpu_ns() - cpu_ns))

    loader = start_loader(trainer, load_from_disk)

    def read_disk() -> None:
        time_ns, data = await_data(loader)
        trainer.inject("ipc", time_ns, loader, {"kind": "io", "time_ns": data.work_ns, "pid": 0})

    trainer.train(in_gap=read_disk)


def large_fork(trainer: Trainer) -> None:
    """A process with 6 GiB mapped forks between two launches."""
    # Its weights are mapped over and over: it is large, and the machine's memory need not be.
    weights = os.memfd_create("weights")
    os.truncate(weights, _WEIGHT_BYTES)
    maps = [mmap.mmap(weights, _WEIGHT_BYTES, mmap.MAP_PRIVATE) for _ in range(_WEIGHT_MAPS)]
    for one in maps:
        bytes(memoryview(one)[:: mmap.PAGESIZE])
        # Page tables of what was never written are not copied.
        one[0] = 1
    children: list[int] = []

    def fork_child() -> None:
        cpu_ns = on_cpu_ns()
        child = os.fork()
        if not child:
            die_with_parent()
            while True:
                signal.pause()
        cpu_ns = on_cpu_ns() - cpu_ns
        trainer.inject("fork", cpu_ns)
        trainer.effects[-1]["causes"][0] |= {"pid": os.getpid(), "tid": threading.get_native_id()}
        children.append(child)

    trainer.train(in_gap=fork_child)
    for child in children:
        os.kill(child, signal.SIGKILL)


def gpu_backpressure(trainer: Trainer) -> None:
    """A launch polls for 40 ms until the device has room."""

    def wait_for_queue() -> None:
        start_ns = unqueued_ns()
        spin(INJECTED_NS)
        trainer.inject("gpu_backpressure", unqueued_ns() - start_ns)

    trainer.train(in_launch=wait_for_queue)


def first_call(trainer: Trainer) -> None:
    """The first allocation takes 80 ms, as the first call often does."""
    trainer.malloc_ns = INJECTED_NS * 2
    with trainer.effect("slow_call", MALLOC):
        trainer.inject("first_call", allocate(trainer, ctypes.c_void_p()))
    trainer.malloc_ns = LAUNCH_NS
    for _ in range(20):
        allocate(trainer, ctypes.c_void_p())
    trainer.train()

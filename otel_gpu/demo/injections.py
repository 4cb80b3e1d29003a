"""
Scenarios: each function makes the loop slow by one known cause.

Their docstrings are the descriptions in ``otel-gpu demo``.
"""

import atexit
import ctypes
import mmap
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path

from otel_gpu.demo.clocks import blocked_ns, run_queue_ns, unqueued_ns
from otel_gpu.demo.loop import (
    GPU_NS,
    LAUNCH,
    LAUNCH_NS,
    MALLOC,
    MS,
    STEPS,
    SYNCHRONIZE,
    Helper,
    Report,
    Trainer,
    Work,
    compute,
    is_slow,
    libc,
    place_of,
    sleep,
    spin,
)

_CHURN_EFFECTS = 24
INJECTED_NS = 40 * MS
_OVER_QUOTA_NS = 22 * MS
_PART_BYTES, _PARTS = 4 << 20, 64
_WEIGHT_BYTES, _WEIGHT_MAPS = 64 << 20, 96
_LIMIT_BYTES = 128 << 20
_CGROUPS = Path("/sys/fs/cgroup")
_MUTEX = (ctypes.c_char * 64)()
HOGGING = place_of(spin, lines=2)
_HOLDING = ctypes.PyDLL(None)  # its calls keep the GIL


def preemption(trainer: Trainer) -> None:
    """A hog takes the CPU from a kernel launch, for 40 ms."""
    thief = start_hog(trainer.cpu)
    trainer.train(in_launch=lambda: _be_preempted(trainer, thief))


def _be_preempted(trainer: Trainer, thief: Helper) -> None:
    compute(MS)
    thief.order(INJECTED_NS)
    compute(2 * MS)
    trainer.inject("preemption", thief.await_burst(), thief, place=HOGGING)


def lock(trainer: Trainer) -> None:
    """Another thread holds the lock that a launch needs, for 40 ms."""
    holder = Helper("holder", trainer.other_cpu, _hold_mutex, is_thread=True)
    trainer.train(in_launch=lambda: _wait_for_mutex(trainer, holder, INJECTED_NS))


def _wait_for_mutex(trainer: Trainer, holder: Helper, held_ns: int) -> None:
    holder.order(held_ns)
    holder.await_report()
    start_ns = unqueued_ns()
    libc.pthread_mutex_lock(_MUTEX)
    trainer.inject("lock", unqueued_ns() - start_ns, holder)
    libc.pthread_mutex_unlock(_MUTEX)


def two_causes(trainer: Trainer) -> None:
    """A hog has the CPU for 40 ms, then another thread a lock for 20 ms."""
    thief = start_hog(trainer.cpu)
    holder = Helper("holder", trainer.other_cpu, _hold_mutex, is_thread=True)

    def suffer_both() -> None:
        _be_preempted(trainer, thief)
        _wait_for_mutex(trainer, holder, INJECTED_NS // 2)

    trainer.train(in_launch=suffer_both)


def gil(trainer: Trainer) -> None:
    """A C extension sleeps 40 ms and keeps Python's GIL."""
    # The device is a sleep in C, so only the holder delays the loop. A waiting thread checks the GIL
    # every 5 ms; a wait of 34 ms does not depend on when it checks.
    trainer.sleep_inside(SYNCHRONIZE, 2 * GPU_NS)
    holder = Helper("holder", trainer.other_cpu, _hold_interpreter, is_thread=True)
    usual_ns: list[int] = []
    for step in range(STEPS):
        trainer.launch()
        waited_ns = run_queue_ns()
        # From here to the call nothing releases the GIL.
        if is_slow(step):
            holder.order(INJECTED_NS)
        start_ns = time.monotonic_ns()
        trainer.synchronize()
        end_ns, waited_ns = time.monotonic_ns(), run_queue_ns() - waited_ns
        if not is_slow(step):
            usual_ns.append(end_ns - start_ns - waited_ns)
            continue
        # The call itself took as long as usual; then its thread could not continue.
        start_ns += int(statistics.median(usual_ns))
        with trainer.effect("slow_gap", LAUNCH):
            trainer.inject("gil", end_ns - start_ns - waited_ns, holder)
        trainer.effects[-1] |= {"start_ns": start_ns, "end_ns": end_ns}


def starved_loader(trainer: Trainer) -> None:
    """Data is late: a hog has the data loader's CPU for 40 ms."""
    thief = start_hog(trainer.other_cpu)
    loader = start_loader(trainer, _load_from_memory)

    def starve_loader() -> None:
        thief.order(INJECTED_NS)
        thief.await_report()
        asked_ns = time.monotonic_ns()
        time_ns, data = await_data(loader)
        via = {"kind": "run_queue", "time_ns": data.work_ns - asked_ns, "pid": thief.pid}
        trainer.inject("ipc", time_ns, by=loader, via=via | {"place": HOGGING})
        thief.await_report()

    trainer.train(in_gap=starve_loader)


def await_data(loader: Helper) -> tuple[int, Report]:
    """Wait for data; return how long that took without waiting for a CPU, and the loader's report."""
    start_ns = unqueued_ns()
    loader.order()
    data = loader.await_report()
    return unqueued_ns() - start_ns, data


def _join_cgroup(controller: str, settings: dict[int, dict[str, str]]) -> None:
    old = _CGROUPS / controller
    version = 1 if (old / "cgroup.procs").exists() else 2
    folder = (old if version == 1 else _CGROUPS) / f"otel-gpu-demo-{os.getpid()}"
    folder.mkdir()

    def leave() -> None:
        (folder.parent / "cgroup.procs").write_text("0")
        folder.rmdir()

    atexit.register(leave)
    for name, value in settings[version].items():
        (folder / name).write_text(value)
    (folder / "cgroup.procs").write_text("0")


def cpu_quota(trainer: Trainer) -> None:
    """A cgroup may use 10 ms of CPU time in every 100 ms."""
    # With the largest weight, so that the quota keeps the loop from its CPU, and not other programs.
    old = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "10000", "cpu.shares": "262144"}
    _join_cgroup("cpu", {1: old, 2: {"cpu.max": "10000 100000", "cpu.weight": "10000"}})

    def exceed_quota() -> None:
        compute(_OVER_QUOTA_NS)
        # A throttled thread also waits for its CPU.
        took_ns = time.monotonic_ns() - trainer.effects[-1]["start_ns"]
        trainer.inject("cpu_quota", took_ns - _OVER_QUOTA_NS - LAUNCH_NS)

    # Throttling is seen in growing counters, so they must be read before and after.
    sleep(400 * MS)
    trainer.train(in_launch=exceed_quota)
    sleep(400 * MS)


def memory_limit(trainer: Trainer) -> None:
    """A cgroup is at its memory limit, and its page cache is dirty."""
    limit, block = str(_LIMIT_BYTES), b"\1" * (1 << 20)
    _join_cgroup("memory", {1: {"memory.limit_in_bytes": limit}, 2: {"memory.max": limit}})
    with tempfile.TemporaryFile(dir="/var/tmp", buffering=0) as cache:

        def dirty_cache() -> None:
            for offset in range(0, _LIMIT_BYTES * 3 // 4, len(block)):
                os.pwrite(cache.fileno(), block, offset)

        def take_memory() -> int:
            start_ns = blocked_ns()
            with mmap.mmap(-1, _LIMIT_BYTES // 2, mmap.MAP_PRIVATE) as memory:
                # Fewer faults, so the time goes to reclaiming memory.
                memory.madvise(mmap.MADV_HUGEPAGE)
                ctypes.memset((ctypes.c_char * 1).from_buffer(memory), 1, _LIMIT_BYTES // 2)
                return blocked_ns() - start_ns

        # The first time measures the disk and the host, not the limit.
        dirty_cache()
        take_memory()
        trainer.train(
            in_launch=lambda: trainer.inject("reclaim", take_memory()), before=dirty_cache
        )


def stopped(trainer: Trainer) -> None:
    """The process is stopped with SIGSTOP for 40 ms."""
    stopper = Helper("stopper", trainer.other_cpu, _stop_parent)

    def be_stopped() -> None:
        stopper.order(INJECTED_NS)
        compute(3 * MS)
        trainer.inject("stopped", stopper.await_burst(), stopper)

    trainer.train(in_launch=be_stopped)


def gpu_wait(trainer: Trainer) -> None:
    """The device has 40 ms more to do; nothing is wrong with the host."""

    def wait_for_gpu() -> None:
        start_ns = time.monotonic_ns()
        sleep(INJECTED_NS)
        trainer.inject("gpu_wait", time.monotonic_ns() - start_ns + GPU_NS)

    trainer.train(in_synchronize=wait_for_gpu)


def allocate(trainer: Trainer, block: ctypes.c_void_p) -> int:
    """Allocate 1 MiB; return how long that took, without waiting for a CPU."""
    # Not CPU time: that lacks time stolen by a hypervisor.
    start_ns = unqueued_ns()
    trainer.cuda.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(1 << 20))
    return unqueued_ns() - start_ns


def allocator_churn(trainer: Trainer) -> None:
    """Memory is allocated in every step, ever slower."""
    block = ctypes.c_void_p()
    for step in range(2 * STEPS):
        rise = step - STEPS
        trainer.malloc_ns = LAUNCH_NS + max(0, rise) * MS // 2
        # Only the last, slowest allocations are noted.
        if rise >= STEPS - _CHURN_EFFECTS:
            with trainer.effect("slow_call", MALLOC):
                trainer.inject("allocator_churn", allocate(trainer, block))
        else:
            allocate(trainer, block)
        trainer.launch()
        trainer.synchronize()
        trainer.cuda.cudaFree(block)


def clean(trainer: Trainer) -> None:
    """Nothing is wrong."""
    trainer.train()
    trainer.train()


def start_hog(cpu: int) -> Helper:
    """Start a process that takes a CPU when ordered to."""
    return Helper("hog", cpu, _hog, urgency=10)


def start_loader(trainer: Trainer, load: Work) -> Helper:
    """Start a process that loads data on the other CPU."""
    return Helper("loader", trainer.other_cpu, load)


def _hog(helper: Helper, delay_ns: int, length_ns: int) -> None:
    sleep(delay_ns)
    helper.report()
    spin(length_ns)
    helper.report()


def _stop_parent(helper: Helper, _: int, length_ns: int) -> None:
    os.kill(os.getppid(), signal.SIGSTOP)
    helper.report()
    sleep(length_ns)
    helper.report()
    os.kill(os.getppid(), signal.SIGCONT)


def _hold_mutex(helper: Helper, _: int, length_ns: int) -> None:
    libc.pthread_mutex_lock(_MUTEX)
    helper.report()
    libc.usleep(length_ns // 1_000)
    libc.pthread_mutex_unlock(_MUTEX)


def _hold_interpreter(_helper: Helper, _: int, length_ns: int) -> None:
    _HOLDING.usleep(length_ns // 1_000)


def _load_from_memory(helper: Helper, _: int, __: int) -> None:
    began_ns = time.monotonic_ns()
    compute(MS)
    helper.report(began_ns)

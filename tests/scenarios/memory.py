"""What is done with the memory of the device, beside what the demo has; see ``otel_gpu/demo/memory_scenarios.py``."""

import ctypes
import time
from typing import Any

from otel_gpu.demo.loop import GPU_NS, MS, Trainer, place_of
from otel_gpu.demo.memory_scenarios import (
    MIB,
    READING_NS,
    Allocator,
    failing,
    remember,
    wait,
)

_STEPS = 30
_CALL_NS = 2 * MS
_STEP_NS = 35 * MS
_OTHERS_BYTES = 800 * MIB


def build_weights(memory: Allocator, size_bytes: int) -> Any:
    """Allocate what stays."""
    return memory.malloc(0, size_bytes)


def forward(memory: Allocator, size_bytes: int = 48 * MIB) -> tuple[Any, Any]:
    """Allocate what a step needs."""
    return memory.malloc(0, size_bytes), memory.malloc(0, size_bytes // 2)


def _step(
    trainer: Trainer, memory: Allocator, size_bytes: int = 48 * MIB, gpu_ns: int = _STEP_NS
) -> None:
    blocks = forward(memory, size_bytes)
    wait(trainer, gpu_ns)
    memory.free(*blocks)


def memory_leak(trainer: Trainer) -> None:
    """Each step keeps 4 MiB, until the device has no more."""
    memory = Allocator(trainer)
    build_weights(memory, 560 * MIB)
    with failing(trainer, "leak", forward, remember):
        while True:
            _step(trainer, memory)
            remember(memory)


def memory_exhaustion(trainer: Trainer) -> None:
    """A batch is too large for the device."""
    memory = Allocator(trainer)
    build_weights(memory, 600 * MIB)
    with failing(trainer, "exhausted", forward, build_weights):
        for _ in range(5):
            _step(trainer, memory)
        _step(trainer, memory, 480 * MIB)


def device_shared(trainer: Trainer) -> None:
    """Another process takes most of the device."""
    memory = Allocator(trainer)
    build_weights(memory, 64 * MIB)
    with failing(trainer, "other_process", forward, forward):
        for _ in range(10):
            _step(trainer, memory, 96 * MIB)
        memory.empty_cache(0)
        trainer.cuda.stub_set_others_bytes(ctypes.c_size_t(_OTHERS_BYTES))
        _step(trainer, memory, 144 * MIB)


def empty_cache(trainer: Trainer) -> None:
    """Every step gives the allocator's cache back, and allocates it anew."""
    memory = Allocator(trainer)
    build_weights(memory, 64 * MIB)
    for api in ("cudaMalloc", "cudaFree"):
        trainer.sleep_inside(api, _CALL_NS)
    for _ in range(_STEPS):
        start_ns = time.monotonic_ns()
        blocks = forward(memory)
        lost_ns = time.monotonic_ns() - start_ns
        wait(trainer, GPU_NS)
        memory.free(*blocks)
        lost_ns += give_back(memory)
        trainer.lose("empty_cache", lost_ns, place=place_of(give_back, lines=2))


def give_back(memory: Allocator) -> int:
    """Empty the cache; how long that took."""
    start_ns = time.monotonic_ns()
    memory.empty_cache(0)
    return time.monotonic_ns() - start_ns


def allocator_bypass(trainer: Trainer) -> None:
    """Every step allocates and frees a workspace past the allocator."""
    memory = Allocator(trainer)
    build_weights(memory, 64 * MIB)
    # It is to be known that there is an allocator.
    _step(trainer, memory, gpu_ns=READING_NS)
    for api in ("cudaMalloc", "cudaFree"):
        trainer.sleep_inside(api, _CALL_NS)
    for _ in range(_STEPS):
        lost_ns = use_workspace(trainer)
        trainer.lose("allocator_bypass", lost_ns, place=place_of(use_workspace, lines=4))
        _step(trainer, memory, gpu_ns=GPU_NS)


def use_workspace(trainer: Trainer) -> int:
    """Ask the device itself; how long that took."""
    start_ns = time.monotonic_ns()
    address = ctypes.c_void_p()
    trainer.cuda.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(32 * MIB))
    trainer.cuda.cudaFree(address)
    return time.monotonic_ns() - start_ns


def healthy_memory(trainer: Trainer) -> None:
    """Nearly all that is free lies in holes, and nothing is wrong with that."""
    memory = Allocator(trainer)
    # Two of 9 MiB leave a hole of 2 MiB in each of 50 segments: the index is 1 - 2 / 100.
    for _ in range(100):
        build_weights(memory, 9 * MIB)
    for _ in range(2 * _STEPS):
        _step(trainer, memory, 2 * MIB, _STEP_NS // 2)


FAILING = (memory_leak, memory_exhaustion, device_shared)
LOSING = (empty_cache, allocator_bypass)
HEALTHY = (healthy_memory,)

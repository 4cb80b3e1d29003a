"""
What is done with the memory of the device, through an allocator as PyTorch's: each function fails a
request in one known way, or loses time with it, as its docstring says.
"""

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from otel_gpu.demo.loop import GPU_NS, MS, Function, Trainer, place_of, sleep

MIB, GIB = 1 << 20, 1 << 30
ALLOCATOR = "libc10.so"
DEVICE_BYTES = GIB
_STEPS = 30
_CALL_NS = 2 * MS
_STEP_NS = 35 * MS
# What is read once a fifth of a second is read in this.
_READING_NS = 400 * MS
_OTHERS_BYTES = 800 * MIB


class OutOfMemoryError(Exception):
    """The device had no more."""


class Allocator:
    """
    The allocator's few functions, without any frame of Python between them and their callers.

    Attributes:
        malloc: Hands out a block of a device, by its number and the size in bytes.
    """

    def __init__(self, trainer: Trainer) -> None:
        path = Path(trainer.cuda._name).with_name(ALLOCATOR)  # noqa: SLF001 -- it has no other name
        library = ctypes.CDLL(str(path))
        self.malloc = library.c10_malloc
        self.malloc.restype = ctypes.c_void_p
        self.malloc.argtypes = (ctypes.c_int, ctypes.c_size_t)
        self.malloc.errcheck = _check
        self._free = library.c10_free
        self._free.argtypes = (ctypes.c_void_p,)
        self.empty_cache = library.c10_empty_cache

    def free(self, *blocks: int) -> None:
        """Take blocks back."""
        for address in blocks:
            self._free(address)


def _check(address: Any, _function: object, _arguments: object) -> Any:  # noqa: ANN401 -- ditto
    if not address:
        raise OutOfMemoryError
    return address


def build_weights(memory: Allocator, size_bytes: int) -> Any:  # noqa: ANN401 -- as ctypes has it
    """Allocate what stays."""
    return memory.malloc(0, size_bytes)


def forward(memory: Allocator, size_bytes: int = 48 * MIB) -> tuple[Any, Any]:
    """Allocate what a step needs."""
    return memory.malloc(0, size_bytes), memory.malloc(0, size_bytes // 2)


def remember(memory: Allocator) -> Any:  # noqa: ANN401 -- as ctypes has it
    """Allocate what is kept of a step."""
    return memory.malloc(0, 4 * MIB)


def gather(memory: Allocator, size_bytes: int) -> Any:  # noqa: ANN401 -- as ctypes has it
    """Allocate one large block."""
    return memory.malloc(0, size_bytes)


def _step(
    trainer: Trainer, memory: Allocator, size_bytes: int = 48 * MIB, gpu_ns: int = _STEP_NS
) -> None:
    blocks = forward(memory, size_bytes)
    _wait(trainer, gpu_ns)
    memory.free(*blocks)


def _wait(trainer: Trainer, gpu_ns: int) -> None:
    """Have the device work: nobody is to blame for that time."""
    trainer.launch()
    trainer.synchronize(lambda: sleep(gpu_ns))


@contextmanager
def _failing(trainer: Trainer, cause: str, asked: Function, held: Function) -> Iterator[None]:
    """Note why a request fails, who asks, and whose blocks are to blame."""
    trainer.memory = {"cause": cause, "asked": place_of(asked), "held": place_of(held)}
    try:
        yield
    except OutOfMemoryError:
        trainer.memory["failed_ns"] = time.monotonic_ns()
    # It is to be read while the process lives.
    _wait(trainer, _READING_NS)


def memory_leak(trainer: Trainer) -> None:
    """Each step keeps 4 MiB, until the device has no more."""
    memory = Allocator(trainer)
    build_weights(memory, 560 * MIB)
    with _failing(trainer, "leak", forward, remember):
        while True:
            _step(trainer, memory)
            remember(memory)


def memory_fragmentation(trainer: Trainer) -> None:
    """Each segment keeps a small block, and a large request finds no hole."""
    memory = Allocator(trainer)
    with _failing(trainer, "fragmentation", gather, remember):
        parts: list[int] = []
        for _ in range(40):
            remember(memory)
            parts += [gather(memory, 8 * MIB), gather(memory, 8 * MIB)]
            _wait(trainer, 5 * MS)
        memory.free(*parts)
        gather(memory, 256 * MIB)


def memory_exhaustion(trainer: Trainer) -> None:
    """A batch is too large for the device."""
    memory = Allocator(trainer)
    build_weights(memory, 600 * MIB)
    with _failing(trainer, "exhausted", forward, build_weights):
        for _ in range(5):
            _step(trainer, memory)
        _step(trainer, memory, 480 * MIB)


def device_shared(trainer: Trainer) -> None:
    """Another process takes most of the device."""
    memory = Allocator(trainer)
    build_weights(memory, 64 * MIB)
    with _failing(trainer, "other_process", forward, forward):
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
        _wait(trainer, GPU_NS)
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
    _step(trainer, memory, gpu_ns=_READING_NS)
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


FAILING = (memory_leak, memory_fragmentation, memory_exhaustion, device_shared)
LOSING = (empty_cache, allocator_bypass)
HEALTHY = (healthy_memory,)

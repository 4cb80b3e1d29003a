"""
Scenarios of device memory, through an allocator like PyTorch's: a request fails in one known way.

The docstring of each is its description in ``otel-gpu demo``.
"""

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from otel_gpu.demo.loop import MS, Function, Trainer, place_of, sleep

MIB, GIB = 1 << 20, 1 << 30
ALLOCATOR = "libc10.so"
DEVICE_BYTES = GIB
# The agent reads memory every 0.2 s here, so at least once in this time.
READING_NS = 400 * MS


class OutOfMemoryError(Exception):
    """The device has no free memory."""


class Allocator:
    """
    The allocator's functions, without a Python frame between them and their callers.

    Attributes:
        malloc: Takes a device number and a size in bytes, and returns the address of a block.
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
        """Free blocks by their addresses."""
        for address in blocks:
            self._free(address)


def _check(address: object, _function: object, _arguments: object) -> Any:  # noqa: ANN401 -- ditto
    if not address:
        raise OutOfMemoryError
    return address


def remember(memory: Allocator) -> object:
    """Allocate a small block that a step keeps."""
    return memory.malloc(0, 4 * MIB)


def gather(memory: Allocator, size_bytes: int) -> Any:  # noqa: ANN401 -- as ctypes has it
    """Allocate one large block."""
    return memory.malloc(0, size_bytes)


def wait(trainer: Trainer, gpu_ns: int) -> None:
    """Have the device work, which has no cause to find."""
    trainer.launch()
    trainer.synchronize(lambda: sleep(gpu_ns))


@contextmanager
def failing(trainer: Trainer, cause: str, asked: Function, held: Function) -> Iterator[None]:
    """Note why a request fails, the function that asks, and the one whose blocks are in the way."""
    trainer.memory = {"cause": cause, "asked": place_of(asked), "held": place_of(held)}
    try:
        yield
    except OutOfMemoryError:
        trainer.memory["failed_ns"] = time.monotonic_ns()
    # The agent must read the memory while the process lives.
    wait(trainer, READING_NS)


def memory_fragmentation(trainer: Trainer) -> None:
    """Each segment keeps a small block, and a large request finds no hole."""
    memory = Allocator(trainer)
    with failing(trainer, "fragmentation", asked=gather, held=remember):
        parts: list[int] = []
        for _ in range(40):
            remember(memory)
            parts += [gather(memory, 8 * MIB), gather(memory, 8 * MIB)]
            wait(trainer, 5 * MS)
        memory.free(*parts)
        gather(memory, 256 * MIB)

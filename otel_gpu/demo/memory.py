"""
What is done with the memory of the device, through an allocator as PyTorch's: a request fails in one
known way, as the function's docstring says.
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
# What is read once a fifth of a second is read in this.
READING_NS = 400 * MS


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


def remember(memory: Allocator) -> Any:  # noqa: ANN401 -- as ctypes has it
    """Allocate what is kept of a step."""
    return memory.malloc(0, 4 * MIB)


def gather(memory: Allocator, size_bytes: int) -> Any:  # noqa: ANN401 -- as ctypes has it
    """Allocate one large block."""
    return memory.malloc(0, size_bytes)


def wait(trainer: Trainer, gpu_ns: int) -> None:
    """Have the device work: nobody is to blame for that time."""
    trainer.launch()
    trainer.synchronize(lambda: sleep(gpu_ns))


@contextmanager
def failing(trainer: Trainer, cause: str, asked: Function, held: Function) -> Iterator[None]:
    """Note why a request fails, who asks, and whose blocks are to blame."""
    trainer.memory = {"cause": cause, "asked": place_of(asked), "held": place_of(held)}
    try:
        yield
    except OutOfMemoryError:
        trainer.memory["failed_ns"] = time.monotonic_ns()
    # It is to be read while the process lives.
    wait(trainer, READING_NS)


def memory_fragmentation(trainer: Trainer) -> None:
    """Each segment keeps a small block, and a large request finds no hole."""
    memory = Allocator(trainer)
    with failing(trainer, "fragmentation", gather, remember):
        parts: list[int] = []
        for _ in range(40):
            remember(memory)
            parts += [gather(memory, 8 * MIB), gather(memory, 8 * MIB)]
            wait(trainer, 5 * MS)
        memory.free(*parts)
        gather(memory, 256 * MIB)

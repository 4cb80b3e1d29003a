"""
Programs that have blocks of device memory, each of which says what it has.

python blocks.py NAME ALLOCATOR [MORE …], and the environment of the stand-in for CUDA.
"""

import ctypes
import json
import os
import random
import sys
from collections import Counter
from pathlib import Path

MIB = 1 << 20
_REPORT = "_ZN3c1027reportMemoryUsageToProfilerEPv{}NS_6DeviceE"
_OUT_OF_MEMORY = "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE"
_CUDA_DEVICE_1 = 1 | 1 << 8
_U64 = ctypes.c_uint64


def load(path):
    """The allocator, and the CUDA library that it uses."""
    library = ctypes.CDLL(path)
    for name, result, *arguments in (
        ("c10_malloc", ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t),
        ("c10_free", ctypes.c_size_t, ctypes.c_void_p),
        ("c10_block_bytes", ctypes.c_size_t, ctypes.c_void_p),
        ("c10_allocated_bytes", ctypes.c_size_t, ctypes.c_int),
        ("c10_reserved_bytes", ctypes.c_size_t, ctypes.c_int),
        ("c10_empty_cache", None, ctypes.c_int),
    ):
        getattr(library, name).restype = result
        getattr(library, name).argtypes = arguments
    cuda = ctypes.CDLL(str(Path(path).with_name("libcudart.so.12")))
    cuda.cudaMalloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    cuda.cudaFree.argtypes = [ctypes.c_void_p]
    return library, cuda


def take(library, size, device=0):
    """A block, by address and size."""
    address = library.c10_malloc(device, size)
    return (address, library.c10_block_bytes(address)) if address else None


def weights(library, size):
    return take(library, size)


def activations(library, size):
    return take(library, size)


def gradients(library, size):
    return take(library, size)


def optimizer_state(library, size):
    return take(library, size)


def caches(library, size):
    return take(library, size)


def losses(library, size):
    return take(library, size)


def workspaces(library, size):
    return take(library, size)


PLACES = (weights, activations, gradients, optimizer_state, caches, losses, workspaces)


def places(library, _cuda, count):
    """Random blocks in seven functions, and what each holds in the end."""
    chance, live = random.Random(11), []  # noqa: S311 -- the same each time
    held, blocks = Counter(), Counter()
    for _ in range(int(count)):
        if live and chance.random() < 0.45:
            name, (address, size) = live.pop(chance.randrange(len(live)))
            library.c10_free(address)
            held[name] -= size
            blocks[name] -= 1
        else:
            place = chance.choice(PLACES)
            size = chance.choice((700, 60_000, 600_000, 3 * MIB)) + chance.randrange(512)
            block = place(library, size)
            live.append((place.__name__, block))
            held[place.__name__] += block[1]
            blocks[place.__name__] += 1
    return {"places": {name: [held[name], blocks[name]] for name in held}}


def small(library, _cuda, count, size):
    """Small blocks that stay, from two functions; a third one has large ones."""
    for number in range(int(count)):
        (losses, caches)[number % 2](library, int(size))
    for _ in range(7):
        weights(library, 3 * MIB)
    return {"allocated_bytes": library.c10_allocated_bytes(0)}


def out_of_memory(library, _cuda):
    """Memory runs out; everything is freed and given back at once."""
    kept = [weights(library, 5 * MIB) for _ in range(11)]
    middling = [activations(library, 700_000) for _ in range(13)]
    for block in kept[::2]:
        library.c10_free(block[0])
    live = kept[1::2] + middling
    failed = gradients(library, 41 * MIB)
    reserved = library.c10_reserved_bytes(0)
    for address, _ in live:
        library.c10_free(address)
    library.c10_empty_cache(0)
    for _ in range(5):
        library.c10_free(caches(library, 3 * MIB)[0])
    return {"failed": failed is None, "blocks": sorted(live), "reserved_bytes": reserved}


def retry(library, _cuda):
    """A request is in vain until the cache is given back: no memory has run out."""
    library.c10_free(weights(library, 30 * MIB)[0])
    found = weights(library, 40 * MIB)
    return {"found": found is not None}


def refused_call(library, cuda):
    """Memory runs out in a call that no framework makes."""
    address = ctypes.c_void_p()
    good = cuda.cudaMalloc(ctypes.byref(address), 23 * MIB)
    return {"good": good, "refused": cuda.cudaMalloc(ctypes.byref(address), 47 * MIB)}


def refused_beside(library, cuda):
    """The same beside a framework: it shows when the thread ends."""
    weights(library, 3 * MIB)
    return refused_call(library, cuda)


def forks(library, _cuda):
    """A child frees what it inherited, and another one executes a program that has its own."""
    blocks = [weights(library, 3 * MIB) for _ in range(5)]
    child = os.fork()
    if not child:
        for address, _ in blocks:
            library.c10_free(address)
        os._exit(0)
    os.waitpid(child, 0)
    other = os.fork()
    if not other:
        os.execv(sys.executable, [sys.executable, __file__, "one", sys.argv[2]])  # noqa: S606
    os.waitpid(other, 0)
    return {"child": child, "other": other, "allocated_bytes": library.c10_allocated_bytes(0)}


def forked_first(library, _cuda):
    """A child has blocks of its own, as its parent had none."""
    child = os.fork()
    if not child:
        weights(library, 3 * MIB)
        os._exit(0)
    os.waitpid(child, 0)
    return {"child": child}


def one(library, _cuda):
    """One block."""
    return {"block": weights(library, 7 * MIB)}


def hostile(library, _cuda):
    """Reports that cannot be, among one that can."""
    report = getattr(library, _REPORT.format("lmm"))
    report.argtypes = [_U64, ctypes.c_int64, _U64, _U64, ctypes.c_uint16]
    failed = getattr(library, _OUT_OF_MEMORY)
    failed.argtypes = [_U64, _U64, _U64, ctypes.c_uint16]
    highest, lowest, largest = (1 << 63) - 1, -(1 << 63), (1 << 64) - 1
    report(4096, 2048, 2048, 4096, _CUDA_DEVICE_1)
    for address in (0, 4096, largest):
        for size in (highest, lowest, -1 << 62, 0, 1 << 47, -(1 << 47)):
            report(address, size, largest, highest, _CUDA_DEVICE_1)
            report(address, size, 0, 0, _CUDA_DEVICE_1)
    for _ in range(3):
        report(4096, -2048, 0, 4096, _CUDA_DEVICE_1)
    for device in (0, 2, 0xFFFF):
        report(4096, 2048, 2048, 4096, device)
    for _ in range(3):
        failed(largest, largest, highest, _CUDA_DEVICE_1)
    return {}


def real(library, _cuda, spelling, count):
    """Reports to the real library, which has no allocator: what is in use, by function."""
    report = getattr(library, _REPORT.format(spelling))
    report.argtypes = [_U64, ctypes.c_int64, _U64, _U64, ctypes.c_uint16]

    def weights(number):
        report(number << 20, MIB, (number + 1) * MIB, 1 << 40, 1)

    def activations(number):
        live = (number + 1) * MIB
        report(number << 20 | 1, 2 * MIB, live + 2 * MIB, 1 << 40, 1)
        report(number << 20 | 1, -2 * MIB, live, 1 << 40, 1)

    for number in range(int(count)):
        weights(number)
        activations(number)
    return {}


if __name__ == "__main__":
    name, path, *more = sys.argv[1:]
    loaded = (ctypes.CDLL(path), None) if name == "real" else load(path)
    said = globals()[name.replace("-", "_")](*loaded, *more)
    sys.stdout.write(json.dumps({"pid": os.getpid()} | said) + "\n")

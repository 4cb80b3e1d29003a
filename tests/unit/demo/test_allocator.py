"""The stand-in for PyTorch's allocator keeps its books, and its order of calls."""

import ctypes
import json
import random
import subprocess
import sys
from _ctypes import dlclose
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from otel_gpu.demo.build import build_allocator
from otel_gpu.demo.memory_scenarios import ALLOCATOR

MIB = 1 << 20
_REPORT = "_ZN3c1027reportMemoryUsageToProfilerEPv{}NS_6DeviceE"

# Each run is a process of its own: the library reads its environment once.
_PROGRAM = """
import ctypes, json, sys
c10 = ctypes.CDLL(sys.argv[1])
cuda = ctypes.CDLL(sys.argv[2])
c10.c10_malloc.restype = ctypes.c_void_p
c10.c10_malloc.argtypes = [ctypes.c_int, ctypes.c_size_t]
c10.c10_free.restype = ctypes.c_size_t
c10.c10_free.argtypes = [ctypes.c_void_p]
for name in ("allocated", "reserved", "largest_free"):
    getattr(c10, f"c10_{name}_bytes").restype = ctypes.c_size_t
calls = []
kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
kept = []
for name in ("cudaMalloc", "cudaFree"):
    kept.append(kind(lambda _, name=name: calls.append(name)))
    cuda.stub_call_inside(name.encode(), kept[-1], None)
def state():
    return [c10.c10_allocated_bytes(0), c10.c10_reserved_bytes(0), c10.c10_largest_free_bytes(0)]
said = []
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, as the versions of PyTorch spell it that people use."""
    return build_allocator(tmp_path_factory.mktemp("c10"))


def _run(library: Path, program: str, **environment: str) -> list[object]:
    result = subprocess.run(
        [
            *(sys.executable, "-c", _PROGRAM + program + "\nprint(json.dumps(said))"),
            *(str(library), str(library.with_name("libcudart.so.12"))),
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    said: list[object] = json.loads(result.stdout)
    return said


def test_blocks_are_split_and_merged_again(library: Path) -> None:
    """Small requests share a segment of 2 MiB, and what is free as a whole goes back."""
    one, two, freed, empty = _run(
        library,
        """
a = c10.c10_malloc(0, 1000); said.append(state())
b = c10.c10_malloc(0, 512); said.append(state())
c10.c10_free(a); c10.c10_free(b); said.append(state())
c10.c10_empty_cache(0); said.append(state())
""",
    )
    assert one == [1024, 2 * MIB, 2 * MIB - 1024]
    assert two == [1536, 2 * MIB, 2 * MIB - 1536]
    assert freed == [0, 2 * MIB, 2 * MIB]
    assert empty == [0, 0, 0]


def test_what_does_not_fit_is_tried_again_and_fails(library: Path) -> None:
    """The cache is given back before the second attempt; only then memory has run out."""
    cached, block, after, no_block, last = _run(
        library,
        """
c10.c10_free(c10.c10_malloc(0, 30 << 20)); said.append(state())
calls.clear(); said.append(c10.c10_malloc(0, 40 << 20) is not None); said.append(calls[:])
calls.clear(); said.append(c10.c10_malloc(0, 41 << 20) is not None); said.append(calls[:])
""",
        STUB_DEVICE_BYTES=str(64 * MIB),
        STUB_OTHERS_BYTES=str(4 * MIB),
    )
    assert cached == [0, 30 * MIB, 30 * MIB]
    assert block
    assert after == ["cudaMalloc", "cudaFree", "cudaMalloc"]
    assert not no_block
    assert last == ["cudaMalloc", "cudaMalloc"]


@contextmanager
def opened(library: Path) -> Iterator[ctypes.CDLL]:
    """Load it, and unload it again: other tests look at what this process has mapped."""
    handle = ctypes.CDLL(str(library))
    try:
        yield handle
    finally:
        dlclose(handle._handle)


def test_its_books_are_right_whatever_is_done(library: Path) -> None:
    """Random requests never overlap, and add up; what is no block is not freed."""
    with opened(library.with_name("libcudart.so.12")), opened(library) as c10:
        check_books(c10)


def check_books(c10: ctypes.CDLL) -> None:
    c10.c10_malloc.restype, c10.c10_malloc.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_int, ctypes.c_size_t],
    )
    c10.c10_free.restype, c10.c10_free.argtypes = ctypes.c_size_t, [ctypes.c_void_p]
    c10.c10_allocated_bytes.restype = ctypes.c_size_t
    choose, live = random.Random(7), dict[int, int]()  # noqa: S311 -- the same each time
    for _ in range(2003):
        if live and choose.random() < 0.48:
            address = choose.choice(list(live))
            assert c10.c10_free(address) == live.pop(address)
        else:
            size = choose.choice((700, 40_000, MIB, 3 * MIB, 33 * MIB)) + choose.randrange(999)
            address = c10.c10_malloc(3, size)
            live[address] = c10.c10_allocated_bytes(3) - sum(live.values())
            assert live[address] >= size
        assert c10.c10_allocated_bytes(3) == sum(live.values())
    ends = 0
    for address, size in sorted(live.items()):
        assert address >= ends
        ends = address + size
    assert c10.c10_free(1) == 0


@pytest.mark.parametrize(("is_old", "spelling"), [(False, "lmm"), (True, "lll")])
def test_both_spellings_are_exported(tmp_path: Path, is_old: bool, spelling: str) -> None:
    """The one that PyTorch has had since 2.0, and the one before."""
    library = build_allocator(tmp_path, is_old=is_old)
    assert library.name == ALLOCATOR
    with opened(library) as c10:
        assert hasattr(c10, _REPORT.format(spelling))

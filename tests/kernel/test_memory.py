"""Which allocations are memory of a device, and which are not."""

import sys
from collections.abc import Iterator

import pytest

from tests.kernel.agent import Shared, losses, run_together, total
from tests.stubs.build import StubLibraries

pytestmark = pytest.mark.kernel

IN_USE = "gpu.cuda.memory.in_use"
PREAMBLE = """
import ctypes, os, sys
cuda = ctypes.CDLL(sys.argv[1])
stream, other = ctypes.c_void_p(0x51), ctypes.c_void_p(0x52)
def handle(value=0):
    return ctypes.c_uint64(value)
def size(bytes):
    return ctypes.c_size_t(bytes)
print(os.getpid(), flush=True)
"""
CAPTURED = """
node, kept, memory, outside = handle(), handle(), handle(), handle()
cuda.cudaStreamBeginCapture(stream, 0)
cuda.cudaMallocAsync(ctypes.byref(node), size(1009), stream)
cuda.cudaMallocAsync(ctypes.byref(kept), size(1013), stream)
cuda.cudaMallocAsync(ctypes.byref(memory), size(503), other)
cuda.cudaFreeAsync(node, stream)
cuda.cudaStreamEndCapture(stream, ctypes.byref(handle()))
cuda.cudaMallocAsync(ctypes.byref(outside), size(211), stream)
"""
CAPTURED_BY_THE_DRIVER = """
node, memory = handle(), handle()
cuda.cuStreamBeginCapture_v2(stream, 0)
cuda.cuMemAllocAsync(ctypes.byref(node), size(1009), stream)
cuda.stub_set(b"cuStreamEndCapture", b"fail=901")
cuda.cuStreamEndCapture(stream, ctypes.byref(handle()))
cuda.cuMemAllocAsync(ctypes.byref(memory), size(714), stream)
"""
CREATED = """
create(1, 0, 503)
create(6, 0x100, 211)
cuda.cuMemRelease(create(2, 0, 1009))
for location in (2, 3, 4):
    create(location, 0, 1013)
cuda.cuMemRelease(create(1, 0, 307))
"""
CREATE = """
def create(location, number, bytes):
    properties = (ctypes.c_uint32 * 8)(1, 0, location, number)
    made = handle()
    cuda.cuMemCreate(ctypes.byref(made), size(bytes), properties, handle())
    return made
def at(address, bytes, made):
    cuda.cuMemMap(handle(address), size(bytes), size(0), made, handle())
def unmap(address, bytes):
    cuda.cuMemUnmap(handle(address), size(bytes))
def retain(address):
    further = handle()
    cuda.cuMemRetainAllocationHandle(ctypes.byref(further), ctypes.c_void_p(address))
    return further
"""
# As NCCL and vLLM do: the memory lives in its mappings.
RELEASED_WHILE_MAPPED = """
kept, gone, twice = create(1, 0, 714), create(1, 0, 1009), create(1, 0, 1013)
at(0x10000, 714, kept)
at(0x20000, 1009, gone)
at(0x30000, 1013, twice)
at(0x40000, 1013, twice)
for made in (kept, gone, twice):
    cuda.cuMemRelease(made)
unmap(0x20000, 1009)
unmap(0x30000, 1013)
unmap(0x40000, 1013)
"""
# As torch does: handle and mapping go together.
UNMAPPED_FIRST = """
kept, gone = create(1, 0, 714), create(1, 0, 1009)
at(0x10000, 714, kept)
at(0x20000, 1009, gone)
unmap(0x10000, 714)
unmap(0x20000, 1009)
cuda.cuMemRelease(gone)
"""
MANY_UNMAPPED_AT_ONCE = """
kept = create(1, 0, 714)
at(0x10000, 714, kept)
for number in range(101):
    made = create(1, 0, 4096)
    at(0x100000 + 4096 * number, 4096, made)
    cuda.cuMemRelease(made)
unmap(0x100000, 101 * 4096)
cuda.cuMemRelease(kept)
"""
RETAINED = """
kept, gone = create(1, 0, 714), create(1, 0, 1009)
at(0x10000, 714, kept)
at(0x20000, 1009, gone)
further, last = retain(0x10000), retain(0x20000)
for made in (kept, gone):
    cuda.cuMemRelease(made)
unmap(0x10000, 714)
unmap(0x20000, 1009)
cuda.cuMemRelease(last)
"""
IMPORTED = """
create(1, 0, 714)
imported = handle()
cuda.cuMemImportFromShareableHandle(ctypes.byref(imported), ctypes.c_void_p(7), 1)
at(0x10000, 1009, imported)
cuda.cuMemRelease(imported)
unmap(0x10000, 1009)
"""


ARRAYS = """
class Extent(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("width", "height", "depth")]
def format(*bits, kind):
    return (ctypes.c_int * 5)(*bits, kind)
pixel, vector = format(8, 8, 0, 0, kind=1), format(32, 32, 32, 32, kind=2)
kept, flat, deep, pitched = handle(), handle(), handle(), (ctypes.c_uint64 * 4)()
cuda.cudaMallocArray(ctypes.byref(kept), pixel, size(357), size(0), 0)
cuda.cudaMallocArray(ctypes.byref(flat), vector, size(101), size(7), 0)
cuda.cudaMalloc3DArray(ctypes.byref(deep), vector, Extent(101, 7, 0), 0)
cuda.cudaMalloc3D(pitched, Extent(101, 7, 3))
cuda.cudaFreeArray(flat)
cuda.cudaFreeArray(deep)
cuda.cudaFree(ctypes.c_void_p(pitched[0]))
"""
ARRAYS_OF_THE_DRIVER = """
import struct
kept, deep = handle(), handle()
cuda.cuArrayCreate_v2(ctypes.byref(kept), struct.pack("QQII", 357, 0, 0x09, 1))
cuda.cuArray3DCreate_v2(ctypes.byref(deep), struct.pack("QQQIII", 101, 7, 3, 0x20, 4, 0))
cuda.cuArrayDestroy(deep)
"""


# By what each is about: whose calls it makes, and how. In each, 714 bytes are in use at the end.
SCRIPTS = {
    "captured": ("runtime", CAPTURED),
    "captured-by-the-driver": ("driver", CAPTURED_BY_THE_DRIVER),
    "created": ("driver", CREATE + CREATED),
    "released-while-mapped": ("driver", CREATE + RELEASED_WHILE_MAPPED),
    "unmapped-first": ("driver", CREATE + UNMAPPED_FIRST),
    "many-unmapped-at-once": ("driver", CREATE + MANY_UNMAPPED_AT_ONCE),
    "retained": ("driver", CREATE + RETAINED),
    "arrays": ("runtime", ARRAYS),
    "arrays-of-the-driver": ("driver", ARRAYS_OF_THE_DRIVER),
    "imported": ("driver", CREATE + IMPORTED),
}


@pytest.fixture(scope="module")
def shared(stubs: StubLibraries) -> Iterator[Shared]:
    commands = {
        name: ({}, [sys.executable, "-c", PREAMBLE + script, getattr(stubs, layer)])
        for name, (layer, script) in SCRIPTS.items()
    }
    with run_together(commands) as shared:
        yield shared


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_is_no_memory_of_a_device_is_not_in_use(shared: Shared, name: str) -> None:
    """
    A node of a graph takes none, nor does memory of the host or of another process; what is created
    lives as long as its handles and mappings do.
    """
    assert shared.finished[name].returncode == 0
    assert total(shared.receiver, IN_USE, shared.pid(name)) == 714
    assert losses(shared.receiver) == {}

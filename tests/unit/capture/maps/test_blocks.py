"""The map of a device when a request failed, from what the kernel's maps hold."""

import pytest

from otel_gpu import wire
from otel_gpu.capture.maps import blocks as module
from otel_gpu.capture.maps.blocks import BlockMaps
from otel_gpu.config import load

PID, IMAGE_KTIME_NS = 5, 50
IMAGE = (PID, IMAGE_KTIME_NS)
FAILED_KTIME_NS = 1_000
MIB = 1 << 20


class Map(dict):
    """One map of the kernel side."""

    def entries(self):
        return iter(list(self.items()))

    def lookup(self, key):
        return self.get(key)

    def delete(self, key):
        self.pop(key, None)

    def update(self, key, value):
        self[key] = value


class Kernel:
    """The kernel side's maps, by name."""

    def __init__(self):
        self.maps = {}

    def map(self, name):
        return self.maps.setdefault(name, Map())

    def fail(self, device=0, ktime_ns=FAILED_KTIME_NS):
        key = wire.DEVICE_KEY.pack(IMAGE_KTIME_NS, PID, device)
        self.map("unread_maps")[key] = ktime_ns.to_bytes(8, "little")

    def put_block(self, address, size, *, to="blocks", kind=wire.MEMORY_BLOCK, **values):
        key = wire.BLOCK_KEY.pack(values.pop("image", IMAGE_KTIME_NS), address, PID, kind)
        self.map(to)[key] = wire.BLOCK.build(size_bytes=size, **values)

    def put_memory(self, address, size, layer=wire.LAYER_RUNTIME, **values):
        key = wire.ALLOCATION_KEY.pack(IMAGE_KTIME_NS, address, PID, layer)
        values = {"ktime_ns": 1, **values}
        self.map("allocations")[key] = wire.ALLOCATION.build(size_bytes=size, **values)


@pytest.fixture
def kernel():
    kernel = Kernel()
    kernel.fail()
    return kernel


def read(kernel, mode="all", device=0, **options):
    """What is said of a failure."""
    options = {f"memory.{name}": value for name, value in options.items()}
    config = load(None, {}, {"memory.blocks": mode, **options})
    return BlockMaps(kernel, config).read_map(IMAGE, device, FAILED_KTIME_NS)


def test_what_was_freed_since_is_put_back_and_what_came_since_is_left_out(kernel):
    """The map is as it was; the tombstones are gone with their reading."""
    kernel.put_memory(0, 20 * MIB)
    kernel.put_memory(32 * MIB, MIB, ktime_ns=FAILED_KTIME_NS + 1)
    kernel.put_block(32 * MIB, 2 * MIB, to="freed_memory", kind=wire.MEMORY_SEGMENT)
    kernel.put_block(0, 512, stack=7, ktime_ns=FAILED_KTIME_NS)
    kernel.put_block(512, 1024, stack=8, to="freed_memory")
    kernel.put_block(4096, 512, stack=9, ktime_ns=FAILED_KTIME_NS + 1)
    kernel.put_block(8192, 512, stack=9, device=1)
    kernel.put_block(8192, 512, stack=9, image=51)

    assert read(kernel) == {
        "device": 0,
        "segments": [(0, 20 * MIB), (32 * MIB, 2 * MIB)],
        "blocks": [(0, 512, 7), (512, 1024, 8)],
        "left_out": 0,
        "smallest_bytes": 0,
    }
    assert kernel.maps["freed_memory"] == kernel.maps["unread_maps"] == {}


def test_a_map_is_read_once(kernel):
    """That of a failure which came while an earlier one was not read is none."""
    kernel.fail(ktime_ns=FAILED_KTIME_NS - 1)

    assert read(kernel) is None
    kernel.fail()
    assert read(kernel) is not None
    assert read(kernel) is None


def test_memory_of_the_host_is_no_segment(kernel):
    """Nor are handles. The two layers say the same of one address."""
    kernel.put_memory(4096, MIB, ktime_ns=0)
    kernel.put_memory(8192, MIB, layer=wire.MEMORY_HANDLE)
    kernel.put_memory(MIB, MIB)
    kernel.put_memory(MIB, MIB, layer=wire.LAYER_DRIVER)
    # A thread that never chose a device has the first one.
    kernel.put_memory(2 * MIB, MIB, device=-1)
    kernel.put_memory(3 * MIB, MIB, device=1)

    assert read(kernel)["segments"] == [(MIB, MIB), (2 * MIB, MIB)]


def test_what_is_mapped_piece_by_piece_is_one_segment(kernel):
    """Where the pieces are next to each other; each is of the device that its memory is of."""
    for number, device in ((1, 0), (2, 0), (4, 0), (5, 1)):
        kernel.put_memory(number, 0, layer=wire.MEMORY_PHYSICAL, device=device)
        kernel.put_memory(number * MIB, MIB, layer=wire.MEMORY_MAPPING, physical=number)

    assert read(kernel)["segments"] == [(MIB, 2 * MIB), (4 * MIB, MIB)]


def test_small_blocks_are_left_out_where_they_are_sampled(kernel):
    """A few of them would say nothing about where holes are."""
    kernel.put_block(0, 4096)
    kernel.put_block(8192, 8192)

    info = read(kernel, "large", large_bytes=8192)

    assert info["blocks"] == [(8192, 8192, 0)]
    assert (info["left_out"], info["smallest_bytes"]) == (0, 8192)


def test_of_too_many_blocks_the_largest_are_there(kernel, monkeypatch):
    """It is said how many are not, and from which size on all are there."""
    monkeypatch.setattr(module, "MAX_MAP_BLOCKS", 2)
    for number, size in enumerate((512, 2048, 1024, 512)):
        kernel.put_block(4096 * number, size)

    info = read(kernel)

    assert info["blocks"] == [(4096, 2048, 0), (8192, 1024, 0)]
    assert (info["left_out"], info["smallest_bytes"]) == (2, 1024)


def test_totals_that_were_read_in_the_middle_of_a_report_are_read_again(kernel):
    """What was seen and what was said add up in one that is whole."""
    key = wire.DEVICE_KEY.pack(IMAGE_KTIME_NS, PID, 0)
    torn = {"totals.before_bytes": -512, "totals.handed_out_bytes": 1024}
    devices = kernel.map("device_memories")
    devices[key] = wire.DEVICE_MEMORY.build(**torn)
    whole = wire.DEVICE_MEMORY.build(**torn, **{"totals.allocated_bytes": 512})
    answers = [devices[key], whole]
    devices.lookup = lambda _: answers.pop(0)

    [(found, totals)] = BlockMaps(kernel, load(None, {}, {})).read_totals()

    assert found == key
    assert wire.MEMORY_TOTALS.named(totals)["allocated_bytes"] == 512


def test_blocks_of_an_image_are_forgotten(kernel):
    """Those of others stay."""
    kernel.put_block(0, 512)
    kernel.put_block(0, 512, image=51)

    BlockMaps(kernel, load(None, {}, {})).forget_blocks([IMAGE])

    [key] = kernel.maps["blocks"]
    assert wire.BLOCK_KEY.named(key)["program_ktime_ns"] == 51

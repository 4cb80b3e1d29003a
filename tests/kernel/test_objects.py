"""The loader: maps, attachments and errors, on the real kernel."""

import _ctypes
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_gpu import wire
from otel_gpu.capture.bpf.loaders import KernelFunction, has_kernel_function
from otel_gpu.capture.bpf.objects import BpfObject, object_path
from otel_gpu.capture.bpf.programs import (
    AT_PRELOAD,
    ENTER_CALL,
    EXIT_CALL,
    REPORT_BLOCK,
    REPORT_OUT_OF_MEMORY,
    Programs,
)
from otel_gpu.capture.maps.thread_dump import DUMP_THREAD, can_dump_threads
from otel_gpu.capture.probes.elf_exports import exported_functions
from otel_gpu.config import load
from otel_gpu.errors import BpfError, MapFullError
from otel_gpu.wire.probe_symbols import probes_of
from tests.kernel.agent import bpf_objects
from tests.stubs.build import StubLibraries

pytestmark = pytest.mark.kernel

CONFIG = load(None, {}, {})
THREAD_BYTES = wire.THREAD.size
# What is loaded with its first probe: for blocks, for lack of memory, for preloaded programs, to dump threads.
PUT_OFF = 4
CUDA_DEVICE = 1  # a c10::Device: a byte with its type, and one with its index
API = "cudaDeviceSynchronize"


@pytest.fixture
def programs() -> Iterator[Programs]:
    with Programs(CONFIG, watch_all=False) as programs:
        yield programs


def place_of(stubs: StubLibraries, symbol: str) -> int:
    return dict(exported_functions(str(stubs.runtime)))[symbol]


def verified_instructions() -> dict[str, int]:
    """Return how many the verifier has followed of each program that this process holds."""
    return {
        path.name: int(line.split()[1])
        for path in Path("/proc/self/fdinfo").iterdir()
        if path.exists()
        for line in path.read_text().splitlines()
        if line.startswith("verified_insns:")
    }


def test_the_verifier_has_little_to_do() -> None:
    """Every start of a capture waits for it. What branches is a global function: followed once."""
    # Captures of other tests of this process may still be there.
    others = verified_instructions().keys()
    with Programs(CONFIG, watch_all=False) as programs:
        at_start = [n for fd, n in verified_instructions().items() if fd not in others]
        for program in (REPORT_BLOCK, AT_PRELOAD, DUMP_THREAD):
            programs.bpf.program_fd(program)
        verified = [n for fd, n in verified_instructions().items() if fd not in others]

    assert len(at_start) > 10
    assert len(verified) == len(at_start) + PUT_OFF
    assert max(verified) < 50_000
    assert sum(at_start) < 140_000
    assert sum(verified) < 200_000


@pytest.mark.parametrize("multi", [True, False], ids=["uprobe_multi", "one by one"])
def test_programs_are_loaded_with_their_first_probe(stubs: StubLibraries, multi: bool) -> None:
    """What counts reports of memory works on the maps of the others, which are there already."""
    path, place = str(stubs.runtime), place_of(stubs, API)
    with Programs(CONFIG, watch_all=False, multi=multi) as programs:
        programs.processes.watch(os.getpid(), wire.PROCESS_NO_SPANS)
        programs.bpf.attach_uprobes(REPORT_BLOCK, path, [(place, 0)])
        runtime = ctypes.CDLL(path)
        for number in range(1, 12):
            report = (ctypes.c_void_p(number), ctypes.c_int64(512), ctypes.c_uint64(512 * number))
            runtime.cudaDeviceSynchronize(*report, ctypes.c_uint64(1 << 20), CUDA_DEVICE)
        _ctypes.dlclose(runtime._handle)

        found = [wire.MEMORY_TOTALS.named(value) for _, value in programs.blocks.read_totals()]

    assert [(one["allocations"], one["handed_out_bytes"]) for one in found] == [(11, 11 * 512)]


def test_a_program_that_the_kernel_refuses_late_costs_its_probes_alone(
    stubs: StubLibraries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is that of the probe, each time, and the probes of other programs are placed."""

    def refuse(_: BpfObject, programs: tuple[str, ...]) -> int:
        raise BpfError(f"{programs[0]} is refused")

    monkeypatch.setattr(BpfObject, "_load_late", refuse)
    path, places = str(stubs.runtime), [(place_of(stubs, API), 0)]
    with Programs(CONFIG, watch_all=False) as programs:
        programs.attach()
        for _ in range(2):
            with pytest.raises(BpfError, match="report_block is refused"):
                programs.bpf.attach_uprobes(REPORT_OUT_OF_MEMORY, path, places)
        with pytest.raises(BpfError, match="dump_thread is refused"):
            _ = programs.thread_dumps

        assert programs.bpf.attach_uprobes(ENTER_CALL, path, places)


def test_a_map_is_read_in_batches(programs: Programs) -> None:
    """1201 entries come back, each once, through batches of 512."""
    processes = programs.bpf.map("processes")
    for number in range(1201):
        processes.update(number.to_bytes(4, "little"), wire.PROCESS.build(program_ktime_ns=number))

    images = programs.processes.programs()

    assert images == {number: number for number in range(1201)}


def test_a_batch_that_is_too_small_for_a_bucket_grows(programs: Programs) -> None:
    """The kernel refuses a batch that cannot hold one hash bucket; nothing is missed."""
    processes = programs.bpf.map("processes")
    for number in range(997):
        processes.update(number.to_bytes(4, "little"), wire.PROCESS.build(program_ktime_ns=number))

    batches = list(processes.read_batches(1))

    assert sum(count for count, _, _ in batches) == 997


def test_thread_dumps_are_loaded_where_they_can_be_wanted() -> None:
    """Of a command all calls are seen from the first one on: no thread has to be looked at."""
    with Programs(CONFIG, watch_all=False, thread_dumps=False) as programs:
        programs.attach()

        assert programs.thread_dumps is None
        with pytest.raises(BpfError):
            programs.bpf.program_fd(DUMP_THREAD)
    with Programs(CONFIG, watch_all=False) as programs:
        programs.attach()

        assert (programs.thread_dumps is not None) == can_dump_threads()


def test_only_new_keeps_what_is_there(programs: Programs) -> None:
    """The kernel side may have been first."""
    processes = programs.bpf.map("processes")
    key = (7).to_bytes(4, "little")

    assert processes.update(key, wire.PROCESS.build(program_ktime_ns=1), only_new=True)
    assert not processes.update(key, wire.PROCESS.build(program_ktime_ns=2), only_new=True)
    assert programs.processes.program_ktime_ns(7) == 1


@pytest.mark.skipif(
    not has_kernel_function(KernelFunction.ALLOCATES),
    reason="programs cannot take memory everywhere",
)
def test_threads_take_memory_as_they_come(programs: Programs) -> None:
    """And the map has room for as many as it may hold."""
    before_bytes = memory_bytes(programs.bpf.map("threads").fd)
    for tid in range(1, 1 + CONFIG.capture.max_threads):
        assert programs.bpf.map("threads").update(tid.to_bytes(4, "little"), bytes(THREAD_BYTES))

    assert before_bytes < 1 << 20
    assert memory_bytes(programs.bpf.map("threads").fd) > CONFIG.capture.max_threads * THREAD_BYTES
    with pytest.raises(MapFullError):
        programs.bpf.map("threads").update((1 << 22).to_bytes(4, "little"), bytes(THREAD_BYTES))


def memory_bytes(fd: int) -> int:
    """Return the memory of a map."""
    [line] = [
        line
        for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
        if line.startswith("memlock:")
    ]
    return int(line.split()[1])


def test_settings_of_the_wrong_size_are_refused() -> None:
    """A wire package that does not fit the object must not be loaded."""
    with BpfObject(object_path()) as bpf:
        bpf.set_read_only_data(".rodata.settings", b"too short")
        with pytest.raises(BpfError, match=r"\.rodata\.settings does not take 9 bytes"):
            bpf.load()


def test_a_damaged_object_is_refused(tmp_path: Path) -> None:
    """The error names the file."""
    path = tmp_path / "damaged.bpf.o"
    path.write_bytes(b"\x7fELF" + bytes(100))
    with BpfObject(path) as bpf, pytest.raises(BpfError, match="damaged"):
        bpf.load()


@pytest.mark.parametrize(
    ("multi", "in_place"),
    [(True, True), (True, False), (False, True)],
    ids=["uprobe_multi", "uprobe_multi, cookies by a helper", "one by one"],
)
def test_calls_are_counted_whichever_way_probes_attach(
    stubs: StubLibraries, multi: bool, in_place: bool
) -> None:
    """Kernels before 6.6 take one uprobe at a time; the counts are the same."""
    path = str(stubs.runtime)
    (probe,) = (probe for probe in probes_of(exported_functions(path)) if probe.symbol == API)
    places = [(probe.file_offset, probe.api.number)]
    with Programs(CONFIG, watch_all=False, multi=multi, in_place=in_place) as programs:
        programs.processes.watch(os.getpid(), wire.PROCESS_NO_SPANS)
        programs.bpf.attach_uprobes(EXIT_CALL, path, places, on_return=True)
        programs.bpf.attach_uprobes(ENTER_CALL, path, places)
        runtime = ctypes.CDLL(path)
        for _ in range(101):
            runtime.cudaDeviceSynchronize()
        # Other tests ask what this process maps.
        _ctypes.dlclose(runtime._handle)

        counted = [
            sum(wire.AGGREGATE.unpack(value)[-wire.MAX_BUCKETS :])
            for key, value in programs.read_aggregates()
            if wire.AGGREGATE_KEY.unpack(key)[4] == wire.METRIC_CALL_DURATION
        ]

    assert counted == [101]


@pytest.mark.parametrize("multi", [True, False], ids=["uprobe_multi", "one by one"])
def test_a_place_that_takes_no_probe_leaves_none_behind(stubs: StubLibraries, multi: bool) -> None:
    """Who attaches the others by themselves must not have them twice."""
    path = str(stubs.runtime)
    probes = probes_of(exported_functions(path))
    places = [(probe.file_offset, probe.api.number) for probe in probes]
    beyond_the_end = (1 << 40, 0)
    with Programs(CONFIG, watch_all=False, multi=multi) as programs:
        programs.bpf.attach_uprobes(EXIT_CALL, path, places[:1], on_return=True)
        before = bpf_objects("link", os.getpid())

        with pytest.raises(BpfError, match=f"{ENTER_CALL} is not attached"):
            programs.bpf.attach_uprobes(ENTER_CALL, path, [*places, beyond_the_end])

        assert len(before) == 1
        assert bpf_objects("link", os.getpid()) == before

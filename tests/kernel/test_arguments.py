"""What is not an argument by itself: sizes in structures and lists, and what a call answers."""

import json
import re
import struct
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from otel_gpu.wire.probe_table import APIS
from tests.kernel.agent import Shared, calls, losses, otel_gpu, points, run_together, spans, total
from tests.stubs.build import StubLibraries

pytestmark = pytest.mark.kernel

COPIES = "gpu.cuda.memory.copies"
ELAPSED = "gpu.cuda.event.elapsed"
# The bits of floats: up to 16 seconds, most of them of no whole number of nanoseconds.
BITS = [(106 << 23) + number * 1_171_717_171 % (35 << 23) for number in range(1009)]
NO_DURATIONS = (0x7FC00000, 0x7F800000, 0xBF800000, 0xFF800000, 0x7F7FFFFF, 167 << 23)
TINY = (0, 1 << 31, 1, 0x007FFFFF)
LONGEST = 166 << 23
PREAMBLE = """
import ctypes, os, struct, sys
cuda = ctypes.CDLL(sys.argv[1])
there, back, stream, done = (ctypes.c_void_p(at) for at in (0x51, 0x52, 0x53, 0x54))
print(os.getpid(), flush=True)
def sizes(*bytes):
    return (ctypes.c_size_t * len(bytes))(*bytes)
"""
MEASURED = f"""
def ask(bits, answer=ctypes.byref(ctypes.c_float())):
    cuda.cudaEventElapsedTime(answer, done, ctypes.c_void_p(bits))
cuda.cudaSetDevice(0)
for bits in {(*BITS, *TINY)}:
    ask(bits)
cuda.cudaSetDevice(1)
for _ in range(101):
    ask(0x40200000)
for bits in {NO_DURATIONS}:
    ask(bits)
for _ in range(3):
    ask(0x40200000, None)
cuda.stub_set(b"cudaEventElapsedTime", b"fail=600")
for _ in range(17):
    ask(0x40200000)
"""
MEASURED_THROUGH_THE_DRIVER = """
answer = ctypes.c_float()
cuda.stub_set(b"cudaEventElapsedTime", b"nest=1")
for _ in range(211):
    cuda.cudaEventElapsedTime(ctypes.byref(answer), done, ctypes.c_void_p(0x40200000))
"""
MEASURED_BY_THE_DRIVER = f"""
answer = ctypes.c_float()
for _ in range(13):
    cuda.cuEventElapsedTime_v2(ctypes.byref(answer), done, ctypes.c_void_p({LONGEST}))
"""
ASKED = """
for _ in range(101):
    cuda.cudaEventQuery(done)
cuda.stub_set(b"*", b"fail=600")
for _ in range(211):
    cuda.cudaEventQuery(done)
    cuda.cudaStreamQuery(stream)
cuda.stub_set(b"cudaEventQuery", b"fail=1")
for _ in range(7):
    cuda.cudaEventQuery(done)
"""
COPIED = """
def copy_3d(kind, width, height, depth, from_array=0, to_array=0):
    position, pointer = (0, 0, 0), (0x1000, 512, 0, 0)
    ends = (from_array, *position, *pointer, to_array, *position, *pointer)
    return struct.pack("16Q3QI4x", *ends, width, height, depth, kind)
for _ in range(101):
    cuda.cudaMemcpy3D(copy_3d(1, 101, 7, 3))
    cuda.cudaMemcpy3DAsync(copy_3d(2, 11, 7, 1), stream)
    cuda.cudaMemcpyBatchAsync(None, None, sizes(*range(37)), ctypes.c_size_t(37), None, None, ctypes.c_size_t(0), stream)
many = sizes(*[3] * 4097)
for count in (4096, 4097):
    cuda.cudaMemcpyBatchAsync(None, None, many, ctypes.c_size_t(count), None, None, ctypes.c_size_t(0), stream)
for _ in range(5):
    cuda.cudaMemcpy3D(copy_3d(3, 101, 7, 3, to_array=1))
def cu_copy_3d(width, height, depth):
    return struct.pack("4QI4x6Q4QI4x6Q3Q", *[0] * 4, 2, *[0] * 6, *[0] * 4, 3, *[0] * 6, width, height, depth)
told = ctypes.create_string_buffer(cu_copy_3d(404, 7, 3))
cuda.stub_set_driver_structures(told, None)
cuda.stub_set(b"cudaMemcpy3D", b"nest=1")
for _ in range(7):
    cuda.cudaMemcpy3D(copy_3d(3, 101, 7, 3, to_array=1))
"""
COPIED_BY_THE_DRIVER = """
def cu_copy_2d(source, to, width, height):
    return struct.pack("2QI4x4Q2QI4x4Q2Q", 0, 0, source, *[0] * 4, 0, 0, to, *[0] * 4, width, height)
def cu_copy_3d(source, to, width, height, depth):
    return struct.pack("4QI4x6Q4QI4x6Q3Q", *[0] * 4, source, *[0] * 6, *[0] * 4, to, *[0] * 6, width, height, depth)
for _ in range(11):
    cuda.cuMemcpy2D_v2(cu_copy_2d(1, 2, 101, 7))
    cuda.cuMemcpy2DUnaligned_v2(cu_copy_2d(2, 1, 101, 7))
    cuda.cuMemcpy2DAsync_v2(cu_copy_2d(3, 2, 101, 7), stream)
    cuda.cuMemcpy3D_v2(cu_copy_3d(1, 3, 101, 7, 3))
    cuda.cuMemcpy3DAsync_v2(cu_copy_3d(4, 2, 101, 7, 3), stream)
    cuda.cuMemcpyBatchAsync_v2(None, None, sizes(1, 2, 3), ctypes.c_size_t(3), None, None, ctypes.c_size_t(0), stream)
# Of CUDA 3: another structure.
cuda.cuMemcpy3D(cu_copy_3d(1, 3, 101, 7, 3))
"""
OTHERS = """
for _ in range(3):
    cuda.cudaLaunchHostFunc(stream, None, None)
    cuda.cudaStreamAddCallback(stream, None, None, 0)
    cuda.cudaMemPrefetchAsync(there, ctypes.c_size_t(1009), ctypes.c_uint64(1), 0, stream)
"""
OTHERS_OF_THE_DRIVER = """
for _ in range(3):
    cuda.cuLaunchHostFunc(stream, None, None)
    cuda.cuStreamAddCallback(stream, None, None, 0)
    cuda.cuMemPrefetchAsync_v2(there, ctypes.c_size_t(1009), ctypes.c_uint64(1), 0, stream)
    cuda.cuMemSetAccess(there, ctypes.c_size_t(211), None, ctypes.c_size_t(1))
    cuda.cuStreamBeginCaptureToGraph(stream, done, None, None, ctypes.c_size_t(0), 0)
    cuda.cuStreamQuery(stream)
    cuda.cuEventQuery(done)
"""
SCRIPTS = {
    "measured": ("runtime", MEASURED),
    "measured-through-the-driver": ("runtime", MEASURED_THROUGH_THE_DRIVER),
    "measured-by-the-driver": ("driver", MEASURED_BY_THE_DRIVER),
    "asked": ("runtime", ASKED),
    "copied": ("runtime", COPIED),
    "copied-by-the-driver": ("driver", COPIED_BY_THE_DRIVER),
    "others": ("runtime", OTHERS),
    "others-of-the-driver": ("driver", OTHERS_OF_THE_DRIVER),
}
# Bytes of each list: several readings, the last of them shorter.
LIST_BYTES = sum(range(37))


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arguments") / "calls.otelgpu"


@pytest.fixture(scope="module")
def shared(stubs: StubLibraries, recording: Path) -> Iterator[Shared]:
    commands = {
        name: (
            {"CUDA_STUB": "cudaEventElapsedTime:nest=0"},
            [sys.executable, "-c", PREAMBLE + script, getattr(stubs, layer)],
        )
        for name, (layer, script) in SCRIPTS.items()
    }
    with run_together(commands, "--spans", "full", "--record", str(recording)) as shared:
        assert {finished.returncode for finished in shared.finished.values()} == {0}
        yield shared


def elapsed(shared: Shared, name: str) -> dict[int | None, tuple[int, int]]:
    """How often each device was measured, and the sum in nanoseconds."""
    return {
        int(key.attribute("cuda.device.index"))
        if key.attribute("cuda.device.index") is not None
        else None: (point.point.count, round(point.point.sum * 1_000_000_000))
        for key, point in shared.receiver.metrics().items()
        if key.name == ELAPSED and key.pid == shared.pid(name)
    }


def nanoseconds(bits: int) -> int:
    """The time that these bits of a float are in milliseconds, rounded to the nearest."""
    (milliseconds,) = struct.unpack("<f", bits.to_bytes(4, "little"))
    return int(Fraction(milliseconds) * 1_000_000 + Fraction(1, 2))


def copied(shared: Shared, name: str) -> dict[str, tuple[int, int]]:
    """How many copies of each kind there were, and their bytes."""
    return {
        str(key.attribute("cuda.memcpy.kind")): (point.point.count, int(point.point.sum))
        for key, point in shared.receiver.metrics().items()
        if key.name == COPIES and key.pid == shared.pid(name)
    }


def test_what_a_program_measures_by_events_is_time_of_the_device(shared: Shared) -> None:
    """Each answer once, to the nanosecond; what failed or is no duration is none."""
    whole_ns = sum(nanoseconds(bits) for bits in BITS)

    assert elapsed(shared, "measured") == {
        0: (len(BITS) + len(TINY), whole_ns),
        1: (101, 101 * 2_500_000),
    }


def test_a_report_has_what_was_measured(shared: Shared, recording: Path) -> None:
    """Of a recording, the same times by process and device, in the document and in its text."""
    told = json.loads(otel_gpu("explain", recording, "--json").stdout)
    text = otel_gpu("explain", recording, "--pid", shared.pid("measured")).stdout
    found = {
        (row["pid"], row["device"]): (row["times"], row["sum_ns"]) for row in told["event_times"]
    }

    assert found == {
        (shared.pid(name), device): row
        for name, rows in {
            "measured": {
                0: (len(BITS) + len(TINY), sum(map(nanoseconds, BITS))),
                1: (101, 101 * 2_500_000),
            },
            "measured-through-the-driver": {0: (211, 211 * 2_500_000)},
            "measured-by-the-driver": {0: (9, 9 * nanoseconds(LONGEST))},
        }.items()
        for device, row in rows.items()
    }
    assert re.search(r"Device time that the program measured\n.*\n.*\n +1 +101 +2\.5 ms", text)


def test_a_store_has_what_was_measured(recording: Path, shared: Shared, tmp_path: Path) -> None:
    """The report of a store says what that of the recording says; SQL knows the series by name."""
    store = tmp_path / "store.db"
    question = (
        "SELECT pid, unit, sum(count) AS times, sum(sum) AS sum_ns FROM v_series"
        " WHERE metric = 'elapsed_time' GROUP BY pid, unit"
    )
    otel_gpu("replay", recording, "--store", store)
    told, kept = (
        json.loads(otel_gpu("explain", *source, "--json").stdout)["event_times"]
        for source in ((recording,), ("--store", store))
    )

    assert len(told) == 4
    assert kept == told
    rows = otel_gpu("query", "--store", store, "--csv", question).stdout.split()[1:]
    assert sorted(rows) == sorted(
        f"{pid},ns,{sum(row['times'] for row in told if row['pid'] == pid)},"
        f"{sum(row['sum_ns'] for row in told if row['pid'] == pid)}"
        for pid in {row["pid"] for row in told}
    )


def test_calls_that_measure_are_counted_as_all_calls_are(shared: Shared) -> None:
    """Their own time on the host is another metric; those that failed have their error."""
    api, pid = "cudaEventElapsedTime", shared.pid("measured")
    made = len(BITS) + len(TINY) + 101 + len(NO_DURATIONS) + 3 + 17

    assert calls(shared.receiver, api, pid) == made
    assert calls(shared.receiver, api, pid, error__type="cudaErrorNotReady") == 17


def test_the_runtime_and_the_driver_inside_it_measure_once(shared: Shared) -> None:
    """Both calls are seen, and it is one time."""
    pid = shared.pid("measured-through-the-driver")

    assert calls(shared.receiver, "cuEventElapsedTime", pid) == 211
    assert elapsed(shared, "measured-through-the-driver") == {0: (211, 211 * 2_500_000)}


def test_a_sum_of_times_stays_a_number(shared: Shared) -> None:
    """Whatever a program says: beyond 2^62 ns nothing is added."""
    each_ns = nanoseconds(LONGEST)

    assert elapsed(shared, "measured-by-the-driver") == {
        0: (9, pytest.approx(9 * each_ns, rel=1e-15))
    }


def test_asking_whether_work_is_done_is_no_failure(shared: Shared) -> None:
    """What is not done yet is an answer; and who only asks is no thread that feeds a device."""
    pid = shared.pid("asked")

    assert calls(shared.receiver, "cudaEventQuery", pid) == 101 + 211 + 7
    assert calls(shared.receiver, "cudaEventQuery", pid, error__type=None) == 101 + 211
    assert calls(shared.receiver, "cudaStreamQuery", pid, error__type=None) == 211
    assert points(shared.receiver, "gpu.cuda.thread.time", pid, state="host") == []


def test_copies_have_the_size_that_a_structure_or_list_says(shared: Shared) -> None:
    """Of both layers; of a copy to an array the driver's call inside says it."""
    assert copied(shared, "copied") == {
        "MemcpyHostToDevice": (101, 101 * 2121),
        "MemcpyDeviceToHost": (101, 101 * 77),
        "MemcpyDeviceToDevice": (7, 7 * 404 * 7 * 3),
        "MemcpyDefault": (102, 101 * LIST_BYTES + 3 * 4096),
    }
    assert copied(shared, "copied-by-the-driver") == {
        "MemcpyHostToDevice": (22, 11 * (707 + 2121)),
        "MemcpyDeviceToHost": (11, 11 * 707),
        "MemcpyDeviceToDevice": (11, 11 * 707),
        "MemcpyDefault": (22, 11 * (2121 + 6)),
    }
    assert calls(shared.receiver, "cudaMemcpy3D", shared.pid("copied")) == 101 + 5 + 7


@pytest.mark.parametrize("name", ["others", "others-of-the-driver"])
def test_all_others_are_counted(shared: Shared, name: str) -> None:
    """Each API of the script, thrice, with the bytes that its arguments say."""
    pid, script = shared.pid(name), SCRIPTS[name][1]
    made = [api for api in APIS if re.search(rf"cuda\.{api.name}(_v2)?\(", script)]

    assert len(made) == script.count("cuda.")
    for api in made:
        assert calls(shared.receiver, api.name, pid) == 3
        for span in spans(shared.receiver, api.name, pid):
            size_bytes = {"cuMemSetAccess": 211}.get(api.name, 1009 if api.size_slot else None)
            assert span.attributes.get("gpu.cuda.size") == size_bytes
            assert span.attributes.get("gpu.cuda.stream") == (0x53 if api.stream_slot else None)


def test_what_is_not_known_is_counted_by_reason(shared: Shared) -> None:
    """Answers that cannot be read or are no duration, and sizes that nothing says."""
    assert losses(shared.receiver) == {
        "elapsed_time": len(NO_DURATIONS) + 4,
        "read_fault": 3,
        "size": 1 + 5 + 1,
    }
    assert total(shared.receiver, "gpu.cuda.memory.in_use", shared.pid("copied")) == 0

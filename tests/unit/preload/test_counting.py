"""The preload library counts what the program calls: each call, whoever makes it."""

import re
import subprocess

import pytest

from otel_gpu import wire
from tests.preloaded import LIBRARY, calls_of, is_preloaded, reading_of, running, series_of
from tests.stubs.build import linked_workload


@pytest.mark.parametrize(("calls", "threads"), [(1, 0), (10_007, 0), (1_250_003, 8)])
def test_each_call_is_counted(calls, threads):
    """From every thread, those that have ended included."""
    with running([linked_workload("hot_calls"), str(calls), str(threads)]) as program:
        program.stdout.readline()
        reading = reading_of(program.pid)

    total = calls * max(threads, 1)
    assert calls_of(reading) == {"cudaLaunchKernel": total}
    ((key, aggregate),) = series_of(reading)
    assert (key["status"], key["device"], key["nested"]) == (0, 0, 0)
    assert 0 < aggregate["sum"] / total < 1_000_000
    assert sum(reading.lost) == 0
    # The main thread goes on; those that it started have ended.
    assert [thread.tid for thread in reading.threads] == ([] if threads else [program.pid])


RUNTIME = {
    "cudaMalloc": 0,
    "cudaLaunchKernel": 101,
    "cudaMemcpyAsync": 53,
    "cudaStreamSynchronize": 31,
}
DRIVER = {"cuMemAlloc": 0, "cuLaunchKernel": 101, "cuMemcpyHtoD": 53, "cuStreamSynchronize": 31}


@pytest.mark.parametrize(
    ("way", "calls"),
    [
        *((way, RUNTIME) for way in ("linked", "handle", "default", "next")),
        *((way, DRIVER) for way in ("driver", "address", "address-per-thread", "address-old")),
        *((way, DRIVER) for way in ("entry-point", "entry-point-by-version")),
    ],
)
def test_calls_are_counted_whichever_way_a_program_comes_by_them(way, calls):
    """Those that a probe counts, because more has to be known of them, are left to it."""
    with running([linked_workload("ways"), way]) as program:
        assert program.stdout.readline() == "done\n"
        reading = reading_of(program.pid)

    assert program.returncode == 0
    assert calls_of(reading) == {api: count for api, count in calls.items() if count}
    copied = [a["size_bytes"] for key, a in series_of(reading) if key["copy_kind"] == 1]
    assert copied == [53 * 1009]
    ((_, sizes),) = series_of(reading, wire.METRIC_COPY_SIZE)
    assert (sizes["sum"], sizes["count"], sizes["max"]) == (53 * 1009, 53, 1009)
    ((_, gaps),) = series_of(reading, wire.METRIC_LAUNCH_GAP)
    assert gaps["count"] == 101  # the allocations came before the first launch
    assert sum(reading.lost) == 0


def test_a_program_that_makes_no_call_has_no_memory():
    """So preloading the library costs other programs nothing."""
    with running(["cat"]) as program:
        program.stdin.write("\n")
        program.stdin.flush()
        program.stdout.readline()

        assert not is_preloaded(program.pid)


def test_one_variable_turns_the_library_off():
    """The program runs as it would without."""
    with running([linked_workload("hot_calls"), "7", "0"], OTEL_GPU_PRELOAD="0") as program:
        program.stdout.readline()

        assert not is_preloaded(program.pid)
    assert program.returncode == 0
    assert LIBRARY.exists()


def test_programs_with_an_older_glibc_start_with_the_library():
    """With the first glibc that has all that the library needs but memfd_create(), a system call."""
    listed = subprocess.run(["objdump", "-T", LIBRARY], capture_output=True, text=True, check=True)
    versions = re.findall(r"\bGLIBC_(\d+)\.(\d+)", listed.stdout)

    assert max((int(major), int(minor)) for major, minor in versions) <= (2, 17)

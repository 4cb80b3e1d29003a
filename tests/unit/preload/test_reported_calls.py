"""Which calls the preload library reports to the agent's probes, and with which fields."""

import os
import subprocess
import sys

import pytest

from otel_gpu import wire
from tests.preloaded import LIBRARY, address_of, reading_of, running
from tests.stubs.build import stub_libraries

# In place of the probes: another library whose functions come before those of the preload library.
VIEWER = """
#include <stdio.h>
#include <stdlib.h>
#include "layout.h"
#define REPORT(kind, bytes)                                                                \\
    {                                                                                      \\
        FILE *file = fopen(getenv("REPORTED"), "a");                                       \\
        fputs(kind, file);                                                                 \\
        for (unsigned i = 0; i < bytes; i++)                                               \\
            fprintf(file, "%02x", ((const unsigned char *)reported)[i]);                   \\
        fputc('\\n', file);                                                                \\
        fclose(file);                                                                      \\
    }
void otel_gpu_preload_thread(const struct preload_slot *reported) { REPORT("thread ", 4) }
void otel_gpu_preload_call(const struct preload_call *reported) { REPORT("call ", sizeof(*reported)) }
void otel_gpu_preload_gap(const struct preload_gap *reported) { REPORT("gap ", sizeof(*reported)) }
"""
PROGRAM = """
import ctypes, json, sys, time
library = ctypes.CDLL(sys.argv[1])
p = ctypes.c_void_p
class Triple(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint) for n in "xyz"]
def launch(times=1):
    grid, block = Triple(2, 3, 4), Triple(5, 6, 7)
    for _ in range(times):
        library.cudaLaunchKernel(p(0x1234), grid, block, None, 0, p(0x77))
def behave(api, text):
    library.stub_set(api.encode(), text.encode())
for line in sys.stdin:
    exec(line)
    print(flush=True)
"""
LAUNCH, WAIT, DRIVER_LAUNCH = 1, 5, 100
KINDS = {"call": wire.PRELOAD_CALL, "gap": wire.PRELOAD_GAP}


@pytest.fixture(scope="module")
def viewer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("viewer")
    (folder / "a.c").write_text(VIEWER)
    preload = LIBRARY.parents[2] / "preload"
    output = folder / "libviewer.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", f"-iquote{preload}", folder / "a.c", "-o", output], check=True
    )
    return output


@pytest.fixture
def program(viewer, tmp_path):
    command = [sys.executable, "-c", PROGRAM, stub_libraries().runtime]
    reported = tmp_path / "reported"
    reported.touch()
    preload = (viewer, LIBRARY)
    with running(command, preload=preload, REPORTED=str(reported)) as process:
        yield Program(process, reported)


class Program:
    """A program that does what it is asked to, and the calls that it reports."""

    def __init__(self, process, reported):
        self.process = process
        self._reported = reported

    def do(self, line):
        """Return what was reported since."""
        before = len(self._reported.read_text().splitlines())
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "\n"
        lines = (text.split() for text in self._reported.read_text().splitlines()[before:])
        return [
            (kind, KINDS[kind].named(bytes.fromhex(text)) if kind in KINDS else text)
            for kind, text in lines
        ]

    def control(self, *, slow_ns=None, **values):
        """As an agent does: all that it wants, and then that it is there."""
        slow = {f"slow_ns_{api}": ns for api, ns in (slow_ns or {}).items()}
        control = wire.PRELOAD_CONTROL.build(generation=1, version=1, **values, **slow)
        place = address_of(self.process.pid) + wire.PRELOAD_CONTROL_OFFSET
        memory = os.open(f"/proc/{self.process.pid}/mem", os.O_RDWR)
        os.pwrite(memory, control[4:], place + 4)
        os.pwrite(memory, control[:4], place)
        os.close(memory)

    def leave(self):
        """The agent is gone."""
        memory = os.open(f"/proc/{self.process.pid}/mem", os.O_RDWR)
        os.pwrite(memory, bytes(4), address_of(self.process.pid) + wire.PRELOAD_CONTROL_OFFSET)
        os.close(memory)


def test_nothing_is_reported_while_no_agent_is_there(program):
    """Whatever happens; but that a thread begins to count."""
    assert [kind for kind, _ in program.do("launch()")] == ["thread"]
    assert program.do("behave('cudaStreamSynchronize', 'fail=700')") == []
    assert program.do("launch(10); library.cudaStreamSynchronize(None)") == []


def test_a_thread_is_introduced_to_each_agent_once(program):
    """With the tid that it has in its own namespace."""
    program.do("launch()")
    program.control()
    assert [kind for kind, _ in program.do("launch(3)")] == ["thread"]
    program.leave()
    assert program.do("launch(3)") == []
    program.control()
    assert [kind for kind, _ in program.do("launch(3)")] == ["thread"]


def test_slow_and_failed_calls_are_reported_with_what_they_were(program):
    """A call of an API has its own threshold, or the floor of all."""
    program.do("launch()")
    program.control(slow_ns={WAIT: 2_000_000})
    program.do("launch()")
    program.do("behave('cudaStreamSynchronize', 'sleep_ns=3000000')")

    ((_, slow),) = program.do("launch(5); library.cudaStreamSynchronize(p(0x99))")
    program.do("behave('cudaStreamSynchronize', 'sleep_ns=0')")
    program.do("behave('cudaLaunchKernel', 'fail=701')")
    ((_, failed),) = program.do("launch()")

    assert (slow["api"], slow["status"], slow["choices"]) == (WAIT, 0, wire.CHOICE_SLOW)
    assert slow["end_ktime_ns"] - slow["start_ktime_ns"] >= 3_000_000
    assert slow["stream"] == 0x99
    assert (failed["api"], failed["status"]) == (LAUNCH, 701)
    assert failed["choices"] & wire.CHOICE_FAILED
    assert [failed[f"grid_{axis}"] for axis in range(3)] == [2, 3, 4]
    assert [failed[f"block_{axis}"] for axis in range(3)] == [5, 6, 7]
    assert (failed["function"], failed["stream"]) == (0x1234, 0x77)
    assert (failed["depth"], failed["parent_start_ktime_ns"]) == (0, 0)


def test_the_call_around_one_that_was_reported_is_reported_too(program):
    """Spans inside spans."""
    program.do("launch()")
    program.do("behave('cudaLaunchKernel', 'nest=1')")
    program.do("library.cudaStreamSynchronize(None)")
    program.do("launch()")
    program.control(slow_ns={DRIVER_LAUNCH: 1})

    (_, (_, inner), (_, outer)) = program.do("launch()")

    assert (inner["api"], outer["api"]) == (DRIVER_LAUNCH, LAUNCH)
    assert inner["parent_start_ktime_ns"] == outer["start_ktime_ns"]
    assert inner["root_start_ktime_ns"] == outer["root_start_ktime_ns"] == outer["start_ktime_ns"]
    assert (inner["depth"], outer["depth"]) == (1, 0)
    assert outer["choices"] == wire.CHOICE_PARENT


def test_one_in_so_many_calls_is_reported_with_its_weight(program):
    """Which it stands for."""
    program.do("launch()")
    program.control(sample_one_in=10)
    program.do("launch()")

    reported = program.do("launch(100)")

    assert [kind for kind, _ in reported] == ["call"] * 10
    assert {(call["weight"], call["choices"]) for _, call in reported} == {
        (10, wire.CHOICE_SAMPLED)
    }


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (wire.PRELOAD_FULL, ["call"] * 7),
        (wire.PRELOAD_NO_CALLS, []),
        (wire.PRELOAD_NO_CALLS | wire.PRELOAD_STREAM_WORK, ["call"]),
    ],
)
def test_flags_say_what_else_is_reported(program, flags, expected):
    """All calls, none, or those that say that work is done."""
    program.do("launch()")
    program.control(flags=flags, call_floor_ns=1 if flags & wire.PRELOAD_NO_CALLS else 0)
    program.do("launch()")

    reported = program.do("launch(6); library.cudaStreamSynchronize(None)")

    assert [kind for kind, _ in reported] == expected


def test_long_gaps_are_reported(program):
    """Between two outermost calls."""
    program.do("launch()")
    program.control(gap_floor_ns=20_000_000)
    program.do("launch()")

    (kind, gap), *others = program.do("time.sleep(0.03); library.cudaStreamSynchronize(None)")

    assert (kind, others) == ("gap", [])
    assert (gap["previous_api"], gap["next_api"]) == (LAUNCH, WAIT)
    assert gap["end_ktime_ns"] - gap["start_ktime_ns"] >= 30_000_000


def test_the_clock_of_the_library_is_that_of_the_system(program, tmp_path):
    """To a microsecond, while its rate is learned and afterwards."""
    program.do("launch()")
    program.control(flags=wire.PRELOAD_FULL)
    program.do("launch()")
    program.do("times = []")
    reported = program.do(
        "for _ in range(300): times.append(time.monotonic_ns());"
        " library.cudaEventQuery(None); times.append(time.monotonic_ns()); time.sleep(0.0007)"
    )
    program.do(f"open({str(tmp_path / 'times')!r}, 'w').write(' '.join(map(str, times)))")

    times = [int(text) for text in (tmp_path / "times").read_text().split()]
    assert len(reported) == 300
    for (_, call), before, after in zip(reported, times[::2], times[1::2], strict=True):
        assert before - 1000 <= call["start_ktime_ns"] <= call["end_ktime_ns"] <= after + 1000


def test_the_time_of_calls_and_gaps_is_all_of_the_threads(program):
    """By the clock, from the first call on to the last one's return."""
    program.do("behave('cudaStreamSynchronize', 'sleep_ns=20000000')")
    program.do("launch()")
    program.do("time.sleep(0.03); library.cudaStreamSynchronize(None)")

    reading = reading_of(program.process.pid)
    (thread,) = reading.threads
    total = sum(call_ns + gap_ns for call_ns, gap_ns in reading.places.values())

    assert reading.places[LAUNCH][1] >= 30_000_000
    assert reading.places[WAIT][0] >= 20_000_000
    assert 0 <= thread.last_return_ktime_ns - thread.begun_ktime_ns - total < 1_000_000

"""
Calls and stalls of a recording, read without any code of the exporters.

``otel-gpu parse`` prints the records as they are; the times of spans follow from them by
arithmetic that is written out here.
"""

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.kernel.agent import environment_for

# What otel-gpu calls the program that the recordings of the demo are of: its script.
SERVICE = "trainer.py"
ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = ROOT / "otel_gpu" / "demo" / "recordings"
_FIELD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)')

Times = tuple[int, int]


class Call(NamedTuple):
    """A CUDA call that became a span; its times in nanoseconds of Unix time."""

    api: str
    tid: int
    start_unix_ns: int
    end_unix_ns: int
    start_ktime_ns: int

    @property
    def times(self) -> Times:
        """From when to when."""
        return self.start_unix_ns, self.end_unix_ns

    @property
    def duration_ns(self) -> int:
        """How long it took."""
        return self.end_unix_ns - self.start_unix_ns


class Stall(NamedTuple):
    """An interval off the CPU, with its parts; None for a missing part."""

    tid: int
    comm: str
    call_start_ktime_ns: int
    blocked: Times | None
    run_queue: Times | None


class Truth(NamedTuple):
    """A recording's calls and stalls, in order."""

    path: Path
    pid: int
    calls: Sequence[Call]
    stalls: Sequence[Stall]

    def of_api(self, api: str) -> list[Call]:
        """The calls of one API."""
        return [call for call in self.calls if call.api == api]

    def stalls_in(self, call: Call) -> list[Stall]:
        """Return the stalls of a call's thread during the call."""
        return [
            stall
            for stall in self.stalls
            if (stall.tid, stall.call_start_ktime_ns) == (call.tid, call.start_ktime_ns)
        ]


@cache
def truth_of(scenario: str) -> Truth:
    """Read one of the recordings of the demo."""
    return read_truth(RECORDINGS / f"{scenario}.otelgpu")


def read_truth(path: Path) -> Truth:
    """Read a recording whose clocks were read together once."""
    listed = subprocess.run(
        [sys.executable, "-m", "otel_gpu", "parse", str(path)],
        cwd=ROOT,
        env=environment_for(None),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    records = [_record(line) for line in listed.stdout.splitlines()]
    (clock,) = (fields for fields in records if fields["kind"] == "clock")
    offset_ns = int(clock["unix_ns"]) - int(clock["ktime_ns"])
    calls = [_call(fields, offset_ns) for fields in records if fields["kind"] == "cuda_call"]
    stalls = [_stall(fields, offset_ns) for fields in records if fields["kind"] == "stall"]
    (pid,) = {fields["pid"] for fields in records if fields["kind"] == "cuda_call"}
    return Truth(path, int(pid), calls, stalls)


def _record(line: str) -> Mapping[str, str]:
    kind, ktime_ns, thread, *rest = line.split(" ", 3)
    pid, tid = thread.split("/")
    fields = {name: value.strip('"') for name, value in _FIELD.findall(" ".join(rest))}
    return fields | {"kind": kind, "ktime_ns": ktime_ns, "pid": pid, "tid": tid}


def _call(fields: Mapping[str, str], offset_ns: int) -> Call:
    start_ktime_ns = int(fields["start_ktime_ns"])
    end_ktime_ns = int(fields["ktime_ns"])
    return Call(
        fields["api"],
        int(fields["tid"]),
        start_ktime_ns + offset_ns,
        end_ktime_ns + offset_ns,
        start_ktime_ns,
    )


def _stall(fields: Mapping[str, str], offset_ns: int) -> Stall:
    # Switched out, able to run again, switched in.
    out_ns, able_ns, back_ns = (
        int(fields[name]) + offset_ns
        for name in ("start_ktime_ns", "runnable_ktime_ns", "ktime_ns")
    )
    return Stall(
        int(fields["tid"]),
        fields["comm"],
        int(fields["call_start_ktime_ns"]),
        (out_ns, able_ns) if able_ns > out_ns else None,
        (able_ns, back_ns) if back_ns > able_ns else None,
    )

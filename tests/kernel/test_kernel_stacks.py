"""Kernel stacks of waits: each id means one stack, and it is the one that the thread had."""

import json
import subprocess
from collections import Counter, defaultdict
from contextlib import ExitStack
from typing import Any

import pytest

from otel_gpu import wire
from otel_gpu.capture.bpf.programs import Programs
from otel_gpu.capture.maps.kernel_stacks import KernelStacks
from otel_gpu.config import Config
from tests.stubs.build import workload

pytestmark = pytest.mark.kernel

ROUNDS = 97
WAIT_NS = 100_000
Functions = tuple[str, ...]
PER_ROUND = {"pipe": 3, "eventfd": 2, "inotify": 2, "unix": 3, "tcp": 3}


def waits_in(
    programs: Programs, system_call: int
) -> tuple[dict[Functions, int], dict[Functions, set[int]]]:
    """Return how many waits in a system call had each kernel stack, and the ids of each."""
    waits, ids = Counter[Functions](), defaultdict[Functions, set[int]](set)
    stacks = KernelStacks(programs)
    names: dict[int, Functions] = {}
    for key, value in programs.read_times():
        fields: dict[str, Any] = wire.TIMES_KEY.named(key)
        stack = fields["kernel_stack"]
        if stack < 0 or fields["system_call"] != system_call:
            continue
        for record in stacks.describe(stack):
            names[stack] = tuple(json.loads(record[wire.RECORD_HEADER.size :])["functions"])
        waits[names[stack]] += wire.TIMES.unpack(value)[1]
        ids[names[stack]].add(stack)
    return waits, ids


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "copied"])
def test_waits_of_one_system_call_are_told_apart(in_place: bool) -> None:
    """
    A thread reads from five kinds of files in turn, two of them equally deep in the kernel.

    Each wait is booked with the stack that /proc/PID/stack shows of it, under one id.
    """
    command = [str(workload("reads")), str(ROUNDS), str(WAIT_NS)]
    pipe = subprocess.PIPE
    with (
        Programs(Config(), watch_all=False, in_place=in_place) as programs,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process,
        ExitStack() as cleanup,
    ):
        cleanup.callback(process.kill)
        assert process.stdout
        about = json.loads(process.stdout.readline())
        programs.processes.watch(about["pid"], 0)
        programs.bpf.attach(programs.wake_program)
        programs.bpf.attach(programs.switch_program)
        output, _ = process.communicate("\n", timeout=60)
        waits, ids = waits_in(programs, about["system_call"])
        counters = programs.read_counters()

    lines = [json.loads(line) for line in output.splitlines()]
    slept_in = {line["from"]: tuple(line["functions"]) for line in lines if "functions" in line}
    reads = {line["from"]: line["reads"] for line in lines if "reads" in line}
    assert reads == {kind: ROUNDS * count for kind, count in PER_ROUND.items()}
    assert waits.keys() == set(slept_in.values())
    assert all(waits[slept_in[kind]] <= count for kind, count in reads.items())
    assert {len(found) for found in ids.values()} == {1}
    # Now and then the kernel does not report a switch, or a walk interrupts another one.
    missing = sum(reads.values()) - sum(waits.values())
    assert missing <= (counters[wire.COUNTER_SWITCHES_REPAIRED] + counters[wire.COUNTER_LOST_STACK])

"""Wherever in a function its probe is, the same is counted: see capture/probe_sites.py."""

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from otel_gpu.capture.bpf.programs import ENTER_FORK, Programs
from otel_gpu.capture.probes.elf_exports import ElfSymbols, exported_functions
from otel_gpu.capture.probes.library_sites import LibrarySites
from otel_gpu.capture.probes.probe_sites import Site
from otel_gpu.config import Config
from otel_gpu.wire.probe_symbols import probes_of
from tests.hosts import LIBCUDA
from tests.kernel.agent import ALL_AT_ENTRIES, Agent, calls, losses, through, total
from tests.kernel.btf_headers import make_headers
from tests.receiver import OtlpReceiver
from tests.stubs.build import WORKLOADS, allocator, odd_starts

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the starts are of x86-64"),
]

CALLED = {
    "cuStreamSynchronize": 101,
    "cuMemAlloc_v2": 103,
    "cuCtxSynchronize": 107,
    "cuStreamDestroy_v2": 109,
    "cuEventRecord": 113,
    "cuEventDestroy_v2": 127,
    "cuEventQuery": 131,
    "cuStreamQuery": 137,
    "cuEventCreate": 139,
    "cuEventSynchronize": 149,
    "cuStreamWaitEvent": 151,
    "cuCtxSetCurrent": 157,
    "cuStreamCreate": 163,
    "cuEventRecordWithFlags": 167,
    "cuMemsetD8_v2": 173,
    "cuLinkComplete": 179,
    "cuMemsetD16_v2": 181,
    "cuMemsetD8Async": 191,
    "cuMemsetD16Async": 193,
    "cuMemsetD32Async": 197,
    "cuModuleLoad": 199,
}
SITES = {
    "cuStreamSynchronize": (10, "je", "emulated"),
    "cuMemAlloc_v2": (10, "je", "emulated"),
    "cuCtxSynchronize": (10, "je", "emulated"),
    "cuStreamDestroy_v2": (10, "je", "emulated"),
    "cuEventRecord": (7, "push", "emulated"),
    "cuEventDestroy_v2": (4, "push", "emulated"),
    "cuEventQuery": (5, "jmp", "emulated"),
    # A loop, another symbol behind the start, too short, the stack, an argument.
    "cuStreamQuery": (0, "mov", "single-stepped"),
    "cuEventCreate": (0, "mov", "single-stepped"),
    "cuEventSynchronize": (0, "endbr64", "single-stepped"),
    "cuStreamWaitEvent": (0, "push", "emulated"),
    "cuCtxSetCurrent": (0, "xor", "single-stepped"),
    "cuStreamCreate": (0, "sub", "single-stepped"),
    "cuEventRecordWithFlags": (0, "xor", "single-stepped"),
    "cuMemsetD8_v2": (0, "nop", "emulated"),
    "cuMemsetD16_v2": (0, "jmp", "emulated"),
    "cuMemsetD32_v2": (10, "je", "emulated"),
    "cuMemsetD8Async": (1, "push", "emulated"),
    "cuMemsetD16Async": (0, "lea", "single-stepped"),
    "cuMemsetD32Async": (0, "mov", "single-stepped"),
    "cuModuleLoad": (0, "int", "single-stepped"),
}


def sites_of(library: Path) -> dict[str, Site]:
    """Where the probes of calls go in a library."""
    with library.open("rb") as stream:
        symbols = ElfSymbols(stream)
        sites = LibrarySites(symbols, stream)
        sites.move(probes_of(symbols.functions, library.name))
    return sites.chosen


def choose_in(library: Path, name: str) -> Site:
    """Where the probe of one function goes."""
    with library.open("rb") as stream:
        symbols = ElfSymbols(stream)
        sites = LibrarySites(symbols, stream)
        sites.choose({name: dict(symbols.functions)[name]})
    return sites.chosen[name]


def test_sites_of_functions_that_begin_in_many_ways() -> None:
    """Behind the start where that shows the same calls, else at the entry."""
    assert sites_of(odd_starts()) == SITES


@pytest.mark.parametrize("loader", ["libbpf", "bcc"])
@pytest.mark.parametrize("at_sites", ["true", "false"])
def test_counts_are_the_same_at_sites_and_at_entries(
    receiver: OtlpReceiver, tmp_path: Path, loader: str, at_sites: str
) -> None:
    """Also of calls inside of calls, of what is left to another function, and of arguments."""
    settings = {"OTEL_GPU_CAPTURE_PROBE_SITES": at_sites, "OTEL_GPU_CAPTURE_LOADER": loader}
    if loader == "bcc":
        settings["BCC_KERNEL_SOURCE"] = str(make_headers(tmp_path / "linux"))
    asked = [f"{name}={number}" for name, number in CALLED.items()]
    command = [sys.executable, WORKLOADS / "odd_starts.py", odd_starts(), *asked]
    with Agent(receiver, command, env=settings) as agent:
        (line,) = agent.wait().lines
    pid = line["pid"]
    expected = {name.removesuffix("_v2"): number for name, number in CALLED.items()}
    # Called by another, or what another one ends with; the entry of one is in the other.
    expected["cuStreamSynchronize"] += CALLED["cuCtxSynchronize"] + CALLED["cuStreamDestroy_v2"]
    expected["cuStreamWaitEvent"] += CALLED["cuEventSynchronize"]
    # No function has its address; the kernel refuses to probe a breakpoint.
    expected["cuLinkComplete"] = expected["cuModuleLoad"] = 0

    assert {name: calls(receiver, name, pid) for name in expected} == expected
    assert total(receiver, "gpu.cuda.memory.allocations", pid) == 997 * CALLED["cuMemAlloc_v2"]
    assert not losses(receiver).keys() & {"no_entry", "no_return", "read_fault"}


def test_a_block_reported_is_probed_where_the_kernel_emulates() -> None:
    """PyTorch's function reads a global, and pushes a register then."""
    report = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"

    assert choose_in(allocator(), report) == (7, "push", "emulated")


def test_another_probe_at_the_entry_takes_nothing_from_ours(receiver: OtlpReceiver) -> None:
    """Another tool's breakpoint is there before, and a program of the kernel runs at both."""
    library, name = odd_starts(), "cuStreamSynchronize"
    entry = dict(exported_functions(str(library)))[name]
    command = [sys.executable, WORKLOADS / "odd_starts.py", library, f"{name}=1009"]
    with Programs(Config(), watch_all=False) as others:
        others.bpf.attach_uprobes(ENTER_FORK, str(library), [(entry, 0)])
        with Agent(receiver, command) as agent:
            (line,) = agent.wait().lines

    assert calls(receiver, name, line["pid"]) == 1009


@pytest.mark.skipif(
    ALL_AT_ENTRIES, reason="the kernel takes a breakpoint at the place of a probe for its own"
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_others_write_over_the_start_of_a_function_hides_no_call(
    receiver: OtlpReceiver, when: str
) -> None:
    """A debugger's breakpoint, and a hook that jumps back behind what it overwrote."""
    command = [sys.executable, WORKLOADS / "patched_starts.py", odd_starts(), when]
    if when == "before":
        with (
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as program,
            Agent(receiver, flags=("--pid", str(program.pid))) as agent,
        ):
            assert program.stdout
            program.stdout.readline()
            receiver.wait_for(
                lambda: any(key.name == "otel_gpu.coverage" for key in receiver.metrics())
            )
            answer, _ = program.communicate("go\n")
            agent.wait()
        pid, said = program.pid, json.loads(answer)
    else:
        with Agent(receiver, command, stdin=subprocess.PIPE) as agent:
            pid = agent.next_line()["pid"]
            agent.send_line()
            said = agent.next_line()
            agent.wait()

    assert said["traps"] == (1012 if when == "before" else 509)
    assert said["calls"] == 1012
    assert calls(receiver, "cuMemsetD8Async", pid) == 1012
    assert calls(receiver, "cuEventQuery", pid) == 1012


@pytest.mark.parametrize("way", ["probes", "entries"])
def test_a_loop_to_the_very_start_of_a_function_is_one_call(
    receiver: OtlpReceiver, way: str
) -> None:
    """Its turns pass the site as they pass the entry, with the stack pointer of a call that is open."""
    command = [sys.executable, WORKLOADS / "odd_starts.py", odd_starts(), "cuMemsetD32_v2=211"]
    with through(way), Agent(receiver, command) as agent:
        (line,) = agent.wait().lines

    assert calls(receiver, "cuMemsetD32", line["pid"]) == 211


@pytest.mark.skipif(not LIBCUDA.exists(), reason="libcuda1 of Debian's non-free is not here")
def test_all_calls_of_the_real_driver_are_probed_where_the_kernel_emulates() -> None:
    """At the jump behind the comparison that each function of libcuda 535 begins with."""
    sites = sites_of(LIBCUDA)

    assert len(sites) > 140
    assert set(sites.values()) == {(10, "je", "emulated")}

"""
Both loaders, one contract: the same workload gives the same events.

This kernel has BTF. What the ``bcc`` loader reads instead are headers that the test makes of
it, so that they say of this kernel what a package of its headers would.
"""

import platform
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from otel_gpu.capture.bpf import loaders
from otel_gpu.capture.bpf.bcc.kernel_headers import ask_headers, find_bcc
from otel_gpu.capture.bpf.programs import Programs
from otel_gpu.config import load
from otel_gpu.errors import HostError
from otel_gpu.wire.events import CpuSample
from otel_gpu.wire.frames import FrameType
from tests.hosts import required
from tests.kernel.agent import Agent, calls, losses, spans
from tests.kernel.btf_headers import make_headers
from tests.kernel.recorded_events import RecordedEvents, unseen_waits
from tests.receiver import OtlpReceiver
from tests.stubs.build import WORKLOADS, StubLibraries, workload

pytestmark = pytest.mark.kernel

SYSTEM_PYTHON = "/usr/bin/python3"
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}  # as Debian calls them
# Of a wait that is told.
KERNEL_STACK = 5
LOADERS = ("libbpf", "bcc")
HIDE_BTF = "mount -t tmpfs none /sys/kernel/btf"
DISTRIBUTED = sorted(Path("/usr/src").glob(f"linux-headers-*-{MACHINES[platform.machine()]}"))


@pytest.fixture(scope="session", autouse=True)
def bcc() -> None:
    if find_bcc() is None:
        reason = "BCC is not installed (Debian package python3-bpfcc)"
        if "kernel" in required():
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def headers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_headers(tmp_path_factory.mktemp("headers") / "linux")


def run(
    loader: str,
    headers: Path,
    command: Sequence[str | Path],
    *,
    receiver: OtlpReceiver | None = None,
    flags: Sequence[str] = (),
) -> str:
    """Run a command under the agent, and return what the agent said."""
    env = {"OTEL_GPU_CAPTURE_LOADER": loader, "OTEL_GPU_LOG_LEVEL": "info"}
    # Some programs work for a few milliseconds only.
    env |= {"OTEL_GPU_SAMPLES_RATE_HZ": "1000", "OTEL_GPU_SAMPLES_STACKS_PER_SECOND": "2000"}
    if loader == "bcc":
        env["BCC_KERNEL_SOURCE"] = str(headers)
    with Agent(receiver, command, flags=flags, env=env) as agent:
        finished = agent.wait()
    assert finished.returncode == 0, finished.stderr
    return finished.stderr


def innermost(frames: Sequence[tuple[str, str]]) -> str | None:
    """Return the innermost function of Python."""
    return next((function for kind, function in frames if kind == FrameType.PYTHON), None)


def without_kernel_stacks(recorded: RecordedEvents) -> list[tuple[Any, ...]]:
    return [(*wait[:KERNEL_STACK], *wait[KERNEL_STACK + 1 :]) for wait in recorded.long_waits()]


def test_both_loaders_tell_the_same(stubs: StubLibraries, headers: Path, tmp_path: Path) -> None:
    """Counts are the same exactly, and so is all that events say but times, ids and addresses."""
    recorded: dict[str, RecordedEvents] = {}
    for loader in LOADERS:
        recording = tmp_path / f"{loader}.otelgpu"
        flags = ("--record", str(recording), "--spans", "full", "--summary", "never")
        run(
            loader,
            headers,
            [SYSTEM_PYTHON, WORKLOADS / "everything.py", stubs.runtime],
            flags=flags,
        )
        recorded[loader] = RecordedEvents(recording)
    one, other = recorded["libbpf"], recorded["bcc"]

    # The agent tells an end when there is time for it: after what came later, or before.
    assert sorted(map(repr, one.life())) == sorted(map(repr, other.life()))
    assert list(one.calls()) == list(other.calls())
    assert one.series() == other.series()
    assert one.counters() == other.counters()
    assert without_kernel_stacks(one) == without_kernel_stacks(other)
    for loader in recorded.values():
        walked = [functions for wait in loader.long_waits() if (functions := wait[KERNEL_STACK])]
        assert {functions[0] for functions in walked} == {"hrtimer_nanosleep"}
        assert len(set(walked)) == 1
        assert 5 - len(walked) <= unseen_waits(loader.events)
        ticks = [event for event in loader.events if isinstance(event, CpuSample)]
        assert any(tick.user_stack in loader.stacks for tick in ticks)
        assert {tick.kernel_stack for tick in ticks} - {-1} <= loader.kernel_stacks.keys()
    # That they agree about nothing would not be much: 3 * 4 calls that allocate, copy
    # and free, 7 that fail, 5 that wait, 2 round a gap, 3 of threads and 2 of children.
    assert len(list(other.calls())) == 12 + 7 + 5 + 2 + 3 + 2
    assert len(list(other.long_waits())) == 5
    assert [event[0] for event in other.life()].count("fork") == 3
    assert Counter(innermost(call[-1]) for call in other.calls()) == {
        "allocate_and_copy": 12,
        "fail": 7,
        "wait_inside": 5,
        "wait_between": 2,
        "Thread.run": 3,
        None: 2,
    }


@pytest.mark.parametrize("loader", LOADERS)
def test_counts_are_exact(
    receiver: OtlpReceiver, stubs: StubLibraries, headers: Path, loader: str
) -> None:
    """100003 calls from four threads are counted one by one, whichever loader is asked for."""
    run(loader, headers, [workload("exact"), stubs.runtime, "100003", "4"], receiver=receiver)

    counted = {api: calls(receiver, api) for api in ("cudaMalloc", "cudaMemcpy", "cudaFree")}
    assert counted == {"cudaMalloc": 20_001, "cudaMemcpy": 20_001, "cudaFree": 20_000}
    assert set(losses(receiver)) <= {"ring_full", "sample"}


@pytest.mark.parametrize("loader", LOADERS)
def test_frames_that_were_unwound_are_noticed(
    receiver: OtlpReceiver, stubs: StubLibraries, headers: Path, loader: str
) -> None:
    """A call that was left with longjmp is not taken for the parent of the next one."""
    flags = ("--spans", "full")
    command = [workload("nested"), stubs.runtime, "longjmp", "11"]
    run(loader, headers, command, receiver=receiver, flags=flags)

    after = spans(receiver, "cudaMalloc")
    assert len(after) == 11
    assert {span.span.parent_span_id for span in after} == {b""}
    assert losses(receiver) == {"no_return": 11}


def test_without_btf_the_headers_stand_in(
    receiver: OtlpReceiver, stubs: StubLibraries, headers: Path
) -> None:
    """Where the kernel's BTF cannot be seen, nothing has to be configured."""
    hidden = ["unshare", "--mount", "sh", "-c", f'{HIDE_BTF} && exec "$@"', "sh"]
    env = {"BCC_KERNEL_SOURCE": str(headers)}
    command = [workload("exact"), stubs.runtime, "1009", "2"]
    with Agent(receiver, command, env=env, inside=hidden) as agent:
        finished = agent.wait()

    assert finished.returncode == 0, finished.stderr
    assert calls(receiver, "cudaMalloc") == 202


def test_libbpf_without_btf_is_refused(receiver: OtlpReceiver, stubs: StubLibraries) -> None:
    """Who asks for the loader that cannot be is told of the other."""
    hidden = ["unshare", "--mount", "sh", "-c", f'{HIDE_BTF} && exec "$@"', "sh"]
    env = {"OTEL_GPU_CAPTURE_LOADER": "libbpf"}
    with Agent(receiver, [workload("exact"), stubs.runtime, "1", "1"], env=env, inside=hidden) as a:
        finished = a.wait()

    assert finished.returncode == 1
    assert "this kernel has no BTF" in finished.stderr
    assert "hint: set capture.loader to auto or bcc" in finished.stderr


def test_the_kernel_decides_unless_the_operator_does(tmp_path: Path) -> None:
    """``auto`` goes by the BTF; the others are taken at their word."""
    missing, there = tmp_path / "missing", tmp_path / "vmlinux"
    there.touch()

    assert loaders.choose_loader("auto", there) == "libbpf"
    assert loaders.choose_loader("auto", missing) == "bcc"
    assert loaders.choose_loader("libbpf", missing) == "libbpf"
    assert loaders.choose_loader("bcc", there) == "bcc"


def test_a_function_of_the_kernel_is_known_by_its_whole_name(tmp_path: Path) -> None:
    """Its BTF has those that programs may call; where there is none, nothing is known."""
    btf, named = tmp_path / "vmlinux", loaders.KernelFunction
    btf.write_bytes(
        b"\x9f\xeb\x01\0int\0bpf_rdonly_cast\0xbpf_mem_alloc_init\0bpf_copy_from_user_task_\0"
    )

    assert loaders.has_kernel_function(named.READS_IN_PLACE, btf)
    assert not loaders.has_kernel_function(named.ALLOCATES, btf)
    assert not loaders.has_kernel_function(named.READS_OTHERS, btf)
    assert not loaders.has_kernel_function(named.READS_IN_PLACE, tmp_path / "missing")


def test_the_types_of_the_kernel_are_read_once(tmp_path: Path) -> None:
    """They are megabytes, and do not change while the kernel runs, whatever a start asks of them."""
    btf = tmp_path / "vmlinux"
    btf.write_bytes(b"\0" + b"\0".join(name.encode() for name in loaders.KernelFunction) + b"\0")

    assert loaders.has_kernel_function(loaders.KernelFunction.ALLOCATES, btf)
    btf.unlink()
    assert all(loaders.has_kernel_function(one, btf) for one in loaders.KernelFunction)


def test_the_agent_says_where_the_types_are_from(stubs: StubLibraries, headers: Path) -> None:
    """An operator sees that headers were read, and that they were checked."""
    said = run("bcc", headers, [workload("exact"), stubs.runtime, "13", "1"])

    assert "from its headers, through BCC" in said
    assert "checked against its headers" in said


def test_headers_of_another_kernel_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their offsets would be wrong, so both releases are named and nothing is loaded."""
    folder = make_headers(tmp_path / "linux", release="5.15.0-1007-generic")
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(folder))

    with pytest.raises(HostError, match=r"headers .* are of 5\.15\.0-1007-generic, but"):
        ask_headers()


@pytest.mark.parametrize(
    "field",
    [
        "int pid;",
        "char comm[16];",
        "void *group_leader;",
        "long start_stack;",
        "long start_boottime;",
        "long sum_exec_runtime;",
        "long fsbase;",
        "void *stack;",
    ],
)
def test_headers_of_another_build_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    """They claim this release, but a field is elsewhere: the check on ourselves finds it."""
    folder = make_headers(tmp_path / "linux")
    types = folder / "include" / "generated" / "types.h"
    text = types.read_text()
    assert text.count(f" {field}") == 1
    types.write_text(text.replace(field, f"char moved[8]; {field}"))
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(folder))

    with pytest.raises(HostError, match="is at another place"):
        Programs(load(None, {}, {"capture.loader": "bcc"}), watch_all=False)


def test_fields_of_older_kernels_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU was in the task before 5.16, and its state had another name before 5.14."""
    folder = make_headers(tmp_path / "linux")
    types = folder / "include" / "generated" / "types.h"
    text = types.read_text()
    start = int(re.search(r"struct thread_info \{ char gap_0\[(\d+)\]; int cpu;", text)[1])
    text = text.replace(" int cpu;", " char unnamed[4];", 1)
    inside = f"struct {{ char before[{start}]; int cpu; }} __attribute__((packed));"
    text = text.replace(
        "struct thread_info thread_info;", f"union {{ struct thread_info thread_info; {inside} }};"
    )
    # Wider than its successor, it takes some of the gap behind it.
    gap = re.search(r"int __state; char gap_\d+\[(\d+)\];", text)
    types.write_text(text.replace(gap[0], f"long state; char behind[{int(gap[1]) - 4}];"))
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(folder))

    types_found = ask_headers()
    assert types_found.values["OFFSET(task_struct, cpu)"] == start
    assert "OFFSET(thread_info, cpu)" not in types_found.values
    assert "OFFSET(task_struct, __state)" not in types_found.values
    # Loading checks both against what the kernel says of this thread.
    Programs(load(None, {}, {"capture.loader": "bcc"}), watch_all=False).close()


def test_headers_without_a_field_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The missing field is named, not an instruction that the kernel's verifier refuses."""
    folder = make_headers(tmp_path / "linux")
    types = folder / "include" / "generated" / "types.h"
    types.write_text(types.read_text().replace("long start_stack;", "long renamed;"))
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(folder))

    with pytest.raises(HostError, match="no struct mm_struct with a start_stack"):
        Programs(load(None, {}, {"capture.loader": "bcc"}), watch_all=False)


def test_no_headers_say_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error names this kernel's headers, and the variable that could name them."""
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(tmp_path / "nowhere"))

    with pytest.raises(HostError, match=r"headers of .*, and the kernel has no BTF") as caught:
        ask_headers()

    assert "BCC_KERNEL_SOURCE" in caught.value.hint


@pytest.mark.skipif(not DISTRIBUTED, reason="no package of kernel headers is installed")
def test_headers_of_a_distribution_are_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BCC compiles what Debian installs, and the agent sees that it is of another kernel."""
    special = DISTRIBUTED[-1]
    common = Path(re.sub(r"-[a-z0-9]+$", "-common", str(special)))
    # The package for all machines and the one for this kind, as one tree.
    for part in (common, special):
        subprocess.run(["cp", "-rsf", f"{part}/.", str(tmp_path / "linux")], check=True)
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(tmp_path / "linux"))
    release = special.name.removeprefix("linux-headers-")

    with pytest.raises(HostError, match=rf"are of {re.escape(release)}, but"):
        ask_headers()

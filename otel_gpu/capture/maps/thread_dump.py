"""
Thread dumps: the state of each thread, since when, and its stacks.

No thread is stopped. A thread that is off the CPU is read as it is. The registers of a thread on another
CPU are unavailable; those that are read are from its last entry into the kernel, at most one timer tick
ago (on a kernel that ticks). Its stack can have changed since.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

from otel_gpu import wire
from otel_gpu.capture.bpf.bpf_map import BpfMap
from otel_gpu.capture.bpf.loaders import (
    KernelFunction,
    choose_loader,
    has_kernel_function,
    open_object,
)
from otel_gpu.capture.bpf.objects import BpfObject
from otel_gpu.capture.bpf.ring_buffer import RingBuffer
from otel_gpu.capture.bpf.settings import pack_settings
from otel_gpu.config import Config
from otel_gpu.errors import HostError
from otel_gpu.options import Loader

DUMP_THREAD = "dump_thread"
"""The BPF program, which the object for kernels without BTF does not have."""

WHOLE_PROCESS = 0
"""In place of a tid: all threads of the process."""

WantedThreads = Mapping[tuple[int, int], int]
"""``program_ktime_ns`` by (pid, tid or ``WHOLE_PROCESS``)."""

_RING_BYTES = 16 << 20
_AT_A_TIME = 1024
# Large maps that only a capture fills.
_UNUSED_MAPS = ("threads", "aggregates", "allocations", "thread_times", "folded_times")
_SIGNED = 1 << 63


class ThreadDump(NamedTuple):
    """
    The state of one thread at ``ktime_ns``.

    Attributes:
        state: ``enum thread_state``.
        task_state: The kernel's own value, such as ``TASK_UNINTERRUPTIBLE``.
        since_ktime_ns: When the state began, or a little later; 0: unknown.
        is_late: It was on a CPU, so its user registers are up to a tick old.
        is_followed: ``open_calls`` contains every call that it entered since it was watched.
        open_calls: The stack pointers at the entries of its open CUDA calls, outermost first.
        kernel_stack: Id of a stack; negative: none.
        system_call: Number; -1: in none, or on a CPU.
        sample: A RECORD_SAMPLE; empty: a kernel thread, or its user space could not be read.
    """

    pid: int
    tid: int
    program_ktime_ns: int
    ktime_ns: int
    comm: bytes
    state: int
    task_state: int
    since_ktime_ns: int
    is_late: bool
    is_followed: bool
    open_calls: tuple[int, ...]
    kernel_stack: int
    system_call: int
    sample: bytes


class ThreadDumps:
    """Takes thread dumps with the programs of a capture."""

    def __init__(self, bpf: BpfObject) -> None:
        self._run = bpf.attach_iterator(DUMP_THREAD)
        self._threads_to_dump = bpf.map("threads_to_dump")

    def take(self, wanted: WantedThreads) -> list[ThreadDump]:
        """Dump these threads once; threads that have ended are left out."""
        found: list[ThreadDump] = []
        keys = {
            wire.THREAD_DUMP_KEY.pack(*key): program_ktime_ns.to_bytes(8, "little")
            for key, program_ktime_ns in wanted.items()
        }
        waiting = list(keys)
        while waiting:
            now, waiting = waiting[:_AT_A_TIME], waiting[_AT_A_TIME:]
            for key in now:
                self._threads_to_dump.update(key, keys[key])
            try:
                found += parse_thread_dumps(self._run())
            finally:
                for key in now:
                    self._threads_to_dump.delete(key)
        return found


class ThreadDumper:
    """
    Takes thread dumps without a capture: it attaches no probe and watches no process.

    Raises:
        HostError: This kernel or this user cannot take thread dumps.
        BpfError: The kernel refuses the program.
    """

    def __init__(self, config: Config) -> None:
        check_kernel(config)
        self._bpf = open_object(config.capture.loader, (), multi=False)
        self._bpf.leave_out_all_but(DUMP_THREAD)
        self._bpf.set_read_only_data(".rodata.settings", pack_settings(config, watch_all=False))
        self._bpf.set_max_entries("events", _RING_BYTES)
        for name in _UNUSED_MAPS:
            self._bpf.set_max_entries(name, 1)
        try:
            self._bpf.load()
            self._thread_dumps = ThreadDumps(self._bpf)
            self._events = RingBuffer(self._bpf.map("events").fd, _RING_BYTES)
            self._interpreters = self._bpf.map("interpreters")
            self._stacks = self._bpf.map("stacks")
        except BaseException:
            self._bpf.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._events.close()
        self._bpf.close()

    def take(self, wanted: WantedThreads) -> tuple[list[ThreadDump], list[bytes]]:
        """Dump these threads once; also return records of code objects that are new."""
        return self._thread_dumps.take(wanted), list(self._events.read())

    def kernel_stack(self, stack: int) -> tuple[int, ...]:
        """Return the addresses of a kernel stack, innermost first; empty if it is unknown."""
        return kernel_stack(self._stacks, stack)

    def set_interpreter(self, pid: int, interpreter: bytes) -> None:
        """Set the addresses of a process's Python frames, as ``INTERPRETER``."""
        self._interpreters.update(pid.to_bytes(4, "little"), interpreter)

    def forget_interpreter(self, pid: int) -> None:
        """Delete these addresses."""
        self._interpreters.delete(pid.to_bytes(4, "little"))


def check_kernel(config: Config) -> None:
    """
    Check that the kernel supports thread dumps.

    Raises:
        HostError: It has no BTF, or its BPF programs cannot read the memory of other processes.
    """
    if choose_loader(config.capture.loader) != Loader.LIBBPF:
        raise HostError(
            "no thread dump on a kernel without BTF",
            hint="capture live with `otel-gpu stacks --pid PID` instead: "
            "that observes threads when they make CUDA calls",
        )
    if not can_dump_threads():
        raise HostError(
            "this kernel is too old: its BPF programs cannot read the memory of other threads",
            hint="thread dumps need Linux 5.18 or later",
        )


def can_dump_threads() -> bool:
    """Whether the kernel has the functions that thread dumps call; False without BTF."""
    return has_kernel_function(KernelFunction.READS_OTHERS)


def kernel_stack(stacks: BpfMap, stack: int) -> tuple[int, ...]:
    """Return the addresses of a kernel stack in a map, innermost first; empty if it is unknown."""
    raw = stacks.lookup(stack.to_bytes(4, "little"))
    return tuple(address for address in memoryview(raw).cast("Q") if address) if raw else ()


def parse_thread_dumps(output: bytes) -> Iterator[ThreadDump]:
    """Parse the output of the iterator program."""
    records = list(_split(output))
    # The smallest offset is the best: others contain a delay between the two clock readings.
    behind_ns = min((_signed(fields["clock_behind_ns"]) for fields, _ in records), default=0)
    for fields, sample in records:
        flags, since_clock_ns = fields["flags"], fields["since_clock_ns"]
        since_ktime_ns = min(since_clock_ns + behind_ns, fields["ktime_ns"])
        yield ThreadDump(
            pid=fields["pid"],
            tid=fields["tid"],
            program_ktime_ns=fields["program_ktime_ns"],
            ktime_ns=fields["ktime_ns"],
            comm=fields["comm"].partition(b"\0")[0],
            state=fields["state"],
            task_state=fields["task_state"],
            since_ktime_ns=max(since_ktime_ns, 0) if since_clock_ns else 0,
            is_late=bool(flags & wire.THREAD_DUMP_LATE),
            is_followed=bool(flags & wire.THREAD_DUMP_FOLLOWED),
            open_calls=tuple(
                fields[f"stack_pointers_{number}"] for number in range(fields["open_calls"])
            ),
            kernel_stack=fields["kernel_stack"],
            system_call=fields["system_call"],
            sample=b"" if flags & wire.THREAD_DUMP_NO_USER else sample,
        )


def _split(output: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
    begin = 0
    while begin + wire.THREAD_DUMP_RECORD.size <= len(output):
        fields = wire.THREAD_DUMP_RECORD.named(output[begin : begin + wire.THREAD_DUMP_RECORD.size])
        end = begin + max(fields["size"], wire.THREAD_DUMP_RECORD.size)
        yield fields, output[begin + wire.THREAD_DUMP_RECORD.size : end]
        begin = end


def _signed(value: int) -> int:
    return value - 2 * _SIGNED if value >= _SIGNED else value

"""The loaded BPF programs and their maps, with the types of ``bpf/events.h``."""

import contextlib
import itertools
import logging
import struct
from collections.abc import Callable, Collection, Iterator
from typing import Any, Self

from otel_gpu import wire
from otel_gpu.capture.bpf.bpf_map import BpfMap
from otel_gpu.capture.bpf.cpu_clock import CpuClock
from otel_gpu.capture.bpf.kernel_shares import (
    LIFECYCLE_BYTES,
    TIMES_PER_FOLDED,
    KernelShares,
    share_bounds,
)
from otel_gpu.capture.bpf.loaders import (
    KernelFunction,
    choose_loader,
    has_kernel_function,
    open_object,
)
from otel_gpu.capture.bpf.objects import BpfObject
from otel_gpu.capture.bpf.ring_buffer import RingBuffer
from otel_gpu.capture.bpf.settings import pack_settings
from otel_gpu.capture.maps.blocks import BlockMaps, let_blocks_grow
from otel_gpu.capture.maps.communicators import CommunicatorMaps, let_communicators_grow
from otel_gpu.capture.maps.thread_dump import (
    DUMP_THREAD,
    ThreadDumps,
    can_dump_threads,
    kernel_stack,
)
from otel_gpu.capture.preload.preloaded_programs import PreloadedPrograms
from otel_gpu.capture.preload.program import add
from otel_gpu.capture.probes.detaching import Link
from otel_gpu.capture.probes.refusals import Refusals
from otel_gpu.capture.processes.stopped_processes import let_all_go_on
from otel_gpu.capture.processes.thread_contexts import ContextPlaces
from otel_gpu.capture.processes.unread import Unread
from otel_gpu.capture.processes.watched_processes import WatchedProcesses
from otel_gpu.capture.steps.period_maps import PeriodMaps, limit_period_maps
from otel_gpu.config import Config
from otel_gpu.errors import MapFullError
from otel_gpu.formatting.units import count_of
from otel_gpu.options import Loader
from otel_gpu.procfs import kernel_clock
from otel_gpu.procfs.mapped_files import FileId
from otel_gpu.stacks.read_budget import FileWork
from otel_gpu.stacks.samples import ProcessKey

ENTER_CALL = "enter_call"
EXIT_CALL = "exit_call"
ENTER_FORK = "enter_fork"
LIBRARY_LIST_CHANGED = "library_list_changed"
REPORT_BLOCK = "report_block"
REPORT_OUT_OF_MEMORY = "report_out_of_memory"
REPORT_STEP = "report_step"
REPORT_RANGE = "report_range"
NOTE_RANGES = "note_ranges"
ENTER_EVENT_WAIT = "enter_event_wait"
EXIT_EVENT_WAIT = "exit_event_wait"
ACKNOWLEDGE_EVENT = "acknowledge_event"
ASK_DEVICE = "ask_device"
LEARN_DEVICE = "learn_device"
AT_PRELOAD = "at_preload"
_UPROBES = (
    *(ENTER_CALL, EXIT_CALL, ENTER_FORK, LIBRARY_LIST_CHANGED),
    *(
        REPORT_BLOCK,
        REPORT_OUT_OF_MEMORY,
        REPORT_STEP,
        REPORT_RANGE,
        NOTE_RANGES,
    ),
    *(ENTER_EVENT_WAIT, EXIT_EVENT_WAIT, ACKNOWLEDGE_EVENT),
    *(ASK_DEVICE, LEARN_DEVICE, AT_PRELOAD),
)
_TRACEPOINTS = (
    "sched_process_fork",
    "sched_process_exec",
    "sched_process_exit",
    "timer_begins",
    "timer_ends",
)
# Whether the kernel can read its memory in place: program; see bpf/core/core_fixes.bpf.h.
_SWITCHES = {True: "sched_switch_in_place", False: "sched_switch"}
_WAKES = {True: "sched_waking_in_place", False: "sched_waking"}
# The programs of calls that read their cookies in place: see bpf/cuda/call_probes.bpf.h.
_CALLS_IN_PLACE = {ENTER_CALL: "enter_call_in_place", EXIT_CALL: "exit_call_in_place"}
_BOOK_PASSING = "book_passing"
_RETRANSMITS = "tcp_retransmit_skb"
_CPU_TICK = "cpu_tick"
_TICKS = (
    wire.COUNTER_CPU_SAMPLES,
    wire.COUNTER_CPU_SAMPLES_RATE_LIMITED,
    wire.COUNTER_LOST_CPU_SAMPLE,
)
_PID = struct.Struct("<I")
# The first fields of the keys of allocations and captures: program_ktime_ns, ..., pid.
_MEMORY_KEY_HEAD = struct.Struct("<QQI")

_logger = logging.getLogger(__name__)


def size_maps(bpf: BpfObject, config: Config, *, can_grow: bool) -> None:
    """
    Set the sizes of the maps; before ``load``.

    ``can_grow``: allocate entries of large hash maps on demand (since Linux 6.1).
    """
    capture = config.capture
    for name, entries in (
        ("events", capture.ring_buffer_bytes),
        ("lifecycle", LIFECYCLE_BYTES),
        ("threads", capture.max_threads),
        ("processes", capture.max_processes),
        ("aggregates", capture.max_series),
        ("thresholds", capture.max_series),
        ("interpreters", capture.max_processes),
        ("thread_contexts", capture.max_processes),
        ("preloaded", capture.max_processes),
        ("thread_times", capture.max_times),
        ("folded_times", capture.max_times // TIMES_PER_FOLDED),
        ("ended_shares", capture.max_processes),
    ):
        bpf.set_max_entries(name, entries)
    if can_grow:
        bpf.let_grow("threads")
        let_blocks_grow(bpf)
        let_communicators_grow(bpf)
    limit_period_maps(bpf, are_wanted=config.steps.find)


def _choose_call_programs(bpf: BpfObject, *, in_place: bool) -> None:
    for program, variant in _CALLS_IN_PLACE.items():
        if in_place and has_kernel_function(KernelFunction.ATTACHES_MANY):
            bpf.set_multi_variant(program, variant)
        else:
            bpf.leave_out(variant)


class Programs:
    """
    The kernel side of one capture: loaded programs, maps and rings.

    Args:
        config: Sizes, floors and histogram layout.
        watch_all: Watch every process that makes a CUDA call.
        multi: Attach many uprobes at once where the kernel can.
        in_place: Read the kernel's memory in place where the kernel can.
        thread_dumps: Allow thread dumps, which processes need that started before the capture.

    Attributes:
        blocks: Blocks of the frameworks' allocators.
        communicators: NCCL's communicators.
        preloaded: Programs that count their own calls.
        file_work: The budget for reading files of processes.
        unread: Processes that could not be read completely.
        periods: Threads whose steps are detected.
        processes: The watched processes.
        shares: Entries of the maps by program and user.
        refusals: Refusals to programs and users beyond their share.
        switch_program: The name of the program that is attached to sched_switch.
        wake_program: The name of the program that is attached to sched_waking.

    Raises:
        HostError: libbpf, the object, or what the loader needs is missing.
        BpfError: The kernel refuses the programs.
    """

    def __init__(
        self,
        config: Config,
        *,
        watch_all: bool,
        multi: bool = True,
        in_place: bool = True,
        thread_dumps: bool = True,
    ) -> None:
        capture = config.capture
        self._loader = capture.loader
        self._wants_thread_dumps = thread_dumps and can_dump_threads()
        in_place = in_place and has_kernel_function(KernelFunction.READS_IN_PLACE)
        self.switch_program, self.wake_program = _SWITCHES[in_place], _WAKES[in_place]
        self.bpf = open_object(capture.loader, _UPROBES, multi=multi)
        self.bpf.set_read_only_data(".rodata.settings", pack_settings(config, watch_all=watch_all))
        size_maps(self.bpf, config, can_grow=has_kernel_function(KernelFunction.ALLOCATES))
        self.bpf.leave_out(_SWITCHES[not in_place], _WAKES[not in_place])
        self._tracepoints = [*_TRACEPOINTS, self.wake_program, self.switch_program]
        # The other object has no such programs.
        if choose_loader(capture.loader) == Loader.LIBBPF:
            _choose_call_programs(self.bpf, in_place=in_place)
            if has_kernel_function(KernelFunction.RETRANSMITS):
                self._tracepoints.append(_RETRANSMITS)
            else:
                self.bpf.leave_out(_RETRANSMITS)
            if self._wants_thread_dumps:
                self.bpf.put_off(DUMP_THREAD)
            else:
                self.bpf.leave_out(DUMP_THREAD)
        # A third of what the kernel has to verify, and few hosts need all of them.
        self.bpf.put_off(REPORT_BLOCK, REPORT_OUT_OF_MEMORY)
        self.bpf.put_off(AT_PRELOAD)
        self.bpf.load()
        self.events = RingBuffer(self.bpf.map("events").fd, capture.ring_buffer_bytes)
        self.lifecycle = RingBuffer(self.bpf.map("lifecycle").fd, LIFECYCLE_BYTES)
        self.bpf.start_attacher({self.lifecycle.fd}, self._let_all_go_on)
        self._threads, self._aggregates = map(self.bpf.map, ("threads", "aggregates"))
        self._thresholds = self.bpf.map("thresholds")
        self._counters = self.bpf.map("counters")
        self._known_executables = self.bpf.map("known_executables")
        self._seen_libraries = self.bpf.map("seen_libraries")
        self._times = (self.bpf.map("thread_times"), self.bpf.map("folded_times"))
        self._book_passing: Callable[[], object] | None = None
        self._booked_ktime_ns = (0, 0)
        self._thread_dumps: ThreadDumps | None = None
        self._stacks, self._resources = map(self.bpf.map, ("stacks", "resources"))
        self._stall_samples = self.bpf.map("stall_samples")
        self._allocations, self._captures, self._interpreters = map(
            self.bpf.map, ("allocations", "captures", "interpreters")
        )
        self._cpu_sampling = self.bpf.map("cpu_sampling")
        self.blocks = BlockMaps(self.bpf, config)
        self.communicators = CommunicatorMaps(self.bpf)
        self.detectors = PeriodMaps(self.bpf)
        self._lost, self.refusals = [0] * wire.COUNTER_COUNT, Refusals()
        self.shares = KernelShares(self.bpf, share_bounds(config), self.refusals)
        self.processes = WatchedProcesses(self.bpf, self._lost, self.shares)
        self.contexts = ContextPlaces(self.bpf, self._lost)
        self.unread = Unread()
        self.file_work = FileWork(self.unread.add_file)
        self.preloaded = PreloadedPrograms(
            self.bpf, config, self._lost, unread=self.unread, files=self.file_work
        )
        self._cpus = self.bpf.libbpf.call("libbpf_num_possible_cpus")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def attach(self) -> None:
        """Attach the tracepoints; uprobes come as libraries are found."""
        for tracepoint in self._tracepoints:
            self.bpf.attach(tracepoint)
        if choose_loader(self._loader) == Loader.LIBBPF:
            self._book_passing = self.bpf.attach_iterator(_BOOK_PASSING)

    @property
    def thread_dumps(self) -> ThreadDumps | None:
        """
        Thread dumps; None if this kernel cannot, or they are not wanted.

        Raises:
            BpfError: The kernel refuses the program, which the first access loads.
        """
        if (
            self._wants_thread_dumps
            and self._thread_dumps is None
            and choose_loader(self._loader) == Loader.LIBBPF
        ):
            self._thread_dumps = ThreadDumps(self.bpf)
        return self._thread_dumps

    def close(self) -> None:
        """
        Detach everything, continue stopped processes, and unmap the rings.

        Probes that the kernel removes slowly are left to a child process, and processes that stop at
        them are continued. So programs of other users cannot delay the end.
        """
        left = self.bpf.detach_all(self._let_all_go_on)
        if left is None:
            self._let_all_go_on()
        else:
            _logger.warning(
                "probes in files are still taken away (%s), by process %d, which then ends: the "
                "kernel waits for the programs that map those files",
                count_of(left.links, "link"),
                left.pid,
            )
        self.events.close()
        self.lifecycle.close()
        self.detectors.close()
        self.preloaded.close()
        self.bpf.close()

    def _let_all_go_on(self) -> None:
        # Processes that were stopped since the rings were last read.
        let_all_go_on(self.lifecycle.read())

    def attacher_cpu_ns(self) -> int:
        """Return the CPU time of the attacher process; 0 without one."""
        return self.bpf.attacher.cpu_ns() if self.bpf.attacher else 0

    def end_soon(self) -> None:
        """Stop waiting for slow probes; safe in a signal handler."""
        if self.bpf.attacher:
            self.bpf.attacher.end_soon()

    def lose(self, counter: int) -> None:
        """Count a loss on the agent's side, in a counter of ``enum counter``."""
        self._lost[counter] += 1

    def memory(self) -> list[tuple[ProcessKey, BpfMap, bytes]]:
        """
        Return the owner of every allocation, block, capture and communicator in the maps.

        As (program, map, key).
        """
        found = []
        maps = (self._allocations, self._captures, *self.blocks.maps, *self.communicators.maps)
        for bpf_map in maps:
            for key, _ in bpf_map.entries():
                program_ktime_ns, _, pid = _MEMORY_KEY_HEAD.unpack_from(key)
                found.append(((pid, program_ktime_ns), bpf_map, key))
        return found

    def mark_known(self, executable: FileId) -> None:
        """Stop no more processes that start this file."""
        key = wire.FILE_KEY.pack(executable.inode, executable.device)
        with contextlib.suppress(MapFullError):  # The next process is stopped once more then.
            self._known_executables.update(key, _PID.pack(1))

    def forget_known(self) -> None:
        """Report every executable and library again, because probes were removed."""
        for known in (self._known_executables, self._seen_libraries):
            for key, _ in list(known.entries()):
                known.delete(key)

    def read_aggregates(
        self, programs: Collection[ProcessKey] | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """
        Yield every series as (key, value).

        Series that programs counted themselves are added, of these ``programs`` or of all.
        """
        counted_by_preload = self.preloaded.read(programs)
        if not counted_by_preload:
            yield from self._aggregates.entries()
            return
        # A dict, because an entry that moves during the read comes twice.
        for key, value in dict(self._aggregates.entries()).items():
            other = counted_by_preload.pop(key, None)
            yield key, value if other is None else add(value, other)
        yield from counted_by_preload.items()

    def forget_aggregate(self, key: bytes) -> None:
        """Delete a series of a program that ended."""
        self._aggregates.delete(key)

    def book_passing(self) -> None:
        """
        Add the time of open intervals to the time accounting.

        On a kernel without BTF, an interval is added only when it ends.
        """
        begun_ktime_ns = kernel_clock.ktime_ns()
        if self._book_passing is not None:
            self._book_passing()
        self._booked_ktime_ns = begun_ktime_ns, kernel_clock.ktime_ns()

    def read_times(
        self, programs: Collection[ProcessKey] | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """
        Yield every entry of the time accounting as (key, value).

        Waits inside CUDA calls that programs counted are separated, of these ``programs`` or of all.
        """
        entries = itertools.chain.from_iterable(times.entries() for times in self._times)
        if not self.preloaded.keys():
            return entries
        # A dict, because an entry that moves during the read comes twice.
        return self.preloaded.divide_times(dict(entries).items(), self._booked_ktime_ns, programs)

    def forget_times(self, key: bytes) -> None:
        """Delete an entry of a program that ended."""
        for times in self._times:
            times.delete(key)

    def kernel_stack(self, stack: int) -> tuple[int, ...]:
        """Return the addresses of a kernel stack, innermost first; empty if it is unknown."""
        return kernel_stack(self._stacks, stack)

    def resource(self, resource: int) -> bytes | None:
        """Return a resource as ``RESOURCE``; None if the kernel side evicted it."""
        return self._resources.lookup(_PID.pack(resource))

    def stall_sample(self, tid: int) -> bytes | None:
        """Return the stack of a thread's latest wait as a RECORD_SAMPLE; None if it is not kept."""
        key = _PID.pack(tid)
        # Two equal reads, because it can be written during one.
        sample = self._stall_samples.lookup(key)
        return sample if sample == self._stall_samples.lookup(key) else None

    def set_interpreter(self, pid: int, interpreter: bytes) -> None:
        """Set the addresses of a process's GIL and frames, as ``INTERPRETER``."""
        try:
            self._interpreters.update(_PID.pack(pid), interpreter)
        except MapFullError:
            self._lost[wire.COUNTER_LOST_INTERPRETERS_FULL] += 1

    def forget_interpreter(self, pid: int) -> None:
        """Delete the addresses, when the process ends."""
        self._interpreters.delete(_PID.pack(pid))

    def set_threshold(
        self, program_ktime_ns: int, pid: int, api: int, copy_kind: int, threshold_ns: int
    ) -> None:
        """Set the duration from which calls of one series are slow."""
        key = wire.THRESHOLD_KEY.pack(program_ktime_ns, pid, api, copy_kind)
        with contextlib.suppress(MapFullError):  # The configured floor applies then.
            self._thresholds.update(key, threshold_ns.to_bytes(8, "little"))

    def forget_threshold(self, program_ktime_ns: int, pid: int, api: int, copy_kind: int) -> None:
        """Delete the threshold of a series that is gone."""
        self._thresholds.delete(wire.THRESHOLD_KEY.pack(program_ktime_ns, pid, api, copy_kind))

    def attach_clock(self, cpu: int, period_ns: int) -> CpuClock:
        """Sample the watched threads of a CPU at intervals."""
        return self.bpf.attach_clock(_CPU_TICK, cpu, period_ns)

    def detach(self, link: Link) -> None:
        """Undo one attachment."""
        self.bpf.detach([link])

    def set_sampling(self, one_in: int, period_ns: int) -> None:
        """Set the period of ticks, and that one in ``one_in`` of a watched thread is sampled."""
        sampling = wire.CPU_SAMPLING.build(one_in=one_in, period_ns=period_ns)
        self._cpu_sampling.update(_PID.pack(0), sampling)

    def read_ticks(self) -> int:
        """Return how many ticks found a watched thread, sampled or not."""
        return sum(map(self._read_counter, _TICKS))

    def read_counters(self) -> tuple[int, ...]:
        """Return the counters by ``enum counter``, of all CPUs and the agent together."""
        return tuple(map(self._read_counter, range(wire.COUNTER_COUNT)))

    def _read_counter(self, counter: int) -> int:
        raw = self._counters.lookup(_PID.pack(counter), 8 * self._cpus) or b""
        return self._lost[counter] + sum(memoryview(raw).cast("Q"))

    def open_threads(self) -> Iterator[tuple[dict[str, Any], list[dict[str, int]]]]:
        """
        Yield each thread inside a CUDA call, as the fields of ``struct thread``.

        With its open calls, outermost first, as the fields of ``struct open_call``.
        """
        for _, _, values in self._threads.read_batches():
            for thread in wire.THREAD.all_named(values):
                calls = list(wire.OPEN_CALL.all_named(thread["calls"]))
                calls = calls[: min(thread["depth"], wire.MAX_DEPTH)]
                if calls and thread["preload_slot"]:
                    program = (thread["pid"], thread["program_ktime_ns"])
                    calls = self.preloaded.still_open(program, thread["preload_slot"], calls)
                if calls:
                    yield thread, calls

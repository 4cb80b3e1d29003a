"""
A live capture: yields the kernel side's records and the agent's own.

One loop in one thread. It sleeps until a process stops and waits for probes, a ring fills up, or a timer
is due. Everything that a replay needs becomes a record here, so nothing downstream reads /proc.
"""

import contextlib
import itertools
import logging
import math
import os
import select
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from otel_gpu import __version__, wire
from otel_gpu.capture.bpf.cpu_sampling import OnCpuSampling
from otel_gpu.capture.bpf.programs import Programs
from otel_gpu.capture.ending import Ending
from otel_gpu.capture.host.host_facts import (
    describe_host,
    read_clocks,
    resident_bytes,
    trim_memory,
    unmap_unused_code,
)
from otel_gpu.capture.host.host_metrics import HostMetrics
from otel_gpu.capture.lifecycle import Lifecycle
from otel_gpu.capture.losses import AgentLoss
from otel_gpu.capture.maps.map_snapshots import Snapshots
from otel_gpu.capture.priority import Priority
from otel_gpu.capture.probes.early_calls import EarlyCalls
from otel_gpu.capture.probes.missed_starts import MissedStarts
from otel_gpu.capture.processes.command import Command, reap_orphans
from otel_gpu.capture.processes.watchlist import Watchlist
from otel_gpu.capture.record_completion import RecordCompletion
from otel_gpu.capture.schedule import Schedule
from otel_gpu.config import Config
from otel_gpu.faults import Faults
from otel_gpu.formatting.units import count_of
from otel_gpu.limits.caches import CACHES
from otel_gpu.procfs import kernel_clock, process_memory, reader
from otel_gpu.stacks.samples import ProcessKey
from otel_gpu.stacks.user_stacks import UserStacks
from otel_gpu.wire.agent_records import clock_record, json_record, unseen_exit_record
from otel_gpu.wire.bodies import CaptureFacts, CaptureMode
from otel_gpu.wire.histogram_layout import layout_description

# The longest sleep of the loop: when busy, and at rest.
_POLL_S = 0.1
_REST_S = 0.5
# The loop is busy after an iteration with more records than this, and for this long after a process
# started or ended.
_FEW_RECORDS = 32
_RESTLESS_S = 2.0
_CLOCK_DRIFT_NS = 50_000
_CLOCK_INTERVAL_S = 60.0
_CACHES_INTERVAL_S, _UNCHECKED_RECORDS = 2.0, 4_096
_FOLD_INTERVAL_S = 20.0
_THRESHOLD_INTERVAL_S = 5.0
_RESCAN_INTERVAL_S = 30.0
_STALE_INTERVAL_S = 5.0
_DROP_INTERVAL_S = 1.0
_UNMAP_INTERVAL_S = 60.0
_TICKS_INTERVAL_S = 0.5
# Waits for a rank must be known within two seconds.
_COMMUNICATORS_INTERVAL_S = 0.5
# Smaller batches at the end, because the time for records is short.
_MAX_BATCH, _MAX_LAST_BATCH = 256, 64
# From this fill of the ring buffer on, reading is urgent.
_URGENT_FILL = 0.25
_MAX_NAMED = 8
_MEMORY_MAP = "what is read under the lock of the memory map"

_logger = logging.getLogger(__name__)


class Session:
    """
    One live capture.

    Args:
        programs: The loaded programs.
        config: The configuration.
        command: A command that waits at its gate, or None.
        pids: Processes to watch, with their children.
        cgroup: A cgroup whose present and future processes to watch.
        watch_all: Watch every process that maps a CUDA library.
        status: Returns the agent's own counters for RECORD_STATUS.
        faults: Counts errors; each costs one task, one record or one process.
        is_shown: Output is interactive, so the loop never sleeps for long.
    """

    def __init__(
        self,
        programs: Programs,
        config: Config,
        *,
        command: Command | None = None,
        pids: Sequence[int] = (),
        cgroup: Path | None = None,
        watch_all: bool = False,
        status: Callable[[], Mapping[str, object]] = dict,
        faults: Faults | None = None,
        is_shown: bool = False,
    ) -> None:
        self._programs = programs
        self._config = config
        self._command = command
        self._pids = pids
        self._cgroup = cgroup
        self._watch_all = watch_all
        self._status = status
        self._faults = faults or Faults()
        self._user_stacks = UserStacks(
            programs.processes.program_ktime_ns,
            trusts=self._trusts_python,
            cannot_know=self._cannot_know_python,
            lose_python=lambda: programs.lose(wire.COUNTER_LOST_PYTHON),
            work=programs.file_work,
        )
        self._snapshots = Snapshots(
            programs,
            config,
            user_stacks=self._user_stacks,
            watched=lambda: self._watchlist.programs,
        )
        self._missed_starts = MissedStarts(programs.lose)
        self._ending = Ending()
        self._stalls = process_memory.stalls()
        self._early_calls = EarlyCalls(lambda: programs.thread_dumps, self._user_stacks)
        self._watchlist = Watchlist(
            programs=programs,
            config=config,
            user_stacks=self._user_stacks,
            faults=self._faults,
            cgroup=cgroup,
            watch_all=watch_all,
            early_calls=self._early_calls,
            missed_starts=self._missed_starts,
            ending=self._ending,
        )
        self._on_cpu = OnCpuSampling(programs, config)
        self._host_metrics = HostMetrics(config, lambda: self._watchlist.programs)
        completion = RecordCompletion(
            programs,
            self._user_stacks,
            snapshots=self._snapshots,
            watchlist=self._watchlist,
            faults=self._faults,
        )
        self._lifecycle = Lifecycle(
            programs=programs,
            user_stacks=self._user_stacks,
            snapshots=self._snapshots,
            watchlist=self._watchlist,
            completion=completion,
            faults=self._faults,
            ending=self._ending,
            note_ended=self._host_metrics.faults.note_ended,
        )
        self._still_running = 0
        self._offset_ns: int | None = None
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # The loop is busy until then.
        self._rests_from_s = math.inf if is_shown else time.monotonic() + _RESTLESS_S

    def stop(self) -> None:
        """End the capture soon; safe in a signal handler."""
        self._ending.begin()
        self._programs.end_soon()
        self._programs.file_work.end_soon()
        self._snapshots.steps.end_soon()
        with contextlib.suppress(OSError):
            os.eventfd_write(self._stop_fd, 1)

    def batches(self, duration_s: float | None = None) -> Iterator[Sequence[bytes]]:
        """
        Yield records until the command ends, every watched pid has ended, or ``stop``.

        Args:
            duration_s: Stop after this time.

        Yields:
            Batches, at least several times a second; they can be empty. The gate of the command opens
            with the first, and the last contains the final counters.
        """
        yield list(self._begin())
        deadline_s = None if duration_s is None else time.monotonic() + duration_s
        schedule = self._make_schedule()
        # Not earlier, because a command waits at its gate until here.
        priority = Priority(self._config.capture.nice)
        # Since the caches were last bounded for it: a full ring has tens of thousands.
        unchecked = 0
        with self._poller() as poller:
            while not self._is_over(deadline_s):
                wait_s = min(self._pace_s(), schedule.wait_s())
                if deadline_s is not None:
                    wait_s = min(wait_s, max(0.0, deadline_s - time.monotonic()))
                priority.adjust(is_urgent=False)
                poller.poll(wait_s)
                priority.adjust(is_urgent=self._is_urgent())
                reap_orphans(self._command)
                turn = itertools.chain(self._clock(), self._lifecycle.read(), self._due(schedule))
                count = 0
                for batch in self._batched(turn):
                    count += len(batch)
                    if self._ending.has_begun:
                        priority.adjust(is_urgent=True)
                    yield batch
                    unchecked += len(batch)
                    if unchecked >= _UNCHECKED_RECORDS:
                        unchecked = 0
                        with self._faults.at("caches"):
                            self._keep_caches_small()
                self._note_turn(count)
        priority.adjust(is_urgent=True)
        # Twice: a process that is missing before and after the ring was read ended without a record.
        for _ in range(2):
            turn = itertools.chain(self._clock(), self._lifecycle.read(), self._unseen_ends())
            yield from self._batched(turn)
        self._note_running()
        # Separate, so that the last status contains the errors from those records.
        yield from self._batched(self._end())
        self._host_metrics.close()
        with self._faults.at("stacks"):
            self._user_stacks.close()
        os.close(self._stop_fd)

    def _due(self, schedule: Schedule) -> Iterator[bytes]:
        # A capture that ends reads everything once more below, and discovers no process.
        if not self._ending.has_begun:
            yield from schedule.run_due()

    def _pace_s(self) -> float:
        # How long the loop can sleep. Records of processes, and a ring that fills up, wake it earlier.
        now_s = time.monotonic()
        if now_s < self._rests_from_s:
            return _POLL_S
        return min(_REST_S, max(_POLL_S, self._user_stacks.processes.due_s - now_s))

    def _note_turn(self, count: int) -> None:
        # How many records an iteration yielded decides how long the loop stays busy.
        restless_s = 0.0
        if count > _FEW_RECORDS or self._lifecycle.had_records:
            restless_s = _RESTLESS_S
        elif self._is_pending():
            restless_s = _POLL_S
        self._rests_from_s = max(self._rests_from_s, time.monotonic() + restless_s)

    def _is_pending(self) -> bool:
        # Whether an iteration left work for the next one.
        return (
            self._watchlist.is_pending
            or self._snapshots.culprits.is_pending
            or self._snapshots.steps.has_found
            or self._user_stacks.holds_samples
            or self._early_calls.is_pending
        )

    def _is_urgent(self) -> bool:
        programs = self._programs
        return programs.lifecycle.fill > 0 or programs.events.fill > _URGENT_FILL

    def _note_running(self) -> None:
        # Processes that the command leaves running are not captured from here on.
        if self._command is None or self._command.poll() is None:
            return
        if running := self._watchlist.cuda_users():
            self._still_running = len(running)
            _logger.warning(
                "the command has ended, and %s that it started and that %s CUDA still %s: the "
                "capture ends here; follow them with %s",
                count_of(len(running), "process"),
                *(("uses", "runs") if len(running) == 1 else ("use", "run")),
                " ".join(f"--pid {pid}" for pid in running[:_MAX_NAMED]),
            )

    def _begin(self) -> Iterator[bytes]:
        ktime_ns, unix_ns = read_clocks()
        yield json_record(wire.RECORD_CAPTURE, ktime_ns, self._describe())
        self._offset_ns = unix_ns - ktime_ns
        yield clock_record(ktime_ns, unix_ns)
        with self._faults.at("stacks"):
            self._snapshots.stacks.prepare()
        self._programs.attach()
        if self._command:
            yield from self._watchlist.add_command(self._command.pid)
            self._adjust_sampling()
            self._command.open_gate()
            self._command.check_started()
        for pid in self._pids:
            yield from self._watchlist.add_tree(pid)
        with self._faults.at("discovery"):
            yield from self._watchlist.discover()
        self._adjust_sampling()
        with self._faults.at("thread_dumps"):
            yield from self._dump_threads()
        # Rates are differences of two readings. This is the first one, now that probes are placed.
        yield from self._snapshot()
        self._host_metrics.start()
        # Reading the kernel's BTF and symbol table took tens of megabytes, which are free now.
        trim_memory()
        unmap_unused_code()

    def _describe(self) -> CaptureFacts:
        return {
            "agent": {"version": __version__, "pid": os.getpid()},
            "host": describe_host(),
            "mode": self._mode(),
            "layout": layout_description(self._config),
            "settings": {
                "spans": self._config.spans.mode,
                "sample_one_in": self._config.spans.sample_one_in,
                "rate_per_process": self._config.spans.rate_per_process,
                "memory_blocks": self._config.memory.blocks,
            },
        }

    def _mode(self) -> CaptureMode:
        if self._command:
            return CaptureMode.COMMAND
        if self._watch_all:
            return CaptureMode.ALL
        return CaptureMode.CGROUP if self._cgroup else CaptureMode.PIDS

    def _make_schedule(self) -> Schedule:
        capture = self._config.capture
        schedule = Schedule(self._faults)
        schedule.every(capture.snapshot_interval_s, "snapshot", self._snapshot)
        schedule.every(_THRESHOLD_INTERVAL_S, "thresholds", self._snapshots.push_thresholds)
        schedule.every(
            max(1.0, capture.open_call_limit_s / 4), "open_calls", self._snapshots.open_calls
        )
        schedule.every(capture.discovery_interval_s, "discovery", self._watchlist.discover)
        schedule.every(_RESCAN_INTERVAL_S, "rescan", self._watchlist.rescan)
        schedule.every(_STALE_INTERVAL_S, "sweep", self._free_stale_entries)
        schedule.every(_FOLD_INTERVAL_S, "ended_waits", self._snapshots.fold_ended_waits)
        schedule.every(_CACHES_INTERVAL_S, "caches", self._keep_caches_small)
        schedule.every(_CLOCK_INTERVAL_S, "clock", self._sample_clock)
        schedule.every(_UNMAP_INTERVAL_S, "unused_code", unmap_unused_code)
        schedule.every(_DROP_INTERVAL_S, "stacks", self._user_stacks.drop_ended)
        schedule.at_each_turn("stacks", self._user_stacks.release)
        schedule.every(_TICKS_INTERVAL_S, "on_cpu", self._adjust_sampling)
        schedule.every(_TICKS_INTERVAL_S, "blocks", self._adjust_blocks)
        schedule.every(_TICKS_INTERVAL_S, "probes", self._watchlist.let_ask)
        schedule.at_each_turn("probes", self._watchlist.take_late)
        schedule.every(_COMMUNICATORS_INTERVAL_S, "communicators", self._snapshots.communicators)
        schedule.at_each_turn("thread_dumps", self._dump_threads)
        schedule.at_each_turn("device_faults", self._host_metrics.faults.read)
        schedule.every(_TICKS_INTERVAL_S, "devices", self._host_metrics.devices)
        schedule.at_each_turn("introductions", self._watchlist.describe_some)
        schedule.every(_TICKS_INTERVAL_S, "memory_reads", self._count_stalls)
        schedule.at_each_turn("iterations", self._snapshots.steps.read_iterations)
        schedule.at_each_turn("culprits", self._snapshots.culprits.describe_some)
        return schedule

    def _count_stalls(self) -> Iterator[bytes]:
        for _ in range(self._stalls, stalls := process_memory.stalls()):
            self._programs.lose(wire.COUNTER_LOST_MEMORY_READ)
        self._stalls = stalls
        for late in reader.take_late():
            self._programs.unread.add_file(late.pid, late.uid, path=_MEMORY_MAP, reason=late.reason)
        return iter(())

    def _trusts_python(self, program: ProcessKey) -> bool | None:
        return self._watchlist.trusts_python(program)

    def _cannot_know_python(self, program: ProcessKey) -> bool:
        return self._watchlist.cannot_know_python(program)

    def _adjust_sampling(self) -> None:
        with self._faults.at("on_cpu"):
            self._on_cpu.adjust(is_watching=bool(self._watchlist.programs))

    def _adjust_blocks(self) -> Iterator[bytes]:
        windows = self._watchlist.block_windows
        for programs in windows.adjust(self._watchlist.programs):
            # First the records of the previous window.
            yield from self._snapshots.memory()
            yield from self._snapshots.forget_holders(programs)

    @contextlib.contextmanager
    def _poller(self) -> Iterator[select.epoll]:
        with select.epoll() as poller:
            poller.register(self._programs.events.fd, select.EPOLLIN | select.EPOLLET)
            poller.register(self._programs.lifecycle.fd, select.EPOLLIN)
            poller.register(self._stop_fd, select.EPOLLIN | select.EPOLLET)
            if self._command:
                poller.register(self._command.pid_fd, select.EPOLLIN)
            yield poller

    def _is_over(self, deadline_s: float | None) -> bool:
        if self._ending.has_begun or (deadline_s is not None and time.monotonic() >= deadline_s):
            return True
        if self._command:
            return self._command.poll() is not None
        return bool(self._pids) and not any(pid in self._watchlist.programs for pid in self._pids)

    def _end(self) -> Iterator[bytes]:
        with self._faults.at("stacks"):
            yield from self._user_stacks.release(is_last=True)
        with self._faults.at("open_calls"):
            yield from self._snapshots.open_calls()
        with self._faults.at("device_faults"):
            yield from self._host_metrics.faults.read(is_last=True)
        self._missed_starts.settle_all()
        self._count_stalls()
        self._programs.preloaded.is_ending = True
        # The snapshot below contains the steps that are found here.
        with self._faults.at("steps"):
            yield from self._snapshots.steps.read()
        with self._faults.at("snapshot"):
            yield from self._snapshot()
        with self._faults.at("culprits"):
            yield from self._snapshots.culprits.describe_some(is_last=True)

    def _keep_caches_small(self) -> Iterator[bytes]:
        self._snapshots.stacks.compress()
        is_at_rest = time.monotonic() >= self._rests_from_s
        CACHES.keep_within(self._config.capture.cache_bytes, is_at_rest=is_at_rest)
        return iter(())

    def _free_stale_entries(self) -> Iterator[bytes]:
        yield from self._unseen_ends()
        living = self._watchlist.free_stale_entries()
        yield from self._snapshots.last_of_others(living)
        followed = self._programs.processes.threads()
        self._programs.shares.recount(living, (pid for _, pid in followed))
        trim_memory()

    def _unseen_ends(self) -> Iterator[bytes]:
        # Programs that ended without a record.
        if self._ending.is_over:
            return
        with self._faults.at("sweep"):
            ended = self._watchlist.find_ended()
            yield from self._lifecycle.last_readings(ended)
            for pid, program_ktime_ns in ended:
                self._watchlist.forget(pid, program_ktime_ns)
                yield unseen_exit_record(
                    kernel_clock.ktime_ns(), pid=pid, program_ktime_ns=program_ktime_ns
                )

    def _clock(self) -> Iterator[bytes]:
        with self._faults.at("clock"):
            # One reading in each iteration; many only if it shows a drift.
            if self._has_drifted(*read_clocks(1)) and self._has_drifted(*read_clocks()):
                yield from self._sample_clock()

    def _has_drifted(self, ktime_ns: int, unix_ns: int) -> bool:
        offset_ns = unix_ns - ktime_ns
        return self._offset_ns is None or abs(offset_ns - self._offset_ns) > _CLOCK_DRIFT_NS

    def _sample_clock(self) -> Iterator[bytes]:
        ktime_ns, unix_ns = read_clocks()
        self._offset_ns = unix_ns - ktime_ns
        yield clock_record(ktime_ns, unix_ns)

    def _snapshot(self) -> Iterator[bytes]:
        for place, read in (
            ("aggregates", self._snapshots.aggregates),
            ("times", self._snapshots.times),
            ("memory", self._snapshots.memory),
            ("communicators", self._snapshots.communicators),
            ("steps", self._snapshots.steps.read),
            ("pressure", self._host_metrics.pressure),
            ("devices", self._host_metrics.devices),
            ("fabric", self._host_metrics.fabric),
            ("retransmits", self._snapshots.resources.report_retransmits),
            ("counters", self._snapshots.counters),
        ):
            with self._faults.at(place):
                yield from read()
        status = self._status()
        with self._faults.at("counters"):
            self._snapshots.describe_refusals()
        # Last, because it contains the failures of the others.
        yield json_record(
            wire.RECORD_STATUS,
            kernel_clock.ktime_ns(),
            {
                "cpu_ns": time.process_time_ns() + self._programs.attacher_cpu_ns(),
                "rss_bytes": resident_bytes(),
                **CACHES.figures(),
                "stacks": {**self._user_stacks.counts, **self._early_calls.counts},
                "steps": self._snapshots.steps.counts,
                "blocks": self._watchlist.block_windows.counts,
                "devices": self._host_metrics.faults.counts,
                "preload": dict(self._programs.preloaded.lost),
                "preload_calls": self._programs.preloaded.calls,
                "files": {
                    AgentLoss.FILE_UNREAD: self._programs.unread.files,
                    AgentLoss.END_UNREAD: self._ending.unread,
                },
                "unread": self._programs.unread.named,
                "still_running": self._still_running,
                "missed_starts": self._missed_starts.named,
                "over_share": self._programs.refusals.named,
                "unknown_interpreters": dict(self._watchlist.unknown_interpreters),
                **status,
                **self._faults.status(),
            },
        )

    def _dump_threads(self) -> Iterator[bytes]:
        yield from self._early_calls.run(self._watchlist.programs)

    def _batched(self, records: Iterable[bytes]) -> Iterator[list[bytes]]:
        # At least one batch. A full ring and the records from it are never in memory at once; at the
        # end, smaller batches take less time each.
        records = iter(records)
        is_first = True
        while True:
            most = _MAX_LAST_BATCH if self._ending.has_begun else _MAX_BATCH
            batch = list(itertools.islice(records, most))
            if not batch and not is_first:
                return
            is_first = False
            yield batch

"""The body of ``stacks --now``: one dump of all threads of some processes."""

import platform
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.capture.maps.kernel_stacks import KernelStacks
from otel_gpu.capture.maps.thread_dump import WHOLE_PROCESS, ThreadDump, ThreadDumper, WantedThreads
from otel_gpu.capture.processes.interpreters import Interpreters
from otel_gpu.cli.commands import Output, UsageError, check_pids
from otel_gpu.cli.part_reports import write_result
from otel_gpu.config import Config
from otel_gpu.enrich.stack_table import StackTable
from otel_gpu.enrich.waits.kernel_reasons import find_reason
from otel_gpu.enrich.waits.reasons import WaitReason
from otel_gpu.enrich.waits.user_reasons import refine_reason
from otel_gpu.errors import OtelGpuError
from otel_gpu.procfs import kernel_clock
from otel_gpu.procfs.mapped_files import mapped_files
from otel_gpu.procfs.proc_files import process_name
from otel_gpu.report.json_form import to_text
from otel_gpu.report.render.text.thread_dump import write_threads
from otel_gpu.report.stacks.thread_dump import (
    ThreadNow,
    ThreadsReport,
    make_threads_document,
)
from otel_gpu.stacks.user_stacks import UserStacks
from otel_gpu.wire.decoder import decode
from otel_gpu.wire.probe_table import API_BY_NUMBER, unknown_api
from otel_gpu.wire.symbol_records import Stack, UserStack
from otel_gpu.wire.thread_states import THREAD_STATES, ThreadState

_UNINTERRUPTIBLE = 2  # TASK_UNINTERRUPTIBLE
_TRIES_OF_INTERPRETER = 5
# A running thread is at another place at its next tick.
_MORE_DUMPS = 5
_TICK_S = 0.01
# Sleep before a dump, so that this thread was just scheduled, which shows the scheduler's clock.
_NAP_S = 0.001
_UNSEEN = (
    "it has just ended, is a thread of the kernel, or is in a pid namespace that is not seen here"
)


def print_thread_dump(args: Namespace, config: Config, out: Output) -> int:
    """Dump all threads of the named processes once, and write the report; return 0."""
    if not args.pid:
        raise UsageError("--now needs a process", hint="name one with --pid PID")
    # Other sources make no sense with --now.
    others = (args.command, args.cgroup, args.all, args.recording, args.store, args.record)
    if any(others) or args.duration is not None:
        raise UsageError("--now takes processes from --pid only: leave out the other sources")
    for form in ("folded", "speedscope", "flamegraph", "waits", "api"):
        if getattr(args, form, None):
            raise UsageError(f"--now has no --{form}: print text or --json")
    check_pids(args.pid)
    report = dump_threads(config, args.pid)
    lines = [to_text(make_threads_document(report))] if args.json else None
    write_result(args, out, lines=lines, draw=lambda console: write_threads(report, console))
    return 0


def dump_threads(config: Config, pids: Sequence[int]) -> ThreadsReport:
    """
    Dump all threads of some processes once.

    Raises:
        HostError: This kernel or this user allows no thread dumps.
        OtelGpuError: One of them has no threads.
    """
    with ThreadDumper(config) as dumper:
        return _DumpRound(dumper, pids).report()


class _ResolvedThread(NamedTuple):
    dump: ThreadDump
    stack: int
    complete: bool
    calls: tuple[str, ...]


class _DumpRound:
    def __init__(self, dumper: ThreadDumper, pids: Sequence[int]) -> None:
        self._dumper = dumper
        # Any number works, because only one program of each process is dumped.
        self._program_ktime_ns = kernel_clock.ktime_ns()
        self._pids = tuple(dict.fromkeys(pids))
        self._user_stacks = UserStacks(lambda _pid: self._program_ktime_ns)
        self._kernel_stacks = KernelStacks(dumper)
        self._functions: dict[int, tuple[str, ...]] = {}
        self._table = StackTable()
        self._notes: list[str] = []

    def report(self) -> ThreadsReport:
        for pid in self._pids:
            self._prepare(pid)
        wanted = {(pid, WHOLE_PROCESS): self._program_ktime_ns for pid in self._pids}
        time.sleep(_NAP_S)
        unix_ns, begin_ns = time.time_ns(), kernel_clock.ktime_ns()
        found = self._dump(wanted)
        for pid in self._pids:
            if not any(key[0] == pid for key in found):
                raise OtelGpuError(f"process {pid} has no visible thread", hint=_UNSEEN)
        # The stack of a running thread can be incomplete, so dump it again.
        for _ in range(_MORE_DUMPS):
            doubtful = {
                key: self._program_ktime_ns
                for key, resolved in found.items()
                if resolved.dump.is_late and resolved.dump.sample and not resolved.complete
            }
            if not doubtful:
                break
            time.sleep(_TICK_S)
            found |= self._dump(doubtful)
        names = {pid: process_name(pid) for pid in self._pids}
        took_ns = kernel_clock.ktime_ns() - begin_ns
        threads = [self._thread(resolved) for resolved in found.values()]
        self._user_stacks.close()
        return ThreadsReport(
            processes=names, unix_ns=unix_ns, took_ns=took_ns, threads=threads, notes=self._notes
        )

    def _prepare(self, pid: int) -> None:
        mapped = list(mapped_files(pid))
        if not mapped:
            self._notes.append(
                f"what process {pid} maps cannot be read, so its functions have no names: "
                "run as root, or grant CAP_SYS_PTRACE"
            )
        interpreters = Interpreters(self._dumper)
        for _ in range(_TRIES_OF_INTERPRETER):
            interpreters.examine(pid, self._program_ktime_ns, mapped)
            if not interpreters.reasons:
                break
        self._notes += [
            f"frames of Python of process {pid} are not in its stacks: {reason}"
            for reason in interpreters.reasons.values()
        ]
        self._user_stacks.processes.learn((pid, self._program_ktime_ns), mapped)

    def _dump(self, wanted: WantedThreads) -> dict[tuple[int, int], _ResolvedThread]:
        dumps, codes = self._dumper.take(wanted)
        for code in codes:
            self._user_stacks.take(code)
        return {(dump.pid, dump.tid): self._resolve(dump) for dump in dumps}

    def _resolve(self, dump: ThreadDump) -> _ResolvedThread:
        if not dump.sample:
            return _ResolvedThread(dump, 0, complete=False, calls=())
        resolved = self._user_stacks.resolve_thread(dump.sample)
        for event in decode(resolved.records, Counter()):
            if isinstance(event, UserStack):
                self._table.learn(event)
        calls = self._user_stacks.open_calls(dump.sample).calls
        names = tuple((API_BY_NUMBER.get(call.api) or unknown_api(call.api)).name for call in calls)
        return _ResolvedThread(dump, resolved.stack, complete=resolved.complete, calls=names)

    def _thread(self, resolved: _ResolvedThread) -> ThreadNow:
        dump = resolved.dump
        state = THREAD_STATES[dump.state]
        for event in decode(self._kernel_stacks.describe(dump.kernel_stack), Counter()):
            if isinstance(event, Stack):
                self._functions[event.kernel_stack] = event.functions
        functions = self._functions.get(dump.kernel_stack, ())
        reason = WaitReason.NONE
        if state == ThreadState.BLOCKED:
            flags = wire.STALL_FAULT if dump.system_call < 0 else 0
            kernels = find_reason(
                functions, dump.system_call, flags=flags, machine=platform.machine()
            )
            reason = refine_reason(kernels, self._table.rules_of(resolved.stack))
        return ThreadNow(
            pid=dump.pid,
            tid=dump.tid,
            comm=dump.comm.decode(errors="replace"),
            state=state,
            reason=reason,
            is_interruptible=not dump.task_state & _UNINTERRUPTIBLE,
            time_in_state_ns=dump.ktime_ns - dump.since_ktime_ns if dump.since_ktime_ns else None,
            is_late=dump.is_late,
            calls=resolved.calls,
            stack=self._table.find(resolved.stack),
            kernel_functions=functions,
        )

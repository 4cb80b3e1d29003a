"""The processes and threads that the kernel side follows."""

import contextlib
import struct
from collections.abc import Mapping

from otel_gpu import wire
from otel_gpu.capture.bpf.kernel_shares import KernelShares
from otel_gpu.capture.bpf.objects import BpfObject
from otel_gpu.errors import MapFullError
from otel_gpu.limits.shares import EntryOwner
from otel_gpu.procfs import kernel_clock
from otel_gpu.procfs.mapped_files import thread_ids
from otel_gpu.procfs.process_facts import is_exiting, start_boot_ns
from otel_gpu.procfs.users import real_uid

_PID = struct.Struct("<I")
_THREAD_PID = wire.THREAD.fields.index("pid")
_PROCESS_UID = wire.PROCESS.fields.index("uid")
_STOPPED_AT = wire.PROCESS.fields.index("stopped_ktime_ns")
_STOPPED_TID = wire.PROCESS.fields.index("stopped_tid")


class WatchedProcesses:
    """
    The maps of watched processes and their threads.

    Args:
        bpf: The loaded object.
        lost: The agent's own losses, by ``enum counter``.
        shares: Entries of the maps by program and user.
    """

    def __init__(self, bpf: BpfObject, lost: list[int], shares: KernelShares) -> None:
        self._processes = bpf.map("processes")
        self._threads = bpf.map("threads")
        self._lost = lost
        self._shares = shares
        self._started_boot_ns = kernel_clock.boot_ns()

    @property
    def fd(self) -> int:
        """Descriptor of the map of watched processes, by pid."""
        return self._processes.fd

    def watch(self, pid: int, flags: int) -> int:
        """
        Watch a process and its present threads.

        Returns:
            Its ``program_ktime_ns``; 0: it is not watched, because it has ended, or because the map or its
            share is full, which is counted.
        """
        holder = EntryOwner(pid, real_uid(pid))
        program_ktime_ns = self.program_ktime_ns(pid)
        is_new = not program_ktime_ns
        if is_new:
            program_ktime_ns = kernel_clock.ktime_ns()
            process = wire.PROCESS.build(
                program_ktime_ns=program_ktime_ns, flags=flags, uid=holder.uid
            )
            is_new = self._add_process(holder, process)
            if not is_new and not (program_ktime_ns := self.program_ktime_ns(pid)):
                self._lost[wire.COUNTER_LOST_PROCESSES_FULL] += 1
                return 0
        lives = self.watch_threads(pid, program_ktime_ns, flags)
        if is_new and not lives:
            # It ended before it was added, so no record of its end will come.
            self.forget(pid)
            return 0
        return program_ktime_ns

    def watch_threads(self, pid: int, program_ktime_ns: int, flags: int) -> bool:
        """
        Follow the present threads of a process; the kernel side adds later ones.

        Threads beyond the share are counted as lost. Returns whether any thread lives.
        """
        tids = thread_ids(pid)
        holder = EntryOwner(pid, real_uid(pid))
        unknown = [tid for tid in tids if self._threads.lookup(_PID.pack(tid)) is None]
        allowed = self._shares.take(wire.SHARE_THREADS, holder, len(unknown))
        self._lost[wire.COUNTER_LOST_THREADS_FULL] += len(unknown) - allowed
        # A new process has not selected a device yet, see the kernel side.
        is_new = (start_boot_ns(f"/proc/{pid}") or 0) > self._started_boot_ns
        start = {
            "program_ktime_ns": program_ktime_ns,
            "pid": pid,
            "device": 0 if is_new else -1,
            "process_flags": flags,
        }
        added = {tid for tid in unknown[:allowed] if self._add_thread(tid, start)}
        unused = allowed - len(added)
        self._shares.release(wire.SHARE_THREADS, holder.uid, unused)
        ended = {tid for tid in tids if is_exiting(pid, tid)}
        # If the process has executed another program since, its threads are added at their calls.
        is_same = self.program_ktime_ns(pid) == program_ktime_ns
        for tid in added & ended if is_same else added:
            self.forget_thread(tid)
        return len(ended) < len(tids)

    def _add_process(self, holder: EntryOwner, process: bytes) -> bool:
        # Whether the process was added.
        if not self._shares.take(wire.SHARE_PROCESSES, holder):
            return False
        with contextlib.suppress(MapFullError):
            if self._processes.update(_PID.pack(holder.pid), process, only_new=True):
                return True
        self._shares.release(wire.SHARE_PROCESSES, holder.uid)
        return False

    def _add_thread(self, tid: int, start: Mapping[str, int]) -> bool:
        thread = wire.THREAD.build(tid=tid, kernel_stack=-1, system_call=-1, **start)
        try:
            return self._threads.update(_PID.pack(tid), thread, only_new=True)
        except MapFullError:
            self._lost[wire.COUNTER_LOST_THREADS_FULL] += 1
            return False

    def program_ktime_ns(self, pid: int) -> int:
        """Return the ``program_ktime_ns`` of a watched process; 0 if it is not watched."""
        value = self._processes.lookup(_PID.pack(pid))
        return int(wire.PROCESS.unpack(value)[0]) if value else 0

    def has_stopped_since(self, pid: int, tid: int, ktime_ns: int) -> bool:
        """Whether a thread has come to a stop for its probes after that time, if it was the last to do so."""
        value = self._processes.lookup(_PID.pack(pid))
        fields = wire.PROCESS.unpack(value) if value else ()
        return bool(fields) and fields[_STOPPED_TID] == tid and fields[_STOPPED_AT] > ktime_ns

    def programs(self) -> dict[int, int]:
        """Return ``program_ktime_ns`` by pid of every watched process."""
        found: dict[int, int] = {}
        for _, keys, values in self._processes.read_batches():
            starts = (fields[0] for fields in wire.PROCESS.iter_unpack(values))
            found.update(zip((pid for (pid,) in _PID.iter_unpack(keys)), starts, strict=True))
        return found

    def threads(self) -> list[tuple[int, int]]:
        """Return (tid, pid) of every followed thread."""
        return [
            (tid, fields[_THREAD_PID])
            for _, keys, values in self._threads.read_batches()
            for (tid,), fields in zip(
                _PID.iter_unpack(keys), wire.THREAD.iter_unpack(values), strict=True
            )
        ]

    def forget(self, pid: int) -> None:
        """Delete a process that has ended."""
        if value := self._processes.lookup(_PID.pack(pid)):
            self._processes.delete(_PID.pack(pid))
            uid = wire.PROCESS.unpack(value)[_PROCESS_UID]
            self._shares.release(wire.SHARE_PROCESSES, uid)

    def forget_thread(self, tid: int) -> None:
        """Delete a thread that has ended."""
        self._threads.delete(_PID.pack(tid))

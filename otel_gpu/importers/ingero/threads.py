"""
Threads: which calls and intervals lie inside which calls.

Rows come by their start. A thread does one thing at a time, so what begins before a call
of the same thread has returned was made inside it. A call that has no row, because it
was not chosen to be kept, is around nothing.
"""

from collections import Counter
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.decode.events import CPU_UNKNOWN, STALL_STATE_UNKNOWN, CudaCall, Stall
from otel_gpu.importers.ingero.ops import has_size
from otel_gpu.importers.ingero.rows import EventRow
from otel_gpu.probe_table import Api

_MAX_THREADS = 65_536
_MAX_DEPTH = 255
_NO_DIMENSIONS = (0, 0, 0)
_COPY_KINDS = range(wire.COPY_DEFAULT + 1)


class _Open(NamedTuple):
    start_unix_ns: int
    end_unix_ns: int
    api: int


class Threads:
    """
    Makes events of rows; bounded.

    Attributes:
        spans: Of threads that call CUDA, by pid and tid: the start of the first call, and
            the end of the last row.
        outermost_ns: Time inside calls that are in no other one, by pid.
        off_cpu_ns: Time off the CPU, by tid.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], list[_Open]] = {}
        self.spans: dict[tuple[int, int], tuple[int, int]] = {}
        self.outermost_ns: Counter[int] = Counter()
        self.off_cpu_ns: Counter[int] = Counter()

    def call(self, row: EventRow, api: Api, image_ns: int, comm: str) -> CudaCall:
        """Return the call of a row."""
        around = self._around(row.pid, row.tid, row.start_unix_ns)
        if around and row.end_unix_ns > around[-1].end_unix_ns:
            # Two calls of one thread cannot cross: a row is wrong, and it is not known which.
            around.clear()
        parent, root = (around[-1], around[0]) if around else (None, None)
        depth = len(around)
        if depth < _MAX_DEPTH:
            around.append(_Open(row.start_unix_ns, row.end_unix_ns, api.number))
        if (row.pid, row.tid) not in self.spans and len(self.spans) < _MAX_THREADS:
            self.spans[row.pid, row.tid] = (row.start_unix_ns, row.end_unix_ns)
        self._reach(row.pid, row)
        if parent is None:
            self.outermost_ns[row.pid] += row.end_unix_ns - row.start_unix_ns
        is_launch = api.family == wire.FAMILY_LAUNCH
        is_copy = api.family == wire.FAMILY_COPY and api.layer == wire.LAYER_RUNTIME
        return CudaCall(
            end_ktime_ns=row.end_unix_ns,
            image_ktime_ns=image_ns,
            pid=row.pid,
            tid=row.tid,
            start_ktime_ns=row.start_unix_ns,
            parent_start_ktime_ns=parent.start_unix_ns if parent else 0,
            root_start_ktime_ns=root.start_unix_ns if root else row.start_unix_ns,
            blocked_ns=0,
            run_queue_ns=0,
            size_bytes=row.arg0 if has_size(api) else 0,
            address=row.arg0 if api.family == wire.FAMILY_FREE else 0,
            stream=_stream(row, api),
            function=row.arg0 if is_launch else 0,
            # What the row has; whoever hands the call on gives it our id.
            user_stack=row.stack_hash,
            status=row.status,
            device=-1,
            weight=1,
            voluntary_switches=0,
            involuntary_switches=0,
            cpu=CPU_UNKNOWN,
            grid=_NO_DIMENSIONS,
            block=_NO_DIMENSIONS,
            api=api.number,
            variant=0,
            copy_kind=row.arg1 if is_copy and row.arg1 in _COPY_KINDS else wire.COPY_NONE,
            choices=0,
            depth=depth,
            comm=comm,
        )

    def off_cpu(self, row: EventRow, pid: int, image_ns: int, comm: str) -> Stall:
        """Return the interval off the CPU of a row, of a thread of which the process is known."""
        around = self._around(pid, row.tid, row.start_unix_ns)
        inside = around if around and row.end_unix_ns <= around[-1].end_unix_ns else []
        call = inside[-1] if inside else None
        self._reach(pid, row)
        if (pid, row.tid) in self.spans:
            self.off_cpu_ns[row.tid] += row.end_unix_ns - row.start_unix_ns
        return Stall(
            end_ktime_ns=row.end_unix_ns,
            image_ktime_ns=image_ns,
            pid=pid,
            tid=row.tid,
            start_ktime_ns=row.start_unix_ns,
            runnable_ktime_ns=row.end_unix_ns,
            call_start_ktime_ns=call.start_unix_ns if call else 0,
            root_start_ktime_ns=inside[0].start_unix_ns if inside else 0,
            user_stack=0,
            culprit_pid=0,
            culprit_tid=0,
            waker_pid=0,
            waker_tid=0,
            cpu=CPU_UNKNOWN,
            call_api=call.api if call else 0,
            call_depth=max(0, len(inside) - 1),
            switch_type=0,
            kernel_stack=-1,
            system_call=-1,
            argument=0,
            flags=STALL_STATE_UNKNOWN,
            comm=comm,
            culprit_comm="",
            waker_comm="",
        )

    def _around(self, pid: int, tid: int, unix_ns: int) -> list[_Open]:
        """Return the calls that a thread is in at a moment, outermost first."""
        thread = (pid, tid)
        around = self._open.get(thread)
        if around is None:
            if len(self._open) >= _MAX_THREADS:
                self._open.clear()
            around = self._open[thread] = []
        while around and around[-1].end_unix_ns <= unix_ns:
            around.pop()
        return around

    def _reach(self, pid: int, row: EventRow) -> None:
        span = self.spans.get((pid, row.tid))
        if span is not None:
            self.spans[pid, row.tid] = (span[0], max(span[1], row.end_unix_ns))


def _stream(row: EventRow, api: Api) -> int:
    if api.name == "cudaStreamSynchronize":
        return row.arg0
    # Old versions have 0 here, as for the default stream.
    return row.arg1 if api.name == "cudaLaunchKernel" else 0

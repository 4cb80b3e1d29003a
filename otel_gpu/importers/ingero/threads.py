"""
Threads: which calls and intervals lie inside which calls.

Rows come by their start. A thread does one thing at a time, so what begins before a call
of the same thread has returned was made inside it. A call that has no row, because it
was not chosen to be kept, is around nothing.
"""

from collections import Counter
from typing import Any, Final, NamedTuple

from otel_gpu import wire
from otel_gpu.decode.events import CPU_UNKNOWN, STALL_STATE_UNKNOWN, CudaCall, Stall
from otel_gpu.importers.ingero.ops import has_size
from otel_gpu.importers.ingero.rows import EventRow
from otel_gpu.probe_table import Api

_MAX_THREADS = 65_536
_MAX_DEPTH = 255
_COPY_KINDS = range(wire.COPY_DEFAULT + 1)


def _zeros(fields: tuple[str, ...]) -> dict[str, Any]:
    return dict.fromkeys(fields, 0)


# What no row says.
_NO_DIMENSIONS: Final = (0, 0, 0)
_CALL: Final = CudaCall(**_zeros(CudaCall._fields))._replace(
    device=-1, weight=1, cpu=CPU_UNKNOWN, grid=_NO_DIMENSIONS, block=_NO_DIMENSIONS
)
_STALL: Final = Stall(**_zeros(Stall._fields))._replace(
    cpu=CPU_UNKNOWN,
    kernel_stack=-1,
    system_call=-1,
    flags=STALL_STATE_UNKNOWN,
    culprit_comm="",
    waker_comm="",
)


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
        depth = len(around)
        parent_start_ns, root_start_ns = 0, row.start_unix_ns
        if around:
            parent_start_ns, root_start_ns = around[-1].start_unix_ns, around[0].start_unix_ns
        else:
            self.outermost_ns[row.pid] += row.end_unix_ns - row.start_unix_ns
        if depth < _MAX_DEPTH:
            around.append(_Open(row.start_unix_ns, row.end_unix_ns, api.number))
        if len(self.spans) < _MAX_THREADS:
            self.spans.setdefault((row.pid, row.tid), (row.start_unix_ns, row.end_unix_ns))
        self._reach(row.pid, row)
        is_copy = api.family == wire.FAMILY_COPY and api.layer == wire.LAYER_RUNTIME
        return _CALL._replace(
            end_ktime_ns=row.end_unix_ns,
            image_ktime_ns=image_ns,
            pid=row.pid,
            tid=row.tid,
            start_ktime_ns=row.start_unix_ns,
            parent_start_ktime_ns=parent_start_ns,
            root_start_ktime_ns=root_start_ns,
            size_bytes=row.arg0 if has_size(api) else 0,
            address=row.arg0 if api.family == wire.FAMILY_FREE else 0,
            stream=_stream(row, api),
            function=row.arg0 if api.family == wire.FAMILY_LAUNCH else 0,
            # What the row has; whoever hands the call on gives it our id.
            user_stack=row.stack_hash,
            status=row.status,
            api=api.number,
            copy_kind=row.arg1 if is_copy and row.arg1 in _COPY_KINDS else wire.COPY_NONE,
            depth=depth,
            comm=comm,
        )

    def off_cpu(self, row: EventRow, pid: int, image_ns: int, comm: str) -> Stall:
        """Return the interval off the CPU of a row, of a thread of which the process is known."""
        around = self._around(pid, row.tid, row.start_unix_ns)
        self._reach(pid, row)
        if (pid, row.tid) in self.spans:
            self.off_cpu_ns[row.tid] += row.end_unix_ns - row.start_unix_ns
        stall = _STALL._replace(
            end_ktime_ns=row.end_unix_ns,
            image_ktime_ns=image_ns,
            pid=pid,
            tid=row.tid,
            start_ktime_ns=row.start_unix_ns,
            runnable_ktime_ns=row.end_unix_ns,
            comm=comm,
        )
        if not around or row.end_unix_ns > around[-1].end_unix_ns:
            return stall
        return stall._replace(
            call_start_ktime_ns=around[-1].start_unix_ns,
            root_start_ktime_ns=around[0].start_unix_ns,
            call_api=around[-1].api,
            call_depth=len(around) - 1,
        )

    def _around(self, pid: int, tid: int, unix_ns: int) -> list[_Open]:
        # The calls that a thread is in at a moment, outermost first.
        if len(self._open) >= _MAX_THREADS and (pid, tid) not in self._open:
            self._open.clear()
        around = self._open.setdefault((pid, tid), [])
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

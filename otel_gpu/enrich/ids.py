"""
Trace and span ids, computed from a record alone.

An id that is a hash needs no state: a stall names its CUDA call as parent before that call has
returned, an exemplar names a span that was sent long ago, and a replay of a recording computes the
ids of the capture again.

A call is known by its thread and the nanosecond at which it was entered. Its depth is left out on
purpose: no thread enters two calls in one nanosecond, and a fork or an exemplar knows the start of
the call and not its depth.

The makers of activities (``enrich``, and the recorder on playback) put the ids into them, and
everything after that takes them from there. So an id from elsewhere, such as that of the
application's own span around a call, has one place to enter.
"""

from hashlib import blake2b
from struct import Struct
from typing import Final

from otel_gpu.limits.recent import Recent
from otel_gpu.wire.blocks import OutOfMemory
from otel_gpu.wire.bodies import CaptureFacts, HostFacts
from otel_gpu.wire.device_faults import DeviceFault
from otel_gpu.wire.events import CpuSample, CudaCall, Fork, Gap, OpenCall, Stall, ThreadContext
from otel_gpu.wire.marks import Range, Step

NO_SEED: Final = bytes(8)
"""Of a stream without a capture."""

# Seed, program ktime, start ktime, another ktime or 0, pid, tid; the kind of span follows.
_pack = Struct("<8sQQQII").pack

_TRACE = b"\0"
_CALL = b"\1"
_BLOCKED = b"\2"
_RUN_QUEUE = b"\3"
_FORK = b"\4"
_OPEN = b"\5"
_GAP = b"\6"
_OUT_OF_MEMORY = b"\7"
_DEVICE_FAULT = b"\x08"
_STEP = b"\x09"
_RANGE = b"\x0a"

# A context comes right before the event that it belongs to.
MAX_AROUND = 4096
"""Spans of the application that are kept."""
_NO_TRACE = bytes(16)
_NO_SPAN = bytes(8)
# Copying one is faster than making one.
_copy_trace_hash = blake2b(digest_size=16).copy
_copy_span_hash = blake2b(digest_size=8).copy

_Ids = tuple[bytes, bytes, bytes]
_Of = CudaCall | Stall | Gap | Fork | OpenCall
_By = _Of | CpuSample | DeviceFault | OutOfMemory | Step | Range


def capture_seed(unix_ns: int, info: CaptureFacts) -> bytes:
    """
    Return the 8 bytes that distinguish a capture's ids from those of all others.

    They come from the boot and the start of the capture, and a recording has both.
    """
    host: HostFacts = info.get("host", {})
    identity = f"{host.get('boot_id', '')}/{host.get('id', '')}/{unix_ns}"
    return blake2b(identity.encode(), digest_size=8).digest()


class SpanIds:
    """
    The ids of the spans of one capture: trace id, span id, and its parent's or empty.

    One trace holds an outermost CUDA call, or a gap, and all that happened inside it. If the
    application reports its span, that is in the application's own trace. A stall or a fork outside
    both is in the application's span around it, or in a trace of its own.

    Args:
        seed: ``capture_seed`` of the capture.
    """

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        # Trace and span of the application, by program, pid, tid and start.
        self._around: Recent[tuple[int, int, int, int], tuple[bytes, bytes]] = Recent(MAX_AROUND)

    def learn(self, event: ThreadContext) -> None:
        """Make the application's own span the parent of what follows it, in its trace."""
        # A process can publish invalid ids.
        if _are_ids(event.trace_id, event.span_id):
            key = event.program_ktime_ns, event.pid, event.tid, event.start_ktime_ns
            self._around[key] = event.trace_id, event.span_id

    def of_call(self, event: CudaCall) -> _Ids:
        """Return the ids of a call; its parent is the call around it."""
        # Inlines _trace, _span and _parent: most spans are calls.
        _, program, pid, tid, start, parent, root, *_ = event
        name = _pack(self._seed, program, start, 0, pid, tid)
        outermost = name
        if root and root != start:
            outermost = _pack(self._seed, program, root, 0, pid, tid)
        hashing = _copy_trace_hash()
        hashing.update(outermost + _TRACE)
        trace_id = hashing.digest()
        hashing = _copy_span_hash()
        hashing.update(name + _CALL)
        span_id = hashing.digest()
        if trace_id == _NO_TRACE or span_id == _NO_SPAN:
            trace_id, span_id = self._trace(event, root), self._span(event, start, _CALL)
        parent_id = self._parent(event, parent) if parent else b""
        if self._around and (found := self._around.get((program, pid, tid, root or start))):
            trace_id, parent_id = found[0], parent_id or found[1]
        return trace_id, span_id, parent_id

    def of_gap(self, event: Gap) -> _Ids:
        """Return the ids of a gap; its parent is the application's span around it."""
        start = event.start_ktime_ns
        return self._trace(event, 0), self._span(event, start, _GAP), self._outside(event, start)

    def of_fork(self, event: Fork) -> _Ids:
        """
        Return the ids of a fork; its parent is the call, or the application's span, around it.
        """
        return (
            self._trace(event, event.root_start_ktime_ns),
            self._span(event, event.start_ktime_ns, kind=_FORK, other=event.child_pid),
            self._parent(event, event.call_start_ktime_ns)
            or self._outside(event, event.start_ktime_ns),
        )

    def of_open_call(self, event: OpenCall) -> _Ids:
        """Return the ids of one reading of an open call; its parent is that call."""
        return (
            self._trace(event, event.root_start_ktime_ns),
            self._span(event, event.start_ktime_ns, kind=_OPEN, other=event.ktime_ns),
            self._parent(event, event.start_ktime_ns),
        )

    def of_out_of_memory(self, event: OutOfMemory) -> _Ids:
        """Return the ids of a failed request; its parent is the outermost call around it."""
        root = event.root_start_ktime_ns
        return (
            self._trace_of(event, root or event.ktime_ns),
            self._span(event, event.ktime_ns, _OUT_OF_MEMORY),
            self._parent(event, root),
        )

    def of_device_fault(self, event: DeviceFault) -> _Ids:
        """Return the ids of an error of a device, which is a root."""
        # Several can have one time, so the XID is in the id.
        span_id = self._span(event, event.ktime_ns, kind=_DEVICE_FAULT, other=event.xid)
        return self._trace_of(event, event.ktime_ns), span_id, b""

    def of_step(self, event: Step) -> _Ids:
        """
        Return the ids of a step, which is a root: those of the program's own span, if it has one.
        """
        if _are_ids(event.trace_id, event.span_id):
            return event.trace_id, event.span_id, b""
        start = event.start_ktime_ns
        # No call with the same start is in its trace.
        span_id = self._span(event, start, _STEP)
        hashing = _copy_trace_hash()
        hashing.update(self._name(event, start) + _STEP)
        return hashing.digest(), span_id, b""

    def of_range(self, event: Range) -> _Ids:
        """Return the ids of a range: those that the program made, if any."""
        if _are_ids(event.trace_id, event.span_id):
            return event.trace_id, event.span_id, event.parent_span_id
        start = event.start_ktime_ns
        return self._trace_of(event, start), self._span(event, start, _RANGE), b""

    def of_stall(self, event: Stall) -> tuple[bytes, bytes, bytes, bytes]:
        """
        Return the ids of a stall: trace, off the CPU, in the run queue, and the parent of both.

        The parent is the call or gap around it, or the application's span outside both.
        """
        start, runnable = event.start_ktime_ns, event.runnable_ktime_ns
        root = event.root_start_ktime_ns
        if event.call_start_ktime_ns:
            parent_id = self._parent(event, event.call_start_ktime_ns)
        else:
            parent_id = self._span(event, root, _GAP) if root else self._outside(event, start)
        return (
            self._trace(event, root),
            self._span(event, start, _BLOCKED) if runnable > start else b"",
            self._span(event, start, _RUN_QUEUE) if event.end_ktime_ns > runnable else b"",
            parent_id,
        )

    def around_sample(self, event: CpuSample) -> tuple[bytes, bytes]:
        """Return the ids of the outermost call of a sample; empty: it was in none."""
        root = event.root_start_ktime_ns
        return (self._trace_of(event, root), self._span(event, root, _CALL)) if root else (b"", b"")

    def _trace(self, event: _Of, root_ktime_ns: int) -> bytes:
        return self._trace_of(event, root_ktime_ns or event.start_ktime_ns)

    def _outside(self, event: _By, start_ktime_ns: int) -> bytes:
        # The application's span around an event; empty: none.
        key = event.program_ktime_ns, event.pid, event.tid, start_ktime_ns
        return self._around.get(key, (b"", b""))[1]

    def _trace_of(self, event: _By, root_ktime_ns: int) -> bytes:
        if self._around:
            key = event.program_ktime_ns, event.pid, event.tid, root_ktime_ns
            if found := self._around.get(key):
                return found[0]
        hashing = _copy_trace_hash()
        hashing.update(self._name(event, root_ktime_ns) + _TRACE)
        digest = hashing.digest()
        return digest if digest != _NO_TRACE else b"\1" * 16

    def _span(self, event: _By, start_ktime_ns: int, kind: bytes, other: int = 0) -> bytes:
        hashing = _copy_span_hash()
        hashing.update(self._name(event, start_ktime_ns, other) + kind)
        digest = hashing.digest()
        return digest if digest != _NO_SPAN else b"\1" * 8

    def _name(self, event: _By, start_ktime_ns: int, other: int = 0) -> bytes:
        program_ktime_ns = event.program_ktime_ns
        return _pack(self._seed, program_ktime_ns, start_ktime_ns, other, event.pid, event.tid)

    def _parent(self, event: _By, call_ktime_ns: int) -> bytes:
        return self._span(event, call_ktime_ns, _CALL) if call_ktime_ns else b""


def _are_ids(trace_id: bytes, span_id: bytes) -> bool:
    return (len(trace_id), len(span_id)) == (16, 8) and any(trace_id) and any(span_id)


def chain_span_id(chain_id: str, trace_id: bytes, effect_span_id: bytes) -> bytes:
    """Return the id of a chain's ``gpu.causal_chain`` span."""
    return _derived(b"chain", trace_id, effect_span_id, chain_id.encode())


def cause_span_id(chain_span_id: bytes, path: tuple[int, ...]) -> bytes:
    """
    Return the id of one span below a chain's.

    Args:
        chain_span_id: The chain's.
        path: The number of the cause, then of one of its own causes, and so on.
    """
    return _derived(b"cause", chain_span_id, repr(path).encode())


def incident_ids(seed: bytes, incident_id: str) -> tuple[bytes, bytes]:
    """Return the trace id and the span id of an incident."""
    trace_id = blake2b(seed + b"incident" + incident_id.encode(), digest_size=16).digest()
    return trace_id, _derived(b"incident", seed, incident_id.encode())


def run_ids(seed: bytes, source: str, device: int) -> tuple[bytes, bytes]:
    """Return the trace id and the span id of the trace that a process recorded of one device."""
    name = f"{device}/{source}".encode()
    trace_id = blake2b(seed + name, digest_size=16, person=b"run").digest()
    return trace_id, _derived(b"run", seed, name)


def run_part_span_id(run_span_id: bytes, kind: bytes, number: int) -> bytes:
    """Return the id of one span below a run's, by kind and number."""
    return _derived(b"run part", run_span_id, kind, number.to_bytes(8))


def _derived(kind: bytes, *parts: bytes) -> bytes:
    digest = blake2b(b"".join(parts), digest_size=8, person=kind).digest()
    return digest if digest != _NO_SPAN else b"\1" * 8

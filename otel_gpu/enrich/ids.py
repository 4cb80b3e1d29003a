"""
Trace and span ids, computed from what a record says and from nothing else.

An id that is a hash needs no state: a stall names its CUDA call as parent before
that call has returned, an exemplar names a span that was sent long ago, and a
replay of a recording gives the ids of the capture again.

A call is known by its thread and the nanosecond at which it was entered. Its depth
is left out on purpose: no thread enters two calls in one nanosecond, and a fork or
an exemplar knows the start of the call and not how deep it lies.
"""

from hashlib import blake2b
from struct import Struct

from otel_gpu.decode.events import CudaCall, Fork, Gap, OpenCall, Stall
from otel_gpu.enrich.activities import CaptureActivity

SpanEvent = CudaCall | Stall | Gap | Fork | OpenCall

# Seed, image ktime, start ktime, another ktime or 0, pid, tid, kind of span.
_pack = Struct("<8sQQQIIB").pack

_TRACE = 0
_CALL = 1
_BLOCKED = 2
_RUN_QUEUE = 3
_FORK = 4
_OPEN = 5
_GAP = 6

_NO_TRACE = bytes(16)
_NO_SPAN = bytes(8)


def capture_seed(capture: CaptureActivity) -> bytes:
    """
    Return the 8 bytes that tell this capture's ids from those of all others.

    They come from the boot and the moment at which the capture began, both of
    which a recording holds.
    """
    host = capture.info.get("host", {})
    identity = f"{host.get('boot_id', '')}/{host.get('id', '')}/{capture.unix_ns}"
    return blake2b(identity.encode(), digest_size=8).digest()


def trace_id_of(seed: bytes, event: SpanEvent) -> bytes:
    """
    Return the 16-byte id of the trace that an event's span belongs to.

    One trace holds an outermost CUDA call, or a gap, and all that happened inside it.
    A stall or a fork outside both is a trace of its own.
    """
    root_ktime_ns = 0 if isinstance(event, Gap) else event.root_start_ktime_ns
    packed = _pack(
        seed,
        event.image_ktime_ns,
        root_ktime_ns or event.start_ktime_ns,
        0,
        event.pid,
        event.tid,
        _TRACE,
    )
    return _trace_id(packed)


def span_id_of(seed: bytes, event: SpanEvent) -> bytes:
    """
    Return the 8-byte id of an event's span.

    A stall can be two spans: this is ``sched.blocked``, and ``run_queue_span_id``
    gives the other one.
    """
    if isinstance(event, CudaCall):
        return _span_id(seed, event, event.start_ktime_ns, _CALL)
    if isinstance(event, Stall):
        return _span_id(seed, event, event.start_ktime_ns, _BLOCKED)
    if isinstance(event, Gap):
        return _span_id(seed, event, event.start_ktime_ns, _GAP)
    if isinstance(event, Fork):
        return _span_id(seed, event, event.start_ktime_ns, _FORK, event.child_pid)
    return _span_id(seed, event, event.start_ktime_ns, _OPEN, event.ktime_ns)


def run_queue_span_id(seed: bytes, stall: Stall) -> bytes:
    """Return the id of a stall's ``sched.run_queue_wait`` span."""
    return _span_id(seed, stall, stall.start_ktime_ns, _RUN_QUEUE)


def parent_span_id_of(seed: bytes, event: SpanEvent) -> bytes:
    """
    Return the id of the call around an event; empty when there is none.

    A stall does not say which gap it lies in: the gap comes after it.
    """
    if isinstance(event, Gap):
        return b""
    if isinstance(event, CudaCall):
        call_ktime_ns = event.parent_start_ktime_ns
    elif isinstance(event, OpenCall):
        call_ktime_ns = event.start_ktime_ns
    else:
        call_ktime_ns = event.call_start_ktime_ns
    return _span_id(seed, event, call_ktime_ns, _CALL) if call_ktime_ns else b""


def chain_span_id(chain_id: str, trace_id: bytes, effect_span_id: bytes) -> bytes:
    """Return the id of a chain's ``gpu.causal_chain`` span."""
    return _derived(b"chain", trace_id, effect_span_id, chain_id.encode())


def cause_span_id(chain_span_id: bytes, path: tuple[int, ...]) -> bytes:
    """
    Return the id of one span below a chain's.

    Args:
        chain_span_id: The chain's.
        path: Where it lies: the number of the cause, then of one of its own, and so on.
    """
    return _derived(b"cause", chain_span_id, repr(path).encode())


def incident_ids(seed: bytes, incident_id: str) -> tuple[bytes, bytes]:
    """Return the trace id and the span id of an incident."""
    return (
        _trace_id(seed + b"incident" + incident_id.encode()),
        _derived(b"incident", seed, incident_id.encode()),
    )


def chain_trace_id(seed: bytes, chain_id: str) -> bytes:
    """Return the trace id of a chain whose effect has no span."""
    return _trace_id(seed + b"chain" + chain_id.encode())


def _span_id(
    seed: bytes, event: SpanEvent, start_ktime_ns: int, kind: int, other: int = 0
) -> bytes:
    packed = _pack(seed, event.image_ktime_ns, start_ktime_ns, other, event.pid, event.tid, kind)
    digest = blake2b(packed, digest_size=8).digest()
    return digest if digest != _NO_SPAN else b"\1" * 8


def _derived(kind: bytes, *parts: bytes) -> bytes:
    digest = blake2b(b"".join(parts), digest_size=8, person=kind).digest()
    return digest if digest != _NO_SPAN else b"\1" * 8


def _trace_id(packed: bytes) -> bytes:
    digest = blake2b(packed, digest_size=16).digest()
    return digest if digest != _NO_TRACE else b"\1" * 16

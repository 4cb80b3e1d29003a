"""
Builders of the records that the agent itself adds to the stream.

The kernel side sends events. These records add the context: clocks, the host, facts of
processes from ``/proc``, and the contents of BPF maps. With them, a recording replays on
any machine, long after its processes ended.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from otel_gpu import wire
from otel_gpu.wire.c_struct import CStruct

MAX_JSON_BYTES = 1 << 20
"""A JSON body above this is shortened; see ``json_record``."""

MAX_SERIES_PER_RECORD = 256
"""A record of 0.4 MB, which takes several times as much memory when it is decoded."""

MAX_HOLDERS_PER_RECORD = 4096
"""Entries of devices or holders in one record."""

MAX_COMMUNICATORS_PER_RECORD = 256
"""A record of 0.25 MB."""

Entry = tuple[bytes, bytes]
"""Key and value of one entry of a map."""

# Tried in this order on a body that is too large: no string longer, no list or
# mapping with more items, than this.
_SHORTENING_LIMITS = (4096, 1024, 256, 64, 16, 4)

_EMPTY_AGGREGATE = bytes(wire.AGGREGATE.size)


def clock_record(ktime_ns: int, unix_ns: int) -> bytes:
    """Build a record of CLOCK_REALTIME at one time of CLOCK_MONOTONIC."""
    return _record(wire.RECORD_CLOCK, wire.CLOCK_RECORD, ktime_ns, unix_ns=unix_ns)


def json_record(
    kind: int,
    ktime_ns: int,
    body: Mapping[str, object],
    *,
    pid: int = 0,
    tid: int = 0,
    program_ktime_ns: int = 0,
) -> bytes:
    """
    Build a record with a JSON body: CAPTURE, PROCESS, PROBES or STATUS.

    The same body gives the same bytes: keys are sorted. What UTF-8 cannot hold (a path with
    stray bytes) becomes ``?``. A body above ``MAX_JSON_BYTES`` is shortened until it fits:
    strings, lists and mappings are cut to the same length, at first 4096, and
    ``"truncated": true`` is added.
    """
    shorter = ({**_shorten(body, limit), "truncated": True} for limit in _SHORTENING_LIMITS)
    for candidate in itertools.chain([body], shorter, [{"truncated": True}]):
        encoded = _encode_json(candidate)
        if len(encoded) <= MAX_JSON_BYTES:
            break
    size = wire.RECORD_HEADER.size + len(encoded)
    header = wire.RECORD_HEADER.pack(kind, 0, size, ktime_ns, program_ktime_ns, pid, tid)
    return header + encoded


def aggregates_records(ktime_ns: int, series: Iterable[Entry]) -> Iterator[bytes]:
    """Build records of all series that are not empty."""
    counted = (entry for entry in series if entry[1] != _EMPTY_AGGREGATE)
    while taken := tuple(itertools.islice(counted, MAX_SERIES_PER_RECORD)):
        yield aggregates_record(ktime_ns, taken)


def aggregates_record(ktime_ns: int, series: Sequence[Entry]) -> bytes:
    """Build one record of at most ``MAX_SERIES_PER_RECORD`` series."""
    return _entries_record(
        wire.RECORD_AGGREGATES, layout=wire.AGGREGATES_RECORD, ktime_ns=ktime_ns, entries=series
    )


def times_record(ktime_ns: int, entries: Sequence[Entry]) -> bytes:
    """Build a record of time entries: keys and values as they are in the kernel's map."""
    return _entries_record(
        wire.RECORD_TIMES, layout=wire.TIMES_RECORD, ktime_ns=ktime_ns, entries=entries
    )


def memory_records(
    kind: int, ktime_ns: int, entries: Sequence[Entry], most: int = MAX_HOLDERS_PER_RECORD
) -> Iterator[bytes]:
    """Build records of at most ``most`` keys and values each, as they are in the kernel's map."""
    for start in range(0, len(entries), most):
        some = entries[start : start + most]
        yield _entries_record(kind, layout=wire.MEMORY_RECORD, ktime_ns=ktime_ns, entries=some)


def counters_record(ktime_ns: int, values: Sequence[int]) -> bytes:
    """Build a record of the kernel side's counters, summed over CPUs, by ``enum counter``."""
    size = wire.COUNTERS_RECORD.size
    return wire.COUNTERS_RECORD.pack(wire.RECORD_COUNTERS, 0, size, ktime_ns, 0, 0, 0, *values)


def unseen_exit_record(ktime_ns: int, *, pid: int, program_ktime_ns: int) -> bytes:
    """Build the record of an end that the kernel side did not report; noticed at ``ktime_ns``."""
    program = {"pid": pid, "tid": pid, "program_ktime_ns": program_ktime_ns}
    return _record(
        wire.RECORD_EXIT, wire.EXIT_RECORD, ktime_ns, flags=wire.EXIT_NOT_SEEN, **program
    )


def open_call_record(ktime_ns: int, *, comm: bytes, **fields: int) -> bytes:
    """
    Build a record of a CUDA call that was still open at ``ktime_ns``.

    ``comm`` is cut to the kernel's 15 bytes. ``fields`` are those of ``struct open_call_record``;
    their times are of this call, not the thread's totals.
    """
    comm = comm[: wire.COMM_BYTES - 1]
    return _record(wire.RECORD_OPEN_CALL, wire.OPEN_CALL_RECORD, ktime_ns, comm=comm, **fields)


def step_record(end_ktime_ns: int, *, name: bytes = b"", comm: bytes = b"", **fields: int) -> bytes:
    """
    Build a record of a step that the agent detected.

    ``name`` is cut to 31 bytes and ``comm`` to 15. ``fields`` are those of ``struct step_record``.
    """
    texts = {
        "name": name[: wire.STEP_NAME_BYTES - 1],
        "comm": comm[: wire.COMM_BYTES - 1],
        "source": wire.STEP_FOUND,
    }
    return _record(wire.RECORD_STEP, wire.STEP_RECORD, end_ktime_ns, **texts, **fields)


def thread_context_record(ktime_ns: int, thread: Mapping[str, Any], start_ktime_ns: int) -> bytes:
    """Build a record of the span that a thread was in when it last left a CPU, of its ``struct thread``."""
    return _record(
        wire.RECORD_THREAD_CONTEXT,
        wire.THREAD_CONTEXT_RECORD,
        ktime_ns,
        pid=thread["pid"],
        tid=thread["tid"],
        program_ktime_ns=thread["program_ktime_ns"],
        start_ktime_ns=start_ktime_ns,
        trace_id=thread["context.trace_id"],
        span_id=thread["context.span_id"].to_bytes(8, "little"),
        trace_flags=thread["context.trace_flags"],
    )


def _record(kind: int, layout: CStruct, ktime_ns: int, **fields: object) -> bytes:
    return layout.build(kind=kind, size=layout.size, ktime_ns=ktime_ns, **fields)


def _encode_json(body: Mapping[str, object]) -> bytes:
    text = json.dumps(
        body, allow_nan=False, ensure_ascii=False, separators=(",", ":"), sort_keys=True
    )
    return text.encode("utf-8", "replace")


def _shorten(value: object, limit: int) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, str):
        return value[:limit]
    if isinstance(value, Mapping):
        return {key[:limit]: _shorten(value[key], limit) for key in sorted(value)[:limit]}
    if isinstance(value, list | tuple):
        return [_shorten(item, limit) for item in value[:limit]]
    return value


def _entries_record(kind: int, layout: CStruct, ktime_ns: int, entries: Sequence[Entry]) -> bytes:
    body = b"".join(itertools.chain.from_iterable(entries))
    return layout.pack(kind, 0, layout.size + len(body), ktime_ns, 0, 0, 0, len(entries)) + body

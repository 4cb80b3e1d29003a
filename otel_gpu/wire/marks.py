"""Steps and NVTX ranges; programs choose the values of both."""

from typing import Any, Final, NamedTuple

# OTLP counts in signed 64 bits.
_INT64_MAX: Final = (1 << 63) - 1


class Step(NamedTuple):
    """
    One iteration of a thread's loop: reported by the program, or detected by the agent.

    ``source`` and ``kind`` are ``enum step_source`` and ``enum step_kind``. ``span_id`` is that of
    the program's own span of the step; empty: none.
    """

    end_ktime_ns: int
    program_ktime_ns: int
    pid: int
    tid: int
    start_ktime_ns: int
    number: int
    loader_wait_ns: int
    trace_id: bytes
    span_id: bytes
    trace_flags: int
    source: int
    confidence_percent: int
    kind: int
    name: str
    comm: str


class Range(NamedTuple):
    """
    A range that a program marked with NVTX; ``tid`` is the thread that ended it.

    All ids come from the program. ``range_kind`` is an ``enum range_kind``. An empty
    ``parent_span_id`` means that it was in no span.
    """

    end_ktime_ns: int
    program_ktime_ns: int
    pid: int
    tid: int
    start_ktime_ns: int
    trace_id: bytes
    span_id: bytes
    parent_span_id: bytes
    start_tid: int
    trace_flags: int
    range_kind: int
    name: str
    domain: str
    comm: str


def step_of(values: tuple[Any, ...]) -> Step:
    """Make a step of its record's values after ``size``; ids of zeros become empty."""
    *times, number, wait_ns, trace_id, span_id, flags, source, confidence, kind, name, comm = values
    has_span = any(trace_id) and any(span_id)
    return Step._make(
        (
            *times,
            min(number, _INT64_MAX),
            min(wait_ns, _INT64_MAX),
            *((trace_id, span_id) if has_span else (b"", b"")),
            *(flags, source, min(confidence, 100), kind),
            *(_text(name), _text(comm)),
        )
    )


def range_of(values: tuple[Any, ...]) -> Range:
    """Make a range of its record's values after ``size``; a parent's id of zeros becomes empty."""
    *numbers, parent_id, start_tid, flags, kind, name, domain, comm = values
    own = (parent_id if any(parent_id) else b"", start_tid, flags, kind)
    return Range._make((*numbers, *own, *map(_text, (name, domain, comm))))


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "replace")

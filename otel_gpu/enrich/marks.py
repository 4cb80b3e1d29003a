"""Steps and ranges that programs report, as activities; see ``activities``."""

from typing import NamedTuple

from otel_gpu.enrich.identity.identities import Program
from otel_gpu.wire.marks import Range, Step


class StepActivity(NamedTuple):
    """
    A step of a thread.

    ``trace_id`` and ``span_id`` are those of the program's own span if the event has them.
    """

    process: Program
    event: Step
    start_unix_ns: int
    end_unix_ns: int
    trace_id: bytes
    span_id: bytes
    parent_span_id: bytes


class RangeActivity(NamedTuple):
    """A range that a program marked with NVTX."""

    process: Program
    event: Range
    start_unix_ns: int
    end_unix_ns: int
    trace_id: bytes
    span_id: bytes
    parent_span_id: bytes

"""What an import took from a capture of another tool, and what it did not."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from otel_gpu.wire.device_activity import HostWork
from otel_gpu.wire.json_body import Scalar

HOST_WORK: Final[Mapping[HostWork, str]] = {
    HostWork.CALL: "calls of the host",
    HostWork.OPERATION: "operations of the host",
    HostWork.ANNOTATION: "annotations of the host",
    HostWork.PYTHON: "functions of Python of the host",
}
"""What was taken of a profiler's trace, by what it is."""


@dataclass(slots=True)
class ImportCounts:
    """
    The account of one import.

    Attributes:
        source: What the file says of itself: tool, version, host.
        taken: Events by what they are, in plural.
        left_out: Rows that say something which has no place here, or that are ambiguous, by
            what they are.
        rejected: Rows that make no sense, by reason.
        notes: What a reader of the figures has to know, as sentences.
    """

    source: dict[str, Scalar] = field(default_factory=dict)
    taken: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

"""Counts of what an import took from a capture of another tool, and of what it left out."""

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
"""Names of imported rows of a profiler's trace."""


@dataclass(slots=True)
class ImportCounts:
    """
    Counts of one import.

    Attributes:
        source: Facts that the file states about itself: tool, version, host.
        taken: Imported events, by a name in plural.
        left_out: Rows that have no counterpart here, or are ambiguous, by name.
        rejected: Invalid rows, by reason.
        notes: Sentences that a reader of the figures needs.
    """

    source: dict[str, Scalar] = field(default_factory=dict)
    taken: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

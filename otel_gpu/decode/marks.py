"""What programs and people say of a program's work: any values."""

from typing import Any, Final

from otel_gpu.annotations import read_pairs
from otel_gpu.decode.events import Annotation, Range, Step

# OTLP counts in signed 64 bits.
_INT64_MAX: Final = (1 << 63) - 1


def step_of(values: tuple[Any, ...]) -> Step:
    """Return a step, of what follows its record's size; ids that no span has are left out."""
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


def annotation_of(values: tuple[Any, ...]) -> Annotation:
    """Return an annotation, of what follows its record's size; what is no pair is left out."""
    *head, _, _, _, size, text, comm = values
    return Annotation._make((*head, "\n".join(read_pairs(text[:size])), _text(comm)))


def range_of(values: tuple[Any, ...]) -> Range:
    """Return a range, of what follows its record's size; the id of no parent is empty."""
    *numbers, parent_id, start_tid, flags, kind, name, domain, comm = values
    own = (parent_id if any(parent_id) else b"", start_tid, flags, kind)
    return Range._make((*numbers, *own, *map(_text, (name, domain, comm))))


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "replace")

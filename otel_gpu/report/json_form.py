"""
The document as JSON: the output of ``explain --json``.

A contract: ``schema.json`` beside this module describes it, and is generated from the types.
``schema_version`` grows when a key is removed or changes its meaning. One function writes every row:
its fields are the keys, except for what ``json_types`` has.
References to a process, chain, interval or stack are ids; the objects are under ``processes``,
``chains``, ``evidence`` and ``stacks``.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from otel_gpu.enrich.stack_text import cut_frames, frame_type, stack_id_text
from otel_gpu.explain.chains import Failure
from otel_gpu.report.causes import walk
from otel_gpu.report.document import (
    CallStack,
    Cause,
    CodeLines,
    Document,
    Evidence,
    Frame,
    Program,
    stack_of_cause,
)
from otel_gpu.report.headline import headline_of
from otel_gpu.report.json_types import (
    ABSENT_WHEN_EMPTY,
    BY_ID,
    KEYS,
    LEFT_OUT,
    MAX_FRAMES,
    MAX_LINES,
    AnswerForm,
    FrameForm,
    LineForm,
    LineKeys,
    StackForm,
    WhereForm,
)
from otel_gpu.report.memory.snapshot import out_of_memory
from otel_gpu.report.wording.sentences import plain

SCHEMA_VERSION: Final = 3


def make_document(document: Document) -> dict[str, Any]:
    """Return the document as plain JSON values."""
    evidence = {interval.id: interval for interval in _intervals(document)}
    listed = {chain.id for chain in document.chains}
    written = {
        "schema_version": SCHEMA_VERSION,
        "answer": answer_form(document),
        **_record(document),
        "chains": [_record(chain) for chain in document.chains],
        "examples": [_record(chain) for chain in document.examples],
        "evidence": {name: _record(evidence[name]) for name in sorted(evidence)},
    }
    for incident in written["incidents"]:
        incident["chains"] = [name for name in incident["chains"] if name in listed]
    stacks = {stack_id_text(stack.id): stack for stack in _stacks(document)}
    if stacks:
        written["stacks"] = {name: stack_form(stacks[name]) for name in sorted(stacks)}
    return written


def to_text(document: Mapping[str, object]) -> str:
    """
    Write a document as JSON text.

    Control characters that a terminal would interpret are escaped, including those that JSON
    allows.
    """
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    # Line by line: a document has millions of characters, nearly all printable.
    return "\n".join(line if line.isprintable() else _escape(line) for line in text.split("\n"))


def _escape(line: str) -> str:
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)


def process_id(process: Program) -> str:
    """Return the id of a program: two programs under one pid differ."""
    return f"{process.pid}-{process.program_ktime_ns}"


def answer_form(document: Document) -> AnswerForm:
    """Return the answer that reports begin with, as plain text."""
    headline = headline_of(document)
    written: AnswerForm = {
        "title": plain(headline.title),
        "loss": plain(headline.loss),
        "lines": [{"label": line.label, "text": plain(line.sentence)} for line in headline.lines],
    }
    if headline.incident:
        written["incident"] = headline.incident.id
    return written


def stack_form(stack: CallStack) -> StackForm:
    """Return a stack, its frames innermost first."""
    written: StackForm = {
        "complete": stack.complete,
        "native": stack.native,
        "python": stack.python,
        "frames": [frame_form(frame) for frame in cut_frames(stack.frames, MAX_FRAMES)],
    }
    if stack.place is not None:
        written["place"] = frame_form(stack.place)
    return written


def frame_form(frame: Frame) -> FrameForm:
    """Return a frame; unknown fields are omitted."""
    written: FrameForm = {"type": frame_type(frame), "function": frame.function}
    if frame.file:
        written["file"] = frame.file
    if frame.line:
        written["line"] = frame.line
    if frame.module:
        written["module"] = frame.module
    if frame.address:
        written["address"] = frame.address
    return written


def lines_form(lines: CodeLines) -> LineKeys:
    """Return the lines that worked, with their samples; empty without samples."""
    written: list[LineForm] = [
        {
            "function": line.where.function,
            "file": line.where.file,
            "line": line.where.line,
            "samples": line.samples,
            "share": lines.share_of(line),
            "work": line.work or None,
        }
        for line in lines.each[:MAX_LINES]
    ]
    if not written:
        return {}
    function, file, line = lines.each[0].where
    where: WhereForm = {"function": function, "file": file, "line": line}
    return {"lines": written, "samples": lines.samples, "where": where}


def _record(row: Any) -> dict[str, Any]:  # noqa: ANN401 -- any NamedTuple
    written: dict[str, Any] = {}
    for name, value in zip(row._fields, row, strict=True):
        if name in LEFT_OUT.get(type(row), ()):
            continue
        if isinstance(value, Program):
            written |= {"pid": value.pid, "process": process_id(value)}
        elif isinstance(value, CodeLines):
            written |= lines_form(value)
        elif value or name not in ABSENT_WHEN_EMPTY:
            written[KEYS.get(name, name)] = _value(name, value)
    if isinstance(row, Cause) and (stack := stack_of_cause(row)) is not None:
        written["stack"] = stack_id_text(stack.id)
    return written


def _value(name: str, value: Any) -> Any:  # noqa: ANN401 -- what a noun holds
    written = value
    match value:
        case _ if type(value) in BY_ID:
            written = value.id
        case CallStack():
            written = stack_id_text(value.id)
        case Failure():
            written = _record(out_of_memory(value))
        case bytes():
            written = value.hex()
        case float() if not math.isfinite(value):
            written = None
        case float() if name.endswith("_ns"):
            written = round(value)
        case Mapping():
            written = {key: _value(name, item) for key, item in value.items()}
        case tuple() if hasattr(value, "_fields"):
            written = _record(value)
        case tuple() | list():
            written = [_value(name, item) for item in value]
    return written


def _causes(document: Document) -> Iterator[Cause]:
    chains = (*document.chains, *document.examples)
    causes = [cause for chain in chains for cause in chain.causes]
    causes += [cause for row in document.steps for step in row.slow for cause in step.causes]
    causes += [cause for incident in document.incidents for cause in incident.causes]
    return (step.cause for step in walk(causes))


def _intervals(document: Document) -> Iterator[Evidence]:
    return (interval for cause in _causes(document) for interval in cause.evidence)


def _stacks(document: Document) -> Iterator[CallStack]:
    found = [chain.effect.stack for chain in (*document.chains, *document.examples)]
    found += [interval.stack for interval in _intervals(document)]
    found += [stack_of_cause(cause) for cause in _causes(document)]
    found += [rank.stack for row in document.communicators for rank in row.ranks]
    return (stack for stack in found if stack is not None)

"""``get_stacks``: where in their programs calls were made, and threads waited."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from otel_gpu.faces.mcp.answers import Listing, first_of, inert, micros, name_of
from otel_gpu.faces.mcp.arguments import WINDOW, Argument, ArgumentError, Question
from otel_gpu.faces.mcp.captures import Capture
from otel_gpu.faces.mcp.code import FRAME, describe_stack, names_of
from otel_gpu.faces.mcp.tool import Answer, Tool, about, limit_argument, service, share
from otel_gpu.findings.causes import find_intervals
from otel_gpu.findings.document import Document, Evidence
from otel_gpu.findings.stack_finder import StackFinder
from otel_gpu.findings.top_stacks import (
    BYTES,
    CALLED,
    MEASURES,
    TIME,
    WAITED,
    StackCollector,
    StackReport,
    StackRow,
)
from otel_gpu.probe_table import APIS

_DEFAULT = 10
_MAX_FRAMES = 16
_MAX_FRAMES_OF_ONE = 64
_MAX_NOTES = 10
_MAX_USES = 50
_MAX_NAME = 64
_ID = re.compile(r"[0-9a-f]{16}")
# What a row is of, and with it the argument that chooses among rows.
_NAMES = {CALLED: "api", WAITED: "reason"}
_ALL_APIS = tuple(sorted({api.name for api in APIS}))
_NO_STACKS = (
    "None of them has a stack: none was captured, or the tool that this was imported from "
    "keeps none that can be read. Do not guess lines of source."
)
_NOTHING = "Nothing of this kind was kept one by one in this window."


class _KernelTotal(NamedTuple):
    time_ns: int
    times: int
    reason: str
    evidence: str


def answer(capture: Capture, question: Question) -> Answer:
    """Return the top stacks, or one of them in full."""
    if "id" in question.values:
        return _in_full(capture, question)
    kind, by = question.values.get("of", CALLED), question.values.get("by", TIME)
    _check(question, kind, by)
    name = _NAMES[kind]
    names = [question.values[name]] if name in question.values else []
    window = capture.resolve(question.begin, question.end)
    document = capture.study(question.begin, question.end, question.pids).document
    stacks = StackCollector(window, kind=kind, pids=question.pids, names=names)
    capture.play(window, [stacks.observe])
    found = stacks.finish(document.source, by)
    limit = question.values.get("limit", _DEFAULT)
    shown = {
        **about(document),
        "of": kind,
        "by": by,
        "coverage": {
            "with_stack": found.seen,
            "without_stack": found.without_stack,
            "stand_for": found.stand_for,
            "counted": found.counted,
        },
        "frames_are": list(FRAME),
        "stacks": _stacks(found, limit),
        "notes": list(_notes(found))[:_MAX_NOTES],
    }
    if kind == WAITED:
        shown["kernel_stacks"] = first_of(_kernel_stacks(document), limit)
    return shown


def _check(question: Question, kind: str, by: str) -> None:
    if kind == WAITED and ("api" in question.values or by == BYTES):
        raise ArgumentError("waits are of no API and have no bytes", hint="leave out api or by")
    if kind == CALLED and "reason" in question.values:
        raise ArgumentError("calls have no reason", hint='say "of": "waits", or leave out reason')


def _stacks(found: StackReport, limit: int) -> Listing:
    listed, total = found.rows[:limit], found.total()
    alike = Counter(map(_looks, listed))
    rows = [_row(row, found, total, has_twin=alike[_looks(row)] > 1) for row in listed]
    return Listing(rows, more=len(found.rows) - len(listed))


def _looks(row: StackRow) -> tuple[object, ...]:
    return row.process.pid, row.name, names_of(row.stack, _MAX_FRAMES)


def _row(row: StackRow, found: StackReport, total: int, *, has_twin: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "pid": row.process.pid,
        "service": service(row.process),
        _NAMES[found.kind]: name_of(row.name),
        found.kind: row.calls,
        "seen": row.seen,
        "time_us": micros(row.time_ns),
        "share": share(row.measure(found.by) / total) if total else None,
    }
    if row.size_bytes:
        shown["bytes"] = row.size_bytes
    return shown | describe_stack(row.stack, _MAX_FRAMES, addresses=has_twin)


def _notes(found: StackReport) -> Iterator[str]:
    if not found.seen:
        yield _NO_STACKS if found.without_stack else _NOTHING
    yield from map(inert, found.notes)


def _in_full(capture: Capture, question: Question) -> dict[str, Any]:
    wanted = question.values["id"]
    if not _ID.fullmatch(wanted):
        raise ArgumentError(f"{inert(repr(wanted))} is no id: 16 digits, 0 to 9 and a to f")
    window = capture.resolve(question.begin, question.end)
    document = capture.study(question.begin, question.end, question.pids).document
    finder = StackFinder(int(wanted, 16))
    # All APIs by their names: calls inside other calls are told too.
    kinds = {
        CALLED: StackCollector(window, kind=CALLED, pids=question.pids, names=_ALL_APIS),
        WAITED: StackCollector(window, kind=WAITED, pids=question.pids),
    }
    capture.play(window, [finder.observe, *(stacks.observe for stacks in kinds.values())])
    if finder.found is None:
        return {**about(document), "note": "No call and no wait of this window has this stack."}
    shown: dict[str, Any] = {
        **about(document),
        "frames_are": list(FRAME),
        "stack": describe_stack(finder.found, _MAX_FRAMES_OF_ONE, addresses=True),
    }
    for kind, stacks in kinds.items():
        found = stacks.finish(document.source, TIME)
        columns = ("pid", "service", _NAMES[kind], kind, "seen", "time_us", "bytes")
        uses = [_use(row) for row in found.rows if row.stack.id == finder.found.id]
        shown[kind] = first_of(uses, _MAX_USES, columns)
    return shown | {"calls_that_had_not_returned": finder.open_calls}


def _use(row: StackRow) -> list[object]:
    return [
        row.process.pid,
        service(row.process),
        name_of(row.name),
        row.calls,
        row.seen,
        micros(row.time_ns),
        row.size_bytes,
    ]


def _kernel_stacks(document: Document) -> list[Any]:
    # An interval can be evidence of several chains.
    intervals: dict[str, Evidence] = {}
    for chain in document.chains:
        for interval in find_intervals(chain):
            if interval.evidence.functions:
                intervals.setdefault(interval.evidence.id, interval.evidence)
    totals: dict[tuple[str, ...], _KernelTotal] = {}
    for evidence in intervals.values():
        length_ns = max(0, evidence.end_unix_ns - evidence.start_unix_ns)
        known = totals.get(evidence.functions)
        totals[evidence.functions] = (
            _KernelTotal(length_ns, 1, evidence.reason, evidence.id)
            if known is None
            else known._replace(time_ns=known.time_ns + length_ns, times=known.times + 1)
        )
    ranked = sorted(totals.items(), key=lambda item: (-item[1].time_ns, item[0]))
    return [
        {
            "functions": [name_of(function) for function in functions[:_MAX_FRAMES]],
            "reason": name_of(total.reason),
            "time_us": micros(total.time_ns),
            "times": total.times,
            "evidence": total.evidence,
        }
        for functions, total in ranked
    ]


TOOL = Tool(
    "get_stacks",
    "Stacks",
    "Where in their programs CUDA calls were made, or (of waits) threads were blocked: Python line, "
    "C++ and CUDA in one stack, innermost frame first, added up by time, calls or bytes. Only what "
    "was kept one by one has a stack: seen is how many did, calls how many those stand for (a "
    "sampled call stands for many), coverage.counted how many calls there were. share is of the "
    "measure of all stacks. complete false: outer frames are missing; native and python say how "
    "frames were found; where is a file or a library, +0x an address in it. code is the innermost "
    "code of the program's own. kernel_stacks (of waits) are the kernel functions of waits that "
    "chains rest on. Give a stack's id (stack_id, also of chains and spans) to see all of its frames "
    "and uses. Do not guess lines that no frame names.",
    (
        *WINDOW,
        Argument(
            "of",
            "text",
            "calls, or waits. Default: calls.",
            most=_MAX_NAME,
            choices=(CALLED, WAITED),
        ),
        Argument("by", "text", "What counts. Default: time.", most=_MAX_NAME, choices=MEASURES),
        Argument(
            "api",
            "text",
            "Only calls of this CUDA API, also those inside other CUDA calls, which are else left "
            "out as parts of those.",
            most=_MAX_NAME,
        ),
        Argument(
            "reason", "text", "Only waits for this, as get_time_budget names it.", most=_MAX_NAME
        ),
        Argument("id", "text", "One stack, in full: its stack_id.", most=_MAX_NAME),
        limit_argument(_DEFAULT, 100, "stacks"),
    ),
    answer,
)

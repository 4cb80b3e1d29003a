"""``get_stacks``: code locations of calls, waits, CPU time and memory."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field

from otel_gpu.mcp.answers import Listing, first_of, micros, name_of, present, sanitize
from otel_gpu.mcp.arguments import ArgumentError, Question, rows
from otel_gpu.mcp.captures import ServedCapture
from otel_gpu.mcp.code_locations import FRAME, describe_stack, names_of
from otel_gpu.mcp.tool import Answer, about, fields_of, share, table, tool
from otel_gpu.report.causes import Interval, find_intervals
from otel_gpu.report.document import Document
from otel_gpu.report.memory.stacks import MemoryStackCollector
from otel_gpu.report.stacks.document import coverage_form
from otel_gpu.report.stacks.finder import StackFinder
from otel_gpu.report.stacks.top_stacks import (
    CALLED,
    CPU,
    GRAPHS,
    MEMORY,
    WAITED,
    StackCollector,
    StackKind,
    StackMeasure,
    StackReport,
    StackRow,
)
from otel_gpu.report.wording.formats import thread_name
from otel_gpu.wire.probe_table import APIS

_MAX_FRAMES = 16
_MAX_FRAMES_OF_ONE = 64
_MAX_NOTES = 10
_MAX_USES = 50
_MAX_NAME = 64
_ID = re.compile(r"[0-9a-f]{16}")
# The meaning of a row's name, and the argument that filters by it.
_NAMES = {CALLED: "api", WAITED: "reason"} | dict.fromkeys((*GRAPHS, *MEMORY), "what")
_ALL_APIS = tuple(sorted({api.name for api in APIS}))
_NO_STACKS = (
    "None of them has a stack: none was captured, or the tool that this was imported from "
    "stores none that can be read. Do not guess lines of source."
)
_API = (
    "Only calls of this CUDA API, including those inside other CUDA calls, which are otherwise omitted as "
    "parts of those."
)
_REASON = "Only waits with this reason, as in get_time_budget."
_OF = "What is added up: cpu is time on CPUs by samples, off-cpu time in waits, wall both; in-use, peak and allocated are bytes of device memory."
_THREAD = "Only threads with this id or name (* matches any text), each separately."
_ONE = "One stack, in full: its stack_id."
_NOTHING = "Nothing of this kind was recorded individually in this window."


@tool("Stacks")
def get_stacks(
    capture: ServedCapture,
    asked: Question,
    *,
    of: Annotated[
        Literal[
            StackKind.CALLS,
            StackKind.WAITS,
            StackKind.CPU,
            StackKind.OFF_CPU,
            StackKind.WALL,
            StackKind.IN_USE,
            StackKind.ALLOCATED,
            StackKind.PEAK,
        ],
        Field(description=_OF),
    ] = StackKind.CALLS,
    by: Annotated[
        Literal[StackMeasure.TIME, StackMeasure.CALLS, StackMeasure.BYTES],
        Field(description="What counts."),
    ] = StackMeasure.TIME,
    api: Annotated[str, Field(max_length=_MAX_NAME, description=_API)] = "",
    reason: Annotated[str, Field(max_length=_MAX_NAME, description=_REASON)] = "",
    thread: Annotated[str, Field(max_length=_MAX_NAME, description=_THREAD)] = "",
    id: Annotated[str, Field(max_length=_MAX_NAME, description=_ONE)] = "",  # noqa: A002 -- its name
    limit: Annotated[int, rows(100, "stacks")] = 10,
) -> Answer:
    """
    Where in their programs CUDA calls were made, threads were blocked (of waits), spent time on and
    off CPUs (of cpu, off-cpu, wall: which code uses the CPU), or hold device memory (of in-use at
    the end, peak, allocated: including freed memory; seen is blocks). Each stack has Python, C++
    and CUDA frames, innermost frame first; stacks are ranked by time, calls or bytes. Samples are
    estimates. Only calls that were recorded individually have a stack: seen is their number, calls
    the number that they represent (a sampled call represents many), coverage.counted the number of
    all calls. share is of the measure of all stacks. complete false: outer frames are missing;
    native and python name the unwinding method; where is a file or a library, +0x an address in it.
    code is the program's own innermost code. kernel_stacks (of waits) are the kernel functions of
    waits that are evidence of chains. Give a stack's id (stack_id, also of chains and spans) to see
    all of its frames and uses. Do not guess lines that no frame names.
    """
    if id:
        return _in_full(capture, asked, id)
    if of == WAITED and (api or by == StackMeasure.BYTES):
        raise ArgumentError("waits have no API and no bytes", hint="leave out api or by")
    if of in GRAPHS and by != StackMeasure.TIME:
        raise ArgumentError(f"{of} is time, and has no {by}", hint="leave out by")
    if of in MEMORY and (api or reason or thread or by == StackMeasure.CALLS):
        raise ArgumentError(
            f"{of} is bytes of devices", hint="leave out api, reason, thread and by"
        )
    if of == CALLED and reason:
        raise ArgumentError("calls have no reason", hint='use "of": "waits", or leave out reason')
    window = capture.resolve(asked)
    document = capture.examine(asked).document
    names = [name for name in (api, reason) if name]
    threads = [thread] if thread else []
    if of in MEMORY:
        memory = MemoryStackCollector(window, kind=of, pids=asked.pids)
        capture.play(window, [memory])
        found = memory.finish(document.source)
    else:
        stacks = StackCollector(window, kind=of, pids=asked.pids, names=names, threads=threads)
        capture.play(window, [stacks])
        found = stacks.finish(document.source, by)
    notes = list(map(sanitize, found.notes))
    if not found.seen:
        notes.insert(0, _NO_STACKS if found.without_stack or found.rows else _NOTHING)
    shown = {
        **about(document),
        "of": of,
        "by": found.by,
        "coverage": coverage_form(found),
        "frames_are": list(FRAME),
        "stacks": _stacks(found, limit),
        "notes": notes[:_MAX_NOTES],
    }
    if of == WAITED:
        shown["kernel_stacks"] = first_of(_kernel_stacks(document), limit)
    return shown


def _stacks(found: StackReport, limit: int) -> Listing:
    listed, total = found.rows[:limit], found.total()
    alike = Counter(map(_alike_key, listed))
    kind = found.kind
    fields = "" if kind in (*GRAPHS, *MEMORY) else kind
    time = "" if kind in MEMORY else "time_us"
    rows = [
        fields_of(
            row,
            f"pid service {_NAMES[kind]} {fields} seen {time} share",
            **_own(kind),
            share=lambda row: share(row.measure(found.by) / total) if total else None,
        )
        | present(
            bytes=row.size_bytes, thread=name_of(thread_name(row.thread)) if row.thread else ""
        )
        | describe_stack(row.stack, _MAX_FRAMES, addresses=alike[_alike_key(row)] > 1)
        for row in listed
    ]
    return Listing(rows, more=len(found.rows) - len(listed))


def _alike_key(row: StackRow) -> tuple[object, ...]:
    return row.process.pid, row.name, names_of(row.stack, _MAX_FRAMES)


def _own(kind: StackKind) -> dict[str, Callable[[StackRow], object]]:
    return {_NAMES[kind]: lambda row: row.name, kind: lambda row: row.calls}


def _in_full(capture: ServedCapture, asked: Question, wanted: str) -> dict[str, object]:
    if not _ID.fullmatch(wanted):
        raise ArgumentError(
            f"{sanitize(repr(wanted))} is not an id: it has 16 digits, 0 to 9 and a to f"
        )
    window = capture.resolve(asked)
    document = capture.examine(asked).document
    finder = StackFinder(int(wanted, 16))
    kinds = {
        # With the names of all APIs, calls inside other calls are included.
        CALLED: StackCollector(window, kind=CALLED, pids=asked.pids, names=_ALL_APIS),
        WAITED: StackCollector(window, kind=WAITED, pids=asked.pids),
        CPU: StackCollector(window, kind=CPU, pids=asked.pids),
    }
    capture.play(window, [finder, *kinds.values()])
    if finder.found is None:
        return {**about(document), "note": "No call, wait or sample of this window has this stack."}
    shown: dict[str, object] = {
        **about(document),
        "frames_are": list(FRAME),
        "stack": describe_stack(finder.found, _MAX_FRAMES_OF_ONE, addresses=True),
    }
    for kind, stacks in kinds.items():
        found = stacks.finish(document.source, StackMeasure.TIME)
        uses = [row for row in found.rows if row.stack.id == finder.found.id]
        fields = f"pid service {_NAMES[kind]} {kind} seen time_us bytes"
        if kind == CPU:
            fields = "pid service what seen time_us"
        shown[kind] = table(uses, fields, _MAX_USES, **_own(kind))
    return shown | {"calls_that_had_not_returned": finder.open_calls}


def _kernel_stacks(document: Document) -> list[object]:
    # An interval can be evidence of several chains.
    intervals: dict[str, Interval] = {}
    for chain in document.chains:
        for interval in find_intervals(chain):
            if interval.evidence.functions:
                intervals.setdefault(interval.evidence.id, interval)
    alike: dict[tuple[str, ...], list[Interval]] = {}
    for interval in intervals.values():
        alike.setdefault(interval.evidence.functions, []).append(interval)
    times_ns = {names: sum(one.length_ns for one in found) for names, found in alike.items()}
    return [
        {
            "functions": [name_of(function) for function in names[:_MAX_FRAMES]],
            "reason": name_of(alike[names][0].evidence.reason),
            "time_us": micros(time_ns),
            "times": len(alike[names]),
            "evidence": alike[names][0].evidence.id,
        }
        for names, time_ns in sorted(times_ns.items(), key=lambda item: (-item[1], item[0]))
    ]

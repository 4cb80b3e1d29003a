"""``get_stacks``: where in their programs calls were made, and threads waited."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field

from otel_gpu.mcp.answers import Listing, first_of, inert, micros, name_of, present
from otel_gpu.mcp.arguments import ArgumentError, Question, rows
from otel_gpu.mcp.captures import ServedCapture
from otel_gpu.mcp.code_locations import FRAME, describe_stack, names_of
from otel_gpu.mcp.tool import Answer, about, noun, share, table, tool
from otel_gpu.report.causes import Interval, find_intervals
from otel_gpu.report.document import Document
from otel_gpu.report.memory.stacks import MemoryStackCollector
from otel_gpu.report.stacks.document import coverage_form
from otel_gpu.report.stacks.finder import StackFinder
from otel_gpu.report.stacks.top_stacks import (
    BYTES,
    CALLED,
    CALLS,
    CPU,
    GRAPHS,
    MEMORY,
    TIME,
    WAITED,
    StackCollector,
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
# What a row is of, and with it the argument that chooses among rows.
_NAMES = {CALLED: "api", WAITED: "reason"} | dict.fromkeys((*GRAPHS, *MEMORY), "what")
_ALL_APIS = tuple(sorted({api.name for api in APIS}))
_NO_STACKS = (
    "None of them has a stack: none was captured, or the tool that this was imported from "
    "keeps none that can be read. Do not guess lines of source."
)
_API = (
    "Only calls of this CUDA API, also those inside other CUDA calls, which are otherwise left out as "
    "parts of those."
)
_REASON = "Only waits for this, as get_time_budget names it."
_OF = "What to add up: cpu is time on CPUs by samples, off-cpu time in waits, wall both; in-use, peak and allocated are bytes of device memory."
_THREAD = "Only threads with this number or name; * stands for any text, and each is for itself."
_ONE = "One stack, in full: its stack_id."
_NOTHING = "Nothing of this kind was kept one by one in this window."


@tool("Stacks")
def get_stacks(
    capture: ServedCapture,
    asked: Question,
    *,
    of: Annotated[
        Literal["calls", "waits", "cpu", "off-cpu", "wall", "in-use", "allocated", "peak"],
        Field(description=_OF),
    ] = "calls",
    by: Annotated[Literal["time", "calls", "bytes"], Field(description="What counts.")] = "time",
    api: Annotated[str, Field(max_length=_MAX_NAME, description=_API)] = "",
    reason: Annotated[str, Field(max_length=_MAX_NAME, description=_REASON)] = "",
    thread: Annotated[str, Field(max_length=_MAX_NAME, description=_THREAD)] = "",
    id: Annotated[str, Field(max_length=_MAX_NAME, description=_ONE)] = "",  # noqa: A002 -- its name
    limit: Annotated[int, rows(100, "stacks")] = 10,
) -> Answer:
    """
    Where in their programs CUDA calls were made, threads were blocked (of waits), or spent time on
    CPUs and off them (of cpu, off-cpu, wall: which code burns CPU), or hold device memory (of
    in-use in the end, peak, allocated: also what is free again; seen is blocks): Python line, C++ and CUDA in one
    stack, innermost frame first, added up by time, calls or bytes. Samples are estimates. Only what
    was kept one by one has a stack: seen is how many did, calls how many those stand for (a
    sampled call stands for many), coverage.counted how many calls there were. share is of the
    measure of all stacks. complete false: outer frames are missing; native and python say how
    frames were found; where is a file or a library, +0x an address in it. code is the innermost
    code of the program's own. kernel_stacks (of waits) are the kernel functions of waits that
    chains rest on. Give a stack's id (stack_id, also of chains and spans) to see all of its frames
    and uses. Do not guess lines that no frame names.
    """
    if id:
        return _in_full(capture, asked, id)
    if of == WAITED and (api or by == BYTES):
        raise ArgumentError("waits have no API and no bytes", hint="leave out api or by")
    if of in GRAPHS and by != TIME:
        raise ArgumentError(f"{of} is time, and has no {by}", hint="leave out by")
    if of in MEMORY and (api or reason or thread or by == CALLS):
        raise ArgumentError(
            f"{of} is bytes of devices", hint="leave out api, reason, thread and by"
        )
    if of == CALLED and reason:
        raise ArgumentError("calls have no reason", hint='say "of": "waits", or leave out reason')
    window = capture.resolve(asked)
    document = capture.study(asked).document
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
    notes = list(map(inert, found.notes))
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
    alike = Counter(map(_looks, listed))
    kind = found.kind
    fields = "" if kind in (*GRAPHS, *MEMORY) else kind
    time = "" if kind in MEMORY else "time_us"
    rows = [
        noun(
            row,
            f"pid service {_NAMES[kind]} {fields} seen {time} share",
            **_own(kind),
            share=lambda row: share(row.measure(found.by) / total) if total else None,
        )
        | present(
            bytes=row.size_bytes, thread=name_of(thread_name(row.thread)) if row.thread else ""
        )
        | describe_stack(row.stack, _MAX_FRAMES, addresses=alike[_looks(row)] > 1)
        for row in listed
    ]
    return Listing(rows, more=len(found.rows) - len(listed))


def _looks(row: StackRow) -> tuple[object, ...]:
    return row.process.pid, row.name, names_of(row.stack, _MAX_FRAMES)


def _own(kind: str) -> dict[str, Callable[[StackRow], object]]:
    return {_NAMES[kind]: lambda row: row.name, kind: lambda row: row.calls}


def _in_full(capture: ServedCapture, asked: Question, wanted: str) -> dict[str, Any]:
    if not _ID.fullmatch(wanted):
        raise ArgumentError(f"{inert(repr(wanted))} is not an id: 16 digits, 0 to 9 and a to f")
    window = capture.resolve(asked)
    document = capture.study(asked).document
    finder = StackFinder(int(wanted, 16))
    kinds = {
        # All APIs by their names: calls inside other calls are included too.
        CALLED: StackCollector(window, kind=CALLED, pids=asked.pids, names=_ALL_APIS),
        WAITED: StackCollector(window, kind=WAITED, pids=asked.pids),
        CPU: StackCollector(window, kind=CPU, pids=asked.pids),
    }
    capture.play(window, [finder, *kinds.values()])
    if finder.found is None:
        return {**about(document), "note": "No call, wait or sample of this window has this stack."}
    shown: dict[str, Any] = {
        **about(document),
        "frames_are": list(FRAME),
        "stack": describe_stack(finder.found, _MAX_FRAMES_OF_ONE, addresses=True),
    }
    for kind, stacks in kinds.items():
        found = stacks.finish(document.source, TIME)
        uses = [row for row in found.rows if row.stack.id == finder.found.id]
        fields = f"pid service {_NAMES[kind]} {kind} seen time_us bytes"
        if kind == CPU:
            fields = "pid service what seen time_us"
        shown[kind] = table(uses, fields, _MAX_USES, **_own(kind))
    return shown | {"calls_that_had_not_returned": finder.open_calls}


def _kernel_stacks(document: Document) -> list[Any]:
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

"""A side of a comparison from a document: states of launching threads per CUDA call, and memory."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from otel_gpu.report.comparison.comparison import Basis, DeltaKind, Figures, Side
from otel_gpu.report.document import OTHER_PROCESSES_PID, Document, ProcessReport, TimeNode, Who
from otel_gpu.report.wording.formats import describe_place, describe_where, printable
from otel_gpu.report.wording.phrases import PHRASES
from otel_gpu.wire.frames import Frame, FrameType
from otel_gpu.wire.probe_table import ApiLayer

# Numbers distinguish threads of a pool, and of the kernel.
_NUMBER = re.compile(r"[-/:_u\d]*\d$")
_FEWEST_CALLS = 100
_FEWEST_BUCKETS = 3
_TOOL = "otel-gpu"
_LINE = "line"
_WAITS_FOR_WORK = "idle"
_IDLE = "it had nothing to do most of the time: its pace is that of what it was asked for"


def side_of(source: str, document: Document) -> Side:
    """Return one side from a document."""
    judged = [one for one in document.judged if one.process.pid != OTHER_PROCESSES_PID]
    launching = {one.process for one in judged}
    rows = [
        row for row in document.apis if row.process in launching and row.layer == ApiLayer.RUNTIME
    ]
    rows = rows or [row for row in document.apis if row.process in launching]
    calls: Counter[str] = Counter()
    for row in rows:
        calls[row.api] += row.calls
    total = sum(calls.values())
    figures: dict[tuple[DeltaKind, str], float] = dict(_memory(document))
    if total < _FEWEST_CALLS or not judged:
        return Side(source, _TOOL, figures=figures, faults=_faults(document, total, judged))
    for key, time_ns in _times(judged).items():
        figures[key] = time_ns / total
    return Side(
        source=source,
        tool=_TOOL,
        basis=Basis.CALL,
        times_ns=tuple(_paces(document, judged, total)),
        programs=frozenset(printable(one.service_name) for one in judged),
        work={api: count / total for api, count in calls.items()},
        figures=figures,
        verdict="; ".join(sorted({one.verdict for one in judged})),
        faults=(_IDLE,) if all(one.verdict == _WAITS_FOR_WORK for one in judged) else (),
        notes=tuple(f"Lost: {count:,} {what}" for what, count in document.losses.items()),
    )


def _faults(document: Document, calls: int, judged: Sequence[ProcessReport]) -> tuple[str, ...]:
    if document.memory:
        return ()
    if not judged:
        return ("it has no account of where the time of threads went",)
    return (f"{calls:,} CUDA calls are too few for a time per call",)


def _paces(document: Document, judged: Sequence[ProcessReport], calls: int) -> Iterator[float]:
    # The mean time per call, estimated for each time bucket; it includes the time between calls.
    mean_ns = sum(sum(one.budget_ns.values()) for one in judged) / calls
    counted: defaultdict[int, float] = defaultdict(float)
    buckets = [bucket for one in judged for bucket in document.buckets_of(one.process)]
    longest_ns = max((bucket.length_ns for bucket in buckets), default=0)
    for bucket in buckets:
        # The last bucket of a capture is shorter.
        if bucket.length_ns == longest_ns:
            counted[bucket.start_unix_ns] += bucket.calls
    # The first and the last bucket of the window are partial, too.
    inner = [counted[start] for start in sorted(counted)[1:-1]]
    usual = sum(inner) / len(inner) if inner else 0
    if len(inner) < _FEWEST_BUCKETS or not usual:
        yield mean_ns
        return
    for made in inner:
        # The counts show the variation; the mean is exact.
        yield mean_ns * (2 - made / usual)


def _times(judged: Sequence[ProcessReport]) -> Figures:
    found: Counter[tuple[DeltaKind, str]] = Counter()
    for process in judged:
        for state, time_ns in process.budget_ns.items():
            found[DeltaKind.STATE, state.replace("_", " ")] += time_ns
        if process.time_tree is not None:
            for node in process.time_tree.children:
                _add_node(node, found, 0)
    return found


def _add_node(node: TimeNode, found: Counter[tuple[DeltaKind, str]], depth: int) -> None:
    if node.where is not None and (node.state == _LINE or not node.children):
        found[DeltaKind.LINE, describe_where(node.where)] += node.time_ns
    if depth and node.state != _LINE:
        # The name of what it waited for, without numbers, which differ between runs.
        phrase = PHRASES.get(node.state)
        name = phrase.name if phrase else node.state.replace("_", " ")
        if depth == 1:
            who = f": {_who(node.who)}" if node.who else ""
            found[DeltaKind.CAUSE, f"{name}{who}"] += node.time_ns
    for child in node.children:
        _add_node(child, found, depth + 1)


def _who(who: Who) -> str:
    function = f", in {who.function.strip()}" if who.function.strip() else ""
    return printable(f"{_NUMBER.sub('', who.comm) or '?'}{function}")


def _memory(document: Document) -> Iterator[tuple[tuple[DeltaKind, str], float]]:
    for row in document.memory:
        of = f"device {row.device}"
        parts: Mapping[str, int | None] = {
            "peak": row.peak_bytes,
            "in use in the end": row.live_bytes,
            "reserved": row.reserved_bytes,
            "stuck between blocks": row.stuck_bytes,
            "free, can be released": row.whole_free_bytes,
            "free, kept by private pools": row.pooled_bytes or None,
            "largest hole": row.largest_hole_bytes,
        }
        for name, size in parts.items():
            if size is not None:
                yield (DeltaKind.MEMORY, f"{of}: {name}"), size
        sizes: Counter[str] = Counter()
        for one in row.holders:
            frame = Frame(
                kind=FrameType.PYTHON, function=one.function, file=one.file, line=one.line
            )
            sizes[describe_place(frame)] += one.size_bytes
        for where, size in sizes.items():
            yield (DeltaKind.MEMORY_LINE, f"{of}: {where}"), size
        files: Counter[str] = Counter()
        for one in row.end_holders:
            if one.file:
                files[printable(one.file)] += one.size_bytes
        for name, size in files.items():
            yield (DeltaKind.MEMORY_FILE, f"{of}: {name}"), size
    for balance in document.balances:
        held = balance.allocated_bytes - balance.freed_bytes
        name = printable(balance.process.comm)
        yield (DeltaKind.MEMORY, f"{name}: allocated and not freed"), held

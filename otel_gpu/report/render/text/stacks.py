"""Top stacks as text: each with its sums, followed by its frames."""

from collections import Counter

from rich.console import Console
from rich.text import Text

from otel_gpu.report.document import Frame, FrameType
from otel_gpu.report.stacks.diff import Change, StackDiff
from otel_gpu.report.stacks.intervals import ON_CPU
from otel_gpu.report.stacks.top_stacks import (
    CALLED,
    CPU,
    GRAPHS,
    MEMORY,
    WALL,
    StackMeasure,
    StackReport,
    StackRow,
)
from otel_gpu.report.wording.formats import (
    count_of,
    cut_frames,
    format_duration,
    format_share,
    format_size,
    frame_line,
    printable,
    process_name,
    thread_name,
)

MAX_FRAMES = 24
_WAITS = "Shorter waits are not listed, and threads that had nothing to do waited too."


def write_stacks(report: StackReport, console: Console, limit: int) -> None:
    """Write the first stacks of a report."""
    length_ns = report.end_unix_ns - report.start_unix_ns
    _line(console, f"{printable(report.source)}: {format_duration(length_ns)}", style="bold")
    _line(console, coverage(report))
    total = report.total()
    shown = Counter(map(_alike_key, report.rows[:limit]))
    for number, row in enumerate(report.rows[:limit], start=1):
        console.print()
        _line(console, f"{number}. {_describe(row, report, total)}", style="bold")
        # Two calls in one function look the same without their offsets.
        has_twin = shown[_alike_key(row)] > 1
        for frame in cut_frames(row.stack.frames, MAX_FRAMES):
            _line(console, f"     {_frame(frame, has_twin)}")
        if not (stack := row.stack).complete:
            _line(console, f"     … incomplete: native {stack.native}, python {stack.python} …")
    if left_out := report.rows[limit:]:
        console.print()
        share = format_share(sum(row.measure(report.by) for row in left_out) / (total or 1))
        _line(console, f"and {count_of(len(left_out), 'stack')} more: {share} of the {report.by}")
    console.print()
    _write_end(report, console)


def _write_end(report: StackReport, console: Console) -> None:
    if report.losses:
        lost = ", ".join(f"{printable(name)} {count:,}" for name, count in report.losses.items())
        _line(console, f"lost: {lost}")
    for note in report.notes:
        _line(console, f"- {printable(note)}")


def _alike_key(row: StackRow) -> tuple[object, ...]:
    frames = cut_frames(row.stack.frames, MAX_FRAMES)
    return (row.process.pid, row.name, *map(frame_line, frames))


def _frame(frame: Frame, has_twin: bool) -> str:
    line = frame_line(frame)
    if (
        has_twin
        and frame.kind == FrameType.NATIVE
        and frame.function
        and frame.address
        and not frame.file
    ):
        return f"{line.removesuffix(')')}+{frame.address:#x})"
    return line


def _line(console: Console, text: str, style: str = "") -> None:
    # Not wrapped: a frame is a line.
    console.print(Text(text, style=style), soft_wrap=True)


def write_difference(diff: StackDiff, console: Console, limit: int) -> None:
    """Write the frames whose share changed, and what both sides cover."""
    for mark, report in zip("AB", (diff.before, diff.after), strict=True):
        length_ns = report.end_unix_ns - report.start_unix_ns
        name = f"{mark}: {printable(report.source)}: {format_duration(length_ns)}"
        _line(console, name, style="bold")
        _line(console, coverage(report))
        _write_end(report, console)
    console.print()
    _line(console, f"Share of {diff.after.title} through each frame, in A and B:", style="bold")
    changes = [change for change in diff.by_frame() if change.change]
    for change in changes[:limit]:
        _line(console, f"  {describe_change(change)}  {change.frames[0].text}")
    if left_out := len(changes[limit:]):
        _line(console, f"and {count_of(left_out, 'frame')} more that changed less")
    if not changes:
        _line(console, "  nothing changed")


def describe_change(change: Change) -> str:
    """Return both shares, and the difference in percentage points."""
    return f"{change.before:6.1%} → {change.after:6.1%} ({change.change * 100:+.1f})"


def coverage(report: StackReport) -> str:
    """Return what the stacks cover, and how many calls have none."""
    if report.kind in GRAPHS:
        return _coverage_of_time(report)
    if report.kind in MEMORY:
        return _coverage_of_memory(report)
    unit = "calls" if report.kind == CALLED else "waits"
    text = f"Of {unit} that became spans: {report.seen:,} with a stack, {report.without_stack:,} without"
    if report.kind != CALLED:
        return f"{text}. {_WAITS}"
    if report.stand_for != report.seen:
        text += (
            f"; sampled ones count as often as they were sampled from, so these stand for "
            f"{count_of(report.stand_for, 'call')}"
        )
    if report.counted is not None:
        text += f". Counted: {count_of(report.counted, 'call')}"
    return text + "."


def _coverage_of_time(report: StackReport) -> str:
    sentences = []
    if report.kind in (CPU, WALL):
        text = (
            f"{count_of(report.samples, 'sample')} of threads on CPUs, which stand for "
            f"{format_duration(report.on_cpu_ns)}"
        )
        if report.counted_on_cpu_ns is not None:
            text += f"; counted: {format_duration(report.counted_on_cpu_ns)}"
        sentences.append(f"{text}. Shares are estimates.")
    if report.kind != CPU:
        waits = report.seen - report.samples
        sentences.append(f"Waits that became spans: {waits:,}. {_WAITS}")
    if report.without_stack:
        sentences.append(f"{report.without_stack:,} without a stack are drawn as such.")
    return " ".join(sentences)


def _coverage_of_memory(report: StackReport) -> str:
    total = report.total()
    known = sum(row.size_bytes for row in report.rows if row.stack.id)
    share = format_share(known / (total or 1))
    return (
        f"{report.title[0].upper()}{report.title[1:]}: {format_size(total)}; "
        f"where {share} of it was allocated is known."
    )


def _describe(row: StackRow, report: StackReport, total: int) -> str:
    if report.kind in MEMORY:
        share = format_share(row.size_bytes / (total or 1))
        blocks = f" in {count_of(row.calls, 'block')}" if row.calls else ""
        return f"{format_size(row.size_bytes)} ({share}){blocks} of {row.name}, {process_name(row.process)}"
    unit = "call" if report.kind == CALLED else "sample" if row.name == ON_CPU else "wait"
    about = "" if row.seen == row.calls else "about "
    parts = [f"{about}{count_of(row.calls, unit)}", f"{about}{format_duration(row.time_ns)}"]
    if row.size_bytes or report.by == StackMeasure.BYTES:
        parts.append(f"{about}{format_size(row.size_bytes)}")
    if total:
        share = format_share(row.measure(report.by) / total)
        position = (
            0 if report.by == StackMeasure.CALLS else 2 if report.by == StackMeasure.BYTES else 1
        )
        parts[position] += f" ({share})"
    name = printable(row.name) or "unknown"
    owner = process_name(row.process)
    if row.thread is not None:
        owner += f", {thread_name(row.thread)}"
    return f"{name} of {owner}: {', '.join(parts)}"

"""The threads of a process at one time, as text: equal stacks once."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from otel_gpu.report.stacks.thread_dump import (
    ThreadNow,
    ThreadsReport,
    group_threads,
)
from otel_gpu.report.wording.formats import (
    count_of,
    cut_frames,
    format_duration,
    frame_line,
    printable,
    shorten,
)
from otel_gpu.wire.thread_states import ThreadState

MAX_FRAMES = 24
_MAX_NAMED = 8
_WORDS = {ThreadState.ON_CPU: "on a CPU", ThreadState.BLOCKED: "blocked"}


def write_threads(report: ThreadsReport, console: Console) -> None:
    """Write all threads, those in CUDA calls first."""
    for pid, name in report.processes.items():
        threads = [thread for thread in report.threads if thread.pid == pid]
        took = format_duration(report.took_ns)
        title = f"{shorten(name)} ({pid}): {count_of(len(threads), 'thread')}, looked at in {took}"
        _line(console, f"{title}; none was stopped", style="bold")
        for group in group_threads(threads):
            _write_group(console, group)
        console.print()
    if report.unreadable:
        _line(console, f"- {count_of(report.unreadable, 'thread')} could not be read")
    for note in report.notes:
        _line(console, f"- {printable(note)}")


def _write_group(console: Console, group: Sequence[ThreadNow]) -> None:
    first = group[0]
    console.print()
    _line(console, f"{count_of(len(group), 'thread')} {_state(first)}{_calls(first)}", style="bold")
    for thread in group[:_MAX_NAMED]:
        _line(console, f"   {_thread(thread)}")
    if len(group) > _MAX_NAMED:
        _line(console, f"   and {count_of(len(group) - _MAX_NAMED, 'thread')} more")
    for function in first.kernel_functions:
        _line(console, f"     {printable(function)} (kernel)")
    if first.stack is None:
        _line(console, "     … its stack could not be read …")
        return
    for frame in cut_frames(first.stack.frames, MAX_FRAMES):
        _line(console, f"     {frame_line(frame)}")
    if not first.stack.complete:
        stack = first.stack
        _line(console, f"     … incomplete: native {stack.native}, python {stack.python} …")


def _state(thread: ThreadNow) -> str:
    words = _WORDS.get(thread.state, "waiting for a CPU")
    if thread.state == ThreadState.BLOCKED:
        words += f" ({printable(thread.reason.replace('_', ' '))})"
        if not thread.is_interruptible:
            words += ", which no signal ends"
    if thread.is_late:
        words += ", seen as of when it last entered the kernel"
    return words


def _calls(thread: ThreadNow) -> str:
    return f", in {' > '.join(map(printable, thread.calls))}" if thread.calls else ""


def _thread(thread: ThreadNow) -> str:
    title = f"{printable(thread.comm) or '?'} ({thread.tid})"
    if thread.time_in_state_ns is None:
        return title
    return f"{title} for {format_duration(thread.time_in_state_ns)}"


def _line(console: Console, text: str, style: str = "") -> None:
    # Not wrapped: a frame is a line.
    console.print(Text(text, style=style), soft_wrap=True)

"""The document as text: the most important parts first."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from otel_gpu.report.causes import worst_effect
from otel_gpu.report.document import (
    Chain,
    Document,
    ProcessReport,
    Program,
    key_of,
)
from otel_gpu.report.headline import headline_of
from otel_gpu.report.notes import reason_without_calls
from otel_gpu.report.render.fields import PROCESS, Field
from otel_gpu.report.render.text import tables
from otel_gpu.report.render.text.collectives import (
    MOST_COMMUNICATORS,
    MOST_RANKS,
    RANKS,
    headline,
    is_hanging,
)
from otel_gpu.report.render.text.devices import (
    advice_lines,
    detailed,
    device_overview,
    device_sections,
    gate_sections,
)
from otel_gpu.report.render.text.fitting import FittedTable
from otel_gpu.report.render.text.headline import headline_lines
from otel_gpu.report.render.text.incidents import (
    cause_lines,
    describe_effect,
    incident_heading,
    incident_lines,
)
from otel_gpu.report.render.text.memory import memory_sections
from otel_gpu.report.render.text.steps import step_lines
from otel_gpu.report.render.text.waterfall import LEGEND, draw_waterfall
from otel_gpu.report.time_tree import describe_bound, time_rows
from otel_gpu.report.wording.formats import (
    cut_frames,
    format_duration,
    format_share,
    format_time,
    frame_line,
    printable,
    process_name,
)
from otel_gpu.report.wording.sentences import (
    plain,
)
from otel_gpu.report.wording.shares import describe_shares
from otel_gpu.report.wording.short_names import cut_apart

_MAX_FRAMES = 12
_MAX_ROWS_OVER_TIME = 60


def write_text(
    document: Document,
    console: Console,
    *,
    per_process: bool = False,
    is_verbose: bool = False,
    section: str = "",
) -> None:
    """
    Write a document on a console.

    Args:
        document: The document.
        console: Where to.
        per_process: One part for each process.
        is_verbose: Also show low incidents and small causes.
        section: Only sections whose title begins with this, in any case; empty: all.

    Raises:
        ValueError: No section has such a title.
    """
    if not section:
        window = f"{format_duration(document.length_ns)} from {format_time(document.start_unix_ns)}"
        (source,) = cut_apart([f"{printable(document.source)}: {window} UTC"], console.width)
        console.print(Text(source, style="dim"), soft_wrap=True)
        for line in headline_lines(headline_of(document), console.width):
            console.print(line, soft_wrap=True)
    titles: list[str] = []
    is_found = False
    for title, lines in _sections(document, per_process=per_process, is_verbose=is_verbose):
        titles.append(title)
        if lines is None and not section:
            console.print(Text(f"\n== {title}", style="bold"))
        elif lines is not None and title.lower().startswith(section.lower()):
            is_found = True
            _write_section(console, title, lines)
    if not is_found:
        raise ValueError(f"no section {printable(section)!r}: this report has {', '.join(titles)}")


def _sections(
    document: Document, *, per_process: bool, is_verbose: bool
) -> Iterator[tuple[str, Iterable[RenderableType] | None]]:
    # Without lines, a title is the name of the process that the following sections are about.
    notes = [Text(f"- {printable(note)}") for note in document.notes]
    # For pure device traces, the problems of the trace come first.
    is_of_devices = not (_is_counted(document) or document.memory)
    if is_of_devices and notes:
        yield "Not known", notes
    if per_process and document.processes:
        for process in document.processes:
            yield process_name(process.process), None
            part = document.of_process(process.process)
            yield from _parts(part, process.process, is_verbose=is_verbose)
    else:
        yield from _parts(document, None, is_verbose=is_verbose)
    if document.load:
        yield "The host: context, no cause", map(Text, tables.load_lines(document.load))
    lost = ", ".join(f"{printable(reason)} {n:,}" for reason, n in sorted(document.losses.items()))
    yield "Losses", [Text(lost or "nothing was lost")]
    if not is_of_devices:
        yield "Not known", notes


def _is_counted(document: Document) -> bool:
    # Whether calls and threads were watched, even if there were none.
    return bool(
        document.processes or document.apis or reason_without_calls(document.notes) is not None
    )


def _parts(
    document: Document, process: Program | None, *, is_verbose: bool
) -> Iterator[tuple[str, Iterable[RenderableType]]]:
    yield from _device_parts(document)
    if not _is_counted(document) or (document.memory and not document.processes):
        # Allocators and profilers alone record no calls.
        return
    with_process = process is None and len(document.processes) > 1
    if document.judged:
        yield "Where the time went", _times(document)
    yield "Verdict", _verdicts(document)
    yield incident_heading(document), incident_lines(document, is_verbose=is_verbose)
    if document.steps:
        lines_of_steps = step_lines(document.steps, lambda step: cause_lines(step, None, "    "))
        yield "Steps", lines_of_steps
    if worst := worst_effect(document):
        yield "The worst moment", _moment(worst)
    sections: list[tuple[str, Sequence[Any], Sequence[Field], int]] = [
        ("Calls", document.apis, tables.CALLS, 25),
        ("Device time that the program measured", document.event_times, tables.EVENT_TIMES, 25),
        ("Device memory", document.balances, (), 1_000),
        ("Off the CPU", document.off_cpu, tables.OFF_CPU, 15),
        ("Who kept them waiting", document.culprit_times, tables.CULPRITS, 10),
    ]
    for title, rows, fields, most in sections:
        if rows:
            shown = (PROCESS, *fields) if with_process else fields
            lines = [Text(tables.balance_line(row)) for row in ([] if fields else rows[:most])]
            drawn = [tables.draw_table(shown, rows[:most])] if fields else lines
            yield title, [*drawn, *_more(len(rows), most)]
    if document.communicators:
        yield "Collectives", _communicators(document)
    if any(bucket.calls or bucket.lost_ns for bucket in document.buckets_of(process)):
        rows = document.over_time(process)
        table = tables.over_time_table(rows[:_MAX_ROWS_OVER_TIME], document.start_unix_ns)
        yield "Over time", [table, *_more(len(rows), _MAX_ROWS_OVER_TIME)]


def _communicators(document: Document) -> Iterator[RenderableType]:
    for row in document.communicators[:MOST_COMMUNICATORS]:
        yield Text(headline(row), style="bold red" if is_hanging(row) else "")
        if row.waiting:
            yield Text(f"  {printable(row.waiting)}")
        yield tables.draw_table(RANKS, row.ranks[:MOST_RANKS])
        yield from _more(len(row.ranks), MOST_RANKS)
    yield from _more(len(document.communicators), MOST_COMMUNICATORS)


def _device_parts(document: Document) -> Iterator[tuple[str, Iterable[RenderableType]]]:
    for row in document.memory:
        yield from memory_sections(row)
    yield from gate_sections(document.devices)
    if len(document.devices) > 1:
        yield device_overview(document.devices)
    for device in detailed(document.devices):
        yield from device_sections(device)
    if document.advice:
        yield "What to do", advice_lines(document.advice)


def _write_section(console: Console, title: str, lines: Iterable[RenderableType]) -> None:
    console.print()
    console.print(Text(title, style="bold"))
    for line in lines:
        if isinstance(line, Text | FittedTable):
            # A waterfall line that wrapped could not be read.
            for one in (line,) if isinstance(line, Text) else line.lines(console.width - 2):
                console.print(Text("  ").append_text(one), soft_wrap=True)
        else:
            console.print(Padding(line, (0, 0, 0, 2), expand=False))


def _times(document: Document) -> Iterator[Text]:
    for process in document.judged:
        total = format_duration(sum(process.budget_ns.values()))
        yield Text(f"{process_name(process.process)}: {total} of launching threads")
        for row in time_rows(process.time_tree):
            share, time = format_share(row.node.share), format_duration(row.node.time_ns)
            line = f"{share:>6} {time:>8}  {'   ' * row.depth}{plain(row.sentence)}"
            yield Text(line, style="" if row.depth else "bold")


def _verdicts(document: Document) -> list[Text]:
    lines: list[Text] = []
    # A verdict of a worker that never calls CUDA means nothing here.
    calling = {key_of(row.process) for row in document.apis}
    for process in sorted(document.processes, key=lambda process: not process.budget_ns):
        if process.budget_ns or key_of(process.process) in calling:
            lines += _verdict(process)
    return lines or [Text("No CUDA call in this window.")]


def _verdict(process: ProcessReport) -> Iterator[Text]:
    line = Text(f"{process_name(process.process)}: ")
    line.append(printable(process.verdict), style="bold" if process.budget_ns else "")
    line.append(describe_shares(process.verdict_shares))
    yield line
    for bound in process.verdict_bounds:
        if reason := plain(describe_bound(bound)):
            yield Text(f"  {printable(bound.name)}: {reason}")


def _moment(chain: Chain) -> list[Text]:
    bars, left_out = draw_waterfall(chain)
    stack = chain.effect.stack
    frames = cut_frames(stack.frames, _MAX_FRAMES) if stack else ()
    lines = [
        Text(describe_effect(chain.effect)),
        *(Text(f"  {frame_line(frame)}") for frame in frames),
        Text(f"from {format_time(chain.effect.start_unix_ns)} UTC; {LEGEND}", style="dim"),
        Text(f"{'at µs':>14}  {'for µs':>14}", style="dim"),
    ]
    for bar in bars:
        times = f"{bar.offset_ns / 1_000:>+14,.0f}  {bar.length_ns / 1_000:>14,.0f}"
        lines.append(Text(f"{times}  |{bar.drawn}|  {bar.label}"))
    if chain.unexplained_ns:
        lines.append(Text(f"unexplained: {format_duration(chain.unexplained_ns)}"))
    if left_out:
        lines.append(Text(f"{left_out:,} shorter intervals are not shown"))
    return lines


def _more(count: int, shown: int) -> list[Text]:
    return [Text(f"and {count - shown:,} more", style="dim")] if count > shown else []

"""The document as text: the most important parts first."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from otel_gpu.report.causes import rank_of, walk, worst_effect, worst_of
from otel_gpu.report.document import (
    COLLECTIVE,
    OWN_TIME,
    Cause,
    Chain,
    Document,
    Effect,
    EffectKind,
    Incident,
    ProcessReport,
    Program,
    Severity,
    key_of,
    stack_of_cause,
)
from otel_gpu.report.headline import headline_of
from otel_gpu.report.notes import NO_CALLS
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
from otel_gpu.report.render.text.headline import STYLES, headline_lines
from otel_gpu.report.render.text.memory import memory_sections
from otel_gpu.report.render.text.steps import step_lines
from otel_gpu.report.render.text.waterfall import LEGEND, draw_waterfall
from otel_gpu.report.steps import SlowStepRow
from otel_gpu.report.time_tree import describe_bound, time_rows
from otel_gpu.report.wording.formats import (
    count_of,
    cut_frames,
    describe_excess,
    describe_kind,
    describe_place,
    describe_resource,
    describe_thread,
    describe_trouble,
    format_duration,
    format_offset,
    format_share,
    format_time,
    frame_line,
    printable,
    process_name,
)
from otel_gpu.report.wording.sentences import (
    counts_of,
    lines_of,
    only_met_fault,
    plain,
    request_of,
    sentence_of,
)
from otel_gpu.report.wording.shares import SHOWN_SHARE, largest_first
from otel_gpu.report.wording.short_names import cut_apart

MAX_INCIDENTS = 10
_MAX_CAUSES = 6
_MAX_FRAMES = 12
_MAX_ROWS_OVER_TIME = 60


def write_text(document: Document, console: Console, *, per_process: bool = False) -> None:
    """Write a document on a console, or one part of it for each process."""
    window = f"{format_duration(document.length_ns)} from {format_time(document.start_unix_ns)}"
    (source,) = cut_apart([f"{printable(document.source)}: {window} UTC"], console.width)
    console.print(Text(source, style="dim"), soft_wrap=True)
    for line in headline_lines(headline_of(document), console.width):
        console.print(line, soft_wrap=True)
    notes = [Text(f"- {printable(note)}") for note in document.notes]
    # For pure device traces, the problems of the trace come first.
    is_of_devices = not (_is_counted(document) or document.memory)
    if is_of_devices and notes:
        _write_section(console, "Not known", notes)
    if per_process and document.processes:
        for process in document.processes:
            console.print(Text(f"\n== {process_name(process.process)}", style="bold"))
            part = document.of_process(process.process)
            _write_parts(part, console, process.process)
    else:
        _write_parts(document, console, None)
    if document.load:
        lines = tables.load_lines(document.load)
        _write_section(console, "The host meanwhile: context, no cause", map(Text, lines))
    lost = ", ".join(f"{printable(reason)} {n:,}" for reason, n in sorted(document.losses.items()))
    _write_section(console, "Losses", [Text(lost or "nothing was lost")])
    if not is_of_devices:
        _write_section(console, "Not known", notes)


def _is_counted(document: Document) -> bool:
    # Whether calls and threads were watched, even if there were none.
    return bool(document.processes or document.apis or NO_CALLS in document.notes)


def _write_parts(document: Document, console: Console, process: Program | None) -> None:
    _write_devices(document, console)
    if not _is_counted(document) or (document.memory and not document.processes):
        # Allocators and profilers alone record no calls.
        return
    with_process = process is None and len(document.processes) > 1
    if document.judged:
        _write_section(console, "Where the time went", _times(document))
    _write_section(console, "Verdict", _verdicts(document))
    _write_section(console, _incident_heading(document), _incidents(document))
    if document.steps:
        lines_of_steps = step_lines(document.steps, lambda step: _causes(step, None, "    "))
        _write_section(console, "Steps", lines_of_steps)
    if worst := worst_effect(document):
        _write_section(console, "The worst moment", _moment(worst))
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
            _write_section(console, title, [*drawn, *_more(len(rows), most)])
    if document.communicators:
        _write_section(console, "Collectives", _communicators(document))
    if any(bucket.calls or bucket.lost_ns for bucket in document.buckets_of(process)):
        rows = document.over_time(process)
        table = tables.over_time_table(rows[:_MAX_ROWS_OVER_TIME], document.start_unix_ns)
        _write_section(console, "Over time", [table, *_more(len(rows), _MAX_ROWS_OVER_TIME)])


def _communicators(document: Document) -> Iterator[RenderableType]:
    for row in document.communicators[:MOST_COMMUNICATORS]:
        yield Text(headline(row), style="bold red" if is_hanging(row) else "")
        if row.waiting:
            yield Text(f"  {printable(row.waiting)}")
        yield tables.draw_table(RANKS, row.ranks[:MOST_RANKS])
        yield from _more(len(row.ranks), MOST_RANKS)
    yield from _more(len(document.communicators), MOST_COMMUNICATORS)


def _write_devices(document: Document, console: Console) -> None:
    for row in document.memory:
        for title, lines in memory_sections(row):
            _write_section(console, title, lines)
    for title, gates in gate_sections(document.devices):
        _write_section(console, title, gates)
    if len(document.devices) > 1:
        _write_section(console, *device_overview(document.devices))
    for device in detailed(document.devices):
        for title, lines in device_sections(device):
            _write_section(console, title, lines)
    if document.advice:
        _write_section(console, "What to do", advice_lines(document.advice))


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
    if shares := largest_first(process.verdict_shares, SHOWN_SHARE):
        texts = (f"{printable(name)} {format_share(share)}" for name, share in shares)
        line.append(f" ({', '.join(texts)})")
    yield line
    for bound in process.verdict_bounds:
        if reason := plain(describe_bound(bound)):
            yield Text(f"  {printable(bound.name)}: {reason}")


def _incident_heading(document: Document) -> str:
    lost = format_duration(sum(incident.lost_ns for incident in document.incidents))
    return f"Incidents, the worst first: {lost} lost in all" if document.incidents else "Incidents"


def _incidents(document: Document) -> list[Text]:
    if not document.incidents:
        return [
            Text(
                "None: no call and no gap was far slower than usual, hung or failed, and nothing on the "
                "host took much of the time."
            )
        ]
    lines: list[Text] = []
    for number, incident in enumerate(document.incidents[:MAX_INCIDENTS], 1):
        lines += _incident(number, incident, document.start_unix_ns)
    return [*lines, *_more(len(document.incidents), MAX_INCIDENTS)]


def _incident(number: int, incident: Incident, origin_unix_ns: int) -> Iterator[Text]:
    count, worst = incident.effects, worst_of(incident.chains)
    line = Text(f"{number}. ")
    line.append(printable(incident.severity).upper(), style=style_of(incident.severity))
    processes = sorted(map(process_name, incident.processes))
    edges = (incident.start_unix_ns, incident.end_unix_ns)
    when = " to ".join(format_offset(unix_ns, origin_unix_ns) for unix_ns in edges)
    chronic = ", chronic" if incident.chronic else ""
    effects = f" in {count_of(count, 'effect')}" if count else ""
    lost = f"{format_duration(incident.lost_ns)} lost by {', '.join(processes)}"
    failures = [chain.failure for chain in incident.chains if chain.failure is not None]
    is_faulted = only_met_fault(incident)
    if failures:
        lost = f"memory ran out in {', '.join(processes)}"
    elif is_faulted:
        lost = f"error of the GPU of {', '.join(processes)}"
    yield line.append(f" {lost}{chronic}{effects}, {when}")
    yield from _why(incident)
    effect = worst.effect if worst else None
    if failures or is_faulted:
        # A failed request took no time: its sizes are shown instead.
        if failures:
            yield Text(f"   {plain(request_of(failures[-1]))}")
        yield Text(f"   <- {plain(sentence_of(incident))}")
        for advice in incident.advice:
            yield Text(f"   do: {printable(advice)}", style="green")
        return
    if count == 1 and effect:
        yield Text(f"   {describe_effect(effect)}")
    elif count:
        of = "" if count == len(incident.chains) else f" of the worst {len(incident.chains):,}"
        yield Text(f"   {_effect_counts(incident.chains)}{of}")
    yield from _causes(incident, effect, "   ", is_many=count != 1)
    if count > 1 and worst:
        yield Text(f"   worst: {describe_effect(worst.effect)}")
        yield from _causes(worst, effect, "     ")
    for advice in incident.advice:
        yield Text(f"   do: {printable(advice)}", style="green")


def _why(incident: Incident) -> Iterator[Text]:
    if incident.severity_reason:
        reason = f"{incident.severity.upper()}: {incident.severity_reason}"
        yield Text(f"   {printable(reason)}", style="dim")


def style_of(severity: Severity) -> str:
    """Return the style of a severity; none for an unknown one."""
    return [*STYLES.values(), ""][rank_of(severity)]


def _effect_counts(chains: Iterable[Chain]) -> str:
    counts = Counter(describe_kind(chain.effect) for chain in chains)
    return ", ".join(f"{count:,} x {kind}" for kind, count in largest_first(counts)[:_MAX_CAUSES])


def _causes(
    whole: Chain | Incident | SlowStepRow,
    effect: Effect | None,
    indent: str,
    *,
    is_many: bool = False,
) -> Iterator[Text]:
    for cause, _, depth in walk(whole.causes, most=_MAX_CAUSES):
        of = "of which " if depth else ""
        yield Text(f"{indent}{'   ' * depth}<- {of}{_cause(cause, effect)}")
    yield from _more(len(whole.causes), _MAX_CAUSES, indent)
    if unexplained_ns := whole.unexplained_ns:
        length_ns = 0 if is_many or effect is None else effect.duration_ns
        share = f" ({format_share(unexplained_ns / length_ns)})" if length_ns else ""
        yield Text(f"{indent}unexplained {format_duration(unexplained_ns)}{share}")


def _cause(cause: Cause, effect: Effect | None) -> str:
    if cause.is_counted:
        return f"{printable(cause.kind)} meanwhile, {counts_of(cause)}"
    text = f"{printable(cause.kind)} {format_duration(cause.time_ns)} ({format_share(cause.share)})"
    stack, lines = stack_of_cause(cause), plain(lines_of(cause))
    is_own = cause.kind in OWN_TIME
    if lines and is_own:
        text += lines
    elif stack and stack.place and not (effect and stack is effect.stack):
        text += f", in {describe_place(stack.place)}"
    if cause.resource and (name := describe_resource(cause.resource)):
        text += f", of {name}"
    if cause.trouble:
        text += f", {describe_trouble(cause.trouble)}"
    # The collective's name contains the ranks that did not call it.
    culprit = cause.culprit
    if culprit and not (cause.kind in COLLECTIVE and (cause.others or culprit.pid < 0)):
        text += f", by {describe_thread(culprit)}"
        if effect and culprit.pid == effect.process.pid:
            text += ", a thread of its own process"
    return text if is_own else f"{text}{lines}"


def describe_effect(effect: Effect) -> str:
    """Return an effect in a line."""
    place = effect.stack.place if effect.stack else None
    where = f", in {describe_place(place)}" if place else ""
    thread = process_name(effect.process)
    if not effect.duration_ns and effect.kind == EffectKind.DEVICE_FAULT:
        # It belongs to no thread, and took no time.
        return f"{describe_kind(effect)} of {thread}"
    if effect.tid > 0:
        thread += f", thread {effect.tid} {printable(effect.comm)}"
    lasted = f"{format_duration(effect.duration_ns)}, {describe_excess(effect)}"
    return f"{describe_kind(effect)} of {thread}{where}: {lasted}"


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


def _more(count: int, shown: int, indent: str = "") -> list[Text]:
    return [Text(f"{indent}and {count - shown:,} more", style="dim")] if count > shown else []

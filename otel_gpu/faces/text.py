"""The report as text: what an engineer wants to read first comes first."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from otel_gpu.enrich.activities import ProcessImage
from otel_gpu.enrich.stack_text import cut_frames, describe_place, frame_line
from otel_gpu.explain.chains import Cause, Chain, Effect, Incident, Verdict, stack_of_cause
from otel_gpu.faces import tables
from otel_gpu.faces.waterfall import LEGEND, draw_waterfall
from otel_gpu.findings.model import Report
from otel_gpu.findings.words import (
    count_of,
    describe_kind,
    describe_thread,
    format_duration,
    format_share,
    format_time,
    printable,
    process_name,
)

MAX_INCIDENTS = 10
MAX_APIS = 25
MAX_OFF_CPU = 15
MAX_BLAMES = 10
_MAX_CAUSES = 6
_MAX_FRAMES = 12
_SHOWN_SHARE = 0.005
_STYLES = {"high": "bold red", "medium": "yellow", "low": "dim"}
_RANK = {"high": 0, "medium": 1, "low": 2}


def write_text(report: Report, console: Console, *, per_process: bool = False) -> None:
    """
    Write a report.

    Args:
        report: What to write.
        console: Where to; colours and width are its own.
        per_process: One part for each process, rather than tables over all of them.
    """
    console.print(Text(_headline(report), style="bold"))
    if per_process and report.processes:
        for process in report.processes:
            console.print(Text(f"\n== {process_name(process)}", style="bold"))
            _write_parts(_report_of(report, process), console, process)
    else:
        _write_parts(report, console, None)
    if report.load:
        lines = [Text(line) for line in tables.load_lines(report.load)]
        _write_section(console, "The host meanwhile: context, no cause", lines)
    _write_section(console, "Losses", [Text(_losses(report))])
    notes = [Text(f"- {printable(note)}") for note in report.notes]
    _write_section(console, "Not known", notes)


def _write_parts(report: Report, console: Console, process: ProcessImage | None) -> None:
    with_process = process is None and len(report.processes) > 1
    _write_section(console, "Verdict", _verdicts(report))
    _write_section(console, _incident_heading(report), _incidents(report))
    if worst := _worst(report.chains):
        _write_section(console, "The worst moment", _moment(worst))
    if report.apis:
        table = tables.api_table(report.apis[:MAX_APIS], with_process=with_process)
        _write_section(console, "Calls", [table, *_more(len(report.apis), MAX_APIS)])
    if report.memory:
        lines = [Text(line) for line in tables.memory_lines(report.memory)]
        _write_section(console, "Device memory", lines)
    if report.off_cpu:
        table = tables.off_cpu_table(report.off_cpu[:MAX_OFF_CPU], with_process=with_process)
        more = _more(len(report.off_cpu), MAX_OFF_CPU)
        _write_section(console, "Off the CPU", [table, *more])
    if report.blames:
        table = tables.blame_table(report.blames[:MAX_BLAMES], with_process=with_process)
        more = _more(len(report.blames), MAX_BLAMES)
        _write_section(console, "Who kept them waiting", [table, *more])
    slots = [slot for slot in report.slots if slot.process is process]
    if any(slot.calls or slot.lost_ns for slot in slots):
        table = tables.slot_table(slots, report.start_unix_ns)
        _write_section(console, "Over time", [table])


def _write_section(console: Console, title: str, lines: Sequence[RenderableType]) -> None:
    console.print()
    console.print(Text(title, style="bold"))
    for line in lines:
        if isinstance(line, Text):
            # Not folded: half a waterfall below itself is none.
            console.print(Text("  ").append_text(line), soft_wrap=True)
        else:
            console.print(Padding(line, (0, 0, 0, 2), expand=False))


def _headline(report: Report) -> str:
    length_ns = report.end_unix_ns - report.start_unix_ns
    return (
        f"{printable(report.source)}: {format_duration(length_ns)} from "
        f"{format_time(report.start_unix_ns)} UTC"
    )


def _report_of(report: Report, process: ProcessImage) -> Report:
    key = _key_of(process)

    def is_its(other: ProcessImage) -> bool:
        return _key_of(other) == key

    return report._replace(
        processes=(process,),
        verdicts=tuple(v for v in report.verdicts if is_its(v.process)),
        apis=tuple(row for row in report.apis if is_its(row.process)),
        memory=tuple(row for row in report.memory if is_its(row.process)),
        incidents=tuple(
            incident
            for incident in report.incidents
            if any(is_its(chain.effect.process) for chain in incident.chains)
        ),
        chains=tuple(chain for chain in report.chains if is_its(chain.effect.process)),
        blames=tuple(row for row in report.blames if is_its(row.process)),
        off_cpu=tuple(row for row in report.off_cpu if is_its(row.process)),
    )


def _key_of(process: ProcessImage) -> tuple[int, int]:
    return process.pid, process.image_ktime_ns


def _verdicts(report: Report) -> list[Text]:
    lines: list[Text] = []
    judged = {_key_of(verdict.process) for verdict in report.verdicts}
    # A worker that never calls CUDA is bound by nothing that is asked for here.
    calling = {_key_of(row.process) for row in report.apis}
    for verdict in report.verdicts:
        lines += _verdict(verdict)
    lines += [
        Text(f"{process_name(process)}: unknown")
        for process in report.processes
        if _key_of(process) in calling - judged
    ]
    return lines or [Text("No CUDA call in this window.")]


def _verdict(verdict: Verdict) -> Iterator[Text]:
    line = Text(f"{process_name(verdict.process)}: ")
    line.append(printable(verdict.verdict), style="bold")
    ranked = sorted(verdict.shares.items(), key=lambda item: (-item[1], item[0]))
    if shown := [
        f"{printable(name)} {format_share(share)}"
        for name, share in ranked
        if share >= _SHOWN_SHARE
    ]:
        line.append(f" ({', '.join(shown)})")
    yield line
    total_ns = sum(verdict.budget_ns.values())
    if total_ns:
        states = sorted(verdict.budget_ns.items(), key=lambda item: (-item[1], item[0]))
        parts = [
            f"{printable(state)} {format_duration(time_ns)} ({format_share(time_ns / total_ns)})"
            for state, time_ns in states
            if time_ns >= _SHOWN_SHARE * total_ns
        ]
        yield Text(
            f"  {format_duration(total_ns)} of threads that feed the GPU: {', '.join(parts)}"
        )


def _incident_heading(report: Report) -> str:
    lost_ns = sum(incident.lost_ns for incident in report.incidents)
    if not report.incidents:
        return "Incidents"
    return f"Incidents, most lost time first: {format_duration(lost_ns)} lost in all"


def _incidents(report: Report) -> list[Text]:
    if not report.incidents:
        return [Text("None: no call and no gap was far slower than usual, hung or failed.")]
    lines: list[Text] = []
    for number, incident in enumerate(report.incidents[:MAX_INCIDENTS], 1):
        lines += _incident(number, incident, report.start_unix_ns)
    return [*lines, *_more(len(report.incidents), MAX_INCIDENTS)]


def _incident(number: int, incident: Incident, origin_unix_ns: int) -> Iterator[Text]:
    line = Text(f"{number}. ")
    line.append(printable(incident.severity).upper(), style=_STYLES.get(incident.severity, ""))
    count = incident.effects
    processes = sorted({process_name(chain.effect.process) for chain in incident.chains})
    line.append(
        f" {format_duration(incident.lost_ns)} lost by {', '.join(processes)} in "
        f"{count_of(count, 'effect')}, "
        f"{_offset(incident.start_unix_ns, origin_unix_ns)} to "
        f"{_offset(incident.end_unix_ns, origin_unix_ns)}"
    )
    yield line
    worst = _worst(incident.chains)
    effect = worst.effect if worst else None
    if count == 1 and effect:
        yield Text(f"   {describe_effect(effect)}")
    else:
        of = "" if count == len(incident.chains) else f" of the worst {len(incident.chains):,}"
        yield Text(f"   {_effect_counts(incident.chains)}{of}")
    yield from _causes(incident.causes, incident.unexplained_ns, effect, "   ", is_many=count > 1)
    if count > 1 and worst:
        yield Text(f"   worst: {describe_effect(worst.effect)}")
        yield from _causes(worst.causes, worst.unexplained_ns, worst.effect, "     ")
    for advice in incident.advice:
        yield Text(f"   do: {printable(advice)}", style="green")


def _effect_counts(chains: Iterable[Chain]) -> str:
    counts = Counter(describe_kind(chain.effect) for chain in chains)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count:,} x {kind}" for kind, count in ranked[:_MAX_CAUSES])


def _causes(
    causes: Sequence[Cause],
    unexplained_ns: int,
    effect: Effect | None,
    indent: str,
    *,
    is_many: bool = False,
) -> Iterator[Text]:
    for cause in causes[:_MAX_CAUSES]:
        yield Text(f"{indent}<- {_cause(cause, effect)}")
        yield from _via(cause.via, effect, indent + "   ")
    yield from _more(len(causes), _MAX_CAUSES, indent)
    if unexplained_ns:
        share = ""
        if effect and effect.duration_ns and not is_many:
            share = f" ({format_share(unexplained_ns / effect.duration_ns)})"
        yield Text(f"{indent}unexplained {format_duration(unexplained_ns)}{share}")


def _via(causes: Sequence[Cause], effect: Effect | None, indent: str) -> Iterator[Text]:
    for cause in causes[:_MAX_CAUSES]:
        yield Text(f"{indent}<- of which {_cause(cause, effect)}")
        yield from _via(cause.via, effect, indent + "   ")


def _cause(cause: Cause, effect: Effect | None) -> str:
    text = f"{printable(cause.kind)} {format_duration(cause.time_ns)} ({format_share(cause.share)})"
    stack = stack_of_cause(cause)
    if stack and stack.place and not (effect and stack is effect.stack):
        text += f", in {describe_place(stack.place)}"
    if cause.culprit:
        text += f", by {describe_thread(cause.culprit)}"
        if effect and cause.culprit.pid == effect.process.pid:
            text += ", a thread of its own process"
    return text


def describe_effect(effect: Effect) -> str:
    """One effect in a line."""
    place = effect.stack.place if effect.stack else None
    where = f", in {describe_place(place)}" if place else ""
    return (
        f"{describe_kind(effect)} of {process_name(effect.process)}, "
        f"thread {effect.tid} {printable(effect.comm)}{where}: "
        f"{format_duration(effect.duration_ns)}, "
        f"{format_duration(max(0, effect.excess_ns))} more than usual"
    )


def _worst(chains: Iterable[Chain]) -> Chain | None:
    return min(
        chains,
        key=lambda chain: (_RANK.get(chain.severity, 3), -chain.effect.excess_ns, chain.id),
        default=None,
    )


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
        offset, length = f"{bar.offset_ns / 1_000:+,.0f}", f"{bar.length_ns / 1_000:,.0f}"
        lines.append(Text(f"{offset:>14}  {length:>14}  |{bar.drawn}|  {bar.label}"))
    if chain.unexplained_ns:
        lines.append(Text(f"unexplained: {format_duration(chain.unexplained_ns)}"))
    if left_out:
        lines.append(Text(f"{left_out:,} shorter intervals are not shown"))
    return lines


def _losses(report: Report) -> str:
    if not report.losses:
        return "nothing was lost"
    return ", ".join(f"{printable(reason)} {n:,}" for reason, n in sorted(report.losses.items()))


def _offset(unix_ns: int, origin_unix_ns: int) -> str:
    return f"{(unix_ns - origin_unix_ns) / 1e9:+.3f} s"


def _more(count: int, shown: int, indent: str = "") -> list[Text]:
    return [Text(f"{indent}and {count - shown:,} more", style="dim")] if count > shown else []

"""
The screen of ``top``: a view drawn as lines that fit a terminal.

Readable without colour. Nothing that a traced program is called reaches the terminal as
anything but text.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rich.text import Text

from otel_gpu.faces.bars import draw_bar, draw_legend, name_shares
from otel_gpu.faces.call_table import draw_calls
from otel_gpu.faces.columns import Column, draw_columns
from otel_gpu.faces.fields import largest_first
from otel_gpu.faces.text import style_of
from otel_gpu.findings.causes import is_hosts_fault
from otel_gpu.findings.document import ImageKey, Incident, key_of
from otel_gpu.findings.open_calls import OpenCall
from otel_gpu.findings.view import IncidentLine, ProcessLine, View
from otel_gpu.findings.words import (
    describe_kind,
    describe_thread,
    format_duration,
    format_share,
    format_size,
    format_time,
    printable,
    short_process,
    shorten,
)

_VERDICTS = {"gpu-bound": "green", "unknown": "dim"}
_TALL, _WIDE = 30, 60


class Controls(NamedTuple):
    """What the operator chose; ``chosen`` is the process that is looked at, None all."""

    sort: str = "time"
    chosen: ImageKey | None = None
    is_paused: bool = False
    has_ended: bool = False
    has_keys: bool = False
    message: str = ""


def draw_screen(
    view: View, controls: Controls, *, source: str, width: int, height: int | None = None
) -> list[Text]:
    """
    Draw a view of a source in lines no wider than ``width`` cells, and as many as ``height``.

    Without a height, as many as are worth reading in a file.
    """
    shown = _choose(view, controls.chosen)
    parts = [
        _header(view, controls, source),
        _processes(view, controls, width, 20 if height is None else max(1, height // 6)),
        _incidents(shown, 10 if height is None else max(1, height // 10)),
        _open_calls(shown.open_calls, 10 if height is None else max(1, height // 12)),
    ]
    lines: list[Text] = []
    for part in parts:
        drawn = list(part)
        has_room = height is None or height >= _TALL
        lines += [*drawn, Text()] if drawn and has_room else drawn
    footer = list(_footer(controls))
    room = 40 if height is None else max(1, height - len(lines) - len(footer) - 2)
    several = len(view.processes) > 1 and controls.chosen is None
    lines += draw_calls(
        shown.apis, controls.sort, shown.interval_ns, width=width, room=room, with_process=several
    )
    if height is not None:
        rest = max(0, height - len(footer))
        lines = lines[:rest] + [Text()] * (rest - len(lines))
    lines += footer
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return lines[:height]


def _choose(view: View, chosen: ImageKey | None) -> View:
    if chosen is None:
        return view
    return view._replace(
        apis=tuple(line for line in view.apis if key_of(line.total.process) == chosen),
        incidents=tuple(
            line
            for line in view.incidents
            if any(key_of(chain.effect.process) == chosen for chain in line.incident.chains)
        ),
        open_calls=tuple(call for call in view.open_calls if key_of(call.process) == chosen),
    )


def _header(view: View, controls: Controls, source: str) -> Iterator[Text]:
    first = Text()
    first.append("otel-gpu top", style="bold")
    first.append(f"  {shorten(source)} on {shorten(view.host) or 'an unknown host'}")
    first.append(f"  {format_duration(view.age_ns)} captured")
    if controls.is_paused:
        first.append("  PAUSED", style="bold yellow")
    if controls.has_ended:
        first.append("  ENDED", style="bold yellow")
    first.append(f"  {format_time(view.now_unix_ns)[:19]} UTC", style="dim")
    yield first
    second = Text("records lost: ")
    if view.losses:
        reasons = largest_first(view.losses)
        words = ", ".join(f"{shorten(reason)} {count:,}" for reason, count in reasons)
        second.append(words, style="bold red")
    else:
        second.append("nothing", style="green")
    cpu_share, rss_bytes = view.agent
    uses = [] if cpu_share is None else [f"{cpu_share * 100:.1f} % CPU"]
    uses += [] if rss_bytes is None else [f"{format_size(rss_bytes)} RSS"]
    second.append(f"  agent: {', '.join(uses) or 'not known'}")
    if view.left_out:
        second.append(f"  no room for {view.left_out:,} figures", style="yellow")
    yield second


def _processes(view: View, controls: Controls, width: int, most: int) -> Iterator[Text]:
    if not view.processes:
        yield Text("No CUDA call was seen yet.")
        return
    lines = _around(view.processes, controls.chosen, most)
    bar_width = min(40, max(10, width // 4))

    def words(count: int) -> list[Text]:
        return [Text(name_shares(line.budget_ns, count)) for line in lines]

    columns = [
        Column("process", 0, [_process_cell(line, controls) for line in lines], is_left=True),
        Column("bound now", 1, [_verdict_cell(line.verdict_now) for line in lines], is_left=True),
        Column("since start", 3, [_verdict_cell(line.verdict) for line in lines], is_left=True),
        Column(
            "feeders' time" if width >= _WIDE else "time",
            2,
            [draw_bar(line.budget_ns, bar_width) for line in lines],
            is_left=True,
        ),
        Column("most of it", 5, words(1), is_left=True),
        Column("then", 6, [_without_first(line.budget_ns) for line in lines], is_left=True),
    ]
    yield from draw_columns(columns, width)
    if len(view.processes) > len(lines):
        yield Text(f"and {len(view.processes) - len(lines):,} more", style="dim")
    if legend := draw_legend([line.budget_ns for line in lines]):
        yield legend


def _around(
    lines: Sequence[ProcessLine], chosen: ImageKey | None, most: int
) -> Sequence[ProcessLine]:
    """Return as many as there is room for, the chosen one among them."""
    at = next((i for i, line in enumerate(lines) if key_of(line.process) == chosen), 0)
    start = max(0, at - most + 1)
    return lines[start : start + most]


def _process_cell(line: ProcessLine, controls: Controls) -> Text:
    is_chosen = key_of(line.process) == controls.chosen
    cell = Text("> " if is_chosen else "", style="reverse" if is_chosen else "")
    cell.append(short_process(line.process))
    if line.has_ended:
        cell.append(" ended", style="dim")
    return cell


def _verdict_cell(verdict: str) -> Text:
    return Text(printable(verdict), style=_VERDICTS.get(verdict, "yellow"))


def _without_first(budget_ns: Mapping[str, int]) -> Text:
    return Text(name_shares(budget_ns, 3).partition(", ")[2])


def _incidents(view: View, most: int) -> Iterator[Text]:
    if not view.incidents:
        if view.processes:
            yield Text("No incident: no call and no gap was far slower than usual.", style="dim")
        return
    forming = sum(line.is_forming for line in view.incidents)
    heading = Text("incidents", style="bold")
    heading.append(f"  {forming:,} forming, {len(view.incidents) - forming:,} over", style="dim")
    yield heading
    for line in view.incidents[:most]:
        yield from _incident(line, view.now_unix_ns)


def _incident(line: IncidentLine, now_unix_ns: int) -> Iterator[Text]:
    incident = line.incident
    style = style_of(incident.severity)
    text = Text(f"{printable(incident.severity).upper():6} ", style=style)
    text.append(f"{format_duration(incident.lost_ns)} lost", style="bold")
    ago = format_duration(max(0, now_unix_ns - incident.end_unix_ns))
    text.append(" now" if line.is_forming else f" {ago} ago")
    yield Text().append_text(text).append(f"  {_what(incident)}")
    second = Text(f"       <- {_whose(incident)}")
    if incident.advice:
        second.append(f"  {_brief(incident.advice[0])}", style="green")
    yield second


def _what(incident: Incident) -> str:
    worst = max(incident.chains, key=lambda chain: chain.effect.excess_ns, default=None)
    if worst is None:
        return ""
    times = f"{incident.effects:,} x " if incident.effects > 1 else ""
    return f"{times}{describe_kind(worst.effect)[:80]} in {short_process(worst.effect.process)}"


def _whose(incident: Incident) -> str:
    """Say what it is put down to, and whose doing that is."""
    if not incident.causes:
        return "unexplained"
    cause = incident.causes[0]
    words = f"{printable(cause.kind)} {format_share(cause.share)}"
    if cause.culprit is not None:
        return f"{words} by {describe_thread(cause.culprit)[:60]}"
    return f"{words}, the host's" if is_hosts_fault(cause.kind) else words


def _brief(advice: str) -> str:
    """Leave out what an advice explains before it says what to do."""
    return printable(advice.partition(". ")[2] or advice)


def _open_calls(calls: Sequence[OpenCall], most: int) -> Iterator[Text]:
    if not calls:
        return
    yield Text(f"calls that do not return: {len(calls):,}", style="bold red")
    for call in calls[:most]:
        yield Text(
            f"{format_duration(call.age_ns):>8}  {shorten(call.api)} in {short_process(call.process)}, "
            f"thread {call.tid} {shorten(call.comm)}"
        )


def _footer(controls: Controls) -> Iterator[Text]:
    if controls.message:
        yield Text(printable(controls.message), style="yellow")
    if controls.has_keys:
        chosen = "all" if controls.chosen is None else f"{controls.chosen[0]}"
        yield Text(
            f"q quit  p pause  s sort: {controls.sort}  up/down process: {chosen}", style="dim"
        )

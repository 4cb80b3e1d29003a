"""
The screen of ``top``: a view drawn as lines that fit a terminal.

It is readable without colour. Names of traced programs reach the terminal only as text.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rich.text import Text

from otel_gpu.report.causes import is_hosts_fault, path_of
from otel_gpu.report.document import Bound, Incident, ProcessKey, key_of
from otel_gpu.report.render.text.headline import style_of
from otel_gpu.report.render.top.bars import draw_bar, draw_legend, name_shares
from otel_gpu.report.render.top.call_table import draw_calls
from otel_gpu.report.render.top.columns import TopColumn, draw_columns
from otel_gpu.report.time_tree import TimeRow, largest_leaves
from otel_gpu.report.top.open_calls import OpenCallRow
from otel_gpu.report.top.screen import IncidentLine, ProcessLine, TopView
from otel_gpu.report.wording.formats import (
    describe_kind,
    describe_place,
    describe_thread,
    format_duration,
    format_share,
    format_size,
    format_time,
    printable,
    short_process,
    shorten,
)
from otel_gpu.report.wording.sentences import in_lines, plain
from otel_gpu.report.wording.shares import largest_first

_VERDICTS = {Bound.GPU: "green", Bound.UNKNOWN: "dim"}
_TALL, _WIDE = 36, 60
_MOST_LEAVES = 3


class Controls(NamedTuple):
    """The operator's choices; ``chosen`` is the shown process, None all."""

    sort: str = "time"
    chosen: ProcessKey | None = None
    is_paused: bool = False
    has_ended: bool = False
    has_keys: bool = False
    message: str = ""


def draw_screen(
    view: TopView, controls: Controls, *, source: str, width: int, height: int | None = None
) -> list[Text]:
    """
    Draw a view of a source in lines no wider than ``width`` cells, and as many as ``height``.

    Without a height, as many lines as make sense in a file.
    """
    shown = _choose(view, controls.chosen)
    parts = [
        _header(view, controls, source),
        _processes(
            view=view,
            controls=controls,
            width=width,
            most=20 if height is None else max(1, height // 6),
        ),
        _leaves(view, controls, 12 if height is None else max(0, height // 4 - 4)),
        _incidents(shown, 10 if height is None else max(1, height // 10)),
        _open_calls(shown.open_calls, 10 if height is None else max(1, height // 12)),
    ]
    lines: list[Text] = []
    for part in parts:
        drawn = list(part)
        has_space = height is None or height >= _TALL
        lines += [*drawn, Text()] if drawn and has_space else drawn
    footer = list(_footer(controls))
    space = 40 if height is None else max(1, height - len(lines) - len(footer) - 2)
    several = len(view.processes) > 1 and controls.chosen is None
    lines += draw_calls(
        shown.apis, controls.sort, shown.interval_ns, width=width, space=space, with_process=several
    )
    if height is not None:
        rest = max(0, height - len(footer))
        lines = lines[:rest] + [Text()] * (rest - len(lines))
    lines += footer
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return lines[:height]


def _choose(view: TopView, chosen: ProcessKey | None) -> TopView:
    if chosen is None:
        return view

    def lost(line: IncidentLine) -> bool:
        return chosen in map(key_of, line.incident.processes)

    return view._replace(
        apis=tuple(line for line in view.apis if key_of(line.total.process) == chosen),
        incidents=tuple(filter(lost, view.incidents)),
        open_calls=tuple(call for call in view.open_calls if key_of(call.process) == chosen),
    )


def _header(view: TopView, controls: Controls, source: str) -> Iterator[Text]:
    state = "  PAUSED" if controls.is_paused else ""
    yield Text.assemble(
        ("otel-gpu top", "bold"),
        f"  {shorten(source)} on {shorten(view.host) or 'an unknown host'}",
        f"  {format_duration(view.age_ns)} captured",
        (state + ("  ENDED" if controls.has_ended else ""), "bold yellow"),
        (f"  {format_time(view.now_unix_ns)[:19]} UTC", "dim"),
    )
    losses = (f"{shorten(reason)} {count:,}" for reason, count in largest_first(view.losses))
    cpu_share, rss_bytes = view.agent
    uses = [] if cpu_share is None else [f"{cpu_share * 100:.1f} % CPU"]
    uses += [] if rss_bytes is None else [f"{format_size(rss_bytes)} RSS"]
    yield Text.assemble(
        "records lost: ",
        (", ".join(losses), "bold red") if view.losses else ("nothing", "green"),
        f"  agent: {', '.join(uses) or 'not known'}",
        (f"  no room for {view.left_out:,} figures" if view.left_out else "", "yellow"),
    )


def _processes(view: TopView, controls: Controls, width: int, most: int) -> Iterator[Text]:
    if not view.processes:
        if not view.open_calls:
            yield Text("No CUDA call was seen yet.")
        return
    # As many as fit, including the chosen one.
    keys = [key_of(line.process) for line in view.processes]
    start = max(0, (keys.index(controls.chosen) if controls.chosen in keys else 0) - most + 1)
    lines = view.processes[start : start + most]
    bar_width = min(40, max(10, width // 4))
    shown: dict[str, tuple[int, Callable[[ProcessLine], Text]]] = {
        "process": (0, lambda line: _process_cell(line, controls)),
        "bound now": (1, lambda line: _verdict_cell(line.verdict_now)),
        "since start": (3, lambda line: _verdict_cell(line.verdict)),
        "feeders' time" if width >= _WIDE else "time": (
            2,
            lambda line: draw_bar(line.budget_ns, bar_width),
        ),
        "most of it": (5, lambda line: Text(name_shares(line.budget_ns, 1))),
        "then": (6, lambda line: Text(name_shares(line.budget_ns, 3).partition(", ")[2])),
    }
    columns = [
        TopColumn(title, rank, list(map(draw, lines)), is_left=True)
        for title, (rank, draw) in shown.items()
    ]
    yield from draw_columns(columns, width)
    if len(view.processes) > len(lines):
        yield Text(f"and {len(view.processes) - len(lines):,} more", style="dim")
    if legend := draw_legend([line.budget_ns for line in lines]):
        yield legend


def _leaves(view: TopView, controls: Controls, most: int) -> Iterator[Text]:
    grown = [line for line in view.processes if line.time_tree]
    grown = [line for line in grown if controls.chosen in (None, key_of(line.process))]
    # Ended processes are shown only if no other is left.
    grown = [line for line in grown if not line.has_ended] or grown
    each = min(_MOST_LEAVES, max(1, most // max(1, len(grown))))
    for line in grown[:most]:
        of = f"{short_process(line.process)}: " if len(grown) > 1 else ""
        for path in largest_leaves(line.time_tree, each):
            yield _leaf(path, of)


def _leaf(path: tuple[TimeRow, ...], of: str) -> Text:
    state, *steps = path
    sentence = ", ".join(plain(row.sentence) for row in steps or path)
    share = format_share(path[-1].node.share)
    return Text.assemble(
        (f"{share:>6}", "bold"), f"  {of}{printable(state.node.state)}  ", sentence
    )


def _process_cell(line: ProcessLine, controls: Controls) -> Text:
    is_chosen = key_of(line.process) == controls.chosen
    cell = Text("> " if is_chosen else "", style="reverse" if is_chosen else "")
    cell.append(short_process(line.process))
    if line.has_ended:
        cell.append(" ended", style="dim")
    return cell


def _verdict_cell(verdict: Bound) -> Text:
    return Text(printable(verdict), style=_VERDICTS.get(verdict, "yellow"))


def _incidents(view: TopView, most: int) -> Iterator[Text]:
    if not view.incidents:
        if view.processes:
            yield Text(
                "No incident: nothing was far slower than usual, or took much of the time.",
                style="dim",
            )
        return
    forming = sum(line.is_forming for line in view.incidents)
    counts = f"  {forming:,} forming, {len(view.incidents) - forming:,} over"
    yield Text.assemble(("incidents", "bold"), (counts, "dim"))
    for line in view.incidents[:most]:
        yield from _incident(line, view.now_unix_ns)


def _incident(line: IncidentLine, now_unix_ns: int) -> Iterator[Text]:
    incident = line.incident
    ago = format_duration(max(0, now_unix_ns - incident.end_unix_ns))
    yield Text.assemble(
        (f"{printable(incident.severity).upper():6} ", style_of(incident.severity)),
        (f"{format_duration(incident.lost_ns)} lost", "bold"),
        f" now  {_what(incident)}" if line.is_forming else f" {ago} ago  {_what(incident)}",
    )
    advice = incident.advice[0] if incident.advice else ""
    # An advice's explanation before the instruction is omitted.
    brief = printable(advice.partition(". ")[2] or advice)
    yield Text.assemble(f"       <- {_owners(incident)}", (f"  {brief}" if advice else "", "green"))


def _what(incident: Incident) -> str:
    if incident.chronic:
        return f"chronic in {', '.join(map(short_process, incident.processes))}"
    worst = max(incident.chains, key=lambda chain: chain.effect.excess_ns, default=None)
    if worst is None:
        return ""
    times = f"{incident.effects:,} x " if incident.effects > 1 else ""
    return f"{times}{describe_kind(worst.effect)[:80]} in {short_process(worst.effect.process)}"


def _owners(incident: Incident) -> str:
    if not incident.causes:
        return "unexplained"
    cause = incident.causes[0]
    words = f"{printable(cause.kind)} {format_share(cause.share)}"
    where = plain(in_lines(path_of(cause)[-1].lines))
    if cause.culprit is not None:
        words += f" by {describe_thread(cause.culprit)[:60]}"
        words += f" and {len(cause.others):,} more" if cause.others else ""
    elif is_hosts_fault(cause.kind):
        words += ", the host's"
    return f"{words}, {where}" if where else words


def _open_calls(calls: Sequence[OpenCallRow], most: int) -> Iterator[Text]:
    if calls:
        yield Text(f"calls that do not return: {len(calls):,}", style="bold red")
    for call in calls[:most]:
        age = format_duration(call.age_ns)
        place = f" at {describe_place(call.place)}" if call.place else ""
        where = f"{shorten(call.api)} in {short_process(call.process)}{place}"
        thread = f"thread {call.tid} {shorten(call.comm)}"
        if call.began_before_capture:
            age, thread = f"≥ {age}", f"{thread}, began before the capture"
        yield Text(f"{age:>8}  {where}, {thread}")


def _footer(controls: Controls) -> Iterator[Text]:
    if controls.message:
        yield Text(printable(controls.message), style="yellow")
    if controls.has_keys:
        chosen = "all" if controls.chosen is None else controls.chosen[0]
        keys = f"q quit  p pause  s sort: {controls.sort}  up/down process: {chosen}"
        yield Text(keys, style="dim")

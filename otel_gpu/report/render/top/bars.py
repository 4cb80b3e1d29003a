"""
The time budget of launching threads as a stacked bar, readable without colour: each state has a
letter.
"""

from collections.abc import Mapping, Sequence

from rich.text import Text

from otel_gpu.report.document import TimeState
from otel_gpu.report.wording.formats import format_share
from otel_gpu.report.wording.shares import SHOWN_SHARE, largest_first

# The letter of a state, and its style.
_STYLES: Mapping[TimeState, tuple[str, str]] = {
    TimeState.GPU_WAIT: ("W", "black on green"),
    TimeState.API: ("A", "black on cyan"),
    TimeState.HOST: ("H", "white on blue"),
    TimeState.RUN_QUEUE: ("R", "white on red"),
    TimeState.LOCK: ("L", "black on magenta"),
    TimeState.GIL: ("G", "black on bright_magenta"),
    TimeState.IO: ("I", "black on yellow"),
    TimeState.IPC: ("C", "black on bright_yellow"),
    TimeState.SLEEP: ("S", "black on white"),
    TimeState.PAGING: ("P", "black on bright_red"),
    TimeState.STOPPED: ("T", "white on magenta"),
    TimeState.OTHER: ("o", "white on bright_black"),
}


def draw_bar(budget_ns: Mapping[TimeState, int], width: int) -> Text:
    """Draw a budget as ``width`` letters, states in their fixed order; empty without time."""
    bar = Text()
    total_ns = sum(budget_ns.get(state, 0) for state in _STYLES)
    if total_ns <= 0:
        return bar
    reached_ns = drawn = 0
    for state, (letter, style) in _STYLES.items():
        reached_ns += budget_ns.get(state, 0)
        end = round(reached_ns / total_ns * width)
        bar.append(letter * (end - drawn), style=style)
        drawn = end
    return bar


def draw_legend(budgets_ns: Sequence[Mapping[TimeState, int]]) -> Text:
    """Return the meaning of the letters, for the states in the budgets."""
    legend = Text()
    for state, (letter, style) in _STYLES.items():
        if any(budget_ns.get(state, 0) for budget_ns in budgets_ns):
            legend.append("  " if legend else "")
            legend.append(letter, style=style)
            legend.append(f" {state}", style="dim")
    return legend


def name_shares(budget_ns: Mapping[TimeState, int], most: int) -> str:
    """Return the longest states of a budget with their shares."""
    total_ns = sum(budget_ns.values())
    shown = largest_first(budget_ns, SHOWN_SHARE * total_ns)[:most] if total_ns > 0 else []
    return ", ".join(f"{state} {format_share(time_ns / total_ns)}" for state, time_ns in shown)

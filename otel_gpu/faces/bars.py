"""
The time budget as a stacked bar, readable without colour: each state has a letter.

The states are those of ``gpu.cuda.thread.time`` of threads that feed a GPU.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.text import Text

from otel_gpu.findings.words import format_share

_SHOWN_SHARE = 0.005


class _Look(NamedTuple):
    letter: str
    style: str


_LOOKS: Mapping[str, _Look] = {
    "gpu_wait": _Look("W", "black on green"),
    "api": _Look("A", "black on cyan"),
    "host": _Look("H", "white on blue"),
    "run_queue": _Look("R", "white on red"),
    "lock": _Look("L", "black on magenta"),
    "gil": _Look("G", "black on bright_magenta"),
    "io": _Look("I", "black on yellow"),
    "ipc": _Look("C", "black on bright_yellow"),
    "sleep": _Look("S", "black on white"),
    "paging": _Look("P", "black on bright_red"),
    "other": _Look("o", "white on bright_black"),
}


def draw_bar(budget_ns: Mapping[str, int], width: int) -> Text:
    """Draw a budget as ``width`` letters, states in their fixed order; empty without time."""
    bar = Text()
    total_ns = sum(budget_ns.get(state, 0) for state in _LOOKS)
    if total_ns <= 0:
        return bar
    reached_ns = drawn = 0
    for state, look in _LOOKS.items():
        reached_ns += budget_ns.get(state, 0)
        end = round(reached_ns / total_ns * width)
        bar.append(look.letter * (end - drawn), style=look.style)
        drawn = end
    return bar


def draw_legend(budgets_ns: Sequence[Mapping[str, int]]) -> Text:
    """Say what the letters mean, of the states that there are."""
    legend = Text()
    for state, look in _LOOKS.items():
        if any(budget_ns.get(state, 0) for budget_ns in budgets_ns):
            legend.append("  " if legend else "")
            legend.append(look.letter, style=look.style)
            legend.append(f" {state}", style="dim")
    return legend


def name_shares(budget_ns: Mapping[str, int], most: int) -> str:
    """Name the longest states of a budget with their shares."""
    total_ns = sum(budget_ns.values())
    ranked = sorted(budget_ns.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(
        f"{state} {format_share(time_ns / total_ns)}"
        for state, time_ns in ranked[:most]
        if time_ns >= _SHOWN_SHARE * total_ns > 0
    )

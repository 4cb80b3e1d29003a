"""The answer on a terminal: few rows at any width."""

import textwrap

from rich.text import Text

from otel_gpu.report.document import Severity
from otel_gpu.report.headline import ADVICE, FAULT, PLACE, Headline
from otel_gpu.report.wording.formats import printable
from otel_gpu.report.wording.sentences import plain
from otel_gpu.report.wording.short_names import cut_apart

MOST_ROWS = 7
"""Rows of a terminal that the answer takes at most."""

STYLES = {Severity.HIGH: "bold red", Severity.MEDIUM: "yellow", Severity.LOW: "dim"}

_LABEL = 13
_LEAST_WIDTH = 40
_ROWS_OF_ADVICE = 2


def headline_lines(headline: Headline, width: int) -> list[Text]:
    """Lay out the answer; what does not fit is cut or left out, the least important parts first."""
    width = max(width, _LEAST_WIDTH)
    title = _title_rows(headline, width)
    titles = " ".join(row.plain.strip() for row in title)
    parts = [(line.label, plain(line.sentence)) for line in headline.lines]
    wrapped = {label: _wrapped(text, width - _LABEL) for label, text in parts}
    if PLACE in wrapped:
        wrapped[PLACE] = cut_apart([dict(parts)[PLACE]], width - _LABEL)
    if sum(map(len, wrapped.values())) > MOST_ROWS - len(title):
        # The title names the culprit, too.
        if dict(parts).get(FAULT, "").partition(",")[0] in titles:
            wrapped.pop(FAULT, None)
        if ADVICE in wrapped:
            wrapped[ADVICE] = _cut(wrapped[ADVICE], _ROWS_OF_ADVICE)
    rows = title
    for label, lines in wrapped.items():
        if len(rows) + len(lines) <= MOST_ROWS:
            style = "green" if label == ADVICE else ""
            rows += [
                Text(f"{'' if number else label:<{_LABEL}}", style="dim").append(line, style=style)
                for number, line in enumerate(lines)
            ]
    return rows


def _title_rows(headline: Headline, width: int) -> list[Text]:
    rows = []
    if headline.loss and headline.incident:
        severity = headline.incident.severity
        loss = f"{printable(severity).upper()}: {plain(headline.loss)}"
        rows = [Text(row, style=STYLES.get(severity, "")) for row in _wrapped(loss, width, "  ")]
    return rows + [Text(row, style="bold") for row in _wrapped(plain(headline.title), width, "  ")]


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _cut(rows: list[str], most: int) -> list[str]:
    if len(rows) <= most:
        return rows
    *whole, last = rows[:most]
    return [*whole, f"{last.rpartition(' ')[0]} …"]

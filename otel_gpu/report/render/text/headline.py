"""The answer on a terminal: few rows at any width."""

import re
import textwrap

from rich.text import Text

from otel_gpu.report.document import Severity
from otel_gpu.report.headline import ADVICE, FAULT, PLACE, Headline
from otel_gpu.report.wording.formats import printable
from otel_gpu.report.wording.sentences import plain
from otel_gpu.report.wording.short_names import cut_apart

MOST_ROWS = 7
"""Rows of a terminal that the answer takes at most."""

_STYLES = {Severity.HIGH: "bold red", Severity.MEDIUM: "yellow", Severity.LOW: "dim"}
_LABEL = 13
_LEAST_WIDTH = 40
_ROWS_OF_A_PART = 2
# A figure and its unit stay in one row.
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:[nµm]?s|%|[kMGTP]?B)(?!\w))")
_NO_BREAK = "\N{NO-BREAK SPACE}"


def headline_lines(headline: Headline, width: int) -> list[Text]:
    """Lay out the answer; what does not fit is cut or left out, the least important parts first."""
    width = max(width, _LEAST_WIDTH)
    title = _title_rows(headline, width)
    titles = " ".join(row.plain.strip() for row in title)
    texts = {line.label: plain(line.sentence) for line in headline.lines}
    wrapped = {label: _wrapped(text, width - _LABEL) for label, text in texts.items()}
    if PLACE in wrapped:
        wrapped[PLACE] = cut_apart([texts[PLACE]], width - _LABEL)
    left = MOST_ROWS - len(title)
    if sum(map(len, wrapped.values())) > left:
        if ADVICE in wrapped:
            wrapped[ADVICE] = _cut(wrapped[ADVICE])
        needed = sum(len(wrapped.get(label, ())) for label in (FAULT, PLACE, ADVICE))
        # The title names the culprit, too.
        if needed > left or texts.get(FAULT, "").partition(",")[0] in titles:
            wrapped.pop(FAULT, None)
    rows = title
    for label, lines in wrapped.items():
        if len(rows) + len(lines) <= MOST_ROWS:
            style = "green" if label == ADVICE else ""
            rows += [
                Text(f"{'' if number else label:<{_LABEL}}", style="dim").append(line, style=style)
                for number, line in enumerate(lines)
            ]
    return rows


def style_of(severity: Severity) -> str:
    """Return the style of a severity; none for an unknown one."""
    return _STYLES.get(severity, "")


def _title_rows(headline: Headline, width: int) -> list[Text]:
    rows = []
    if headline.loss and headline.incident:
        severity = headline.incident.severity
        loss = f"{printable(severity).upper()}: {plain(headline.loss)}"
        style = style_of(severity)
        rows = [Text(row, style=style) for row in _cut(_wrapped(loss, width, "  "))]
    title = _cut(_wrapped(plain(headline.title), width, "  "))
    return rows + [Text(row, style="bold") for row in title]


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    text = _BEFORE_UNIT.sub(_NO_BREAK, text)
    rows = textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)
    return [row.replace(_NO_BREAK, " ") for row in rows]


def _cut(rows: list[str]) -> list[str]:
    if len(rows) <= _ROWS_OF_A_PART:
        return rows
    *whole, last = rows[:_ROWS_OF_A_PART]
    last = _BEFORE_UNIT.sub(_NO_BREAK, last).rpartition(" ")[0]
    return [*whole, f"{last.replace(_NO_BREAK, ' ')} …"]

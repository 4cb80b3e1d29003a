"""Tables: sortable where the script runs, and readable where it does not."""

from collections.abc import Sequence
from typing import NamedTuple

from otel_gpu.faces.html.bars import block, drawing
from otel_gpu.faces.html.elements import Child, Markup, element, number

MOST_ROWS = 200
_FULL_WIDTH = 100.0


class Column(NamedTuple):
    """A heading; figures stand at the right, text at the left. What is not shown is left out."""

    heading: str
    is_text: bool = False
    about: str = ""
    is_shown: bool = True


class Cell(NamedTuple):
    """What a cell shows, and what it is sorted by: its text, where that is ``None``."""

    shown: Child
    value: float | None = None
    tone: str = ""


def table(
    about: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    *,
    ids: Sequence[str] = (),
    count: int = 0,
) -> Markup:
    """
    Make a table that scrolls by itself where it is too wide.

    Args:
        about: What it is, for those who do not see it.
        columns: Its headings.
        rows: A cell for each column; ``MOST_ROWS`` are enough of what has no end.
        ids: Of the rows, so that something can lead there.
        count: How many rows there would be; 0: as many as are given.
    """
    kept = [index for index, column in enumerate(columns) if column.is_shown]
    columns = [columns[index] for index in kept]
    rows = [[row[index] for index in kept] for row in rows]
    left_out = max(count - len(rows), 0)
    head = [
        element(
            "th",
            column.heading,
            scope="col",
            title=column.about or None,
            class_="text" if column.is_text else None,
        )
        for column in columns
    ]
    body = [
        element(
            "tr",
            [_cell(column, cell) for column, cell in zip(columns, row, strict=True)],
            id=ids[index] if ids else None,
        )
        for index, row in enumerate(rows)
    ]
    drawn = element(
        "table", element("thead", element("tr", head)), element("tbody", body), class_="sortable"
    )
    return element(
        "div",
        # What scrolls has to be reached by keyboard.
        element("div", drawn, class_="scroll", role="region", aria_label=about, tabindex="0"),
        element("p", f"{left_out:,} more are not shown.", class_="quiet") if left_out else None,
    )


def bar_of(tone: str, share: float) -> Markup:
    """A bar in a cell, as a share of the longest in its column."""
    return drawing("cell-bar", "", block(tone, 0.0, min(max(share, 0.0), 1.0) * _FULL_WIDTH))


def _cell(column: Column, cell: Cell) -> Markup:
    names = " ".join(filter(None, ("text" if column.is_text else "", cell.tone)))
    value = None if cell.value is None else number(cell.value)
    return element("td", cell.shown, class_=names or None, data_value=value)

"""Tables that omit columns, rather than cut them, in a narrow terminal."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import set_cell_size
from rich.text import Text

_GAP = 2


class TopColumn(NamedTuple):
    """A column. The highest ``rank`` is omitted first, 0 never; columns can share a ``group``."""

    title: str
    rank: int
    cells: Sequence[Text]
    is_left: bool = False
    group: str = ""


def draw_columns(columns: Sequence[TopColumn], width: int) -> list[Text]:
    """Draw groups, titles and rows; the columns of rank 0 can exceed the width."""
    kept = list(columns)
    titled = [(Text(column.title), *column.cells) for column in kept]
    sizes = [max(text.cell_len for text in texts) for texts in titled]
    while sum(sizes) + _GAP * (len(sizes) - 1) > width:
        worst = max(range(len(kept)), key=lambda at: kept[at].rank)
        if not kept[worst].rank:
            break
        del kept[worst], sizes[worst]
    titles = [Text(column.title, style="bold") for column in kept]
    lines = [_groups(kept, sizes)] if any(column.group for column in kept) else []
    rows = zip(*(column.cells for column in kept), strict=True)
    return [*lines, *(_line(cells, kept, sizes) for cells in (titles, *rows))]


def _line(cells: Sequence[Text], columns: Sequence[TopColumn], sizes: Sequence[int]) -> Text:
    line = Text()
    for number, (cell, column, size) in enumerate(zip(cells, columns, sizes, strict=True)):
        padding = Text(" " * (size - cell.cell_len))
        line.append(" " * _GAP if number else "")
        for part in (cell, padding) if column.is_left else (padding, cell):
            line.append_text(part)
    line.rstrip()
    return line


def _groups(columns: Sequence[TopColumn], sizes: Sequence[int]) -> Text:
    parts: list[str] = []
    sized = zip(columns, sizes, strict=True)
    for group, members in itertools.groupby(sized, lambda pair: pair[0].group):
        widths = [size for _, size in members]
        size = sum(widths) + _GAP * (len(widths) - 1)
        title = f" {group} " if group else ""
        filler = "-" if title else " "
        left = max(0, size - len(title)) // 2
        parts.append(set_cell_size(filler * left + title + filler * size, size))
    return Text((" " * _GAP).join(parts), style="dim")

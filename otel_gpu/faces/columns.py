"""Tables that give up columns, rather than cut them, where there is no room."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import set_cell_size
from rich.text import Text

_GAP = 2


class Column(NamedTuple):
    """A column. The highest ``rank`` is given up first, 0 never; columns may share a ``group``."""

    title: str
    rank: int
    cells: Sequence[Text]
    is_left: bool = False
    group: str = ""


def draw_columns(columns: Sequence[Column], width: int) -> list[Text]:
    """Draw groups, titles and rows; the columns of rank 0 may need more than the width."""
    kept = list(columns)
    sizes = [_size_of(column) for column in kept]
    while sum(sizes) + _GAP * (len(sizes) - 1) > width:
        worst = max(range(len(kept)), key=lambda at: kept[at].rank)
        if not kept[worst].rank:
            break
        del kept[worst], sizes[worst]
    titles = [Text(column.title, style="bold") for column in kept]
    lines = [_groups(kept, sizes)] if any(column.group for column in kept) else []
    lines.append(_line(titles, kept, sizes))
    lines += [
        _line([column.cells[row] for column in kept], kept, sizes)
        for row in range(len(kept[0].cells))
    ]
    return lines


def _size_of(column: Column) -> int:
    return max(text.cell_len for text in (Text(column.title), *column.cells))


def _line(cells: Sequence[Text], columns: Sequence[Column], sizes: Sequence[int]) -> Text:
    line = Text()
    for number, (cell, column, size) in enumerate(zip(cells, columns, sizes, strict=True)):
        padding = Text(" " * (size - cell.cell_len))
        line.append(" " * _GAP if number else "")
        for part in (cell, padding) if column.is_left else (padding, cell):
            line.append_text(part)
    line.rstrip()
    return line


def _groups(columns: Sequence[Column], sizes: Sequence[int]) -> Text:
    parts: list[str] = []
    at = 0
    while at < len(columns):
        end = at + 1
        while end < len(columns) and columns[end].group == columns[at].group:
            end += 1
        size = sum(sizes[at:end]) + _GAP * (end - at - 1)
        title = f" {columns[at].group} " if columns[at].group else ""
        filler = "-" if title else " "
        left = max(0, size - len(title)) // 2
        parts.append(set_cell_size(filler * left + title + filler * size, size))
        at = end
    return Text((" " * _GAP).join(parts), style="dim")

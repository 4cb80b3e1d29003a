"""
Tables that fit a terminal of any width.

If a table is too wide, empty columns go first, then texts are shortened, then columns are omitted.
Figures are never cut: a figure without its unit is wrong.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.text import Text

from otel_gpu.report.wording.short_names import cut_apart

LEAST_TEXT: Final = 16
"""Columns of text are not made narrower than this while another column can be omitted."""
_GAP = 2
_MOST_TEXTS = 2


class TextColumn(NamedTuple):
    """
    A column; the one of the highest rank is omitted first, and of equals the last one.

    ``is_whole``: Its texts are not cut, as those of bars.
    """

    heading: str
    cells: Sequence[Text]
    is_text: bool
    rank: int = 0
    is_whole: bool = False

    @property
    def size(self) -> int:
        """Its full width in cells of a terminal."""
        return max(map(cell_len, (self.heading, *(cell.plain for cell in self.cells))))

    @property
    def least(self) -> int:
        """Its minimal width."""
        return min(self.size, LEAST_TEXT) if self.is_text and not self.is_whole else self.size

    def fitted(self, size: int) -> "TextColumn":
        """Return it with its texts cut to a width; different texts stay different."""
        if size >= self.size:
            return self
        texts = cut_apart([cell.plain for cell in self.cells], size)
        (heading,) = cut_apart([self.heading], size)
        cells = [
            cell if cell.plain == text else Text(text, style=cell.style)
            for cell, text in zip(self.cells, texts, strict=True)
        ]
        return self._replace(heading=heading, cells=cells)


class FittedTable:
    """A table that fills the width of a line."""

    def __init__(self, columns: Sequence[TextColumn]) -> None:
        self.columns = tuple(columns)

    def fitted(self, width: int) -> tuple[TextColumn, ...]:
        """Return the columns as shown in a width."""
        kept = [*self.columns]
        if _width(column.size for column in kept) > width:
            kept = [one for one in kept if any(cell.plain for cell in one.cells)] or kept[:1]
        while _width(column.least for column in kept) > width and len(kept) > 1:
            del kept[_dispensable(kept)]
        sizes = [column.least for column in kept]
        spare = width - _width(sizes)
        # The remaining width goes to the columns that lack least, so that these are shown in full.
        by_lack = sorted(range(len(kept)), key=lambda at: kept[at].size - sizes[at])
        for number, at in enumerate(by_lack):
            given = min(kept[at].size - sizes[at], max(0, spare) // (len(by_lack) - number))
            sizes[at], spare = sizes[at] + given, spare - given
        if len(kept) == 1 and kept[0].is_text:
            sizes = [min(kept[0].size, width)]
        return tuple(column.fitted(size) for column, size in zip(kept, sizes, strict=True))

    def lines(self, width: int) -> Iterator[Text]:
        """Yield the headings and the rows."""
        columns = self.fitted(width)
        sizes = [column.size for column in columns]
        headings = [Text(column.heading, style="bold") for column in columns]
        for row in (headings, *zip(*(column.cells for column in columns), strict=True)):
            line = Text(no_wrap=True, overflow="ignore")
            for number, (cell, column, size) in enumerate(zip(row, columns, sizes, strict=True)):
                padding = " " * (size - cell.cell_len)
                line.append(" " * _GAP if number else "")
                if column.is_text:
                    line.append_text(cell).append(padding)
                else:
                    line.append(padding).append_text(cell)
            line.rstrip()
            yield line

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from self.lines(options.max_width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = min(options.max_width, _width(column.size for column in self.columns))
        return Measurement(width, width)


def _dispensable(columns: Sequence[TextColumn]) -> int:
    # The index of the column that is omitted first; never the first one, which names the row.
    highest = max(column.rank for column in columns[1:])
    others = [at for at in range(1, len(columns)) if columns[at].rank == highest]
    texts = [at for at in others if columns[at].is_text]
    figures = [at for at in others if not columns[at].is_text]
    of_text = len(texts) >= _MOST_TEXTS or not figures
    return texts[-1] if texts and of_text else figures[-1]


def _width(sizes: Iterable[int]) -> int:
    found: list[int] = [*sizes]
    return sum(found) + _GAP * (len(found) - 1)

"""
Run an SQL query on the flight recorder: one SELECT statement, which cannot write. Without one, list
the tables and views with their meaning; --schema adds their columns. Views, whose names begin with
v_, have names instead of numbers. Control characters are escaped, also in CSV, where text that a
spreadsheet would compute begins with an apostrophe; --json prints the values unchanged.
"""

import csv
import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from rich.table import Table
from rich.text import Text

from otel_gpu.cli.commands import Output, UsageError
from otel_gpu.cli.flight_recorder import store_path
from otel_gpu.config import Config
from otel_gpu.recorder.queries import MAX_ROWS, Answer, QueryLimits
from otel_gpu.recorder.reader import StoreReader
from otel_gpu.report.wording.formats import printable

CONFIG_FLAGS = ("store.path",)

_DEFAULTS = QueryLimits()
_MAX_TIME_S = 3_600.0
# A spreadsheet reads text that begins so as a formula.
_FORMULA = ("=", "+", "-", "@")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("sql", nargs="?", metavar="SQL", help="the query: one SELECT statement")
    parser.add_argument(
        "--schema", action="store_true", help="list tables, views and their columns"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON document")
    form.add_argument("--csv", action="store_true", help="print CSV, with a header line")
    parser.add_argument(
        "--time-limit-s",
        type=float,
        default=_DEFAULTS.time_s,
        metavar="SECONDS",
        help="stop the query after this long; default %(default)s",
    )
    parser.add_argument(
        "--row-limit",
        type=int,
        default=_DEFAULTS.rows,
        metavar="ROWS",
        help="print at most this many rows; default %(default)s",
    )


def run(args: Namespace, config: Config, out: Output) -> int:
    """Run the query, or list tables and views."""
    if args.sql is not None and args.schema:
        raise UsageError("--schema takes no query: leave out one of them")
    if not 0 < args.time_limit_s <= _MAX_TIME_S:
        raise UsageError(
            f"--time-limit-s must be above 0, and at most {_MAX_TIME_S:g}, not {args.time_limit_s:g}"
        )
    if not 0 < args.row_limit <= MAX_ROWS:
        raise UsageError(
            f"--row-limit must be above 0, and at most {MAX_ROWS:,}, not {args.row_limit:,}"
        )
    with StoreReader(Path(store_path(config))) as reader:
        if args.sql is None:
            answer = _describe(reader, with_columns=args.schema)
        else:
            limits = _DEFAULTS._replace(time_s=args.time_limit_s, rows=args.row_limit)
            answer = reader.execute(args.sql, limits)
    _write(answer, args, out)
    if answer.cut and not args.json:
        out.note(answer.cut)
    return 0


def _describe(reader: StoreReader, *, with_columns: bool) -> Answer:
    rows = reader.describe()
    if with_columns:
        return Answer(("table or view", "column", "meaning", "unit"), tuple(rows), "")
    found = tuple((name, meaning) for name, column, meaning, _ in rows if not column)
    return Answer(("table or view", "meaning"), found, "")


def _write(answer: Answer, args: Namespace, out: Output) -> None:
    if args.json:
        # A program reads JSON, so text is not escaped for terminals.
        rows = [[_plain(value) for value in row] for row in answer.rows]
        document = {"columns": list(answer.columns), "rows": rows, "cut": answer.cut}
        out.line(json.dumps(document, allow_nan=False))
        return
    if args.csv:
        writer = csv.writer(out.stdout, lineterminator="\n")
        writer.writerow(map(_cell, answer.columns))
        writer.writerows([_cell(value) for value in row] for row in answer.rows)
        return
    console = out.stdout_console
    if not console.is_terminal:
        for row in (answer.columns, *answer.rows):
            out.line("\t".join(map(_text, row)))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, column in enumerate(answer.columns):
        numeric = all(isinstance(row[place], int | float | None) for row in answer.rows)
        # Narrow columns fold texts. Figures are not folded: half a figure is a wrong one.
        least = max((len(_text(row[place])) for row in answer.rows), default=0) if numeric else None
        table.add_column(
            Text(_text(column)), justify="right" if numeric else "left", min_width=least
        )
    for row in answer.rows:
        table.add_row(*(Text(_text(value)) for value in row))
    console.print(table, crop=False)


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return None
    return value


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.hex()
    return printable(str(value))


def _cell(value: object) -> str:
    text = _text(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(_FORMULA) else text

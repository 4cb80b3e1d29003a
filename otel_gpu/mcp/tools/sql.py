"""``run_sql``: SQL queries of a store."""

from typing import Annotated

from pydantic import Field

from otel_gpu.mcp.answers import Listing, name_of, sanitize
from otel_gpu.mcp.arguments import rows
from otel_gpu.mcp.captures import ServedCapture
from otel_gpu.mcp.tool import Answer, tool
from otel_gpu.recorder.queries import QueryError, QueryLimits

_HINT = (
    "use one SELECT statement of SQLite, over a shorter time if it takes too long (seq is fastest); "
    "without sql, run_sql lists the tables"
)
# A user waits for the answer.
_LIMITS = QueryLimits(time_s=10.0, bytes=256 * 1024)
_MAX_SQL = 10_000


@tool("SQL")
def run_sql(
    capture: ServedCapture,
    sql: Annotated[str, Field(max_length=_MAX_SQL, description="The statement.")] = "",
    limit: Annotated[int, rows(1_000, "rows")] = 100,
) -> Answer:
    """
    One SELECT statement (SQLite) over the store, for questions that no other tool answers. It
    cannot write. Without sql: the tables and views. Views begin with v_ and have names and
    milliseconds; tables have numbers and nanoseconds. Tables of calls and stalls hold only the rows
    that were recorded individually: counts are in v_counts. 10 s and 256 kB at most. Needs a store;
    a recording has none.
    """
    if not sql:
        return _schema(capture)
    try:
        found = capture.ask(sql, _LIMITS._replace(rows=limit))
    except QueryError as error:
        # Its own hint is for the command line.
        raise QueryError(str(error), hint=_HINT) from error
    answered: list[object] = [list(row) for row in found.rows]
    columns = tuple(map(name_of, found.columns))
    return {"answer": Listing(answered, columns), "cut": sanitize(found.cut)}


def _schema(capture: ServedCapture) -> Answer:
    described = capture.describe()
    tables = [[name, meaning] for name, column, meaning, _ in described if not column]
    columns: dict[str, list[str]] = {}
    for name, column, _, unit in described:
        if column:
            columns.setdefault(name, []).append(f"{column} {unit}".strip())
    views = [[name, ", ".join(shown)] for name, shown in columns.items() if name.startswith("v_")]
    return {
        "tables_and_views": Listing(tables, ("name", "meaning")),
        "columns_of_views": Listing([[n, sanitize(c, 390)] for n, c in views], ("view", "columns")),
        "note": "schema_info(table_name, column_name, meaning, unit) holds every column",
    }

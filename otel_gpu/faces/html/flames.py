"""Flame graphs of a report, each with the stacks that weigh most in words."""

from otel_gpu.faces.flamegraph import draw_flamegraph, draw_key
from otel_gpu.faces.folded import fold
from otel_gpu.faces.html.elements import Child, Markup, element
from otel_gpu.faces.html.names import code_of, process_of
from otel_gpu.faces.html.stacks import stack_details
from otel_gpu.findings.top_stacks import CALLED, StackReport, StackRow
from otel_gpu.findings.words import count_of, format_duration, format_share

MOST_BOXES = 2_000
MOST_LISTED = 10


def flame_graph(report: StackReport) -> Markup | None:
    """
    Draw where the calls or the waits of a capture were; None where no stack weighs anything.

    Args:
        report: By time.
    """
    total_ns = report.total()
    if total_ns <= 0:
        return None
    is_calls = report.kind == CALLED
    folded = list(fold(report.rows, report.by))
    drawn = draw_flamegraph(folded, report.by, most=MOST_BOXES)
    rows = report.rows[:MOST_LISTED]
    left_out = len(report.rows) - len(rows)
    return element(
        "div",
        element("h3", "CUDA calls" if is_calls else "Waits of threads", class_="flame-title"),
        element("p", _coverage(report), class_="about"),
        element("div", Markup(drawn), class_="card flame"),
        Markup(draw_key(folded)),
        element(
            "details",
            element("summary", "The same in words"),
            element("ol", [element("li", _row(row, total_ns)) for row in rows], class_="plain"),
            _rest(report, rows, total_ns) if left_out else None,
        ),
        [element("p", note, class_="quiet") for note in report.notes],
    )


def _row(row: StackRow, total_ns: int) -> Markup:
    told: list[Child] = [
        element("b", format_share(row.time_ns / total_ns)),
        f" {format_duration(row.time_ns)} in {row.calls:,} \N{MULTIPLICATION SIGN} ",
        code_of(row.name or "unknown"),
        " of ",
        process_of(row.process),
    ]
    return stack_details(told, row.stack)


def _rest(report: StackReport, shown: tuple[StackRow, ...], total_ns: int) -> Markup:
    rest_ns = total_ns - sum(row.time_ns for row in shown)
    told = f"{count_of(len(report.rows) - len(shown), 'more stack')}: "
    return element("p", told, f"{format_share(rest_ns / total_ns)} of the time.", class_="quiet")


def _coverage(report: StackReport) -> str:
    is_one = report.seen == 1
    was, spans = ("was", "a span") if is_one else ("were", "spans")
    if report.kind != CALLED:
        return (
            f"Where {count_of(report.seen, 'wait')} {was} that became {spans}; "
            f"{report.without_stack:,} more have no stack, and shorter ones are not in it. Threads "
            "that had nothing to do waited too."
        )
    told = (
        f"Where {count_of(report.seen, 'call')} {was} made that became {spans}; "
        f"{report.without_stack:,} more have no stack."
    )
    if report.stand_for != report.seen:
        told += f" Sampled ones count for those that they stand for, {report.stand_for:,} in all."
    if report.counted is not None:
        told += f" Counted: {count_of(report.counted, 'call')}."
    return told

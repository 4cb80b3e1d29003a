"""The intervals that a chain rests on, with the ids that they have everywhere."""

from otel_gpu.explain.chains import Chain
from otel_gpu.faces.html.elements import Child, Markup, clip, element, join_with
from otel_gpu.faces.html.names import code_of, name_of, thread_of
from otel_gpu.faces.html.stacks import place_of_interval
from otel_gpu.faces.html.tables import Cell, Column, table
from otel_gpu.faces.waterfall import Interval, find_intervals, in_order_of_time
from otel_gpu.findings.words import count_of, format_duration

MOST_INTERVALS = 32
_ID_CHARACTERS = 48
_MOST_FUNCTIONS = 12
_NS_PER_US = 1e3
_COLUMNS = (
    Column("at µs"),
    Column("took"),
    Column("state", is_text=True),
    Column("cause", is_text=True),
    Column("who", is_text=True),
    Column("in the program", is_text=True),
    Column("kernel stack", is_text=True),
    Column("id", is_text=True),
)


def evidence_table(chain: Chain) -> Child:
    """Every measured interval behind an effect, closed until somebody asks for it."""
    intervals = sorted(find_intervals(chain), key=in_order_of_time)
    if not intervals:
        return None
    origin_unix_ns = chain.effect.start_unix_ns
    rows = [_row(interval, origin_unix_ns) for interval in intervals[:MOST_INTERVALS]]
    span_id = chain.effect.span_id.hex()
    return element(
        "details",
        element("summary", f"Evidence: {count_of(len(intervals), 'measured interval')}"),
        element(
            "p",
            "Effect ",
            element("code", clip(chain.id, _ID_CHARACTERS)),
            [", span ", element("code", span_id)] if span_id else None,
            class_="quiet",
        ),
        table("Evidence", _COLUMNS, rows, count=len(intervals)),
    )


def _row(interval: Interval, origin_unix_ns: int) -> tuple[Cell, ...]:
    evidence = interval.evidence
    offset_us = (evidence.start_unix_ns - origin_unix_ns) / _NS_PER_US
    return (
        Cell(f"{offset_us:+,.0f}", offset_us),
        Cell(format_duration(interval.length_ns), interval.length_ns),
        Cell(_state(interval)),
        Cell(name_of(interval.cause.kind)),
        Cell(_who(interval)),
        Cell(place_of_interval(evidence)),
        Cell(join_with(" ← ", map(code_of, evidence.functions[:_MOST_FUNCTIONS]))),
        Cell(element("code", clip(evidence.id, _ID_CHARACTERS))),
    )


def _state(interval: Interval) -> list[Child]:
    evidence = interval.evidence
    words = name_of(evidence.kind.replace("_", " "))
    return [words, ": ", name_of(evidence.reason)] if evidence.reason else [words]


def _who(interval: Interval) -> Markup:
    evidence = interval.evidence
    told: list[Child] = []
    if interval.thread:
        told.append(["of ", thread_of(interval.thread)])
    if evidence.is_cpu_idle:
        told.append("no thread had the CPU")
    if evidence.culprit and evidence.culprit != interval.thread:
        told.append(["because of ", thread_of(evidence.culprit)])
    if evidence.waker and evidence.waker != evidence.culprit:
        told.append(["woken by ", thread_of(evidence.waker)])
    return join_with(", ", told)

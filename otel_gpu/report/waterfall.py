"""The waterfall of one effect: what happened in it, to the microsecond."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from otel_gpu.enrich.stack_text import describe_place
from otel_gpu.explain.chains import Cause, Chain, Effect, Evidence
from otel_gpu.report.words import describe_kind, describe_thread, format_duration, printable

BAR_COLUMNS = 50
MAX_INTERVALS = 24
LEGEND = "# in a run queue   = blocked   + in a call   . in a gap   * in a fork   ? not seen"

_MARKS = {"run_queue": "#", "blocked": "=", "gap": ".", "call": "+", "fork": "*"}
_OTHER_MARK = "?"
# Where these were is said of the effect itself.
_KINDS_OF_EFFECTS = frozenset({"call", "gap"})
_FUNCTIONS = 3


class Bar(NamedTuple):
    """
    One line of a waterfall.

    ``offset_ns`` counts from the start of the effect, and is negative before it.
    ``drawn`` is as long as every other, and shows the part inside the effect.
    """

    offset_ns: int
    length_ns: int
    drawn: str
    label: str


def draw_waterfall(chain: Chain, *, most: int = MAX_INTERVALS) -> tuple[list[Bar], int]:
    """
    Draw an effect and the intervals that its causes rest on, in order of time.

    Returns:
        The lines, and how many intervals are left out: the shortest.
    """
    effect = chain.effect
    length_ns = effect.duration_ns
    bars = [Bar(0, length_ns, "-" * BAR_COLUMNS, describe_kind(effect))]
    found: dict[str, tuple[Evidence, int, Cause]] = {}
    for cause, depth in _walk(chain.causes, 0):
        for interval in cause.evidence:
            found.setdefault(interval.id, (interval, depth, cause))
    longest = sorted(
        found.values(), key=lambda item: (-_length(item[0]), item[0].start_unix_ns, item[0].id)
    )
    for interval, depth, cause in sorted(
        longest[:most], key=lambda item: (item[0].start_unix_ns, item[1], item[0].id)
    ):
        bars.append(
            Bar(
                interval.start_unix_ns - effect.start_unix_ns,
                _length(interval),
                _draw(effect, interval),
                "<- " * depth + _label(interval, cause),
            )
        )
    return bars, max(0, len(longest) - most)


def _walk(causes: Iterable[Cause], depth: int) -> Iterator[tuple[Cause, int]]:
    for cause in causes:
        yield cause, depth
        yield from _walk(cause.via, depth + 1)


def _length(interval: Evidence) -> int:
    return max(0, interval.end_unix_ns - interval.start_unix_ns)


def _draw(effect: Effect, interval: Evidence) -> str:
    length_ns = max(1, effect.duration_ns)
    start_ns = interval.start_unix_ns - effect.start_unix_ns
    end_ns = max(start_ns, interval.end_unix_ns - effect.start_unix_ns)
    first = min(max(start_ns * BAR_COLUMNS // length_ns, 0), BAR_COLUMNS - 1)
    last = min(max((end_ns - 1) * BAR_COLUMNS // length_ns, first), BAR_COLUMNS - 1)
    mark = _MARKS.get(interval.kind, _OTHER_MARK)
    bar = list(" " * first + mark * (last - first + 1) + " " * (BAR_COLUMNS - 1 - last))
    if start_ns < 0:
        bar[first] = "<"
    if end_ns > length_ns:
        bar[last] = ">"
    return "".join(bar)


def _label(interval: Evidence, cause: Cause) -> str:
    parts = [printable(cause.kind)]
    if interval.reason and interval.reason != cause.kind:
        parts[0] += f" ({printable(interval.reason)})"
    if len(cause.evidence) == 1 and cause.time_ns < _length(interval):
        parts[0] += f" for {format_duration(cause.time_ns)} of it"
    if interval.is_cpu_idle:
        parts.append("no thread had the CPU")
    if interval.culprit:
        # Only in a run queue is it known that the other one had the CPU.
        told = " had the CPU" if interval.kind == "run_queue" else ""
        parts.append(f"{describe_thread(interval.culprit)}{told}")
    if interval.waker and interval.waker != interval.culprit:
        parts.append(f"woken by {describe_thread(interval.waker)}")
    if interval.stack and interval.stack.place and interval.kind not in _KINDS_OF_EFFECTS:
        parts.append(f"at {describe_place(interval.stack.place)}")
    if interval.functions:
        parts.append("in " + " < ".join(map(printable, interval.functions[:_FUNCTIONS])))
    return ", ".join(parts)

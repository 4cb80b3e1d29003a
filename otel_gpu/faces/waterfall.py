"""The waterfall of one effect: what happened in it, to the microsecond."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from otel_gpu.enrich.stack_text import describe_place
from otel_gpu.explain.chains import Cause, Chain, Culprit, Effect, Evidence
from otel_gpu.findings.words import describe_kind, describe_thread, format_duration, printable

BAR_COLUMNS = 50
MAX_INTERVALS = 24
LEGEND = "# in a run queue   = blocked   + in a call   . in a gap   * in a fork   ? not seen"

_MARKS = {"run_queue": "#", "blocked": "=", "gap": ".", "call": "+", "fork": "*"}
# Also of time off the CPU of which it is not known which of the first two it was.
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


class Interval(NamedTuple):
    """
    Evidence, and the cause that rests on it.

    ``thread`` is whose it was, None for the effect's own; ``depth`` is how many threads
    were followed to find it.
    """

    evidence: Evidence
    cause: Cause
    thread: Culprit | None
    depth: int

    @property
    def length_ns(self) -> int:
        """How long it was; a clock may have stepped."""
        return max(0, self.evidence.end_unix_ns - self.evidence.start_unix_ns)


def find_intervals(chain: Chain) -> list[Interval]:
    """Return the intervals that the causes of an effect rest on, each once."""
    found: dict[str, Interval] = {}
    for cause, thread, depth in _walk(chain.causes, None, 0):
        for evidence in cause.evidence:
            found.setdefault(evidence.id, Interval(evidence, cause, thread, depth))
    return list(found.values())


def draw_waterfall(chain: Chain, *, most: int = MAX_INTERVALS) -> tuple[list[Bar], int]:
    """
    Draw an effect and the intervals that its causes rest on, in order of time.

    Returns:
        The lines, and how many intervals are left out: the shortest.
    """
    effect = chain.effect
    bars = [Bar(0, effect.duration_ns, "-" * BAR_COLUMNS, describe_kind(effect))]
    longest = sorted(
        find_intervals(chain),
        key=lambda one: (-one.length_ns, one.evidence.start_unix_ns, one.evidence.id),
    )
    for interval in sorted(longest[:most], key=in_order_of_time):
        evidence = interval.evidence
        bars.append(
            Bar(
                evidence.start_unix_ns - effect.start_unix_ns,
                interval.length_ns,
                _draw(effect, evidence),
                "<- " * interval.depth + _label(interval),
            )
        )
    return bars, max(0, len(longest) - most)


def in_order_of_time(interval: Interval) -> tuple[int, int, str]:
    """Sort key: of what begins together, the effect's own thread first."""
    return interval.evidence.start_unix_ns, interval.depth, interval.evidence.id


def _walk(
    causes: Iterable[Cause], thread: Culprit | None, depth: int
) -> Iterator[tuple[Cause, Culprit | None, int]]:
    for cause in causes:
        yield cause, thread, depth
        yield from _walk(cause.via, cause.culprit, depth + 1)


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


def _label(whole: Interval) -> str:
    interval, cause = whole.evidence, whole.cause
    parts = [printable(cause.kind)]
    if interval.reason and interval.reason != cause.kind:
        parts[0] += f" ({printable(interval.reason)})"
    if cause.time_ns < whole.length_ns:
        most = "" if len(cause.evidence) == 1 else "at most "
        parts[0] += f" for {most}{format_duration(cause.time_ns)} of it"
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

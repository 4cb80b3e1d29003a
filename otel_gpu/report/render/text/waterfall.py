"""The waterfall of one effect: its intervals, to the microsecond."""

from collections.abc import Mapping
from typing import NamedTuple

from otel_gpu.report.causes import Interval, find_intervals, in_order_of_time, longest_first
from otel_gpu.report.document import Chain, Effect, Evidence, EvidenceKind
from otel_gpu.report.wording.formats import (
    describe_kind,
    describe_place,
    format_duration,
    printable,
)
from otel_gpu.report.wording.sentences import circumstances, plain

BAR_COLUMNS = 50
MAX_INTERVALS = 24
LEGEND = (
    "# in a run queue   = blocked   + in a call   . in a gap   * in a fork   ! counted   ? not seen"
)

_MARKS: Mapping[EvidenceKind, str] = {
    EvidenceKind.RUN_QUEUE: "#",
    EvidenceKind.BLOCKED: "=",
    EvidenceKind.GAP: ".",
    EvidenceKind.CALL: "+",
    EvidenceKind.DEVICE: "+",
    EvidenceKind.FORK: "*",
    EvidenceKind.COUNTERS: "!",
}
# Also for time off the CPU with an unknown state.
_OTHER_MARK = "?"
_FUNCTIONS = 3


class WaterfallBar(NamedTuple):
    """A line; ``offset_ns`` counts from the effect's start, ``drawn`` is the part inside it."""

    offset_ns: int
    length_ns: int
    drawn: str
    label: str


def draw_waterfall(chain: Chain, *, most: int = MAX_INTERVALS) -> tuple[list[WaterfallBar], int]:
    """Return the bars of an effect in order of time, and the count of omitted shorter ones."""
    effect = chain.effect
    bars = [
        WaterfallBar(
            offset_ns=0,
            length_ns=effect.duration_ns,
            drawn="-" * BAR_COLUMNS,
            label=describe_kind(effect),
        )
    ]
    longest = longest_first(find_intervals(chain))
    for interval in sorted(longest[:most], key=in_order_of_time):
        evidence = interval.evidence
        offset_ns, label = evidence.start_unix_ns - effect.start_unix_ns, _label(interval)
        drawn = _draw(effect, evidence)
        bars.append(
            WaterfallBar(
                offset_ns=offset_ns,
                length_ns=interval.length_ns,
                drawn=drawn,
                label="<- " * interval.depth + label,
            )
        )
    return bars, max(0, len(longest) - most)


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


def _label(interval: Interval) -> str:
    evidence, cause = interval.evidence, interval.cause
    parts = [printable(cause.kind)]
    if evidence.reason and evidence.reason != cause.kind:
        parts[0] += f" ({printable(evidence.reason)})"
    if cause.time_ns < interval.length_ns and not cause.is_counted:
        most = "" if len(cause.evidence) == 1 else "at most "
        parts[0] += f" for {most}{format_duration(cause.time_ns)} of it"
    if interval.thread and interval.thread == evidence.culprit:
        # Without a culprit, the thread itself is named here.
        parts.append(plain((interval.thread,)))
    parts += map(plain, circumstances(interval))
    if interval.stack and interval.stack.place:
        parts.append(f"at {describe_place(interval.stack.place)}")
    if evidence.functions:
        parts.append("in " + " < ".join(map(printable, evidence.functions[:_FUNCTIONS])))
    return ", ".join(parts)

"""One effect, drawn to scale: what its thread did, and what those did that it waited for."""

from collections.abc import Iterable, Sequence

from otel_gpu.explain.chains import Chain, Culprit, Effect, Evidence
from otel_gpu.faces.html.bars import block, drawing
from otel_gpu.faces.html.elements import Child, Markup, element, join_with
from otel_gpu.faces.html.names import code_of, effect_of, name_of, process_of, thread_of
from otel_gpu.faces.html.sentences import label_of, tone_of
from otel_gpu.faces.html.stacks import place_of_interval
from otel_gpu.faces.waterfall import Interval, find_intervals, in_order_of_time
from otel_gpu.findings.words import count_of, format_duration, format_time

MOST_INTERVALS = 16
_SHOWN_SHARE = 0.002
_FUNCTIONS = 2
_EVERY_STACK = "schedule"
_TICKS = 4
_NS_PER_US = 1e3
_FULL_WIDTH = 100.0
# A mark of half a pixel is none.
_LEAST_WIDTH = 0.25
_NEARLY_ALL = 0.9


def waterfall(chain: Chain) -> Markup:
    """Draw an effect; offsets count from its start, to the microsecond."""
    effect = chain.effect
    shown, left_out = _choose(chain)
    own = [interval for interval in shown if interval.thread is None]
    rows = [_row_of_effect(effect, own), *(_row(effect, interval) for interval in own)]
    for thread in dict.fromkeys(one.thread for one in shown if one.thread is not None):
        rows.append(_heading(thread))
        rows += [_row(effect, interval) for interval in shown if interval.thread == thread]
    return element(
        "figure",
        element("figcaption", _caption(effect)),
        _axis(effect),
        element("ol", rows, class_="lanes"),
        _footnote(chain, left_out),
        class_="waterfall",
    )


def _choose(chain: Chain) -> tuple[list[Interval], int]:
    effect = chain.effect
    intervals = find_intervals(chain)

    def weight(interval: Interval) -> int:
        return min(_inside_ns(effect, interval.evidence), interval.cause.time_ns)

    heaviest = sorted(intervals, key=lambda one: (-weight(one), *in_order_of_time(one)))
    least_ns = _SHOWN_SHARE * effect.duration_ns
    shown = [one for one in heaviest[:MOST_INTERVALS] if weight(one) >= least_ns]
    # What was measured comes first; then that of which only the sum is known.
    shown.sort(key=lambda one: (_is_partial(effect, one), in_order_of_time(one)))
    return shown, len(intervals) - len(shown)


def _inside_ns(effect: Effect, interval: Evidence) -> int:
    end_unix_ns = min(interval.end_unix_ns, effect.start_unix_ns + effect.duration_ns)
    return max(0, end_unix_ns - max(interval.start_unix_ns, effect.start_unix_ns))


def _caption(effect: Effect) -> list[Child]:
    return [
        element("b", effect_of(effect)),
        " of ",
        process_of(effect.process),
        ", thread ",
        element("span", name_of(effect.comm), f" ({effect.tid})", class_="who"),
        f": {format_duration(effect.duration_ns)}",
        f", {format_duration(max(0, effect.excess_ns))} more than usual, from ",
        element("time", f"{format_time(effect.start_unix_ns)} UTC"),
    ]


def _axis(effect: Effect) -> Markup:
    ticks = [
        element("span", format_duration(effect.duration_ns * tick / _TICKS) if tick else "0")
        for tick in range(_TICKS + 1)
    ]
    return element(
        "div",
        element("span", class_="what"),
        element("div", ticks, class_="axis"),
        element("span", "at", class_="at"),
        element("span", "for", class_="for"),
        class_="scale",
        aria_hidden="true",
    )


def _row_of_effect(effect: Effect, own: Sequence[Interval]) -> Markup:
    blocks = [block("whole", 0.0, _FULL_WIDTH)]
    blocks += [
        _block(effect, interval)
        for interval in own
        if not _is_partial(effect, interval) and not _is_whole(effect, interval.evidence)
    ]
    told = element("span", effect_of(effect), class_="label")
    return _lane("effect", told, blocks, 0, effect.duration_ns)


def _row(effect: Effect, interval: Interval) -> Markup:
    evidence = interval.evidence
    offset_ns = evidence.start_unix_ns - effect.start_unix_ns
    kind = "of-another" if interval.thread else "own"
    return _lane(
        kind, _told(effect, interval), [_block(effect, interval)], offset_ns, interval.length_ns
    )


def _lane(
    kind: str, told: Child, blocks: Iterable[Markup], offset_ns: int, length_ns: int
) -> Markup:
    return element(
        "li",
        element("div", told, class_="what"),
        drawing("lane", "", list(blocks)),
        element("div", f"{offset_ns / _NS_PER_US:+,.0f} µs", class_="at"),
        element("div", f"{length_ns / _NS_PER_US:,.0f} µs", class_="for"),
        class_=kind,
    )


def _heading(thread: Culprit) -> Markup:
    return element("li", thread_of(thread), ", meanwhile", class_="thread")


def _block(effect: Effect, interval: Interval) -> Markup:
    whole_ns = max(1, effect.duration_ns)
    start_ns = interval.evidence.start_unix_ns - effect.start_unix_ns
    left = min(max(start_ns / whole_ns, 0.0), 1.0) * _FULL_WIDTH
    right = min(max((start_ns + interval.length_ns) / whole_ns, 0.0), 1.0) * _FULL_WIDTH
    left = min(left, _FULL_WIDTH - _LEAST_WIDTH)
    kind = "partial" if _is_partial(effect, interval) else ""
    return block(tone_of(interval.cause.kind), left, max(right - left, _LEAST_WIDTH), kind=kind)


def _is_partial(effect: Effect, interval: Interval) -> bool:
    """Whether only a part of what was measured is due to the cause, and where is not known."""
    return interval.cause.time_ns < _NEARLY_ALL * _inside_ns(effect, interval.evidence)


def _is_whole(effect: Effect, evidence: Evidence) -> bool:
    return evidence.kind in ("call", "gap") and evidence.start_unix_ns == effect.start_unix_ns


def _told(effect: Effect, interval: Interval) -> list[Child]:
    evidence, cause = interval.evidence, interval.cause
    details: list[Child] = []
    if _is_partial(effect, interval):
        most = "" if len(cause.evidence) == 1 else "at most "
        details.append(f"{most}{format_duration(cause.time_ns)} of this")
    if evidence.is_cpu_idle:
        details.append("no thread had the CPU")
    if evidence.culprit and evidence.culprit != interval.thread:
        # Only in a run queue is it known that the other one had the CPU.
        told = " had the CPU" if evidence.kind == "run_queue" else None
        details.append([thread_of(evidence.culprit), told])
    if evidence.waker and evidence.waker not in (evidence.culprit, interval.thread):
        details.append(["woken by ", thread_of(evidence.waker)])
    if place := place_of_interval(evidence):
        details.append(["at ", place])
    # That a thread gave the CPU away is what its stall says already.
    functions = [name for name in evidence.functions if name != _EVERY_STACK]
    if functions:
        names = map(code_of, functions[:_FUNCTIONS])
        details.append(["in ", join_with(" ← ", names)])
    return [
        element("span", label_of(cause.kind), class_="label"),
        " ",
        element("span", join_with(", ", details), class_="quiet") if details else None,
    ]


def _footnote(chain: Chain, left_out: int) -> Child:
    notes = []
    if chain.unexplained_ns:
        notes.append(f"Not explained: {format_duration(chain.unexplained_ns)}.")
    if left_out:
        are = "is" if left_out == 1 else "are"
        notes.append(f"{count_of(left_out, 'interval')} {are} too short to be drawn.")
    return element("p", " ".join(notes), class_="quiet") if notes else None

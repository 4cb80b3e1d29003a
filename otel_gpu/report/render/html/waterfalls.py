"""One effect, drawn to scale: intervals of its thread, and of the threads that it waited for."""

from collections.abc import Iterator
from typing import NamedTuple

from otel_gpu.report.causes import Interval, find_intervals, in_order_of_time
from otel_gpu.report.document import Chain, Culprit, Effect, Evidence, EvidenceKind
from otel_gpu.report.render.html.shapes import WIDTH, Rectangle, listed
from otel_gpu.report.render.html.tables import functions_of, place_of
from otel_gpu.report.wording.formats import count_of, format_duration
from otel_gpu.report.wording.phrases import tone_of
from otel_gpu.report.wording.sentences import circumstances, effect_parts, label_of

MOST_INTERVALS = 16
_SHOWN_SHARE = 0.002
_FUNCTIONS = 2
_EVERY_STACK = "schedule"
_NS_PER_US = 1e3
# Less than half a pixel is invisible.
_LEAST_WIDTH = 0.25
_NEARLY_ALL = 0.9


class Lane(NamedTuple):
    """A row of the drawing; one with a ``thread`` is only a heading."""

    kind: str
    label: object = ""
    details: tuple[object, ...] = ()
    blocks: tuple[Rectangle, ...] = ()
    offset: str = ""
    length: str = ""
    thread: Culprit | None = None


def waterfall(chain: Chain) -> tuple[list[Lane], list[str]]:
    """Draw an effect, with offsets from its start; also return notes on omitted parts."""
    effect = chain.effect
    intervals = find_intervals(chain)
    heaviest = sorted(intervals, key=lambda one: (-_weight(effect, one), *in_order_of_time(one)))
    least_ns = _SHOWN_SHARE * effect.duration_ns
    shown = [one for one in heaviest[:MOST_INTERVALS] if _weight(effect, one) >= least_ns]
    # Measured intervals come first; then those with only a known sum.
    shown.sort(key=lambda one: (_is_partial(effect, one), in_order_of_time(one)))
    notes = []
    if chain.unexplained_ns:
        notes.append(f"Not explained: {format_duration(chain.unexplained_ns)}.")
    if left_out := len(intervals) - len(shown):
        are = "is" if left_out == 1 else "are"
        notes.append(f"{count_of(left_out, 'interval')} {are} too short to be drawn.")
    return list(_lanes(effect, shown)), notes


def _lanes(effect: Effect, shown: list[Interval]) -> Iterator[Lane]:
    own = [one for one in shown if one.thread is None]
    blocks = [Rectangle("whole", 0.0, WIDTH)]
    for one in own:
        is_begin = one.evidence.start_unix_ns == effect.start_unix_ns
        is_whole = is_begin and one.evidence.kind in (EvidenceKind.CALL, EvidenceKind.GAP)
        if not is_whole and not _is_partial(effect, one):
            blocks.append(_block(effect, one))
    length = _micros(effect.duration_ns)
    yield Lane(
        kind="effect",
        label=effect_parts(effect),
        details=(),
        blocks=tuple(blocks),
        offset="+0 µs",
        length=length,
    )
    for one in own:
        yield _lane(effect, one)
    for thread in dict.fromkeys(one.thread for one in shown if one.thread is not None):
        yield Lane("thread", thread=thread)
        for one in shown:
            if one.thread == thread:
                yield _lane(effect, one)


def _lane(effect: Effect, one: Interval) -> Lane:
    offset_ns = one.evidence.start_unix_ns - effect.start_unix_ns
    kind, label = "of-another" if one.thread else "own", label_of(one.cause.kind)
    details, blocks = listed(_details(effect, one)), (_block(effect, one),)
    offset = f"{offset_ns / _NS_PER_US:+,.0f} µs"
    return Lane(
        kind=kind,
        label=label,
        details=details,
        blocks=blocks,
        offset=offset,
        length=_micros(one.length_ns),
    )


def _block(effect: Effect, interval: Interval) -> Rectangle:
    whole_ns = max(1, effect.duration_ns)
    start_ns = interval.evidence.start_unix_ns - effect.start_unix_ns
    left = min(max(start_ns / whole_ns, 0.0), 1.0) * WIDTH
    right = min(max((start_ns + interval.length_ns) / whole_ns, 0.0), 1.0) * WIDTH
    left = min(left, WIDTH - _LEAST_WIDTH)
    kind = "partial" if _is_partial(effect, interval) else ""
    tone = tone_of(interval.cause.kind)
    return Rectangle(tone, left, max(right - left, _LEAST_WIDTH), kind=kind)


def _details(effect: Effect, interval: Interval) -> Iterator[object]:
    evidence, cause = interval.evidence, interval.cause
    if _is_partial(effect, interval):
        most = "" if len(cause.evidence) == 1 else "at most "
        yield f"{most}{format_duration(cause.time_ns)} of this"
    yield from circumstances(interval)
    if place := place_of(interval):
        yield "at ", place
    # The stall already shows that the thread left the CPU.
    if functions := [name for name in evidence.functions if name != _EVERY_STACK]:
        yield "in ", functions_of(functions[:_FUNCTIONS])


def _weight(effect: Effect, interval: Interval) -> int:
    return min(_inside_ns(effect, interval.evidence), interval.cause.time_ns)


def _inside_ns(effect: Effect, interval: Evidence) -> int:
    end_unix_ns = min(interval.end_unix_ns, effect.start_unix_ns + effect.duration_ns)
    return max(0, end_unix_ns - max(interval.start_unix_ns, effect.start_unix_ns))


def _is_partial(effect: Effect, interval: Interval) -> bool:
    # Whether only a part of the interval, at an unknown place, is due to the cause.
    return interval.cause.time_ns < _NEARLY_ALL * _inside_ns(effect, interval.evidence)


def _micros(length_ns: int) -> str:
    return f"{length_ns / _NS_PER_US:,.0f} µs"

"""A comparison as text: the verdict first, then the differences."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from rich.console import Console, RenderableType
from rich.text import Text

from otel_gpu.report.comparison.comparison import (
    BYTES,
    REAL,
    Basis,
    Comparison,
    ComparisonOutcome,
    Delta,
    DeltaKind,
    Side,
)
from otel_gpu.report.render import fields
from otel_gpu.report.render.fields import Field
from otel_gpu.report.render.text.tables import draw_table
from otel_gpu.report.wording.formats import count_of, format_duration, format_size, printable
from otel_gpu.report.wording.short_names import short_names

MAX_ROWS = 10
_LEAST = 0.001
_BASES: Mapping[Basis, str] = {
    Basis.STEP: "step",
    Basis.WINDOW: "window",
    Basis.CALL: "CUDA call",
    Basis.NOTHING: "",
}
_TITLES: Mapping[DeltaKind, str] = {
    DeltaKind.PART: "who had the time of a {basis} (the first of these that was going on)",
    DeltaKind.PHASE: "what the device did per {basis}",
    DeltaKind.CAUSE: "what was waited for per {basis}",
    DeltaKind.STATE: "where the time of launching threads went, per {basis}",
    DeltaKind.KERNEL_KIND: "kernels, copies and fills by what they do, device time per {basis}",
    DeltaKind.KERNEL: "kernels, device time per {basis}",
    DeltaKind.OPERATION: "operators, host time per {basis} without those in them",
    DeltaKind.LINE: "lines and functions, time per {basis}",
    DeltaKind.MEMORY: "device memory",
    DeltaKind.MEMORY_LINE: "who held device memory at the peak",
    DeltaKind.MEMORY_FILE: "which files held device memory in the end",
    DeltaKind.SHARE: "shares of the whole time",
}
_COLOURS: Mapping[ComparisonOutcome, str] = {
    ComparisonOutcome.SLOWER: "bold red",
    ComparisonOutcome.FASTER: "bold green",
    ComparisonOutcome.NEUTRAL: "bold",
    ComparisonOutcome.NOT_COMPARABLE: "bold yellow",
}


def write_comparison(found: Comparison, console: Console) -> None:
    """Write a comparison."""
    for part in _parts(found):
        console.print(part, soft_wrap=isinstance(part, Text))


def headline(found: Comparison) -> str:
    """Return the result in one line."""
    a_ns, b_ns, change = found.a.mean_ns, found.b.mean_ns, found.change
    if change is None or a_ns is None or b_ns is None:
        has_time = found.a.times_ns or found.b.times_ns
        return "not comparable in time" if has_time else "neither says anything of time"
    basis = _BASES[found.a.basis]
    more = f"{_signed(b_ns - a_ns)} per {basis} ({_percent(change, '+')})"
    parts = "neutral: " if found.outcome is ComparisonOutcome.NEUTRAL else f"{found.outcome}: "
    return f"{parts}{more}, {_exact(a_ns)} → {_exact(b_ns)}"


def _parts(found: Comparison) -> Iterator[RenderableType]:
    yield Text(headline(found), style=_COLOURS[found.outcome])
    if found.noise is not None:
        yield Text(
            f"less than {_percent(max(found.noise, REAL))} is no change here{_medians(found)}"
        )
    for name, side in (("A", found.a), ("B", found.b)):
        yield Text(f"{name}: {_side(side)}")
    for reason in found.reasons:
        yield Text(
            f"note: {printable(reason)}" if found.comparable else f"why: {printable(reason)}"
        )
    for note in (*found.a.notes, *found.b.notes):
        yield Text(f"note: {printable(note)}")
    for kind in DeltaKind:
        rows = [one for one in found.of(kind) if _matters(one, found)]
        if rows:
            yield Text()
            yield Text(_TITLES[kind].format(basis=_BASES[found.a.basis]), style="bold")
            yield draw_table(_columns(kind, rows), rows[:MAX_ROWS])
            if len(rows) > MAX_ROWS:
                yield Text(f"and {len(rows) - MAX_ROWS:,} more")


def _matters(delta: Delta, found: Comparison) -> bool:
    if delta.kind in BYTES or delta.kind is DeltaKind.SHARE:
        return bool(delta.change)
    return abs(delta.change) >= _LEAST * (found.a.mean_ns or 0) and bool(delta.change)


def _medians(found: Comparison) -> str:
    a, b = found.a.median_ns, found.b.median_ns
    if found.a.basis is not Basis.STEP or a is None or b is None:
        return ""
    return f"; medians {_exact(a)} → {_exact(b)}"


def _side(side: Side) -> str:
    parts = [
        side.source,
        count_of(len(side.times_ns), "step") if side.basis is Basis.STEP else "",
        ", ".join(sorted({model for model in side.devices if model})),
        side.verdict,
    ]
    return printable(", ".join(one for one in parts if one))


def _exact(time_ns: float) -> str:
    # Four digits, so that a difference of a percent is visible.
    return f"{time_ns / 1e6:,.4g} ms" if time_ns >= 1e5 else format_duration(time_ns)  # noqa: PLR2004


def _signed(time_ns: float) -> str:
    return f"{'-' if time_ns < 0 else '+'}{_exact(abs(time_ns))}"


def _signed_size(size_bytes: float) -> str:
    return f"{'-' if size_bytes < 0 else '+'}{format_size(abs(size_bytes))}"


def _percent(share: float, sign: str = "") -> str:
    return f"{share * 100:{sign}.1f} %"


def _what(names: Mapping[str, str], delta: Delta) -> str:
    name = printable(delta.what.replace("_", " ") if delta.kind is DeltaKind.PART else delta.what)
    if delta.kind in (DeltaKind.KERNEL, DeltaKind.OPERATION):
        new, gone = not delta.a and delta.b, delta.a and not delta.b
        short = names[delta.what]
        return f"{printable(short)}{' (new)' if new else ' (gone)' if gone else ''}"
    return name


def _columns(kind: DeltaKind, rows: Sequence[Delta]) -> tuple[Field, ...]:
    names = short_names(one.what for one in rows)
    form: Callable[[float], str] = _exact
    signed: Callable[[float], str] = _signed
    if kind in BYTES:
        form, signed = format_size, _signed_size
    elif kind is DeltaKind.SHARE:
        form, signed = _percent, partial(_percent, sign="+")
    return (
        fields.text("", partial(_what, names)),
        fields.figure("A", "a", form),
        fields.figure("B", "b", form),
        fields.figure("change", "change", signed),
    )

"""
Advice on how a program uses a device.

Each advice is based on a figure of the trace, names its evidence, and gives an upper bound of the
share of the window that it can save. It never covers what a trace cannot show.
"""

from collections.abc import Iterator, Sequence

from otel_gpu.explain.kinds import Bound
from otel_gpu.explain.traces.device_use import DeviceUse
from otel_gpu.report.devices.loss_advice import RULES_OF_LOSS
from otel_gpu.report.devices.types import Advice, DeviceReport
from otel_gpu.report.devices.work_advice import RULES_OF_WORK
from otel_gpu.report.wording.formats import format_share

# A straggler is last in this share of at least this many collectives, and others waited for it this
# share of the window: of ranks that barely wait, one is last by chance.
_STRAGGLES, _MATCHED, _WAITED = 0.5, 10, 0.02


def advice_for(name: str, use: DeviceUse) -> Iterator[Advice]:
    """Yield advice for one device, with the id of its row; nothing without a verdict."""
    if use.verdict.verdict == Bound.UNKNOWN:
        return
    # The verdict's topic comes first: lost time, or else the device's work.
    is_busy = use.verdict.verdict == Bound.GPU
    ranked = ((*RULES_OF_LOSS, *RULES_OF_WORK),) if is_busy else (RULES_OF_LOSS, RULES_OF_WORK)
    for rules in ranked:
        found = [advice for rule in rules for advice in rule(name, use)]
        yield from sorted(found, key=lambda one: -(one.gain_at_most or 0.0))


def straggler_advice(rows: Sequence[DeviceReport]) -> Iterator[Advice]:
    """Yield advice on a rank for which the others wait."""
    for row in rows:
        one = row.collectives
        if one is None or one.matched < _MATCHED or one.last <= _STRAGGLES * one.matched:
            continue
        others = [other for other in rows if other.collectives and other is not row]
        shares = [other.collectives.waited_ns / max(1, other.window_ns) for other in others if other.collectives]  # fmt: skip
        waited = max(shares, default=0.0)
        if waited < _WAITED:
            continue
        rank = row.source if row.rank is None else f"rank {row.rank}"
        yield Advice(
            text=f"Look at {rank}: it came last in {one.last:,} of {one.matched:,} collectives, and the "
            f"others waited for it, {format_share(waited)} of their window at most.",
            evidence=(row.id,),
            gain_at_most=waited,
            check="no rank is last in more than half of the collectives",
        )

"""Waits: what kind of cause time off the CPU would be, from where the thread was."""

from collections.abc import Mapping

from otel_gpu.explain import rules
from otel_gpu.explain.chains import CauseKind
from otel_gpu.report.document import Context, OffCpu, ThreadState

# Where a thread is, as the rules of blame see it.
_PLACES: Mapping[str, str] = {
    Context.GAP: rules.GAP,
    Context.SYNCHRONIZE: rules.SYNCHRONIZE,
    Context.CALL: rules.CALL,
    Context.OTHER: rules.GAP,
}


def kind_of_wait(row: OffCpu) -> str:
    """Return the kind of cause: the same sleep is the program's, or the driver's in a call."""
    if row.state == ThreadState.RUN_QUEUE:
        return CauseKind.RUN_QUEUE
    return rules.blocked_kind(row.reason, _PLACES.get(row.context, rules.GAP))

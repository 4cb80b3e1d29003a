"""Maps time off the CPU to kinds of causes."""

from collections.abc import Mapping

from otel_gpu.explain.kinds import CauseKind
from otel_gpu.explain.rules import Place, blocked_kind
from otel_gpu.report.document import Context, OffCpu, ThreadState

# Contexts of threads, as the rules of explain name them.
_PLACES: Mapping[str, Place] = {
    Context.GAP: Place.GAP,
    Context.SYNCHRONIZE: Place.SYNCHRONIZE,
    Context.CALL: Place.CALL,
    Context.OTHER: Place.GAP,
}


def kind_of_wait(row: OffCpu) -> CauseKind:
    """
    Return the kind of cause: the same sleep is the program's own, or the driver's inside a call.
    """
    if row.state == ThreadState.RUN_QUEUE:
        return CauseKind.RUN_QUEUE
    return blocked_kind(row.reason, _PLACES.get(row.context, Place.GAP))

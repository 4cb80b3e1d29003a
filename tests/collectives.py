"""Ranks of communicators as ``enrich`` makes them, from the values that matter to a test."""

from otel_gpu import wire
from otel_gpu.enrich.activities import CommunicatorActivity
from otel_gpu.wire.communicators import Communicator, QueuedCollective, Signature
from tests.activities import SECOND, T0

FLOAT32, SUM = 7, 0
ALL_REDUCE = Signature(wire.COLLECTIVE_ALL_REDUCE, 1 << 20, FLOAT32, SUM, -1)


def rank_of(
    process, at_s, *calls, signature=ALL_REDUCE, completed_at_s=None, handle=0x5000, **values
):
    """What was read of a communicator that had been called at these seconds, the last 16 of them."""
    numbered = [
        QueuedCollective(number, round(call_s * SECOND), signature)
        for number, call_s in enumerate(calls, start=1)
    ]
    completed_ktime_ns = round(completed_at_s * SECOND) if completed_at_s is not None else 0
    bytes_of_all = 4 * signature.elements * len(calls)
    known = dict.fromkeys(Communicator._fields, 0) | {
        "id": 0xABC,
        "called": len(calls),
        "completed_ktime_ns": completed_ktime_ns,
        "rank_count": 4,
        "device": -1,
        "operations": {signature.operation: (len(calls), bytes_of_all)},
        "recent": tuple(numbered[-wire.RECENT_COLLECTIVES :]),
    }
    made = Communicator(**(known | values))
    return CommunicatorActivity(
        T0 + round(at_s * SECOND),
        process,
        (handle, 0),
        None,
        made,
        tuple(T0 + one.called_ktime_ns for one in made.recent),
        T0 + completed_ktime_ns if completed_ktime_ns else 0,
    )

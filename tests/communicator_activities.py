"""Readings of communicators, as ``enrich`` makes them: what ranks called, and when."""

from otel_gpu import wire
from otel_gpu.enrich.activities import CommunicatorActivity
from otel_gpu.wire.communicators import NO_REDUCTION, Communicator, QueuedCollective, Signature
from tests.activities import SECOND, T0, image

ID = 0x00C0FFEE_12345678
ALL_REDUCE = Signature(wire.COLLECTIVE_ALL_REDUCE, 1024, 7, 0, -1)
RECENT = wire.RECENT_COLLECTIVES


def ranks(count, first_pid=1000):
    """The processes of as many ranks."""
    return [image(first_pid + rank, name="trainer") for rank in range(count)]


def collectives(ktimes_ns, signature=ALL_REDUCE, first=1):
    """Calls at these moments, numbered on from ``first``."""
    return [
        QueuedCollective(first + n, ktime_ns, signature) for n, ktime_ns in enumerate(ktimes_ns)
    ]


def communicator(calls, *, completed=0, identity=ID, rank=0, rank_count=4, **values):
    """What the kernel side holds of a rank that made these calls."""
    size_bytes = sum(4 * one.signature.elements for one in calls)
    known = {
        "id": identity,
        "called": calls[-1].number if calls else 0,
        "completed": completed,
        "completed_ktime_ns": calls[0].called_ktime_ns if completed and calls else 0,
        "completions": completed,
        "waited_ns": 0,
        "captured": 0,
        "failed": 0,
        "made_ktime_ns": 1,
        "rank": rank,
        "rank_count": rank_count,
        "device": rank,
        "async_error": 0,
        "flags": 0,
        "operations": {wire.COLLECTIVE_ALL_REDUCE: (len(calls), size_bytes)} if calls else {},
        "recent": tuple(calls[-RECENT:]),
    }
    return Communicator(**(known | values))


def reading(process, at_s, calls, *, handle=(0x7F00, 0), device=None, **values):
    """A reading of one rank."""
    made = communicator(calls, **values)
    return CommunicatorActivity(
        T0 + round(at_s * SECOND),
        process,
        handle,
        device,
        made,
        tuple(T0 + one.called_ktime_ns for one in made.recent),
        T0 + made.completed_ktime_ns if made.completed_ktime_ns else 0,
    )


__all__ = ["ALL_REDUCE", "ID", "NO_REDUCTION", "collectives", "communicator", "ranks", "reading"]

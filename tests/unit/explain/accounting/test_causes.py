"""Causes that the time account of a process names."""

from otel_gpu.explain.accounting.causes import AccountCauses
from otel_gpu.explain.chains import TimeNode
from otel_gpu.explain.ranking import CauseSums
from tests.activities import image

S = 10**9


def test_many_small_ones_below_a_cause_have_no_kind_of_their_own():
    """A part of what a thread did that was waited for; their sums have an order, as all causes have."""
    small = [TimeNode("other", 3 * S, 0.3), TimeNode("lock", 4 * S, 0.4)]
    waited = TimeNode("ipc", 7 * S, 0.7, children=tuple(small))
    tree = TimeNode(
        "all", 10 * S, 1.0, children=(TimeNode("blocked", 7 * S, 0.7, children=(waited,)),)
    )
    sums = CauseSums(16, 16)

    sums.add(AccountCauses(image(42, 1), 0, 10 * S, None, ()).causes(tree))

    (cause,) = sums.causes(10 * S)
    assert [(one.kind, one.time_ns) for one in cause.via] == [
        ("lock", 4 * S),
        ("unexplained", 3 * S),
    ]

"""What the records of NCCL's calls say."""

import pytest

from otel_gpu import wire
from otel_gpu.wire.communicators import NO_REDUCTION, Signature, asked_by

REDUCE, SEND = wire.COLLECTIVE_REDUCE, wire.COLLECTIVE_SEND


@pytest.mark.parametrize(
    ("grid", "block", "asked"),
    [
        ((11, 5, REDUCE << 16 | 2 << 8 | 8), (3, 9, 1), ((1 << 32) + 9, (REDUCE, 8, 2, 3))),
        ((1, 0, REDUCE << 16), (0xFFFFFFFF, 0, 0), (0, (REDUCE, 0, 0, -1))),
        ((1, 0, SEND << 16 | 255 << 8 | 7), (1, 0, 0), (0, (SEND, 7, NO_REDUCTION, 1))),
    ],
)
def test_a_call_says_what_it_asks_for(grid, block, asked):
    """Elements and numbers are of 64 bits; a root that is none is negative; some have no number."""
    number, (operation, datatype, reduction, root) = asked
    elements = grid[0] + (grid[1] << 32)

    assert asked_by(grid, block) == (
        number,
        Signature(operation, elements, datatype, reduction, root),
    )


def test_another_call_asks_for_nothing():
    """Such as one that makes a communicator."""
    assert asked_by((0, 0, 0), (0, 0, 0)) is None

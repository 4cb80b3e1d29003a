"""Samples, as the kernel side sends them."""

import pytest

from otel_gpu import wire
from otel_gpu.capture.stacks.samples import Sample
from otel_gpu.capture.stacks.unwinder import Registers
from tests.unit.capture.stacks import records


def test_what_is_in_a_sample():
    """
    Counts say how much of each room is filled in; the rest is of whoever had it before.
    """
    sample = Sample(
        records.sample(
            5,
            place=(1, 2, 3, 4),
            words=(10, 11),
            returns=[(100, 200)],
            python=[(7, 4, 0), (8, 6, 1)],
            status=wire.PYTHON_CUT,
            room=100,
        )
    )

    assert (sample.token, sample.image, sample.tid) == (5, (42, 77), 43)
    assert sample.registers == Registers(1, 2, 3, 4)
    assert sample.returns == wire.SAVED_RETURN.pack(100, 200)
    assert sample.python_frames == wire.PYTHON_FRAME.pack(7, 4, 0) + wire.PYTHON_FRAME.pack(8, 6, 1)
    assert sample.python_status == wire.PYTHON_CUT
    assert bytes(sample.stack) == b"\x0a" + b"\0" * 7 + b"\x0b" + b"\0" * 7
    assert list(sample.words()) == [10, 11]


def test_half_a_word_is_no_word():
    """
    A stack of 12 bytes has one word.
    """
    sample = Sample(records.sample(words=(10, 11), stack_bytes=12))

    assert len(sample.stack) == 12
    assert list(sample.words()) == [10]


def test_counts_that_lie():
    """
    No count reaches beyond what is there.
    """
    honest = records.sample(words=(10,))
    counts = wire.SAMPLE_RECORD.size - wire.MAX_PYTHON_FRAMES * wire.PYTHON_FRAME.size - 16
    lying = honest[:counts] + b"\xff" * 16 + honest[counts + 16 :]

    sample = Sample(lying)

    assert len(sample.returns) == wire.MAX_RETURNS * wire.SAVED_RETURN.size
    assert len(sample.python_frames) == wire.MAX_PYTHON_FRAMES * wire.PYTHON_FRAME.size
    assert list(sample.words()) == [10]


@pytest.mark.parametrize(
    "record", [b"", records.sample()[:-1], b"\x01\x00" + records.sample()[2:]], ids=len
)
def test_what_is_no_sample(record):
    """
    A record of another kind, or one that ends early, is refused.
    """
    with pytest.raises(ValueError, match="sample"):
        Sample(record)

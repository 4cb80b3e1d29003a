"""Samples, as the kernel side sends them."""

import pytest

from otel_gpu import wire
from otel_gpu.stacks.samples import Sample
from otel_gpu.stacks.unwind.unwinder import Registers
from tests.unit.stacks import records


def test_what_is_in_a_sample():
    """
    Frames, returns and stack follow each other without gaps; counts say how much of each there
    is. Behind a large stack there may be room, which holds whatever was there before.
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

    assert (sample.token, sample.program, sample.tid) == (5, (42, 77), 43)
    assert sample.registers == Registers(1, 2, 3, 4)
    assert sample.returns == wire.SAVED_RETURN.pack(100, 200)
    assert sample.python_frames == wire.PYTHON_FRAME.pack(7, 4, 0) + wire.PYTHON_FRAME.pack(8, 6, 1)
    assert sample.python_status == wire.PYTHON_CUT
    assert bytes(sample.stack) == b"\x0a" + b"\0" * 7 + b"\x0b" + b"\0" * 7
    assert list(sample.words()) == [10, 11]


def test_half_a_word_is_no_word():
    """A stack of 12 bytes has one word."""
    sample = Sample(records.sample(words=(10, 11), stack_bytes=12))

    assert len(sample.stack) == 12
    assert list(sample.words()) == [10]


def test_counts_that_lie():
    """No count reaches beyond what is there."""
    honest = records.sample(words=range(301))
    counts = records.FIXED_BYTES - 16
    lying = honest[:counts] + b"\xff" * 16 + honest[counts + 16 :]

    sample = Sample(lying)

    # 128 frames and 8 returns take the first 272 words; nothing is behind the last one.
    assert len(sample.python_frames) == 128 * 16
    assert sample.python_frames[-16:-8] == (254).to_bytes(8, "little")
    assert len(sample.returns) == 8 * 16
    assert sample.returns[:8] == (256).to_bytes(8, "little")
    assert list(sample.words()) == list(range(272, 301))


def test_what_is_cut_off():
    """Of frames that end early, the whole ones are there, and nothing is where returns would be."""
    whole = records.sample(python=[(7, 4, 0), (8, 6, 1)], returns=[(100, 200)])

    sample = Sample(whole[: records.FIXED_BYTES + 16 + 15])

    assert sample.python_frames == wire.PYTHON_FRAME.pack(7, 4, 0)
    assert sample.returns == b""
    assert bytes(sample.stack) == b""


@pytest.mark.parametrize(
    "record", [b"", records.sample()[:-1], b"\x01\x00" + records.sample()[2:]], ids=len
)
def test_what_is_no_sample(record):
    """A record of another kind, or one that ends early, is refused."""
    with pytest.raises(ValueError, match="sample"):
        Sample(record)


BOTTOM = 0x7000


@pytest.mark.parametrize(
    ("frame_pointer", "words", "chain"),
    [
        # Each record is the next frame pointer, and a return address; 0 ends it.
        (BOTTOM + 8, (1, BOTTOM + 32, 0x4000, 2, 0, 0x5000), (0x4000, 0x5000)),
        (BOTTOM, (BOTTOM + 16, 0x4000, 1, 0x5000), (0x4000, 0x5000)),
        # None that points back, into nowhere, to no code, beyond what was copied, or in between.
        (BOTTOM, (BOTTOM, 0x4000), (0x4000,)),
        (BOTTOM, (BOTTOM + 8, 0x4000), (0x4000,)),
        (BOTTOM - 8, (0, 0x4000), ()),
        (0, (0, 0x4000), ()),
        (BOTTOM, (0, 0xFFF), ()),
        (BOTTOM, (0, 1 << 56), ()),
        (BOTTOM + 8, (0, 0x4000), ()),
        (BOTTOM + 4, (0, 0x4000, 0x5000), ()),
    ],
)
def test_frame_pointers_are_followed_as_the_kernel_side_does(frame_pointer, words, chain):
    """Up the stack only, to addresses that may be code."""
    sample = Sample(records.sample(place=(1, BOTTOM, frame_pointer, 0), words=words))

    assert sample.frame_pointer_chain() == chain


def test_a_chain_of_frame_pointers_has_an_end():
    """As the kernel side's has: 64 frames."""
    words = [word for n in range(100) for word in (BOTTOM + 16 * (n + 1), 0x4000)]
    sample = Sample(records.sample(place=(1, BOTTOM, BOTTOM, 0), words=words))

    assert len(sample.frame_pointer_chain()) == 64

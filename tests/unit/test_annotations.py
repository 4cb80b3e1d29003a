"""Pairs that anybody may choose: what is none is refused where they are written, and left out where they are read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu import wire
from otel_gpu.annotations import MAX_PAIRS, MAX_VALUE, by_key, is_pair, pack_pairs, read_pairs


@pytest.mark.parametrize("text", ["epoch=3", "a.b-c_D=", "_=naïve ☃ = x", f"k={'v' * MAX_VALUE}"])
def test_names_and_short_values_are_pairs(text):
    assert is_pair(text)
    assert read_pairs(pack_pairs([text])) == (text,)


@pytest.mark.parametrize(
    "text",
    ["", "epoch", "=3", "1a=3", "a b=3", "k=\x1b[2J", "k=a\nb=c", "k=a\0", f"k={'v' * 129}", "é=1"],
)
def test_what_is_no_pair_is_refused_and_left_out(text):
    with pytest.raises(ValueError, match="is not KEY=VALUE"):
        pack_pairs([text])
    assert read_pairs(text.encode() + b"\0") in ((), ("k=a",))


def test_annotations_are_short():
    """As many as the kernel side takes."""
    with pytest.raises(ValueError, match="more than"):
        pack_pairs([f"k{n}=v" for n in range(MAX_PAIRS + 1)])
    with pytest.raises(ValueError, match="more than"):
        pack_pairs([f"k{n}={'v' * 120}" for n in range(5)])
    assert len(pack_pairs([f"k{n}={'v' * 98}" for n in range(5)])) == wire.ANNOTATION_BYTES - 2


@given(st.binary(max_size=wire.ANNOTATION_BYTES))
def test_any_bytes_can_be_read(raw):
    """A program may pass whatever it likes."""
    pairs = read_pairs(raw)

    assert all(map(is_pair, pairs))
    assert len(by_key(pairs)) <= len(pairs) <= MAX_PAIRS

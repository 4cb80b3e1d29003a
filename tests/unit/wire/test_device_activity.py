"""The noun of device activity."""

from otel_gpu.wire.device_activity import Names


def test_a_text_has_one_number():
    """However often it is named; nothing is number 0, and names are cleaned."""
    names = Names()

    assert [names.number(text) for text in ("a", "b", "a", "", "\x1bc", "\N{REPLACEMENT CHARACTER}c")] == [1, 2, 1, 0, 3, 3]  # fmt: skip
    assert list(names) == ["", "a", "b", "\N{REPLACEMENT CHARACTER}c"]


def test_texts_are_bounded():
    """What there is no room for is not known, and counted."""
    names = Names(limit=3)

    assert [names.number(text) for text in "abcda"] == [1, 2, 0, 0, 1]
    assert (names.left_out, len(names)) == (2, 3)

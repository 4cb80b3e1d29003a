"""How figures and names are written."""

import pytest

from otel_gpu.explain.chains import Culprit
from otel_gpu.findings.words import (
    count_of,
    describe_thread,
    format_size,
    format_time,
    printable,
)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1_500, "1.5 kB"), (406e9, "406 GB"), (2.5e15, "2500 TB")],
)
def test_sizes_have_three_digits_and_a_unit(size_bytes, text):
    """
    Sizes are read at a glance.
    """
    assert format_size(size_bytes) == text


@pytest.mark.parametrize(
    ("unix_ns", "text"),
    [
        (1_760_000_000_123_456_789, "2025-10-09 08:53:20.123456"),
        (0, "1970-01-01 00:00:00.000000"),
        # What only a damaged recording holds.
        (-5, "1970-01-01 00:00:00.000000"),
        (2**80, "9999-12-31 23:59:59.999999"),
    ],
)
def test_moments_are_written_to_the_microsecond(unix_ns, text):
    """
    Any number can be written, so that a damaged clock stops no report.
    """
    assert format_time(unix_ns) == text


def test_counts_agree_with_their_noun():
    """
    One call, two calls.
    """
    assert [count_of(n, "call") for n in (0, 1, 2_000)] == ["0 calls", "1 call", "2,000 calls"]


@pytest.mark.parametrize(
    ("thread", "text"),
    [
        (Culprit(900, 901, "cc1plus"), "cc1plus (900/901)"),
        (Culprit(900, 900, "cc1plus"), "cc1plus (900)"),
        (Culprit(900, 0, "cc1plus"), "cc1plus (900)"),
        (Culprit(900, 901, ""), "? (900/901)"),
        (Culprit(900, 901, "a\nb"), "a\\nb (900/901)"),
    ],
)
def test_threads_have_a_name_and_numbers(thread, text):
    """
    A number that repeats the other is left out.
    """
    assert describe_thread(thread) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [("café 😀", "café 😀"), ("\x1b[2J", "\\x1b[2J"), ("\x9b\u202e\ud800", "\\x9b\\u202e\\ud800")],
)
def test_what_a_terminal_obeys_is_escaped(text, shown):
    """
    Escape sequences, 8-bit controls and direction marks lose their power, names stay legible.
    """
    assert printable(text) == shown

"""How figures and names are written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.explain.chains import Culprit
from otel_gpu.report.wording.formats import (
    count_of,
    describe_thread,
    format_size,
    format_time,
    printable,
    short_function,
)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1_500, "1.5 kB"), (406e9, "406 GB"), (2.5e15, "2500 TB")],
)
def test_sizes_have_three_digits_and_a_unit(size_bytes, text):
    """Sizes are read at a glance."""
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
    """Any number can be written, so that a damaged clock stops no report."""
    assert format_time(unix_ns) == text


def test_counts_agree_with_their_noun():
    """One call, two calls."""
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
    """A number that repeats the other is left out."""
    assert describe_thread(thread) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [("café 😀", "café 😀"), ("\x1b[2J", "\\x1b[2J"), ("\x9b\u202e\ud800", "\\x9b\\u202e\\ud800")],
)
def test_what_a_terminal_obeys_is_escaped(text, shown):
    """Escape sequences, 8-bit controls and direction marks lose their power, names stay legible."""
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("at::native::empty_cuda", "at::native::empty_cuda"),
        ("f" * 80, "f" * 80),
        (
            (
                "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
                "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>)"
            ),
            "vectorized_elementwise_kernel",
        ),
        (
            (
                "at::native::(anonymous namespace)::masked_fill_kernel(at::TensorIterator&, "
                "c10::Scalar const&)::{lambda()#1}::operator()() const::{lambda()#2}::operator()() const"
            ),
            "masked_fill_kernel",
        ),
        (
            (
                "std::enable_if<std::is_integral<long>::value, std::vector<int, std::allocator<int> > >"
                "::type outer::gather<long>(std::vector<int> const&)"
            ),
            "gather",
        ),
        (
            (
                "std::basic_ostream<char, std::char_traits<char> >& ns::operator<< <std::char_traits"
                "<char> >(std::basic_ostream<char>&, char)"
            ),
            "operator<<",
        ),
        # What cannot be taken apart is cut.
        ("_ZN" + "x" * 600, "_ZN" + "x" * 76 + "…"),
        # Cut in the middle by who captured it.
        ("void ns::kernel<" + "int, " * 90, "kernel"),
    ],
)
def test_a_name_that_nobody_can_read_is_shortened(name, short):
    """To the function's own, whatever its template was made of."""
    assert short_function(name) == short


@given(st.text(max_size=300))
def test_a_short_name_is_short(name):
    """And there is one for whatever a program calls its functions."""
    assert len(short_function(name)) <= 80
    assert short_function(name) or not name

"""Counts with what they are of."""

import pytest

from otel_gpu.formatting.units import count_of, counted


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [
        (1, "launch", "1 launch"),
        (5, "graph launch", "5 graph launches"),
        (2, "entry", "2 entries"),
        (0, "day", "0 days"),
        (1_000, "box", "1,000 boxes"),
    ],
)
def test_nouns_are_in_the_plural_but_for_one(count, noun, said):
    """By the rules of English."""
    assert count_of(count, noun) == said


@pytest.mark.parametrize(
    ("plural", "singular"),
    [
        ("activities of devices", "activity of devices"),
        ("functions of Python of the host", "function of Python of the host"),
        ("entries", "entry"),
        ("gpu_user_annotation", "gpu_user_annotation"),
    ],
)
def test_of_one_the_first_word_is_in_the_singular(plural, singular):
    """Names of categories are what they are."""
    assert counted(1, plural) == singular
    assert counted(2, plural) == plural

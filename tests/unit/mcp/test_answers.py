"""Text is sanitized, and answers are no longer than they may be."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.mcp.answers import Listing, first_of, micros, sanitize, to_json
from tests.unit.mcp.served import HOSTILE


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("train.py", "train.py"),
        ("kürzer 学習", "kürzer 学習"),
        ("a\x1b[31mb\x00", "a\ufffd[31mb\ufffd"),
        ("two\nlines\tand\r", "two lines and "),
        ("a\u202eb\u2066c\u200bd", "a\ufffdb\ufffdc\ufffdd"),
        ("tag\U000e0041", "tag\ufffd"),
        ("v\ufe0f\U000e0100\u3164\u115f", "v\ufffd\ufffd\ufffd\ufffd"),
        ("\ud800", "\ufffd"),
        ("x" * 401, "x" * 400 + "… (1 characters cut)"),
    ],
)
def test_what_cannot_be_seen_is_replaced(text, shown):
    """A name says what it seems to say, and is no longer than a name."""
    assert sanitize(text) == shown


@given(st.text(), st.dictionaries(st.text(), st.text() | st.floats() | st.binary()))
def test_any_text_is_inert(name, values):
    """Whatever a string holds, an answer is one line of JSON without anything to obey."""
    text = to_json({"name": name, "values": values, "list": [name]})

    assert text.isprintable()
    assert not set("<>&`") & set(text)
    assert "](" not in text
    json.loads(text)


def test_escapes_mean_the_same_to_a_parser():
    """Markup reaches the assistant as what it is: a name with odd letters."""
    name = "<b>[x](http://e)&`\\<"

    assert json.loads(to_json({"name": name})) == {"name": name}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_names(name):
    """None of the names that were thought of does more than be shown."""
    text = to_json({"name": name})

    assert len(text) < 700
    assert text.isprintable()
    assert list(json.loads(text)) == ["name"]


def test_the_largest_listing_makes_room_and_says_so():
    """An answer that would be too long loses its last rows first."""
    document = {
        "few": first_of(["a", "b"], 5),
        "many": first_of([f"row {number:04}" for number in range(500)], 400),
    }

    text = to_json(document, limit_bytes=1_000)

    shown = json.loads(text)
    assert len(text.encode()) <= 1_000
    assert shown["few"] == {"rows": ["a", "b"]}
    assert shown["many"]["rows"][0] == "row 0000"
    assert shown["many"]["more"] == 500 - len(shown["many"]["rows"])


def test_listings_inside_rows_make_room_too():
    """Nothing that is nested makes an answer longer than it may be."""
    document = {"rows": Listing([{"points": Listing(["x" * 90] * 300)}])}

    assert len(to_json(document, limit_bytes=2_000).encode()) <= 2_000


def test_what_has_no_rows_to_give_up_is_an_error():
    """A limit is a limit."""
    document = {"texts": ["x" * 300] * 100}

    assert json.loads(to_json(document, limit_bytes=1_000)) == {
        "error": "the answer is larger than 1,000 bytes"
    }


def test_columns_are_named_once():
    """A table costs its names once."""
    listing = first_of([[1, 2], [3, 4], [5, 6]], 2, ("a", "b"))

    assert listing.as_value() == {"columns": ["a", "b"], "rows": [[1, 2], [3, 4]], "more": 1}


@pytest.mark.parametrize(
    ("time_ns", "shown"),
    [(0, 0), (1_000, 1), (1_234, 1.234), (-1_500, -1.5), (86_400 * 10**9, 86_400 * 10**6)],
)
def test_times_are_exact(time_ns, shown):
    """A microsecond with three digits is a nanosecond."""
    assert micros(time_ns) == shown


def test_what_is_not_known_is_null():
    """A percentile of nothing is no number."""
    assert micros(float("nan")) is None
    assert json.loads(to_json({"p50": float("inf")})) == {"p50": None}

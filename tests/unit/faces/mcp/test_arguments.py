"""What is announced is what is accepted."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from otel_gpu.faces.mcp.arguments import WINDOW, Argument, ArgumentError, read_question, schema_of

ARGUMENTS = (
    *WINDOW,
    Argument("limit", "integer", "How many.", least=1, most=100),
    Argument("min_us", "number", "How long.", least=0, most=1e12),
    Argument("severity", "text", "Which.", most=10, choices=("high", "low")),
)


def test_a_question_is_read():
    """The window and the processes have places of their own."""
    given_arguments = {"from": "-30s", "pids": [1, 2], "limit": 3, "to": None}

    assert read_question(ARGUMENTS, given_arguments) == ("-30s", None, (1, 2), {"limit": 3})


@pytest.mark.parametrize(
    ("given_arguments", "told"),
    [
        ({"limt": 1}, "there is no argument 'limt'"),
        ({"limit": 0}, "limit must be an integer from 1 to 100, not 0"),
        ({"limit": "5"}, "limit must be an integer from 1 to 100, not '5'"),
        ({"limit": True}, "limit must be an integer from 1 to 100, not True"),
        ({"min_us": float("nan")}, "min_us must be a number from 0 to 1e+12, not nan"),
        ({"severity": "worst"}, "severity must be one of high, low, not 'worst'"),
        ({"from": 5}, "from must be text of at most 64 characters, not 5"),
        ({"pids": 7}, "pids must be a list of at most 64 process ids, not 7"),
        ({"pids": [-1]}, "pids must be a list of at most 64 process ids, not [-1]"),
        ({"\x1b[2J": 1}, "there is no argument '\\x1b[2J'"),
    ],
)
def test_what_is_wrong_is_said(given_arguments, told):
    """An assistant that is told what is wrong asks again, and rightly."""
    with pytest.raises(ArgumentError, match=f"^{re.escape(told)}$"):
        read_question(ARGUMENTS, given_arguments)


VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@given(
    st.dictionaries(
        st.sampled_from([argument.name for argument in ARGUMENTS]) | st.text(),
        VALUES | st.lists(VALUES, max_size=3),
    )
)
def test_the_schema_and_the_check_agree(given_arguments):
    """A client that checks arguments itself refuses no more than we do, and no less."""
    stated = {name: value for name, value in given_arguments.items() if value is not None}
    valid = Draft202012Validator(schema_of(ARGUMENTS)).is_valid(stated)
    # JSON has one kind of number.
    whole = {"limit", "pids"}
    floats = any(
        isinstance(value, float) or (isinstance(value, list) and any(map(_is_float, value)))
        for name, value in stated.items()
        if name in whole
    )

    try:
        read_question(ARGUMENTS, stated)
    except ArgumentError:
        assert not valid or floats
    else:
        assert valid


def _is_float(value):
    return isinstance(value, float)

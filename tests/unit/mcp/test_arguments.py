"""What is announced is what is accepted."""

import re
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import Field

from otel_gpu.explain.kinds import Severity
from otel_gpu.mcp.arguments import ArgumentError, Question, read_arguments, rows
from otel_gpu.mcp.tools import TOOLS
from otel_gpu.report.stacks.top_stacks import CALLED, GRAPHS, MEMORY, WAITED, StackMeasure


class Asked(Question):
    limit: Annotated[int, rows(100, "of them")] = 5
    min_us: Annotated[float, Field(ge=0, le=1e12)] = 0
    severity: Literal["high", "low"] = "low"


SCHEMA = Asked.model_json_schema()


def test_a_question_is_read():
    """What was not given, or is null, has its default."""
    asked = read_arguments(Asked, {"from": "-30s", "pids": [1, 2], "limit": 3, "to": None})

    assert (asked.begin, asked.end, asked.pids, asked.limit) == ("-30s", "", [1, 2], 3)
    assert (asked.min_us, asked.severity) == (0, "low")


@pytest.mark.parametrize(
    ("given_arguments", "told"),
    [
        ({"limt": 1}, "unknown argument 'limt'"),
        ({"limit": 0, "limt": 1}, "unknown argument 'limt'"),
        ({"limit": 0}, "limit must be an integer from 1 to 100, not 0"),
        ({"limit": "5"}, "limit must be an integer from 1 to 100, not '5'"),
        ({"limit": True}, "limit must be an integer from 1 to 100, not True"),
        ({"min_us": float("nan")}, "min_us must be a number from 0 to 1e+12, not nan"),
        ({"severity": "worst"}, "severity must be one of high, low, not 'worst'"),
        ({"from": 5}, "from must be text of at most 64 characters, not 5"),
        ({"begin": "-5s"}, "unknown argument 'begin'"),
        ({"pids": 7}, "pids must be a list of at most 64 process ids, not 7"),
        ({"pids": [-1]}, "pids must be a list of at most 64 process ids, not [-1]"),
        ({"\x1b[2J": 1}, "unknown argument '\\x1b[2J'"),
    ],
)
def test_what_is_wrong_is_said(given_arguments, told):
    """An assistant that is told what is wrong asks again, and rightly."""
    with pytest.raises(ArgumentError, match=f"^{re.escape(told)}$"):
        read_arguments(Asked, given_arguments)


VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@given(
    st.dictionaries(
        st.sampled_from(list(SCHEMA["properties"])) | st.text(),
        VALUES | st.lists(VALUES, max_size=3),
    )
)
def test_the_schema_and_the_check_agree(given_arguments):
    """A client that checks arguments itself refuses no more than we do, and no less."""
    stated = {name: value for name, value in given_arguments.items() if value is not None}
    valid = Draft202012Validator(SCHEMA).is_valid(stated)
    # JSON has one kind of number.
    whole = {"limit", "pids"}
    floats = any(
        isinstance(value, float) or (isinstance(value, list) and any(map(_is_float, value)))
        for name, value in stated.items()
        if name in whole
    )

    try:
        read_arguments(Asked, stated)
    except ArgumentError:
        assert not valid or floats
    else:
        assert valid


def _is_float(value):
    return isinstance(value, float)


def test_choices_are_those_of_the_document():
    """What can be chosen is spelled out in a tool's types, and defined elsewhere."""
    schemas = {one.name: one.arguments.model_json_schema()["properties"] for one in TOOLS}

    assert schemas["get_causal_chains"]["severity"]["enum"] == list(Severity)
    assert schemas["get_stacks"]["of"]["enum"] == [CALLED, WAITED, *GRAPHS, *MEMORY]
    assert schemas["get_stacks"]["by"]["enum"] == list(StackMeasure)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_every_argument_is_described(tool):
    """An assistant reads what each is for, and what it is when it is left out."""
    schema = tool.arguments.model_json_schema()

    assert tool.description
    assert schema["additionalProperties"] is False
    for argument in schema["properties"].values():
        assert argument["description"]
        assert "default" in argument

"""Events as rows: what goes in comes out, whatever the numbers are."""

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.recorder.rows.events import event_rows, make_storable
from otel_gpu.recorder.storable_text import clean, from_json, to_json
from otel_gpu.recorder.tables.columns import JSON, MAX_INTEGER, TEXT, U64, WORD, Column, Table
from otel_gpu.recorder.tables.fields import DIMENSIONS, event_columns
from otel_gpu.wire.events import CudaCall, Fork, Gap, OpenCall, Stall

U32 = st.integers(0, (1 << 32) - 1)
WORDS = st.integers(0, (1 << 64) - 1)


def values_of(event):
    """A strategy for the fields of an event, as its record may have them."""
    columns = {column.name: column.kind for column in event_columns(event)}
    strategies = []
    for name in event._fields:
        if name in DIMENSIONS:
            strategies.append(st.tuples(U32, U32, U32))
        elif columns[name] is WORD:
            strategies.append(WORDS)
        elif columns[name].sql == "TEXT":
            strategies.append(st.text(max_size=15))
        else:
            strategies.append(st.integers(columns[name].least, columns[name].most))
    return st.tuples(*strategies).map(event._make)


@pytest.mark.parametrize("event", [CudaCall, Stall, Gap, Fork, OpenCall])
@given(data=st.data())
def test_an_event_is_read_back_from_its_row(event, data):
    """A real table gives back every field, addresses with their highest bit too."""
    one = data.draw(values_of(event))
    table = Table("t", "a test", Column("seq", U64, ""), *event_columns(event))
    flatten, restore = event_rows(event)
    connection = sqlite3.connect(":memory:")
    connection.execute(table.sql())

    connection.execute(table.insert(), (1, *flatten(one)))
    (found,) = connection.execute(table.select).fetchall()
    connection.close()

    assert restore(found[1:-1]) == one
    assert found[-1] == 1


def test_a_call_has_a_column_for_each_dimension():
    """The launch's shape can be asked for in SQL."""
    names = [column.name for column in event_columns(CudaCall)]

    assert names[20:26] == ["grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"]
    assert len(names) == len(CudaCall._fields) + 4


def test_words_are_where_addresses_and_handles_are():
    """Times and counts never use their highest bit, so they are compared as they are."""
    words = {
        event: [column.name for column in event_columns(event) if column.kind is WORD]
        for event in (CudaCall, Gap)
    }

    assert words[CudaCall][:4] == ["size_bytes", "address", "stream", "function"]
    assert words[Gap] == []


def test_what_sqlite_cannot_hold_is_mended():
    """A broken time is as late as can be, half a surrogate pair a question mark, a word itself."""
    columns = (
        Column("a", U64, ""),
        Column("b", WORD, ""),
        Column("c", TEXT, ""),
        Column("d", JSON, ""),
        Column("e", U64, "NULL: unknown"),
    )

    row = make_storable(columns, (1 << 64, (1 << 64) - 1, "x\ud800", "{}", None))

    assert row == (MAX_INTEGER, -1, "x?", "{}", None)


@given(st.text(st.characters(exclude_categories=()), max_size=5_000))
def test_every_name_can_be_kept(name):
    """At most 4096 characters, and always UTF-8."""
    kept = clean(name)

    assert len(kept) == min(len(name), 4_096)
    assert kept.encode("utf-8").decode("utf-8") == kept


@pytest.mark.parametrize(
    ("document", "kept"),
    [
        ({"a": [1, 2.5, None, True]}, '{"a":[1,2.5,null,true]}'),
        ({"a": float("nan"), "b": float("inf")}, '{"a":null,"b":null}'),
        ({"a": {1}}, '{"a":[1]}'),
        ({"a": b"x"}, '{"a":"b\'x\'"}'),
        ({"a": "\ud800é"}, '{"a":"\\ud800\\u00e9"}'),
        ({"a": "x" * 300_000}, None),
    ],
)
def test_documents_are_plain_json_or_not_kept(document, kept):
    """Numbers that JSON has not are null, and what is too large is left out."""
    assert to_json(document) == kept


def test_a_document_that_nests_too_deep_is_not_kept():
    """Nor does it end the program."""
    document = []
    for _ in range(100_000):
        document = [document]

    assert to_json(document) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000])
def test_what_is_no_document_of_its_kind_is_refused(text):
    """Whatever stands where a mapping is expected."""
    with pytest.raises(ValueError):  # noqa: PT011 -- json's own is one, whatever it says
        from_json(text, dict)

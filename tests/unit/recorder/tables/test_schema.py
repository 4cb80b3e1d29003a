"""The schema: described in full, and never changed without a new version."""

import sqlite3

import pytest

from otel_gpu import wire
from otel_gpu.enrich.waits.reasons import REASONS
from otel_gpu.explain.rules import KINDS
from otel_gpu.recorder.tables import schema
from otel_gpu.recorder.tables.columns import ColumnClock
from otel_gpu.recorder.tables.lookups import LOOKUPS, family_name, family_number
from otel_gpu.recorder.views.views import MEANINGS


@pytest.fixture(scope="module")
def connection():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.create(connection, {"created_by": "a test"})
    yield connection
    connection.close()


def test_the_version_changes_with_the_schema():
    """A reader trusts the version: if this fails, raise ``schema.VERSION`` and put both here."""
    assert (schema.VERSION, schema.fingerprint()) == (16, "fa6147cb17606b06")


def test_every_table_view_and_column_says_what_it_means(connection):
    """``schema_info`` is all that a program knows of a store it has not seen before."""
    described = {
        (name, column): meaning
        for _, name, column, meaning, _ in connection.execute("SELECT * FROM schema_info")
    }
    made = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')"
    ).fetchall()
    columns = [
        (name, column)
        for (name,) in made
        for _, column, *_ in connection.execute(f"PRAGMA table_xinfo({name})")
    ]

    assert len(made) > 50
    assert [name for (name,) in made if not described.get((name, ""))] == []
    assert [column for column in columns if not described.get(column)] == []


def test_what_views_describe_is_there(connection):
    """No description outlives its column."""
    columns = {
        view.name: {name for _, name, *_ in connection.execute(f"PRAGMA table_info({view.name})")}
        for view in schema.VIEWS
    }

    assert [(v.name, set(v.columns) - columns[v.name]) for v in schema.VIEWS] == [
        (view.name, set()) for view in schema.VIEWS
    ]
    assert set(MEANINGS) - set().union(*columns.values()) == set()


def test_numbers_that_end_in_a_unit_have_it(connection):
    """A column's name and its unit say the same."""
    units = {
        (table.name, column.name): column.unit
        for table in schema.TABLES
        for column in table.columns
        if column.name.endswith("_ns") and column.name != "program_ktime_ns"
    }

    assert len(units) > 40
    assert set(units.values()) == {"ns"}


def test_the_text_of_a_column_agrees_with_its_fields():
    """Who reads what NULL means, which clock it is or where to look finds it in the column as well."""
    columns = [column for table in schema.TABLES for column in table.columns]

    assert [
        column.name for column in columns if column.is_nullable != ("NULL" in column.meaning)
    ] == []
    for column in columns:
        assert column.refers_to in {"", *schema.TABLE_BY_NAME}
        if "CLOCK_MONOTONIC" in column.meaning and column.unit == "ns":
            assert column.clock is ColumnClock.MONOTONIC
        if column.clock is not None:
            assert column.name.endswith(
                "ktime_ns" if column.clock is ColumnClock.MONOTONIC else "unix_ns"
            )
        if column.refers_to and "see " in column.meaning:
            assert f"see {column.refers_to}" in column.meaning


def test_moments_have_a_clock():
    """Moments of two clocks that stand side by side are not mixed up."""
    moments = {
        column.name
        for table in schema.TABLES
        for column in table.columns
        if column.name.endswith(("ktime_ns", "unix_ns"))
    }
    assert moments == {
        column.name for table in schema.TABLES for column in table.columns if column.clock
    }


def test_our_own_schema_is_known_to_the_letter(connection):
    """What ``create`` makes is ours; one table, column or view more or less is not."""
    assert schema.is_ours(connection)

    other = sqlite3.connect(":memory:", isolation_level=None)
    schema.create(other, {})
    other.execute("CREATE TRIGGER t AFTER INSERT ON calls BEGIN SELECT 1; END")

    assert not schema.is_ours(other)
    other.close()


def test_every_enumerator_has_a_name():
    """A new reason, state or kind in the code shows up in the tables that explain numbers."""
    rows = {table.name: table.rows for table in LOOKUPS}

    assert {row[0] for row in rows["states"]} == set(wire.THREAD_STATE_NAMES)
    assert {row[0] for row in rows["contexts"]} == set(wire.CALL_CONTEXT_NAMES)
    assert {row[0] for row in rows["choices"]} == set(wire.CHOICE_NAMES)
    assert {row[0] for row in rows["stall_flags"]} == set(wire.STALL_FLAG_NAMES)
    assert {row[0] for row in rows["metrics"]} == set(wire.METRIC_NAMES)
    assert {row[0] for row in rows["copy_kinds"]} == set(wire.COPY_KIND_NAMES)
    assert {row[0] for row in rows["switch_types"]} == set(wire.SWITCH_TYPE_NAMES)
    assert {row[0] for row in rows["reasons"]} == set(REASONS)
    assert [row[0] for row in rows["cause_kinds"]] == list(KINDS)
    assert ("runtime", 2, "cudaErrorMemoryAllocation") in rows["errors"]
    assert (5, "cudaStreamSynchronize", "runtime", "synchronize") in rows["apis"]


def test_families_are_words_and_back():
    """A family that this version does not know is "other"."""
    assert (family_name(wire.FAMILY_COPY), family_number("copy")) == ("copy", wire.FAMILY_COPY)
    assert (family_name(99), family_number("magic")) == ("other", wire.FAMILY_OTHER)

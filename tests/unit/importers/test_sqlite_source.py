"""Reading databases of strangers."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from otel_gpu.errors import RecordingError
from otel_gpu.importers import sqlite_source
from otel_gpu.importers.sqlite_source import SqliteSource, require


@pytest.fixture
def path(tmp_path):
    """A database with one plain table."""
    path = tmp_path / "a b?#%.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE plain (number INTEGER, text TEXT)")
        connection.execute("INSERT INTO plain VALUES (1, 'one'), (2, 'two')")
        connection.commit()
    return path


def change(path, *statements):
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def test_rows_are_read(path):
    """What is in a table comes out, also where the file's name means something in a URI."""
    with SqliteSource(path) as source:
        assert list(source.rows("SELECT * FROM plain")) == [(1, "one"), (2, "two")]
        assert source.tables() == {"plain": frozenset({"number", "text"})}


def test_nothing_is_left_beside_the_file(path):
    """A database in WAL mode has no companions before, and none after."""
    change(path, "PRAGMA journal_mode = WAL")
    before = (path.read_bytes(), list(path.parent.iterdir()))

    with SqliteSource(path) as source:
        list(source.rows("SELECT * FROM plain"))

    assert (path.read_bytes(), list(path.parent.iterdir())) == before
    assert source.notes == []


def crash_with_a_log(path):
    """Leave a row in the log, as a writer does that is killed."""
    code = (
        "import os, sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1])\n"
        "connection.execute('PRAGMA journal_mode = WAL')\n"
        "connection.execute(\"INSERT INTO plain VALUES (3, 'three')\")\n"
        "connection.commit()\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


def test_what_is_only_in_the_log_is_read_too(path):
    """A capture may be copied, or looked at, while its writer runs."""
    crash_with_a_log(path)

    with SqliteSource(path) as source:
        assert list(source.rows("SELECT number FROM plain")) == [(1,), (2,), (3,)]


def test_a_log_that_cannot_be_read_is_left_out_and_that_is_said(path, monkeypatch):
    """In a folder that cannot be written SQLite refuses such a file."""
    crash_with_a_log(path)
    open_really = sqlite_source._open

    def refuse(uri):
        if "immutable" not in uri:
            raise sqlite3.OperationalError("unable to open database file")
        return open_really(uri)

    monkeypatch.setattr(sqlite_source, "_open", refuse)

    with SqliteSource(path) as source:
        assert list(source.rows("SELECT number FROM plain")) == [(1,), (2,)]
        (note,) = source.notes
        assert note.endswith("cannot be read from here: the latest rows are missing.")


@pytest.mark.parametrize(
    "statement", ["DELETE FROM plain", "DROP TABLE plain", "CREATE TABLE more (x)"]
)
def test_nothing_can_be_changed(path, statement):
    """Not even by a statement of ours."""
    with SqliteSource(path) as source, pytest.raises(RecordingError, match="is damaged, or of"):
        list(source.rows(statement))


def test_extensions_are_not_loaded(path):
    """They would be programs."""
    with SqliteSource(path) as source, pytest.raises(RecordingError, match="not authorized"):
        list(source.rows("SELECT load_extension('anything.so')"))


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW hostile AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT x FROM n",
        "CREATE VIRTUAL TABLE hostile USING fts5(x)",
    ],
)
def test_what_runs_when_it_is_read_is_no_table(path, statement):
    """A view that never ends has the same columns as a table."""
    change(path, statement)

    with SqliteSource(path) as source:
        assert "hostile" not in source.tables()


def test_a_generated_column_is_none(path):
    """It is a program as well."""
    change(path, "CREATE TABLE made (x INTEGER, y INTEGER GENERATED ALWAYS AS (x + 1))")

    with SqliteSource(path) as source:
        assert source.tables()["made"] == {"x"}


def test_text_that_is_none_is_read(path):
    """SQLite stores any bytes as text."""
    change(path, "UPDATE plain SET text = CAST(x'66c3' AS TEXT) WHERE number = 1")

    with SqliteSource(path) as source:
        assert next(source.rows("SELECT text FROM plain")) == ("f\ufffd",)


def test_a_value_longer_than_the_bound_is_an_error(path):
    """SQLite would otherwise make room for a gigabyte."""
    change(path, "UPDATE plain SET text = zeroblob(20000000)")

    with SqliteSource(path) as source, pytest.raises(RecordingError, match="too big"):
        list(source.rows("SELECT text FROM plain"))


def test_what_is_missing_is_named(path):
    """All of it, with tables and columns apart."""
    with SqliteSource(path) as source, pytest.raises(RecordingError) as error:
        require(path, source.tables(), {"plain": ["number", "age"], "events": ["pid"]})

    assert str(error.value) == (
        f"{path}: lacks of the table plain the columns age and the table events"
    )
    assert error.value.hint == "it is from another tool, or from an unsupported version"


def test_no_file_is_an_error(tmp_path):
    """With the reason that the system gives."""
    with pytest.raises(RecordingError, match="cannot be read: No such file or directory"):
        SqliteSource(tmp_path / "none.db")


def test_a_folder_and_a_pipe_are_errors(tmp_path):
    """Neither is waited for."""
    os.mkfifo(tmp_path / "pipe")

    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(RecordingError, match="is not a file"):
            SqliteSource(path)


@pytest.mark.parametrize("content", [b"", b"OTELGPU\0", b"SQLite format 2\0" + bytes(4096)])
def test_another_kind_of_file_is_an_error(tmp_path, content):
    """An empty file too, which SQLite takes for an empty database."""
    path = tmp_path / "x.db"
    path.write_bytes(content)

    with pytest.raises(RecordingError, match="is not a SQLite database"):
        SqliteSource(path)


def test_messages_of_sqlite_may_be_no_text(path):
    """Python's module cannot decode them then, and says so in its own way."""
    change(
        path,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET name = CAST(x'80' AS TEXT), sql = 'CREATE TABLE nonsense('",
    )

    with pytest.raises(RecordingError, match="is damaged, or of another format"):
        SqliteSource(path)


def test_messages_of_sqlite_cannot_steer_a_terminal(tmp_path):
    """It quotes names, and those come from the file."""
    path = tmp_path / "x.db"
    change(path, 'CREATE TABLE "\x1b[31mred" (x)', "PRAGMA writable_schema = ON")
    change(
        path,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = 'CREATE TABLE nonsense' || char(10) || '('",
    )

    with pytest.raises(RecordingError) as error:
        SqliteSource(path)

    assert "malformed database schema (?[31mred)" in str(error.value)

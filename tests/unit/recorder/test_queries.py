"""Questions in SQL: none of them writes, escapes, or takes more than it may."""

import re
import time
import tracemalloc
from pathlib import Path

import pytest

from benchmarks.days import day
from otel_gpu import wire
from otel_gpu.enrich.activities import WhoActivity
from otel_gpu.enrich.identity.identities import Culprit, Who
from otel_gpu.enrich.thread_times import Wait
from otel_gpu.errors import StoreError
from otel_gpu.recorder.queries import QueryError, QueryLimits, ask
from tests.activities import T0, image, thread_time, times
from tests.communicator_activities import collectives, ranks, reading
from tests.unit.recorder.stores import write

NUMBERS = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r)"
# One opcode may be under way when the time is over.
# Of the CPU: how long that takes depends on who else runs.
GRACE_S = 5.0

WRITES = [
    "INSERT INTO calls (seq) VALUES (1)",
    "REPLACE INTO meta VALUES ('a', 'b')",
    "UPDATE calls SET pid = 1",
    "DELETE FROM calls",
    "/* SELECT */ DELETE FROM calls",
    "WITH x AS (SELECT 1) DELETE FROM calls",
    "WITH x AS (SELECT 1) INSERT INTO losses SELECT 'x', 1 FROM x",
    "EXPLAIN DELETE FROM calls",
    "DROP TABLE calls",
    "DROP VIEW v_calls",
    "ALTER TABLE calls RENAME TO x",
    "CREATE TABLE x (a)",
    "CREATE TABLE x AS SELECT * FROM calls",
    "CREATE TEMP TABLE x (a)",
    "CREATE TEMP TABLE x AS SELECT * FROM calls",
    "CREATE VIEW x AS SELECT 1",
    "CREATE TEMP VIEW v_calls AS SELECT 1",
    "CREATE INDEX i ON calls (pid)",
    "CREATE TRIGGER t AFTER INSERT ON calls BEGIN SELECT 1; END",
    "CREATE TEMP TRIGGER t AFTER INSERT ON calls BEGIN DELETE FROM calls; END",
    "CREATE VIRTUAL TABLE x USING fts5 (a)",
    "CREATE VIRTUAL TABLE temp.x USING rtree (a, b, c)",
    "REINDEX",
    "ANALYZE",
    "VACUUM",
    "BEGIN IMMEDIATE",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SAVEPOINT x",
    "RELEASE x",
    "PRAGMA writable_schema = ON",
    "PRAGMA query_only = OFF",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA wal_checkpoint(TRUNCATE)",
    "PRAGMA user_version = 9",
    "PRAGMA hard_heap_limit = 0",
]
ESCAPES = [
    "ATTACH '{folder}/evil.db' AS evil",
    "ATTACH ':memory:' AS evil",
    "DETACH main",
    "VACUUM INTO '{folder}/evil.db'",
    "SELECT load_extension('{folder}/evil.so')",
    "SELECT LOAD_EXTENSION('{folder}/evil.so')",
    "SELECT writefile('{folder}/evil', 'x')",
    "SELECT readfile('/etc/passwd')",
    "SELECT edit('x', 'sh')",
    "SELECT fts3_tokenizer('simple')",
    "SELECT fts3_tokenizer('simple', x'00')",
    "SELECT * FROM sqlite_dbpage",
    "SELECT * FROM dbstat",
    "SELECT * FROM sqlite_stmt",
    "SELECT * FROM pragma_database_list",
    "SELECT * FROM pragma_table_info('calls')",
    "PRAGMA database_list",
    "PRAGMA temp_store_directory = '{folder}'",
    "SELECT 1; DROP TABLE calls",
    "SELECT 1; SELECT 2",
    "SELECT 1 -- x\n; DELETE FROM calls",
    "SELECT 1 \0; DELETE FROM calls",
    "SELECT ?1",
    "SELECT :name",
]
LARGE = [
    "SELECT randomblob(1000000000)",
    "SELECT zeroblob(1000000000)",
    "SELECT hex(zeroblob(500000000))",
    "SELECT printf('%1000000000d', 1)",
    "SELECT format('%.*c', 1000000000, 'x')",
    "WITH v_calls AS (SELECT printf('%.*c', 1000000000, 'x')) SELECT * FROM v_calls",
    "WITH RECURSIVE r(x) AS (SELECT 'a' UNION ALL SELECT x || x FROM r) SELECT max(length(x)) FROM r",
    "SELECT replace(group_concat(comm), 'a', group_concat(comm || comm)) FROM calls",
    "SELECT trim('x', group_concat(comm)) FROM calls",
    "SELECT json_patch('{}', '{}')",
    "SELECT 'x' LIKE '" + "%a" * 60 + "'",
    "SELECT '" + "x" * 30_000 + "'",
    "SELECT " + "(" * 200 + "1" + ")" * 200,
    "SELECT 1" + " + 1" * 200,
    "SELECT 1" + " UNION ALL SELECT 1" * 100,
    "SELECT " + ", ".join("1" for _ in range(500)),
    "SELECT max(" + ", ".join("1" for _ in range(50)) + ")",
]
ENDLESS = [
    f"{NUMBERS} SELECT count(*) FROM r",
    f"{NUMBERS} SELECT x FROM r ORDER BY x DESC",
    "WITH RECURSIVE r(x) AS (SELECT 1 UNION SELECT x + 1 FROM r) SELECT max(x) FROM r",
    "SELECT count(*) FROM calls a, calls b, calls c, calls d",
    "SELECT a.* FROM calls a, calls b, calls c ORDER BY random()",
    "SELECT DISTINCT a.seq || b.seq FROM calls a, calls b, calls c LIMIT 1 OFFSET 100000000",
    "SELECT count(*) FROM v_calls a, v_calls b, v_counts c",
    f"{NUMBERS} SELECT group_concat(x) FROM r",
    f"{NUMBERS} SELECT json_group_array(x) FROM r",
    f"{NUMBERS}, t AS (SELECT group_concat(comm) a FROM calls) SELECT sum(instr(a, a || 1)) FROM r, t",
]
NONSENSE = [
    "",
    ";",
    "--",
    "SELECT",
    "SELEC 1",
    "SELECT * FROM nothing",
    "SELECT nothing FROM calls",
]

PAGE = Path(__file__).resolve().parents[3] / "docs" / "store.md"
EXAMPLES = [
    statement
    for block in re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for statement in re.split(r";\n\s*", block)
    if statement
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    activities = [*day(3_000, 10), WhoActivity(T0, Who(9, command="hog --all")), kept_waiting(9)]
    activities += [
        reading(process, 12, collectives(range(1, 5 - rank)), rank=rank)
        for rank, process in enumerate(ranks(2))
    ]
    return write(tmp_path_factory.mktemp("store") / "store.db", activities, blame=True)


def kept_waiting(pid):
    wait = Wait(0, Culprit(pid, 0, "hog"), None, wire.STATE_NONE, "", None)
    where = (wire.STATE_RUN_QUEUE, wire.CONTEXT_GAP)
    return times(11, thread_time(image(name="trainer"), *where, 0, ended_ns=5, wait=wait))


def content(path):
    return {file.name: file.read_bytes() for file in path.parent.iterdir() if "-" not in file.name}


def refused(path, sql, **limits):
    with pytest.raises(QueryError) as error:
        ask(path, sql, QueryLimits()._replace(**limits))
    assert str(error.value)
    return error.value


def test_there_are_enough_attempts():
    """Each in its own way."""
    attempts = WRITES + ESCAPES + LARGE + ENDLESS

    assert len(set(attempts)) == len(attempts) > 80


@pytest.mark.parametrize("sql", WRITES)
def test_nothing_can_be_written(path, sql):
    """Refused before it begins; the files are as they were."""
    before = content(path)

    error = refused(path, sql)

    assert str(error).startswith("refused: ")
    assert content(path) == before


@pytest.mark.parametrize("sql", ESCAPES)
def test_nothing_outside_can_be_reached(path, sql):
    """No file, no code, no second statement."""
    before = content(path)

    refused(path, sql.replace("{folder}", str(path.parent)))

    assert content(path) == before


@pytest.mark.parametrize("sql", LARGE)
def test_nothing_grows_beyond_its_limit(path, sql):
    """Refused, and soon."""
    begin_s = time.thread_time()

    refused(path, sql, time_s=10.0)

    assert time.thread_time() - begin_s < GRACE_S


@pytest.mark.parametrize("sql", ENDLESS)
def test_nothing_takes_longer_than_its_time(path, sql):
    """Or more memory than there is for it, whichever comes first."""
    begin_s = time.thread_time()

    error = refused(path, sql, time_s=0.2)

    assert str(error) in (
        "the answer takes longer than 0.2 s",
        "the answer needs more than 256 MiB of memory",
    )
    assert time.thread_time() - begin_s < GRACE_S


def test_memory_is_bounded(path):
    """Sorting rows without end is over before the time is."""
    sql = f"{NUMBERS} SELECT x, '{'long' * 200}' || x FROM r ORDER BY x DESC"
    error = refused(path, sql, time_s=3_600.0)

    assert str(error) == "the answer needs more than 256 MiB of memory"
    assert "less time" in error.hint


@pytest.mark.parametrize("sql", NONSENSE)
def test_what_is_no_question_is_said_to_be_none(path, sql):
    """With a hint where to look."""
    assert refused(path, sql).hint


def test_an_answer_has_names_and_rows(path):
    """Also one of a table of values, or of JSON."""
    assert ask(path, "SELECT 1 AS a, 'x' AS b, NULL, 2.5, x'00'", QueryLimits()) == (
        ("a", "b", "NULL", "2.5", "x'00'"), ((1, "x", None, 2.5, b"\0"),), "",
    )  # fmt: skip
    assert ask(path, "VALUES (1), (2)", QueryLimits()).rows == ((1,), (2,))
    assert ask(path, "SELECT value FROM json_each('[3, 4]')", QueryLimits()).rows == ((3,), (4,))
    assert ask(path, "SELECT count(*) FROM v_counts", QueryLimits()).rows == ((12,),)


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("instr('naïve', 'ï')", 3),
        ("instr('x', 'y')", 0),
        ("instr(NULL, 'y')", None),
        ("replace('aXbX', 'X', 'yy')", "ayybyy"),
        ("replace('a', '', 'y')", "a"),
        ("replace('a', NULL, 'y')", None),
    ],
)
def test_what_stands_in_for_a_function_does_what_it_did(path, sql, value):
    """In time that grows with the text, and not with its square."""
    assert ask(path, f"SELECT {sql}", QueryLimits()).rows == ((value,),)


def test_rows_beyond_the_limit_are_left_out_and_that_is_said(path):
    """Exactly as many are given as were asked for."""
    whole = ask(path, "SELECT seq FROM readings", QueryLimits(rows=31))
    part = ask(path, "SELECT seq FROM readings", QueryLimits(rows=30))

    assert (len(whole.rows), whole.cut) == (31, "")
    assert (len(part.rows), part.cut) == (30, "only the first 30 rows are shown")


def test_wide_rows_are_taken_one_at_a_time(path):
    """What would not be given is not held in memory either."""
    wide = f"replace('{'a' * 1_000}', 'a', '{'b' * 400}')"
    sql = f"{NUMBERS} SELECT {', '.join([f'{wide} || x'] * 10)} FROM r LIMIT 101"
    tracemalloc.start()
    try:
        answer = ask(path, sql, QueryLimits(bytes=9_000_000))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert [sum(map(len, row)) for row in answer.rows] == [4_000_010, 4_000_010]
    assert peak_bytes < 30_000_000


def test_bytes_beyond_the_limit_are_left_out_and_that_is_said(path):
    """Rows stay whole."""
    answer = ask(path, "SELECT attributes FROM processes, readings", QueryLimits(bytes=1_000))

    assert 0 < len(answer.rows) < 20
    assert answer.cut == f"only {len(answer.rows)} rows are shown: more than 1,000 bytes"


def test_there_is_nothing_to_ask(tmp_path):
    """Without a store."""
    with pytest.raises(StoreError, match="no store"):
        ask(tmp_path / "store.db", "SELECT 1", QueryLimits())


@pytest.mark.parametrize("sql", EXAMPLES)
def test_questions_in_the_documentation_have_answers(path, sql):
    """Who copies one gets what it promises."""
    assert ask(path, sql, QueryLimits()).rows

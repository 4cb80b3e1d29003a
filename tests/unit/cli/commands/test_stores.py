"""Verbs that write a store, or explain one."""

import json
import os
import sqlite3
from contextlib import closing

import pytest

from otel_gpu import cli, config
from otel_gpu.cli import flight_recorder
from otel_gpu.cli.flight_recorder import live_store, wants_store
from otel_gpu.errors import StoreError
from otel_gpu.faults import Faults
from otel_gpu.recorder.reader import StoreReader
from otel_gpu.recorder.recorder import open_writer
from tests.activities import capture
from tests.replay.make_recordings import recording_path
from tests.schemas import REPORT
from tests.unit.cli.commands import starved
from tests.unit.recorder.stores import ask, read

OTHER_STORY = (
    "1 capture of this time left out, which began at 2025-10-09 08:53:20.000000 UTC: of another "
    "host or boot than what was written last, or with other histograms. Choose a window "
    "(--from, --to) that holds no others, or replay them into a store of their own."
)


@pytest.fixture
def recording(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    return starved.write(tmp_path / "starved.otelgpu")


@pytest.fixture
def store(recording, tmp_path):
    path = tmp_path / "store.db"
    assert cli.main(["replay", str(recording), "--store", str(path)]) == 0
    return path


def document_of(capsys, *arguments):
    capsys.readouterr()
    assert cli.main(["explain", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_replay_fills_a_store(store, capsys):
    """With calls, chains and incidents; and nobody is asked for an endpoint."""
    assert capsys.readouterr().err == ""
    assert ask(store, "SELECT count(*) FROM calls") == [(1,)]
    assert ask(store, "SELECT kind FROM chains ORDER BY seq") == [("slow_call",), ("slow_gap",)]
    assert ask(store, "SELECT count(*) > 0 FROM incidents") == [(1,)]


def test_several_replays_share_a_store(store, capsys):
    """One after the other."""
    assert cli.main(["replay", str(recording_path("training")), "--store", str(store)]) == 0

    assert ask(store, "SELECT count(*) FROM captures") == [(2,)]


@pytest.mark.parametrize(
    "window",
    [
        [],
        ["--since", "-6s"],
        ["--since", "4.2s"],
        ["--from", "+1.7s", "--to", "+1.8s"],
        ["--from", "1760000001.65", "--to", "2025-10-09T08:53:21.68Z"],
        ["--to", "+1s"],
        ["--pid", "4242"],
        ["--pid", "1"],
    ],
)
def test_a_store_is_explained_as_its_recording(recording, store, capsys, window):
    """Whatever part of it is asked for."""
    from_recording = document_of(capsys, recording, *window)
    from_store = document_of(capsys, "--store", store, *window)

    REPORT.validate(from_store)
    assert from_store.pop("source") == str(store)
    assert from_recording.pop("source") == str(recording)
    assert from_store == from_recording


def test_the_text_is_for_people(store, capsys):
    """As of a recording."""
    assert cli.main(["explain", "--store", str(store)]) == 0

    assert (
        "82 %   180 ms     which cc1plus (900/901) preempted  preemption" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["explain"], 0),
        (["explain", "--since", "5s"], 0),
        (["explain", "--from", "+2s", "--to", "+1s"], 2),
        (["report"], 0),
        (["report", "--from", "+2s", "--to", "+1s"], 2),
        (["stacks", "--waits"], 0),
        (["stacks", "--from", "nonsense"], 2),
        (["query", "--store", "STORE", "SELECT 1"], 0),
    ],
)
def test_no_verb_keeps_a_store_open(store, capsys, monkeypatch, arguments, code):
    """Whether it succeeds or not: what is opened is closed, and not left to chance."""
    opened, closed = [], []
    really_open, really_close = StoreReader.__init__, StoreReader.close

    def note_open(self, path):
        opened.append(self)
        really_open(self, path)

    def note_close(self):
        closed.append(self)
        really_close(self)

    monkeypatch.setattr(StoreReader, "__init__", note_open)
    monkeypatch.setattr(StoreReader, "close", note_close)
    given = [str(store) if argument == "STORE" else argument for argument in arguments]
    named = given if "--store" in given else [*given, "--store", str(store)]

    assert cli.main(named) == code

    assert len(opened) == 1
    assert closed == opened


def test_without_anything_named_the_flight_recorder_is_explained(store, capsys, tmp_path):
    """The first question after something went wrong is a short one."""
    default = tmp_path / "state" / "store.db"
    default.parent.mkdir(parents=True)
    store.rename(default)

    document = document_of(capsys, "--since", "5m")

    assert document["source"] == str(default)
    assert len(document["chains"]) == 2


def test_without_a_flight_recorder_something_must_be_named(recording, capsys):
    """As ever."""
    assert cli.main(["explain"]) == 2
    assert "name what to watch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["REC", "--store", "STORE"], "name a recording or a store, not both"),
        (["--store", "STORE", "--all"], "a store is explained as it is"),
        (["--store", "STORE", "--duration", "1"], "a store is explained as it is"),
        (["--store", "STORE", "--", "true"], "a store is explained as it is"),
        (["--store", "STORE", "--from", "+2s", "--to", "+1s"], "the window ends before it begins"),
    ],
)
def test_what_makes_no_sense_is_refused(recording, store, capsys, arguments, message):
    """Before anything is read or captured."""
    places = {"REC": str(recording), "STORE": str(store)}

    assert cli.main(["explain", *(places.get(part, part) for part in arguments)]) == 2
    assert message in capsys.readouterr().err


def test_what_a_store_cannot_tell_is_in_the_notes(store, capsys):
    """An earlier capture that cannot be compared, and rows that were lost."""
    with open_writer(store, live=False) as writer:
        later = capture(unix_ns=1_760_000_100 * 10**9)
        writer.observe(later)
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("INSERT INTO losses VALUES ('disk_full', 7)")
        connection.commit()

    document = document_of(capsys, "--store", store)

    assert document["notes"][-2:] == [
        OTHER_STORY,
        "Over the whole life of the store: rows that did not reach the store: disk_full 7.",
    ]


def test_an_empty_window_says_so(store, capsys):
    """Nothing is no proof that nothing was wrong."""
    document = document_of(capsys, "--store", store, "--from", "2026-01-01")

    assert "The store has nothing of this time." in document["notes"]


@pytest.mark.parametrize("moment", ["99999999999999999999", "-99999999999999h", "+99999999999h"])
@pytest.mark.parametrize("option", ["--from", "--to"])
def test_moments_that_no_store_has_are_moments(store, capsys, option, moment):
    """Before everything, or after everything: no number of the store is that large."""
    told = document_of(capsys, "--store", store, f"{option}={moment}")

    is_empty = (option == "--from") == (not moment.startswith("-"))
    assert ("The store has nothing of this time." in told["notes"]) == is_empty


def test_a_damaged_store_is_explained_as_far_as_it_goes(store, capsys):
    """What is whole is told, then what is wrong; the exit code is 1."""
    content = bytearray(store.read_bytes())
    with closing(sqlite3.connect(store)) as connection:
        query = "SELECT rootpage FROM sqlite_schema WHERE name = 'gaps'"
        (page,) = connection.execute(query).fetchone()
    content[(page - 1) * 4_096 : page * 4_096] = bytes(4_096)
    store.write_bytes(content)
    capsys.readouterr()

    assert cli.main(["explain", "--store", str(store), "--json"]) == 1

    captured = capsys.readouterr()
    assert json.loads(captured.out)["notes"][-1].startswith("The store is damaged")
    assert "error: " in captured.err
    assert "damaged" in captured.err


def settings(**store):
    return config.load(None, {}, {f"store.{name}": value for name, value in store.items()})


@pytest.mark.parametrize(
    ("store", "environ", "wanted"),
    [
        ({}, {}, True),
        ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4317"}, False),
        ({}, {"OTEL_TRACES_EXPORTER": "none"}, False),
        ({"path": "x.db"}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4317"}, True),
        ({"enabled": "on"}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4317"}, True),
        ({"enabled": "off"}, {}, False),
        ({"enabled": "off", "path": "x.db"}, {}, False),
    ],
)
def test_when_a_capture_has_a_flight_recorder(monkeypatch, store, environ, wanted):
    """When nothing else would keep it, or when it is asked for."""
    for name in flight_recorder.DESTINATIONS:
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    assert wants_store(settings(**store)) is wanted


def test_a_capture_goes_on_without_a_store_that_cannot_be_written(tmp_path, caplog):
    """Why is said, and what to do."""
    (tmp_path / "thesis.txt").write_text("a thesis")

    with live_store(settings(path=str(tmp_path / "thesis.txt")), Faults()) as store:
        assert store is None

    assert "is not a store, so it is not touched; the capture goes on without" in caplog.text
    assert "name another file" in caplog.text


def test_a_replay_fails_where_a_capture_goes_on(recording, capsys, tmp_path):
    """There it is all that was asked for."""
    (tmp_path / "thesis.txt").write_text("a thesis")

    assert cli.main(["replay", str(recording), "--store", str(tmp_path / "thesis.txt")]) == 1
    assert "is not a store" in capsys.readouterr().err


def test_losses_of_a_capture_are_told_at_its_end(tmp_path, caplog):
    """By reason, with the limits that the operator set."""
    path = tmp_path / "store.db"
    chosen = settings(path=str(path), max_bytes=16 << 20, max_age_h=1.0)
    with live_store(chosen, Faults()) as isolated:
        store = isolated.part
        store.observe(capture())
        store._lost["disk_too_slow"] += 1_234
        assert store._limits.max_bytes == 16 << 20
        assert store._limits.max_age_s == 3_600.0
        with pytest.raises(StoreError, match="is being written"):
            open_writer(path, live=True)

    assert "rows that did not reach the store: disk_too_slow 1,234" in caplog.text
    assert len(read(path)) == 1

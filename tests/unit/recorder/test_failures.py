"""What can be wrong with a place or a file: each has its message, and nothing escapes."""

import contextlib
import logging
import os
import shutil
import sqlite3
import stat
import struct
import subprocess
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.days import day
from otel_gpu.cli.flight_recorder import default_path
from otel_gpu.errors import StoreError
from otel_gpu.recorder import files
from otel_gpu.recorder.limits import StoreLimits
from otel_gpu.recorder.lock import lock_path
from otel_gpu.recorder.queries import QueryLimits
from otel_gpu.recorder.reader import StoreReader
from otel_gpu.recorder.recorder import open_writer
from otel_gpu.recorder.tables import schema
from otel_gpu.wire.frames import Frame
from tests.activities import SECOND, call, call_stack, capture, image
from tests.unit.recorder.stores import ask, read, report_of, write

MS = 1_000_000
TRAINER = image(42)


def some_calls(count):
    return [call(TRAINER, "cudaMalloc", SECOND + n * MS, MS) for n in range(count)]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of two megabytes."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], check=False
    )
    if mounted.returncode:
        pytest.skip("this host lets nobody mount a file system")
    yield folder
    subprocess.run(["umount", folder], check=True)


def fill(folder):
    """Leave no room on a file system; the file that takes it."""
    with (folder / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for _ in range(1_000):
            file.write(bytes(4_096))
    return folder / "filler"


def refusal(path, **writer):
    with pytest.raises(StoreError) as error:
        open_writer(path, live=False, **writer)
    assert error.value.hint
    return str(error.value)


def test_a_full_disk_loses_rows_and_nothing_else(small_disk, caplog):
    """They are counted, it is said once, and writing goes on when there is room again."""
    path = small_disk / "store.db"
    limits = StoreLimits(max_bytes=1 << 30, batch_rows=500)
    writer = open_writer(path, limits, live=False)
    writer.observe(capture())
    filler = fill(small_disk)
    for activity in some_calls(5_000):
        writer.observe(activity)
    lost = writer.lost()
    filler.unlink()
    for activity in some_calls(1_000):
        writer.observe(activity)

    assert not writer.close()
    assert writer.lost() == lost
    assert 4_000 < lost["disk_full"] <= 5_000
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"{path}: cannot be written: the disk is full" in caplog.text
    with StoreReader(path) as reader:
        assert reader.losses() == lost
        found = list(reader.activities())
    # What rows refer to was not lost with them.
    assert found[0] == capture()
    assert len(found) == 6_001 - lost["disk_full"]
    assert found[-1].process.service_name == "trainer"


def test_stacks_of_a_full_disk_are_written_when_there_is_room(small_disk):
    """What piled up meanwhile goes in pieces: the log may not grow as large as that."""
    path = small_disk / "store.db"
    limits = StoreLimits(max_bytes=1_300_000, batch_rows=50)

    def calls_at(numbers):
        for number in numbers:
            frames = (Frame("native", f"f{number}", module="x" * 500),) * 7
            stack = call_stack(number, frames)
            yield call(TRAINER, "cudaMalloc", SECOND + number * MS, MS, stack=stack)

    writer = open_writer(path, limits, live=False)
    writer.observe(capture())
    filler = fill(small_disk)
    for activity in calls_at(range(1, 402)):
        writer.observe(activity)
    lost = writer.lost()["disk_full"]
    filler.unlink()
    log = path.with_name(f"{path.name}-wal")
    sizes = []
    for activity in calls_at(range(300, 502)):
        writer.observe(activity)
        sizes.append(path.stat().st_size + log.stat().st_size)

    assert not writer.close()
    # Stacks of rows that were lost are given up, and counted too.
    dropped = writer.lost()["names_disk_too_slow"]
    assert writer.lost() == {"disk_full": lost, "names_disk_too_slow": dropped}
    assert 0 < dropped < lost
    assert lost > 300
    assert max(sizes) <= limits.max_bytes
    found = read(path)
    assert {activity.stack.id for activity in found[1:]} >= set(range(400, 502))


def test_a_disk_that_is_full_from_the_beginning(small_disk):
    """No empty file is left behind."""
    fill(small_disk)

    assert refusal(small_disk / "store.db").endswith("cannot be written: the disk is full")
    assert not (small_disk / "store.db").exists()


def test_a_read_only_folder_can_be_read_and_not_written(small_disk):
    """A store on a medium that was taken out of its machine."""
    path = write(small_disk / "store.db", [capture(), *some_calls(10)])
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)

    assert "Read-only file system" in refusal(path)
    assert "Read-only file system" in refusal(small_disk / "other.db")
    assert len(read(path)) == 11
    assert len(ask(path, "SELECT * FROM calls")) == 10


def test_a_log_that_cannot_be_read_where_it_is(small_disk):
    """SQLite makes a file beside it for that; what to do about it is said."""
    writer = open_writer(small_disk / "first.db", StoreLimits(batch_rows=5), live=False)
    for activity in [capture(), *some_calls(10)]:
        writer.observe(activity)
    for suffix in ("", "-wal"):
        shutil.copy(small_disk / f"first.db{suffix}", small_disk / f"copy.db{suffix}")
    writer.close()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)

    with pytest.raises(StoreError, match="cannot be read: it cannot be opened") as error:
        StoreReader(small_disk / "copy.db")
    assert error.value.hint == "copy it, with the -wal beside it, to a folder that can be written"


def test_a_file_of_another_user_is_left_alone(tmp_path):
    """Root would leave files there that its owner cannot remove."""
    path = write(tmp_path / "store.db", [capture()])
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a file away")
    os.chown(path, 65_534, 65_534)

    assert refusal(path) == f"{path}: belongs to another user (uid 65534)"


def test_what_is_no_file_is_left_alone(tmp_path):
    """A folder, a pipe, a device."""
    assert refusal(tmp_path) == f"{tmp_path}: is not a file"
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "pipe") == f"{tmp_path / 'pipe'}: is not a file"


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    """A file is in its way."""
    (tmp_path / "file").write_text("")

    assert refusal(tmp_path / "file" / "store.db").startswith(
        f"{tmp_path / 'file'}: cannot be created"
    )


@pytest.mark.parametrize("content", [b"a thesis", bytes(5_000), b"SQLite format 3\0" + bytes(99)])
def test_what_is_no_store_is_not_touched(tmp_path, content):
    """Neither by a writer, whatever it was told, nor by a reader."""
    path = tmp_path / "thesis.txt"
    path.write_bytes(content)

    assert refusal(path) == f"{path}: exists and is not a store, so it is not touched"
    with pytest.raises(StoreError, match="is not a"):
        StoreReader(path)
    assert path.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


def test_another_database_is_not_touched(tmp_path):
    """SQLite has many users."""
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE calls (seq INTEGER)")
        connection.commit()
    before = path.read_bytes()

    assert "is not a store" in refusal(path)
    with pytest.raises(StoreError, match="is not a store"):
        StoreReader(path)
    assert path.read_bytes() == before


def test_there_is_no_store(tmp_path):
    """A reader makes none."""
    with pytest.raises(StoreError, match="no store") as error:
        StoreReader(tmp_path / "store.db")

    assert "otel-gpu run --store" in error.value.hint
    assert list(tmp_path.iterdir()) == []


def of_version(path, version):
    write(path, [capture(), *some_calls(10)])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    return path.read_bytes()


@pytest.mark.parametrize(
    ("version", "problem", "hint"),
    [
        (schema.VERSION + 1, f"is a store of version {schema.VERSION + 1}; this", "upgrade"),
        (0, "is not a store", "name another file"),
    ],
)
def test_what_no_older_otel_gpu_wrote_is_refused(tmp_path, version, problem, hint):
    """It says why, and is not altered."""
    path = tmp_path / "store.db"
    before = of_version(path, version)

    for attempt in (lambda: open_writer(path, live=False), lambda: StoreReader(path)):
        with pytest.raises(StoreError, match=problem) as error:
            attempt()
        assert hint in error.value.hint
    assert path.read_bytes() == before


def test_a_store_of_an_older_version_is_set_aside(tmp_path, caplog):
    """By whoever would write it, whole, with a warning that says where; the latest is kept."""
    path = tmp_path / "store.db"
    before = of_version(path, 1)
    (tmp_path / "store.db.version-1-1700000000").write_text("one from before")

    write(path, [capture(), *some_calls(3)])

    (aside,) = tmp_path.glob("store.db.version-*")
    assert aside.read_bytes() == before
    assert (
        f"{path}: is a store of version 1; this otel-gpu uses version {schema.VERSION}; "
        f"it is {aside} now, and a new one is begun" in caplog.text
    )
    assert len(read(path)) == 4


def test_a_reader_of_an_older_version_says_what_to_do(tmp_path):
    """And leaves the file as it is."""
    path = tmp_path / "store.db"
    before = of_version(path, 1)

    with pytest.raises(StoreError, match="is a store of version 1; this otel-gpu uses") as error:
        StoreReader(path)

    assert error.value.hint.startswith("read it with the otel-gpu that wrote it; the next")
    assert path.read_bytes() == before
    assert list(tmp_path.glob("store.db.version-*")) == []


def test_a_second_writer_is_told_who_the_first_one_is(tmp_path):
    """And can write when that is gone."""
    path = tmp_path / "store.db"
    with open_writer(path, live=False):
        assert refusal(path) == f"{path}: is being written by process {os.getpid()}"

    write(path, some_calls(1))


def test_a_damaged_store_is_set_aside(tmp_path, caplog):
    """Under a name of its own, of which the latest is kept; and a new one is begun."""
    path = write(tmp_path / "store.db", [capture(), *some_calls(1_000)])
    damaged = bytearray(path.read_bytes())
    damaged[100:200] = bytes(100)
    path.write_bytes(damaged)
    old = tmp_path / "store.db.corrupt-1700000000"
    old.write_text("an older one")
    other = tmp_path / "store.db.corrupt-notes"
    other.write_text("somebody's")

    write(path, [capture()])

    (aside,) = [f for f in tmp_path.glob("store.db.corrupt-*") if f != other]
    assert aside != old
    assert aside.read_bytes() == damaged
    assert str(aside) in caplog.text
    assert len(read(path)) == 1
    assert other.exists()


def test_a_row_that_no_memory_is_enough_for_is_damage(tmp_path):
    """SQLite says that it has no memory, though it asked for none. A writer begins a new store."""
    corpus = Path(__file__).parents[2] / "corpus" / "nsys" / "no_memory_for_a_row"
    content = bytearray(corpus.read_bytes())
    # Where a database says of which version it is, and of what program.
    struct.pack_into(">I4xI", content, 60, schema.VERSION, schema.APPLICATION_ID)
    path = tmp_path / "store.db"
    path.write_bytes(content)

    with pytest.raises(StoreError, match="damaged"):
        StoreReader(path)

    open_writer(path, live=False).close()
    (aside,) = tmp_path.glob("store.db.corrupt-*")
    assert aside.read_bytes() == content


def test_a_log_is_set_aside_before_its_store(tmp_path, monkeypatch):
    """Whoever is killed between the two leaves no log that the next store takes for its own."""
    for suffix in ("", "-wal", "-shm"):
        (tmp_path / f"store.db{suffix}").write_text(suffix)
    order = []
    replace = Path.replace

    def note(self, target):
        order.append(self.name)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", note)
    aside = files._set_aside(tmp_path / "store.db", "corrupt")

    assert order == ["store.db-wal", "store.db"]
    assert sorted(one.name for one in tmp_path.iterdir()) == [aside.name, f"{aside.name}-wal"]


def test_a_log_without_its_file_is_nobodys(tmp_path):
    """Whoever removed the file and left the log behind gets a new store, and not the old rows."""
    path = tmp_path / "store.db"
    writer = open_writer(path, StoreLimits(batch_rows=5), live=False)
    for activity in [capture(), *some_calls(10)]:
        writer.observe(activity)
    log = (tmp_path / "store.db-wal").read_bytes()
    writer.close()
    path.unlink()
    (tmp_path / "store.db-wal").write_bytes(log)

    write(path, some_calls(3))

    assert len(read(path)) == 3


def test_a_damaged_store_that_cannot_be_set_aside_is_an_error_of_ours(tmp_path):
    """Somebody's folder has the name of an older one."""
    path = write(tmp_path / "store.db", [capture()])
    path.write_bytes(bytes(path.stat().st_size))
    (tmp_path / "store.db.corrupt-1700000000").mkdir()

    assert "cannot be used as it is, nor set aside" in refusal(path)


@pytest.mark.parametrize("unreached", [0, 1, (1 << 40), (1 << 64) - 2])
def test_a_lock_that_was_scribbled_on_says_nothing(tmp_path, unreached):
    """More rows than any memory holds were not lost with a writer."""
    path = write(tmp_path / "store.db", [capture(), *some_calls(10)])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE writers SET ended_unix_ns = NULL")
        connection.commit()
    lock_path(path).write_bytes(struct.pack("=QQQ", 7, 1, unreached))

    with StoreReader(path) as reader:
        assert reader.losses() == {}
    write(path, [capture()])
    with StoreReader(path) as reader:
        assert reader.losses() == {}


def test_a_store_whose_header_is_gone_is_set_aside_too(tmp_path):
    """That it was one is known from the lock beside it."""
    path = write(tmp_path / "store.db", [capture()])
    path.write_bytes(bytes(path.stat().st_size))

    write(path, [capture()])

    assert len(read(path)) == 1
    assert len(list(tmp_path.glob("store.db.corrupt-*"))) == 1


def test_a_store_with_other_tables_is_damaged(tmp_path):
    """Whoever put a trigger there may have done more."""
    path = write(tmp_path / "store.db", [capture()])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TRIGGER t AFTER INSERT ON calls BEGIN SELECT 1; END")

    with pytest.raises(StoreError, match="is damaged"):
        StoreReader(path)
    write(path, [capture()])
    assert len(list(tmp_path.glob("store.db.corrupt-*"))) == 1


def test_stores_are_private(tmp_path):
    """Command lines are in them."""
    path = write(tmp_path / "new" / "folder" / "store.db", [capture()])

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o644)
    write(path, [])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_symbolic_link_is_refused(tmp_path):
    """Another user can have put it there; a folder may be a link."""
    (tmp_path / "large").mkdir()
    (tmp_path / "store.db").symlink_to(tmp_path / "large" / "store.db")
    (tmp_path / "folder").symlink_to("large")

    assert "is a symbolic link" in refusal(tmp_path / "store.db")
    write(tmp_path / "folder" / "store.db", [capture()])

    names = sorted(file.name for file in (tmp_path / "large").iterdir())
    assert names == ["store.db", "store.db.lock"]
    assert len(read(tmp_path / "folder" / "store.db")) == 1


@pytest.mark.parametrize("content", [None, b"", b"theirs"])
@pytest.mark.parametrize("after", ["_is_foreign", "make_private"])
def test_a_symbolic_link_that_is_put_there_meanwhile_is_not_followed(
    tmp_path, monkeypatch, content, after
):
    """Who can write to the folder can do so after the checks; what it leads to stays as it is."""
    target, path = tmp_path / "target", tmp_path / "store.db"
    if content is not None:
        target.write_bytes(content)
        target.chmod(0o644)
    before = target.stat() if target.exists() else None
    module = files if after == "_is_foreign" else files.safe_files
    done = getattr(module, after)

    def swap(path, **arguments):
        result = done(path, **arguments)
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        return result

    monkeypatch.setattr(module, after, swap)
    assert refusal(path)
    assert (target.stat() if target.exists() else None) == before
    assert content is None or target.read_bytes() == content


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", ".lock"])
def test_files_of_another_user_are_refused(tmp_path, suffix):
    """Who owns the lock could hold it; who owns the log could say what is in the store."""
    path = tmp_path / "store.db"
    foreign = tmp_path / f"store.db{suffix}"
    foreign.write_bytes(b"")
    os.chown(foreign, 4242, 4242)

    assert "belongs to another user (uid 4242)" in refusal(path)
    assert foreign.read_bytes() == b""


@pytest.mark.parametrize(
    "harm",
    [
        "UPDATE chunks SET last_seq = 9223372036854775807",
        "UPDATE writers SET writer = 9223372036854775807",
    ],
)
def test_a_number_that_nothing_can_follow_is_damage(tmp_path, harm):
    """The store is set aside once and kept, and what follows is written to a new one."""
    path = write(tmp_path / "store.db", [capture(), *some_calls(10)])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(harm)
        connection.commit()

    for _ in range(3):
        write(path, [capture()])

    (aside,) = tmp_path.glob("store.db.corrupt-*")
    with closing(sqlite3.connect(aside)) as connection:
        assert connection.execute("SELECT count(*) FROM calls").fetchone() == (10,)
    assert len(read(path)) == 3


def test_a_lock_of_impossible_numbers_is_not_believed(tmp_path):
    path = write(tmp_path / "store.db", [capture(), *some_calls(10)])
    lock_path(path).write_bytes(b"\xff" * 24)

    for _ in range(3):
        write(path, [capture()])

    assert list(tmp_path.glob("store.db.corrupt-*")) == []
    assert len(read(path)) == 14


def test_a_lock_with_the_mark_of_damage_costs_a_store_once(tmp_path):
    """The next start believes it; later ones use the new store."""
    path = write(tmp_path / "store.db", [capture(), *some_calls(10)])
    lock_path(path).write_bytes(struct.pack("=QQQ", 7, (1 << 64) - 1, 1))

    for _ in range(3):
        write(path, [capture()])

    (aside,) = tmp_path.glob("store.db.corrupt-*")
    with closing(sqlite3.connect(aside)) as connection:
        assert connection.execute("SELECT count(*) FROM calls").fetchone() == (10,)
    assert len(read(path)) == 3


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "store.db"
    return write(path, day(400, 4), StoreLimits(batch_rows=50), blame=True).read_bytes()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_escapes(sound, tmp_path, data):
    """
    Whatever bytes are changed: a reader reads what is sound or says that it cannot, a
    question has an answer or an error, and a writer goes on or begins anew.
    """
    path = tmp_path / f"{os.urandom(8).hex()}.db"
    damaged = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 5))):
        start = data.draw(st.integers(0, len(damaged) - 1))
        length = data.draw(st.sampled_from([1, 1, 2, 8, 500]))
        byte = data.draw(st.integers(0, 255))
        damaged[start : start + length] = bytes([byte]) * len(damaged[start : start + length])
    path.write_bytes(damaged)
    path.with_name(f"{path.name}.lock").write_bytes(b"")
    said = Counter()
    try:
        with StoreReader(path) as reader:
            for attempt in (
                lambda: report_of(reader.activities()),
                lambda: (reader.losses(), reader.extent(), reader.describe()),
                lambda: reader.execute("SELECT * FROM v_calls", QueryLimits(time_s=5)),
                lambda: reader.execute("SELECT * FROM v_counts", QueryLimits(time_s=5)),
            ):
                try:
                    attempt()
                except StoreError as error:
                    said[str(error)] += 1
    except StoreError as error:
        said[str(error)] += 1

    logging.disable(logging.WARNING)
    try:
        writer = open_writer(path, live=False)
        for activity in [capture(), *some_calls(10)]:
            writer.observe(activity)
        writer.close()
    except StoreError as error:
        said[str(error)] += 1
    finally:
        logging.disable(logging.NOTSET)

    assert all(said)


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"STATE_DIRECTORY": "/var/lib/a:/var/lib/b", "HOME": "/"}, "/var/lib/a/store.db"),
        ({"XDG_STATE_HOME": "/s", "HOME": "/h/u"}, "/s/otel-gpu/store.db"),
        ({"HOME": "/h/u"}, "/h/u/.local/state/otel-gpu/store.db"),
    ],
)
def test_the_place_of_the_flight_recorder(monkeypatch, environ, path):
    """What the service manager says, else the user's folder for such things."""
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)

    assert str(default_path(environ)) == path


def test_root_has_a_place_for_the_whole_host(monkeypatch):
    """Wherever root's home is."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    assert str(default_path({"HOME": "/anywhere"})) == "/var/lib/otel-gpu/store.db"

"""Recordings: what is written is read back, and nothing that is read can do harm."""

import os
import random
import resource
import signal
import stat
import struct
import subprocess
import sys
import tracemalloc
import zlib
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu import wire
from otel_gpu.capture.recording import (
    MAX_CHUNK_BYTES,
    RecordingWriter,
    read_recording,
)
from otel_gpu.errors import RecordingError
from otel_gpu.wire.agent_records import clock_record

ONE_CLOCK = bytes.fromhex(
    "4f54454c47505500 0100 0200 5fc23467"
    "18000000 2c000000 24542577"
    "7801d360606060646460d000d1408c0d304105010d2b0056"
    "00000000 ffffffff ffffffff"
)
HEADER = ONE_CLOCK[:16]
END = ONE_CLOCK[-12:]


def write(path, records, **options):
    with RecordingWriter(path, **options) as writer:
        writer.write(records)


def read(path):
    return [record for batch in read_recording(path) for record in batch]


def read_until_error(path):
    records = []
    with pytest.raises(RecordingError) as caught:
        records.extend(record for batch in read_recording(path) for record in batch)
    return records, str(caught.value).removeprefix(f"{path}: "), caught.value.hint


def chunk_of(raw, *, compressed=None, raw_bytes=None, checksum=None):
    packed = zlib.compress(raw) if compressed is None else compressed
    return (
        struct.pack(
            "<III",
            len(packed),
            len(raw) if raw_bytes is None else raw_bytes,
            zlib.crc32(raw) if checksum is None else checksum,
        )
        + packed
    )


def test_a_recording_of_the_first_wire_version_is_read(tmp_path):
    """Its records are handed on as they are."""
    first = bytes.fromhex("4f54454c47505500 0100 0100 9c91194c")
    (tmp_path / "first").write_bytes(first + ONE_CLOCK[len(first) :])

    assert read(tmp_path / "first") == [clock_record(1, 2)]


def test_the_example_in_the_module_is_read_and_written(tmp_path):
    """The bytes that the documentation shows are a recording, and the writer's frame."""
    (tmp_path / "example").write_bytes(ONE_CLOCK)
    write(tmp_path / "a", [clock_record(1, 2)])
    written = (tmp_path / "a").read_bytes()

    assert read(tmp_path / "example") == [clock_record(1, 2)]
    # How zlib packs is its own affair, and differs between its versions.
    assert written[:16] == HEADER
    assert written[20:28] == ONE_CLOCK[20:28]
    assert written[-12:] == END


@settings(deadline=None)
@given(
    batches=st.lists(st.lists(st.binary(max_size=300))), flush_bytes=st.sampled_from([1, 64, 4096])
)
def test_every_written_record_is_read_back(tmp_path_factory, batches, flush_bytes):
    """Reading is the inverse of writing, in order, however it was cut into chunks."""
    path = tmp_path_factory.getbasetemp() / "round-trip"
    with RecordingWriter(path, flush_bytes=flush_bytes) as writer:
        for batch in batches:
            writer.write(batch)

    read_batches = list(read_recording(path))

    assert [record for batch in read_batches for record in batch] == list(
        chain.from_iterable(batches)
    )
    assert all(read_batches)


def test_a_large_recording_is_read_in_small_batches(tmp_path):
    """A batch stays small even where a chunk holds very many records."""
    write(tmp_path / "a", [b"12"] * 10_007, flush_bytes=1 << 20)

    sizes = [len(batch) for batch in read_recording(tmp_path / "a")]

    assert sizes == [4096, 4096, 1815]


def test_the_largest_record_fits_and_a_larger_one_is_a_bug(tmp_path):
    """A chunk takes one record of its whole size; the writer goes on after a refusal."""
    largest = bytes(MAX_CHUNK_BYTES - 4)
    with RecordingWriter(tmp_path / "a") as writer:
        writer.write([b"first", largest, b"last"])
        with pytest.raises(ValueError, match="does not fit"):
            writer.write([largest + b"\0"])

    assert read(tmp_path / "a") == [b"first", largest, b"last"]


def test_only_the_owner_may_read_a_recording(tmp_path):
    """Command lines are in a recording; the umask and an older file do not loosen it."""
    path = tmp_path / "a"
    write(path, [])
    path.chmod(0o644)

    write(path, [b"x"])

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_recording_is_replaced_and_its_reader_not_disturbed(tmp_path):
    """Whoever reads the old recording reads it to its end."""
    write(tmp_path / "a", [b"old"] * 3, flush_bytes=1)
    reader = read_recording(tmp_path / "a")
    first = next(reader)

    write(tmp_path / "a", [b"new"])

    assert [first, *reader] == [[b"old"]] * 3
    assert read(tmp_path / "a") == [b"new"]


def test_a_link_is_refused(tmp_path):
    """Another user can have put it there, and what it names is not what was asked for."""
    (tmp_path / "link").symlink_to("target")

    with pytest.raises(RecordingError, match="is a symbolic link"):
        RecordingWriter(tmp_path / "link")

    assert [entry.name for entry in tmp_path.iterdir()] == ["link"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_recording_of_another_user_is_not_replaced(tmp_path):
    write(tmp_path / "a", [b"x"])
    os.chown(tmp_path / "a", 4242, 4242)

    with pytest.raises(RecordingError, match=r"belongs to another user \(uid 4242\)"):
        RecordingWriter(tmp_path / "a")


@pytest.mark.parametrize("content", [b"precious", b"OTELGP", b"\0" * 100])
def test_what_is_no_recording_is_not_overwritten(tmp_path, content):
    """A mistyped path costs an error, not a file."""
    (tmp_path / "a").write_bytes(content)

    with pytest.raises(RecordingError, match="is not a recording, so it is not overwritten") as e:
        RecordingWriter(tmp_path / "a")

    assert e.value.hint == "name another file, or remove this one"
    assert (tmp_path / "a").read_bytes() == content


def test_a_folder_and_a_device_are_not_overwritten(tmp_path):
    """Only regular files are replaced."""
    for path in (tmp_path, Path("/dev/null")):
        with pytest.raises(RecordingError, match="is not a file"):
            RecordingWriter(path)

    assert Path("/dev/null").is_char_device()


def test_an_empty_file_may_become_a_recording(tmp_path):
    """A file that mktemp made is as good as none."""
    (tmp_path / "a").touch()

    write(tmp_path / "a", [b"x"])

    assert read(tmp_path / "a") == [b"x"]


def test_a_folder_that_is_not_there_is_named(tmp_path):
    """The error says what could not be made and why."""
    with pytest.raises(RecordingError, match="a/b: cannot be created: No such file or directory"):
        RecordingWriter(tmp_path / "a" / "b")


def test_flushed_records_survive_a_killed_writer(tmp_path):
    """After SIGKILL the reader gives every record of the chunks that were written."""
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from otel_gpu.capture.recording import RecordingWriter\n"
        "writer = RecordingWriter(Path(sys.argv[1]), flush_interval_s=1e9)\n"
        "writer.write([b'kept'] * 7)\n"
        "writer.flush()\n"
        "writer.write([b'lost'])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, tmp_path / "a"], check=False)
    assert killed.returncode == -signal.SIGKILL

    records, message, _ = read_until_error(tmp_path / "a")

    assert records == [b"kept"] * 7
    assert message == "ends early; everything before that was read"


def test_a_quiet_capture_is_written_as_well(tmp_path):
    """Records do not wait for others to fill a chunk once the interval is over."""
    with RecordingWriter(tmp_path / "a", flush_interval_s=0) as writer:
        writer.write([b"one"])
        records, _, _ = read_until_error(tmp_path / "a")

    assert records == [b"one"]


def test_a_full_disk_leaves_what_was_written(tmp_path):
    """When the file cannot grow the writer says so once, and whole chunks stay."""
    noise = random.Random(1).randbytes(100_000)  # noqa: S311 - only has to be incompressible
    writer = RecordingWriter(tmp_path / "a", flush_bytes=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, hard))
    try:
        writer.write([noise])
        with pytest.raises(RecordingError, match="cannot continue the recording: File too large"):
            writer.write([noise])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)

    with pytest.raises(ValueError, match="closed"):
        writer.write([b"more"])
    writer.close()
    records, message, _ = read_until_error(tmp_path / "a")
    assert records == [noise]
    assert message == "ends early; everything before that was read"
    assert (tmp_path / "a").stat().st_size < 101_000


def test_every_truncation_is_noticed(tmp_path):
    """A recording cut at any byte gives a prefix of its records, and an error."""
    write(tmp_path / "a", [b"one", b"two", b"three"], flush_bytes=7)
    whole = (tmp_path / "a").read_bytes()
    seen = set()

    for length in range(1, len(whole)):
        (tmp_path / "b").write_bytes(whole[:length])
        records, message, hint = read_until_error(tmp_path / "b")
        assert records == [b"one", b"two", b"three"][: len(records)]
        assert message == "ends early; everything before that was read"
        assert hint == "the agent that wrote it was killed, or the copy is incomplete"
        seen.add(len(records))

    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a recording of otel-gpu"),
        (b"SQLite format 3\0" * 10, "is not a recording of otel-gpu"),
        (b"OTELGPX", "is not a recording of otel-gpu"),
        (HEADER[:8] + b"\0\0" + HEADER[10:], "is damaged: its header is invalid"),
        (HEADER[:-1] + b"\0", "is damaged: its header is invalid"),
        (ONE_CLOCK + b"\0", "is damaged: bytes follow its end"),
        (HEADER + bytes(12), "is damaged: a chunk has an impossible size"),
        (HEADER + b"\xff" * 12, "is damaged: a chunk has an impossible size"),
        (HEADER + chunk_of(b""), "is damaged: a chunk has an impossible size"),
        (
            HEADER + chunk_of(bytes(MAX_CHUNK_BYTES + 1)),
            "is damaged: a chunk has an impossible size",
        ),
        (HEADER + chunk_of(b"a", compressed=b"junk"), "is damaged: a chunk cannot be unpacked"),
        (
            HEADER + chunk_of(bytes(9), raw_bytes=8),
            "is damaged: a chunk differs from its stated length",
        ),
        (
            HEADER + chunk_of(bytes(8), raw_bytes=9),
            "is damaged: a chunk differs from its stated length",
        ),
        (
            HEADER + chunk_of(bytes(8), compressed=zlib.compress(bytes(8)) + b"more"),
            "is damaged: a chunk differs from its stated length",
        ),
        (
            HEADER + chunk_of(bytes(8), compressed=zlib.compress(bytes(8))[:-1]),
            "is damaged: a chunk differs from its stated length",
        ),
        (HEADER + chunk_of(bytes(8), checksum=1), "is damaged: a chunk has the wrong checksum"),
        (HEADER + chunk_of(b"\5\0\0\0abcd"), "is damaged: a chunk ends inside a record"),
        (HEADER + chunk_of(b"\xff\xff\xff\xffabcd"), "is damaged: a chunk ends inside a record"),
        (HEADER + chunk_of(b"\0\0"), "is damaged: a chunk ends inside a record"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, content, message):
    """A file that is no good recording is refused in words that say why."""
    (tmp_path / "a").write_bytes(content + END)
    if not content:
        (tmp_path / "a").write_bytes(b"")

    records, said, _ = read_until_error(tmp_path / "a")

    assert said.removesuffix("; everything before that was read") == message
    assert records in ([], [clock_record(1, 2)])


@pytest.mark.parametrize(
    ("versions", "message", "hint"),
    [
        (
            (2, wire.WIRE_VERSION),
            "is a recording of format 2; this otel-gpu reads format 1",
            "upgrade otel-gpu",
        ),
        (
            (1, 7),
            "holds records of wire version 7; this otel-gpu reads version 2",
            "upgrade otel-gpu",
        ),
        (
            (1, 0),
            "holds records of wire version 0; this otel-gpu reads version 2",
            "replay it with the otel-gpu that recorded it",
        ),
    ],
)
def test_another_version_is_named_with_what_to_do(tmp_path, versions, message, hint):
    """A recording of another version says which one, and what would read it."""
    checked = struct.pack("<8sHH", b"OTELGPU\0", *versions)
    (tmp_path / "a").write_bytes(checked + struct.pack("<I", zlib.crc32(checked)) + END)

    assert read_until_error(tmp_path / "a") == ([], message, hint)


def test_a_missing_file_and_a_folder_are_errors_of_ours(tmp_path):
    """What the system says about a path is passed on, without a traceback."""
    assert read_until_error(tmp_path / "a")[1] == "cannot be read: No such file or directory"
    assert read_until_error(tmp_path)[1] == "cannot be read: Is a directory"


def test_a_bomb_costs_no_more_memory_than_a_chunk_may(tmp_path):
    """A chunk that unpacks to far more than it declares is given up early."""
    bomb = zlib.compress(bytes(400 << 20), 9)
    (tmp_path / "a").write_bytes(HEADER + chunk_of(b"12345678", compressed=bomb))

    tracemalloc.start()
    try:
        records, message, _ = read_until_error(tmp_path / "a")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert records == []
    assert message.startswith("is damaged: a chunk differs from its stated length")
    assert peak_bytes < 4 << 20


def test_an_absurd_length_is_not_allocated(tmp_path):
    """A chunk that claims the largest size in a tiny file is a truncated file."""
    header = struct.pack("<III", MAX_CHUNK_BYTES, MAX_CHUNK_BYTES, 0)
    (tmp_path / "a").write_bytes(HEADER + header + b"tiny")

    assert read_until_error(tmp_path / "a")[1] == "ends early; everything before that was read"


@pytest.fixture(scope="module")
def good_recording(tmp_path_factory):
    rng = random.Random(7)  # noqa: S311 - only has to be the same every time
    records = [rng.randbytes(rng.randrange(200)) for _ in range(40)]
    path = tmp_path_factory.mktemp("good") / "recording"
    write(path, records, flush_bytes=500)
    return path.read_bytes(), records


FLIPS = st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=4)
CUTS = st.integers(0, 10_000)
CHUNKS = st.builds(
    chunk_of,
    st.binary(max_size=100),
    compressed=st.none() | st.binary(max_size=40),
    raw_bytes=st.none() | st.integers(0, 0xFFFFFFFF),
    checksum=st.none() | st.integers(0, 0xFFFFFFFF),
)


def assert_harmless(path, content, good_records=None):
    path.write_bytes(content)
    records = []
    try:
        for batch in read_recording(path):
            records += batch
    except RecordingError as error:
        assert str(error).startswith(str(path))  # noqa: PT017 - any of them is fine
    if good_records is not None:
        assert records == good_records[: len(records)]


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_arbitrary_bytes_do_no_harm(tmp_path_factory, content):
    """Any file is read, or refused with a RecordingError."""
    path = tmp_path_factory.getbasetemp() / "arbitrary"
    assert_harmless(path, content)
    assert_harmless(path, HEADER + content)


@settings(deadline=None)
@given(st.lists(CHUNKS, max_size=4))
def test_arbitrary_chunks_do_no_harm(tmp_path_factory, chunks):
    """Whatever a chunk declares about itself, it is read or refused."""
    path = tmp_path_factory.getbasetemp() / "chunks"
    assert_harmless(path, HEADER + b"".join(chunks) + END)


@settings(deadline=None)
@given(FLIPS, CUTS)
def test_flipped_bytes_never_change_a_record(tmp_path_factory, good_recording, flips, cut):
    """Damage costs records, and never alters one: what is read is what was written."""
    path = tmp_path_factory.getbasetemp() / "flipped"
    good, good_records = good_recording
    content = bytearray(good)
    for position, bits in flips:
        content[position % len(content)] ^= bits

    assert_harmless(path, bytes(content), good_records)
    assert_harmless(path, bytes(content[: cut % len(content)]), good_records)

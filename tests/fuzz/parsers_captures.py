"""Files that somebody else wrote: recordings, stores, and captures of other tools."""

import functools
import gzip
import io
import json
import pickle
import sqlite3
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import otel_gpu
from otel_gpu import cli
from otel_gpu.capture.recording import RecordingWriter, read_recording
from otel_gpu.cli import commands
from otel_gpu.errors import RecordingError, StoreError
from otel_gpu.recorder.limits import StoreLimits
from otel_gpu.recorder.lock import lock_path
from otel_gpu.recorder.recorder import open_writer
from tests.fuzz.target import Target
from tests.unit.importers import flight_dumps, snapshots, traces
from tests.unit.importers.exports import Export

_ROOT = Path(otel_gpu.__file__).parents[1]
_RECORDINGS = (
    *(
        _ROOT / "otel_gpu" / "demo" / "recordings" / f"{name}.otelgpu"
        for name in ("lock", "two-causes")
    ),
    _ROOT / "tests" / "replay" / "training.otelgpu",
    _ROOT / "tests" / "replay" / "strangers.otelgpu",
)
_LENGTH = struct.Struct("<I")

# Commands import what they need when they run. Here all is there before the first input, which else
# would take its time, and so that guidance by coverage sees it.
for _verb in commands.VERBS:
    cli.import_verb(_verb)


def _command(*arguments: str) -> str:
    """Run a command of ``otel-gpu`` as a user does; 1 with an error is its refusal."""
    out, error = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(error):
        code = cli.main(list(arguments))
    # What an observer raises is caught where a capture is live, and logged.
    assert " failed and goes on " not in error.getvalue(), error.getvalue()[-4000:]
    if code == 1 and "error:" in error.getvalue():
        raise RecordingError(error.getvalue())
    assert code == 0, (code, error.getvalue()[-1000:])
    return out.getvalue()


_REPORTS = (
    "report {} --html made.html --json made.json",
    "explain {}",
    "explain {} --json",
    "export {} --perfetto made.json",
)
_STACKS = ("stacks {} --json --by wall", "stacks {} --waits")
_REPLAYS = ("replay {} --store made.db", "replay {} --otlp-file made.jsonl", "parse {}")


def _imports(kind: str) -> tuple[str, ...]:
    return (
        f"import {kind} {{}} --store made.db --json",
        f"import {kind} {{}} --otlp-file made.jsonl",
    )


def _read_by_commands(path: Path, data: bytes, commands: Sequence[str]) -> None:
    """Let a command read a file: which one, the input decides, so that a finding comes again."""
    chosen = commands[(len(data) + sum(data[:64])) % len(commands)].split()
    folder = path.parent
    arguments = (
        str(path) if part == "{}" else str(folder / part) if part.startswith("made.") else part
        for part in chosen
    )
    text = _command(*arguments)
    if "--json" in chosen and text:
        json.loads(text)


def parse_recording(data: bytes, folder: Path) -> None:
    """A recording, with the checksums that it has."""
    path = folder / "a.otelgpu"
    path.write_bytes(data)
    for _ in read_recording(path):
        pass


def _records_of(path: Path) -> bytes:
    records = [record for batch in read_recording(path) for record in batch]
    # The beginning, without which the rest says little, and a part of what follows.
    step = max(1, len(records) // 100)
    kept = (*records[:30], *records[30::step])
    return b"".join(_LENGTH.pack(len(record)) + record for record in kept)


def parse_records(data: bytes, folder: Path) -> None:
    """Records whose checksums are right: an input is each one's length and the record itself."""
    records, at = [], 0
    while at + _LENGTH.size <= len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        records.append(data[at : at + min(size, 1 << 20)])
        at += min(size, 1 << 20)
    path = folder / "a.otelgpu"
    with RecordingWriter(path) as writer:
        writer.write([record for record in records if record])
    _read_by_commands(path, data, (*_REPORTS, *_STACKS, *_REPLAYS))


def _importer(
    kind: str, name: str, more: Sequence[str] = _REPORTS
) -> Callable[[bytes, Path], None]:
    def parse(data: bytes, folder: Path) -> None:
        path = folder / name
        path.write_bytes(data)
        _read_by_commands(path, data, (*_imports(kind), *more))

    return parse


def _packed_database(make: Callable[[Path], object]) -> bytes:
    """Return a database in small pages, so that few of its bytes are empty."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.db")
        make(path)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA page_size = 512")
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("VACUUM")
        return path.read_bytes()


def _nsys(path: Path) -> None:
    export = Export()
    export.add("TARGET_INFO_GPU", 0, "H100", 9, 0, 132, 80 << 30)
    export.add("ThreadNames", export.string("main"), (1 << 48) | (144 << 24) | 144)
    for number in range(8):
        export.call(100 * number, 5, number)
        export.kernel(100 * number + 10, 40, number)
        export.copy(100 * number + 60, 20, number)
        export.range(100 * number, 90, f"step {number}")
    export.write(path)


def _snapshot_seeds() -> Iterator[bytes]:
    stack = snapshots.stack("/app/train.py", 7)
    trace = [
        snapshots.event("alloc", 1 << 32, 512, 5, stack),
        *snapshots.freed(1 << 32, 512, 9),
        snapshots.event("segment_alloc", 1 << 32, 2 << 20, 1),
        snapshots.oom(1 << 30, 5, 11, stack),
    ]
    segment = snapshots.segment(
        1 << 32,
        [
            snapshots.block(1 << 32, 512, frames=stack),
            snapshots.block((1 << 32) + 512, 1536, "inactive"),
        ],
    )
    for protocol in (2, 4):
        yield pickle.dumps(snapshots.snapshot([segment], trace), protocol=protocol)


def _flight_seeds() -> Iterator[bytes]:
    made = flight_dumps.dump(
        [
            flight_dumps.entry(number, state="scheduled" if number == 5 else "completed")
            for number in range(1, 6)
        ]
    )
    yield flight_dumps.as_torch(made)
    yield flight_dumps.as_json(made)


def _trace_seeds() -> Iterator[bytes]:
    made = traces.trace(traces.training(3), deviceProperties=[{"id": 0, "name": "H100"}])
    text = json.dumps(made, indent=1).encode()
    yield text
    yield json.dumps(made["traceEvents"]).encode()
    yield gzip.compress(text, mtime=0)


@functools.cache
def _store() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "store.db")
        _command("replay", str(_RECORDINGS[2]), "--store", str(path))
        return path.read_bytes()


def parse_store(data: bytes, folder: Path) -> None:
    """A store: of another user to read, and a damaged one of our own to go on with."""
    path = folder / "store.db"
    path.write_bytes(data[24:])
    with suppress(RecordingError):
        _read_by_commands(path, data, (*_REPORTS, *_STACKS))
    lock_path(path).write_bytes(data[:24])
    path.chmod(0o600)
    with closing(open_writer(path, StoreLimits(), live=False)) as writer:
        assert writer.lost() == {}
    with closing(open_writer(path, StoreLimits(), live=False)):
        pass


_SQL_TOKENS = (
    b"SELECT ",
    b" FROM events",
    b"traceEvents",
    b'"ph": "X"',
    b'"args": {',
    b"null",
    b"true",
)
TARGETS = (
    Target(
        "recordings",
        lambda: [path.read_bytes() for path in _RECORDINGS],
        parse_recording,
        (RecordingError,),
    ),
    Target(
        "records",
        lambda: map(_records_of, _RECORDINGS),
        parse_records,
        (RecordingError,),
        cpu_s=10.0,
    ),
    Target(
        "torch_memory",
        _snapshot_seeds,
        _importer("torch-memory", "a.pickle"),
        (RecordingError,),
        (b"h\x00", b"\x8c\x08segments", b"\x94", b"}", b"]", b"("),
    ),
    Target(
        "flight_recorder",
        _flight_seeds,
        _importer("nccl-flight-recorder", "dump_0", ()),
        (RecordingError,),
    ),
    Target(
        "torch_trace",
        _trace_seeds,
        _importer("torch-trace", "a.json"),
        (RecordingError,),
        _SQL_TOKENS,
    ),
    Target(
        "nsys", lambda: [_packed_database(_nsys)], _importer("nsys", "a.sqlite"), (RecordingError,)
    ),
    Target(
        "store",
        lambda: [bytes(24) + _store()],
        parse_store,
        (RecordingError, StoreError),
        cpu_s=10.0,
    ),
)

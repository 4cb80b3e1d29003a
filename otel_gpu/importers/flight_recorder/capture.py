"""The importer of dumps of PyTorch's Flight Recorder: several files are several ranks."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Final

from otel_gpu.config import Config
from otel_gpu.errors import RecordingError
from otel_gpu.importers.flight_recorder.dump import Dump, ProcessGroup, read_dump
from otel_gpu.importers.import_counts import ImportCounts
from otel_gpu.importers.plain_pickle import UnreadableError
from otel_gpu.wire.bodies import CaptureFacts, CaptureMode, ProcessFacts
from otel_gpu.wire.communicators import (
    Communicator,
    CommunicatorKey,
    Communicators,
    QueuedCollective,
)
from otel_gpu.wire.events import Capture, Clock, Event
from otel_gpu.wire.histogram_layout import layout_description
from otel_gpu.wire.readings import Aggregates
from otel_gpu.wire.symbol_records import ProcessSeen, UserStack

MAX_FILES: Final = 1_024
MAX_CALLS: Final = 1 << 19
"""Collectives that are kept, of all files together."""

_TOOL = "PyTorch Flight Recorder"
_SERVICE = "unknown_service:python"
# The rank with its suffix: nccl_trace_rank_3, dump_12.json, rank7.pickle.
_RANK = re.compile(r"(\d{1,9})(?:\.[A-Za-z]+)*\Z")
_DAY_NS = 86_400 * 10**9
_MAX_LISTED = 16
_HINT = "give the files that TORCH_NCCL_DEBUG_INFO_TEMP_FILE names, one for each rank"


@contextmanager
def open_capture(
    path: Path, config: Config, *, others: Sequence[Path] = ()
) -> Iterator["FlightRecorderCapture"]:
    """
    Read the dumps of some ranks: files, or a folder of them; see ``importers.open_capture``.

    Raises:
        RecordingError: A file cannot be read, is not a dump, or has the rank of another file.
    """
    yield FlightRecorderCapture([one for each in (path, *others) for one in _files(each)], config)


class FlightRecorderCapture:
    """Dumps that were read and belong together."""

    def __init__(self, paths: Sequence[Path], config: Config) -> None:
        if len(paths) > MAX_FILES:
            raise RecordingError(f"more than {MAX_FILES:,} dumps")
        self._layout = layout_description(config)
        self._dumps: dict[int, Dump] = {}
        names: dict[int, Path] = {}
        for path in paths:
            rank, dump = _read(path)
            if rank in self._dumps:
                raise RecordingError(
                    f"{path}: rank {rank} is also in {names[rank]}",
                    hint="name the dumps of one incident, one per rank",
                )
            self._dumps[rank], names[rank] = dump, path
            kept = sum(
                len(group.calls) for one in self._dumps.values() for group in one.groups.values()
            )
            if kept > MAX_CALLS:
                raise RecordingError(f"{path}: more than {MAX_CALLS:,} collectives in all files")
        self._size = _world_size(self._dumps)
        self.counts = self._count_all()

    def events(self) -> Iterator[Event]:
        """Yield how far each rank is; see ``importers.ForeignCapture``."""
        times = [dump.first_unix_ns for dump in self._dumps.values() if dump.first_unix_ns]
        start_ns = min(times, default=min(dump.file_unix_ns for dump in self._dumps.values()))
        info: CaptureFacts = {
            "layout": self._layout,
            "mode": CaptureMode.IMPORT,
            "source": self.counts.source,
            "unknown": ["calls"],
        }
        yield Capture(start_ns, info)
        yield Clock(start_ns, start_ns)
        # One time for all: ranks are compared after all were read.
        made_ns = max(start_ns, *map(_made_unix_ns, self._dumps.values()))
        sent: set[int] = set()
        for rank, dump in sorted(self._dumps.items()):
            yield from self._events_of(rank, dump, start_ns=start_ns, made_ns=made_ns, sent=sent)
        # An empty reading of counts ends the capture.
        yield Aggregates(made_ns, ())

    def _events_of(
        self, rank: int, dump: Dump, start_ns: int, made_ns: int, sent: set[int]
    ) -> Iterator[Event]:
        # A dump does not name its process: no process has a pid below 0.
        pid = -1 - rank
        facts: ProcessFacts = {
            "comm": f"rank {rank}",
            "env": {"RANK": str(rank), "WORLD_SIZE": str(self._size)},
            "otel_context": {"service.name": _SERVICE},
        }
        yield ProcessSeen(ktime_ns=start_ns, program_ktime_ns=start_ns, pid=pid, facts=facts)
        readings = []
        for handle, (name, group) in enumerate(sorted(dump.groups.items()), start=1):
            if group.ranks and rank not in group.ranks:
                continue
            if dump.is_cut and not group.calls and not group.called:
                # Its calls can have been overwritten, so their absence has no meaning.
                continue
            for call in group.calls.values():
                stack = call.stack
                if stack is not None and stack.identity not in sent:
                    sent.add(stack.identity)
                    yield UserStack(made_ns, stack.identity, *stack)
            key = CommunicatorKey(program_ktime_ns=start_ns, handle=handle, pid=pid, generation=0)
            readings.append((key, _communicator(rank, key=name, group=group, start_ns=start_ns)))
        yield Communicators(made_ns, tuple(readings))

    def _count_all(self) -> ImportCounts:
        counts = ImportCounts(source={"tool": _TOOL})
        for what in ("version", "nccl_version"):
            found = sorted({getattr(dump, what) for dump in self._dumps.values()} - {""})
            if found:
                counts.source[what.replace("_", " ")] = ", ".join(found[:_MAX_LISTED])
        counts.source["ranks"] = len(self._dumps)
        for dump in self._dumps.values():
            counts.taken["entries"] += dump.entries
            counts.taken["process groups of ranks"] += len(dump.groups)
            counts.rejected += dump.rejected
        counts.notes += self._notes()
        return counts

    def _notes(self) -> Iterator[str]:
        absent = [rank for rank in range(self._size) if rank not in self._dumps]
        if absent:
            listed = ", ".join(map(str, absent[:_MAX_LISTED]))
            more = f" and {len(absent) - _MAX_LISTED:,} more" if len(absent) > _MAX_LISTED else ""
            yield (
                f"There is no dump of rank{'s' if len(absent) > 1 else ''} {listed}{more} of "
                f"{self._size:,}: how far they came is not known."
            )
        if any(dump.is_cut for dump in self._dumps.values()):
            yield "A Flight Recorder keeps the latest entries: counts and bytes are of those."
        yield "The ranks of this host are those whose dumps were read, wherever they ran."
        yield (
            "How long collectives are pending is known until the files were written; of files that "
            "were copied later, up to the timeout of the collectives, for which dumps are made. The "
            "clocks of hosts may differ: ranks are compared by the numbers of their collectives."
        )


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    try:
        found = sorted(one for one in path.iterdir() if one.is_file() and _RANK.search(one.name))
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror}") from error
    if not found:
        raise RecordingError(f"{path}: contains no dump", hint=_HINT)
    return found


def _read(path: Path) -> tuple[int, Dump]:
    try:
        dump = read_dump(path)
    except UnreadableError as error:
        where = f" (byte {error.at:,})" if error.at >= 0 else ""
        raise RecordingError(
            f"{path}: not a readable dump of a Flight Recorder: {error}{where}", hint=_HINT
        ) from None
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror}") from error
    rank = _rank(path, dump)
    if rank is None:
        raise RecordingError(
            f"{path}: contains no rank",
            hint="let the name end with the rank, as nccl_trace_rank_3 does",
        )
    return rank, dump


def _rank(path: Path, dump: Dump) -> int | None:
    # From a send or receive, else from the file's name.
    for name, own in dump.group_ranks.items():
        ranks = dump.groups[name].ranks
        if len(own) == 1 and (place := min(own)) < len(ranks):
            return ranks[place]
    # A rank knows the groups that it is in.
    known = [set(group.ranks) for group in dump.groups.values() if group.ranks]
    possible = set.intersection(*known) if known else None
    named = _RANK.search(path.name)
    if named and (possible is None or int(named[1]) in possible):
        return int(named[1])
    return min(possible) if possible is not None and len(possible) == 1 else None


def _world_size(dumps: dict[int, Dump]) -> int:
    ranks = [
        rank for dump in dumps.values() for group in dump.groups.values() for rank in group.ranks
    ]
    return 1 + max([*dumps, *ranks], default=0)


def _made_unix_ns(dump: Dump) -> int:
    # When a dump was made: when the file was written.
    # Where it was copied later, what is pending is taken to have timed out, for which dumps are
    # made.
    is_its_own = dump.last_unix_ns <= dump.file_unix_ns <= dump.last_unix_ns + _DAY_NS
    if is_its_own or not dump.last_unix_ns:
        return dump.file_unix_ns
    return max(dump.last_unix_ns, dump.timeout_unix_ns)


def _communicator(rank: int, key: str, group: ProcessGroup, start_ns: int) -> Communicator:
    # Groups of one name in different parts of a job have different ranks.
    identity = blake2b(f"{key}\0{group.ranks}".encode(), digest_size=8).digest()
    recent = (
        QueuedCollective(
            number=call.number,
            called_ktime_ns=call.created_unix_ns,
            signature=call.signature,
            stack=call.stack.identity if call.stack else 0,
            sends=call.sends,
            receives=call.receives,
        )
        for call in group.calls.values()
    )
    return Communicator(
        id=int.from_bytes(identity),
        called=group.called,
        completed=group.completed,
        completed_ktime_ns=group.completed_unix_ns,
        completions=group.completions,
        waited_ns=group.waited_ns,
        captured=0,
        failed=0,
        made_ktime_ns=group.first_unix_ns or start_ns,
        rank=group.ranks.index(rank) if rank in group.ranks else -1,
        rank_count=len(group.ranks),
        device=-1,
        async_error=0,
        flags=0,
        operations=dict(group.operations),
        recent=tuple(recent),
        name=group.name,
    )

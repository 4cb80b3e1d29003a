"""One dump of a Flight Recorder: read without running it, checked, and kept small."""

# What is kept of a group
# -----------------------
#
# A dump has the last thousands of collectives of all groups of a rank. Ranks differ after the last
# collective that is done. Of collectives that are done, the last DONE_KEPT are kept; of pending
# ones, the first PENDING_KEPT and the last. No more are compared.

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Final, NamedTuple

from otel_gpu.importers.flight_recorder.call_arguments import request_of
from otel_gpu.importers.plain_pickle import NoMakers, UnreadableError, read_plain
from otel_gpu.importers.regular_file import check_file
from otel_gpu.importers.torch_frames import frame_of
from otel_gpu.importers.untrusted_json import ForeignJsonError, parse_foreign
from otel_gpu.wire.communicators import Signature
from otel_gpu.wire.frames import Frame, MergedStack, PythonStatus, UnwindMethod, clean

MAX_FILE_BYTES: Final = 64 << 20
MAX_ENTRIES: Final = 1 << 18
MAX_GROUPS: Final = 4_096
MAX_RANKS: Final = 1 << 16
"""Of one group."""
MAX_FRAMES: Final = 1 << 21
"""Frames of all entries, each as often as it is referred to."""
MAX_STACK_FRAMES: Final = 256
MAX_CONTAINERS: Final = 1 << 20
"""Of a dump as JSON."""
DONE_KEPT: Final = 16
PENDING_KEPT: Final = 47
MAX_SPLITS_KEPT: Final = 1 << 13
"""Numbers of elements that the calls of a group exchange with single ranks."""

_PICKLE = b"\x80"
_MOST = (1 << 62) - 1
_MAX_DIGITS = 19
_NUMBERS = re.compile(r"[0-9]{1,9}")
_MAX_RANKS_TEXT = 12 * MAX_RANKS


class Call(NamedTuple):
    """
    One collective of a group, as this rank called it.

    ``done_unix_ns`` is when the program learned that it is done; 0: it did not.
    """

    number: int
    created_unix_ns: int
    signature: Signature
    stack: MergedStack | None
    is_done: bool
    done_unix_ns: int
    sends: tuple[int, ...] = ()
    receives: tuple[int, ...] = ()


@dataclass(slots=True)
class ProcessGroup:
    """
    A process group, as one rank sees it.

    Attributes:
        name: Of the group, and what it is for.
        ranks: Of the job, in the order of the group; empty: not known.
        calls: By number.
        called: The number of the last collective.
        completed: The number of the last one that is done.
        operations: Calls and bytes by ``enum collective_operation``.
    """

    name: str
    ranks: tuple[int, ...] = ()
    calls: dict[int, Call] = field(default_factory=dict)
    called: int = 0
    completed: int = 0
    completed_unix_ns: int = 0
    completions: int = 0
    waited_ns: int = 0
    operations: dict[int, tuple[int, int]] = field(default_factory=dict)
    first_unix_ns: int = 0
    has_point_to_point: bool = False


@dataclass(slots=True)
class Dump:
    """
    The content of one file.

    Attributes:
        group_ranks: Ranks of the file by group, according to its sends and receives.
        is_cut: Whether older entries were overwritten.
        last_unix_ns: The latest time in it, at least the time of the timeout.
        timeout_unix_ns: When pending collectives time out, the reason for most dumps; 0: none.
    """

    version: str = ""
    nccl_version: str = ""
    groups: dict[str, ProcessGroup] = field(default_factory=dict)
    group_ranks: dict[str, set[int]] = field(default_factory=dict)
    entries: int = 0
    is_cut: bool = False
    file_unix_ns: int = 0
    first_unix_ns: int = 0
    last_unix_ns: int = 0
    timeout_unix_ns: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


def read_dump(path: Path) -> Dump:
    """
    Read a dump, a pickle or JSON.

    Raises:
        UnreadableError: It is not a dump, is cut, or is too large.
        OSError: It cannot be read.
    """
    file_unix_ns = check_file(path, MAX_FILE_BYTES)
    with path.open("rb") as stream:
        # The file can grow.
        data = stream.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise UnreadableError(f"it has more than {MAX_FILE_BYTES:,} bytes")
    body = read_plain(BytesIO(data), NoMakers()) if data.startswith(_PICKLE) else _parse(data)
    if type(body) is not dict or not ({"entries", "pg_config"} & body.keys()):
        raise UnreadableError("it has no entries and no groups")
    return _Reader(body, file_unix_ns).read()


class _Reader:
    def __init__(self, body: Mapping[str, object], file_unix_ns: int) -> None:
        self._body = body
        version = body.get("comm_lib_version") or body.get("nccl_version")
        self._dump = Dump(_text(body.get("version")), _text(version), file_unix_ns=file_unix_ns)
        # By the identity of a dictionary, which the body keeps alive.
        self._frames: dict[int, Frame] = {}
        self._stacks: dict[tuple[Frame, ...], MergedStack] = {}
        self._visited = 0
        self._numbers: dict[str, str] = {}

    def read(self) -> Dump:
        dump = self._dump
        for name, group in self._configured():
            dump.groups[name] = group
        entries = self._body.get("entries")
        entries = [] if entries is None else entries
        if type(entries) is not list or len(entries) > MAX_ENTRIES:
            raise UnreadableError(f"entries: expected a list of at most {MAX_ENTRIES:,}")
        oldest: dict[str, int] = {}
        for entry in entries:
            try:
                self._take(entry, oldest)
            except ValueError as error:
                dump.rejected[f"entries whose {error} makes no sense"] += 1
        if entries and type(entries[0]) is dict:
            dump.is_cut = bool(_integer(entries[0].get("record_id")))
        self._settle()
        for name, group in dump.groups.items():
            if dump.is_cut and len(group.calls) > 1 and (first := oldest.get(name)) is not None:
                # Of several that were called at once, the first may be gone.
                group.calls.pop(first, None)
            _shorten(group)
        return dump

    def _configured(self) -> Iterator[tuple[str, ProcessGroup]]:
        config = self._body.get("pg_config")
        if config is None:
            return
        if type(config) is not dict or len(config) > MAX_GROUPS:
            raise UnreadableError(f"groups: expected a dictionary of at most {MAX_GROUPS:,}")
        for key, group in config.items():
            if type(group) is not dict:
                self._dump.rejected["groups that are no dictionary"] += 1
                continue
            yield (
                _text(key),
                ProcessGroup(_name(group.get("name"), group.get("desc")), _ranks(group)),
            )

    def _take(self, entry: object, oldest: dict[str, int]) -> None:
        if type(entry) is not dict:
            raise ValueError("form")
        request = request_of(entry)
        key, group = self._group(entry)
        created_ns = _integer(entry.get("time_created_ns"))
        if not 0 < created_ns <= _MOST:
            raise ValueError("time")
        dump = self._dump
        done_ns = _integer(entry.get("time_discovered_completed_ns"))
        dump.entries += 1
        times = [created_ns, done_ns]
        is_done = entry.get("state") == "completed"
        timeout_ns = created_ns + _integer(entry.get("timeout_ms")) * 1_000_000
        if not is_done and timeout_ns <= _MOST:
            dump.timeout_unix_ns = max(dump.timeout_unix_ns, timeout_ns)
            if entry.get("retired") is True:
                times.append(timeout_ns)
        dump.first_unix_ns = min(dump.first_unix_ns or created_ns, created_ns)
        dump.last_unix_ns = max(dump.last_unix_ns, *(one for one in times if one <= _MOST))
        group.first_unix_ns = min(group.first_unix_ns or created_ns, created_ns)
        operation = request.signature.operation
        if operation:
            calls, size = group.operations.get(operation, (0, 0))
            group.operations[operation] = calls + 1, min(size + request.size_bytes, _MOST)
        if request.group_rank >= 0:
            dump.group_ranks.setdefault(key, set()).add(request.group_rank)
        if request.is_point_to_point or entry.get("is_p2p") is True:
            # What has two ends has no number that all ranks share.
            group.has_point_to_point = True
            return
        number = _integer(entry.get("collective_seq_id"))
        if number < 1:
            raise ValueError("number")
        oldest.setdefault(key, number)
        call = Call(
            number=number,
            created_unix_ns=created_ns,
            signature=request.signature,
            stack=self._stack(entry.get("frames")),
            is_done=is_done,
            done_unix_ns=done_ns,
            sends=request.sends,
            receives=request.receives,
        )
        self._add(group, call, is_whole=request.is_whole)

    def _add(self, group: ProcessGroup, call: Call, *, is_whole: bool) -> None:
        number, known = call.number, group.calls.get(call.number)
        if known is not None:
            # Several that were called at once have one number: what they ask for is one thing.
            first, second = known.signature, call.signature
            elements = min(first.elements + second.elements, _MOST)
            # What was called is the last entry's, which stands for all of them.
            named = second if second.operation and (is_whole or not first.operation) else first
            call = known._replace(
                signature=named._replace(elements=elements),
                sends=(),
                receives=(),
                stack=known.stack or call.stack,
                is_done=known.is_done or call.is_done,
                done_unix_ns=max(known.done_unix_ns, call.done_unix_ns),
            )
        group.calls[number] = call

    def _group(self, entry: Mapping[str, object]) -> tuple[str, ProcessGroup]:
        given, number = entry.get("process_group"), entry.get("pg_id")
        pair = given if isinstance(given, list | tuple) and len(given) == 2 else (given, "")  # noqa: PLR2004 -- name and purpose
        key = pair[0] if type(pair[0]) is str else str(_integer(number))
        key = _text(key)
        groups = self._dump.groups
        group = groups.get(key)
        if group is None:
            if len(groups) >= MAX_GROUPS:
                raise UnreadableError(f"it has more than {MAX_GROUPS:,} groups")
            group = groups[key] = ProcessGroup(_name(key, pair[1]))
        if type(number) in (int, str) and len(self._numbers) < MAX_GROUPS:
            self._numbers[_text(str(number)[:_MAX_DIGITS])] = key
        return key, group

    def _settle(self) -> None:
        # From its calls and from PyTorch's counts.
        for group in self._dump.groups.values():
            done = [call for call in group.calls.values() if call.is_done]
            group.called = max(group.calls, default=0)
            group.completed = max((call.number for call in done), default=0)
            for call in done:
                if call.done_unix_ns >= call.created_unix_ns:
                    group.completions += 1
                    group.waited_ns += call.done_unix_ns - call.created_unix_ns
                    group.completed_unix_ns = max(group.completed_unix_ns, call.done_unix_ns)
        status = self._body.get("pg_status")
        for number, state in status.items() if type(status) is dict else ():
            found = self._dump.groups.get(self._numbers.get(number, ""))
            # Its numbers are of collectives alone only where there is nothing else.
            if found is None or found.has_point_to_point or type(state) is not dict:
                continue
            found.called = max(found.called, _integer(state.get("last_enqueued_collective")))
            completed = _integer(state.get("last_completed_collective"))
            found.completed = min(max(found.completed, completed), found.called)

    def _stack(self, frames: object) -> MergedStack | None:
        if type(frames) is not list or not frames:
            return None
        self._visited += len(frames)
        if self._visited > MAX_FRAMES:
            raise UnreadableError(f"its stacks have more than {MAX_FRAMES:,} frames")
        found = tuple(self._frame(frame) for frame in frames[:MAX_STACK_FRAMES])
        stack = self._stacks.get(found)
        if stack is None:
            is_whole = len(frames) <= MAX_STACK_FRAMES
            status = PythonStatus.COMPLETE if is_whole else PythonStatus.CUT
            stack = MergedStack(
                frames=found, complete=is_whole, native=UnwindMethod.NONE, python=status
            )
            self._stacks[found] = stack
        return stack

    def _frame(self, frame_dict: object) -> Frame:
        known = self._frames.get(id(frame_dict))
        if known is not None:
            return known
        if type(frame_dict) is not dict:
            raise ValueError("stack")
        file, function, line = (
            frame_dict.get("filename"),
            frame_dict.get("name"),
            frame_dict.get("line"),
        )
        if type(file) is not str or type(function) is not str or type(line) is not int:
            raise ValueError("stack")
        frame = self._frames[id(frame_dict)] = frame_of(file, line, function)
        return frame


def _shorten(group: ProcessGroup) -> None:
    numbers = sorted(group.calls)
    first = next((at for at, one in enumerate(numbers) if one > group.completed), len(numbers))
    kept = numbers[max(0, first - DONE_KEPT) : first + PENDING_KEPT]
    if numbers and numbers[-1] not in kept[-1:]:
        kept.append(numbers[-1])
    group.calls = {number: group.calls[number] for number in kept}
    _shorten_splits(group)


def _shorten_splits(group: ProcessGroup) -> None:
    # Drop the amounts that calls exchange with each rank, except for the first pending calls.
    left = MAX_SPLITS_KEPT
    for number, call in group.calls.items():
        size = len(call.sends) + len(call.receives)
        if number <= group.completed or size > left:
            group.calls[number] = call._replace(sends=(), receives=())
        else:
            left -= size


def _parse(data: bytes) -> object:
    if data.lstrip()[:1] != b"{":
        raise UnreadableError("it is neither a pickle nor JSON", 0)
    try:
        return parse_foreign(data, MAX_CONTAINERS)
    except ForeignJsonError as error:
        raise UnreadableError(str(error), error.at) from None


def _ranks(group: Mapping[str, object]) -> tuple[int, ...]:
    ranks = group.get("ranks")
    if type(ranks) is str:
        # A text such as "[0, 1, 2]".
        found = [int(one) for one in _NUMBERS.findall(ranks[:_MAX_RANKS_TEXT])]
    elif type(ranks) is list and len(ranks) <= MAX_RANKS:
        found = [one for one in ranks if type(one) is int and 0 <= one < 1 << 31]
    else:
        found = []
    return tuple(dict.fromkeys(found[:MAX_RANKS]))


def _integer(value: object) -> int:
    # A number, also one that is written as text; 0: none.
    if type(value) is str and len(value) <= _MAX_DIGITS and value.isascii() and value.isdigit():
        value = int(value)
    return value if type(value) is int and 0 <= value <= _MOST else 0


def _name(name: object, description: object) -> str:
    purpose = _text(description)
    return f"{_text(name)} ({purpose})" if purpose and purpose != "undefined" else _text(name)


def _text(value: object) -> str:
    return clean(value) if type(value) is str else ""

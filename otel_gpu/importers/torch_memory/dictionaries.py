"""
The kinds of dictionaries in a snapshot, and the replacement of each.

A kind is known by its keys, in any order and with others beside them, as versions of PyTorch
differ. Every value is checked for its type and its range. Events become columns, frames and
stacks are kept once.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, Final, NamedTuple

from otel_gpu.importers.plain_pickle import Make, UnreadableError
from otel_gpu.importers.torch_frames import frame_of
from otel_gpu.wire.frames import Frame, clean
from otel_gpu.wire.memory_snapshot import (
    NO_STACK,
    SHARED,
    Action,
    Block,
    BlockState,
    Operations,
    Phase,
    Segment,
)

MAX_EVENTS: Final = 8 << 20
MAX_OBJECTS: Final = 1 << 19
"""Segments, blocks and whatever else is not a column."""
MAX_FRAMES: Final = 1 << 20
MAX_STACK_FRAMES: Final = 16 << 20
"""Of all stacks together, each counted once."""

_LARGEST = (1 << 62) - 1
_MAX_QUOTED = 50
_MAX_NAMES = 50
_MAX_NUMBER = (1 << 31) - 1

_ACTIONS: Mapping[str, Action] = {
    "alloc": Action.ALLOCATE,
    "free_requested": Action.FREE_REQUESTED,
    "free_completed": Action.FREE,
    "free": Action.FREE,
    "segment_alloc": Action.SEGMENT_ALLOCATE,
    "segment_free": Action.SEGMENT_FREE,
    "segment_map": Action.SEGMENT_MAP,
    "segment_unmap": Action.SEGMENT_UNMAP,
    "oom": Action.OUT_OF_MEMORY,
}
_STATES: Mapping[str, BlockState] = {
    "active_allocated": BlockState.ALLOCATED,
    "active_pending_free": BlockState.PENDING,
    "active_awaiting_free": BlockState.PENDING,
    "inactive": BlockState.FREE,
}


class FrameNumber:
    """Stands for a frame, wherever it occurs."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class StackNumber:
    """Stands for a list of frames, wherever it occurs."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class Event:
    """Stands for an event in the list that it is in."""


class BlockHistory(NamedTuple):
    """A block's requested size and stack, as torch 2.0 writes them."""

    requested_bytes: int
    stack: int


EVENT: Final = Event()
OTHER_EVENT: Final = Event()
"""An event that is not about memory, such as an annotation."""

_FRAMES = frozenset({FrameNumber})
_EMPTY = StackNumber(NO_STACK)


class Shapes:
    """
    Takes the dictionaries of one snapshot.

    Attributes:
        operations: Those of all devices, one after the other.
        left_out: Events that are not about memory, by action.
        frames: By number.
    """

    def __init__(self) -> None:
        self.operations = Operations()
        self.left_out: Counter[str] = Counter()
        self.frames: list[Frame] = []
        self._frame_numbers: dict[tuple[str, int, str], FrameNumber] = {}
        self._stacks: dict[tuple[FrameNumber, ...], StackNumber] = {(): _EMPTY}
        self._stack_frames = 0
        self._objects = 0
        self._replace: Callable[[list[Any], object], None] = _keep

    def bind(self, replace: Callable[[list[Any], object], None]) -> None:
        """Take what puts a stack in the place of the list of its frames."""
        self._replace = replace

    def stacks(self) -> tuple[tuple[Frame, ...], ...]:
        """Return the stacks by their number, innermost frame first."""
        return tuple(tuple(self.frames[frame.number] for frame in stack) for stack in self._stacks)

    def maker(self, keys: tuple[str, ...]) -> Make | None:
        """Return what takes dictionaries with these keys; None: they stay dictionaries."""
        have = set(keys)
        for needed, make in (
            ({"action", "size"}, self._event),
            ({"filename", "line", "name"}, self._frame),
            ({"total_size", "blocks"}, self._segment),
            ({"size", "state"}, self._block),
            ({"real_size", "frames"}, self._history),
            ({"stage", "name", "time_us"}, self._annotation),
        ):
            if needed <= have:
                return make(keys)
        return None

    def _event(self, keys: tuple[str, ...]) -> Make:
        get = _getter(keys, "action", "addr", "size", "stream", "time_us", "frames")
        get_free = _getter(keys, "device_free", "pool_id")
        columns = self.operations
        add_to = columns.actions
        add_action, add_address = add_to.append, columns.addresses.append
        add_size, add_stream = columns.sizes_bytes.append, columns.streams.append
        add_time, add_stack = columns.unix_us.append, columns.stacks.append
        actions = {name: int(action) for name, action in _ACTIONS.items()}
        out_of_memory = int(Action.OUT_OF_MEMORY)

        def make(values: list[Any]) -> tuple[object, bool]:
            values.append(None)
            name, address, size, stream, unix_us, frames = get(values)
            if type(name) is not str:
                raise UnreadableError("an event whose action is no text")
            action = actions.get(name)
            if action is None:
                is_new = len(self.left_out) < _MAX_NAMES
                self.left_out[f"event {clean(name)[:_MAX_QUOTED]}" if is_new else "event"] += 1
                return OTHER_EVENT, False
            if action == out_of_memory:
                free, pool = get_free(values)
                address = free if address is None else address
                if pool is not None and (asked := _pool(pool)) != SHARED:
                    columns.pools[len(add_to)] = asked
            if type(size) is not int or not 0 <= size <= _LARGEST:
                raise UnreadableError(f"an event {name} with a size of {_quoted(size)}")
            if type(address) is not int or not 0 <= address <= _LARGEST:
                raise UnreadableError(f"an event {name} with an address of {_quoted(address)}")
            if len(add_to) >= MAX_EVENTS:
                raise UnreadableError(f"more than {MAX_EVENTS:,} events")
            stack = frames if type(frames) is StackNumber else self._stack(frames)
            add_stream(_integer("stream", stream))
            add_time(max(0, _integer("time_us", unix_us)))
            add_stack(stack.number)
            add_action(action)
            add_address(address)
            add_size(size)
            return EVENT, False

        return make

    def _frame(self, keys: tuple[str, ...]) -> Make:
        get = _getter(keys, "filename", "line", "name")
        numbers = self._frame_numbers

        def make(values: list[Any]) -> tuple[object, bool]:
            file, line, function = get(values)
            if type(file) is not str or type(function) is not str or type(line) is not int:
                raise UnreadableError("a frame of other than two texts and a number")
            number = numbers.get((file, line, function))
            if number is None:
                if len(numbers) >= MAX_FRAMES:
                    raise UnreadableError(f"more than {MAX_FRAMES:,} different frames")
                number = numbers[file, line, function] = FrameNumber(len(numbers))
                self.frames.append(frame_of(file, line, function))
            return number, True

        return make

    def _stack(self, frames: Any) -> StackNumber:  # noqa: ANN401 -- whatever the file holds
        if frames is None:
            return _EMPTY
        if type(frames) is not list:
            raise UnreadableError(f"frames: expected a list, got {type(frames).__name__}")
        if len(frames) == 1 and type(frames[0]) is StackNumber:
            return frames[0]
        if not _FRAMES.issuperset(map(type, frames)):
            raise UnreadableError("a list of frames that holds something else")
        key = tuple(frames)
        stack = self._stacks.get(key)
        if stack is None:
            self._stack_frames += len(key)
            if self._stack_frames > MAX_STACK_FRAMES:
                raise UnreadableError(f"stacks of more than {MAX_STACK_FRAMES:,} frames")
            stack = self._stacks[key] = StackNumber(len(self._stacks))
        self._replace(frames, stack)
        return stack

    def _stack_number(self, frames: Any) -> int:  # noqa: ANN401 -- whatever the file holds
        return (frames if type(frames) is StackNumber else self._stack(frames)).number

    def _block(self, keys: tuple[str, ...]) -> Make:
        get = _getter(keys, "size", "state", "address", "requested_size", "frames", "history")

        def make(values: list[Any]) -> tuple[object, bool]:
            values.append(None)
            self._count()
            size, state, address, requested, frames, history = get(values)
            if type(state) is not str or state not in _STATES:
                raise UnreadableError(f"a block whose state is {_quoted(state)}")
            size = _size("size of a block", size)
            if requested is not None:
                requested = _size("requested size of a block", requested)
            found = _STATES[state]
            stack = self._stack_number(frames)
            if history is not None:
                # The first is of what is in the block; those behind it were there before.
                first = history[0] if type(history) is list and history else None
                if type(first) is BlockHistory and found is not BlockState.FREE:
                    requested = first.requested_bytes if requested is None else requested
                    stack = stack or first.stack
            if requested is not None and found is not BlockState.FREE and requested > size:
                raise UnreadableError("a block that is smaller than requested")
            place = -1 if address is None else _size("address of a block", address)
            return Block(place, size, requested, found, stack), False

        return make

    def _count(self) -> None:
        self._objects += 1
        if self._objects > MAX_OBJECTS:
            raise UnreadableError(f"more than {MAX_OBJECTS:,} segments, blocks and annotations")

    def _history(self, keys: tuple[str, ...]) -> Make:
        get = _getter(keys, "real_size", "frames")

        def make(values: list[Any]) -> tuple[object, bool]:
            self._count()
            size, frames = get(values)
            return BlockHistory(_size("real size", size), self._stack_number(frames)), False

        return make

    def _segment(self, keys: tuple[str, ...]) -> Make:
        get = _getter(
            keys, "total_size", "blocks", "address", "device", "stream", "segment_pool_id",
            "segment_type", "is_expandable", "frames",
        )  # fmt: skip

        def make(values: list[Any]) -> tuple[object, bool]:
            values.append(None)
            self._count()
            size, blocks, address, device, stream, pool, kind, is_expandable, frames = get(values)
            size = _size("size of a segment", size)
            if type(blocks) is not list or not all(type(block) is Block for block in blocks):
                raise UnreadableError("blocks of a segment: expected a list")
            if sum(block.size_bytes for block in blocks) > size:
                raise UnreadableError("a segment that is smaller than its blocks")
            # Each block is of one segment: the list is not to be had again.
            mine = tuple(blocks)
            blocks.clear()
            first = -1 if address is None else _size("address of a segment", address)
            return Segment(
                device=_device(device),
                address=first,
                size_bytes=size,
                stream=_integer("stream", stream),
                pool=_pool(pool),
                is_small=kind == "small",
                is_expandable=is_expandable is True,
                blocks=tuple(_addressed(mine, first)),
                stack=self._stack_number(frames),
            ), False

        return make

    def _annotation(self, keys: tuple[str, ...]) -> Make:
        get = _getter(keys, "stage", "name", "device", "time_us")

        def make(values: list[Any]) -> tuple[object, bool]:
            values.append(None)
            self._count()
            stage, name, device, unix_us = get(values)
            if type(name) is not str or type(stage) is not str:
                raise UnreadableError("an annotation without a name")
            at = _size("time_us", unix_us)
            end = at if stage == "END" else 0
            return Phase(
                _device(device), name=clean(name), start_unix_us=0 if end else at, end_unix_us=end
            ), False

        return make


def _keep(_items: list[Any], _value: object) -> None:
    # Nothing, until ``bind`` is called.
    ...


def _getter(keys: tuple[str, ...], *names: str) -> Callable[[list[Any]], Any]:
    # What takes values by their keys; those behind a list that are missing are its last.
    return itemgetter(*(keys.index(name) if name in keys else -1 for name in names))


def _quoted(value: object) -> str:
    # An untrusted container is not quoted: it can refer to itself.
    is_number = type(value) in (int, float, bool, type(None))
    is_short = is_number or (type(value) is str and len(value) < _MAX_QUOTED)
    return repr(value) if is_short else f"something that is {type(value).__name__}"


def _size(what: str, value: object) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise UnreadableError(f"{what} is {_quoted(value)}")
    return value


def _integer(what: str, value: object) -> int:
    if value is None:
        return 0
    # Streams are addresses, or small and negative.
    if type(value) is not int or not -_LARGEST <= value <= _LARGEST:
        raise UnreadableError(f"{what} is {_quoted(value)}")
    return value


def _device(value: object) -> int:
    number = 0 if value is None else _size("device", value)
    if number > _MAX_NUMBER:
        raise UnreadableError(f"device is {number}")
    return number


def _pool(value: object) -> tuple[int, int]:
    if value is None:
        return (0, 0)
    if not isinstance(value, tuple | list) or len(value) != 2:  # noqa: PLR2004 -- a pair
        raise UnreadableError("pool of a segment: expected a pair of numbers")
    return _size("pool", value[0]), _size("pool", value[1])


def _addressed(blocks: tuple[Block, ...], at: int) -> Any:  # noqa: ANN401
    # Until torch 2.1 blocks had no addresses: they stand in order, without holes between them.
    for block in blocks:
        yield block if block.address >= 0 or at < 0 else block._replace(address=at)
        if at >= 0:
            at = (block.address if block.address >= 0 else at) + block.size_bytes

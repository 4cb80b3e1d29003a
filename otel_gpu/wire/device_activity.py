"""
Device activity: what devices and the host did, as a profiler recorded it.

A ``DeviceTrace`` is the trace of one process: a rank of a run. It has two tables. Their columns
are arrays, so that millions of rows stay small; a row is a position in all columns of its table.

``DeviceActivities`` are kernels, copies, fills and whole graphs. Their times are device time,
never the time of the call that enqueued the work. That call is a row of ``HostOperations``, of
kind ``CALL`` and with the same ``correlation``. Correlations are unique in a trace; 0: unknown.

All times are nanoseconds after ``base_unix_ns``, of one clock for host and device. Rows are not
sorted. Names, lists of shapes, threads and collectives are numbers in tables of the trace;
number 0 stands for an unknown one.
"""

from array import array
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from otel_gpu.wire.frames import clean

MAX_NAMES: Final = 1 << 18
"""Distinct texts in a table; further ones are all number 0."""
MAX_NAMES_CHARACTERS: Final = 48 << 20
MAX_CORRELATION: Final = (1 << 32) - 1
MIGRATION: Final = "Migration"
"""Prefix of names of copies that move pages of managed memory: no call enqueued them."""


class Work(IntEnum):
    """Work of a device; ``GRAPH`` is a whole graph whose parts were not recorded."""

    KERNEL = 0
    COPY = 1
    FILL = 2
    GRAPH = 3


class HostWork(IntEnum):
    """
    Work of a thread of the host.

    ``OPERATION`` is an operator of a framework (``aten::mm``), ``CALL`` one of the CUDA runtime or
    driver, ``ANNOTATION`` a range that a program names (``ProfilerStep#4``), ``PYTHON`` a Python
    function that took long; others are not kept.
    """

    OPERATION = 0
    CALL = 1
    ANNOTATION = 2
    PYTHON = 3


class Names:
    """
    Texts by number; number 0 is the unknown text, also for texts beyond the limits.

    Attributes:
        numbers: By text; a caller with millions of texts looks here first.
        left_out: Texts beyond the limits.
    """

    def __init__(self, limit: int = MAX_NAMES) -> None:
        self._texts = [""]
        self.numbers = {"": 0}
        self._limit = limit
        self._characters_left = MAX_NAMES_CHARACTERS
        self.left_out = 0

    def number(self, text: str) -> int:
        """Return the number of a text, after it is cleaned and cut by ``frames.clean``."""
        found = self.numbers.get(text)
        return self._add(text) if found is None else found

    def __getitem__(self, number: int) -> str:
        return self._texts[number]

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def _add(self, text: str) -> int:
        kept = clean(text)
        number = self.numbers.get(kept)
        if number is not None:
            return number
        if len(self._texts) >= self._limit or len(kept) > self._characters_left:
            self.left_out += 1
            return 0
        self._characters_left -= len(kept)
        number = self.numbers[kept] = len(self._texts)
        self._texts.append(kept)
        return number


class Collective(NamedTuple):
    """
    A collective operation, as one participant recorded it.

    ``group`` and ``sequence`` (-1: unknown) are equal on all participants.
    """

    name: str
    group: str
    sequence: int
    size_bytes: int
    ranks: int


UNKNOWN_COLLECTIVE: Final = Collective(name="", group="", sequence=-1, size_bytes=0, ranks=0)


class Thread(NamedTuple):
    """A thread of the host; an empty ``name`` is unknown."""

    pid: int
    tid: int
    name: str = ""


class DeviceModel(NamedTuple):
    """Properties of a device; 0 and an empty name: unknown. ``compute`` is 80 for 8.0."""

    name: str
    compute: int = 0
    processors: int = 0
    memory_bytes: int = 0

    @property
    def cuda_compute(self) -> int:
        """The compute capability of a CUDA device; 0: unknown, or a device of another vendor."""
        return 0 if self.name.startswith(("AMD", "Intel")) else self.compute


class DeviceActivities:
    """
    Work of devices, as columns.

    Attributes:
        kinds: ``Work``.
        devices: Numbers of devices; -1: unknown.
        streams: -1: unknown.
        names: A copy is ``Memcpy HtoD (Pageable -> Device)``, with source and destination memory
            in brackets where they are known; see ``MIGRATION``.
        correlations: Those of the calls that enqueued the work.
        sizes_bytes: Of copies and fills; 0: unknown.
        collectives: 0: none, or unknown.
        occupancies: Share of a processor's warps that a kernel can use, as the profiler
            estimated it; -1: unknown.
        blocks: Blocks of a kernel per processor of the device; -1: unknown.
    """

    __slots__ = (
        "blocks",
        "collectives",
        "correlations",
        "devices",
        "durations_ns",
        "kinds",
        "names",
        "occupancies",
        "sizes_bytes",
        "starts_ns",
        "streams",
    )

    def __init__(self) -> None:
        self.kinds = array("b")
        self.devices = array("i")
        self.streams = array("q")
        self.starts_ns = array("q")
        self.durations_ns = array("q")
        self.names = array("I")
        self.correlations = array("I")
        self.sizes_bytes = array("q")
        self.collectives = array("I")
        self.occupancies = array("f")
        self.blocks = array("f")

    def __len__(self) -> int:
        return len(self.kinds)

    def add(
        self,
        kind: Work,
        device: int,
        stream: int,
        start_ns: int,
        duration_ns: int,
        name: int,
        *,
        correlation: int = 0,
        size_bytes: int = 0,
        collective: int = 0,
        occupancy: float = -1.0,
        blocks: float = -1.0,
    ) -> None:
        """Add a row."""
        self.kinds.append(kind)
        self.devices.append(device)
        self.streams.append(stream)
        self.starts_ns.append(start_ns)
        self.durations_ns.append(duration_ns)
        self.names.append(name)
        self.correlations.append(correlation)
        self.sizes_bytes.append(size_bytes)
        self.collectives.append(collective)
        self.occupancies.append(occupancy)
        self.blocks.append(blocks)


class HostOperations:
    """
    Work of threads of the host, as columns; rows of one thread nest as its calls did.

    Attributes:
        kinds: ``HostWork``.
        threads: Numbers in ``DeviceTrace.threads``.
        correlations: Of calls; the work that a call enqueued has the same one.
        shapes: Shapes and types of the inputs of operations, as text.
    """

    __slots__ = (
        "correlations",
        "durations_ns",
        "kinds",
        "names",
        "shapes",
        "starts_ns",
        "threads",
    )

    def __init__(self) -> None:
        self.kinds = array("b")
        self.threads = array("H")
        self.starts_ns = array("q")
        self.durations_ns = array("q")
        self.names = array("I")
        self.correlations = array("I")
        self.shapes = array("I")

    def __len__(self) -> int:
        return len(self.kinds)

    def add(
        self,
        kind: HostWork,
        thread: int,
        start_ns: int,
        duration_ns: int,
        name: int,
        correlation: int = 0,
        shape: int = 0,
    ) -> None:
        """Add a row."""
        self.kinds.append(kind)
        self.threads.append(thread)
        self.starts_ns.append(start_ns)
        self.durations_ns.append(duration_ns)
        self.names.append(name)
        self.correlations.append(correlation)
        self.shapes.append(shape)


class DeviceStep(NamedTuple):
    """A step on a device: from the start of its first to the end of its last work."""

    device: int
    name: str
    start_ns: int
    duration_ns: int


class DeviceTrace(NamedTuple):
    """
    The trace of one process.

    Attributes:
        source: The name of the file.
        tool: The profiler.
        base_unix_ns: Time 0 of all columns. If ``is_dated`` is False, the file does not state
            it, and only differences of times are known.
        names: Of activities and operations.
        shapes: Of operations.
        activities: Work of devices.
        host: Work of the host.
        threads: By number; 0 is an unknown one.
        collectives: By number; 0 is none.
        models: By the number of a device.
        rank: The rank of the process, of ``ranks``; None: unknown.
        program: The program of the process; ``host_name``: its host. Empty: unknown.
        processes: The number of processes in the same file.
        device_steps: Steps that were recorded on devices.
        has_stacks: Whether Python functions were recorded, even if none was kept.
        has_shapes: Whether shapes of inputs were recorded.
        overhead_ns: Time that recording took, according to the file.
        rejected: Unreadable parts of the file, by reason.
    """

    source: str
    tool: str
    base_unix_ns: int
    is_dated: bool
    names: Names
    shapes: Names
    activities: DeviceActivities
    host: HostOperations
    threads: tuple[Thread, ...]
    collectives: tuple[Collective, ...]
    models: Mapping[int, DeviceModel]
    rank: int | None = None
    ranks: int | None = None
    program: str = ""
    host_name: str = ""
    processes: int = 1
    device_steps: tuple[DeviceStep, ...] = ()
    has_stacks: bool = False
    has_shapes: bool = False
    overhead_ns: int = 0
    rejected: Mapping[str, int] = {}

"""
Device activity: what a device did and when, and what the host did meanwhile.

A ``DeviceTrace`` is what one process recorded of itself: a rank of a run. It has two tables, whose
columns are arrays, so that millions of rows stay small; a row is a position in all columns of
its table.

``DeviceActivities`` are kernels, copies, fills and whole graphs. This is device time. It is never
the time of the call that enqueued the work: that call is a row of ``HostOperations``, of kind
``CALL`` and with the same ``correlation``. Correlations are unique in a trace; 0: not known.

All times are nanoseconds after ``base_unix_ns``, of one clock for host and device. Rows are in no
order: who needs one sorts. A name, a list of shapes, a thread or a collective is its number in a
table of the trace, in each of which 0 stands for what is not known.
"""

from array import array
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from otel_gpu.wire.frames import clean

MAX_NAMES: Final = 1 << 18
"""Different texts in a table; more of them are all number 0."""
MAX_NAMES_CHARACTERS: Final = 48 << 20
MAX_CORRELATION: Final = (1 << 32) - 1
MIGRATION: Final = "Migration"
"""What the names of copies begin with that move pages of managed memory: no call enqueued them."""


class Work(IntEnum):
    """What a device did; ``GRAPH`` is a whole graph whose parts were not recorded."""

    KERNEL = 0
    COPY = 1
    FILL = 2
    GRAPH = 3


class HostWork(IntEnum):
    """
    What a thread of the host did.

    ``OPERATION`` is an operator of a framework (``aten::mm``), ``CALL`` one of the CUDA runtime or
    driver, ``ANNOTATION`` a stretch that a program names (``ProfilerStep#4``), ``PYTHON`` a function
    of Python, of which only those are kept that took long.
    """

    OPERATION = 0
    CALL = 1
    ANNOTATION = 2
    PYTHON = 3


class Names:
    """
    Texts by number; number 0 is what is not known, also where there are too many.

    Attributes:
        numbers: Of the texts that are in it; who has millions of texts looks here first.
        left_out: Texts that found no room.
    """

    def __init__(self, limit: int = MAX_NAMES) -> None:
        self._texts = [""]
        self.numbers = {"": 0}
        self._limit = limit
        self._room = MAX_NAMES_CHARACTERS
        self.left_out = 0

    def number(self, text: str) -> int:
        """Return the number of a text, which is cleaned and cut as that of a frame is."""
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
        if len(self._texts) >= self._limit or len(kept) > self._room:
            self.left_out += 1
            return 0
        self._room -= len(kept)
        number = self.numbers[kept] = len(self._texts)
        self._texts.append(kept)
        return number


class Collective(NamedTuple):
    """
    What several devices do together, as the one says that takes part.

    ``group`` and ``sequence`` (-1: not known) tell which of other ranks is the same one.
    """

    name: str
    group: str
    sequence: int
    size_bytes: int
    ranks: int


UNKNOWN_COLLECTIVE: Final = Collective("", "", -1, 0, 0)


class Thread(NamedTuple):
    """A thread of the host by its numbers; ``name`` is empty where nobody says it."""

    pid: int
    tid: int
    name: str = ""


class DeviceModel(NamedTuple):
    """What a device is; 0 and an empty name: not known. ``compute`` is as 80 for 8.0."""

    name: str
    compute: int = 0
    processors: int = 0
    memory_bytes: int = 0

    @property
    def cuda_compute(self) -> int:
        """Return the compute capability of a device of CUDA; 0: not known, or the device of another maker."""
        return 0 if self.name.startswith(("AMD", "Intel")) else self.compute


class DeviceActivities:
    """
    What devices did, as columns.

    Attributes:
        kinds: ``Work``.
        devices: The device's number; -1: not known.
        streams: The stream; -1: not known.
        names: Of a copy ``Memcpy HtoD (Pageable -> Device)``, with the memory it is from and to in
            brackets where that is known; see ``MIGRATION``.
        correlations: The call that enqueued it.
        sizes_bytes: Of copies and fills; 0: not known.
        collectives: 0: none, or not known to be one.
        occupancies: The share of a processor's warps that a kernel can use, as estimated by who
            recorded it; -1: not known.
        blocks: Blocks of a kernel for each processor of the device, likewise.
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
    What threads of the host did, as columns.

    Rows of one thread lie in each other as the calls did.

    Attributes:
        kinds: ``HostWork``.
        threads: Numbers in ``DeviceTrace.threads``.
        correlations: Of calls: what they enqueued has the same.
        shapes: Of operations: the shapes and types of their inputs, as text.
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
    """A step as the device had it: from the first to the last of the work that it marks."""

    device: int
    name: str
    start_ns: int
    duration_ns: int


class DeviceTrace(NamedTuple):
    """
    What one process recorded of its devices and of itself.

    Attributes:
        source: The file, as it is called.
        tool: Who recorded it.
        base_unix_ns: Of all times; ``is_dated`` is False where the file does not say it, and all
            that is known of times is how they lie to each other.
        names: Of activities and operations.
        shapes: Of operations.
        activities: What devices did.
        host: What the host did.
        threads: By number; 0 is an unknown one.
        collectives: By number; 0 is none.
        models: By the number of a device.
        rank: Which of the processes of a run it is, of ``ranks``; None: not known.
        program: What the process ran, and ``host_name`` where; empty: the file does not say it.
        processes: How many of them the same file is of.
        device_steps: Where the device itself says them.
        has_stacks: Functions of Python were recorded, whether or not they are kept.
        has_shapes: Shapes of inputs were recorded.
        overhead_ns: Time that recording itself took, as it says.
        rejected: What could not be read of the file, by reason.
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

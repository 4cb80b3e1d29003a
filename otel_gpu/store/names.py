"""
Numbers for what rows refer to: processes, devices, stacks, series.

Each has a row of its own, which says the latest chunk that refers to it. That is brought
up to date when a chunk refers to it for the first time, and costs nothing after that;
and it is all that eviction needs to know which of them nobody refers to any more.
"""

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from otel_gpu import wire
from otel_gpu.decode.events import SeriesKey
from otel_gpu.enrich.activities import (
    CallStack,
    CaptureActivity,
    DeviceIdentity,
    ProcessImage,
    Series,
)
from otel_gpu.enrich.percentiles import bucket_middles_ns
from otel_gpu.probe_table import API_BY_NUMBER, Api
from otel_gpu.store.batch import Row
from otel_gpu.store.lookups import family_name
from otel_gpu.store.owed import Owed
from otel_gpu.store.stack_rows import stack_columns
from otel_gpu.store.text import clean, to_json

MAX_NAMES = 16_384
"""Of each sort, what is remembered. What is forgotten gets another number next time."""

MAX_OWED_BYTES = 16 << 20
"""Rows that wait to be written, while a disk is busy."""

# How long after its end a process may still be told about.
_LATE_NS = 60_000_000_000

_ImageKey = tuple[int, int]


class Names:
    """
    Gives numbers, and gathers the rows that explain them.

    Args:
        first: The first free number of each table.
    """

    def __init__(self, first: Mapping[str, int]) -> None:
        self._next = dict(first)
        self._chunk = 0
        self._unix_ns = 0
        self._capture = 0
        self._capture_row: Row = ()
        self._owed = Owed(MAX_OWED_BYTES)
        # What the current chunk has referred to already.
        self._fresh: dict[Any, int] = {}
        self._processes: OrderedDict[_ImageKey, int] = OrderedDict()
        self._images: dict[int, ProcessImage] = {}
        self._ends: OrderedDict[int, tuple[int, int, int]] = OrderedDict()
        self._devices: dict[DeviceIdentity, int] = {}
        self._stacks: dict[tuple[str, ...] | tuple[str, int], int] = {}
        self._series: dict[SeriesKey, tuple[int, int, int | None]] = {}
        self._apis: set[int] = set()

    @property
    def owed_bytes(self) -> int:
        """What the rows that are to be written will take in the file, about."""
        return self._owed.bytes

    def take(self) -> Owed:
        """Return the rows that are to be written, once."""
        owed, self._owed = self._owed, Owed(MAX_OWED_BYTES)
        return owed

    def keep(self, table: str, key: Any, row: Row) -> None:  # noqa: ANN401 -- any key
        """Add a row that is to be written; a later one with the same key takes its place."""
        self._owed.add(table, key, row)

    def begin_chunk(self, chunk: int, unix_ns: int = 0) -> None:
        """Take in that rows belong to another chunk from now on, by the stream's time."""
        self._chunk = chunk
        self._unix_ns = unix_ns
        self._fresh.clear()
        if self._capture:
            self._refresh_capture()

    def begin_capture(self, seq: int, activity: CaptureActivity) -> None:
        """Take in that a capture began: nothing in it is what had its name before."""
        self._capture = self._number("captures")
        self._fresh.clear()
        for known in (self._processes, self._images, self._ends, self._series):
            known.clear()
        info = activity.info
        host = info.get("host")
        agent = info.get("agent")
        host = host if isinstance(host, Mapping) else {}
        agent = agent if isinstance(agent, Mapping) else {}
        self._capture_row = (
            seq,
            activity.unix_ns,
            clean(agent.get("version", "")),
            clean(host.get("name", "")),
            clean(host.get("boot_id", "")),
            to_json(info) or "{}",
        )
        self._refresh_capture()
        for quantity, bucket, middle in _bucket_rows(info):
            row = (self._capture, quantity, bucket, middle)
            self.keep("buckets", row[:3], row)

    def add_probes(self, seq: int, unix_ns: int, info: str) -> None:
        """Take in which symbols carry probes."""
        number = self._number("probes")
        self.keep("probes", number, (number, self._capture, seq, unix_ns, info))

    def process(self, image: ProcessImage) -> int:
        """Return the number of a process image."""
        number = self._fresh.get(image)
        if number is None:
            number = self._fresh[image] = self._find_process(image)
        return number

    def end_process(self, image: ProcessImage, unix_ns: int, exit_code: int) -> int:
        """Take in that a process image ended; return its number."""
        number = self.process(image)
        self._ends[number] = (unix_ns, exit_code, self._chunk)
        if len(self._ends) > MAX_NAMES:
            self._ends.popitem(last=False)
        self._keep_process(number, image)
        return number

    def is_over(self, process: int) -> bool:
        """Say whether nothing of a process is to come any more."""
        if process not in self._ends:
            return False
        end_unix_ns, _, chunk = self._ends[process]
        return chunk < self._chunk - 1 and end_unix_ns + _LATE_NS < self._unix_ns

    def device(self, identity: DeviceIdentity | None) -> int | None:
        """Return the number of a device."""
        if identity is None:
            return None
        number = self._fresh.get(identity)
        if number is None:
            number = self._remembered(self._devices, identity, "devices")
            uuid = None if identity.uuid is None else clean(identity.uuid)
            model = None if identity.model is None else clean(identity.model)
            self.keep("devices", number, (number, self._chunk, identity.index, uuid, model))
            self._fresh[identity] = number
        return number

    def stack(self, functions: tuple[str, ...]) -> int | None:
        """Return the number of a kernel stack; None: there is none."""
        if not functions:
            return None
        number = self._fresh.get(functions)
        if number is None:
            number = self._remembered(self._stacks, functions, "stacks")
            frames = to_json(functions) or "[]"
            self.keep("stacks", number, (number, self._chunk, "kernel", "", "", frames))
            self._fresh[functions] = number
        return number

    def program_stack(self, stack: CallStack | None) -> int | None:
        """Return the number of a program's stack; None: there is none."""
        if stack is None:
            return None
        # Equal stacks have equal ids, and frames are many.
        key = ("program", stack.id)
        number = self._fresh.get(key)
        if number is None:
            number = self._remembered(self._stacks, key, "stacks")
            self.keep("stacks", number, (number, self._chunk, "program", *stack_columns(stack)))
            self._fresh[key] = number
        return number

    def api(self, api: Api) -> int:
        """Return the number of an API, and see to it that the store knows its name."""
        if api.number not in API_BY_NUMBER and api.number not in self._apis:
            self._apis.add(api.number)
            row = (api.number, clean(api.name), api.layer_name, family_name(api.family))
            self.keep("apis", api.number, row)
        return api.number

    def series(self, series: Series) -> tuple[int, int]:
        """Return the number of a series, and of its process."""
        process = self.process(series.process)
        device = self.device(series.device)
        key = series.key
        fresh = self._fresh.get(key)
        if fresh is not None and self._series[key][1:] == (process, device):
            return fresh, process
        known = self._series.get(key)
        if known is None and len(self._series) >= MAX_NAMES:
            self._series.clear()
        number = self._number("series") if known is None else known[0]
        self._series[key] = (number, process, device)
        if series.api is not None:
            self.api(series.api)
        self.keep(
            "series",
            number,
            (
                number,
                self._chunk,
                process,
                key.metric,
                key.api,
                key.status,
                key.device,
                device,
                key.copy_kind,
                key.nested,
            ),
        )
        self._fresh[key] = number
        return number, process

    def _number(self, table: str) -> int:
        number = self._next[table]
        self._next[table] = number + 1
        return number

    def _remembered(self, known: dict[Any, int], key: object, table: str) -> int:
        number = known.get(key)
        if number is None:
            if len(known) >= MAX_NAMES:
                known.clear()
            number = known[key] = self._number(table)
        return number

    def _find_process(self, image: ProcessImage) -> int:
        key = (image.pid, image.image_ktime_ns)
        number = self._processes.get(key)
        if number is None:
            number = self._processes[key] = self._number("processes")
            if len(self._processes) > MAX_NAMES:
                _, oldest = self._processes.popitem(last=False)
                self._images.pop(oldest, None)
        else:
            self._processes.move_to_end(key)
        self._keep_process(number, image)
        return number

    def _keep_process(self, number: int, image: ProcessImage) -> None:
        self._images[number] = image
        end_unix_ns, exit_code, _ = self._ends.get(number, (None, None, 0))
        attributes = image.attributes
        arguments = attributes.get("process.command_args")
        command = " ".join(map(str, arguments)) if isinstance(arguments, list | tuple) else ""
        self.keep(
            "processes",
            number,
            (
                number,
                self._chunk,
                self._capture,
                image.pid,
                image.image_ktime_ns,
                clean(image.comm),
                image.start_unix_ns,
                end_unix_ns,
                exit_code,
                clean(attributes.get("service.name", image.comm)),
                clean(command),
                clean(attributes.get("container.id", "")),
                to_json(attributes) or "{}",
            ),
        )

    def _refresh_capture(self) -> None:
        number = self._capture
        self.keep("captures", number, (number, self._chunk, *self._capture_row))


def _bucket_rows(info: Mapping[str, Any]) -> Iterator[tuple[str, int, float | None]]:
    layout = info.get("layout")
    if not isinstance(layout, Mapping):
        return
    for quantity, name, bounds in (
        ("duration", "durations", "bounds_ns"),
        ("size", "sizes", "bounds_bytes"),
    ):
        part = layout.get(name)
        if not isinstance(part, Mapping):
            continue
        try:
            middles = bucket_middles_ns({**part, "bounds_ns": part.get(bounds)})
        except (KeyError, TypeError, ValueError, IndexError, OverflowError):
            # A layout of a later version: nobody can say what its buckets hold.
            continue
        # The exponential ones are in nanoseconds, whatever they are of.
        scale = 1e-9 if quantity == "size" and part.get("kind") == "exponential" else 1.0
        for bucket, middle in enumerate(middles[: wire.MAX_BUCKETS]):
            yield quantity, bucket, middle * scale if middle < math.inf else None

"""
Numbers for what rows refer to: processes, devices, stacks, series.

Each has a row of its own, which says the latest chunk that refers to it. That is brought
up to date when a chunk refers to it for the first time, and costs nothing after that;
and it is all that eviction needs to know which of them nobody refers to any more.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from otel_gpu import wire
from otel_gpu.enrich.activities import (
    CallStack,
    CaptureActivity,
    DeviceIdentity,
    ProcessImage,
    Resource,
    Series,
)
from otel_gpu.enrich.percentiles import bucket_middles_ns
from otel_gpu.probe_table import API_BY_NUMBER, Api
from otel_gpu.store.columns import Row
from otel_gpu.store.lookups import family_name
from otel_gpu.store.pending_rows import PendingRows
from otel_gpu.store.processes import End, FollowedSeries, Process, Processes
from otel_gpu.store.resource_text import resource_text
from otel_gpu.store.schema import TABLE_BY_NAME
from otel_gpu.store.stack_rows import stack_columns
from otel_gpu.store.text import clean, to_json

MAX_NAMES = 4_096
"""Devices, stacks and unknown APIs that are remembered, of each. What is forgotten gets another
number next time."""

MAX_PENDING_BYTES = 16 << 20
"""Rows that wait to be written, while a disk is busy."""


_KEY_LENGTHS = {table.name: len(table.key) for table in TABLE_BY_NAME.values()}
_Numbers = OrderedDict[Hashable, tuple[int, int]]


class Names:
    """
    Gives numbers, and gathers the rows that explain them.

    Args:
        first: The first free number of each table.
        lost: Counts what found no room.

    Attributes:
        processes: What is kept of each process.
    """

    def __init__(self, first: Mapping[str, int], lost: Counter[str]) -> None:
        self._next = dict(first)
        self._chunk = 0
        self._capture = 0
        self._capture_row: Row = ()
        self._lost = lost
        self._pending = PendingRows(MAX_PENDING_BYTES, lost)
        self.processes = Processes(self._number, lost)
        # Numbers of process images that the current chunk refers to: nearly all rows ask for one.
        self._of_chunk: dict[ProcessImage, int] = {}
        # The number of each, and the latest chunk that refers to it; those that no chunk
        # referred to for longest come first.
        self._devices: _Numbers = OrderedDict()
        self._stacks: _Numbers = OrderedDict()
        self._apis: _Numbers = OrderedDict()

    @property
    def pending_bytes(self) -> int:
        """What the rows that are to be written will take in the file, about."""
        return self._pending.bytes

    def take(self) -> PendingRows:
        """Return the rows that are to be written, once."""
        pending, self._pending = self._pending, PendingRows(MAX_PENDING_BYTES, self._lost)
        return pending

    def keep(self, table: str, row: Row) -> None:
        """Add a row that is to be written; a later one with the same key takes its place."""
        self._pending.add(table, row[: _KEY_LENGTHS[table]], row)

    def begin_chunk(self, chunk: int) -> None:
        """Take in that rows belong to another chunk from now on."""
        self._chunk = chunk
        self._of_chunk.clear()
        if self._capture:
            self._refresh_capture()

    def begin_capture(self, seq: int, activity: CaptureActivity) -> None:
        """Take in that a capture began: nothing in it is what had its name before."""
        self._capture = self._number("captures")
        self.processes.clear()
        self._of_chunk.clear()
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
            self.keep("buckets", (self._capture, quantity, bucket, middle))

    def add_probes(self, seq: int, unix_ns: int, info: str) -> None:
        """Take in which symbols carry probes."""
        number = self._number("probes")
        self.keep("probes", (number, self._capture, seq, unix_ns, info))

    def process(self, image: ProcessImage) -> int:
        """Return the number of a process image."""
        number = self._of_chunk.get(image)
        if number is None:
            if len(self._of_chunk) >= MAX_NAMES:
                self._of_chunk.clear()
            number = self._of_chunk[image] = self.follow(image).number
        return number

    def follow(self, image: ProcessImage) -> Process:
        """Return what is kept of a process image, which has a row from now on."""
        process = self.processes.find(image)
        if process.chunk != self._chunk or process.image is not image:
            process.chunk, process.image = self._chunk, image
            self.processes.touch(process)
            self._keep_process(process)
        return process

    def end_process(self, image: ProcessImage, unix_ns: int, exit_code: int | None) -> int:
        """Take in that a process image ended; return its number."""
        process = self.follow(image)
        self.processes.end(process, End(unix_ns, exit_code))
        self._keep_process(process)
        return process.number

    def device(self, identity: DeviceIdentity | None) -> int | None:
        """Return the number of a device."""
        if identity is None:
            return None
        number, is_fresh = self._refer("devices", self._devices, identity)
        if not is_fresh:
            uuid = None if identity.uuid is None else clean(identity.uuid)
            model = None if identity.model is None else clean(identity.model)
            self.keep("devices", (number, self._chunk, identity.index, uuid, model))
        return number

    def stack(self, functions: tuple[str, ...]) -> int | None:
        """Return the number of a kernel stack; None: there is none."""
        if not functions:
            return None
        number, is_fresh = self._refer("stacks", self._stacks, functions)
        if not is_fresh:
            frames = to_json(functions) or "[]"
            self.keep("stacks", (number, self._chunk, "kernel", "", "", frames))
        return number

    def program_stack(self, stack: CallStack | None) -> int | None:
        """Return the number of a program's stack; None: there is none."""
        if stack is None:
            return None
        # Equal stacks have equal ids, and frames are many.
        number, is_fresh = self._refer("stacks", self._stacks, stack.id)
        if not is_fresh:
            self.keep("stacks", (number, self._chunk, "program", *stack_columns(stack)))
        return number

    def resource(self, resource: Resource | None) -> str | None:
        """Return what a thread waited for as its row says it; None: it is not known."""
        return None if resource is None else resource_text(resource)

    def api(self, api: Api) -> int:
        """Return the number of an API, and see to it that the store knows its name."""
        if api.number not in API_BY_NUMBER and api.number not in self._apis:
            _remember(self._apis, api.number, (api.number, 0))
            row = (api.number, clean(api.name), api.layer_name, family_name(api.family))
            self.keep("apis", row)
        return api.number

    def series(self, series: Series) -> FollowedSeries | None:
        """Return what is kept of a series; None: it is lost, and counted."""
        process = self.follow(series.process)
        device = self.device(series.device)
        key = series.key
        known = self.processes.series(process, key)
        if known is None or (known.chunk == self._chunk and known.device == device):
            return known
        known.chunk, known.device = self._chunk, device
        if series.api is not None:
            self.api(series.api)
        self.keep(
            "series",
            (
                known.number,
                self._chunk,
                process.number,
                key.metric,
                key.api,
                key.status,
                key.device,
                device,
                key.copy_kind,
                key.nested,
            ),
        )
        return known

    def _number(self, table: str) -> int:
        number = self._next[table]
        self._next[table] = number + 1
        return number

    def _refer(self, table: str, known: _Numbers, key: Hashable) -> tuple[int, bool]:
        """Return a number, and whether the current chunk referred to it before."""
        found = known.get(key)
        if found is not None and found[1] == self._chunk:
            return found[0], True
        number = self._number(table) if found is None else found[0]
        _remember(known, key, (number, self._chunk))
        return number, False

    def _keep_process(self, process: Process) -> None:
        number, image = process.number, process.image
        end_unix_ns, exit_code = process.end or (None, None)
        attributes = image.attributes
        arguments = attributes.get("process.command_args")
        command = " ".join(map(str, arguments)) if isinstance(arguments, list | tuple) else ""
        self.keep(
            "processes",
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
        self.keep("captures", (number, self._chunk, *self._capture_row))


def _remember(known: _Numbers, key: Hashable, number: tuple[int, int]) -> None:
    known[key] = number
    known.move_to_end(key)
    if len(known) > MAX_NAMES:
        known.popitem(last=False)


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

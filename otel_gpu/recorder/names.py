"""
Numbers for what rows refer to: processes, devices, stacks, series.

Each has a row of its own, which says the latest chunk that refers to it. That is brought
up to date when a chunk refers to it for the first time, and costs nothing after that;
and it is all that eviction needs to know which of them nobody refers to any more.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any

from otel_gpu import wire
from otel_gpu.enrich.activities import CaptureActivity, Series
from otel_gpu.enrich.identity.identities import (
    CallStack,
    DeviceIdentity,
    Program,
    Resource,
    Who,
)
from otel_gpu.enrich.percentiles import known_middles
from otel_gpu.enrich.thread_times import NO_WAIT, Wait
from otel_gpu.limits.recent import Recent
from otel_gpu.recorder.batch import PendingRows
from otel_gpu.recorder.processes import End, Processes, Referred, StoredProcess
from otel_gpu.recorder.rows.resource_text import resource_text
from otel_gpu.recorder.rows.stacks import stack_columns
from otel_gpu.recorder.rows.waits import wait_columns
from otel_gpu.recorder.tables.columns import Row
from otel_gpu.recorder.tables.lookups import family_name
from otel_gpu.recorder.tables.schema import TABLE_BY_NAME
from otel_gpu.recorder.text import clean, to_json
from otel_gpu.state.time_accounting import MAX_TIMES
from otel_gpu.wire.probe_table import API_BY_NUMBER, Api

MAX_NAMES = 16_384
"""Devices, stacks and unknown APIs that are remembered, of each: as many stacks as ``enrich`` does.
What is forgotten gets another number next time, and with that a row of its own again. Of waits
there are as many as entries of time accounts."""

MAX_PENDING_BYTES = 16 << 20
"""Rows that wait to be written, while a disk is busy."""

_KEY_LENGTHS = {table.name: len(table.key) for table in TABLE_BY_NAME.values()}


class _Numbers(dict[Any, int | None]):
    # The numbers of what the current chunk refers to. Nearly all rows ask for some: what is here
    # is found without a call of Python's. ``refer`` gives the number of anything else.

    def __init__(self, refer: Callable[[Any], int | None], most: int = 0) -> None:
        self._refer = refer
        self._most = most

    def __missing__(self, thing: Hashable) -> int | None:
        return self.add(thing, thing)

    def add(self, key: Hashable, thing: object) -> int | None:
        if len(self) >= (self._most or MAX_NAMES):
            self.clear()
        number = self[key] = self._refer(thing)
        return number


class StoredNames:
    """
    Gives numbers, and gathers the rows that explain them.

    Attributes:
        process: Gives the number of a process image.
        device: Gives the number of a device; None of None.
        stack: Gives the number of a kernel stack, as a tuple of functions; None: it has none.
        kernel: Gives the number of the name of a kernel that was launched.
        wait: Gives the number of a wait; 0 of ``NO_WAIT``.
        known_apis: Numbers of APIs whose names the store knows.
        pending: The rows that are to be written.
    """

    def __init__(self, first: Mapping[str, int], lost: Counter[str]) -> None:
        self._next = dict(first)
        self._capture = self.chunk = 0
        self._capture_row: Row = ()
        self._lost = lost
        self.pending = PendingRows(MAX_PENDING_BYTES, lost)
        self.processes = self._no_processes()
        # The numbers of devices, stacks and waits; what no chunk referred to for longest comes first.
        self._known: dict[str, Recent[Hashable, int]] = {
            "devices": Recent(MAX_NAMES),
            "stacks": Recent(MAX_NAMES),
            "waits": Recent(MAX_TIMES),
        }
        processes, devices = _Numbers(self._process), _Numbers(self._device)
        stacks, self._program_stacks = _Numbers(self._stack), _Numbers(self._program_stack)
        kernels = _Numbers(self._kernel)
        waits = _Numbers(self._wait, MAX_TIMES)
        self._of_chunk = (processes, devices, stacks, self._program_stacks, waits, kernels)
        self.process, self.device = processes.__getitem__, devices.__getitem__
        self.stack, self.wait = stacks.__getitem__, waits.__getitem__
        self.kernel = kernels.__getitem__
        self.known_apis = set(API_BY_NUMBER)

    def take(self) -> PendingRows:
        """Return the rows that are to be written, once."""
        pending, self.pending = self.pending, PendingRows(MAX_PENDING_BYTES, self._lost)
        return pending

    def keep(self, table: str, *row: Any) -> None:  # noqa: ANN401 -- whatever a column holds
        """Add a row that is to be written; a later one with the same key takes its place."""
        self.pending.add(table, row[: _KEY_LENGTHS[table]], row)

    def begin_chunk(self, chunk: int) -> None:
        """Take in that rows belong to another chunk from now on."""
        self.chunk = chunk
        for numbers in self._of_chunk:
            numbers.clear()
        if self._capture:
            self.keep("captures", self._capture, self.chunk, *self._capture_row)

    def begin_capture(self, seq: int, activity: CaptureActivity) -> None:
        """Take in that a capture began: nothing in it is what had its name before."""
        self._capture = self._number("captures")
        self.processes = self._no_processes()
        info = activity.info
        host, agent = (
            part if isinstance(part, Mapping) else {} for part in map(info.get, ("host", "agent"))
        )
        names = (agent.get("version", ""), host.get("name", ""), host.get("boot_id", ""))
        self._capture_row = (seq, activity.unix_ns, *map(clean, names), to_json(info) or "{}")
        self.begin_chunk(self.chunk)
        for quantity, name in (("duration", "durations"), ("size", "sizes")):
            middles = known_middles(info.get("layout"), name)
            for bucket, middle in enumerate(middles[: wire.MAX_BUCKETS]):
                known = middle if middle < math.inf else None
                self.keep("buckets", self._capture, quantity, bucket, known)

    def add_probes(self, seq: int, unix_ns: int, info: str) -> None:
        """Take in which symbols carry probes."""
        self.keep("probes", self._number("probes"), self._capture, seq, unix_ns, info)

    def add_identity(self, seq: int, unix_ns: int, who: Who) -> None:
        """Take in who somebody is."""
        pid, tid, *names = who
        self.keep("identities", seq, unix_ns, pid, tid, *map(clean, names))

    def follow(self, image: Program) -> StoredProcess:
        """Return what is kept of a process image, which has a row from now on."""
        process = self.processes.find(image)
        if process.chunk != self.chunk or process.named is not image:
            process.chunk, process.named = self.chunk, image
            self._keep_process(process)
        return process

    def end_process(self, image: Program, end: End) -> int:
        """Take in that a process image ended; return its number."""
        process = self.follow(image)
        process.end = end
        self._keep_process(process)
        self.processes.end((image.pid, image.program_ktime_ns))
        return process.number

    def program_stack(self, stack: CallStack | None) -> int | None:
        """Return the number of a program's stack; None: there is none."""
        if stack is None:
            return None
        # Equal stacks have equal ids, and frames are many.
        number = self._program_stacks.get(stack.id)
        return self._program_stacks.add(stack.id, stack) if number is None else number

    # As plain text, which SQLite binds without asking what it adapts to.
    reason = staticmethod(str)

    def resource(self, resource: Resource | None) -> str | None:
        """Return what a thread waited for as its row says it; None: it is not known."""
        return None if resource is None else resource_text(resource)

    def api(self, api: Api) -> None:
        """See to it that the store knows the name of an API."""
        if api.number in self.known_apis:
            return
        if len(self.known_apis) >= len(API_BY_NUMBER) + MAX_NAMES:
            self.known_apis.intersection_update(API_BY_NUMBER)
        self.known_apis.add(api.number)
        self.keep("apis", api.number, clean(api.name), api.layer_name, family_name(api.family))

    def series(self, process: StoredProcess, series: Series) -> int:
        """Return the number of a series."""
        key, device = series.key, self.device(series.device)
        known = process.numbers.get(key)
        if known is not None and known.chunk == self.chunk and known.device == device:
            return known.number
        number = self._number("series") if known is None else known.number
        process.numbers[key] = Referred(number, self.chunk, device)
        if series.api is not None:
            self.api(series.api)
        of_api = (key.metric, key.api, key.status, key.device, device, key.copy_kind, key.nested)
        self.keep("series", number, self.chunk, process.number, *of_api)
        return number

    def _no_processes(self) -> Processes:
        return Processes(partial(self._number, "processes"))

    def _number(self, table: str) -> int:
        number = self._next[table]
        self._next[table] = number + 1
        return number

    def _refer(self, table: str, key: Hashable, *columns: object) -> int:
        known = self._known[table]
        number = known.use(key)
        if number is None:
            number = known[key] = self._number(table)
        self.keep(table, number, self.chunk, *columns)
        return number

    def _process(self, image: Program | None) -> int | None:
        return None if image is None else self.follow(image).number

    def _device(self, identity: DeviceIdentity | None) -> int | None:
        if identity is None:
            return None
        names = (name if name is None else clean(name) for name in identity[1:])
        return self._refer("devices", identity, identity.index, *names)

    def _stack(self, functions: tuple[str, ...]) -> int | None:
        if not functions:
            return None
        return self._refer("stacks", functions, "kernel", "", "", to_json(functions) or "[]")

    def _kernel(self, name: str) -> int:
        return self._refer("stacks", ("launch", name), "launch", "", "", to_json([name]) or "[]")

    def _program_stack(self, stack: CallStack) -> int:
        return self._refer("stacks", stack.id, "program", *stack_columns(stack))

    def _wait(self, wait: Wait) -> int:
        return 0 if wait == NO_WAIT else self._refer("waits", wait, *wait_columns(wait))

    def _keep_process(self, process: StoredProcess) -> None:
        image = process.process
        attributes = image.attributes
        arguments = attributes.get("process.command_args")
        command = " ".join(map(str, arguments)) if isinstance(arguments, list | tuple) else ""
        self.keep(
            "processes",
            process.number,
            self.chunk,
            self._capture,
            image.pid,
            image.program_ktime_ns,
            clean(image.comm),
            image.start_unix_ns,
            *process.end,
            clean(attributes.get("service.name", image.comm)),
            clean(command),
            clean(attributes.get("container.id", "")),
            to_json(attributes) or "{}",
        )

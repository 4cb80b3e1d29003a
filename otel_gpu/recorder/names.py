"""
Numbers of processes, devices, stacks and series, to which rows refer.

Each has its own row with the latest chunk that refers to it. The row is updated when a chunk first
refers to it; further references in the chunk cost nothing. Eviction removes the rows whose latest
chunk is gone.
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
from otel_gpu.recorder.storable_text import clean, to_json
from otel_gpu.recorder.tables.columns import Row
from otel_gpu.recorder.tables.lookups import family_name
from otel_gpu.recorder.tables.schema import TABLE_BY_NAME
from otel_gpu.state.time_accounting import MAX_TIMES
from otel_gpu.wire.bodies import AgentFacts, HostFacts
from otel_gpu.wire.probe_table import API_BY_NUMBER, Api

MAX_NAMES = 16_384
"""Devices, stacks and unknown APIs to remember, of each kind; ``enrich`` remembers as many stacks. A
forgotten one later gets another number and another row. Waits have the limit of time accounts."""

MAX_PENDING_BYTES = 16 << 20
"""Bytes of rows that wait to be written while a disk is busy."""

_KEY_LENGTHS = {table.name: len(table.key) for table in TABLE_BY_NAME.values()}


class _Numbers(dict[object, int | None]):
    # Numbers that the current chunk refers to. Nearly all rows need some, so a hit runs no Python code.
    # ``refer`` returns the number of anything else.

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
    Assigns numbers, and collects the rows that describe them.

    Attributes:
        process: Returns the number of a program.
        device: Returns the number of a device; None for None.
        stack: Returns the number of a kernel stack, a tuple of functions; None for an empty one.
        kernel: Returns the number of the name of a launched kernel.
        wait: Returns the number of a wait; 0 for ``NO_WAIT``.
        known_apis: Numbers of APIs whose names are in the store.
        pending: Rows to write.
    """

    def __init__(self, first: Mapping[str, int], lost: Counter[str]) -> None:
        self._next = dict(first)
        self._capture = self.chunk = 0
        self._capture_row: Row = ()
        self._lost = lost
        self.pending = PendingRows(MAX_PENDING_BYTES, lost)
        self.processes = self._no_processes()
        # Numbers of devices, stacks and waits.
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
        """Return the rows to write, and start with none."""
        pending, self.pending = self.pending, PendingRows(MAX_PENDING_BYTES, self._lost)
        return pending

    def keep(self, table: str, *row: object) -> None:
        """Add a row to write; a later one with the same key replaces it."""
        self.pending.add(table, row[: _KEY_LENGTHS[table]], row)

    def begin_chunk(self, chunk: int) -> None:
        """Start a chunk: later rows belong to it."""
        self.chunk = chunk
        for numbers in self._of_chunk:
            numbers.clear()
        if self._capture:
            self.keep("captures", self._capture, self.chunk, *self._capture_row)

    def begin_capture(self, seq: int, activity: CaptureActivity) -> None:
        """Start a capture: its pids mean other processes than before."""
        self._capture = self._number("captures")
        self.processes = self._no_processes()
        info = activity.info
        host: HostFacts = info.get("host", {})
        agent: AgentFacts = info.get("agent", {})
        names = (agent.get("version", ""), host.get("name", ""), host.get("boot_id", ""))
        self._capture_row = (seq, activity.unix_ns, *map(clean, names), to_json(info) or "{}")
        self.begin_chunk(self.chunk)
        for quantity, middles in (
            ("duration", known_middles(info["layout"], "durations")),
            ("size", known_middles(info["layout"], "sizes")),
        ):
            for bucket, middle in enumerate(middles[: wire.MAX_BUCKETS]):
                known = middle if middle < math.inf else None
                self.keep("buckets", self._capture, quantity, bucket, known)

    def add_probes(self, seq: int, unix_ns: int, info: str) -> None:
        """Add the row of the symbols that have probes."""
        self.keep("probes", self._number("probes"), self._capture, seq, unix_ns, info)

    def add_identity(self, seq: int, unix_ns: int, who: Who) -> None:
        """Add the row of the names of a process or thread."""
        pid, tid, *names = who
        self.keep("identities", seq, unix_ns, pid, tid, *map(clean, names))

    def follow(self, program: Program) -> StoredProcess:
        """Return the state of a program; add or update its row if this chunk has none."""
        process = self.processes.find(program)
        if process.chunk != self.chunk or process.named is not program:
            process.chunk, process.named = self.chunk, program
            self._keep_process(process)
        return process

    def end_process(self, program: Program, end: End) -> int:
        """Record the end of a program; return its number."""
        process = self.follow(program)
        process.end = end
        self._keep_process(process)
        self.processes.end((program.pid, program.program_ktime_ns))
        return process.number

    def program_stack(self, stack: CallStack | None) -> int | None:
        """Return the number of a program's stack; None for None."""
        if stack is None:
            return None
        # Compare ids, which are equal for equal stacks, not the many frames.
        number = self._program_stacks.get(stack.id)
        return self._program_stacks.add(stack.id, stack) if number is None else number

    # Plain text, which SQLite binds without looking for an adapter.
    reason = staticmethod(str)

    def resource(self, resource: Resource | None) -> str | None:
        """Return a resource as the text in rows; None for None, or if it is too large."""
        return None if resource is None else resource_text(resource)

    def api(self, api: Api) -> None:
        """Add the row of an API if the store does not have it."""
        if api.number in self.known_apis:
            return
        if len(self.known_apis) >= len(API_BY_NUMBER) + MAX_NAMES:
            self.known_apis.intersection_update(API_BY_NUMBER)
        self.known_apis.add(api.number)
        self.keep("apis", api.number, clean(api.name), api.layer_name, family_name(api.family))

    def series(self, process: StoredProcess, series: Series) -> int:
        """Return the number of a series of a process; add or update its row for this chunk."""
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

    def _process(self, program: Program | None) -> int | None:
        return None if program is None else self.follow(program).number

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
        program = process.process
        attributes = program.attributes
        arguments = attributes.get("process.command_args")
        command = " ".join(map(str, arguments)) if isinstance(arguments, list | tuple) else ""
        self.keep(
            "processes",
            process.number,
            self.chunk,
            self._capture,
            program.pid,
            program.program_ktime_ns,
            clean(program.comm),
            program.start_unix_ns,
            *process.end,
            clean(attributes.get("service.name", program.comm)),
            clean(command),
            clean(attributes.get("container.id", "")),
            to_json(attributes) or "{}",
        )

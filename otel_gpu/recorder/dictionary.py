"""Lookup of the processes, devices, stacks and series that numbers in rows refer to."""

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from otel_gpu import wire
from otel_gpu.enrich.activities import Series
from otel_gpu.enrich.identity.identities import CallStack, DeviceIdentity, Program
from otel_gpu.enrich.thread_times import NO_WAIT, Wait
from otel_gpu.enrich.waits.reasons import read_reason
from otel_gpu.recorder.pages import Pages
from otel_gpu.recorder.rows.resource_text import read_resource
from otel_gpu.recorder.rows.stacks import read_stack
from otel_gpu.recorder.rows.totals import NOTHING
from otel_gpu.recorder.rows.waits import read_wait
from otel_gpu.recorder.storable_text import from_json
from otel_gpu.recorder.tables.columns import MAX_INTEGER, Row
from otel_gpu.recorder.tables.lookups import family_number
from otel_gpu.recorder.tables.schema import TABLE_BY_NAME
from otel_gpu.wire.probe_table import API_BY_NUMBER, LAYER_NAMES, Api, unknown_api
from otel_gpu.wire.readings import SeriesKey

MAX_KNOWN = 16_384
# Numbers are assigned in order, so a reader of one usually needs the next ones.
_AHEAD = {"processes": 64, "series": 256, "waits": 64}
_MAX_STACK_CHARACTERS = 32 << 20

_Frames = TypeVar("_Frames")
_PLAIN = (str, bool, int, float)


class Dictionary:
    """
    Finds what numbers refer to, and caches the latest results.

    For unknown numbers, ``process``, ``device``, ``program_stack`` and ``series`` return None, ``stack``
    an empty tuple, and ``wait`` ``NO_WAIT``. An API unknown to this version has its name in the store.
    """

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        remember = lru_cache(MAX_KNOWN)
        self.process = remember(self._read_process)
        self.device = remember(self._read_device)
        self.stack = remember(self._read_stack)
        self.program_stack = remember(self._read_program_stack)
        self.series = remember(self._read_series)
        self.wait = remember(self._read_wait)
        self.api = remember(self._read_api)
        self._stack_characters = 0
        self._ahead: dict[str, dict[int, Row]] = {}

    resource = staticmethod(read_resource)
    reason = staticmethod(read_reason)

    def _one(self, table: str, number: int | None) -> Row | None:
        if number is None:
            return None
        ahead = self._ahead.setdefault(table, {})
        if number not in ahead:
            ahead.clear()
            last = min(number + _AHEAD.get(table, 1) - 1, MAX_INTEGER)
            (key,) = TABLE_BY_NAME[table].key
            rows = self._pages.where(table, f"{key} BETWEEN ? AND ?", (number, last))
            ahead.update((row[0], row) for row in rows)
        return ahead.pop(number, None)

    def _read_process(self, number: int) -> Program | None:
        row = self._one("processes", number)
        if row is None:
            return None
        _, _, _, pid, program_ktime_ns, comm, start_unix_ns, _, _, service, *_, text = row
        attributes = {**_attributes(text), "service.name": service}
        return Program(
            pid=pid,
            program_ktime_ns=program_ktime_ns,
            comm=comm,
            start_unix_ns=start_unix_ns,
            attributes=attributes,
        )

    def _read_device(self, number: int | None) -> DeviceIdentity | None:
        row = self._one("devices", number)
        return None if row is None else DeviceIdentity(*row[2:])

    def _read_stack(self, number: int | None) -> tuple[str, ...]:
        return self._read_frames(number, _functions) or ()

    def _read_program_stack(self, number: int | None) -> CallStack | None:
        return self._read_frames(number, read_stack)

    def _read_frames(self, number: int | None, read: Callable[[str], _Frames]) -> _Frames | None:
        row = self._one("stacks", number)
        if row is None:
            return None
        document: str = row[-1]
        # Only a forged store has more large stacks, and must not decide how much memory we use.
        self._stack_characters += len(document)
        if self._stack_characters > _MAX_STACK_CHARACTERS:
            self.stack.cache_clear()
            self.program_stack.cache_clear()
            self._stack_characters = len(document)
        try:
            return read(document)
        except ValueError:
            self._pages.reject("stacks")
            return None

    def _read_series(self, number: int) -> Series | None:
        row = self._one("series", number)
        process = None if row is None else self.process(row[2])
        if row is None or process is None:
            return None
        _, _, _, metric, api, status, device, cuda_device, copy_kind, nested = row
        program = (process.program_ktime_ns, process.pid)
        key = SeriesKey(*program, status, device, metric, api, copy_kind, nested)
        named = self.api(api) if metric == wire.METRIC_CALL_DURATION else None
        return Series(
            process=process, key=key, api=named, device=self.device(cuda_device), aggregate=NOTHING
        )

    def _read_wait(self, number: int) -> Wait:
        # A time with an unknown wait still counts.
        row = self._one("waits", number) if number else None
        return NO_WAIT if row is None else read_wait(row[2:])

    def _read_api(self, number: int) -> Api:
        if known := API_BY_NUMBER.get(number):
            return known
        row = self._one("apis", number)
        if row is None:
            return unknown_api(number)
        _, name, layer_name, family = row
        layers = (layer for layer, name in LAYER_NAMES.items() if name == layer_name)
        layer = next(layers, wire.LAYER_DRIVER)
        return Api(number=number, name=name, layer=layer, family=family_number(family))


def _functions(document: str) -> tuple[str, ...]:
    return tuple(map(str, from_json(document, list)))


def _attributes(text: str) -> dict[str, object]:
    # Drops values that cannot be resource attributes.
    try:
        found = from_json(text, dict)
    except ValueError:
        return {}
    attributes: dict[str, object] = {}
    for name, value in found.items():
        if isinstance(value, _PLAIN):
            attributes[name] = value
        elif isinstance(value, list) and all(isinstance(item, _PLAIN) for item in value):
            attributes[name] = tuple(value)
    arguments = attributes.get("process.command_args")
    if not isinstance(arguments, tuple) or not all(isinstance(a, str) for a in arguments):
        attributes.pop("process.command_args", None)
    return attributes

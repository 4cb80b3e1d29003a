"""
Events as lines of text, for people, ``grep`` and tests.

A line is the kind, the ktime, ``pid/tid``, then ``name=value`` pairs in the order of the
event's fields. Enumerators are shown by name. A line is printable ASCII: watched programs
choose names of threads and files, which must not control a terminal.
"""

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast, get_args

from otel_gpu import wire
from otel_gpu.wire import events, readings, symbol_records
from otel_gpu.wire.blocks import Holders, Memory, MemoryMap
from otel_gpu.wire.events import Event
from otel_gpu.wire.probe_table import API_BY_NUMBER

# UserStack is user_stack.
_WORD_START = re.compile(r"(?<=.)(?=[A-Z])")
KIND_NAMES: Mapping[type, str] = {
    kind: _WORD_START.sub("_", kind.__name__).lower() for kind in get_args(Event)
} | {
    symbol_records.ProcessSeen: "process",
    symbol_records.ResourceSeen: "resource",
    symbol_records.CulpritSeen: "culprit",
}
SERIES_KIND = "series"
TIME_KIND = "time"
DEVICE_KIND = "device_memory"
HOLDER_KIND = "holder"

# These are at the start of a line.
_HEAD_FIELDS = frozenset({"end_ktime_ns", "ktime_ns", "pid", "tid"})
_THREAD_METRICS = frozenset({wire.METRIC_OFF_CPU, wire.METRIC_RUN_QUEUE})


def describe(event: Event) -> Iterator[str]:
    """
    Describe one event.

    Yields:
        One line, then a line for each entry of the event. Series list the buckets that are not 0
        as ``number:count``.
    """
    head = _head(KIND_NAMES[type(event)], event)
    if table := _TABLES.get(type(event)):
        name, describe_entry = table
        ktime_ns, entries = cast("tuple[int, tuple[object, ...]]", event)
        yield f"{head} {name}={len(entries)}"
        yield from (describe_entry(ktime_ns, entry) for entry in entries)
        return
    match event:
        case readings.Counters():
            named = (
                f"{name.removeprefix('counter_')}={value}"
                for name, value in event.by_name().items()
            )
            yield " ".join([head, *named])
        case MemoryMap():
            yield f"{head} program_ktime_ns={event.program_ktime_ns} info={_format_json(event.info)}"
        case symbol_records.Stack():
            yield f"{head} kernel_stack={event.kernel_stack} functions={json.dumps(event.functions)}"
        case symbol_records.UserStack():
            yield (
                f"{head} stack={_format_stack_id(event.stack)} "
                f"complete={json.dumps(event.complete)} native={json.dumps(event.native)} "
                f"python={json.dumps(event.python)} frames={json.dumps(event.frames)}"
            )
        case (
            events.Capture()
            | events.Probes()
            | readings.Status()
            | readings.Pressure()
            | readings.Devices()
            | symbol_records.ResourceSeen()
            | symbol_records.CulpritSeen()
        ):
            yield f"{head} info={_format_json(event.info)}"
        case symbol_records.ProcessSeen():
            yield f"{head} program_ktime_ns={event.program_ktime_ns} facts={_format_json(event.facts)}"
        case _:
            yield " ".join([head, *_pairs(event)])


def _head(kind: str, event: Event) -> str:
    # The first field of every event is its ktime.
    return f"{kind} {event[0]} {getattr(event, 'pid', 0)}/{getattr(event, 'tid', 0)}"


def _pairs(event: Any, *names: str) -> Iterator[str]:  # noqa: ANN401 - any NamedTuple
    for name in names or event._fields:
        if name not in _HEAD_FIELDS:
            yield f"{name}={_FORMATS.get(name, _format_any)(getattr(event, name))}"


def _describe_series(ktime_ns: int, entry: tuple[readings.SeriesKey, readings.Aggregate]) -> str:
    key, aggregate = entry
    api_name = "switch_type" if key.metric in _THREAD_METRICS else "api"
    buckets = (f"{number}:{n}" for number, n in enumerate(aggregate.buckets) if n)
    return " ".join(
        [
            f"{SERIES_KIND} {ktime_ns} {key.pid}/0",
            *_pairs(key, "program_ktime_ns", "metric"),
            f"{api_name}={_FORMATS[api_name](key.api)}",
            *_pairs(key, "copy_kind", "status", "device", "nested"),
            f"count={aggregate.counted}",
            *_pairs(aggregate, "sum", "min", "max", "size_bytes"),
            "buckets=" + ",".join(buckets),
        ]
    )


def _describe_entry(kind: str, ktime_ns: int, entry: tuple[Any, object]) -> str:
    key, value = entry
    return " ".join([f"{kind} {ktime_ns} {key.pid}/0", *_pairs(key), *_pairs(value)])


def _describe_time(ktime_ns: int, entry: readings.TimesEntry) -> str:
    key = entry.key
    names = ("program_ktime_ns", "state", "context", "api", "kernel_stack", "system_call", "flags")
    who = ("who_pid", "who_tid", "end_state", "end_pid", "end_tid", "end_kernel_stack")
    others = ("end_system_call", "end_flags", "resource", "is_folded")
    head = f"{TIME_KIND} {ktime_ns} {key.pid}/0"
    return " ".join([head, *_pairs(key, *names, *who, *others), *_pairs(entry, *entry._fields[1:])])


def _shorten(names: Mapping[int, str], number: int) -> str:
    # ``metric_off_cpu`` is ``off_cpu`` next to ``metric=``.
    name = names.get(number)
    return name.partition("_")[2] if name else str(number)


def _format_api(number: int) -> str:
    api = API_BY_NUMBER.get(number)
    return api.name if api else str(number)


def _format_choices(choices: int) -> str:
    names = [_shorten(wire.CHOICE_NAMES, 1 << bit) for bit in range(8) if choices & 1 << bit]
    return "|".join(names) or "0"


def _format_stack_id(number: int) -> str:
    # As on spans.
    return f"{number:016x}" if number else "0"


def _format_any(value: object) -> str:
    return json.dumps(value) if isinstance(value, str) else str(value)


def _format_json(body: Mapping[str, object]) -> str:
    return json.dumps(body, separators=(",", ":"), sort_keys=True)


def _format_dimensions(dimensions: tuple[int, int, int]) -> str:
    return "x".join(map(str, dimensions))


_FORMATS: Mapping[str, Callable[[Any], str]] = {
    "address": hex,
    "api": _format_api,
    "argument": hex,
    "next_api": _format_api,
    "previous_api": _format_api,
    "block": _format_dimensions,
    "call_api": _format_api,
    "choices": _format_choices,
    "context": functools.partial(_shorten, wire.CALL_CONTEXT_NAMES),
    "copy_kind": functools.partial(_shorten, wire.COPY_KIND_NAMES),
    "end_state": functools.partial(_shorten, wire.THREAD_STATE_NAMES),
    "exit_code": lambda code: "unknown" if code is None else str(code),
    "function": hex,
    "grid": _format_dimensions,
    "stream": hex,
    "metric": functools.partial(_shorten, wire.METRIC_NAMES),
    "state": functools.partial(_shorten, wire.THREAD_STATE_NAMES),
    "switch_type": functools.partial(_shorten, wire.SWITCH_TYPE_NAMES),
    "stack": hex,
    "user_stack": _format_stack_id,
    "uuid": bytes.hex,
}
# Events with entries: the name of the count, and what describes one entry.
_TABLES: Mapping[type, tuple[str, Callable[[int, Any], str]]] = {
    readings.Aggregates: ("series", _describe_series),
    readings.Times: ("entries", _describe_time),
    Memory: ("devices", functools.partial(_describe_entry, DEVICE_KIND)),
    Holders: ("holders", functools.partial(_describe_entry, HOLDER_KIND)),
}

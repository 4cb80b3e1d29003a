"""Formats of durations, sizes, times and names, for all renderers."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache

from otel_gpu.enrich import stack_text
from otel_gpu.enrich.identity.identities import Program, Resource, Who
from otel_gpu.enrich.stack_text import cut_frames, frame_type, stack_id_text
from otel_gpu.explain.chains import Culprit, DeviceTrouble, Effect, Where
from otel_gpu.explain.devices.xids import meaning_of
from otel_gpu.explain.kinds import EffectKind
from otel_gpu.formatting.printable import printable
from otel_gpu.formatting.units import count_of, format_duration, format_share, format_size
from otel_gpu.report.devices.types import DeviceReport
from otel_gpu.report.document import OTHER_PROCESSES_PID
from otel_gpu.wire.frames import Frame, FrameType

__all__ = [
    "count_of",
    "cut_frames",
    "describe_excess",
    "describe_fault",
    "describe_kind",
    "describe_place",
    "describe_resource",
    "describe_thread",
    "describe_trouble",
    "describe_where",
    "describe_who",
    "format_duration",
    "format_offset",
    "format_share",
    "format_size",
    "format_time",
    "frame_line",
    "frame_type",
    "named",
    "printable",
    "process_name",
    "service_of",
    "short_function",
    "short_process",
    "shorten",
    "stack_id_text",
    "thread_name",
    "thread_number",
    "whole_line",
]

_EFFECTS: Mapping[str, str] = {
    EffectKind.SLOW_CALL: "slow",
    EffectKind.SLOW_GAP: "slow gap before",
    EffectKind.HUNG_CALL: "hung in",
    EffectKind.FAILED_CALL: "failed",
    EffectKind.KILLED_CALL: "died in",
    EffectKind.OUT_OF_MEMORY: "failed request for memory",
    EffectKind.DEVICE_FAULT: "error of its GPU",
    EffectKind.NETWORK_EVENT: "network adapter event",
    EffectKind.HUNG_COLLECTIVE: "hung in",
    EffectKind.USUAL_CALL: "example:",
    EffectKind.USUAL_GAP: "example: gap before",
}
_SHORT = 32
_CONTAINER_ID = 12
_NS_PER_S = 1_000_000_000
_LAST_UNIX_NS = 253_402_300_799_999_999_999  # the last year that dates are written in

_LONGEST_FUNCTION = 80
_BRACKETS = {"<": ">", "(": ")", "[": "]", "{": "}"}
# The characters of an operator's name are not brackets.
_OPERATOR = re.compile(r"(\boperator\s*(?:\(\)|\[\]|<=>|<<=?|>>=?|->\*?|[<>]=?))")
_CALLED = "operator()"


def format_time(unix_ns: int) -> str:
    """Return a time in UTC, to the microsecond."""
    # A time from a damaged clock is clamped.
    seconds, rest_ns = divmod(min(max(unix_ns, 0), _LAST_UNIX_NS), _NS_PER_S)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{rest_ns // 1_000:06}"


def format_offset(unix_ns: int, origin_unix_ns: int) -> str:
    """Return the time since an origin, in seconds."""
    return f"{(unix_ns - origin_unix_ns) / _NS_PER_S:+.3f} s"


def service_of(process: Program) -> str:
    """Return the service's name as given, else the process's."""
    return str(process.attributes.get("service.name") or process.comm)


def process_name(process: Program) -> str:
    """Return the service's name and the pid; merged processes have no pid."""
    return f"{printable(named(process))}{_numbered(process)}"


def shorten(name: str) -> str:
    """Return a name without control characters, shortened."""
    text = printable(name)
    return text if len(text) <= _SHORT else text[: _SHORT - 1] + "…"


def short_process(process: Program) -> str:
    """Return the service's name, shortened, and the pid, as ``process_name`` does."""
    return f"{shorten(named(process))}{_numbered(process)}"


def named(process: Program) -> str:
    """Return the service's name; for a process without a pid, its own name."""
    # An import can lack the pids and describe its processes instead.
    return process.comm if process.pid < 0 else service_of(process)


def _numbered(process: Program) -> str:
    return "" if process.pid <= OTHER_PROCESSES_PID else f" ({process.pid})"


def describe_excess(effect: Effect) -> str:
    """
    Return how much longer than usual an effect took; examples of usual effects took no longer.
    """
    if effect.kind in (EffectKind.USUAL_CALL, EffectKind.USUAL_GAP):
        return "no longer than is usual here"
    return f"{format_duration(max(0, effect.excess_ns))} more than usual"


def describe_fault(effect: Effect) -> str:
    """Return the kind of effect, without its call."""
    if effect.began_before_capture:
        return "hung since before the capture in"
    return _EFFECTS.get(effect.kind, printable(effect.kind))


def describe_kind(effect: Effect) -> str:
    """Return the kind of effect, with its call."""
    return f"{describe_fault(effect)} {printable(effect.api)}".rstrip()


def thread_number(thread: Culprit) -> str:
    """Return pid and tid of a thread; the tid only if it differs."""
    return f"{thread.pid}" if thread.tid in (0, thread.pid) else f"{thread.pid}/{thread.tid}"


def thread_name(thread: Culprit) -> str:
    """Return a thread's name and tid, where its process is named already."""
    return f"{printable(thread.comm) or '?'} ({thread.tid})"


def describe_thread(thread: Culprit) -> str:
    """Return a thread's name, pid and tid."""
    if thread.pid < 0:
        return printable(thread.comm)
    return f"{printable(thread.comm) or '?'} ({thread_number(thread)})"


def describe_who(who: Who) -> str:
    """Return a thread's name and number, its function, and its unit, pod or container."""
    belongs = who.unit or (f"pod {who.pod}" if who.pod else "")
    if not belongs and who.container:
        belongs = f"container {who.container[:_CONTAINER_ID]}"
    parts = [
        describe_thread(Culprit(*who[:3])),
        f"in {who.function}" if who.function else "",
        belongs,
    ]
    return ", ".join(printable(part) for part in parts if part)


def describe_resource(resource: Resource) -> str:
    """Return the file, socket or the like of a wait; empty if only its type is known."""
    if not resource.name and not resource.mount:
        return ""
    name = printable(resource.name or resource.mount)
    mount = f" ({printable(resource.file_system)}" if resource.file_system else ""
    if mount and resource.is_remote:
        mount += f" of {printable(resource.source or resource.mount)}"
    return f"{name}{mount})" if mount else name


def describe_trouble(trouble: DeviceTrouble) -> str:
    """Return a device's problem, and its name."""
    if trouble.xid:
        parts = f"XID {trouble.xid}, {meaning_of(trouble.xid).meaning}"
    elif trouble.uncorrected:
        parts = f"{count_of(trouble.uncorrected, 'uncorrected error')} of its memory"
    else:
        known = trouble.clock_mhz and trouble.clock_limit_mhz
        at = f" at {trouble.clock_mhz:,} of {trouble.clock_limit_mhz:,} MHz" if known else ""
        parts = f"{printable(trouble.reason)}{at}"
    return f"{parts} ({printable(trouble.device)})" if trouble.device else parts


def describe_where(where: Where) -> str:
    """Return a code location as ``train.py:74 step``, for the middle of a sentence."""
    return describe_place(
        Frame(kind=FrameType.PYTHON, function=where.function, file=where.file, line=where.line)
    )


# A report repeats the same names, and mangled ones can be of any length.
@lru_cache(maxsize=256)
def short_function(name: str) -> str:
    """
    Return only the name of a function, if its full name is too long to read.

    For ``void at::native::(anonymous namespace)::masked_fill_kernel<…>(…)`` that is
    ``masked_fill_kernel``; a name of up to 80 characters is unchanged.
    """
    if len(name) <= _LONGEST_FUNCTION:
        return name
    segments = "".join(_outside_brackets(name)).split("::")
    words = [segment.removesuffix(" const").split() for segment in segments]
    names = [found[-1] for found in words if found]
    # A lambda gets the name of its enclosing function.
    named = [found for found in names if found != _CALLED] or names or [name]
    found = named[-1]
    return found if len(found) <= _LONGEST_FUNCTION else f"{found[: _LONGEST_FUNCTION - 1]}…"


def frame_line(frame: Frame) -> str:
    """Return the line of one frame, with the short name of its function."""
    return stack_text.frame_line(_short(frame))


def whole_line(frame: Frame) -> str:
    """Return the line of one frame, with the full name of its function."""
    return stack_text.frame_line(frame)


def describe_place(frame: Frame) -> str:
    """Return a frame as ``train.py:74 fragmentation_pattern``, for the middle of a sentence."""
    return stack_text.describe_place(_short(frame))


def _short(frame: Frame) -> Frame:
    if len(frame.function) <= _LONGEST_FUNCTION:
        return frame
    return frame._replace(function=short_function(frame.function))


def _outside_brackets(name: str) -> Iterator[str]:
    closing: list[str] = []
    for number, part in enumerate(_OPERATOR.split(name)):
        # Every other part is an operator, and counts as one character.
        for sign in (part,) if number % 2 else part:
            if closing and sign == closing[-1]:
                closing.pop()
            elif sign in _BRACKETS:
                closing.append(_BRACKETS[sign])
            elif not closing:
                yield sign


def name_of_device(row: DeviceReport) -> str:
    """Return a device's name for a sentence."""
    rank = f"rank {row.rank}, " if row.rank is not None else ""
    model = f" ({printable(row.model)})" if row.model else ""
    return f"{rank}device {row.device}{model}"

"""How reports write durations, sizes, times and names."""

import math
from datetime import UTC, datetime

from otel_gpu.enrich.activities import ProcessImage
from otel_gpu.enrich.stack_text import printable
from otel_gpu.explain.chains import Culprit, Effect

__all__ = [
    "count_of",
    "describe_fault",
    "describe_kind",
    "describe_thread",
    "format_duration",
    "format_share",
    "format_size",
    "format_time",
    "printable",
    "process_name",
    "service_of",
    "short_process",
    "shorten",
    "thread_number",
]

_DURATIONS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_THREE_DIGITS = 100
_ROUNDED_TO_NOTHING = 0.005
_EFFECTS = {
    "slow_call": "slow",
    "slow_gap": "slow gap before",
    "hung_call": "hung in",
    "failed_call": "failed",
}
_SHORT = 32
_NS_PER_S = 1_000_000_000
_LAST_UNIX_NS = 253_402_300_799_999_999_999  # the last year that dates are written in


def format_duration(duration_ns: float) -> str:
    """Three digits and a unit; nothing for a duration that is not known."""
    return "" if math.isnan(duration_ns) else _with_unit(duration_ns, _DURATIONS)


def format_size(size_bytes: float) -> str:
    """Three digits and a decimal unit, as in 1.5 GB."""
    return _with_unit(size_bytes, _SIZES)


def format_share(share: float) -> str:
    """A share of 1 in percent; what is there is never said to be nothing."""
    if 0 < share < _ROUNDED_TO_NOTHING:
        return "<1 %"
    return f"{share * 100:.0f} %"


def count_of(count: int, noun: str) -> str:
    """A count and what of: 1 call, 1,000 calls."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_time(unix_ns: int) -> str:
    """A moment in UTC, to the microsecond."""
    # A damaged clock is no reason to say nothing.
    seconds, rest_ns = divmod(min(max(unix_ns, 0), _LAST_UNIX_NS), _NS_PER_S)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{rest_ns // 1_000:06}"


def service_of(process: ProcessImage) -> str:
    """The service's name, as it was given."""
    return str(process.attributes.get("service.name") or process.comm)


def process_name(process: ProcessImage) -> str:
    """The service's name and the pid."""
    return f"{printable(service_of(process))} ({process.pid})"


def shorten(name: str) -> str:
    """Return a name as text that nothing obeys, and that leaves room for others."""
    text = printable(name)
    return text if len(text) <= _SHORT else text[: _SHORT - 1] + "…"


def short_process(process: ProcessImage) -> str:
    """Return the service's name, shortened, and the pid."""
    return f"{shorten(service_of(process))} ({process.pid})"


def describe_fault(effect: Effect) -> str:
    """What went wrong, without the call or gap that it went wrong with."""
    return _EFFECTS.get(effect.kind, printable(effect.kind))


def describe_kind(effect: Effect) -> str:
    """What went wrong with which call or gap."""
    return f"{describe_fault(effect)} {printable(effect.api)}"


def thread_number(thread: Culprit) -> str:
    """A thread by process and number, which is left out where it says nothing."""
    return f"{thread.pid}" if thread.tid in (0, thread.pid) else f"{thread.pid}/{thread.tid}"


def describe_thread(thread: Culprit) -> str:
    """A thread by name, process and number."""
    return f"{printable(thread.comm) or '?'} ({thread_number(thread)})"


def _with_unit(amount: float, units: tuple[tuple[float, str], ...]) -> str:
    size, unit = next((pair for pair in units if abs(amount) >= pair[0]), units[-1])
    value = amount / size
    if abs(value) >= _THREE_DIGITS or size == 1:
        return f"{value:.0f} {unit}"
    return f"{value:.3g} {unit}"

"""Moments as people name them on the command line."""

import re
from datetime import UTC, datetime
from typing import NamedTuple

from otel_gpu.commands import UsageError

HELP = (
    "Unix seconds, ISO 8601 (UTC unless it says otherwise), 30s or -30s before the end, or +30s "
    "after the beginning"
)

_RELATIVE = re.compile(r"([+-]?)(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_NUMBER = re.compile(r"\d+(\.\d+)?", re.ASCII)
_UNITS_NS = {
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3_600 * 10**9,
    "d": 86_400 * 10**9,
}
_NS_PER_S = 10**9
# 1973 in seconds: a smaller number is a duration that lacks its unit.
_FIRST_UNIX_S = 10**8


class Moment(NamedTuple):
    """A point in time; ``origin`` is ``unix``, ``begin`` or ``end`` of a capture."""

    origin: str
    offset_ns: int

    def resolve(self, begin_unix_ns: int, end_unix_ns: int) -> int:
        """Return the moment in a capture that has this extent."""
        origins = {"unix": 0, "begin": begin_unix_ns, "end": end_unix_ns}
        return max(0, origins[self.origin] + self.offset_ns)


def parse_moment(text: str) -> Moment:
    """Read a moment; ``UsageError`` where the text is not one."""
    if found := _RELATIVE.fullmatch(text):
        sign, amount, unit = found.groups()
        offset_ns = round(float(amount) * _UNITS_NS[unit])
        return Moment("begin", offset_ns) if sign == "+" else Moment("end", -offset_ns)
    if _NUMBER.fullmatch(text):
        whole, _, part = text.partition(".")
        if int(whole) < _FIRST_UNIX_S:
            raise UsageError(f"{text} lacks a unit", hint=f"write {text}s for seconds")
        return Moment("unix", int(whole) * _NS_PER_S + int(f"{part:0<9.9}"))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is not a point in time", hint=HELP) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    seconds = since.days * 86_400 + since.seconds
    return Moment("unix", seconds * _NS_PER_S + since.microseconds * 1_000)

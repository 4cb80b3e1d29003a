"""The time account in a window: how long threads did not run, and why."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.activities import ProcessImage, ThreadTime, TimesActivity
from otel_gpu.findings.document import (
    Context,
    ImageKey,
    OffCpu,
    Window,
    context_named,
    state_named,
)

MAX_ENTRIES = 65_536


class _Key(NamedTuple):
    pid: int
    image_ktime_ns: int
    state: int
    context: int
    reason: str


class Times:
    """
    Takes the time account whenever it is read, and tells what was added in a window.

    As with counts, a window begins at the last reading before it and ends with the
    first one at or after its end.
    """

    def __init__(self, window: Window) -> None:
        self._window = window
        self._times: dict[_Key, ThreadTime] = {}
        self._base: dict[_Key, ThreadTime] = {}
        self._has_begun = window.start_unix_ns is None
        self._has_ended = False
        self.left_out = 0

    @property
    def is_empty(self) -> bool:
        """Whether no account was ever read."""
        return not self._times

    def observe(self, activity: TimesActivity) -> None:
        """Take one reading."""
        if self._has_ended:
            return
        if not self._has_begun and activity.unix_ns > (self._window.start_unix_ns or 0):
            self._has_begun = True
            self._base = dict(self._times)
        # One reason can have many stacks, so that it comes in several entries.
        for key, entry in _merge(activity).items():
            if key in self._times or len(self._times) < MAX_ENTRIES:
                self._times[key] = entry
            else:
                self.left_out += 1
        end_unix_ns = self._window.end_unix_ns
        self._has_ended = end_unix_ns is not None and activity.unix_ns >= end_unix_ns

    def sum_up(self, into: Mapping[ImageKey, ProcessImage | None]) -> set[ImageKey]:
        """
        Add the times of images that ended to those of others; None: they are let go.

        Returns:
            The images that have any time in the window.
        """
        seen: set[ImageKey] = set()
        for key in [key for key in self._times if (key.pid, key.image_ktime_ns) in into]:
            entry = _subtract(self._times.pop(key), self._base.pop(key, None))
            whole = into[key.pid, key.image_ktime_ns]
            if not self._has_begun or whole is None or not entry.time_ns:
                continue
            seen.add((key.pid, key.image_ktime_ns))
            name = key._replace(pid=whole.pid, image_ktime_ns=whole.image_ktime_ns)
            known = self._times.get(name)
            entry = entry._replace(process=whole)
            self._times[name] = entry if known is None else _plus(entry, known)
        return seen

    def in_window(self, unix_ns: int) -> TimesActivity:
        """The account of the window, as if it had been read at a moment and begun with it."""
        return TimesActivity(unix_ns, tuple(self._since_begin()))

    def processes(self) -> list[ProcessImage]:
        """The images that have any time in the window."""
        return [entry.process for entry in self._since_begin() if entry.time_ns]

    def off_cpu(self, choose: Callable[[ProcessImage], bool]) -> list[OffCpu]:
        """Rows of the chosen processes: of threads that feed a GPU first, then by time."""
        rows = [
            OffCpu(
                entry.process,
                context_named(entry.context),
                state_named(entry.state),
                entry.reason,
                entry.time_ns,
                entry.count,
            )
            for entry in self._since_begin()
            if entry.state != wire.STATE_ON_CPU and entry.time_ns > 0 and choose(entry.process)
        ]
        return sorted(
            rows,
            key=lambda row: (
                row.context == Context.OTHER,
                -row.time_ns,
                row.process.pid,
                row.reason,
            ),
        )

    def _since_begin(self) -> list[ThreadTime]:
        if not self._has_begun:
            return []
        return [_subtract(entry, self._base.get(key)) for key, entry in self._times.items()]


def _plus(one: ThreadTime, other: ThreadTime) -> ThreadTime:
    return one._replace(time_ns=one.time_ns + other.time_ns, count=one.count + other.count)


def _subtract(now: ThreadTime, base: ThreadTime | None) -> ThreadTime:
    if base is None:
        return now
    time_ns, count = now.time_ns - base.time_ns, now.count - base.count
    return now._replace(time_ns=max(0, time_ns), count=max(0, count))


def _merge(activity: TimesActivity) -> dict[_Key, ThreadTime]:
    merged: dict[_Key, ThreadTime] = {}
    for entry in activity.times:
        process = entry.process
        key = _Key(process.pid, process.image_ktime_ns, entry.state, entry.context, entry.reason)
        known = merged.get(key)
        merged[key] = entry if known is None else _plus(entry, known)
    return merged

"""
A timeline as Chrome trace events, for the Perfetto UI (https://ui.perfetto.dev).

The format: an event is an object with a phase ``ph``. ``X`` is a slice with a start and a duration,
``i`` an instant with a scope, ``C`` a counter, ``s`` and ``f`` the two ends of an arrow with one
id, and ``M`` names a process or a thread. Times are microseconds with three decimals. They count
from ``otherData.origin_unix_ns``, since most readers cannot hold Unix time in nanoseconds in a
number of JSON. Slices of one thread have to be nested or disjoint: others are drawn in another lane
beside it.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TextIO

from otel_gpu import __version__
from otel_gpu.report.timeline.tracks import Arrow, ArrowEnd, Details, Instant, Level, Slice, Track
from otel_gpu.report.wording.formats import printable

MAX_LANES = 64
"""Of one track, for slices that are neither nested nor disjoint."""
MAX_TRACKS = 100_000

_ARROWS = "arrows"
_BEFORE_NS = 86_400 * 1_000_000_000
# Thread numbers from here on are lanes: the kernel's thread ids have 22 bits.
_FIRST_LANE = 1 << 23
_KEPT_SPANS = 4_096


class PerfettoFile:
    """
    Writes a timeline to a stream as it comes.

    Args:
        stream: The target.
        about_unix_ns: The approximate start. No time can be more than a day before it.
    """

    def __init__(self, stream: TextIO, about_unix_ns: int) -> None:
        self._stream = stream
        self._origin_unix_ns = max(0, about_unix_ns - _BEFORE_NS)
        self._is_first = True
        self._processes: set[int] = set()
        self._lanes: dict[tuple[int, int, str], list[_Lane]] = {}
        self._next_lane = _FIRST_LANE
        self._arrows = 0
        self.written: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        stream.write('{"displayTimeUnit":"ns","traceEvents":[')

    def ended(self, drawn: Slice) -> ArrowEnd | None:
        """Draw a slice, after those of its track that ended before; None: it does not fit."""
        return self._slice(drawn, began=False)

    def began(self, drawn: Slice) -> ArrowEnd | None:
        """Draw a slice, after those of its track that began before; None: it does not fit."""
        return self._slice(drawn, began=True)

    def instant(self, drawn: Instant) -> None:
        """Draw an instant."""
        self._name_process(drawn.track.process, drawn.track.process_name)
        place = {"pid": drawn.track.process, "tid": drawn.track.thread}
        self._event(
            phase="i",
            unix_ns=drawn.unix_ns,
            at=place,
            drawn=drawn,
            s="p",
            args=_sanitize(drawn.details),
        )
        self.written["instants"] += 1

    def level(self, drawn: Level) -> None:
        """Draw counters."""
        self._name_process(drawn.process, drawn.process_name)
        place = {"pid": drawn.process}
        self._event(
            phase="C", unix_ns=drawn.unix_ns, at=place, drawn=drawn, args=dict(drawn.values)
        )
        self.written["counter values"] += 1

    def arrow(self, drawn: Arrow) -> None:
        """Draw an arrow."""
        self._arrows += 1
        for phase, place, unix_ns in (
            ("s", drawn.source, drawn.source_unix_ns),
            ("f", drawn.target, drawn.target_unix_ns),
        ):
            at = {"pid": place.process, "tid": place.lane}
            # Without it an arrow ends at the next slice, not at the one that contains its end.
            more = {"bp": "e"} if phase == "f" else {}
            self._event(phase=phase, unix_ns=unix_ns, at=at, drawn=drawn, id=self._arrows, **more)
        self.written[_ARROWS] += 1

    def close(self, source: str, notes: Sequence[str], losses: Mapping[str, int]) -> None:
        """Write the end of the JSON document; the stream stays open."""
        left_out = [f"{count:,} {what} left out" for what, count in self.left_out.items()]
        about = {
            "source": printable(source),
            "written_by": f"otel-gpu {__version__}",
            "origin_unix_ns": str(self._origin_unix_ns),
            "notes": [printable(note) for note in (*notes, *left_out)],
            "losses": dict(losses),
        }
        self._stream.write(f'\n],"otherData":{json.dumps(about)}}}\n')

    def _slice(self, drawn: Slice, *, began: bool) -> ArrowEnd | None:
        track = drawn.track
        start_ns = max(drawn.start_unix_ns, self._origin_unix_ns)
        end_ns = max(drawn.end_unix_ns, start_ns)
        lane = self._lane(track, start_ns, end_ns, began=began)
        if lane is None:
            self.left_out["slices that lie across too many others"] += 1
            return None
        place = {"pid": track.process, "tid": lane}
        duration = _microseconds(end_ns - start_ns)
        self._event(
            phase="X",
            unix_ns=start_ns,
            at=place,
            drawn=drawn,
            dur=duration,
            args=_sanitize(drawn.details),
        )
        self.written["slices"] += 1
        return ArrowEnd(track.process, lane)

    def _lane(self, track: Track, start_ns: int, end_ns: int, *, began: bool) -> int | None:
        key = (track.process, track.thread, track.role)
        lanes = self._lanes.get(key)
        if lanes is None:
            if len(self._lanes) >= MAX_TRACKS:
                return None
            self._name_process(track.process, track.process_name)
            lanes = self._lanes[key] = []
        for lane in lanes:
            if lane.takes(start_ns, end_ns, began=began):
                return lane.number
        if len(lanes) >= MAX_LANES:
            return None
        is_own = not lanes and not track.role and 0 < track.thread < _FIRST_LANE
        number = track.thread if is_own else self._next_lane
        self._next_lane += not is_own
        lanes.append(_Lane(number))
        lanes[-1].takes(start_ns, end_ns, began=began)
        self._name_thread(track, number, len(lanes))
        return number

    def _name_process(self, process: int, name: str) -> None:
        if process not in self._processes:
            self._processes.add(process)
            self._metadata("process_name", {"pid": process}, name=printable(name))

    def _name_thread(self, track: Track, number: int, lane: int) -> None:
        name = f"{printable(track.thread_name)} ({track.thread})"
        name += f": {track.role}" if track.role else ""
        name += f" [{lane}]" if lane > 1 else ""
        at = {"pid": track.process, "tid": number}
        self._metadata("thread_name", at, name=name)
        # Lanes of one thread are next to each other.
        self._metadata("thread_sort_index", at, sort_index=track.thread % _FIRST_LANE)

    def _metadata(self, kind: str, at: Mapping[str, int], **arguments: object) -> None:
        self._write({"ph": "M", "name": kind, **at, "args": arguments})

    def _event(
        self,
        phase: str,
        unix_ns: int,
        at: Mapping[str, int],
        drawn: Slice | Instant | Level | Arrow,
        **more: object,
    ) -> None:
        category = {} if isinstance(drawn, Level) else {"cat": drawn.category}
        ts = _microseconds(max(0, unix_ns - self._origin_unix_ns))
        self._write(
            {"ph": phase, "name": printable(drawn.name), **category, **at, "ts": ts, **more}
        )

    def _write(self, event: Mapping[str, object]) -> None:
        text = json.dumps(event, separators=(",", ":"), allow_nan=False)
        self._stream.write("\n" if self._is_first else ",\n")
        self._stream.write(text)
        self._is_first = False


class _Lane:
    # A lane of slices that are nested or disjoint.
    # In order of ends it keeps those that no other one contains. In order of starts it keeps those
    # that contain the last one, outermost first.

    __slots__ = ("_before_ns", "_spans", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self._spans: list[tuple[int, int]] = []
        # Slices before this are forgotten.
        self._before_ns = 0

    def takes(self, start_ns: int, end_ns: int, *, began: bool) -> bool:
        spans = self._spans
        if start_ns < self._before_ns:
            return False
        if began:
            while spans and spans[-1][1] <= start_ns:
                self._before_ns = max(self._before_ns, spans.pop()[1])
            if spans and (spans[-1][1] < end_ns or spans[-1][0] > start_ns):
                return False
        else:
            at = len(spans)
            while at and spans[at - 1][0] >= start_ns and spans[at - 1][1] <= end_ns:
                at -= 1
            if at and spans[at - 1][1] > start_ns:
                return False
            del spans[at:]
        spans.append((start_ns, end_ns))
        if len(spans) > _KEPT_SPANS:
            self._before_ns = max(self._before_ns, spans.pop(0)[1])
        return True


def _microseconds(time_ns: int) -> float:
    # A day has fewer nanoseconds than a double has integers: three digits are exact.
    return time_ns / 1_000


def _sanitize(details: Details) -> dict[str, object]:
    return {name: _sanitize_value(value) for name, value in (details or {}).items()}


def _sanitize_value(value: object) -> object:
    match value:
        case str():
            return printable(value)
        case list() | tuple():
            return [_sanitize_value(one) for one in value]
        case _:
            return value

"""The timeline of a page: all of it as JSON, which the page's own script draws."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from otel_gpu.report.devices.types import IdleCause
from otel_gpu.report.document import CauseKind, Document, WaitReason
from otel_gpu.report.render.html.markup import clip, source
from otel_gpu.report.timeline.devices import IDLE
from otel_gpu.report.timeline.timeline import Item, Timeline, TimelineRow
from otel_gpu.report.timeline.tracks import SliceCategory
from otel_gpu.report.wording.formats import count_of, format_duration, short_function
from otel_gpu.report.wording.phrases import API, CPU, DATA, GPU, LOCK, MEMORY, OTHER, PHRASES, WORK

TIMELINE_SCRIPT = source("timeline.js")
"""For pages with a timeline."""

_NAME_CHARACTERS = 120
_NAMES_CHARACTERS = 1 << 20
# The tone of idle time is that of its cause.
IDLE_COLOURS: Mapping[str, str] = {
    IdleCause.DATA_LOADER: DATA,
    IdleCause.SYNC: API,
    IdleCause.ALLOCATOR: MEMORY,
    IdleCause.HOST_OP: WORK,
    IdleCause.PYTHON: WORK,
    IdleCause.HOST_OTHER: OTHER,
    IdleCause.LAUNCH_LATENCY: CPU,
    IdleCause.MODULE_LOADING: CPU,
    IdleCause.DEPENDENCY: LOCK,
    IdleCause.NOT_RECORDED: OTHER,
    IdleCause.NO_LAUNCH: OTHER,
    IdleCause.NOISE: OTHER,
}
# Tone and name, by category.
_KINDS: Mapping[str, tuple[str, str]] = {
    SliceCategory.KERNEL: (GPU, "kernel"),
    SliceCategory.GRAPH: (GPU, "graph"),
    SliceCategory.COMMUNICATION: (LOCK, "communication"),
    SliceCategory.COPY: (MEMORY, "copy"),
    SliceCategory.FILL: (MEMORY, "fill"),
    SliceCategory.STEP: ("steady", "step"),
    SliceCategory.OPERATION: (WORK, "operator"),
    SliceCategory.PYTHON: (WORK, "Python"),
    SliceCategory.CALL: (API, "CUDA call"),
    SliceCategory.ANNOTATION: ("steady", "stretch named by the program"),
    SliceCategory.GAP: (WORK, "between calls"),
    SliceCategory.PROCESS: (MEMORY, "process"),
    SliceCategory.WAIT: (OTHER, "wait"),
    **{phrase.name: (phrase.tone, phrase.name) for phrase in PHRASES.values()},
    SliceCategory.EFFECT: ("lost", "slow call or gap"),
    SliceCategory.CULPRIT: (CPU, "kept others waiting"),
}
# Names of waits, by reason.
_WAITS: Mapping[str, str] = {
    **{phrase.name: phrase.name for phrase in PHRASES.values()},
    **{kind: phrase.name for kind, phrase in PHRASES.items()},
    "run queue": PHRASES[CauseKind.RUN_QUEUE].name,
    WaitReason.QUEUE: PHRASES[CauseKind.IPC].name,
    WaitReason.CHILD_WAIT: PHRASES[CauseKind.IPC].name,
    WaitReason.DRIVER: PHRASES[CauseKind.GPU_WAIT].name,
}
_SIGNS = str.maketrans({sign: f"\\u{ord(sign):04x}" for sign in "<>&'\u2028\u2029"})


def is_drawable(timeline: Timeline | None) -> bool:
    """Return whether there is anything to draw."""
    return timeline is not None and any(True for _ in timeline.items())


def origin_of(timeline: Timeline | None) -> int:
    """Return the start of a timeline, the origin of its times; 0 without one."""
    return min((item.start_unix_ns for item in timeline.items()), default=0) if timeline else 0


def timeline_json(timeline: Timeline, document: Document) -> Markup:
    """
    Return the timeline for a ``script`` element that is not run.

    Times are nanoseconds from ``origin_of``. An item is four numbers: time since the start of the
    previous one, length, name and kind. For merged items the kind is bitwise inverted, and their
    count and total length follow.
    """
    origin_ns = origin_of(timeline)
    length_ns = max(item.end_unix_ns for item in timeline.items()) - origin_ns
    texts = _Texts()
    kinds: dict[str, int] = {}
    groups = [
        {
            "name": clip(group.name, _NAME_CHARACTERS),
            "rows": [
                {
                    "name": _name_of(row, is_device=group.is_device),
                    "lanes": [
                        list(_numbers(lane=lane, origin_ns=origin_ns, texts=texts, kinds=kinds))
                        for lane in row.lanes
                    ],
                }
                for row in group.rows
            ],
        }
        for group in timeline.groups
    ]
    written = {
        "length": length_ns,
        "view": _view(document, origin_ns, length_ns),
        "names": texts.all,
        "kinds": [_style_of(kind) for kind in kinds],
        "groups": groups,
        "marks": [
            [mark.unix_ns - origin_ns, clip(mark.name, _NAME_CHARACTERS)] for mark in timeline.marks
        ],
    }
    text = json.dumps(written, separators=(",", ":")).translate(_SIGNS)
    return Markup(text)  # noqa: S704 -- no sign in it ends an element


def timeline_legend(timeline: Timeline) -> list[tuple[str, str]]:
    """Return the tones and words on it, in a fixed order."""
    seen = {_kind_of(item) for item in timeline.items()}
    known = [kind for kind in _KINDS if kind in seen]
    others = sorted(seen.difference(known))
    return [_style_of(kind) for kind in (*known, *others)]


def timeline_notes(timeline: Timeline) -> Iterator[str]:
    """Yield what it shows inexactly."""
    quanta = {"devices": timeline.device_quantum_ns, "threads": timeline.thread_quantum_ns}
    text = [f"{format_duration(one)} of {what}" for what, one in quanta.items() if one]
    if text:
        yield (
            f"What took less than {' or '.join(text)} may be drawn together with what was beside it, "
            "the stronger the more of the time it filled."
        )
    if timeline.left_out:
        yield f"Not drawn, in rows with less to see or below others: {count_of(timeline.left_out, 'thing')}."


class _Texts:
    # Texts by number; 0 is the empty one, also beyond the limit.

    def __init__(self) -> None:
        self.all = [""]
        self._numbers: dict[str, int] = {}
        self._space = _NAMES_CHARACTERS

    def number(self, name: str) -> int:
        found = self._numbers.get(name)
        if found is None:
            text = clip(short_function(name), _NAME_CHARACTERS)
            self._space -= len(text)
            found = self._numbers[name] = len(self.all) if self._space >= 0 else 0
            if found:
                self.all.append(text)
        return found


def _numbers(
    lane: Sequence[Item], origin_ns: int, texts: _Texts, kinds: dict[str, int]
) -> Iterator[int]:
    last_ns = origin_ns
    for item in lane:
        kind = kinds.setdefault(_kind_of(item), len(kinds))
        yield item.start_unix_ns - last_ns
        yield item.end_unix_ns - item.start_unix_ns
        yield texts.number(item.name)
        if item.times > 1:
            yield from (~kind, item.times, item.busy_ns)
        else:
            yield kind
        last_ns = item.start_unix_ns


def _name_of(row: TimelineRow, *, is_device: bool) -> str:
    track = row.track
    known = is_device or f"{track.thread}" in track.thread_name
    name = track.thread_name if known else f"{track.thread_name} ({track.thread})"
    return clip(f"{name}: {track.role}" if track.role else name, _NAME_CHARACTERS)


def _kind_of(item: Item) -> str:
    if item.category != SliceCategory.WAIT:
        return item.category
    return _WAITS.get(item.name.removeprefix("blocked: "), SliceCategory.WAIT)


def _style_of(kind: str) -> tuple[str, str]:
    if kind in _KINDS:
        return _KINDS[kind]
    return IDLE_COLOURS.get(kind.removeprefix(IDLE), OTHER), clip(kind, _NAME_CHARACTERS)


def _view(document: Document, origin_ns: int, length_ns: int) -> list[int]:
    # The initial view: the time of device activity, or else all.
    known = [(row.start_unix_ns, row.start_unix_ns + row.window_ns) for row in document.devices]
    edges: list[Any] = [0, length_ns]
    if known:
        edges = [
            min(start for start, _ in known) - origin_ns,
            max(end for _, end in known) - origin_ns,
        ]
    start_ns, end_ns = (min(max(edge, 0), length_ns) for edge in edges)
    return [start_ns, end_ns] if end_ns > start_ns else [0, max(length_ns, 1)]

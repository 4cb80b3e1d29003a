"""
Which rows a window of time needs.

What is known about a moment comes a little before and after it: stalls before the call
that they were in, a reading of the counters after what it counted. So a span begins with
the chunk that holds the moment half a minute before a window, and ends a few seconds
after it. Of that lead, readings are few and all are read; of calls and what happened to
threads only as much is as the first effects in the window lasted, and a little more.

Several captures can be one story, when an agent was restarted. They cannot when the host
was rebooted, since its clock began anew, or when their histograms have other buckets. Of
those that a window touches, the story that was written last is played. Captures that were
replayed into a store can be in any order of time.
"""

from typing import NamedTuple

from otel_gpu.recorder.pages import Pages
from otel_gpu.recorder.tables.columns import MAX_INTEGER, Row
from otel_gpu.recorder.text import from_json

BEFORE_NS = 30_000_000_000
AFTER_NS = 10_000_000_000
_LEAD_NS = 5_000_000_000
# What can be an effect, and so needs what happened since it began; and when it was seen.
_EFFECTS = {"calls": "end_unix_ns", "gaps": "end_unix_ns", "open_calls": "seen_unix_ns"}


class Span(NamedTuple):
    """
    Rows to read.

    Attributes:
        last_seq: The last of them; less than the first when there is none.
        lead_seq: Before this one, calls, stalls, gaps and forks are no part of it.
        chunk: The chunk that the first is in; 0: the rows begin with a capture.
        chunk_unix_ns: The earliest moment in that chunk.
        start_unix_ns: The earliest moment in all rows.
        captures: Rows of ``captures``: the one in force at the first row, then others.
        left_out: When each capture in the window began that is another story.
        is_whole: Whether this is a single capture from its beginning.
    """

    first_seq: int
    last_seq: int
    lead_seq: int
    chunk: int
    chunk_unix_ns: int
    start_unix_ns: int
    captures: tuple[Row, ...]
    left_out: tuple[int, ...]
    is_whole: bool

    @property
    def before_unix_ns(self) -> int:
        """Return the moment before the rows: what was counted by then is no part of what they say."""
        # Other readings of its earliest moment may be in the chunk before.
        return max(0, self.start_unix_ns - 1)


def find_span(pages: Pages, start_unix_ns: int | None, end_unix_ns: int | None) -> Span | None:
    """Return the rows that a window needs, which is open where it is None; None: there are none."""
    start = 0 if start_unix_ns is None else bounded(start_unix_ns - BEFORE_NS)
    values: tuple[int, ...] = (start,)
    before_end = ""
    if end_unix_ns is not None:
        before_end = " AND start_unix_ns <= ?"
        values = (start, bounded(end_unix_ns + AFTER_NS))
    chunks = pages.where("chunks", f"end_unix_ns >= ?{before_end}", values)
    if not chunks:
        return None
    chunk, first_seq, _, begin_unix_ns, *_ = chunks[0]
    last_chunk, _, last_seq, *_ = chunks[-1]
    if end_unix_ns is not None:
        of_chunk = "chunk = ? AND start_unix_ns <= ?"
        batches = pages.where("batches", of_chunk, (last_chunk, values[1]))
        last_seq = max((row[3] for row in batches), default=last_seq)
    captures = pages.where("captures", "seq <= ?", (last_seq,))
    captures.sort(key=lambda row: row[2])
    in_force = sum(row[2] <= first_seq for row in captures)
    captures = captures[max(0, in_force - 1) :]
    story = captures
    for number in range(len(captures) - 1, 0, -1):
        if _story_of(captures[number - 1]) != _story_of(captures[number]):
            story = captures[number:]
            first_seq, begin_unix_ns = story[0][2:4]
            chunks = [row for row in chunks if row[2] >= first_seq]
            break
    begins = bool(story) and story[0][2] >= first_seq
    lead_seq = first_seq
    if start_unix_ns is not None:
        lead_seq = _find_lead(pages, first_seq, last_seq, start_unix_ns)
    return Span(
        first_seq,
        last_seq,
        lead_seq,
        0 if begins else chunk,
        begin_unix_ns,
        min([begin_unix_ns, *(row[3] for row in chunks if row[1] > first_seq)]),
        tuple(story),
        tuple(row[3] for row in captures[: -len(story)]) if story else (),
        begins and len(story) == 1 and len(captures) == 1,
    )


def _find_lead(pages: Pages, first_seq: int, last_seq: int, start_unix_ns: int) -> int:
    within = "FROM batches WHERE last_seq BETWEEN ? AND ?"
    span = (first_seq, last_seq)
    until_unix_ns = bounded(start_unix_ns + BEFORE_NS)
    ((first, last),) = pages.fetch(
        f"SELECT min(first_seq), max(last_seq) {within} AND end_unix_ns >= ? AND start_unix_ns <= ?",
        (*span, bounded(start_unix_ns), until_unix_ns),
    )
    begins = [start_unix_ns]
    for table, end in _EFFECTS.items():
        query = f"SELECT min(start_unix_ns) FROM {table} WHERE seq BETWEEN ? AND ? AND {end} >= ?"
        ((begin,),) = pages.fetch(query, (first, last, bounded(start_unix_ns)))
        if isinstance(begin, int):
            begins.append(begin)
    lead_unix_ns = max(min(begins) - _LEAD_NS, start_unix_ns - BEFORE_NS)
    query = f"SELECT min(first_seq) {within} AND end_unix_ns >= ?"
    ((lead_seq,),) = pages.fetch(query, (*span, bounded(lead_unix_ns)))
    return max(first_seq, lead_seq) if isinstance(lead_seq, int) else first_seq


def bounded(unix_ns: int) -> int:
    """Return the nearest moment that a store can have: people name others."""
    return min(max(0, unix_ns), MAX_INTEGER)


def _story_of(capture: Row) -> tuple[str, str, str]:
    *_, host, boot_id, text = capture
    try:
        layout = from_json(text, dict).get("layout")
    except ValueError:
        layout = None
    return host, boot_id, str(layout)

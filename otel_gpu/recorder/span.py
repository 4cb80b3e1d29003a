"""
The span of rows that a window of time needs.

Rows about a time are stored a little before and after it: stalls before the call around them,
readings of counters after the counted events. So a span begins with the chunk of the time 30 s before
the window, and ends 10 s after it. Readings before the window are few, and all are read. Calls, stalls
and gaps before it are read from 5 s before the first effects in the window.

Several captures are continuous if the agent was restarted. They are not if the host was rebooted,
because its clock restarted, or if their histograms have other buckets. Of the captures in a window, the
continuous ones that were written last are played. Captures replayed into a store can be in any order of
time.
"""

from typing import NamedTuple

from otel_gpu.recorder.pages import Pages
from otel_gpu.recorder.storable_text import from_json
from otel_gpu.recorder.tables.columns import MAX_INTEGER, Row

BEFORE_NS = 30_000_000_000
AFTER_NS = 10_000_000_000
_LEAD_NS = 5_000_000_000
# Tables of possible effects, which need rows since their start, and the column of their end.
_EFFECTS = {"calls": "end_unix_ns", "gaps": "end_unix_ns", "open_calls": "seen_unix_ns"}


class Span(NamedTuple):
    """
    The rows to read.

    Attributes:
        last_seq: The last row; less than ``first_seq`` if there is none.
        lead_seq: Calls, stalls, gaps and forks before it are not read.
        chunk: The chunk of the first row; 0: the rows begin with a capture.
        chunk_unix_ns: The earliest time in that chunk.
        start_unix_ns: The earliest time in all rows.
        captures: Rows of ``captures``: the current one at the first row, then later ones.
        left_out: Start times of the captures in the window that are not continuous with these.
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
        """The time just before the rows; counts until then are not part of them."""
        # The chunk before can have other readings of the earliest time.
        return max(0, self.start_unix_ns - 1)


def find_span(pages: Pages, start_unix_ns: int | None, end_unix_ns: int | None) -> Span | None:
    """Return the rows that a window needs (None: an open end); None: there are none."""
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
    begun = sum(row[2] <= first_seq for row in captures)
    captures = captures[max(0, begun - 1) :]
    played = captures
    for number in range(len(captures) - 1, 0, -1):
        if _continuity_key(captures[number - 1]) != _continuity_key(captures[number]):
            played = captures[number:]
            first_seq, begin_unix_ns = played[0][2:4]
            chunks = [row for row in chunks if row[2] >= first_seq]
            break
    begins = bool(played) and played[0][2] >= first_seq
    lead_seq = first_seq
    if start_unix_ns is not None:
        lead_seq = _find_lead(
            pages=pages, first_seq=first_seq, last_seq=last_seq, start_unix_ns=start_unix_ns
        )
    return Span(
        first_seq=first_seq,
        last_seq=last_seq,
        lead_seq=lead_seq,
        chunk=0 if begins else chunk,
        chunk_unix_ns=begin_unix_ns,
        start_unix_ns=min([begin_unix_ns, *(row[3] for row in chunks if row[1] > first_seq)]),
        captures=tuple(played),
        left_out=tuple(row[3] for row in captures[: -len(played)]) if played else (),
        is_whole=begins and len(played) == 1 and len(captures) == 1,
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
    """Return the nearest Unix time that a store can hold."""
    return min(max(0, unix_ns), MAX_INTEGER)


def _continuity_key(capture: Row) -> tuple[str, str, str]:
    *_, host, boot_id, text = capture
    try:
        layout = from_json(text, dict).get("layout")
    except ValueError:
        layout = None
    return host, boot_id, str(layout)

"""Stores for tests: written from activities, and read back."""

from pathlib import Path

from otel_gpu.explain.explainer import Explainer
from otel_gpu.recorder.reader import StoreReader
from otel_gpu.recorder.recorder import open_writer
from otel_gpu.report.collector import Collector
from otel_gpu.report.document import Window
from otel_gpu.report.json_form import make_document

MIB = 1 << 20
WHOLE = Window()


def write(path: Path, activities, limits=None, *, blame=False) -> Path:
    """Write activities, and optionally the chains and incidents made of them, as a replay does."""
    explainer = Explainer()
    with open_writer(path, limits, live=False) as writer:
        for activity in activities:
            writer.observe(activity)
            if blame:
                hand_on(writer, explainer, explainer.push(activity))
        if blame:
            hand_on(writer, explainer, explainer.close())
        assert writer.close()
        assert writer.lost() == {}
    return path


def hand_on(writer, explainer, chains):
    for chain in chains:
        writer.observe_chain(chain)
    for incident in explainer.closed_incidents():
        writer.observe_incident(incident)


def read(path: Path, *window):
    """Return all activities of a window; fails for invalid rows."""
    with StoreReader(path) as reader:
        activities = list(reader.activities(*window))
        assert reader.rejected == {}
    return activities


def ask(path: Path, sql: str):
    """Return the rows of a query."""
    with StoreReader(path) as reader:
        return list(reader.execute(sql).rows)


def kept_chains(path: Path):
    """The chains of a store in their order: name, columns of its row, causes as ``causes_of`` has them."""
    rows = ask(
        path,
        "SELECT c.seq, c.id, c.kind, c.api, p.pid, c.tid, c.start_unix_ns, c.duration_ns, c.excess_ns, "
        "c.trace_id, c.span_id, c.unexplained_ns, c.severity FROM chains c JOIN processes p "
        "ON p.process = c.process ORDER BY c.seq",
    )
    return [(row[1], row[2:], causes_of(path, row[0])) for row in rows]


def causes_of(path: Path, seq: int):
    """The causes of a chain or an incident: kind, time, culprit, evidence, causes of their own."""
    evidence = ask(path, f"SELECT cause, id FROM evidence WHERE seq = {seq} ORDER BY evidence")
    rows = ask(
        path,
        "SELECT cause, parent, kind, time_ns, culprit_pid, culprit_tid, culprit_comm FROM causes "
        f"WHERE seq = {seq} ORDER BY cause",
    )

    def below(parent):
        return [
            (kind, time_ns, who, [name for of, name in evidence if of == number], below(number))
            for number, above, kind, time_ns, *who in rows
            if above == parent
        ]

    return below(None)


def as_kept(causes):
    """Causes of ``explain`` as ``causes_of`` gives them."""
    return [
        (
            cause.kind,
            cause.time_ns,
            list(cause.culprit or (None, None, None)),
            [interval.id for interval in cause.evidence],
            as_kept(cause.via),
        )
        for cause in causes
    ]


def without_images(activity):
    """Return an activity in a form that can be compared, because programs have no equality."""
    return tuple(map(_comparable, (type(activity).__name__, *activity)))


def _comparable(value):
    if hasattr(value, "program_ktime_ns") and hasattr(value, "attributes"):
        return (value.pid, value.program_ktime_ns, value.comm, dict(value.attributes))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return tuple(map(_comparable, value))
    if isinstance(value, tuple):
        return tuple(map(_comparable, value))
    return value


def report_of(activities, window=WHOLE):
    """Return the report of a window as a document, without the sizes of caches."""
    collector = Collector(Explainer(), window=window)
    for activity in activities:
        collector.observe(activity)
    document = make_document(collector.finish("test"))
    notes = [note for note in document["notes"] if not note.startswith("Items evicted")]
    return document | {"notes": notes}

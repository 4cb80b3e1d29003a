from otel_gpu.explain.chains import Culprit, Evidence
from otel_gpu.export.resources import Origins, ProcessResources
from otel_gpu.export.spans import exported
from otel_gpu.export.spans.exported import ExportedSpans, SpanReference
from otel_gpu.export.spans.finished import FinishedSpan
from tests.unit.export import samples

ORIGINS = Origins("9.8.7", ProcessResources({}))


def span(number, *, tid=44, start=0, end=10):
    return FinishedSpan(
        ORIGINS.of(samples.PROCESS)["otel_gpu.sched"],
        number.to_bytes(16, "big"),
        number.to_bytes(8, "big"),
        b"",
        "sched.blocked",
        start,
        end,
        (("process.context_switch.type", "voluntary"), ("otel_gpu.thread.tid", tid)),
        tid=tid,
    )


def reference(number):
    return SpanReference(number.to_bytes(16, "big"), number.to_bytes(8, "big"))


def of_span(spans, number):
    seen_in = reference(number).span_id
    return spans.find(Evidence("e", "call", 0, 1, None, None, "", (), seen_in), None)


def of_thread(spans, tid, start, end):
    evidence = Evidence("e", "run_queue", start, end, None, None, "", (), b"")
    return spans.find(evidence, Culprit(90, tid, "hog"))


def test_a_span_is_found_by_its_id():
    """With the trace that a link needs; one that was not exported is not found."""
    spans = ExportedSpans()
    spans.add(span(1))

    assert of_span(spans, 1) == [reference(1)]
    assert of_span(spans, 2) == []
    assert reference(2).span_id not in spans


def test_the_spans_of_a_thread_are_found_by_its_time():
    """The latest first; what only touches is not inside."""
    spans = ExportedSpans()
    spans.add(span(1, start=0, end=10))
    spans.add(span(2, start=10, end=20))
    spans.add(span(3, start=15, end=30))
    spans.add(span(4, tid=45, start=15, end=30))

    assert of_thread(spans, 44, 10, 16) == [reference(3), reference(2)]
    assert of_thread(spans, 46, 10, 16) == []


def test_chains_are_known_and_are_no_ones_doing():
    """A chain about a culprit's own slow call is not what the culprit did."""
    spans = ExportedSpans()
    spans.add_chain(reference(1).span_id)

    assert spans.has_chain(reference(1).span_id)
    assert not spans.has_chain(reference(2).span_id)
    assert of_thread(spans, 44, 0, 10) == []
    assert reference(1).span_id not in spans


def test_memory_is_bounded_and_the_latest_stay(monkeypatch):
    """At least as many as one generation holds are known at any time."""
    monkeypatch.setattr(exported, "_ENOUGH_SPANS", 100)
    monkeypatch.setattr(exported, "_MAX_SPANS", 100)
    monkeypatch.setattr(exported, "_MAX_THREADS", 10)
    monkeypatch.setattr(exported, "_MAX_CHAINS", 10)
    spans = ExportedSpans()

    for number in range(1, 1_008):
        spans.add(span(number, tid=number))
        spans.add_chain(reference(number).span_id)
        known = range(max(1, number - 99), number + 1)
        assert all(of_span(spans, n) for n in known)

    assert len(spans._traces) + len(spans._older_traces) <= 200
    assert len(spans._threads) == 10
    assert len(spans._chains) == 10


def test_spans_of_long_ago_are_forgotten_where_there_are_many(monkeypatch):
    """Two generations of five seconds; few spans are kept for as long as they are few."""
    monkeypatch.setattr(exported, "_ENOUGH_SPANS", 10)
    often, seldom = ExportedSpans(), ExportedSpans()
    second = 1_000_000_000

    for number in range(1, 200):
        often.add(span(number, end=number * second))
    for number in range(1, 10):
        seldom.add(span(number, end=number * 100 * second))

    known = [n for n in range(1, 200) if of_span(often, n)]
    assert known == list(range(known[0], 200))
    assert 10 <= len(known) <= 20
    assert all(of_span(seldom, n) for n in range(1, 10))


def test_a_thread_is_forgotten_soon_after_its_last_span(monkeypatch):
    """A host that runs short programs for days keeps those of the last seconds."""
    monkeypatch.setattr(exported, "_ENOUGH_SPANS", 10)
    spans = ExportedSpans()
    second = 1_000_000_000

    for number in range(1, 200):
        spans.add(span(number, tid=number, end=number * second))

    assert 10 <= len(spans._threads) <= 30
    assert of_thread(spans, 199, 0, 200 * second)

import threading
import time
from collections.abc import Callable, Sequence

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_gpu.export.otlp import sender as sender_module
from otel_gpu.export.otlp.queue import QueuedItem, SpanQueue
from otel_gpu.export.otlp.sender import BackgroundSender, Delivery, Sender, SendOutcome
from otel_gpu.export.spans.finished import Origin
from otel_gpu.faults import Faults
from tests.receiver import WAIT_TIMEOUT_S

ORIGIN = Origin(Resource({}), InstrumentationScope("otel_gpu.cuda"))
DELIVERED = Delivery(SendOutcome.DELIVERED)
UNAVAILABLE = Delivery(SendOutcome.UNAVAILABLE)


class StubTransport:
    """Answers as it is told, and can be made to wait with its answer."""

    place = "the stub"

    def __init__(self) -> None:
        self.answer: Callable[[Sequence[QueuedItem]], Delivery] = lambda _: DELIVERED
        self.batches: list[list[bytes]] = []
        self.closed = False
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.asked = threading.Event()

    def deliver(self, batch: Sequence[QueuedItem]) -> Delivery:
        self.batches.append([p.content for p in batch])
        self.asked.set()
        self.may_answer.wait()
        return self.answer(batch)

    def close(self) -> None:
        self.closed = True
        self.may_answer.set()


@pytest.fixture
def transport():
    return StubTransport()


@pytest.fixture
def start(transport, monkeypatch):
    """Start a sender that is shut down after the test."""
    monkeypatch.setattr(sender_module, "_FIRST_BACKOFF_S", 0.01)
    started = []

    def start_sender(limit_bytes=1_000, batch_spans=100, flush_interval_s=3600.0, faults=None):
        queue = SpanQueue(
            limit_bytes=limit_bytes,
            batch_bytes=500,
            batch_spans=batch_spans,
            header_size=lambda _: 0,
        )
        started.append(
            BackgroundSender(
                transport, queue, _as_it_is, flush_interval_s=flush_interval_s, faults=faults
            )
        )
        return started[-1]

    yield start_sender
    transport.may_answer.set()
    for sender in started:
        sender.shutdown(5.0)


def _as_it_is(item: QueuedItem) -> QueuedItem:
    return item


def span(number: int, size_bytes: int = 10) -> QueuedItem:
    return QueuedItem(ORIGIN, size_bytes, b"%d" % number)


def wait_for(condition: Callable[[], object], timeout_s: float = WAIT_TIMEOUT_S) -> None:
    deadline_s = time.monotonic() + timeout_s
    turn = threading.Event()
    while not condition():
        assert time.monotonic() < deadline_s, "condition not met in time"
        turn.wait(0.002)


def where(sender: Sender) -> tuple[int, int, int, dict[str, int]]:
    """How many spans a sender accepted, delivered and has still, and those it dropped."""
    counts = sender.counts()
    assert counts.accepted == counts.exported + counts.pending + counts.dropped.total()
    assert min(counts.exported, counts.pending, *counts.dropped.values(), 0) == 0
    return counts.accepted, counts.exported, counts.pending, dict(counts.dropped)


def test_the_end_delivers_what_waits(start, transport):
    """Nothing is sent before a batch is full or it is time."""
    sender = start()
    for number in range(3):
        sender.put(span(number))
    assert where(sender) == (3, 0, 3, {})

    assert sender.shutdown(5.0)

    assert transport.batches == [[b"0", b"1", b"2"]]
    assert where(sender) == (3, 3, 0, {})
    assert transport.closed


def test_a_full_batch_is_sent_at_once(start, transport):
    """A batch does not wait for the interval when it is full."""
    sender = start(batch_spans=2)

    sender.put(span(0))
    sender.put(span(1))

    wait_for(lambda: sender.counts().exported == 2)
    assert transport.batches == [[b"0", b"1"]]


def test_a_lone_span_is_sent_after_the_interval(start):
    """A batch that does not fill leaves after the flush interval."""
    sender = start(flush_interval_s=0.01)

    sender.put(span(0))

    wait_for(lambda: sender.counts().exported == 1)


def test_a_full_queue_drops_the_oldest_and_counts_them(start, transport):
    """While the endpoint is slow, memory is bounded and every span accounted for."""
    transport.may_answer.clear()
    sender = start(limit_bytes=100, batch_spans=2)
    sender.put(span(0))
    sender.put(span(1))
    assert transport.asked.wait(WAIT_TIMEOUT_S)

    for number in range(2, 23):
        sender.put(span(number))
        where(sender)

    assert where(sender) == (23, 0, 10, {"queue_full": 13})
    transport.may_answer.set()
    assert sender.shutdown(5.0)
    assert where(sender) == (23, 10, 0, {"queue_full": 13})
    assert transport.batches[-1] == [b"21", b"22"]


def test_spans_survive_an_outage_that_fits_the_queue(start, transport):
    """A failed batch waits, goes out first when the endpoint answers, and nothing is lost."""
    answers = iter([UNAVAILABLE, UNAVAILABLE, DELIVERED])
    transport.answer = lambda _: next(answers, DELIVERED)
    sender = start(batch_spans=2)

    for number in range(3):
        sender.put(span(number))

    wait_for(lambda: sender.counts().exported >= 2)
    assert sender.shutdown(5.0)
    assert transport.batches == [[b"0", b"1"]] * 3 + [[b"2"]]
    assert where(sender) == (3, 3, 0, {})


def test_an_outage_is_counted_as_such(start, transport, caplog):
    """What an outage pushes out is dropped with its own reason, and said once."""
    transport.answer = lambda _: UNAVAILABLE
    sender = start(limit_bytes=50, batch_spans=2)
    sender.put(span(0))
    sender.put(span(1))
    wait_for(lambda: "does not answer" in caplog.text)

    for number in range(2, 13):
        sender.put(span(number))
        where(sender)

    wait_for(lambda: sender.counts().dropped.get("endpoint_down", 0) >= 6)
    wait_for(lambda: len(transport.batches) >= 3)
    assert caplog.text.count("does not answer") == 1
    transport.answer = lambda _: DELIVERED
    wait_for(lambda: sender.counts().exported > 0)
    assert "answers again" in caplog.text
    sender.shutdown(5.0)
    _, exported, pending, _ = where(sender)
    assert pending == 0
    assert exported >= 5


def test_attempts_become_rarer(start, transport, monkeypatch):
    """The pause after a failed attempt doubles up to its limit."""
    monkeypatch.setattr(sender_module, "_FIRST_BACKOFF_S", 0.001)
    monkeypatch.setattr(sender_module, "_LONGEST_BACKOFF_S", 0.004)
    transport.answer = lambda _: UNAVAILABLE
    sender = start(batch_spans=1)

    sender.put(span(0))

    wait_for(lambda: len(transport.batches) >= 5)
    assert sender._backoff_s == 0.004
    transport.answer = lambda _: DELIVERED
    wait_for(lambda: sender.counts().exported == 1)
    assert sender._backoff_s == 0.0


def test_a_shutdown_with_a_dead_endpoint_tries_once(start, transport):
    """One attempt at the end; what it does not deliver is dropped and counted."""
    transport.answer = lambda _: UNAVAILABLE
    sender = start(batch_spans=2)
    for number in range(5):
        sender.put(span(number))

    assert not sender.shutdown(5.0)

    assert where(sender) == (5, 0, 0, {"endpoint_down": 5})


def test_a_shutdown_ends_in_time(start, transport):
    """An endpoint that does not answer cannot hold the program."""
    transport.may_answer.clear()
    sender = start()
    sender.put(span(0))

    assert not sender.shutdown(0.05)

    assert where(sender) == (1, 0, 0, {"shutdown": 1})


def test_spans_after_the_end_are_counted(start, transport):
    """A span that comes too late is dropped, not lost without a trace."""
    sender = start()
    sender.shutdown(5.0)

    sender.put(span(0))

    assert where(sender) == (1, 0, 0, {"shutdown": 1})


@pytest.mark.parametrize(
    ("delivery", "dropped"),
    [
        (Delivery(SendOutcome.REJECTED), {"rejected_by_receiver": 3}),
        (Delivery(SendOutcome.DELIVERED, rejected=2), {"rejected_by_receiver": 2}),
        (Delivery(SendOutcome.DELIVERED, rejected=99), {"rejected_by_receiver": 3}),
    ],
)
def test_spans_that_a_receiver_refuses_are_counted(start, transport, delivery, dropped):
    """A refusal is final: the rest goes on, and the end says that not all arrived."""
    transport.answer = lambda _: delivery
    sender = start()
    for number in range(3):
        sender.put(span(number))

    assert not sender.shutdown(5.0)

    assert where(sender) == (3, 3 - sum(dropped.values()), 0, dropped)


def test_a_batch_that_is_too_large_is_split(start, transport):
    """Halves are tried until they fit; a single span that does not is dropped."""

    def answer(batch):
        too_large = len(batch) > 2 or b"7" in [p.content for p in batch]
        return Delivery(SendOutcome.TOO_LARGE if too_large else SendOutcome.DELIVERED)

    transport.answer = answer
    sender = start()
    for number in range(8):
        sender.put(span(number))

    assert not sender.shutdown(5.0)

    assert where(sender) == (8, 7, 0, {"too_large": 1})


def test_a_file_that_cannot_be_written_does_not_end_the_thread(start, transport, caplog):
    """A full disk costs the batch, and the next one is tried."""

    def fail(_):
        raise OSError(28, "No space left on device")

    transport.answer = fail
    sender = start(batch_spans=1)
    sender.put(span(0))
    wait_for(lambda: sender.counts().dropped)
    transport.answer = lambda _: DELIVERED
    sender.put(span(1))

    assert sender.shutdown(5.0)

    assert where(sender) == (2, 1, 0, {"write_failed": 1})
    assert "No space left on device" in caplog.text


def test_counters_add_up_at_every_moment(start, transport):
    """Whoever looks, and whenever: accepted is exported, dropped and pending together."""
    answers = [
        DELIVERED,
        UNAVAILABLE,
        Delivery(SendOutcome.REJECTED),
        Delivery(SendOutcome.DELIVERED, 1),
    ]
    transport.answer = lambda _: answers[len(transport.batches) % 4]
    sender = start(limit_bytes=200, batch_spans=3, flush_interval_s=0.001)

    for number in range(2_003):
        sender.put(span(number))
        where(sender)
    sender.shutdown(5.0)

    accepted, _, pending, _ = where(sender)
    assert (accepted, pending) == (2_003, 0)


def direct(transport, batch_spans=2) -> Sender:
    queue = SpanQueue(
        limit_bytes=1_000, batch_bytes=500, batch_spans=batch_spans, header_size=lambda _: 0
    )
    return Sender(transport, queue, _as_it_is)


def test_a_direct_sender_makes_the_same_batches_every_time(transport):
    """Batches depend on the spans alone, and the rest leaves at the end."""
    sender = direct(transport)
    for number in range(5):
        sender.put(span(number))
    assert transport.batches == [[b"0", b"1"], [b"2", b"3"]]

    assert sender.shutdown(5.0)

    assert transport.batches[2:] == [[b"4"]]
    assert where(sender) == (5, 5, 0, {})
    assert transport.closed


def test_a_direct_sender_does_not_ask_a_dead_endpoint_for_every_batch(transport):
    """After a failure, spans are dropped until the endpoint may be tried again."""
    transport.answer = lambda _: UNAVAILABLE
    sender = direct(transport)
    for number in range(6):
        sender.put(span(number))

    assert len(transport.batches) == 1
    assert where(sender) == (6, 0, 0, {"endpoint_down": 6})


def test_a_direct_sender_splits_and_counts_too(transport):
    """Refusals are handled as in the background."""
    transport.answer = lambda batch: (
        Delivery(SendOutcome.TOO_LARGE) if len(batch) > 1 else Delivery(SendOutcome.DELIVERED, 1)
    )
    sender = direct(transport)
    for number in range(4):
        sender.put(span(number))

    assert not sender.shutdown(5.0)
    assert where(sender) == (4, 0, 0, {"rejected_by_receiver": 4})


def test_an_error_of_our_own_costs_one_batch(start, transport):
    """
    It is counted where it was, its spans under a reason of their own, and the next batch arrives.
    """
    faults = Faults()
    sender = start(batch_spans=3, faults=faults)

    def fail(_: Sequence[QueuedItem]) -> Delivery:
        raise KeyError("resource")

    transport.answer = fail
    for number in range(3):
        sender.put(span(number))
    wait_for(lambda: sender.counts().dropped)
    transport.answer = lambda _: DELIVERED
    sender.put(span(3))

    assert sender.shutdown(5.0)
    assert where(sender) == (4, 1, 0, {"internal_error": 3})
    assert faults.status()["errors"] == {"export.spans": 1}

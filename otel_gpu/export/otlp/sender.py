"""
Senders: hand finished spans to an exporter without making the pipeline wait.

Some facts about dead endpoints -------------------------------

The standard exporters retry by themselves: a refused connection costs a batch six to seven seconds,
and then the batch is lost. With a batch every 200 ms that thread never catches up and loses nearly
all batches, slowly.

So a failed batch opens a circuit: nothing is sent for a while (1 s, doubling to 30 s), spans wait
in the bounded queue, and the oldest spans of the largest program are dropped and counted as
``endpoint_down``. Then one batch goes out as a probe. If it arrives, the circuit closes and all
that waits follows.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Generic, NamedTuple, Protocol, TypeVar

from otel_gpu.enrich.identity.identities import Program
from otel_gpu.export.otlp.queue import QueuedItem, SpanQueue
from otel_gpu.faults import Faults
from otel_gpu.limits.losses import LossReason

_logger = logging.getLogger(__name__)

_FIRST_BACKOFF_S = 1.0
_LONGEST_BACKOFF_S = 30.0
# How long a stopped exporter can take to end its thread.
_GRACE_S = 0.5

# Spans that are moved into the queue at a time.
_MAX_ARRIVED = 128

_Item = TypeVar("_Item")


class DropReason(StrEnum):
    """Why items were not exported."""

    QUEUE_FULL = "queue_full"
    SHUTDOWN = "shutdown"
    ENDPOINT_DOWN = "endpoint_down"
    TOO_LARGE = LossReason.TOO_LARGE
    REJECTED = "rejected_by_receiver"
    WRITE_FAILED = "write_failed"
    FAILED = LossReason.INTERNAL_ERROR
    NOT_SAMPLED = "not_sampled"
    """The configuration leaves them out."""


class SendOutcome(Enum):
    """The outcome of a batch; the value is the reason under which it is dropped."""

    DELIVERED = None
    UNAVAILABLE = DropReason.ENDPOINT_DOWN
    TOO_LARGE = DropReason.TOO_LARGE
    REJECTED = DropReason.REJECTED
    WRITE_FAILED = DropReason.WRITE_FAILED
    FAILED = DropReason.FAILED


class Delivery(NamedTuple):
    """The answer to a batch; ``rejected`` spans of a delivered one were refused."""

    outcome: SendOutcome
    rejected: int = 0


class Transport(Protocol):
    """Delivers batches to a ``place``; ``close`` can end a ``deliver`` that waits."""

    place: str

    def deliver(self, batch: Sequence[QueuedItem]) -> Delivery:
        """Send a batch and return the outcome; OSError: the target is full or gone."""

    def close(self) -> None:
        """Close connections."""


@dataclass(slots=True)
class Counts:
    """Counts of accepted spans: each is exported, dropped (by reason) or pending."""

    accepted: int = 0
    exported: int = 0
    dropped: Counter[DropReason] = field(default_factory=Counter)

    @property
    def pending(self) -> int:
        """Spans that are neither exported nor dropped."""
        return self.accepted - self.exported - self.dropped.total()


class Sender(Generic[_Item]):
    """
    Sends spans or log records, encoded by ``encode``, on the caller's thread when a batch is full.

    The same spans make the same batches, for files and replays. The caller waits rather than lose a
    span. While the endpoint is down, spans are dropped until the next try.
    """

    def __init__(
        self, transport: Transport, queue: SpanQueue, encode: Callable[[_Item], QueuedItem]
    ) -> None:
        self._transport = transport
        self._queue = queue
        self._encode = encode
        self._counts = Counts()
        self._backoff_s = 0.0
        self._retry_s = 0.0

    def put(self, item: _Item) -> None:
        """Accept a span or a log record."""
        self._counts.accepted += 1
        self._drop(self._queue.put(self._encode(item)), DropReason.QUEUE_FULL)
        if self._queue.has_batch():
            self._send_one()

    def shutdown(self, timeout_s: float) -> bool:
        """Deliver what is left and end; False: some of it was late, and was dropped and counted."""
        deadline_s = time.monotonic() + timeout_s
        dropped = self._counts.dropped.total()
        while self._queue and time.monotonic() <= deadline_s:
            self._send_one()
        self._drop(self._queue.clear(), DropReason.SHUTDOWN)
        self._transport.close()
        return self._counts.dropped.total() == dropped

    def counts(self) -> Counts:
        """Return the counts so far."""
        counts = self._counts
        return Counts(counts.accepted, counts.exported, Counter(counts.dropped))

    def take_cut(self) -> Counter[Program | None]:
        """Return how many items each program lost to make space for others, since the last call."""
        return self._queue.cut.take()

    def _send_one(self) -> None:
        batch = self._queue.take()
        if not self._backoff_s or time.monotonic() >= self._retry_s:
            delivery = self._transport.deliver(batch)
            if delivery.outcome is not SendOutcome.UNAVAILABLE:
                self._settle(batch, delivery)
                return
            self._back_off()
        self._queue.settle(batch)
        self._drop(len(batch), DropReason.ENDPOINT_DOWN)

    def _back_off(self) -> None:
        self._backoff_s = min(self._backoff_s * 2 or _FIRST_BACKOFF_S, _LONGEST_BACKOFF_S)
        self._retry_s = time.monotonic() + self._backoff_s

    def _settle(self, batch: list[QueuedItem], delivery: Delivery) -> None:
        self._backoff_s = 0.0
        if delivery.outcome is SendOutcome.TOO_LARGE and len(batch) > 1:
            self._queue.halve_batches(batch)
            self._queue.put_back(batch)
            return
        self._queue.settle(batch)
        rejected, reason = len(batch), delivery.outcome.value
        if reason is None:
            rejected, reason = min(delivery.rejected, len(batch)), DropReason.REJECTED
            self._counts.exported += len(batch) - rejected
            self._queue.grow_batches()
        self._drop(rejected, reason)

    def _drop(self, count: int, reason: DropReason) -> None:
        if count:
            self._counts.dropped[reason] += count


class BackgroundSender(Sender[_Item]):
    """Sends from its own thread, each item at the latest ``flush_interval_s`` after it came."""

    def __init__(
        self,
        transport: Transport,
        queue: SpanQueue,
        encode: Callable[[_Item], QueuedItem],
        *,
        flush_interval_s: float,
        faults: Faults | None = None,
    ) -> None:
        super().__init__(transport, queue, encode)
        self._faults = faults or Faults()
        self._flush_interval_s = flush_interval_s
        self._changed = threading.Condition()
        self._arrived: deque[QueuedItem] = deque()
        # Whether the thread sleeps until something wakes it up.
        self._idle = False
        self._due_s = 0.0
        self._closing = False
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name="otel-gpu-spans", daemon=True)
        self._thread.start()

    def put(self, item: _Item) -> None:
        """Accept a span or a log record; never waits for the network."""
        self._arrived.append(self._encode(item))
        # The lock is the most expensive part here, so it is taken once for many spans. What the
        # thread moves by itself when it wakes up need not be moved here.
        if self._idle or self._closing or len(self._arrived) >= _MAX_ARRIVED:
            with self._changed:
                self._take_in()

    def shutdown(self, timeout_s: float) -> bool:
        """Deliver what is left, in time, and end; see ``Sender``."""
        with self._changed:
            self._take_in()
            dropped = self._counts.dropped.total()
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)
        with self._changed:
            self._abandoned = self._thread.is_alive()
            self._queue.clear()
            self._drop(self._counts.pending, DropReason.SHUTDOWN)
        self._transport.close()
        self._thread.join(_GRACE_S)
        with self._changed:
            return self._counts.dropped.total() == dropped

    def counts(self) -> Counts:
        """Return the counts so far."""
        with self._changed:
            self._take_in()
            return super().counts()

    def take_cut(self) -> Counter[Program | None]:
        """Return how many items each program lost to make space for others, since the last call."""
        with self._changed:
            self._take_in()
            return super().take_cut()

    def _take_in(self) -> None:
        # From the left, one by one: other threads append at the same time.
        arrived = [self._arrived.popleft() for _ in range(len(self._arrived))]
        if not arrived:
            return
        self._counts.accepted += len(arrived)
        if self._closing:
            self._drop(len(arrived), DropReason.SHUTDOWN)
            return
        if not self._queue:
            self._due_s = time.monotonic() + self._flush_interval_s
            self._changed.notify()
        is_down = bool(self._backoff_s)
        reason = DropReason.ENDPOINT_DOWN if is_down else DropReason.QUEUE_FULL
        self._drop(self._queue.put(*arrived), reason)
        if not is_down and self._queue.has_batch():
            self._changed.notify()

    def _run(self) -> None:
        while batch := self._next_batch():
            try:
                delivery = self._transport.deliver(batch)
            except OSError as error:
                _logger.warning("spans could not be written: %s", error)
                delivery = Delivery(SendOutcome.WRITE_FAILED)
            except Exception as error:  # noqa: BLE001 -- the thread must outlive it
                self._faults.add("export.spans", error)
                delivery = Delivery(SendOutcome.FAILED)
            with self._changed:
                if self._abandoned:
                    return
                if delivery.outcome is SendOutcome.UNAVAILABLE:
                    self._wait_for_endpoint(batch)
                    continue
                if self._backoff_s:
                    _logger.warning(
                        "the span endpoint answers again; %d spans wait", len(self._queue)
                    )
                self._settle(batch, delivery)

    def _next_batch(self) -> list[QueuedItem]:
        # Waits for a batch that is due; empty: time to end.
        with self._changed:
            while True:
                # Announce the sleep first, then check for arrivals: what arrives in between is seen
                # by one of the two threads.
                self._idle = True
                self._take_in()
                wait_s = self._wait_s()
                if wait_s is not None:
                    self._idle = False
                    if wait_s <= 0:
                        break
                self._changed.wait(wait_s)
            batch = self._queue.take()
            self._due_s = time.monotonic() + self._flush_interval_s
            return batch

    def _wait_s(self) -> float | None:
        # Seconds without anything to do; None: until something changes.
        if self._closing:
            return 0.0
        if not self._queue:
            return None
        if self._backoff_s:
            return self._retry_s - time.monotonic()
        return 0.0 if self._queue.has_batch() else self._due_s - time.monotonic()

    def _wait_for_endpoint(self, batch: list[QueuedItem]) -> None:
        if not self._backoff_s:
            _logger.warning(
                "%s does not answer, so spans wait and the oldest are dropped; "
                "check OTEL_EXPORTER_OTLP_ENDPOINT, and that a receiver listens there",
                self._transport.place,
            )
        self._back_off()
        self._queue.put_back(batch)
        if self._closing:
            self._drop(self._queue.clear(), DropReason.ENDPOINT_DOWN)

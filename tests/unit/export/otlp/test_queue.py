import time

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_gpu.enrich.identity.identities import Program
from otel_gpu.export.otlp.queue import QueuedItem, SpanQueue
from otel_gpu.export.spans.finished import Origin

ORIGINS = [Origin(Resource({}), InstrumentationScope(name)) for name in "ab"]


def program(pid: int, user: str) -> Program:
    return Program(pid, 1, "python3", 0, {"process.owner": user})


FLOOD, SECOND_FLOOD = program(1, "nobody"), program(2, "nobody")
QUIET, BUSY = program(3, "alice"), program(4, "alice")


def queue_of(limit_bytes=1000, batch_bytes=100, batch_spans=50, header_bytes=0) -> SpanQueue:
    return SpanQueue(
        limit_bytes=limit_bytes,
        batch_bytes=batch_bytes,
        batch_spans=batch_spans,
        header_size=lambda _: header_bytes,
    )


def pending(size_bytes: int, content: bytes = b"", origin: int = 0) -> QueuedItem:
    return QueuedItem(ORIGINS[origin], size_bytes, content)


def test_batches_are_split_by_bytes():
    """A batch holds as many spans as fit, oldest first."""
    queue = queue_of()
    for number in range(5):
        queue.put(pending(40, bytes([number])))

    assert [[p.content[0] for p in queue.take()] for _ in range(4)] == [[0, 1], [2, 3], [4], []]


def test_headers_count_towards_a_batch():
    """The first span of each origin brings its Resource and scope with it."""
    queue = queue_of(header_bytes=20)
    for origin in (0, 0, 1):
        queue.put(pending(30, origin=origin))

    assert len(queue.take()) == 2
    assert len(queue.take()) == 1


def test_batches_are_split_by_count():
    """Many small spans make several batches too."""
    queue = queue_of(batch_spans=3)
    for _ in range(7):
        queue.put(pending(1))

    assert [len(queue.take()) for _ in range(3)] == [3, 3, 1]


def test_a_span_larger_than_a_batch_goes_alone():
    """An oversized span is not stuck, and does not take others with it."""
    queue = queue_of()
    queue.put(pending(500))
    queue.put(pending(10))

    assert [p.size_bytes for p in queue.take()] == [500]
    assert [p.size_bytes for p in queue.take()] == [10]


def test_a_full_queue_drops_the_oldest():
    """The newest spans are kept, and what was dropped is told."""
    queue = queue_of(limit_bytes=100)

    dropped = [queue.put(pending(40, bytes([number]))) for number in range(4)]

    assert dropped == [0, 0, 1, 1]
    assert [p.content[0] for p in queue.take()] == [2, 3]


def of(process: Program, number: int, size_bytes: int = 10) -> QueuedItem:
    origin = Origin(ORIGINS[0].resource, ORIGINS[0].scope, process)
    return QueuedItem(origin, size_bytes, (process.pid, number))


def test_a_full_queue_drops_of_the_user_that_has_most():
    """However many programs it has: all spans of others stay, and who was cut is counted."""
    queue = queue_of(limit_bytes=1000, batch_spans=1000, batch_bytes=1000)
    dropped = 0
    for number in range(499):
        dropped += queue.put(of(FLOOD, number), of(SECOND_FLOOD, number))
        if number < 17:
            dropped += queue.put(of(QUIET, number), of(BUSY, number))

    assert dropped == 2 * 499 + 2 * 17 - 100
    assert queue.cut.take() == {FLOOD: dropped // 2, SECOND_FLOOD: dropped // 2}
    kept = [pending.content for pending in queue.take()]
    assert [number for pid, number in kept if pid == QUIET.pid] == list(range(17))
    assert [number for pid, number in kept if pid == BUSY.pid] == list(range(17))
    assert [number for pid, number in kept if pid == FLOOD.pid] == list(range(499 - 33, 499))


def test_names_of_programs_take_room():
    """They are kept as long as a span of the program waits, and are more than a short program's spans."""
    queue = queue_of(limit_bytes=1000, batch_bytes=1000, header_bytes=10)
    queue.put(*(of(QUIET, number) for number in range(3)))
    dropped = sum(queue.put(of(program(number, "nobody"), 0)) for number in range(10, 110))

    assert len(queue) == 3 + (1000 - 50 - 30) // 60
    assert dropped == 100 - (1000 - 50 - 30) // 60
    batch = queue.take()
    assert [p.content[0] for p in batch[:3]] == [QUIET.pid] * 3
    queue.settle(batch)
    queue.clear()
    assert queue.size_bytes == 0


def test_a_full_queue_takes_no_longer_for_many_programs():
    """Of 20,000 programs of one user with a span each, it costs a span more no look at all of them."""
    queue = queue_of(limit_bytes=200_100, batch_spans=1000, batch_bytes=1000)
    queue.put(*(of(QUIET, number) for number in range(10)))
    queue.put(*(of(program(number, "nobody"), number) for number in range(100, 20_100)))

    begun_s = time.process_time()
    dropped = sum(queue.put(of(program(number, "nobody"), 0)) for number in range(20_100, 25_100))
    assert time.process_time() - begun_s < 5

    assert dropped == 20_010 + 5_000 - len(queue)
    assert len(queue) > 20_010 * 0.9
    assert queue.cut.take().keys().isdisjoint({QUIET})


def test_a_full_queue_drops_of_the_program_that_has_most():
    """Of one user, too: its other program keeps its spans."""
    queue = queue_of(limit_bytes=1000, batch_spans=1000, batch_bytes=1000)
    for number in range(13):
        queue.put(of(QUIET, number))

    dropped = sum(queue.put(of(BUSY, number)) for number in range(211))

    assert dropped == 211 + 13 - 100
    assert queue.cut.take() == {BUSY: dropped}
    assert [p.content for p in queue.take()][:13] == [(QUIET.pid, number) for number in range(13)]


def test_nobody_is_cut_who_is_alone():
    """What one program has to itself is no share: its spans are dropped, and it is not named."""
    queue = queue_of(limit_bytes=100)

    assert sum(queue.put(of(FLOOD, number)) for number in range(23)) == 13
    assert not queue.cut.take()


def test_what_is_being_sent_takes_room():
    """A batch in flight is part of the bound until it is settled."""
    queue = queue_of(limit_bytes=100)
    queue.put(pending(80))
    batch = queue.take()

    assert queue.put(pending(40)) == 1
    assert len(queue) == 0
    queue.settle(batch)
    assert queue.put(pending(40)) == 0


def test_the_bound_is_on_memory_not_on_payload():
    """Small spans cost more than their bytes, and that counts."""
    queue = SpanQueue(
        limit_bytes=1000,
        batch_bytes=500,
        batch_spans=50,
        header_size=lambda _: 0,
        overhead_bytes=90,
    )

    assert sum(queue.put(pending(10)) for _ in range(12)) == 2
    queue.take()
    assert queue.size_bytes == 1000


def test_a_batch_that_failed_goes_first_again():
    """Order survives a failed attempt."""
    queue = queue_of()
    for number in range(4):
        queue.put(pending(40, bytes([number])))

    queue.put_back(queue.take())

    assert [p.content[0] for p in queue.take()] == [0, 1]


def test_batches_shrink_when_a_receiver_finds_them_too_large():
    """After a refusal the next batches are half as large."""
    queue = queue_of()
    for _ in range(10):
        queue.put(pending(25))
    batch = queue.take()
    assert len(batch) == 4

    queue.halve_batches(batch)
    queue.put_back(batch)

    assert len(queue.take()) == 2


def test_batches_grow_back_after_a_refusal():
    """One span that was too large does not make all later batches small for ever."""
    queue = queue_of()
    queue.halve_batches([pending(20), pending(20)])

    for _ in range(40):
        queue.grow_batches()
    for _ in range(8):
        queue.put(pending(25))

    assert len(queue.take()) == 4


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "put", "take", "settle", "back", "clear"]),
            st.integers(1, 150),
            st.sampled_from([FLOOD, SECOND_FLOOD, QUIET]),
        )
    )
)
def test_the_bound_holds_whatever_happens(steps):
    """What waits or is sent never takes more bytes than the limit, and of a program it is in order."""
    queue = queue_of(limit_bytes=300)
    taken: list[list[QueuedItem]] = []
    put = dropped = settled = 0

    for step, size_bytes, process in steps:
        if step == "put":
            put += 1
            dropped += queue.put(of(process, put, size_bytes))
        elif step == "take":
            taken.append(queue.take())
            numbers: dict[int, list[int]] = {}
            for pid, number in [p.content for p in taken[-1]]:
                numbers.setdefault(pid, []).append(number)
            assert all(found == sorted(found) for found in numbers.values())
        elif step == "clear":
            dropped += queue.clear()
        elif taken and step == "settle":
            batch = taken.pop()
            settled += len(batch)
            queue.settle(batch)
        elif taken:
            queue.put_back(taken.pop())
        in_flight = [p.size_bytes for batch in taken for p in batch]

        assert queue.size_bytes <= 300
        assert queue.size_bytes >= sum(in_flight)
        assert put == dropped + settled + len(in_flight) + len(queue)

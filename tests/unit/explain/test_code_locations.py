"""Where the threads of a process were that waited."""

from otel_gpu.explain.code_locations import CodeLocations
from otel_gpu.wire.frames import Frame, FrameType
from tests.activities import call, call_stack, gap, image, stall

MS = 1_000_000
TRAINER = image()


def waits(function, length_ms, *, number, root_ms=0, waker_pid=0):
    """A wait for a lock; with a root, of a thread that makes calls."""
    stack = call_stack(number, (Frame(FrameType.NATIVE, function, "", 0, "libfoo.so", 0),))
    return stall(
        TRAINER,
        0,
        length_ms * MS,
        length_ms * MS,
        reason="lock",
        stack=stack,
        root_start_ktime_ns=root_ms * MS,
        waker_pid=waker_pid,
    )


def place_of(*activities, waker_pid=0):
    places = CodeLocations(8)
    for activity in activities:
        places.observe(activity)
    seen = places.find(TRAINER.pid, "lock", waker_pid)
    return seen and seen.stack.place.function


def test_where_threads_wait_that_make_calls_goes_before_a_pool_of_idle_ones():
    """These wait all the time, and nobody waits for them."""
    pool = waits("pool_worker", 5_000, number=1, waker_pid=TRAINER.pid)
    caller = waits("take_from_queue", 30, number=2, root_ms=1)

    assert place_of(pool, caller) == "take_from_queue"
    assert place_of(pool, caller, waker_pid=TRAINER.pid) == "take_from_queue"


def test_where_no_thread_makes_calls_it_is_where_they_wait_longest():
    """As of a worker process, which has a part in how long others wait."""
    assert place_of(waits("a", 10, number=1), waits("b", 20, number=2)) == "b"
    assert place_of() is None


def test_of_a_process_that_ended_no_gap_waits_for_its_call():
    """Of many short ones, the last gap of each would be kept until others take its place."""
    stack = call_stack(3, (Frame(FrameType.NATIVE, "train", "", 0, "libfoo.so", 0),))
    after_gap = call(TRAINER, "cudaLaunchKernel", 20 * MS, 1 * MS, stack=stack)
    work = gap(TRAINER, "cudaMalloc", "cudaLaunchKernel", 10 * MS, 20 * MS)
    places = CodeLocations(8)

    places.observe(work)
    places.forget(TRAINER.pid)
    places.observe_work(after_gap)
    assert places.find(TRAINER.pid, "host") is None

    places.observe(work)
    places.observe_work(after_gap)
    assert places.find(TRAINER.pid, "host").stack is stack

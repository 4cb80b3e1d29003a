"""What user stacks add to the reason of a wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.enrich.waits import user_reasons
from otel_gpu.enrich.waits.reasons import REASONS
from otel_gpu.enrich.waits.user_reasons import USER_RULES, find_user_rules, refine_reason
from otel_gpu.wire.frames import Frame

LIBC, PYTHON, TORCH, CUDA = "libc.so.6", "python3.11", "libtorch_cpu.so", "libcuda.so.535.104.05"
LIB = "/usr/lib/python3.11"
LOADER = "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"


def stack(text):
    """
    Frames from lines: ``function module`` is native, ``function file:line`` is Python.

    A line of ``-`` has no symbol.
    """
    frames = []
    for line in filter(None, map(str.strip, text.splitlines())):
        function, place = line.split()
        file, colon, number = place.rpartition(":")
        name = function.replace("-", "")
        frames.append(
            Frame("cpython", name, file, int(number))
            if colon
            else Frame("native", name, module=place)
        )
    return tuple(frames)


COND_WAIT = f"""
    __futex_abstimed_wait_common {LIBC}
    pthread_cond_timedwait {LIBC}
"""
LOCK_ACQUIRE = f"""
    __futex_abstimed_wait_common64 {LIBC}
    sem_clockwait {LIBC}
    PyThread_acquire_lock_timed {PYTHON}
    - {PYTHON}
    lock_PyThread_acquire_lock {PYTHON}
"""
# Name, reason of the kernel, reason with the stack, stack.
CASES = [
    (
        "gil, asked for after a call",
        "lock",
        "gil",
        (
            f"{COND_WAIT} take_gil {PYTHON}\n PyEval_RestoreThread {PYTHON}\n read {PYTHON}\n"
            "step /app/train.py:7"
        ),
    ),
    (
        "gil, of an interpreter without symbols",
        "lock",
        "gil",
        f"{COND_WAIT} - {PYTHON}\n PyEval_RestoreThread {PYTHON}\n step /app/train.py:7",
    ),
    (
        "gil, of a thread that C++ made",
        "unknown",
        "gil",
        (
            f"{COND_WAIT} take_gil libpython3.12.so.1.0\n PyGILState_Ensure libpython3.12.so.1.0\n"
            f"call_hook {TORCH}"
        ),
    ),
    (
        "gil, since 3.13",
        "lock",
        "gil",
        f"{COND_WAIT} - {PYTHON}\n _PyThreadState_Attach {PYTHON}\n step /app/train.py:7",
    ),
    (
        "gil, in a queue's get",
        "lock",
        "gil",
        (
            f"{COND_WAIT} take_gil {PYTHON}\n PyEval_RestoreThread {PYTHON}\n"
            f"Queue.get {LIB}/queue.py:180"
        ),
    ),
    ("lock of Python", "unknown", "lock", f"{LOCK_ACQUIRE} Worker.run /app/train.py:40"),
    (
        "lock of Python, and a C library without symbols",
        "unknown",
        "lock",
        f"- {LIBC}\n PyThread_acquire_lock_timed {PYTHON}\n Worker.run /app/train.py:40",
    ),
    (
        "mutex of Python 3.13",
        "unknown",
        "lock",
        (
            f"sem_wait {LIBC}\n _PyParkingLot_Park {PYTHON}\n _PyMutex_LockTimed {PYTHON}\n"
            "Worker.run /app/train.py:40"
        ),
    ),
    (
        "condition of Python",
        "lock",
        "lock",
        f"{LOCK_ACQUIRE} Condition.wait {LIB}/threading.py:320\n Worker.run /app/train.py:40",
    ),
    (
        "queue",
        "lock",
        "queue",
        (
            f"{LOCK_ACQUIRE} Condition.wait {LIB}/threading.py:320\n Queue.get {LIB}/queue.py:180\n"
            "consume /app/train.py:51"
        ),
    ),
    ("queue, by Python's frames alone", "lock", "queue", f"Queue.get {LIB}/queue.py:180"),
    (
        "full queue",
        "lock",
        "queue",
        f"{LOCK_ACQUIRE} Condition.wait {LIB}/threading.py:320\n Queue.put {LIB}/queue.py:140",
    ),
    (
        "queue in C",
        "lock",
        "queue",
        (
            f"{COND_WAIT} PyThread_acquire_lock_timed {PYTHON}\n"
            "_queue_SimpleQueue_get_impl _queue.cpython-311-x86_64-linux-gnu.so\n"
            "consume /app/train.py:51"
        ),
    ),
    (
        "queue between processes",
        "ipc",
        "queue",
        (
            f"poll {LIBC}\n select_poll_poll_impl select.cpython-311-x86_64-linux-gnu.so\n"
            f"_PollLikeSelector.select {LIB}/selectors.py:415\n wait {LIB}/multiprocessing/connection.py:947"
        ),
    ),
    (
        "data loader",
        "ipc",
        "queue",
        (
            f"poll {LIBC}\n - select.cpython-311-x86_64-linux-gnu.so\n"
            f"_PollLikeSelector.select {LIB}/selectors.py:415\n"
            f"_MultiProcessingDataLoaderIter._try_get_data {LOADER}:1133"
        ),
    ),
    (
        "item of another process's queue",
        "lock",
        "queue",
        (
            f"sem_clockwait {LIBC}\n"
            "_multiprocessing_SemLock_acquire_impl _multiprocessing.cpython-311-x86_64-linux-gnu.so\n"
            f"Queue.get {LIB}/multiprocessing/queues.py:103\n _worker_loop /app/loader.py:275"
        ),
    ),
    (
        "pipe of multiprocessing",
        "ipc",
        "queue",
        f"read {LIBC}\n - {PYTHON}\n Connection._recv {LIB}/multiprocessing/connection.py:378",
    ),
    ("mutex", "unknown", "lock", f"___pthread_mutex_lock {LIBC}\n pop {TORCH}"),
    ("mutex, contended", "unknown", "lock", f"__lll_lock_wait {LIBC}\n pop {TORCH}"),
    ("condition", "unknown", "lock", f"{COND_WAIT} pop {TORCH}"),
    (
        "condition of C++",
        "unknown",
        "lock",
        f"{COND_WAIT} std::condition_variable::wait libstdc++.so.6.0.30\n pop {TORCH}",
    ),
    ("mutex in the driver", "lock", "lock", f"pthread_mutex_lock {LIBC}\n - {CUDA}"),
    (
        "driver, blocking",
        "lock",
        "driver",
        f"{COND_WAIT} - {CUDA}\n cuStreamSynchronize {CUDA}\n cudaStreamSynchronize libcudart.so.12",
    ),
    ("driver, polling a file", "ipc", "driver", f"poll {LIBC}\n - {CUDA}"),
    ("driver, napping", "sleep", "driver", f"clock_nanosleep {LIBC}\n - {CUDA}"),
    (
        "callback on the driver's thread",
        "lock",
        "lock",
        f"{COND_WAIT} on_done {TORCH}\n - {CUDA}\n start_thread {LIBC}",
    ),
    (
        "socket",
        "unknown",
        "ipc",
        f"recv {LIBC}\n sock_recv_impl _socket.cpython-311-x86_64-linux-gnu.so\n step /app/train.py:9",
    ),
    ("socket, by Python's frames", "unknown", "ipc", f"SocketIO.readinto {LIB}/socket.py:706"),
    (
        "file",
        "unknown",
        "io",
        f"read {LIBC}\n _Py_read {PYTHON}\n _io_FileIO_readinto_impl {PYTHON}\n load /app/data.py:12",
    ),
    ("sleep", "unknown", "sleep", f"clock_nanosleep {LIBC}\n pysleep {PYTHON}\n f /app/train.py:9"),
    # What the kernel knows better.
    ("page fault in a queue", "page_fault", "page_fault", f"Queue.get {LIB}/queue.py:180"),
    ("disk in the driver", "io", "io", f"read {LIBC}\n - {CUDA}"),
    ("stopped in the GIL", "stopped", "stopped", f"take_gil {PYTHON}"),
    # What only looks like it.
    (
        "queue of a frozen program",
        "lock",
        "queue",
        f"{LOCK_ACQUIRE} Condition.wait threading.py:327\n Queue.get queue.py:171\n train waiter.py:15",
    ),
    (
        "queue of a program in an archive",
        "lock",
        "queue",
        "Queue.get /opt/app/lib/python313.zip/queue.py:180\n train /opt/app/train.py:15",
    ),
    ("a program's own queue.py", "lock", "lock", f"{LOCK_ACQUIRE} Queue.get /app/queue.py:7"),
    (
        "a program's lock, called by a queue",
        "lock",
        "lock",
        (
            f"{LOCK_ACQUIRE} Item.__setstate__ /app/items.py:9\n"
            f"Connection.recv {LIB}/multiprocessing/connection.py:250"
        ),
    ),
    (
        "a library's lock, called by a queue",
        "lock",
        "lock",
        f"{COND_WAIT} rebuild {TORCH}\n Connection.recv {LIB}/multiprocessing/connection.py:250",
    ),
    ("nothing is known", "unknown", "unknown", f"- {TORCH}"),
    ("no stack", "lock", "lock", ""),
]


@pytest.mark.parametrize(
    ("kernel", "reason", "frames"),
    [(kernel, reason, stack(text)) for _, kernel, reason, text in CASES],
    ids=[name for name, *_ in CASES],
)
def test_a_stack_refines_what_the_kernel_says(kernel, reason, frames):
    """Each case is refined to what it is named after, or left as the kernel has it."""
    assert refine_reason(kernel, find_user_rules(frames)) == reason


@pytest.mark.parametrize("row", range(len(USER_RULES)))
def test_every_row_has_a_case(row, monkeypatch):
    """No row of the table is there without a stack that only it explains."""
    patterns = user_reasons._PATTERNS
    monkeypatch.setattr(user_reasons, "_PATTERNS", patterns[:row] + patterns[row + 1 :])

    changed = [
        name
        for name, kernel, reason, text in CASES
        if refine_reason(kernel, find_user_rules(stack(text))) != reason
    ]
    assert changed, USER_RULES[row]


def test_rows_name_reasons_that_are_known():
    """A row gives no reason, and replaces none, that explanations have never heard of."""
    for rule in USER_RULES:
        assert {rule.reason, *rule.instead_of} <= REASONS
        assert rule.reason not in rule.instead_of


FRAMES = st.lists(
    st.builds(
        Frame,
        st.sampled_from(["cpython", "native", "kernel", "cut"]),
        st.text(max_size=5) | st.sampled_from(["take_gil", "get", "pthread_cond_wait", ""]),
        st.text(max_size=5) | st.sampled_from([f"{LIB}/queue.py", f"{LIB}/threading.py"]),
        st.just(1),
        st.text(max_size=5) | st.sampled_from([LIBC, PYTHON, CUDA]),
    ),
    max_size=12,
)


@given(FRAMES, st.sampled_from(sorted(REASONS)))
def test_any_stack_leaves_a_reason_that_is_known(frames, kernel):
    """Whatever the frames are called, the answer is one of the reasons, or the kernel's own."""
    assert refine_reason(kernel, find_user_rules(frames)) in REASONS


def test_a_stack_of_locks_is_looked_through_once():
    """A hostile stack, as deep as they get, names each row at most once."""
    frames = stack(f"pthread_cond_wait {LIBC}\n PyThread_acquire_lock {PYTHON}\n" * 128)

    assert len(find_user_rules(frames)) == 2

"""What threads without a name of their own are for."""

import pytest

from otel_gpu.enrich.identity.identities import CallStack
from otel_gpu.enrich.identity.thread_roles import MAX_THREADS, ThreadRoles, find_role
from otel_gpu.wire.frames import Frame, FrameType


def stack_of(*frames, complete=True):
    return CallStack(1, frames, complete, "eh_frame", "ok", None)


LIB = "/usr/lib/python3.11/"


def python(function, file):
    return Frame(FrameType.PYTHON, function, file, 1, "", 0)


def native(function, module):
    return Frame(FrameType.NATIVE, function, "", 0, module, 0)


THREAD = (
    python("Thread.run", f"{LIB}threading.py"),
    python("Thread._bootstrap_inner", f"{LIB}threading.py"),
    python("Thread._bootstrap", f"{LIB}threading.py"),
)
FORKED = (
    python("BaseProcess.run", f"{LIB}multiprocessing/process.py"),
    python("BaseProcess._bootstrap", f"{LIB}multiprocessing/process.py"),
    python("Popen._launch", f"{LIB}multiprocessing/popen_fork.py"),
    python("main", "/app/train.py"),
    python("<module>", "/app/train.py"),
)


@pytest.mark.parametrize(
    ("frames", "role"),
    [
        (
            (
                python("Condition.wait", f"{LIB}threading.py"),
                python("Queue._feed", f"{LIB}multiprocessing/queues.py"),
                *THREAD,
            ),
            "_feed",
        ),
        (
            (
                python("read", "/app/data.py"),
                python("_worker_loop", "/site-packages/torch/utils/data/_utils/worker.py"),
                *FORKED,
            ),
            "_worker_loop",
        ),
        ((python("Loader.run", "/app/data.py"), *THREAD[1:]), "run"),
        (
            (
                native("read", "libc.so.6"),
                python("step", "/app/train.py"),
                python("main", "/app/train.py"),
                python("<module>", "/app/train.py"),
            ),
            "main",
        ),
        ((python("<module>", "/app/train.py"),), ""),
        (
            (
                python("load", "/site-packages/torch/__init__.py"),
                python("<module>", "/site-packages/torch/__init__.py"),
                python("_find_and_load", "<frozen importlib._bootstrap>"),
                python("<module>", "/app/train.py"),
            ),
            "",
        ),
        (THREAD, ""),
        (
            (python("step", "/app/train.py"), Frame(FrameType.CUT, "", "", 0, "", 0), *THREAD[1:]),
            "",
        ),
        (
            (
                native("futex_wait", "libc.so.6"),
                native("pool::worker", "libfoo.so"),
                native("start_thread", "libc.so.6"),
            ),
            "pool::worker",
        ),
        ((native("futex_wait", "libc.so.6"), Frame(FrameType.CUT, "", "", 0, "", 0)), ""),
        ((), ""),
    ],
)
def test_the_outermost_function_that_says_what_it_is_for(frames, role):
    """Behind what starts threads and processes; of a forked one, behind the last of these."""
    assert find_role(stack_of(*frames)) == role


def test_where_frames_are_missing_the_outermost_one_is_not_known():
    """Of a native stack; Python's frames are all there, or one says that some were left out."""
    frames = (native("futex_wait", "libc.so.6"), native("pool::worker", "libfoo.so"))

    assert find_role(stack_of(*frames, complete=False)) == ""
    assert find_role(stack_of(python("main", "/app/train.py"), complete=False)) == "main"


def test_a_role_is_said_once_and_only_of_threads_without_a_name():
    """A thread that was given a name is known by it, and the first one of a program by its."""
    roles = ThreadRoles()
    stack = stack_of(python("Queue._feed", f"{LIB}multiprocessing/queues.py"), *THREAD)

    assert roles.learn(1, 2, "reader", "python", stack) == ""
    assert roles.learn(1, 1, "loader", "loader", stack) == ""
    assert roles.learn(1, 2, "python", "python", stack_of()) == ""
    assert roles.learn(1, 1, "python3.11", "python3.11", stack) == "_feed"
    assert roles.learn(1, 3, "loader", "loader", stack) == "_feed"
    assert roles.learn(1, 2, "python", "python", stack) == "_feed"
    assert roles.learn(1, 2, "python", "python", stack) == ""
    for tid in range(MAX_THREADS):
        roles.learn(9, tid, "python", "python", stack)
    assert roles.learn(1, 2, "python", "python", stack) == "_feed"

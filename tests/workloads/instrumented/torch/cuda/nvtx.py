"""The functions of ``torch.cuda.nvtx`` (2.x); ``calls`` has what reaches NVTX."""

from contextlib import contextmanager

calls = []


def range_push(msg):
    calls.append(("push", msg))
    return len(calls)


def range_pop():
    calls.append(("pop",))
    return len(calls)


def range_start(msg):
    calls.append(("start", msg))
    return 0


def range_end(range_id):
    calls.append(("end", int(range_id)))


@contextmanager
def range(msg, *args, **kwargs):  # noqa: A001 - its name there
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()

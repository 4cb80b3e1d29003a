"""
nccl_calls.py CUDART NCCL SCENE: what calls of NCCL mean, one scene at a time.

Prints one line of JSON: ``pid``, and what the scene says of the communicators that it made.
"""

import ctypes
import json
import os
import sys
from collections.abc import Callable

FLOAT32, BFLOAT16, SUM = 7, 9, 0
STREAM, OTHER_STREAM, EVENT = (ctypes.c_void_p(at) for at in (0x100, 0x200, 0x300))
Comm = ctypes.c_void_p

cuda = ctypes.CDLL(sys.argv[1])
nccl = ctypes.CDLL(sys.argv[2])


class UniqueId(ctypes.Structure):
    """``ncclUniqueId``, which is passed by value."""

    _fields_ = (("bytes", ctypes.c_uint8 * 128),)


class Config(ctypes.Structure):
    """The first fields of ``ncclConfig_t``."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
    )


NOT_BLOCKING = ctypes.byref(Config(20, 0, 0, 0))
IN_PROGRESS = 7


def do(result: int, expected: int = 0) -> None:
    """Stop where a call does not return what it should."""
    if result != expected:
        raise SystemExit(f"returned {result}, not {expected}")


def say(said: object) -> None:
    """Write a line of JSON."""
    sys.stdout.write(json.dumps({"pid": os.getpid(), "said": said}) + "\n")
    sys.stdout.flush()


def new_id() -> UniqueId:
    """Return an id of ``ncclGetUniqueId``."""
    made = UniqueId()
    do(nccl.ncclGetUniqueId(ctypes.byref(made)))
    return made


def make(ranks: int = 1, rank: int = 0, unique_id: UniqueId | None = None) -> Comm:
    """Return a communicator, which is of one rank unless more are said."""
    comm = Comm()
    do(nccl.ncclCommInitRank(ctypes.byref(comm), ranks, unique_id or new_id(), rank))
    return comm


def together(count: int) -> list[Comm]:
    """Return all ranks of one communicator."""
    comms = (Comm * count)()
    do(nccl.ncclCommInitAll(comms, count, None))
    return [Comm(comm) for comm in comms]


def reduce(comm: Comm, elements: int = 10, stream: Comm = STREAM, datatype: int = FLOAT32) -> None:
    """Queue an ``ncclAllReduce``."""
    size = ctypes.c_size_t(elements)
    do(nccl.ncclAllReduce(None, None, size, datatype, SUM, comm, stream))


def split(comm: Comm, color: int, key: int, config: object = None, expected: int = 0) -> Comm:
    """Return a child, or where it will be."""
    child = Comm()
    do(nccl.ncclCommSplit(comm, color, key, ctypes.byref(child), config), expected)
    return child


def name(comm: Comm) -> str:
    """Return what NCCL calls it."""
    return f"{nccl.stub_comm_hash(comm):016x}"


if hasattr(nccl, "stub_comm_hash"):
    nccl.stub_comm_hash.restype = ctypes.c_uint64
SCENES: dict[str, Callable[[], object]] = {}


def scene(function: Callable[[], object]) -> Callable[[], object]:
    """Have it be one of the scenes."""
    SCENES[function.__name__] = function
    return function


@scene
def address_used_again() -> object:
    """Return three communicators, one after the other, at one address."""
    said = []
    for count, end in ((3, nccl.ncclCommDestroy), (5, nccl.ncclCommAbort), (7, None)):
        comm = make()
        for _ in range(count):
            reduce(comm)
        said.append([comm.value, name(comm), count])
        if end:
            do(end(comm))
    return said


@scene
def signatures() -> object:
    """Each call once, with arguments that tell its slots apart."""
    comm, size = make(), ctypes.c_size_t((5 << 32) + 11)
    ways = {
        "ncclAllReduce": (None, None, size, 7, 1, comm, STREAM),
        "ncclReduce": (None, None, size, 8, 2, 3, comm, STREAM),
        "ncclBroadcast": (None, None, size, 9, 4, comm, STREAM),
        "ncclBcast": (None, size, 6, 5, comm, STREAM),
        "ncclReduceScatter": (None, None, size, 5, 3, comm, STREAM),
        "ncclAllGather": (None, None, size, 4, comm, STREAM),
        "ncclAlltoAll": (None, None, size, 3, comm, STREAM),
        "ncclGather": (None, None, size, 2, 6, comm, STREAM),
        "ncclScatter": (None, None, size, 1, 7, comm, STREAM),
    }
    for function, arguments in ways.items():
        do(getattr(nccl, function)(*arguments))
    config = ctypes.c_void_p()
    for function, arguments in ways.items():
        if function != "ncclBcast":
            do(getattr(nccl, f"{function}Config")(*arguments, config))
    return name(comm)


@scene
def children() -> object:
    """Split alone, in a group, without blocking; one that is in no child; shrunk and grown."""
    parent = make()
    alone = split(parent, 0, 0)
    split(parent, -1, 0)
    do(nccl.ncclGroupStart())
    do(nccl.ncclGroupStart())
    inside = split(parent, 5, 0)
    do(nccl.ncclGroupEnd())
    do(nccl.ncclGroupEnd())
    later = split(parent, 6, 0, NOT_BLOCKING, IN_PROGRESS)
    error = ctypes.c_int()
    do(nccl.ncclCommGetAsyncError(parent, ctypes.byref(error)))
    found = [parent, alone, inside, later, split(inside, 8, 0)]
    for comm in found:
        reduce(comm)
    return [name(comm) for comm in found]


@scene
def many_in_a_group() -> object:
    """Return more children of one group than are remembered until its end."""
    parent = make()
    do(nccl.ncclGroupStart())
    children = [split(parent, color, 0) for color in range(10)]
    do(nccl.ncclGroupEnd())
    for child in children:
        reduce(child)
    return [name(comm) for comm in (parent, *children)]


@scene
def ranks_of_one_process() -> object:
    """All ranks of one communicator, those of a child by their keys, and a smaller one."""
    comms = together(4)
    do(nccl.ncclGroupStart())
    halves = [split(comm, rank // 2, rank % 2) for rank, comm in enumerate(comms)]
    do(nccl.ncclGroupEnd())
    excluded = (ctypes.c_int * 1)(1)
    do(nccl.ncclGroupStart())
    smaller = [Comm() for _ in range(3)]
    for place, rank in enumerate((0, 2, 3)):
        where = ctypes.byref(smaller[place])
        do(nccl.ncclCommShrink(comms[rank], excluded, 1, where, None, 0))
    do(nccl.ncclGroupEnd())
    return [[name(comm) for comm in some] for some in (comms, halves, smaller)]


@scene
def larger() -> object:
    """Return one rank that is joined by another one, and what both are called."""
    first = make()
    unique_id, grown, joined = UniqueId(), Comm(), Comm()
    do(nccl.ncclCommGetUniqueId(first, ctypes.byref(unique_id)))
    do(nccl.ncclCommGrow(first, 2, None, -1, ctypes.byref(grown), None))
    where = ctypes.byref(joined)
    do(nccl.ncclCommGrow(None, 2, ctypes.byref(unique_id), 1, where, None))
    ids = (UniqueId * 2)(new_id(), new_id())
    scalable = Comm()
    do(nccl.ncclCommInitRankScalable(ctypes.byref(scalable), 1, 0, 2, ids, None))
    not_blocking = Comm()
    where = ctypes.byref(not_blocking)
    do(nccl.ncclCommInitRankConfig(where, 1, new_id(), 0, NOT_BLOCKING), IN_PROGRESS)
    return [name(comm) for comm in (first, grown, joined, scalable, not_blocking)]


@scene
def captured() -> object:
    """Two streams in a capture, of which one has joined it, and the same ones after it."""
    comm = make()
    reduce(comm)
    do(cuda.cudaStreamBeginCapture(STREAM, 0))
    reduce(comm)
    do(cuda.cudaEventRecord(EVENT, STREAM))
    do(cuda.cudaStreamWaitEvent(OTHER_STREAM, EVENT, 0))
    for _ in range(3):
        reduce(comm, stream=OTHER_STREAM)
    do(cuda.cudaStreamEndCapture(STREAM, ctypes.byref(ctypes.c_void_p())))
    for stream in (STREAM, OTHER_STREAM, OTHER_STREAM):
        reduce(comm, stream=stream)
    return name(comm)


@scene
def ends() -> object:
    """Each way to learn that collectives are done, on a communicator of its own."""
    driver = ctypes.CDLL("libcuda.so.1")

    def record(stream: Comm = STREAM, event: Comm = EVENT) -> None:
        do(cuda.cudaEventRecord(event, stream))

    def through_another_stream() -> None:
        record()
        do(cuda.cudaStreamWaitEvent(OTHER_STREAM, EVENT, 0))
        do(cuda.cudaStreamSynchronize(OTHER_STREAM))

    def by_driver() -> None:
        do(driver.cuEventRecord(EVENT, STREAM))
        do(driver.cuEventQuery(EVENT))

    # The first one is about all communicators that there are.
    ways: dict[str, Callable[[], object]] = {
        "device_synchronize": lambda: do(cuda.cudaDeviceSynchronize()),
        "event_query": lambda: (record(), do(cuda.cudaEventQuery(EVENT))),
        "event_synchronize": lambda: (record(), do(cuda.cudaEventSynchronize(EVENT))),
        "stream_query": lambda: do(cuda.cudaStreamQuery(STREAM)),
        "stream_synchronize": lambda: do(cuda.cudaStreamSynchronize(STREAM)),
        "another_stream": through_another_stream,
        "driver": by_driver,
    }
    said = {}
    do(cuda.cudaSetDevice(0))
    for number, (way, learn) in enumerate(ways.items()):
        comm = make()
        for _ in range(3):
            reduce(comm)
        learn()
        reduce(comm, stream=Comm(0x1000 + 0x10 * number))
        said[way] = [name(comm), 4, 3]
        do(nccl.ncclCommDestroy(comm))
    # And those that say nothing: not yet, another stream, an event that is gone.
    comm = make()
    reduce(comm)
    record()
    do(cuda.stub_set(b"cudaEventQuery", b"fail=600"), 1)
    do(cuda.cudaEventQuery(EVENT), 600)
    do(cuda.stub_set(b"cudaEventQuery", b"fail=0"), 1)
    do(cuda.cudaStreamSynchronize(Comm(0x900)))
    do(cuda.cudaEventDestroy(EVENT))
    do(cuda.cudaEventQuery(EVENT))
    said["none"] = [name(comm), 1, 0]
    return said


@scene
def errors() -> object:
    """Calls that fail, and an error that comes later."""
    comm, error = make(), ctypes.c_int()
    size = ctypes.c_size_t(10)
    do(nccl.stub_set(b"ncclAllReduce", b"fail=3"), 1)
    for _ in range(3):
        do(nccl.ncclAllReduce(None, None, size, FLOAT32, SUM, comm, STREAM), 3)
    do(nccl.stub_set(b"ncclAllReduce", b"fail=7"), 1)
    do(nccl.ncclAllReduce(None, None, size, FLOAT32, SUM, comm, STREAM), IN_PROGRESS)
    do(nccl.stub_set(b"ncclBroadcast", b"fail=5"), 1)
    do(nccl.ncclBcast(None, size, FLOAT32, 0, comm, STREAM), 5)
    nccl.stub_async_error(comm, 6)
    do(nccl.ncclCommGetAsyncError(comm, ctypes.byref(error)))
    return name(comm)


@scene
def without_device() -> object:
    """What the real library does where there is no device: it makes ids, and nothing else."""
    unique_id, comm = new_id(), Comm()
    result = nccl.ncclCommInitRank(ctypes.byref(comm), 1, unique_id, 0)
    size = ctypes.c_size_t((5 << 32) + 11)
    refused = nccl.ncclReduce(None, None, size, FLOAT32, SUM, 3, None, STREAM)
    return [bytes(unique_id.bytes).hex(), result, refused]


@scene
def made_before() -> object:
    """Use a communicator that is there already: each line of the input is a collective."""
    comm = make()
    reduce(comm)
    say(comm.value)
    for _ in sys.stdin:
        reduce(comm)
        say(comm.value)
    return comm.value


if __name__ == "__main__":
    say(SCENES[sys.argv[3]]())

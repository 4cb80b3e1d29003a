"""Communicators of NCCL: splits a reading of many."""

from collections.abc import Iterator
from typing import NamedTuple

from otel_gpu.wire.communicators import Communicator, Communicators


class CommunicatorRead(NamedTuple):
    """The reading of one communicator in one program."""

    ktime_ns: int
    program_ktime_ns: int
    pid: int
    comm: str
    handle: tuple[int, int]
    communicator: Communicator


def split_communicators(event: Communicators) -> Iterator[CommunicatorRead]:
    """Yield the reading of each communicator; the handle has its generation."""
    for (program_ktime_ns, handle, pid, generation), communicator in event.readings:
        yield CommunicatorRead(
            ktime_ns=event.ktime_ns,
            program_ktime_ns=program_ktime_ns,
            pid=pid,
            comm="",
            handle=(handle, generation),
            communicator=communicator,
        )

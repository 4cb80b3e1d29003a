"""
Captures of other tools, as events.

An importer reads one kind of file and yields what ``decode`` yields of a recording, so
that all rooms after it work as they do for captures of our own. What a tool does not
record stays unknown: an importer says so, and fills nothing in. A tool's own conclusions
are not imported at all.

To add one, write its module with a function ``open_capture`` like the one here without
``kind``, and give it a row in ``KINDS``.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from otel_gpu.config import Config
from otel_gpu.importers.import_counts import ImportCounts
from otel_gpu.wire.events import Event


class ForeignCapture(Protocol):
    """
    A capture of another tool.

    Attributes:
        tally: What was taken and what was not; complete once the events were.
    """

    tally: ImportCounts

    def events(self) -> Iterator[Event]:
        """
        Yield what the capture holds, in order of time; once.

        The first is a ``Capture``, whose ``info["unknown"]`` says what is missing, then
        comes a ``Clock``.

        Raises:
            RecordingError: The file is damaged.
        """


class FileKind(NamedTuple):
    """A kind of file, the module that reads it, and what it wants to be told beside its name."""

    description: str
    module: str
    choices: frozenset[str] = frozenset()


KINDS: Mapping[str, FileKind] = {
    "nccl-flight-recorder": FileKind(
        "dumps of PyTorch's Flight Recorder, one for each rank, or a folder of them",
        "otel_gpu.importers.flight_recorder.capture",
        frozenset({"others"}),
    ),
    "nsys": FileKind(
        "a SQLite export of Nsight Systems (nsys export --type sqlite)",
        "otel_gpu.importers.nsys.capture",
    ),
    "torch-memory": FileKind(
        "a memory snapshot that PyTorch wrote (torch.cuda.memory._dump_snapshot)",
        "otel_gpu.importers.torch_memory.capture",
        frozenset({"device_bytes"}),
    ),
    "torch-trace": FileKind(
        "a trace that torch.profiler wrote, or a folder with those of several ranks",
        "otel_gpu.importers.torch_trace.capture",
    ),
}


def open_capture(
    kind: str, path: Path, config: Config, **choices: int | Sequence[Path]
) -> AbstractContextManager[ForeignCapture]:
    """
    Open a capture to be imported, and close it in the end; the file is not changed.

    ``kind`` is a name in ``KINDS``. Of the ``choices`` of that kind, ``device_bytes`` is how much memory
    a device has, and ``others`` are files that belong to the first.

    Raises:
        RecordingError: The file cannot be read, or is none of that kind.
    """
    module = importlib.import_module(KINDS[kind].module)
    opened: AbstractContextManager[ForeignCapture] = module.open_capture(path, config, **choices)
    return opened

"""
Captures of other tools, as events.

An importer reads one kind of file and yields the same events as ``decode``, so that all other
packages work as they do for our own captures. What a tool does not record stays unknown, and
the importer lists it. A tool's own conclusions are not imported.

To add an importer, write a module with a function ``open_capture`` like the one here without
``kind``, and add a row to ``KINDS``.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Protocol

from otel_gpu.config import Config
from otel_gpu.importers.import_counts import ImportCounts
from otel_gpu.wire.events import Event


class ForeignCapture(Protocol):
    """
    A capture of another tool.

    Attributes:
        counts: What was imported and what was not; complete after the last event.
    """

    counts: ImportCounts

    def events(self) -> Iterator[Event]:
        """
        Yield the events in order of time; can be called once.

        The first is a ``Capture``, whose ``info["unknown"]`` lists what is missing, then a ``Clock``.

        Raises:
            RecordingError: The file is damaged.
        """


class ImportKind(StrEnum):
    """A tool's captures, as ``otel-gpu import`` names them."""

    FLIGHT_RECORDER = "nccl-flight-recorder"
    NSYS = "nsys"
    TORCH_MEMORY = "torch-memory"
    TORCH_TRACE = "torch-trace"


class FileKind(NamedTuple):
    """A kind of file, the module that reads it, and the options that it takes."""

    description: str
    module: str
    choices: frozenset[str] = frozenset()


KINDS: Mapping[ImportKind, FileKind] = {
    ImportKind.FLIGHT_RECORDER: FileKind(
        "dumps of PyTorch's Flight Recorder, one for each rank, or a folder of them",
        "otel_gpu.importers.flight_recorder.capture",
        frozenset({"others"}),
    ),
    ImportKind.NSYS: FileKind(
        "a SQLite export of Nsight Systems (nsys export --type sqlite)",
        "otel_gpu.importers.nsys.capture",
    ),
    ImportKind.TORCH_MEMORY: FileKind(
        "a memory snapshot that PyTorch wrote (torch.cuda.memory._dump_snapshot)",
        "otel_gpu.importers.torch_memory.capture",
        frozenset({"device_bytes"}),
    ),
    ImportKind.TORCH_TRACE: FileKind(
        "a trace that torch.profiler wrote, or a folder with those of several ranks",
        "otel_gpu.importers.torch_trace.capture",
    ),
}


def open_capture(
    kind: ImportKind, path: Path, config: Config, **choices: int | Sequence[Path]
) -> AbstractContextManager[ForeignCapture]:
    """
    Open a capture; the file is not changed.

    ``choices``: ``device_bytes`` is the memory of a device, ``others`` are further files of the
    same capture.

    Raises:
        RecordingError: The file cannot be read, or is of another kind.
    """
    module = importlib.import_module(KINDS[kind].module)
    opened: AbstractContextManager[ForeignCapture] = module.open_capture(path, config, **choices)
    return opened

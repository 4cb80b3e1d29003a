"""
OTLP as text: one request as JSON on each line of a file.

This is the format of OpenTelemetry's file exporter. OTLP/JSON differs from protobuf's own JSON in
two places: ids are in hexadecimal instead of base64, and enumerations are numbers.
"""

import base64
import errno
import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from google.protobuf.message import Message

from otel_gpu.errors import ConfigError
from otel_gpu.export.otlp.queue import QueuedItem
from otel_gpu.export.otlp.sender import Delivery, SendOutcome
from otel_gpu.export.otlp.signals import SPANS, Signal
from otel_gpu.files import safe_files

_ID_KEYS = frozenset({"traceId", "spanId", "parentSpanId", "profileId"})


class OtlpFile:
    """
    Writes OTLP/JSON lines to a new file, or standard output (``-``); safe between threads.

    An existing file of the same user is replaced; anything else at the path is refused.
    """

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._owned = path != "-"
        self._file: BinaryIO
        if not self._owned:
            self._file = sys.stdout.buffer
            return
        try:
            # Only the user can read it: it shows what processes did.
            is_kept = path != os.devnull
            place = safe_files.replace_own(Path(path)) if is_kept else os.open(path, os.O_WRONLY)
            self._file = os.fdopen(place, "wb")
        except OSError as error:
            hint = "choose another export.otlp_file; - is standard output"
            raise ConfigError(f"{path}: {error.strerror}", hint=hint) from error

    def close(self) -> None:
        """Close the file; standard output stays open."""
        with self._lock:
            if self._owned:
                self._file.close()

    def write(self, request: Message) -> None:
        """Write a request as one line and flush it."""
        line = otlp_json(request).encode() + b"\n"
        with self._lock:
            if self._file.closed:
                raise OSError(errno.EBADF, "the file is closed")
            self._file.write(line)
            self._file.flush()


class FileTransport:
    """Delivers batches of one signal into an ``OtlpFile``."""

    place = "the OTLP file"

    def __init__(self, file: OtlpFile, signal: Signal = SPANS) -> None:
        self._file = file
        self._signal = signal

    def deliver(self, batch: Sequence[QueuedItem]) -> Delivery:
        """Write a batch as one line; OSError: the disk is full, or the reader is gone."""
        self._file.write(self._signal.request.FromString(self._signal.join(batch)))
        return Delivery(SendOutcome.DELIVERED)

    def close(self) -> None:
        """Do nothing: the file's owner closes it."""


def otlp_json(request: Message) -> str:
    """Return a request as one line of OTLP/JSON."""
    # Most captures write no file, so the import is here.
    from google.protobuf.json_format import MessageToDict  # noqa: PLC0415

    document = MessageToDict(request, use_integers_for_enums=True)
    return json.dumps(_with_hex_ids(document), separators=(",", ":"), ensure_ascii=False)


def _with_hex_ids(value: object) -> object:
    # Attributes are never mistaken for ids: their keys are values of "key".
    if isinstance(value, dict):
        return {
            key: base64.b64decode(item).hex() if key in _ID_KEYS else _with_hex_ids(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_with_hex_ids(item) for item in value]
    return value

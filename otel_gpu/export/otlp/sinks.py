"""The sinks of a signal: one sender for each exporter, so that none slows another."""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult

from otel_gpu.errors import ConfigError
from otel_gpu.export.otlp.environment import exporter_names, standing_in
from otel_gpu.export.otlp.exporters import otlp_transport
from otel_gpu.export.otlp.file import FileTransport, OtlpFile
from otel_gpu.export.otlp.queue import QueuedItem, SpanQueue
from otel_gpu.export.otlp.sender import BackgroundSender, Delivery, Sender, SendOutcome
from otel_gpu.export.otlp.signals import SPANS, Signal
from otel_gpu.export.otlp.span_encoder import header_size
from otel_gpu.export.spans.finished import FinishedSpan, readable
from otel_gpu.faults import Faults
from otel_gpu.options import ExportConfig

_logger = logging.getLogger(__name__)

_ENTRY_POINTS = "opentelemetry_traces_exporter"
# A QueuedItem, its place in the queue and its turn, and the header of its bytes object.
_WAITING_SPAN_BYTES = 144
# Memory of a span that is not kept as bytes, roughly.
_READABLE_SPAN_BYTES = 1024

_new_tuple = tuple.__new__


class ReadableTransport:
    """Delivers to an exporter that takes the SDK's spans."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self.place = f"the exporter {type(exporter).__name__}"

    def deliver(self, batch: Sequence[QueuedItem]) -> Delivery:
        """Export a batch, without retries, as the SDK's processors do."""
        try:
            result = self._exporter.export([readable(pending.content) for pending in batch])
        except Exception:
            # Third-party code: it must not end our thread.
            _logger.exception("a span exporter failed")
            return Delivery(SendOutcome.REJECTED)
        is_delivered = result is SpanExportResult.SUCCESS
        return Delivery(SendOutcome.DELIVERED if is_delivered else SendOutcome.REJECTED)

    def close(self) -> None:
        """Shut the exporter down."""
        self._exporter.shutdown()


def open_senders(
    signal: Signal,
    config: ExportConfig,
    environ: Mapping[str, str],
    file: OtlpFile | None,
    *,
    live: bool,
    faults: Faults | None = None,
) -> list[Sender[object]]:
    """Open a sender for each exporter of a signal and for the file; ConfigError: a bad setting."""
    # All transports are opened before the first thread starts, so that a bad one leaves no thread
    # behind.
    choices = () if signal is SPANS else ("otlp", "none")
    transports = [
        otlp_transport(environ, signal)
        if name == "otlp"
        else ReadableTransport(_exporter(name, environ))
        for name in exporter_names(environ, signal.name, choices)
    ]
    if file is not None:
        transports.append(FileTransport(file, signal))
    senders: list[Sender[Any]] = []
    for transport in transports:
        queue = SpanQueue(
            limit_bytes=config.queue_bytes,
            batch_bytes=config.batch_bytes,
            batch_spans=signal.most_items,
            header_size=header_size,
            overhead_bytes=_WAITING_SPAN_BYTES,
        )
        encode = _as_it_is if isinstance(transport, ReadableTransport) else _encoding(signal)
        interval_s = config.flush_interval_s
        senders.append(
            BackgroundSender(transport, queue, encode, flush_interval_s=interval_s, faults=faults)
            if live
            else Sender(transport, queue, encode)
        )
    return senders


def _as_it_is(span: FinishedSpan) -> QueuedItem:
    return QueuedItem(span.origin, _READABLE_SPAN_BYTES, span)


def _encoding(signal: Signal) -> Callable[[object], QueuedItem]:
    encode = signal.open_encoder()

    def prepare(item: Any) -> QueuedItem:  # noqa: ANN401 -- an item of the signal, with its origin
        data = encode(item)
        # As QueuedItem(…), which takes three times as long.
        return _new_tuple(QueuedItem, (item.origin, len(data), data))

    return prepare


def _exporter(name: str, environ: Mapping[str, str]) -> SpanExporter:
    if name == "console":
        # Standard output belongs to the command that is run.
        return ConsoleSpanExporter(out=sys.stderr)
    found = list(entry_points(group=_ENTRY_POINTS, name=name))
    if not found:
        known = sorted({"otlp", "console", "none", *entry_points(group=_ENTRY_POINTS).names})
        hint = f"known: {', '.join(known)}"
        raise ConfigError(f"OTEL_TRACES_EXPORTER: {name!r} is not installed", hint=hint)
    with standing_in(environ):
        exporter: SpanExporter = found[0].load()()
    return exporter

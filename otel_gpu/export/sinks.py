"""
Where finished spans go: OTLP, a file, or an exporter that somebody else wrote.

``OTEL_TRACES_EXPORTER`` names the exporters; each gets a queue and a sender of its
own, so that one that is down takes nothing from the others.
"""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from opentelemetry.sdk.environment_variables import OTEL_SDK_DISABLED
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult

from otel_gpu.errors import ConfigError
from otel_gpu.export.encoder import RequestEncoder, SpanEncoder
from otel_gpu.export.environment import exporter_names, is_true, standing_in
from otel_gpu.export.file import FileTransport, OtlpFile
from otel_gpu.export.finished import FinishedSpan, Origin, readable
from otel_gpu.export.logs import LogEncoder, SpanLog
from otel_gpu.export.otlp import otlp_transport
from otel_gpu.export.queue import Counts, Pending, SpanQueue
from otel_gpu.export.sender import (
    BackgroundSender,
    Delivery,
    DirectSender,
    Outcome,
    Sender,
    Transport,
)
from otel_gpu.faults import Faults
from otel_gpu.options import ExportConfig

_logger = logging.getLogger(__name__)

_ENTRY_POINTS = "opentelemetry_traces_exporter"
# Spans of one request. Some receivers handle a request as one unit of work.
_BATCH_SPANS = 8192
# A Pending, its place in the queue, and the header of its bytes object.
_WAITING_SPAN_BYTES = 136
# Memory that a span takes up which is not kept as bytes, roughly.
_READABLE_SPAN_BYTES = 1024

_Item = TypeVar("_Item")
_new_tuple = tuple.__new__
_OpenSender = Callable[[Transport, SpanQueue], Sender]


class Sink(Generic[_Item]):
    """One exporter with its queue; takes spans, or log records, one at a time."""

    def __init__(self, sender: Sender, prepare: Callable[[_Item], Pending]) -> None:
        self._sender = sender
        self._prepare = prepare

    def add(self, item: _Item) -> None:
        """Accept a span or a log record."""
        self._sender.put(self._prepare(item))

    def flush(self, timeout_s: float) -> bool:
        """Deliver what was added; False when not all of it was, or not in time."""
        return self._sender.flush(timeout_s)

    def shutdown(self, timeout_s: float) -> bool:
        """Deliver what is left within the timeout, and end; False if not all of it was."""
        return self._sender.shutdown(timeout_s)

    def counts(self) -> Counts:
        """Say where the spans went."""
        return self._sender.counts()


SpanSink = Sink[FinishedSpan]
LogSink = Sink[SpanLog]


class ReadableTransport:
    """Delivers to an exporter that takes the SDK's spans."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    @property
    def place(self) -> str:
        """Where spans go, in an operator's words."""
        return f"the exporter {type(self._exporter).__name__}"

    def deliver(self, batch: Sequence[Pending]) -> Delivery:
        """Export a batch; the exporter's word is final, as with the SDK's processors."""
        spans = [
            readable(pending.content)
            for pending in batch
            if isinstance(pending.content, FinishedSpan)
        ]
        try:
            result = self._exporter.export(spans)
        except Exception:
            # Not our code: it must not end the thread that feeds it.
            _logger.exception("a span exporter failed")
            return Delivery(Outcome.REJECTED)
        if result is SpanExportResult.SUCCESS:
            return Delivery(Outcome.DELIVERED)
        return Delivery(Outcome.REJECTED)

    def close(self) -> None:
        """Shut the exporter down."""
        self._exporter.shutdown()


def open_sinks(
    config: ExportConfig,
    environ: Mapping[str, str],
    file: OtlpFile | None,
    *,
    live: bool,
    faults: Faults | None = None,
) -> list[SpanSink]:
    """
    Open the exporters that the environment names, and the file.

    Args:
        config: Sizes and intervals.
        environ: The agent's environment.
        file: Gets every span too.
        live: False in a replay: batches are sent by the caller's thread.
        faults: Counts errors that are none of an endpoint's.

    Raises:
        ConfigError: An exporter is not known or refuses its settings.
    """
    # All are opened before any gets a thread, so that a wrong one leaves none behind.
    wires: list[Transport] = []
    others: list[Transport] = []
    for name in exporter_names(environ, "TRACES"):
        if name == "otlp":
            wires.append(otlp_transport(environ))
        else:
            others.append(ReadableTransport(_exporter(name, environ)))
    if file is not None and not is_true(environ, OTEL_SDK_DISABLED):
        wires.append(FileTransport(file))
    open_sender = _sender_of(config, live=live, faults=faults)
    return [
        *(_wire_sink(transport, config, open_sender) for transport in wires),
        *(_readable_sink(transport, config, open_sender) for transport in others),
    ]


def open_log_sinks(
    config: ExportConfig,
    environ: Mapping[str, str],
    file: OtlpFile | None,
    *,
    live: bool,
    faults: Faults | None = None,
) -> list[LogSink]:
    """
    Open the endpoint for log records, if the environment names one, and the file.

    The arguments are those of ``open_sinks``.

    Raises:
        ConfigError: Another exporter than OTLP is named, or it refuses its settings.
    """
    transports: list[Transport] = []
    for name in exporter_names(environ, "LOGS"):
        if name != "otlp":
            raise ConfigError(
                f"OTEL_LOGS_EXPORTER: {name!r} is not supported", hint="known: otlp, none"
            )
        transports.append(otlp_transport(environ, "LOGS"))
    if file is not None and not is_true(environ, OTEL_SDK_DISABLED):
        transports.append(FileTransport(file, is_logs=True))
    open_sender = _sender_of(config, live=live, faults=faults)
    return [_log_sink(transport, config, open_sender) for transport in transports]


def _log_sink(transport: Transport, config: ExportConfig, open_sender: _OpenSender) -> LogSink:
    logs = LogEncoder()

    def encode(item: SpanLog) -> Pending:
        data = logs.encode(item)
        return Pending(item.span.origin, len(data), data)

    queue = _queue(config, RequestEncoder().header_size)
    return LogSink(open_sender(transport, queue), encode)


def _readable_sink(
    transport: Transport, config: ExportConfig, open_sender: _OpenSender
) -> SpanSink:
    queue = _queue(config, lambda _: 0)
    return SpanSink(open_sender(transport, queue), _as_it_is)


def _wire_sink(transport: Transport, config: ExportConfig, open_sender: _OpenSender) -> SpanSink:
    spans = SpanEncoder()

    def encode(span: FinishedSpan) -> Pending:
        data = spans.encode(span)
        # As Pending(…), which takes three times as long.
        return _new_tuple(Pending, (span.origin, len(data), data))

    queue = _queue(config, RequestEncoder().header_size)
    return SpanSink(open_sender(transport, queue), encode)


def _queue(config: ExportConfig, header_size: Callable[[Origin], int]) -> SpanQueue:
    return SpanQueue(
        limit_bytes=config.queue_bytes,
        batch_bytes=config.batch_bytes,
        batch_spans=_BATCH_SPANS,
        header_size=header_size,
        overhead_bytes=_WAITING_SPAN_BYTES,
    )


def _sender_of(config: ExportConfig, *, live: bool, faults: Faults | None) -> _OpenSender:
    if live:
        return lambda transport, queue: BackgroundSender(
            transport, queue, flush_interval_s=config.flush_interval_s, faults=faults
        )
    return DirectSender


def _as_it_is(span: FinishedSpan) -> Pending:
    return Pending(span.origin, _READABLE_SPAN_BYTES, span)


def _exporter(name: str, environ: Mapping[str, str]) -> SpanExporter:
    if name == "console":
        # Standard output belongs to the command that is run.
        return ConsoleSpanExporter(out=sys.stderr)
    found = list(entry_points(group=_ENTRY_POINTS, name=name))
    if not found:
        known = sorted({"otlp", "console", "none", *entry_points(group=_ENTRY_POINTS).names})
        raise ConfigError(
            f"OTEL_TRACES_EXPORTER: {name!r} is not installed", hint=f"known: {', '.join(known)}"
        )
    with standing_in(environ):
        exporter: SpanExporter = found[0].load()()
    return exporter

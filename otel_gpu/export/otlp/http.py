"""One signal over OTLP/HTTP: the standard exporters' client, given our bytes."""

import contextlib
import io
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from requests import ConnectionError as AnswerError
from urllib3.exceptions import HTTPError

from otel_gpu.export.otlp.queue import QueuedItem
from otel_gpu.export.otlp.sender import Delivery, SendOutcome
from otel_gpu.export.otlp.signals import LOGS, Signal

MAX_ANSWER_BYTES: Final = 1 << 20
"""Of a receiver's answer; a longer one is discarded."""

# By the specification; None: there was no answer.
_RETRYABLE = (None, 429, 502, 503, 504)


class HttpTransport:
    """Sends batches of one signal over OTLP/HTTP."""

    def __init__(self, signal: Signal) -> None:
        self._exporter = _exporter(signal)
        bound_answers(self._exporter)
        self._client = self._exporter._client  # noqa: SLF001
        self._signal = signal
        self._rejected = 0
        # The only place that sees the receiver's answers.
        self._request = self._client._transport.request  # noqa: SLF001
        self._client._transport.request = self._listen  # noqa: SLF001
        self.place = f"the {signal.items} endpoint {self._exporter._endpoint}"  # noqa: SLF001

    def deliver(self, batch: Sequence[QueuedItem]) -> Delivery:
        """Send a batch, with the standard exporter's retries."""
        self._rejected = 0
        exporter = self._exporter
        if exporter._shutdown:  # noqa: SLF001
            return Delivery(SendOutcome.UNAVAILABLE)
        data = self._signal.join(batch)
        with exporter._metrics.export_operation(len(batch)) as operation:  # noqa: SLF001
            result = self._client.export(data)
            if not result.success:
                operation.error = result.error
        status = result.status_code
        # A redirect delivers nothing, and the standard exporter does not follow it.
        if result.error is None and status is not None and status < HTTPStatus.MULTIPLE_CHOICES:
            return Delivery(SendOutcome.DELIVERED, self._rejected)
        if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return Delivery(SendOutcome.TOO_LARGE)
        return Delivery(SendOutcome.UNAVAILABLE if status in _RETRYABLE else SendOutcome.REJECTED)

    def close(self) -> None:
        """Close the connections."""
        self._exporter.shutdown()

    def _listen(self, *args: object, **kwargs: object) -> object:
        result = self._request(*args, **kwargs)
        if result.status_code == HTTPStatus.OK:
            # A body that does not parse may be a proxy's page, or JSON.
            with contextlib.suppress(DecodeError):
                response = self._signal.response.FromString(result.content())
                self._rejected = self._signal.count_rejected(response)
        return result


def bound_answers(exporter: Any) -> None:  # noqa: ANN401 -- any of the standard ones
    """
    Bound the size of the answers that a standard exporter reads: it would read an endless one
    whole.
    """
    exporter._client._transport._session.hooks["response"].append(_cut_answer)  # noqa: SLF001


def _cut_answer(response: Any, **_: object) -> None:  # noqa: ANN401 -- of requests, which has no types
    content = bytearray()
    try:
        while len(content) <= MAX_ANSWER_BYTES and (
            chunk := response.raw.read(MAX_ANSWER_BYTES, decode_content=True)
        ):
            content += chunk
    except HTTPError as error:
        # As requests itself raises it.
        raise AnswerError(error) from error
    if len(content) > MAX_ANSWER_BYTES:
        content.clear()
        response.raw.close()
    response.raw = io.BytesIO(content)


def _exporter(signal: Signal) -> Any:  # noqa: ANN401 -- either
    return OTLPLogExporter() if signal is LOGS else OTLPSpanExporter()

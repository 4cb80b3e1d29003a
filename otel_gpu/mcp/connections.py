"""
Connections of HTTP clients, with a deadline for each request.

uvicorn waits without a limit for the head of a request. object client, without the token, could occupy
all connections. So each connection has a deadline, and the number of connections that have not yet
sent a complete head is limited: beyond it, the oldest one is aborted. A client that has the token
sends it at once, and is not affected.
"""

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from otel_gpu.limits.recent import Fifo

PATIENCE_S = 5.0
"""From the begin of a connection, or from the last answer, to the complete head of a request."""


MAX_UNAUTHENTICATED = 256
"""Concurrent connections without a complete head."""


class Connection(H11Protocol):
    """One connection; it is aborted if no request comes in time."""

    _unauthenticated: ClassVar[Fifo["Connection", None]] = Fifo(
        MAX_UNAUTHENTICATED, evict=lambda connection, _: connection.transport.abort()
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 -- uvicorn's own
        super().__init__(*args, **kwargs)
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """Start the deadline."""
        super().connection_made(transport)
        self._unauthenticated[self] = None
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Process data; a partial head does not extend the deadline."""
        super().data_received(data)
        if self.cycle is not None:
            # The head is complete: the request is refused now, or has the token.
            self._unauthenticated.pop(self, None)
        self._watch()

    def on_response_complete(self) -> None:
        """Start the deadline of the next request."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the deadline."""
        self._unauthenticated.pop(self, None)
        super().connection_lost(exc)
        self._stop()

    def _watch(self) -> None:
        request: RequestResponseCycle | None = self.cycle
        is_answering = request is not None and not request.response_complete
        if is_answering or self.transport.is_closing():
            self._stop()
        elif self._timer is None:
            # Not closed: that would wait until the client has read its answer.
            self._timer = self.loop.call_later(PATIENCE_S, self.transport.abort)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

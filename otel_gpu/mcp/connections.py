"""
Connections of HTTP clients, each of which has to ask for something in time.

uvicorn waits for ever for the head of a request. Whoever can open a socket could keep all
connections that there are, and knows no token. So a connection has a limit in time, and those that have
not shown a token yet have one in number: of too many, the one that waits longest is cut. Who knows the
token sends it at once, and waits for nobody.
"""

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

PATIENCE_S = 5.0
"""From the begin of a connection, or from the last answer, to the whole head of a request."""


MAX_STRANGERS = 256
"""Connections at one time of which no whole head has come yet."""


class Connection(H11Protocol):
    """One connection; it is cut where no request comes."""

    _strangers: ClassVar[dict["Connection", None]] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 -- uvicorn's own
        super().__init__(*args, **kwargs)
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """Begin to wait."""
        super().connection_made(transport)
        self._strangers[self] = None
        if len(self._strangers) > MAX_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take what came; a part of a head gains no time."""
        super().data_received(data)
        if self.cycle is not None:
            # The head is there: the request is refused now, or it is by who knows the token.
            self._strangers.pop(self, None)
        self._watch()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._strangers.pop(self, None)
        super().connection_lost(exc)
        self._stop()

    def _watch(self) -> None:
        request: RequestResponseCycle | None = self.cycle
        is_answering = request is not None and not request.response_complete
        if is_answering or self.transport.is_closing():
            self._stop()
        elif self._timer is None:
            # Not closed: that would wait for a client to read what it was answered.
            self._timer = self.loop.call_later(PATIENCE_S, self.transport.abort)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

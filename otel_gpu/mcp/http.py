"""
Streamable HTTP: the same server for clients that cannot start it.

No client is trusted by its connection alone. A request needs the token before its body is read. It
needs a Host header that names this server, so that no web page reaches it by a DNS name that points
here. An Origin other than this server is refused, and no CORS header allows a foreign page to read
an answer. Refused and idle clients keep no connection. The number of concurrent requests is limited
after the token check, so that no client without the token takes up that number.
"""

import ipaddress
import socket
from typing import NamedTuple
from urllib.parse import urlsplit

import uvicorn
from mcp.server.lowlevel.server import Server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from otel_gpu.errors import OtelGpuError
from otel_gpu.mcp.connections import Connection
from otel_gpu.mcp.tokens import is_authorized

PATH = "/mcp"
MAX_BODY_BYTES = 256 * 1024

_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
_BACKLOG = 64
_MAX_REQUESTS = 64
_GRACE_S = 5
# A refused client keeps no connection.
_CLOSE = {"Connection": "close"}


class HttpError(OtelGpuError):
    """Listening on the address failed."""


class Address(NamedTuple):
    """Address of the listener; ``port`` 0: any free one."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this host can reach it."""
        return self.host == "localhost" or self._is("is_loopback")

    @property
    def is_any(self) -> bool:
        """Whether it stands for all addresses of this host."""
        return self._is("is_unspecified")

    @property
    def in_url(self) -> str:
        """The host in URL syntax."""
        return f"[{self.host}]" if ":" in self.host else self.host

    def _is(self, kind: str) -> bool:
        try:
            return bool(getattr(ipaddress.ip_address(self.host), kind))
        except ValueError:
            return False


def parse_address(text: str, default: Address) -> Address:
    """
    Parse ``HOST:PORT``, ``HOST``, ``:PORT``, ``PORT`` or ``[IPv6]:PORT``; HttpError: none of these.
    """
    try:
        parts = urlsplit(f"//:{text}" if text.isdigit() else f"//{text}")
        port = parts.port
    except ValueError as error:
        raise HttpError(f"{text!r} is not an address", hint="write HOST:PORT") from error
    return Address(parts.hostname or default.host, default.port if port is None else port)


def listen(address: Address) -> socket.socket:
    """Return a listening socket; ``HttpError``: the address is in use or not of this host."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        raise HttpError(
            f"{address.in_url}:{address.port}: cannot listen: {error.strerror or error}",
            hint="choose another port, or 0 for any",
        ) from error


def make_app(server: Server[object], address: Address, token: str) -> ASGIApp:
    """Return the application; every request to it needs the token."""
    names = {address.in_url, *(_LOOPBACK_NAMES if address.is_loopback else ())}
    hosts = [f"{name}:{address.port}" for name in sorted(names)]
    origins = [f"http://{host}" for host in hosts]
    # For the wildcard address every Host is allowed. No foreign page can use that: it lacks the
    # token, and its Origin is refused.
    is_any = address.is_any
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        stateless_http=True,
        max_request_body_size=MAX_BODY_BYTES,
        transport_security=TransportSecuritySettings(
            enable_dns_rebinding_protection=not is_any, allowed_hosts=hosts, allowed_origins=origins
        ),
    )
    return _TokenCheck(app, token, origins)


class _TokenCheck:
    # Lets requests with the token through, and none from pages of other origins.

    def __init__(self, app: ASGIApp, token: str, origins: list[str]) -> None:
        self._app = app
        self._token = token
        self._origins = frozenset(origins)
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refuse(Headers(scope=scope)) if scope["type"] == "http" else None
        if refusal or scope["type"] == "lifespan":
            await (refusal or self._app)(scope, receive, send)
        # Other scopes, such as websockets, get no answer.
        elif scope["type"] == "http":
            self._requests += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._requests -= 1

    def _refuse(self, headers: Headers) -> PlainTextResponse | None:
        if not self._origins.issuperset(headers.getlist("origin")):
            return PlainTextResponse("foreign Origin", 403, _CLOSE)
        if not is_authorized(headers.get("authorization", ""), self._token):
            challenge = {"WWW-Authenticate": 'Bearer realm="otel-gpu"'}
            return PlainTextResponse("a token is required", 401, _CLOSE | challenge)
        if self._requests >= _MAX_REQUESTS:
            return PlainTextResponse("too many requests at one time", 503, _CLOSE)
        return None


def serve_http(app: ASGIApp, listener: socket.socket) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    config = uvicorn.Config(
        app,
        # Fixed: uvicorn's alternative has no limit for the size of a head.
        http=Connection,
        # Otherwise unauthenticated clients could fill the operator's log.
        log_level="error",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=_GRACE_S,
    )
    uvicorn.Server(config).run(sockets=[listener])

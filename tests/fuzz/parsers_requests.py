"""What users, clients and receivers send: configuration, SQL, MCP, and answers to exports."""

import asyncio
import functools
import json
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)
from uvicorn.server import ServerState

from otel_gpu import config
from otel_gpu.errors import ConfigError, OtelGpuError, StoreError
from otel_gpu.export.otlp.signals import LOGS, SPANS
from otel_gpu.mcp.captures import ServedCapture
from otel_gpu.mcp.connections import Connection
from otel_gpu.mcp.http import Address, HttpError, make_app, parse_address
from otel_gpu.mcp.server import answer, make_server
from otel_gpu.options import OPTIONS
from otel_gpu.recorder.queries import QueryLimits, ask
from tests.fuzz.target import Target
from tests.unit.mcp import served

_TOKEN = "0123456789abcdef" * 2
_DEFAULT = Address("127.0.0.1", 8977)
_LIMITS = QueryLimits(time_s=1.0, rows=100, bytes=1 << 20)
_BOMB_BYTES = 512 << 20
"""What a statement can take: SQLite's own limit for it, and Python's copy of an answer."""


def parse_config(data: bytes, folder: Path) -> None:
    """A configuration file, and the same values as variables."""
    path = folder / "a.yaml"
    path.write_bytes(data)
    try:
        config.load(path, {}, {})
    finally:
        lines = (line.partition(": ") for line in data.decode("utf-8", "replace").splitlines())
        by_name = {option.name: option.variable for option in OPTIONS.values()}
        variables = {
            by_name[name.strip()]: value for name, _, value in lines if name.strip() in by_name
        }
        with suppress(ConfigError):
            config.load(None, variables, {})


def _config_seeds() -> Iterator[bytes]:
    sections: dict[str, list[str]] = {}
    for option in OPTIONS.values():
        value = json.dumps(option.default if not isinstance(option.default, tuple) else [1, 2])
        sections.setdefault(option.section, []).append(f"  {option.name}: {value}\n")
    for name, lines in sections.items():
        yield f"{name}:\n{''.join(lines)}".encode()
    yield b"spans: &a {mode: all, x: [*a, 1e999, .nan]}\n"


@functools.cache
def _store() -> Path:
    # The process ends with os._exit: a folder of the system's that nobody removes would stay.
    folder = Path(tempfile.mkdtemp(prefix="fuzz-store-"))
    return served.store_of(served.TRAINING, folder / "store.db")


def parse_sql(data: bytes, _folder: Path) -> None:
    """A question in SQL; the store is as it was."""
    path = _store()
    before = path.read_bytes()
    try:
        found = ask(path, data.decode("utf-8", "replace"), _LIMITS)
        assert len(found.rows) <= _LIMITS.rows
    finally:
        assert path.read_bytes() == before


def _sql_seeds() -> Iterator[bytes]:
    yield b"SELECT api, count(*), sum(duration_ns) FROM calls GROUP BY api ORDER BY 2 DESC LIMIT 5"
    yield b"WITH t AS (SELECT * FROM v_calls) SELECT a.*, b.* FROM t a JOIN t b USING (pid) WHERE a.tid > 5"
    yield b"SELECT name, sql FROM sqlite_master WHERE name LIKE 'v_%' AND length(sql) BETWEEN 5 AND 9999"
    yield b"SELECT json_extract('{\"a\": [1]}', '$.a[0]'), hex('a'), substr('abc', -1, 9), 1e308 * 10"
    yield b"SELECT group_concat(api, ','), instr(api, 'a'), replace(api, 'a', 'b'), CAST(api AS BLOB) FROM calls"
    yield from (text.encode() for text in (*served.ESCAPES, *served.BOMBS))


@functools.cache
def _captures() -> tuple[ServedCapture, ServedCapture]:
    return served.capture_of(served.TRAINING), served.capture_of(None, _store())


def parse_mcp_arguments(data: bytes, _folder: Path) -> None:
    """A tool and its arguments, as JSON; no answer may be that something failed."""
    try:
        asked = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(asked, dict) or not isinstance(asked.get("arguments"), dict):
        return
    for capture in _captures():
        text, _ = answer(capture, str(asked.get("name")), asked["arguments"])
        assert "this answer failed" not in text, text
        json.loads(text)


def _mcp_seeds() -> Iterator[bytes]:
    given: dict[str, dict[str, Any]] = {
        "get_check": {},
        "get_processes": {"pids": [4242], "from": "-30s", "to": "+5s"},
        "get_trace_stats": {"limit": 5},
        "get_time_budget": {},
        "get_causal_chains": {"severity": "HIGH", "limit": 3},
        "get_timeline": {"from": "2026-01-01T00:00:00Z"},
        "get_collectives": {},
        "get_memory_balance": {},
        "get_device_memory": {},
        "get_device_time": {},
        "get_comparison": {},
        "get_stacks": {"by": "wall"},
        "run_sql": {"sql": "SELECT 1"},
    }
    for name, arguments in given.items():
        yield json.dumps({"name": name, "arguments": arguments}).encode()


def parse_mcp_request(data: bytes, _folder: Path) -> None:
    """A request over HTTP, by whoever has the token; and one by who has none."""
    answers = [
        asyncio.run(_exchange(_head(token, len(data)) + data, patience_s=20.0))
        for token in ("wrong", _TOKEN)
    ]
    assert answers[0].startswith(b"HTTP/1.1 401 ")
    status = int(answers[1].split()[1])
    assert status in {200, 202, 400, 404, 405, 406, 413, 415}, answers[1]


def parse_mcp_bytes(data: bytes, _folder: Path) -> None:
    """Whatever a connection brings, whole and in two parts."""
    for parts in ([data], [data[: len(data) // 2], data[len(data) // 2 :]]):
        answer = asyncio.run(_exchange(*parts, patience_s=0.2))
        assert not answer or answer.startswith(b"HTTP/1.1 "), answer
        assert b" 500 " not in answer[:20], answer


def _head(token: str, length: int) -> bytes:
    return (
        f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:8977\r\nAuthorization: Bearer {token}\r\n"
        "Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\nConnection: close\r\n\r\n"
    ).encode()


class _Transport(asyncio.Transport):
    """The other end of a connection."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 8977)})
        self.written = bytearray()
        self.closed = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed.set()

    abort = close

    def is_closing(self) -> bool:
        return self.closed.is_set()

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


@functools.cache
def _server() -> Any:
    return make_server(_captures()[0])


async def _exchange(*parts: bytes, patience_s: float) -> bytes:
    """Return what the server answers to the bytes of a connection; what is missing is waited for so long."""
    settings = uvicorn.Config(
        make_app(_server(), _DEFAULT, _TOKEN),
        http=Connection,
        log_config=None,
        access_log=False,
        lifespan="on",
    )
    settings.load()
    lifespan = settings.lifespan_class(settings)
    await lifespan.startup()
    state, transport = ServerState(), _Transport()
    connection = Connection(config=settings, server_state=state, app_state=lifespan.state)
    connection.connection_made(transport)
    for part in parts:
        if not transport.is_closing():
            connection.data_received(part)
    if state.tasks and not transport.is_closing():
        # A request that is not there as a whole waits for the rest.
        await asyncio.wait(state.tasks, timeout=patience_s)
    connection.connection_lost(None)
    if state.tasks:
        _, waiting = await asyncio.wait(state.tasks, timeout=20)
        assert not waiting, "a request goes on without its connection"
    await lifespan.shutdown()
    return bytes(transport.written)


def _bytes_seeds() -> Iterator[bytes]:
    for body in _request_seeds():
        yield _head(_TOKEN, len(body)) + body
    yield _head("wrong", 2) + b"{}"
    yield (
        b"POST /mcp HTTP/1.1\r\nHost: localhost:8977\r\nTransfer-Encoding: chunked\r\n"
        b"Authorization: Bearer " + _TOKEN.encode() + b"\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    )


def _request_seeds() -> Iterator[bytes]:
    for method, params in (
        (
            "initialize",
            {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "a", "version": "1"},
            },
        ),
        ("tools/list", {}),
        ("tools/call", {"name": "get_check", "arguments": {}}),
        ("prompts/get", {"name": "investigate", "arguments": {"question": "why"}}),
    ):
        yield json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


def parse_export_answer(data: bytes, _folder: Path) -> None:
    """What a receiver answers to an export."""
    for signal in (SPANS, LOGS):
        rejected = signal.count_rejected(signal.response.FromString(data))
        assert rejected >= 0


def _answer_seeds() -> Iterator[bytes]:
    partial = ExportTracePartialSuccess(rejected_spans=7, error_message="no")
    yield ExportTraceServiceResponse(partial_success=partial).SerializeToString()


def parse_listen_address(data: bytes, _folder: Path) -> None:
    """An address to listen on."""
    address = parse_address(data.decode("utf-8", "replace"), _DEFAULT)
    assert 0 <= address.port < 1 << 16
    assert isinstance(address.is_loopback, bool)


TARGETS = (
    Target(
        "config",
        _config_seeds,
        parse_config,
        (ConfigError,),
        (b"&a ", b"*a", b"<<: ", b"- ", b"!!int ", b"!!timestamp ", b"!!set ", b"? "),
    ),
    Target(
        "sql",
        _sql_seeds,
        parse_sql,
        (StoreError,),
        (b" UNION ALL ", b"(SELECT ", b" FROM ", b"WITH RECURSIVE "),
        memory_bytes=_BOMB_BYTES,
    ),
    Target(
        "mcp_arguments",
        _mcp_seeds,
        parse_mcp_arguments,
        (),
        (b'"from": ', b'"limit": ', b'"pids": [', b"-30s"),
    ),
    Target(
        "mcp_bytes",
        _bytes_seeds,
        parse_mcp_bytes,
        (),
        (
            b"\r\n",
            b"Content-Length: 5\r\n",
            b"Expect: 100-continue\r\n",
            b"Upgrade: a\r\n",
            b"Host: a\r\n",
        ),
    ),
    Target(
        "mcp_request",
        _request_seeds,
        parse_mcp_request,
        (OtelGpuError,),
        (b'"params": {', b'"id": ', b"null"),
    ),
    Target("export_answer", _answer_seeds, parse_export_answer, (DecodeError,)),
    Target(
        "listen_address",
        lambda: [b"[::1]:8977", b"localhost:1", b":80"],
        parse_listen_address,
        (HttpError,),
    ),
)

"""What users, clients and receivers send: configuration, SQL, MCP, and answers to exports."""

import asyncio
import functools
import json
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from otel_gpu import config
from otel_gpu.errors import ConfigError, OtelGpuError, StoreError
from otel_gpu.export.signals import LOGS, SPANS
from otel_gpu.faces.mcp.captures import Capture
from otel_gpu.faces.mcp.http import HttpError, make_app, parse_address
from otel_gpu.faces.mcp.server import answer, make_server
from otel_gpu.options import OPTIONS
from otel_gpu.store.queries import QueryLimits, ask
from tests.fuzz.target import Target
from tests.unit.faces.mcp import served

_TOKEN = "0123456789abcdef" * 2
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
def _captures() -> tuple[Capture, Capture]:
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
    statuses = asyncio.run(_requests(data))
    assert statuses[0] == 401
    assert statuses[1] in {200, 202, 400, 404, 405, 406, 413, 415}, statuses


async def _requests(data: bytes) -> list[int]:
    statuses: list[int] = []
    app = make_app(make_server(_captures()[0]), parse_address("8977", _DEFAULT), _TOKEN)
    starting: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    ready = asyncio.Event()

    async def say(message: dict[str, Any]) -> None:
        ready.set()

    starting.put_nowait({"type": "lifespan.startup"})
    life = asyncio.ensure_future(app({"type": "lifespan"}, starting.get, say))
    await ready.wait()
    for token in ("wrong", _TOKEN):
        parts = [
            {"type": "http.request", "body": data, "more_body": False},
            {"type": "http.disconnect"},
        ]

        async def receive(parts: list[dict[str, Any]] = parts) -> dict[str, Any]:
            return parts.pop(0) if len(parts) > 1 else parts[0]

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        headers = {
            "host": "127.0.0.1:8977",
            "authorization": f"Bearer {token}",
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
        }
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": "/mcp",
            "raw_path": b"/mcp",
            "query_string": b"",
            "scheme": "http",
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        await asyncio.wait_for(app(scope, receive, send), 20)
    starting.put_nowait({"type": "lifespan.shutdown"})
    await life
    return statuses


_DEFAULT = parse_address("127.0.0.1:8977", None)  # type: ignore[arg-type] # nothing of it is used


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

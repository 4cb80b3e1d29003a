"""Real servers in processes of their own, and clients of the official SDK."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import asynccontextmanager, contextmanager

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

COMMAND = (sys.executable, "-m", "otel_gpu", "mcp")
TOKEN = "correct-horse-battery-staple"  # noqa: S105 -- opens nothing
# Somebody else's work on this machine must not end a test.
PATIENCE_S = 60


def environment(**values: str) -> dict[str, str]:
    """An environment without settings of the user who runs the tests."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return kept | values


def stdio_client(*arguments: str, command: Sequence[str] = COMMAND) -> Client:
    """A client that starts a server and talks to it on its standard streams."""
    program, *first = command
    parameters = StdioServerParameters(
        command=program, args=[*first, *map(str, arguments)], env=environment()
    )
    return Client(parameters, read_timeout_seconds=PATIENCE_S)


@contextmanager
def http_server(*arguments: str, token: str | None = TOKEN, address: str = "127.0.0.1:0"):
    """A server on a socket: its URL, its token and the process; it is ended with SIGINT."""
    values = {} if token is None else {"OTEL_GPU_MCP_TOKEN": token}
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments), "--http", address],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**values),
    )
    try:
        told = ""
        while "http://" not in told:
            line = process.stderr.readline()
            assert line, f"the server ended: {told}"
            told += line
        new = re.search(r"token of this run: (\S+)", told)
        url = re.search(r"http://\S+", told)
        yield url.group(), new.group(1) if new else token, process
    finally:
        if process.poll() is None:
            process.send_signal(2)
        process.communicate(timeout=PATIENCE_S)


@asynccontextmanager
async def http_client(url: str, token: str):
    """A client that knows the token."""
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=PATIENCE_S) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


async def ask(client: Client, tool: str, **arguments) -> dict:
    """What a tool says."""
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    assert not result.is_error, content.text
    return json.loads(content.text)


async def error_of(client: Client, tool: str, **arguments) -> dict:
    """What a tool says that it cannot do."""
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    assert result.is_error, content.text
    return json.loads(content.text)


def run(story):
    """Run what a test tells."""
    return asyncio.run(asyncio.wait_for(story, PATIENCE_S * 4))

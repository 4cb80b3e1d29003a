"""``otel-gpu mcp --http``: a real socket, the official client, and who is kept out."""

import asyncio
import http.client
import json
import socket
from contextlib import ExitStack, closing, suppress
from urllib.parse import urlsplit

import pytest

from otel_gpu import cli
from otel_gpu.mcp.connections import MAX_UNAUTHENTICATED
from tests.mcp.clients import (
    TOKEN,
    ask,
    error_of,
    http_client,
    http_server,
    run,
)
from tests.mcp.test_stdio import HELLO, TOOLS
from tests.unit.mcp import served

INITIALIZE = json.dumps(HELLO)
PLAIN = {
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
    "Authorization": f"Bearer {TOKEN}",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return served.store_of(served.CHURN, tmp_path_factory.mktemp("store") / "store.db")


@pytest.fixture(scope="module")
def url(store):
    with http_server("--store", store) as (url, _, _):
        yield url


@pytest.fixture(scope="module")
def recording_url():
    """Of a server that serves a recording."""
    with http_server(served.STARVED) as (url, _, _):
        yield url


def request(url, headers=PLAIN, *, method="POST", body=INITIALIZE, path="/mcp"):
    """What one request is answered with: status, headers, body."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        is_chunked = "Transfer-Encoding" in headers
        connection.request(method, path, body=body, headers=headers, encode_chunked=is_chunked)
        response = connection.getresponse()
        return response.status, dict(response.headers), response.read()
    finally:
        connection.close()


def test_every_tool_answers_over_http(url, store):
    """As in the same process, byte for byte."""

    async def story():
        async with http_client(url, TOKEN) as client:
            answers = [await ask(client, name) for name in TOOLS]
            prompt = await client.get_prompt("investigate")
            return answers, prompt, await ask(client, "run_sql", sql="SELECT count(*) FROM calls")

    answers, prompt, counted = run(story())

    capture = served.capture_of(None, store)
    assert answers == [served.ask(capture, name) for name in TOOLS]
    assert "Never conclude" in prompt.messages[0].content.text
    assert counted["answer"]["rows"] == [[480]]


def test_every_tool_answers_about_a_recording_over_http(recording_url):
    """A recording is served in the same way."""

    async def story():
        async with http_client(recording_url, TOKEN) as client:
            return [await ask(client, name) for name in TOOLS]

    capture = served.capture_of(served.STARVED)
    assert run(story()) == [served.ask(capture, name) for name in TOOLS]


def test_sql_can_only_read_over_http(url, store):
    """The transport opens no other way."""
    before = store.read_bytes()

    async def story():
        async with http_client(url, TOKEN) as client:
            return [await error_of(client, "run_sql", sql=sql) for sql in served.ESCAPES]

    assert len(run(story())) >= 48
    assert store.read_bytes() == before


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer wrong", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN],
)
def test_who_does_not_know_the_token_learns_nothing(url, authorization):
    """Neither does who knows nearly all of it."""
    headers = {name: value for name, value in PLAIN.items() if name != "Authorization"}
    if authorization is not None:
        headers["Authorization"] = authorization

    status, told, body = request(url, headers)

    assert (status, body) == (401, b"a token is required")
    assert told["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("path", ["/", "/mcp/", "/other", "/.well-known/oauth-protected-resource"])
def test_no_path_is_open(url, path):
    """The token is needed before it is said what there is."""
    assert request(url, {}, method="GET", body=None, path=path)[0] == 401


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "https://127.0.0.1", "null", "http://127.0.0.1.evil.example"]
)
def test_a_page_of_another_origin_is_refused(url, origin):
    """Also one that has got hold of the token."""
    status, told, _ = request(url, PLAIN | {"Origin": origin})

    assert status == 403
    assert not [name for name in told if name.lower().startswith("access-control")]


def test_one_origin_of_several_is_enough_to_be_refused(url):
    """Whichever of them comes first."""
    own = f"http://127.0.0.1:{urlsplit(url).port}"

    for origins in ((own, "http://evil.example"), ("http://evil.example", own)):
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        with closing(connection):
            connection.putrequest("POST", "/mcp")
            for name, value in PLAIN.items():
                connection.putheader(name, value)
            for origin in origins:
                connection.putheader("Origin", origin)
            connection.putheader("Content-Length", str(len(INITIALIZE)))
            connection.endheaders(INITIALIZE.encode())
            assert connection.getresponse().status == 403


@pytest.mark.parametrize("token", [None, TOKEN])
def test_who_asks_for_nothing_keeps_nobody_out(recording_url, token):
    """Of connections that are opened and not used, or used slowly, none lasts."""
    head = b"POST /mcp HTTP/1.1\r\nHost: x\r\n"
    if token is not None:
        head += f"Authorization: Bearer {token}\r\n".encode()
    address = urlsplit(recording_url).hostname, urlsplit(recording_url).port
    with ExitStack() as stack:
        idle = []
        for number in range(MAX_UNAUTHENTICATED + 67):
            idle.append(stack.enter_context(socket.create_connection(address, 60)))
            with suppress(ConnectionError):
                idle[-1].sendall(head[: number % len(head)])

        assert request(recording_url)[0] == 200
        for one in idle:
            # Until it is cut; whoever was in the middle of a head may be told so.
            with suppress(ConnectionResetError):
                while one.recv(4_096):
                    pass
        assert request(recording_url)[0] == 200


def test_a_long_question_keeps_no_other_waiting(url):
    """Six of them take their ten seconds beside each other; one more in SQL, and one of another tool, do not."""
    bomb = "WITH RECURSIVE a(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM a) SELECT count(*) FROM a"

    async def story():
        async with http_client(url, TOKEN) as client, asyncio.TaskGroup() as group:
            bombs = [
                group.create_task(client.call_tool("run_sql", {"sql": bomb})) for _ in range(6)
            ]
            await asyncio.sleep(1)
            answers = await ask(client, "run_sql", sql="SELECT 1"), await ask(client, "get_check")
            return answers, [one.done() for one in bombs]

    (one, check), are_done = run(story())

    assert one["answer"]["rows"] == [[1]]
    assert "error" not in check
    assert are_done == [False] * 6


def test_who_is_refused_keeps_no_connection(url):
    """However much of a body it says that it has."""
    head = f"POST /mcp HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nContent-Length: 99999\r\n\r\n"
    address = urlsplit(url).hostname, urlsplit(url).port

    with socket.create_connection(address, 60) as connection:
        connection.sendall(head.encode())
        told = b""
        while part := connection.recv(4_096):
            told += part

    assert told.startswith(b"HTTP/1.1 401 ")
    assert b"connection: close" in told.lower()


def test_strangers_do_not_fill_the_log():
    """What is no request, and one too many, is not told to the operator each time."""
    with http_server(served.STARVED) as (url, _, process):
        address = urlsplit(url).hostname, urlsplit(url).port
        for _ in range(31):
            with socket.create_connection(address, 60) as connection:
                connection.sendall(b"\x1b[2Jno request\r\n\r\n")
                assert connection.recv(4_096).startswith(b"HTTP/1.1 400 ")
        process.send_signal(2)
        _, told = process.communicate(timeout=60)

    assert told == ""


def test_a_name_that_points_at_us_is_not_ours(url):
    """A page whose name an attacker resolves to this host does not reach the server by it."""
    port = urlsplit(url).port

    for host in (
        f"evil.example:{port}",
        "evil.example",
        "127.0.0.1:1",
        f"127.0.0.1:{port}.evil.example",
    ):
        assert request(url, PLAIN | {"Host": host})[0] == 421
        # Also by the way of newer versions of the protocol.
        newer = {"Host": host, "MCP-Protocol-Version": "2099-01-01"}
        assert request(url, PLAIN | newer)[0] == 421


def test_our_own_names_are_answered(url):
    """Localhost in each of its spellings, and an Origin that is ourselves."""
    port = urlsplit(url).port

    for headers in ({}, {"Host": f"localhost:{port}"}, {"Origin": f"http://127.0.0.1:{port}"}):
        status, told, body = request(url, PLAIN | headers)
        assert status == 200
        assert json.loads(body)["result"]["serverInfo"]["name"] == "otel-gpu"
        assert not [name for name in told if name.lower().startswith("access-control")]


def test_nobody_is_asked_to_let_a_page_in(url):
    """A browser that asks beforehand is told nothing that would let it go on."""
    preflight = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}

    status, told, _ = request(url, preflight, method="OPTIONS", body=None)

    assert status == 403
    assert not [name for name in told if name.lower().startswith("access-control")]


def test_a_body_has_a_size(url):
    """One that is larger is refused, also where it does not say so."""
    large = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping", "pad": "x" * 300_000})

    assert request(url, body=large)[0] == 413
    chunked = (part.encode() for part in (large[:150_000], large[150_000:]))
    assert request(url, PLAIN | {"Transfer-Encoding": "chunked"}, body=chunked)[0] == 413
    assert request(url)[0] == 200


@pytest.mark.parametrize("body", [b"", b"no json", b"[" * 10_000, b'{"jsonrpc": "2.0"}', b"\xff"])
def test_what_is_no_message_is_refused(url, body):
    """And the server goes on."""
    assert 400 <= request(url, body=body)[0] < 500
    assert request(url)[0] == 200


def test_a_token_is_made_where_none_was_chosen():
    """It is told on standard error, and it is the one that is asked for."""

    async def story(url, token):
        async with http_client(url, token) as client:
            return await ask(client, "get_check")

    with http_server(served.STARVED, token=None) as (url, token, process):
        assert request(url)[0] == 401
        assert run(story(url, token))["kind"] == "recording"
        process.send_signal(2)
        assert process.wait(60) == 0


def test_a_token_can_be_in_a_file(tmp_path):
    """Of the operator's own."""
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)

    with http_server(served.STARVED, "--token-file", file, token=None) as (url, _, _):
        assert request(url)[0] == 200
        assert request(url, PLAIN | {"Authorization": "Bearer wrong"})[0] == 401


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("--http", "0.0.0.0:0"),
            "0.0.0.0 can be reached from elsewhere, so a token has to be chosen",
        ),
        (("--http", "127.0.0.1:99999"), "'127.0.0.1:99999' is not an address"),
        (("--http", "203.0.113.1:0"), "cannot listen"),
        (("--token-file", "token"), "--token-file needs --http"),
        (("--http", "--token-file", "no-such-file"), "no-such-file: cannot be read"),
    ],
)
def test_what_would_be_open_or_makes_no_sense_is_refused(arguments, told, monkeypatch, capsys):
    """Before anything listens."""
    if "203.0.113.1:0" in arguments:
        monkeypatch.setenv("OTEL_GPU_MCP_TOKEN", TOKEN)

    code = cli.main(["mcp", str(served.STARVED), *arguments])

    assert code in (1, 2)
    assert told in capsys.readouterr().err


def test_every_address_can_be_served_with_a_token():
    """Where it was asked for: names are then not checked, the token and the origin are."""
    with http_server(served.STARVED, address="0.0.0.0:0") as (url, _, _):
        here = url.replace("0.0.0.0", "127.0.0.1")
        assert request(here, PLAIN | {"Host": "gpu-node-7:80"})[0] == 200
        assert request(here, PLAIN | {"Origin": "http://gpu-node-7:80"})[0] == 403
        assert request(here, PLAIN | {"Authorization": ""})[0] == 401

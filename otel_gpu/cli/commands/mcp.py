"""
Serve a recording, a store or a capture of another tool to an assistant over the Model Context
Protocol: thirteen tools, all read-only, and a prompt. Uses standard input and output, for a client that
starts it; with --http a socket of this host, for clients that have the token. docs/mcp.md describes
how to connect one. Needs no privileges and no GPU.
"""

import logging
import os
import signal
from argparse import ArgumentParser, Namespace
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from otel_gpu.cli.commands import Output, UsageError, add_file
from otel_gpu.cli.compared_side import make_side
from otel_gpu.cli.flight_recorder import store_path
from otel_gpu.cli.import_source import open_any
from otel_gpu.cli.part_reports import make_collector, resolve_window
from otel_gpu.cli.sources import StoreSource
from otel_gpu.config import Config
from otel_gpu.errors import OtelGpuError

if TYPE_CHECKING:
    from otel_gpu.mcp.captures import ServedCapture

CONFIG_FLAGS = ("store.path",)

_DEFAULT_ADDRESS = "127.0.0.1:8977"


def add_arguments(parser: ArgumentParser) -> None:
    recording = (
        "what to serve: a recording, memory snapshot or store, a trace of torch.profiler (or a folder of "
        "them) or an export of Nsight Systems; default: the store that run writes"
    )
    add_file(parser, "recording", recording, nargs="?")
    add_file(parser, "--baseline", "the capture to compare with, of any of these kinds")
    parser.add_argument(
        "--http",
        nargs="?",
        const=_DEFAULT_ADDRESS,
        metavar="HOST:PORT",
        help=f"serve HTTP on this address instead, with a token; default: {_DEFAULT_ADDRESS}. "
        "Port 0 selects a free one",
    )
    add_file(
        parser,
        "--token-file",
        "read the token from this file, which other users must not be able to read; default: "
        "OTEL_GPU_MCP_TOKEN, else a new token, written to standard error",
    )


def run(args: Namespace, config: Config, out: Output) -> int:
    """Serve; return 0 after the client has disconnected, or on a signal."""
    if args.token_file is not None and args.http is None:
        raise UsageError(
            "--token-file needs --http", hint="without --http, leave it out: no token is needed"
        )
    _check_packages()
    capture = _find_capture(args, config)
    # The SDK logs every request.
    logging.getLogger("mcp").setLevel(logging.ERROR)
    try:
        if args.http is None:
            _serve_stdio(capture)
        else:
            _serve_http(capture, args, out)
    except KeyboardInterrupt:
        pass
    return 0


def _check_packages() -> None:
    try:
        import mcp.server  # noqa: F401, PLC0415 -- an extra, and half a second
        import uvicorn  # noqa: F401, PLC0415 -- as above
    except ImportError as error:
        missing = f"the MCP SDK is not installed ({error.name} is missing)"
        raise OtelGpuError(missing, hint="pip install 'otel-gpu[mcp]'") from error


def _find_capture(args: Namespace, config: Config) -> "ServedCapture":
    from otel_gpu.mcp.captures import ServedCapture  # noqa: PLC0415 -- as above

    kind = StoreSource.kind
    for path in filter(None, (args.baseline, args.recording)):
        # An unreadable file is an error here, not later for the assistant.
        with closing(open_any(path, config)) as source:
            kind = source.kind
    collect = partial(make_collector, config)
    is_default = args.recording is None
    return ServedCapture(
        store_path(config) if is_default else args.recording,
        kind=StoreSource.kind if is_default else kind,
        open_source=lambda path: (
            # The store need not exist yet: its reader raises an error for that.
            StoreSource(path)
            if is_default and path == store_path(config)
            else open_any(path, config)
        ),
        find_window=resolve_window,
        make_collector=collect,
        make_side=partial(make_side, make_collector=collect),
        baseline=args.baseline,
    )


def _serve_stdio(capture: "ServedCapture") -> None:
    import anyio  # noqa: PLC0415 -- an extra

    from otel_gpu.mcp.server import make_server, serve_stdio  # noqa: PLC0415 -- as above

    # A thread blocks on input and cannot be woken, and nothing needs an orderly end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    anyio.run(serve_stdio, make_server(capture))


def _serve_http(capture: "ServedCapture", args: Namespace, out: Output) -> None:
    from otel_gpu.mcp import http, tokens  # noqa: PLC0415 -- an extra
    from otel_gpu.mcp.server import make_server  # noqa: PLC0415 -- as above

    default = http.parse_address(_DEFAULT_ADDRESS, http.Address("", 0))
    address = http.parse_address(args.http, default)
    token = tokens.find_token(args.token_file, os.environ)
    if token is None:
        if not address.is_loopback:
            why = f"{address.host} can be reached from elsewhere, so a token has to be chosen"
            raise UsageError(why, hint=f"give --token-file, or set {tokens.VARIABLE}")
        token = tokens.new_token()
        out.note(f"the token of this run: {token}")
    with http.listen(address) as listener:
        address = address._replace(port=listener.getsockname()[1])
        if not address.is_loopback:
            out.note("this is not encrypted: put a TLS proxy in front, or use an SSH tunnel")
        out.note(f"serving {capture.path} on http://{address.in_url}:{address.port}{http.PATH}")
        http.serve_http(http.make_app(make_server(capture), address, token), listener)

"""
ClickHouse's HTTP interface in front of chdb, as far as the Collector's exporter and tests use it.

    python server.py PORT FOLDER

Statements and inserts are executed by ClickHouse's own engine. Only what is said about the server
itself is made here: as its revision is 0, blocks have no more than files in the format Native have,
which is what chdb writes.
"""

import re
import struct
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from chdb.session import Session  # type: ignore[import-not-found, unused-ignore]

_HELLO = "SELECT displayName(), version(), revision(), timezone()"
_INSERT = re.compile(r"(INSERT\s+INTO\s.*?)\s+FORMAT\s+Native\s*", re.IGNORECASE | re.DOTALL)
# From here on a column says whether its serialization is a special one.
_CUSTOM_SERIALIZATION = 54454


class _Handler(BaseHTTPRequestHandler):
    server: "_Server"

    def do_GET(self) -> None:
        self._answer(200, b"Ok.\n")

    def do_POST(self) -> None:
        settings = dict(parse_qsl(urlsplit(self.path).query))
        body = self._body()
        try:
            data = self.server.execute(settings, body)
        except Exception as error:  # noqa: BLE001 -- whatever it is, the client is to know
            self._answer(500, str(error).encode())
        else:
            self._answer(200, data)

    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, folder: Path) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self._session = Session(str(folder / "data"))
        self._inserted = folder / "inserted"
        self._lock = threading.Lock()

    def execute(self, settings: dict[str, str], body: bytes) -> bytes:
        if "compress" in settings or "decompress" in settings:
            raise ValueError("blocks that are compressed are not understood here")
        text = settings.get("query") or body.decode()
        with self._lock:
            if text == _HELLO:
                return self._hello(int(settings["client_protocol_version"]))
            if insert := _INSERT.fullmatch(text):
                self._inserted.write_bytes(body)
                text = f"{insert[1]} FROM INFILE '{self._inserted}' FORMAT Native"
            return self._query(text, settings.get("default_format", "TabSeparated"))

    def _query(self, text: str, style: str) -> bytes:
        return bytes(self._session.query(text, style).bytes())

    def _hello(self, revision: int) -> bytes:
        version = self._query("SELECT version()", "TabSeparated").decode().strip()
        values = (
            ("displayName()", "String", _text("chdb")),
            ("version()", "String", _text(version)),
            ("revision()", "UInt32", struct.pack("<I", 0)),
            ("timezone()", "String", _text("UTC")),
        )
        # About the block, then how many columns and rows it has.
        block = b"\x01\x00\x02" + struct.pack("<i", -1) + b"\x00" + bytes((len(values), 1))
        special = b"\x00" if revision >= _CUSTOM_SERIALIZATION else b""
        return block + b"".join(
            _text(name) + _text(kind) + special + value for name, kind, value in values
        )


def _text(text: str) -> bytes:
    data = text.encode()
    assert len(data) < 128
    return bytes((len(data),)) + data


if __name__ == "__main__":
    port, folder = sys.argv[1:]
    _Server(int(port), Path(folder)).serve_forever()

"""Headless Chromium, whose every request goes to us: nothing that it asks for is unseen."""

import re
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from tests.hosts import find_browser

LAPTOP, PHONE = (1280, 900), (390, 844)
_TIME_LIMIT_S = 60
# What Chromium asks for by itself when it starts, whatever page it shows.
_OWN_HOSTS = ("google.com", "gvt1.com", "googleapis.com", "gstatic.com")


class Visit(NamedTuple):
    """What came of showing a page."""

    console: list[str]
    requests: list[str]
    document: str
    picture: bytes


@contextmanager
def proxy():
    """A proxy that refuses everything, and the list of what it was asked for."""
    asked = []

    class Refusal(BaseHTTPRequestHandler):
        def _refuse(self):
            asked.append(self.path)
            self.send_error(403)

        def __getattr__(self, name):
            if name.startswith("do_"):
                return self._refuse
            raise AttributeError(name)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusal) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port, asked
        finally:
            server.shutdown()
            thread.join()


def visit(path, folder, size=LAPTOP, *, fragment=""):
    """Show a file to a browser that has never been used; ``folder`` is for what it writes."""
    picture = folder / "page.png"
    with proxy() as (port, asked):
        result = subprocess.run(
            [
                find_browser(),
                *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"),
                *("--no-first-run", "--disable-background-networking", "--disable-sync"),
                *("--disable-component-update", "--hide-scrollbars", "--disable-dev-shm-usage"),
                f"--user-data-dir={folder / 'profile'}",
                f"--proxy-server=127.0.0.1:{port}",
                "--proxy-bypass-list=<-loopback>",
                f"--window-size={size[0]},{size[1]}",
                *("--virtual-time-budget=5000", "--enable-logging=stderr"),
                f"--screenshot={picture}",
                "--dump-dom",
                f"file://{path}{fragment}",
            ],
            capture_output=True,
            text=True,
            timeout=_TIME_LIMIT_S,
            check=True,
        )
    return Visit(
        re.findall(r"CONSOLE.*", result.stderr),
        [url for url in asked if not any(host in url for host in _OWN_HOSTS)],
        result.stdout,
        picture.read_bytes(),
    )

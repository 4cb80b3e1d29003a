"""ClickHouse, and questions to it: chdb behind the part of its HTTP interface that is used."""

import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from tests.backends import builds
from tests.backends.processes import ANSWER_TIMEOUT_S, LOOPBACK, Backend, free_ports

SERVER = Path(__file__).resolve().parent / "clickhouse" / "server.py"


class ClickHouse(Backend):
    """
    An empty ClickHouse.

    Attributes:
        endpoint: Where the Collector's exporter writes.
    """

    def __init__(self) -> None:
        (port,) = free_ports(1)
        self.endpoint = f"http://{LOOPBACK}:{port}"
        env = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(builds.chdb())}
        super().__init__(
            [sys.executable, SERVER, str(port), "."], env, f"{self.endpoint}/ping", self.endpoint
        )

    def query(self, sql: str) -> list[dict[str, Any]]:
        """The rows of an answer, by column."""
        url = f"{self.endpoint}/?{urllib.parse.urlencode({'default_format': 'JSONEachRow'})}"
        request = urllib.request.Request(url, sql.encode())  # noqa: S310 -- loopback
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as answer:  # noqa: S310
                return [json.loads(line) for line in answer]
        except urllib.error.HTTPError as error:
            error.add_note(error.read().decode("utf-8", "replace")[:4000])
            raise

"""Prometheus, and questions to it through its own API."""

from typing import Any

from tests.backends import builds
from tests.backends.processes import LOOPBACK, Backend, free_ports

# Nothing is scraped: all that it knows was written into it.
CONFIG = "global: {}\n"
FEATURES = "native-histograms,exemplar-storage"


class Prometheus(Backend):
    """
    Prometheus as ``prometheus.yaml`` wants it: it is written into.

    Attributes:
        remote_write: The URL for that.
    """

    def __init__(self, features: str = FEATURES) -> None:
        (port,) = free_ports(1)
        base = f"http://{LOOPBACK}:{port}"
        self.remote_write = f"{base}/api/v1/write"
        command = [
            builds.prometheus(),
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            f"--web.listen-address={LOOPBACK}:{port}",
            "--web.enable-remote-write-receiver",
            "--log.level=warn",
        ]
        if features:
            command.append(f"--enable-feature={features}")
        super().__init__(command, {}, f"{base}/-/ready", base)
        (self.folder / "prometheus.yml").write_text(CONFIG, encoding="utf-8")

    def query(self, promql: str, at_unix_s: float) -> list[dict[str, Any]]:
        """The series that an expression gives at one moment."""
        answer = self.get("/api/v1/query", query=promql, time=f"{at_unix_s:.3f}")
        return list(answer["data"]["result"])

    def value(self, promql: str, at_unix_s: float) -> float | None:
        """The value of an expression that gives one series; None where it gives none."""
        series = self.query(promql, at_unix_s)
        if not series:
            return None
        (only,) = series
        return float(only["value"][1])

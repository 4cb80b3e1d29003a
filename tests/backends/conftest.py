"""Fixtures of the tests with real backends."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.backends.jaeger import Jaeger
from tests.backends.prometheus import Prometheus
from tests.kernel.agent import environment_for

ROOT = Path(__file__).resolve().parents[2]

Replay = Callable[..., None]


@pytest.fixture
def jaeger() -> Iterator[Jaeger]:
    with Jaeger() as jaeger:
        yield jaeger


@pytest.fixture
def prometheus() -> Iterator[Prometheus]:
    with Prometheus() as prometheus:
        yield prometheus


@pytest.fixture(scope="session")
def replay() -> Replay:
    """Sends a recording to an OTLP endpoint, as ``otel-gpu replay`` does."""
    return send


def send(
    recording: Path,
    endpoint: str,
    *flags: str,
    protocol: str = "grpc",
    env: Mapping[str, str] | None = None,
    verb: Sequence[str] = ("replay",),
) -> None:
    subprocess.run(
        [sys.executable, "-m", "otel_gpu", *verb, str(recording), *flags],
        cwd=ROOT,
        env=environment_for(None)
        | {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
        | dict(env or {}),
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )

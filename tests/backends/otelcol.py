"""The OpenTelemetry Collector, run with the files that we ship."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.backends import builds
from tests.backends.processes import LOOPBACK, Backend, free_ports

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "collector-config"


class Otelcol(Backend):
    """
    A Collector with one shipped configuration, or several that are merged.

    Nothing in the files is changed but where it listens, which ``--set`` does, as an
    operator may.

    Args:
        configs: Names of files in ``collector-config``, without ``.yaml``.
        env: What the files read from the environment.
        sets: Further settings, as ``--set`` takes them.

    Attributes:
        endpoint: Where it takes OTLP over gRPC.
        http_endpoint: The same over HTTP.
    """

    def __init__(
        self,
        *configs: str,
        env: Mapping[str, str] | None = None,
        sets: Mapping[str, str] | None = None,
    ) -> None:
        grpc, http, health = (f"{LOOPBACK}:{port}" for port in free_ports(3))
        self.endpoint, self.http_endpoint = f"http://{grpc}", f"http://{http}"
        settings = {
            "receivers.otlp.protocols.grpc.endpoint": grpc,
            "receivers.otlp.protocols.http.endpoint": http,
            "extensions.health_check.endpoint": health,
            "service.extensions": "[health_check]",
            # It would be a server on a port of its own.
            "service.telemetry.metrics.level": "none",
        }
        flags = [f"--set={name}={value}" for name, value in (settings | dict(sets or {})).items()]
        command = [builds.otelcol(), *_config_flags(configs), *flags]
        super().__init__(command, _environment(env), f"http://{health}/")


def two_replicas(
    env: Mapping[str, str] | None = None, sets: Mapping[str, str] | None = None
) -> tuple[Otelcol, Otelcol]:
    """Return two Collectors with ``gateway.yaml`` that share traces, and keep metrics to themselves."""
    ports = free_ports(2)
    addresses = ", ".join(f"{LOOPBACK}:{port}" for port in ports)
    shared = {
        "exporters.load_balancing.resolver.dns": "null",
        "exporters.load_balancing.resolver.static.hostnames": f"[{addresses}]",
        "service.pipelines.metrics.exporters": "[nop]",
    }
    inner = "receivers.otlp/replicas.protocols.grpc.endpoint"
    first, second = (
        Otelcol("gateway", env=env, sets=shared | {inner: f"{LOOPBACK}:{port}"} | dict(sets or {}))
        for port in ports
    )
    return first, second


def validate(configs: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """Let the Collector check shipped files, and return what it complains of."""
    done = subprocess.run(
        [builds.otelcol(), "validate", *_config_flags(configs)],
        env=_environment(env),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr if done.returncode else done.stderr


def _config_flags(configs: Sequence[str]) -> list[str]:
    files = [f"--config={CONFIGS / name}.yaml" for name in configs]
    # As the file says that it is run.
    return [*files, "--feature-gates=service.profilesSupport"] if "profiles" in configs else files


def _environment(env: Mapping[str, str] | None) -> dict[str, str]:
    # What the tests' own environment says of OpenTelemetry is not for the Collector.
    return {"PATH": os.environ.get("PATH", "")} | dict(env or {})

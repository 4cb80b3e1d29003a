"""The state of the service, from systemctl."""

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from otel_gpu.cli.doctor.checks import CheckResult, CheckStatus
from otel_gpu.cli.service.files import UNIT
from otel_gpu.cli.service.notify import CAPTURING
from otel_gpu.errors import HostError

_PROPERTIES = (
    "LoadState,ActiveState,SubState,Result,UnitFileState,MainPID,NRestarts,"
    "ActiveEnterTimestampMonotonic,CPUUsageNSec,MemoryCurrent,MemoryMax,StatusText"
)
_TIMEOUT_S = 10.0
_UNKNOWN = 2**64 - 1  # older versions write it for an unknown figure
_NS_PER_US = 1_000

Ask = Callable[[Sequence[str]], str]


class ServiceState(NamedTuple):
    """
    The state of the service; None for figures that systemd does not have.

    ``sub`` details ``active`` (``running``, ``auto-restart``), ``result`` is why it ended,
    ``memory_bytes`` includes BPF maps, and ``word`` is the status that the agent sent: ``capturing``,
    or its errors by place.
    """

    is_installed: bool
    active: str
    sub: str
    result: str
    enabled: str
    pid: int | None
    restarts: int
    uptime_s: float | None
    cpu_ns: int | None
    memory_bytes: int | None
    memory_limit_bytes: int | None
    word: str = ""

    @property
    def has_errors(self) -> bool:
        """Whether the status that the agent sent lists errors."""
        return self.active == "active" and self.word not in ("", CAPTURING)


def ask_systemctl(arguments: Sequence[str]) -> str:
    """Return the output of systemctl; raise ``HostError`` if it fails, or takes more than 10 s."""
    try:
        done = subprocess.run(
            ["systemctl", "--no-pager", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError("systemctl does not answer", hint="is systemd running here?") from error
    if done.returncode:
        first, *_ = done.stderr.strip().splitlines() or ["no message"]
        raise HostError(f"systemctl: {first}", hint="is systemd running here?")
    return done.stdout


def state_of_service(ask: Ask = ask_systemctl) -> ServiceState:
    """Return the state of the service; ``ask`` runs systemctl."""
    shown = ask(["show", UNIT, f"--property={_PROPERTIES}"])
    values = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    active = values.get("ActiveState", "")
    since_us = _number(values, "ActiveEnterTimestampMonotonic")
    uptime_s = None
    if active == "active" and since_us:
        uptime_s = max(time.monotonic_ns() - since_us * _NS_PER_US, 0) / 1e9
    return ServiceState(
        is_installed=values.get("LoadState") == "loaded",
        active=active,
        sub=values.get("SubState", ""),
        result=values.get("Result", ""),
        enabled=values.get("UnitFileState", ""),
        pid=_number(values, "MainPID") or None,
        restarts=_number(values, "NRestarts") or 0,
        uptime_s=uptime_s,
        cpu_ns=_number(values, "CPUUsageNSec"),
        memory_bytes=_number(values, "MemoryCurrent"),
        memory_limit_bytes=_number(values, "MemoryMax"),
        word=values.get("StatusText", ""),
    )


def examine_service(ask: Ask = ask_systemctl) -> Iterator[CheckResult]:
    """Check the running service for errors of the agent. Yields nothing if none runs."""
    with contextlib.suppress(HostError):
        state = state_of_service(ask)
        if state.active == "active":
            detail = f"process {state.pid}: {state.word or 'running'}"
            hint = "what these cost is lost; see journalctl -u otel-gpu for the first of each, and report it"
            if state.has_errors:
                yield CheckResult(
                    name="service", status=CheckStatus.WARNING, detail=detail, hint=hint
                )
            else:
                yield CheckResult("service", CheckStatus.OK, detail)


def _number(values: Mapping[str, str], name: str) -> int | None:
    # "[not set]" and "infinity" mean None.
    text = values.get(name, "")
    return int(text) if text.isdecimal() and int(text) != _UNKNOWN else None

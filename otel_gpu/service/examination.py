"""What can be said of the agent that runs as a service of this host."""

from collections.abc import Iterator

from otel_gpu.checks import Finding, ok, warning
from otel_gpu.errors import HostError
from otel_gpu.service.systemd import Ask, ask_systemctl, state_of_service


def examine_service(ask: Ask = ask_systemctl) -> Iterator[Finding]:
    """Say whether the agent has errors that runs as a service; nothing without one."""
    try:
        state = state_of_service(ask)
    except HostError:
        return
    if state.active != "active":
        return
    if state.has_errors:
        yield warning(
            "service",
            f"process {state.pid}: {state.word}",
            "what these cost is lost; see journalctl -u otel-gpu for the first of each, and report it",
        )
    else:
        yield ok("service", f"process {state.pid}: {state.word or 'running'}")

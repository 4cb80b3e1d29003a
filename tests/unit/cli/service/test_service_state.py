"""What is made of systemd's answers."""

import time

import pytest

from otel_gpu.cli.service import systemd
from otel_gpu.cli.service.systemd import ask_systemctl, state_of_service
from otel_gpu.errors import HostError

RUNNING = """\
LoadState=loaded
ActiveState=active
SubState=running
Result=success
UnitFileState=enabled
MainPID=71
NRestarts=2
ActiveEnterTimestampMonotonic={since_us}
CPUUsageNSec=1503000000
MemoryCurrent=99127296
MemoryMax=536870912
"""


def test_a_running_service_has_all_its_figures():
    """
    Numbers are numbers, and the time since it is active is measured on the clock that systemd uses.
    """
    asked = []
    since_us = time.monotonic_ns() // 1000 - 7_000_000

    def ask(arguments):
        asked.append(list(arguments))
        return RUNNING.format(since_us=since_us)

    state = state_of_service(ask)

    assert asked[0][:2] == ["show", "otel-gpu.service"]
    assert state._replace(uptime_s=None) == systemd.ServiceState(
        is_installed=True,
        active="active",
        sub="running",
        result="success",
        enabled="enabled",
        pid=71,
        restarts=2,
        uptime_s=None,
        cpu_ns=1_503_000_000,
        memory_bytes=99_127_296,
        memory_limit_bytes=536_870_912,
    )
    assert 7 <= state.uptime_s < 60


@pytest.mark.parametrize(
    "unknown", ["[not set]", "infinity", "", "18446744073709551615", "-1", "x"]
)
def test_what_systemd_does_not_know_is_not_known(unknown):
    """No accounting, no limit, a service that does not run: no figure instead of a wrong one."""
    shown = f"LoadState=not-found\nActiveState=inactive\nMainPID=0\nCPUUsageNSec={unknown}\n"
    state = state_of_service(lambda _: shown + f"MemoryMax={unknown}\nMemoryCurrent={unknown}\n")

    assert (state.is_installed, state.pid, state.uptime_s) == (False, None, None)
    assert (state.cpu_ns, state.memory_bytes, state.memory_limit_bytes) == (None, None, None)


def test_an_answer_that_is_no_answer_has_no_figures():
    """Whatever is printed, a state comes of it."""
    assert state_of_service(lambda _: "\0\nMainPID=²\n=\n").pid is None


def test_a_host_without_systemd_is_said(monkeypatch, tmp_path):
    """No systemctl, and one that fails, are errors with a hint."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match="does not answer"):
        ask_systemctl(["show"])

    program = tmp_path / "systemctl"
    program.write_text("#!/bin/sh\necho 'System has not been booted' >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(HostError, match="systemctl: System has not been booted"):
        ask_systemctl(["show"])

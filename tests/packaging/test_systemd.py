"""The service under a real systemd, with every restriction of its unit in force."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.agent import calls, losses, points, spans, wait_until
from tests.kernel.meter import Meter, hidden
from tests.packaging.booted import SYSTEMD, Booted
from tests.packaging.clean_host import PROGRAM, CleanHost
from tests.receiver import OtlpReceiver, attributes_of
from tests.stubs.build import StubLibraries

pytestmark = [pytest.mark.kernel, pytest.mark.alone(among="preload")]

SERVICE = "otel-gpu.service"
API = "cudaStreamSynchronize"
STORE = "/var/lib/otel-gpu/store.db"
# From include/uapi/linux/capability.h.
CAPABILITIES = {2: "DAC_READ_SEARCH", 19: "SYS_PTRACE", 34: "SYSLOG"} | {
    38: "PERFMON", 39: "BPF", 40: "CHECKPOINT_RESTORE"
}  # fmt: skip


@pytest.fixture(scope="module")
def booted(clean_host: CleanHost) -> Iterator[Booted]:
    """A running systemd, with the service installed by `otel-gpu service install`."""
    if not SYSTEMD.exists():
        pytest.skip("systemd is not installed")
    with Booted(clean_host) as booted:
        booted.run(PROGRAM, "service", "install")
        booted.systemctl("daemon-reload")
        yield booted


def configure(booted: Booted, receiver: OtlpReceiver | None, config: str = "") -> None:
    """Write the environment file and the configuration, as an operator would."""
    lines = []
    if receiver is not None:
        lines = [
            f"OTEL_EXPORTER_OTLP_ENDPOINT={receiver.grpc_endpoint}",
            "OTEL_METRIC_EXPORT_INTERVAL=500",
            "OTEL_GPU_SPANS_MODE=full",
        ]
    for path, text in (
        ("/etc/otel-gpu/otel-gpu.env", "\n".join(lines)),
        ("/etc/otel-gpu/config.yaml", config or 'store: {enabled: "on"}'),
    ):
        booted.run("sh", "-c", 'printf "%s\\n" "$1" > "$2"', "sh", text, path)


@contextmanager
def running(booted: Booted, *, check: bool = True) -> Iterator[None]:
    """The service, started, and stopped with what it had to keep removed."""
    # Returns when the agent has said that it captures, or has failed.
    booted.run("systemctl", "start", SERVICE, check=check)
    try:
        yield
    finally:
        booted.run("systemctl", "stop", SERVICE)
        booted.run("systemctl", "reset-failed", SERVICE, check=False)
        booted.run("sh", "-c", f"rm -f {STORE}*")


def drop_in(booted: Booted, *settings: str) -> None:
    """Change the unit, as ``systemctl edit`` does."""
    script = 'mkdir -p "$1" && printf "%s\\n" "[Service]" "$2" > "$1/a.conf"'
    booted.run("sh", "-c", script, "sh", f"/run/units/{SERVICE}.d", "\n".join(settings))
    booted.systemctl("daemon-reload")


def delete_library(booted: Booted, meter: Meter, stubs: StubLibraries) -> None:
    """Delete the file that is mapped, as an upgrade of a package does."""
    place = f"/proc/{meter.pid}/root/mnt/{stubs.runtime.name}"
    booted.run("rm", place)
    assert not booted.run("ls", place, check=False).stdout


def status_of(booted: Booted, pid: str) -> dict[str, str]:
    """Return what /proc says of a process."""
    lines = booted.run("cat", f"/proc/{pid}/status").stdout.splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_every_call_of_every_process_is_counted(
    booted: Booted, receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """
    Of another user's processes, in mount namespaces of their own, each call counts: also where
    the library was deleted. Their stacks have names, and the service ends in time with all sent.
    """
    configure(booted, receiver)
    command = booted.inside(*hidden(stubs))
    with Meter(command) as meter, Meter(command) as upgraded:
        delete_library(booted, upgraded, stubs)
        with running(booted):
            receiver.wait_for(lambda: points(receiver, "otel_gpu.coverage"))
            meter.make(1009)
            upgraded.make(503)
            booted.systemctl("stop", SERVICE)
            result = booted.show(SERVICE, "Result")

            assert calls(receiver, API, meter.pid) == 1009
            assert calls(receiver, API, upgraded.pid) == 503
            assert {reason: n for reason, n in losses(receiver).items() if reason != "sample"} == {}
            assert result == "success"
            assert "rror" not in booted.journal(SERVICE)
    stacks = [
        attributes_of(event.attributes)["code.stacktrace"]
        for span in spans(receiver, API, meter.pid)
        for event in span.span.events
        if event.name == "stack"
    ]
    assert [stack for stack in stacks if re.search(r"\nmain \(timed\)", str(stack))]


def test_the_restrictions_of_the_unit_are_in_force(booted: Booted, receiver: OtlpReceiver) -> None:
    """
    The agent is no user of this host, has six capabilities and no way to more, a filter of system
    calls, a private /tmp, no homes, no devices, read-only files, and bounded memory and CPU.
    """
    configure(booted, receiver)
    with running(booted):
        receiver.wait_for(receiver.metrics)
        pid = booted.show(SERVICE, "MainPID")
        status = status_of(booted, pid)
        root = f"/proc/{pid}/root"
        devices = booted.run("ls", f"{root}/dev").stdout.split()
        mounts = booted.run("cat", f"/proc/{pid}/mounts").stdout.splitlines()
        limits = {name: booted.show(SERVICE, name) for name in ("MemoryMax", "CPUQuotaPerSecUSec")}
        group = booted.run("cat", f"/proc/{pid}/cgroup").stdout
    held = {
        name: {
            CAPABILITIES.get(bit, str(bit)) for bit in range(64) if int(status[name], 16) >> bit & 1
        }
        for name in ("CapEff", "CapPrm", "CapBnd")
    }
    options = {line.split()[1]: line.split()[3].split(",")[0] for line in mounts}

    assert held == {name: set(CAPABILITIES.values()) for name in held}
    assert int(status["Uid"].split()[0]) >= 61184  # dynamic users begin there
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert int(status["Seccomp_filters"]) > 5
    assert [name for name in ("sda", "vda", "kmsg", "mem", "nvidiactl") if name in devices] == []
    assert (options["/"], options["/etc"], options["/home"]) == ("ro", "ro", "ro")
    assert "/tmp" in options
    assert options["/sys/kernel/tracing"] == "ro"
    assert options["/var/lib/private/otel-gpu"] == "rw"
    assert limits == {"MemoryMax": str(512 << 20), "CPUQuotaPerSecUSec": "500ms"}
    assert SERVICE in group


def test_without_an_endpoint_the_flight_recorder_has_it(
    booted: Booted, stubs: StubLibraries
) -> None:
    """What is counted is in the StateDirectory, and status says what the service costs and lost."""
    configure(booted, None)
    question = "SELECT calls FROM v_counts WHERE api = 'cudaStreamSynchronize' AND pid = {}"
    with Meter(booted.inside(*hidden(stubs))) as meter, running(booted):

        def counted() -> str:
            command = ("query", "--store", STORE, question.format(meter.pid))
            return booted.run(PROGRAM, *command, check=False).stdout

        def probed() -> bool:
            command = ("query", "--store", STORE, "SELECT COUNT(*) > 0 FROM probes")
            return booted.run(PROGRAM, *command, check=False).stdout.split()[-1:] == ["1"]

        wait_until(probed, "probes in the store", 20)
        meter.make(1009)
        wait_until(lambda: "1009" in counted(), "1009 calls in the store", 20)
        done = booted.run(PROGRAM, "service", "status", "--store", STORE, "--json")
        text = booted.run(PROGRAM, "service", "status", "--store", STORE).stdout
        booted.systemctl("stop", SERVICE)
        after = booted.run(PROGRAM, "service", "status", "--store", STORE, check=False)
        owner = booted.run("stat", "--format=%a %U", "/var/lib/private/otel-gpu").stdout

    document = json.loads(done.stdout)
    service, recorder = document["service"], document["recorder"]
    assert (service["active"], service["sub"], service["restarts"]) == ("active", "running", 0)
    assert 0 < service["memory_bytes"] < service["memory_limit_bytes"] == 512 << 20
    assert recorder["agent"]["cpu_ns"] > 0
    assert [row for row in recorder["losses"] if row[2]] == []
    assert recorder["agent"]["rss_bytes"] > 0
    assert re.search(r"^service   active \(running\), process \d+, for ", text)
    assert re.search(
        r"^cost      .* m?s of CPU time \(.* % of a core\), .* of memory of at most 537 MB$",
        text,
        re.MULTILINE,
    )
    assert re.search(r"^losses    none", text, re.MULTILINE)
    assert (after.returncode, after.stdout.split(",")[0]) == (1, "service   inactive (dead)")
    assert owner.split()[0] == "700"


def test_a_wrong_configuration_is_said_once(booted: Booted) -> None:
    """What would fail again is not started again, and the journal says what is wrong."""
    configure(booted, None, "spans: {moed: full}")
    with running(booted, check=False):
        wait_until(lambda: booted.show(SERVICE, "ActiveState") == "failed", "the failure")
        restarts, code = booted.show(SERVICE, "NRestarts"), booted.show(SERVICE, "ExecMainStatus")
        journal = booted.journal(SERVICE)

    assert (restarts, code) == ("0", "2")
    assert "otel-gpu: error: /etc/otel-gpu/config.yaml: unknown key spans.moed" in journal
    assert "mode" in journal.split("hint:")[1]


def test_an_agent_that_dies_is_started_again(booted: Booted, receiver: OtlpReceiver) -> None:
    """After SIGKILL systemd starts another, which captures."""
    configure(booted, receiver)
    drop_in(booted, "RestartSec=100ms")
    with running(booted):
        receiver.wait_for(receiver.metrics)
        first = booted.show(SERVICE, "MainPID")
        booted.run("kill", "-KILL", first)
        wait_until(lambda: booted.show(SERVICE, "MainPID") not in {"0", first}, "another agent", 20)
        seen = len(receiver.metrics())
        wait_until(lambda: booted.show(SERVICE, "SubState") == "running", "its start", 20)
        restarts = booted.show(SERVICE, "NRestarts")

    assert seen
    assert restarts == "1"


def test_a_hung_agent_is_started_again(booted: Booted, receiver: OtlpReceiver) -> None:
    """
    Its loop stands still; the watchdog ends it, and another one captures. A loop that turns keeps
    the watchdog quiet, and the journal says where the agent hung.
    """
    configure(booted, receiver)
    drop_in(booted, "RestartSec=100ms", "WatchdogSec=2s")
    with running(booted):
        first = booted.show(SERVICE, "MainPID")
        begun = booted.show(SERVICE, "WatchdogTimestampMonotonic")
        wait_until(
            lambda: booted.show(SERVICE, "WatchdogTimestampMonotonic") != begun, "a word", 20
        )
        text = booted.show(SERVICE, "StatusText")
        quiet = booted.show(SERVICE, "NRestarts")
        booted.run("kill", "-STOP", first)
        wait_until(lambda: booted.show(SERVICE, "NRestarts") == "1", "the restart", 60)
        wait_until(lambda: booted.show(SERVICE, "SubState") == "running", "its start", 60)
        second = booted.show(SERVICE, "MainPID")
        journal = booted.journal(SERVICE)

    assert (text, quiet) == ("capturing", "0")
    assert second not in {"0", first}
    assert "Watchdog timeout (limit 2s)!" in journal
    assert "Fatal Python error: Aborted" in journal


def test_the_unit_is_verified_and_its_exposure_is_low(tmp_path: Path) -> None:
    """``systemd-analyze`` finds nothing wrong, and gives it less than 4.0 of 10."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = Path(__file__).resolve().parents[2] / "deploy" / "systemd" / SERVICE
    here = tmp_path / SERVICE
    here.write_text(unit.read_text().replace("/opt/otel-gpu/bin/otel-gpu", "/bin/true"))
    verified = subprocess.run(
        [analyze, "verify", here], capture_output=True, text=True, check=False
    )
    secure = [analyze, "security", "--offline=true", here]
    rated = subprocess.run(secure, capture_output=True, text=True, check=True).stdout
    (exposure,) = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", rated)

    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")
    assert float(exposure) < 4.0

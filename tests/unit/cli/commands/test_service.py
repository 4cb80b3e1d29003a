"""``otel-gpu service`` on its command line."""

import pytest

from otel_gpu import cli
from otel_gpu.cli.commands import service
from otel_gpu.cli.service.systemd import ServiceState

RUNNING = ServiceState(
    is_installed=True, active="active", sub="running", result="success", enabled="enabled", pid=71,
    restarts=0, uptime_s=100.0, cpu_ns=1_500_000_000, memory_bytes=99_000_000,
    memory_limit_bytes=536_870_912,
)  # fmt: skip


def test_a_dry_run_says_what_would_be_and_does_nothing(tmp_path, capsys):
    """Every file is named, and none is written."""
    assert cli.main(["service", "install", "--root", str(tmp_path), "--dry-run"]) == 0

    said = capsys.readouterr().out.splitlines()
    assert said[:3] == [
        f"would write {tmp_path}/etc/systemd/system/otel-gpu.service",
        f"would write {tmp_path}/etc/otel-gpu/otel-gpu.env",
        f"would write {tmp_path}/etc/otel-gpu/config.yaml",
    ]
    assert list(tmp_path.iterdir()) == []


def test_an_installation_says_what_to_do_next(tmp_path, capsys):
    """Nothing is started; the commands that do are printed. A removal names what it leaves."""
    root = ["--root", str(tmp_path)]
    assert cli.main(["service", "install", *root]) == 0
    assert "systemctl enable --now otel-gpu" in capsys.readouterr().out
    assert cli.main(["service", "uninstall", *root, "--dry-run"]) == 0
    assert f"would remove {tmp_path}/etc/otel-gpu/config.yaml" in capsys.readouterr().out
    assert cli.main(["service", "uninstall", *root]) == 0
    assert cli.main(["service", "uninstall", *root]) == 0

    assert capsys.readouterr().out.splitlines()[-2:] == [
        "nothing is installed",
        "the flight recorder stays: /var/lib/otel-gpu",
    ]


def test_a_program_that_others_can_change_is_no_service(tmp_path, capsys):
    """Whoever could write to it would get the capabilities of the service."""
    program = tmp_path / "otel-gpu"
    program.write_text("")
    program.chmod(0o777)

    assert cli.main(["service", "install", "--program", str(program), "--dry-run"]) == 1
    assert "others than root could change" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        ["install", "--json"],
        ["status", "--dry-run"],
        ["status", "--root", "/mnt"],
        ["restart"],
        [],
    ],
)
def test_flags_that_make_no_sense_are_refused(flags):
    """What would be ignored is an error."""
    assert cli.main(["service", *flags]) == 2


def test_status_names_what_the_caches_hold(monkeypatch, tmp_path, capsys):
    """The sum, and the largest of them with their entries."""
    agent = {
        "cache_bytes": {f"c{n}": n * 1_000_000 for n in range(1, 8)},
        "cache_entries": {f"c{n}": n * 1_001 for n in range(1, 8)},
    }
    monkeypatch.setattr(service, "state_of_service", lambda: RUNNING)
    monkeypatch.setattr(
        service, "_ask_recorder", lambda path: {"agent": agent, "losses": [], "last_unix_ns": 0}
    )

    assert cli.main(["service", "status", "--store", str(tmp_path / "store.db")]) == 0
    assert (
        "caches    28 MB: c7 7 MB (7,007), c6 6 MB (6,006), c5 5 MB (5,005), c4 4 MB (4,004), "
        "c3 3 MB (3,003)" in capsys.readouterr().out.splitlines()
    )


@pytest.mark.parametrize(
    ("state", "code", "lines"),
    [
        (
            RUNNING,
            0,
            [
                "service   active (running), process 71, for 100 s, enabled",
                "cost      1.5 s of CPU time (1.5 % of a core), 99 MB of memory of at most 537 MB",
                "rights    CAP_BPF, CAP_PERFMON",
            ],
        ),
        (
            RUNNING._replace(cpu_ns=None, memory_bytes=None),
            0,
            [
                "service   active (running), process 71, for 100 s, enabled",
                "cost      not accounted for on this host",
                "rights    CAP_BPF, CAP_PERFMON",
            ],
        ),
        (
            RUNNING._replace(active="failed", sub="failed", result="exit-code", pid=None,
                             uptime_s=None, restarts=3),
            1,
            ["service   failed (failed), restarted 3 times, result: exit-code, enabled"],
        ),
        (
            RUNNING._replace(is_installed=False, active="inactive", uptime_s=None),
            1,
            ["service   not installed; otel-gpu service install"],
        ),
    ],
)  # fmt: skip
def test_status_says_how_the_service_does(monkeypatch, tmp_path, capsys, state, code, lines):
    """
    Its exit code is 0 when the service runs; without a flight recorder losses are not known here.
    """
    monkeypatch.setattr(service, "state_of_service", lambda: state)
    monkeypatch.setattr(service, "effective_capabilities", lambda _pid: ["CAP_BPF", "CAP_PERFMON"])
    store = tmp_path / "store.db"

    assert cli.main(["service", "status", "--store", str(store)]) == code
    said = capsys.readouterr().out.splitlines()
    assert said[:-1] == lines
    assert said[-1].startswith("losses    not known here: ")

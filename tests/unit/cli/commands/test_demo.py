"""``otel-gpu demo``: what it says without running anything, and what it plays."""

import json

import pytest

from otel_gpu.cli import main
from otel_gpu.demo.build import build
from otel_gpu.demo.scenarios import SCENARIOS as DEMO
from otel_gpu.errors import OtelGpuError
from tests.scenarios.all_scenarios import SCENARIOS


def test_without_a_name_the_scenarios_are_listed(capfd: pytest.CaptureFixture[str]) -> None:
    """Each line begins with a name that can be given."""
    assert main(["demo"]) == 0

    listed = [line.split()[0] for line in capfd.readouterr().out.splitlines()]
    assert listed == list(DEMO)


def test_an_unknown_scenario_is_a_usage_error(capfd: pytest.CaptureFixture[str]) -> None:
    """The hint says how to find the right name."""
    assert main(["demo", "no-such-thing"]) == 2

    assert "otel-gpu demo lists them" in capfd.readouterr().err


def test_a_recording_made_by_nobody_cannot_be_kept(capfd: pytest.CaptureFixture[str]) -> None:
    """--synthetic and --record contradict each other."""
    assert main(["demo", "lock", "--synthetic", "--record", "kept.otelgpu"]) == 2

    assert "--record" in capfd.readouterr().err


def explain(name: str) -> int:
    """Explain the recording of a scenario, as a user of the demo does if it has that."""
    if name in DEMO:
        return main(["demo", name, "--synthetic", "--json"])
    return main(["explain", str(SCENARIOS[name].recording), "--json"])


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_recording_is_explained_without_privileges(
    capfd: pytest.CaptureFixture[str], name: str
) -> None:
    """What comes first is what the scenario is named after."""
    assert explain(name) == 0

    incidents = json.loads(capfd.readouterr().out)["incidents"]
    expected = {
        "clean": [],
        "preemption": ["preemption"],
        "late-wakeup": ["run_queue"],
        "cpu-quota": ["cpu_quota"],
        "lock": ["lock"],
        "gil": ["gil"],
        "busy-loader": ["ipc"],
        "slow-python": ["host_work"],
        "gil-holder": ["gil"],
        "garbage-collection": ["host_work"],
        "starved-loader": ["ipc"],
        "disk": ["ipc"],
        "large-fork": ["fork"],
        "memory-limit": ["reclaim"],
        "stopped": ["stopped"],
        "gpu-wait": ["gpu_wait"],
        "gpu-backpressure": ["gpu_backpressure"],
        "first-call": ["first_call"],
        "allocator-churn": ["allocator_churn"],
        "two-causes": ["preemption", "lock"],
        "steady-loader": ["ipc"],
        "steady-sleep": ["sleep"],
        "steady-host-work": ["host_work"],
        "steady-contention": ["run_queue"],
        "full-queue": [],
        "long-synchronize": ["run_queue"],
        "checkpoint": ["io"],
        "noisy-neighbour": ["run_queue"],
        "idle-server": [],
        "remote-read": ["network"],
        "memory-leak": ["leak"],
        "memory-fragmentation": ["fragmentation"],
        "memory-exhaustion": ["exhausted"],
        "device-shared": ["other_process"],
        "empty-cache": ["empty_cache"],
        "allocator-bypass": ["allocator_bypass"],
        "healthy-memory": [],
    }[name]
    found = [cause["kind"] for cause in incidents[0]["causes"]] if incidents else []
    assert found[: len(expected)] == expected
    if not expected:
        assert {i["severity"] for i in incidents} & {"high", "medium"} == set()


@pytest.mark.parametrize(
    ("name", "function", "work"),
    [
        ("busy-loader", "slow_augment", None),
        ("slow-python", "tokenise", None),
        ("gil-holder", "tokenise", None),
        ("garbage-collection", "collect_garbage", "gc"),
    ],
)
def test_who_works_does_so_in_the_right_line(
    capfd: pytest.CaptureFixture[str], name: str, function: str, work: str | None
) -> None:
    """At the end of the chain is where the one who is waited for, or the loop itself, worked."""
    assert explain(name) == 0

    cause = json.loads(capfd.readouterr().out)["incidents"][0]["causes"][0]
    while "via" in cause:
        cause = cause["via"][0]
    line = cause["lines"][0]
    assert cause["kind"] == "host_work"
    assert (line["function"], line["work"]) == (function, work)
    assert line["file"].endswith("/busy.py")
    assert line["share"] > 0.5


def test_without_a_compiler_the_hint_names_what_works(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    """A user without one can still see every scenario."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OtelGpuError) as raised:
        build(SCENARIOS["lock"], tmp_path)

    assert "--synthetic" in raised.value.hint

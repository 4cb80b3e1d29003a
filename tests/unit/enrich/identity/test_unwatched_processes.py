"""Who a process is, in words that an operator can do something with."""

import pytest

from otel_gpu.enrich.identity.identities import Program, Who
from otel_gpu.enrich.identity.unwatched_processes import unit_of, who_of, who_of_facts

CONTAINER = "0123456789abcdef" * 4
POD = "5ac0e5c2-8a1d-4f0e-9d65-1f2d3c4b5a69"
POD_CGROUP = (
    f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}"
    f".slice/cri-containerd-{CONTAINER}.scope"
)


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("0::/system.slice/nginx.service", "nginx.service"),
        ("0::/system.slice/system-getty.slice/getty@tty1.service", "getty@tty1.service"),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-x.scope",
            "app-x.scope",
        ),
        ("0::/system.slice/docker.service/workers", "docker.service"),
        ("0::/", ""),
        ("", ""),
        ("0::/my.service.d", ""),
    ],
)
def test_the_deepest_unit_of_a_cgroup(cgroup, unit):
    """A name that only looks like a unit's is none."""
    assert unit_of(cgroup) == unit


def test_a_stranger_in_a_pod():
    """Secrets are masked again: the recording may come from anywhere."""
    body = {
        "comm": "python",
        "command_args": ["python", "noise.py", "--token=abc"],
        "owner": "ada",
        "cgroups": [POD_CGROUP],
    }

    assert who_of_facts(7, body) == Who(
        7, 0, "python", "python noise.py --token=***", CONTAINER, POD, "", "ada"
    )


def test_hostile_facts_are_bounded():
    """A command line can be as long as its process likes."""
    who = who_of_facts(7, {"comm": "x", "command_args": ["a" * 9_000] * 60, "owner": "o" * 9_000})

    assert len(who.command) == 256
    assert len(who.owner) <= 256
    assert who_of_facts(7, {}) == Who(7)


def test_a_watched_process_has_it_in_its_attributes():
    """So that both are shown in the same words."""
    process = Program(
        7,
        1,
        "python",
        0,
        {
            "service.name": "train",
            "process.command_args": ("python", "train.py"),
            "process.linux.cgroup": "0::/system.slice/train.service",
            "process.owner": "ada",
        },
    )

    assert who_of(process) == Who(7, 0, "python", "python train.py", "", "", "train.service", "ada")

"""
The container image: its Dockerfile as text, and what its entrypoint does with capabilities.

No container engine is needed. The interpreter with capabilities is made by the Dockerfile's own
command, and run as the image's user with what an engine would leave it: for another user than
root that is a bounding set, and nothing else.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.agent import calls, losses, points
from tests.kernel.meter import Meter, hidden
from tests.packaging.clean_host import CleanHost
from tests.packaging.wheel import ROOT
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries

DOCKER = ROOT / "deploy" / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
UNIT = (ROOT / "deploy" / "systemd" / "otel-gpu.service").read_text(encoding="utf-8")
USER = "65532"
CAPABILITIES = {
    "bpf", "perfmon", "sys_ptrace", "dac_read_search", "checkpoint_restore", "syslog"
}  # fmt: skip


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, each on one line."""
    lines = [line for line in DOCKERFILE.splitlines() if not line.lstrip().startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ")
    return [
        (name, re.sub(r"\s+", " ", rest).strip())
        for name, _, rest in (line.partition(" ") for line in whole.splitlines() if line)
    ]


def test_the_base_is_a_release_and_the_last_user_is_not_root():
    """The base is pinned by a tag that names a point release; what runs is user 65532."""
    found = instructions()
    bases = [rest for name, rest in found if name == "FROM"]
    users = [rest for name, rest in found if name == "USER"]

    assert ("ARG", "DEBIAN=12.11-slim") in found
    assert bases == [
        "docker.io/library/debian:${DEBIAN} AS build",
        "docker.io/library/debian:${DEBIAN}",
    ]
    assert users == [f"{USER}:{USER}"]
    assert found[-1] == ("CMD", '["run", "--all", "--summary", "never"]')
    assert {name for name, _ in found} & {"ADD", "MAINTAINER", "EXPOSE"} == set()


def test_the_last_stage_has_no_compiler():
    """What was built is copied, and what built it stays behind."""
    last = DOCKERFILE.rpartition("\nFROM ")[2]

    assert [
        tool for tool in ("clang", "bpftool", "make", "libbpf-dev", "pip") if tool in last
    ] == []
    assert "COPY --from=build /opt/otel-gpu /opt/otel-gpu" in last


def test_image_service_and_documentation_name_the_same_capabilities():
    """Each of the six is in the image, in the unit, and on the page that says what it is for."""
    (given,) = re.findall(r"setcap (\S+)=ep", DOCKERFILE)
    (bounded,) = re.findall(r"^CapabilityBoundingSet=(.*)$", UNIT, re.MULTILINE)
    page = (DOCKER / "README.md").read_text(encoding="utf-8")

    assert {name.removeprefix("cap_") for name in given.split(",")} == CAPABILITIES
    assert {name.removeprefix("CAP_").lower() for name in bounded.split()} == CAPABILITIES
    assert {name.lower() for name in re.findall(r"--cap-add=(\w+)", page)} == CAPABILITIES
    assert [name for name in CAPABILITIES if f"| `CAP_{name.upper()}` |" not in page] == []


def test_a_build_gets_neither_secrets_nor_what_was_built_here():
    """Environment files, the repository's history and objects of this machine stay out."""
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()

    assert {".git", ".venv", "dist", "otel_gpu/_bpf", "**/*.env"} <= set(ignored)


def test_the_entrypoint_is_a_plain_shell_script():
    """It can be executed, and a shell that checks finds nothing wrong."""
    entrypoint = DOCKER / "entrypoint.sh"

    assert entrypoint.stat().st_mode & 0o111 == 0o111
    subprocess.run(["sh", "-n", entrypoint], check=True)
    if checker := shutil.which("shellcheck"):
        subprocess.run([checker, entrypoint], check=True)


@pytest.fixture(scope="module")
def image(clean_host: CleanHost) -> CleanHost:
    """The clean host, with what the Dockerfile adds to the venv."""
    if not shutil.which("setcap", path="/usr/sbin:/sbin:/usr/bin") or not shutil.which("setpriv"):
        pytest.skip("setcap (libcap2-bin) or setpriv (util-linux) is not installed")
    run = next(rest for name, rest in instructions() if name == "RUN" and "setcap" in rest)
    added = [command for command in run.split(" && ") if "python3-capture" in command]
    assert [command.split()[0] for command in added] == ["install", "setcap"]
    # There is no such group here; the image has made it by then.
    script = " && ".join(added).replace("-g otel-gpu", f"-g {USER}")
    clean_host.run("sh", "-euc", script)
    clean_host.run("cp", str(DOCKER / "entrypoint.sh"), "/opt/otel-gpu/bin/entrypoint")
    return clean_host


def as_container(image: CleanHost, capabilities: set[str], *flags: str) -> list[str]:
    """The command line that runs the entrypoint as the image's user in such a container."""
    bound = "".join(f",+{name}" for name in sorted(capabilities))
    limits = (f"--bounding-set=-all{bound}", "--inh-caps=-all", "--ambient-caps=-all", *flags)
    user = (f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
    return image.inside("setpriv", *limits, *user, "/opt/otel-gpu/bin/entrypoint")


@pytest.mark.kernel
def test_capabilities_of_the_container_reach_a_user_who_is_not_root(
    image: CleanHost, receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """
    With the six added, user 65532 counts every call of another user's process, also of one whose
    library lies in a folder that is closed to others.
    """
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.grpc_endpoint,
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
        "PATH": "/usr/bin:/bin:/usr/sbin",
    }
    with Meter(image.inside(*hidden(stubs))) as meter:
        command = [*as_container(image, CAPABILITIES), "run", "--pid", str(meter.pid)]
        with subprocess.Popen([*command, "--summary", "never"], env=environment) as agent:
            receiver.wait_for(lambda: points(receiver, "otel_gpu.coverage"))
            status = Path(f"/proc/{agent.pid}/status").read_text(encoding="utf-8")
            ran = Path(f"/proc/{agent.pid}/cmdline").read_bytes().split(b"\0")[0]
            children = set(names_of_children(agent.pid))
            meter.make(1009)
            meter.end()
            assert agent.wait(60) == 0

    assert ran == b"/opt/otel-gpu/bin/python3-capture"
    # What places probes is a process of its own, whose program has these capabilities, too.
    assert "otel-gpu-attach" in children
    assert re.search(rf"^Uid:\s{USER}\s{USER}", status, re.MULTILINE)
    assert calls(receiver, "cudaStreamSynchronize", meter.pid) == 1009
    assert losses(receiver) == {}


def names_of_children(pid: int) -> Iterator[str]:
    """The names of the processes that one has forked."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text(encoding="ascii").split():
            yield Path(f"/proc/{child}/comm").read_text(encoding="ascii").strip()


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("capabilities", "flags"),
    [
        (set(), ()),
        (CAPABILITIES - {"syslog"}, ()),
        (CAPABILITIES, ("--no-new-privs",)),
    ],
    ids=["none", "five", "no-new-privileges"],
)
def test_a_container_without_all_of_them_starts_and_says_so(
    image: CleanHost, capabilities: set[str], flags: tuple[str, ...]
) -> None:
    """What needs no capability works, and doctor says which are missing."""
    command = as_container(image, capabilities, *flags)
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    asked = subprocess.run(
        [*command, "doctor", "--json"], capture_output=True, text=True, check=False
    )
    findings = {f["name"]: f for f in json.loads(asked.stdout)["findings"]}

    assert version.stdout.startswith("otel-gpu ")
    assert asked.returncode == 1
    assert findings["capabilities"]["status"] == "missing"
    assert findings["capabilities"]["detail"] == "without CAP_BPF, CAP_PERFMON"

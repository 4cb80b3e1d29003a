"""The agent's container under the restrictions of its manifest, on a real kernel."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deploy.containers import NUMBERS, Container
from tests.deploy.manifests import Manifest, load, render
from tests.kernel.agent import calls, losses, points, spans
from tests.kernel.meter import Meter, hidden
from tests.receiver import OtlpReceiver, attributes_of
from tests.stubs.build import StubLibraries

pytestmark = [pytest.mark.kernel, pytest.mark.backends]

API = "cudaStreamSynchronize"
AGENT = ("DaemonSet", "otel-gpu")


@pytest.fixture(scope="module")
def direct() -> list[Manifest]:
    return load(render("overlays/daemonset-direct"))


def sent_to(receiver: OtlpReceiver) -> Mapping[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.grpc_endpoint,
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
        "OTEL_GPU_SPANS_MODE": "full",
    }


class Program(Meter):
    """The call meter as another user, in mount and pid namespaces of its own."""

    def __init__(self, stubs: StubLibraries) -> None:
        super().__init__(hidden(stubs, "--pid", "--fork", "--mount-proc", "--kill-child"))
        assert self.pid == 1
        outer = self.process.pid
        children = Path(f"/proc/{outer}/task/{outer}/children").read_text(encoding="ascii")
        self.pid = int(children)


@contextmanager
def capturing(container: Container, receiver: OtlpReceiver) -> Iterator[Container]:
    """The container, from when probes stand to when it has ended as it should."""
    with container:
        receiver.wait_for(lambda: points(receiver, "otel_gpu.coverage"), 20)
        yield container
        assert container.stop() == 0


def test_every_call_of_a_pod_on_the_node_is_counted(
    direct: Sequence[Manifest], receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """
    As the DaemonSet has it, 1,009 calls of another user in other namespaces are 1,009, with stacks.
    """
    with (
        Program(stubs) as program,
        capturing(Container(direct, AGENT, sent_to(receiver)), receiver),
    ):
        program.make(1009)

    (point,) = points(receiver, "gpu.cuda.call.duration", program.pid, gpu__cuda__api=API)
    stacks = [
        str(attributes_of(event.attributes)["code.stacktrace"])
        for span in spans(receiver, API, program.pid)
        for event in span.span.events
        if event.name == "stack"
    ]

    assert point.point.count == 1009
    assert {reason: n for reason, n in losses(receiver).items() if reason != "sample"} == {}
    assert [stack for stack in stacks if "\nmain (timed)" in stack]
    assert point.resource["process.vpid"] == 1
    assert point.resource["k8s.node.name"] == "node-7"
    assert point.resource["k8s.cluster.name"] == "my-cluster"
    assert point.resource["host.id"] == Path("/etc/machine-id").read_text(encoding="ascii").strip()


def test_the_restrictions_of_the_manifest_are_in_force(
    direct: Sequence[Manifest], receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """
    No root, six capabilities, a filter of system calls, nothing to write but the recorder's volume;
    and of its limits it needs less than half.
    """
    with (
        Program(stubs) as program,
        capturing(Container(direct, AGENT, sent_to(receiver)), receiver) as container,
    ):
        program.make(503)
        lines = Path(f"/proc/{container.pid}/status").read_text(encoding="ascii").splitlines()
        status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
        root = Path(f"/proc/{container.pid}/root")
        written = container.run("sh", "-c", "touch /x /sys/fs/cgroup/x; echo a > /etc/machine-id")
        stored = {path.name for path in (root / "var/lib/otel-gpu").iterdir()}
        limit, used = (_memory(container.cgroup, name) for name in ("limit", "usage"))
        hostname = (root / "proc/sys/kernel/hostname").read_text(encoding="ascii")

    held = {name: int(status[name][0], 16) for name in ("CapEff", "CapPrm", "CapBnd")}
    assert held == dict.fromkeys(held, sum(1 << number for number in NUMBERS.values()))
    assert status["Uid"] == ["65532"] * 4
    assert status["Groups"] == ["65532"]
    assert status["Seccomp"] == ["2"]
    assert written.stderr.count("Read-only file system") == 3
    assert "store.db" in stored
    assert limit == 512 << 20
    assert 0 < used < limit / 2
    assert hostname


def test_doctor_in_the_container_misses_nothing(
    direct: Sequence[Manifest], receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """`kubectl exec ds/otel-gpu -- entrypoint doctor` finds all that a capture needs."""
    with (
        Program(stubs),
        capturing(Container(direct, AGENT, sent_to(receiver)), receiver) as container,
    ):
        done = container.run("/opt/otel-gpu/bin/entrypoint", "doctor", "--json")

    document = json.loads(done.stdout)
    statuses = {finding["name"]: finding["status"] for finding in document["findings"]}
    assert (done.returncode, document["can_capture"]) == (0, True)
    assert {statuses[name] for name in ("capabilities", "libbpf", "pid_namespace", "btf")} == {"ok"}
    assert "missing" not in statuses.values()


def test_a_sidecar_sees_its_own_pod_and_no_other(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """
    In the pod's pid namespace its calls are counted under the pod's own pid, and no others are.
    """
    manifests = load(render("overlays/sidecar"))
    with Program(stubs) as own, Program(stubs) as other:
        sidecar = Container(manifests, ("Deployment", "vllm"), sent_to(receiver), own.pid)
        with capturing(sidecar, receiver):
            own.make(1009)
            other.make(503)

    (point,) = points(receiver, "gpu.cuda.call.duration", gpu__cuda__api=API)
    assert (point.point.count, point.resource["process.pid"]) == (1009, 1)
    assert point.resource["k8s.pod.name"] == "trainer-0"
    assert calls(receiver, API) == 1009


def _memory(cgroup: Path, kind: str) -> int:
    first, second = {"limit": ("limit_in_bytes", "max"), "usage": ("usage_in_bytes", "current")}[
        kind
    ]
    path = cgroup / f"memory.{first}"
    return int((path if path.exists() else cgroup / f"memory.{second}").read_text(encoding="ascii"))

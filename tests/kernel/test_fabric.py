"""Network adapters beside a capture: a tree as the kernel shows them, of a test's own."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.adapters import write_port
from tests.kernel.agent import Agent, calls, losses, points, spans
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, stub_ibverbs, workload

pytestmark = pytest.mark.kernel

API = "cudaStreamSynchronize"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of the adapters, of which there is one."""
    path = tmp_path / "infiniband"
    write_port(path)
    return path


def counts(receiver: OtlpReceiver, metric: str, **attributes: str) -> dict[str, int]:
    """The latest value of a metric by port."""
    return {
        key.attribute("hw.id"): point.point.as_int
        for key, point in receiver.metrics().items()
        if key.name == metric
        and all(
            key.attribute(name.replace("_", ".")) == value for name, value in attributes.items()
        )
    }


def test_ports_are_metrics_of_the_host(
    receiver: OtlpReceiver, stubs: StubLibraries, root: Path
) -> None:
    """Over a reset and an adapter that comes and goes, exactly; calls are counted as ever."""
    command = [workload("steady"), stubs.runtime, "1000", "6"]
    environment = {"OTEL_GPU_FABRIC_ROOT": str(root), "OTEL_GPU_FABRIC_INTERVAL_S": "0.1"}
    with Agent(receiver, command, env=environment) as agent:
        pid = agent.next_line()["pid"]
        receiver.wait_for(lambda: points(receiver, "hw.network.io"))
        # It is reset, and counts anew; another one is plugged in.
        write_port(root, symbol_error=0, out_of_sequence=1)
        write_port(root, "mlx5_7", out_of_sequence=1009)
        wanted = {"mlx5_0/1": 3 + 1, "mlx5_7/1": 1009}
        receiver.wait_for(
            lambda: counts(receiver, "rdma.events", rdma_event="out_of_sequence") == wanted
        )
        shutil.rmtree(root / "mlx5_7")
        receiver.wait_for(
            lambda: counts(receiver, "hw.network.up") == {"mlx5_0/1": 1, "mlx5_7/1": 0}
        )
        made = agent.next_line()[API]
        assert agent.wait().returncode == 0

    assert counts(receiver, "hw.network.io", network_io_direction="transmit")["mlx5_0/1"] == (
        4 * 250_000_003
    )
    assert counts(receiver, "otel_gpu.fabric.failed") == {}
    assert calls(receiver, API, pid) == made
    assert losses(receiver) == {}


# Uses RDMA, waits for its device as is usual, and then once for much longer.
WAITS = """
import ctypes, sys
runtime, verbs = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[2])
verbs.ibv_reg_mr.restype = ctypes.c_void_p
assert verbs.ibv_reg_mr(None, None, ctypes.c_size_t(4096), 7)
for _ in range(100):
    runtime.cudaStreamSynchronize(None)
print("{}", flush=True)
sys.stdin.readline()
runtime.stub_set(b"cudaStreamSynchronize", b"sleep_ns=2000000000")
runtime.cudaStreamSynchronize(None)
"""


def test_what_was_lost_while_the_device_was_waited_for_is_in_the_chain(
    receiver: OtlpReceiver, stubs: StubLibraries, root: Path
) -> None:
    """The wait is the device's, all of it; beside it stands what the adapter counted meanwhile."""
    told = [sys.executable, "-c", WAITS, stubs.runtime, stub_ibverbs()]
    environment = {"OTEL_GPU_FABRIC_ROOT": str(root), "OTEL_GPU_FABRIC_INTERVAL_S": "0.1"}
    with Agent(receiver, told, env=environment, stdin=subprocess.PIPE) as agent:
        agent.next_line()
        # There is a reading from before, and the usual time of these calls is known.
        receiver.wait_for(lambda: points(receiver, "hw.network.io"))
        receiver.wait_for(lambda: points(receiver, "verbs.call.duration"))
        agent.send_line()
        receiver.wait_for(lambda: agent.process.poll() is not None or _raise(root))
        assert agent.wait().returncode == 0

    (network,) = [
        span
        for span in spans(receiver, "gpu.cause.network")
        if span.attributes["otel_gpu.cause.time"] == 0
    ]
    (counted,) = network.attributes["otel_gpu.cause.counted"]
    assert counted.startswith("mlx5_0 port 1: ")
    assert counted.endswith(" local_ack_timeout_err")
    (wait,) = [
        span
        for span in spans(receiver, "gpu.cause.gpu_wait")
        if span.span.trace_id == network.span.trace_id
    ]
    assert wait.attributes["otel_gpu.cause.time"] >= 1.9


def _raise(root: Path) -> bool:
    """One more lost packet, each time that somebody looks."""
    counter = root / "mlx5_0" / "ports" / "1" / "hw_counters" / "local_ack_timeout_err"
    more = counter.with_name("more")
    more.write_text(f"{int(counter.read_text()) + 1}\n")
    more.replace(counter)
    return False

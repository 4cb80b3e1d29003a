"""Calls of verbs, by which programs prepare RDMA, and what adapters say by their events."""

import signal
import subprocess
import sys

import pytest

from tests.kernel.agent import Agent, losses, points, spans, total
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, stub_ibverbs, workload

pytestmark = pytest.mark.kernel

PORT_ERROR, PORT_ACTIVE, QP_FATAL, OF_A_LATER_VERSION = 10, 9, 1, 77
EVENTS = (PORT_ERROR, PORT_ACTIVE, PORT_ERROR, QP_FATAL, PORT_ACTIVE, PORT_ACTIVE)
EVENTS += (OF_A_LATER_VERSION,)


def command(stubs: StubLibraries, calls: int, threads: int, *events: int) -> list[str]:
    """The workload with its libraries."""
    told = map(str, (calls, threads, *events))
    return [*map(str, (workload("verbs"), stubs.runtime, stub_ibverbs())), *told]


def counts(receiver: OtlpReceiver, pid: int) -> dict[tuple[str, str | None], int]:
    """Return how many calls the histograms hold, by operation and error."""
    found = {}
    for key, point in receiver.metrics().items():
        if key.name == "verbs.call.duration" and key.pid == pid:
            name = (key.attribute("verbs.operation"), key.attribute("error.type"))
            found[name] = found.get(name, 0) + point.point.count
    return found


def events(receiver: OtlpReceiver, pid: int) -> dict[str, int]:
    """Return how many events were counted, by their name."""
    return {
        key.attribute("verbs.event"): point.point.as_int
        for key, point in receiver.metrics().items()
        if key.name == "verbs.async.events" and key.pid == pid
    }


def test_calls_bytes_and_events_are_exact(receiver: OtlpReceiver, stubs: StubLibraries) -> None:
    """
    Of both versions of a function, from two threads, over failures; nothing is lost.

    So many calls fail that most of their spans are rate-limited; those of an adapter's failures,
    which may be why, are not.
    """
    environment = {
        "OTEL_GPU_SPANS_RATE_PER_PROCESS": "1",
        # So many failures at once have more stacks than there is room for.
        "OTEL_GPU_STACKS_ENABLED": "false",
    }
    told = command(stubs, 100_003, 2, *EVENTS)
    with Agent(receiver, told, env=environment, stdin=subprocess.PIPE) as agent:
        pid = agent.next_line()["pid"]
        agent.send_line()
        made = agent.next_line()
        assert agent.wait().returncode == 0

    assert counts(receiver, pid) == {
        ("ibv_open_device", None): 1,
        ("ibv_create_cq", None): 1,
        ("ibv_create_qp", None): 1,
        ("ibv_reg_mr", None): made["ibv_reg_mr"],
        ("ibv_reg_mr", "_OTHER"): made["failed_reg_mr"],
        ("ibv_reg_mr_iova2", None): made["ibv_reg_mr_iova2"],
        ("ibv_reg_dmabuf_mr", None): made["ibv_reg_dmabuf_mr"],
        ("ibv_dereg_mr", None): made["ibv_dereg_mr"],
        ("ibv_modify_qp", None): made["ibv_modify_qp"],
        ("ibv_modify_qp", "EINVAL"): made["failed_modify_qp"],
    }
    assert total(receiver, "verbs.memory.registered", pid) == made["registered_bytes"]
    assert events(receiver, pid) == {
        "IBV_EVENT_PORT_ERR": 2,
        "IBV_EVENT_PORT_ACTIVE": 3,
        "IBV_EVENT_QP_FATAL": 1,
        "_OTHER": 1,
    }
    assert losses(receiver) == {}
    # A failure of an adapter is a span that takes no time, and the wait for it none at all.
    failed = spans(receiver, "ibv_get_async_event", pid)
    assert sorted(span.attributes["error.type"] for span in failed) == [
        *("IBV_EVENT_PORT_ERR", "IBV_EVENT_PORT_ERR", "IBV_EVENT_QP_FATAL")
    ]
    assert {span.span.end_time_unix_nano - span.span.start_time_unix_nano for span in failed} == {0}
    assert points(receiver, "gpu.cuda.call.open.age", pid) == []
    incidents = [span.attributes for span in spans(receiver, "gpu.incident", pid)]
    said = [one for one in incidents if one["otel_gpu.cause.kind"] == "network"]
    assert [one["otel_gpu.incident.effects"] for one in said] == [3]
    assert said[0]["otel_gpu.severity"] == "high"


def test_an_event_that_was_waited_for_before_the_capture_is_counted(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Its return is not seen; that it is acknowledged is. It is counted once all the same."""
    told = command(stubs, 0, 1, *EVENTS)
    with subprocess.Popen(
        told, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        pid = program.pid
        program.stdout.readline()
        with Agent(receiver, flags=["--pid", str(pid)]) as agent:
            receiver.wait_for(lambda: points(receiver, "otel_gpu.probe.hits"))
            program.stdin.write("\n")
            program.stdin.flush()
            assert agent.wait().returncode == 0
        assert program.wait() == 0

    assert events(receiver, pid) == {
        "IBV_EVENT_PORT_ERR": 2,
        "IBV_EVENT_PORT_ACTIVE": 3,
        "IBV_EVENT_QP_FATAL": 1,
        "_OTHER": 1,
    }
    assert len(spans(receiver, "ibv_get_async_event", pid)) == 3
    assert losses(receiver) == {}


OF_A_STORAGE_SERVER = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.ibv_reg_mr.restype = library.ibv_open_device.restype = ctypes.c_void_p
library.ibv_open_device(None)
print(flush=True)
for _ in sys.stdin:
    library.ibv_reg_mr(None, None, ctypes.c_size_t(4096), 7)
    print(flush=True)
"""


def probed(receiver: OtlpReceiver) -> set[str]:
    """Return the libraries that carry probes."""
    return {
        key.attribute("otel_gpu.library.path")
        for key in receiver.metrics()
        if key.name == "otel_gpu.coverage"
    }


@pytest.mark.alone(among="preload")
def test_who_uses_the_network_alone_is_not_watched(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """``--all`` is for programs that use CUDA; a storage server uses libibverbs as well."""
    told = [sys.executable, "-c", OF_A_STORAGE_SERVER, str(stub_ibverbs())]
    with Agent(receiver, flags=("--all",)) as agent:
        receiver.wait_for(receiver.metrics)
        with subprocess.Popen(
            told, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdout.readline()
            # A program of the same library, by whose calls it is known that probes are in it.
            with subprocess.Popen(
                command(stubs, 1009, 1, PORT_ERROR),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as trainer:
                assert trainer.stdin is not None
                assert trainer.stdout is not None
                trainer.stdout.readline()
                for library in (stubs.runtime, stub_ibverbs()):
                    receiver.wait_for(lambda path=str(library): path in probed(receiver))
                server.stdin.write("\n")
                server.stdin.flush()
                server.stdout.readline()
                trainer.stdin.write("\n")
                trainer.stdin.flush()
                trainer.stdout.readline()
                assert trainer.wait() == 0
            receiver.wait_for(lambda: events(receiver, trainer.pid))
            server.stdin.close()
            assert server.wait() == 0
        agent.signal(signal.SIGTERM)
        agent.wait()

    assert counts(receiver, trainer.pid)["ibv_reg_mr_iova2", None] == 1009 // 7
    assert server.pid not in {key.pid for key in receiver.metrics()}

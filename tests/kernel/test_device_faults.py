"""What is wrong with devices, end to end: XIDs of the kernel's log, and clocks that NVML says are limited."""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tests.kernel.agent import Agent, losses, otel_gpu, points, spans
from tests.receiver import OtlpReceiver, attributes_of
from tests.stubs.build import StubLibraries, stub_nvml, workload

pytestmark = pytest.mark.kernel

BUS_ID = "0000:4e:00"
ERROR = 17
# Of user programs, as the kernel marks what they write.
USER = 1 << 3
# The call that a program was in when the probes came.
CALL_BEFORE = {"no_entry"}


def fell_off(pid: int, xid: int = 79) -> str:
    return f"NVRM: Xid (PCI:{BUS_ID}): {xid}, pid={pid}, name=steady, GPU has fallen off the bus."


class Log:
    """A kernel's log, which a test writes as the kernel would."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number = 0
        path.touch()

    def write(self, text: str, priority: int = 3) -> None:
        """Write one record."""
        self._number += 1
        with self.path.open("a") as file:
            file.write(f"{priority},{self._number},34599066974,-;{text}\n")


@contextlib.contextmanager
def steady(stubs: StubLibraries) -> Iterator[int]:
    """A program that calls CUDA until it is not needed any more; its pid."""
    command = [workload("steady"), stubs.runtime, "1000", "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def fault_logs(receiver: OtlpReceiver) -> list[tuple[dict[str, Any], Any]]:
    """The log records of errors, with the resource of each."""
    return [
        (attributes_of(resource.resource.attributes), record)
        for request in receiver.requests("logs")
        for resource in ExportLogsServiceRequest.FromString(request.body).resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
        if record.event_name == "gpu.device.fault"
    ]


def incidents_of(document: dict[str, Any], cause: str) -> list[tuple[str, str, int]]:
    """Of the incidents with a leading cause: severity, advice, whose."""
    return [
        (one["severity"], one["advice"][0], one["pid"])
        for one in document["incidents"]
        if one["causes"] and one["causes"][0]["kind"] == cause
    ]


def test_an_xid_is_an_incident_of_the_process_that_it_names_and_of_no_other(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """
    Two programs are watched. Forged lines name the second one: of user programs, and in the name of a program.
    Recording and store say what was sent.
    """
    log = Log(tmp_path / "kmsg")
    log.write(fell_off(1))
    recording, store = tmp_path / "run.otelgpu", tmp_path / "store.db"
    with steady(stubs) as first, steady(stubs) as second:
        flags = [f"--pid={first}", f"--pid={second}", f"--record={recording}", f"--store={store}"]
        environment = {
            "OTEL_GPU_DEVICES_KERNEL_LOG": str(log.path),
            "OTEL_GPU_STORE_ENABLED": "auto",
        }
        with Agent(receiver, flags=flags, env=environment) as agent:
            receiver.wait_for(
                lambda: all(
                    points(receiver, "gpu.cuda.call.duration", pid) for pid in (first, second)
                )
            )
            log.write(fell_off(second), priority=USER | 3)
            log.write(f"x\\x0a{fell_off(second)}")
            log.write(f"NVRM: Xid (PCI:[{second}]: segfault at 0 ip 0 sp 0 error 4")
            log.write(
                f"NVRM: Xid (PCI:{BUS_ID}): 79, pid={first}, name=a, pid={second}, b, Fell off"
            )
            receiver.wait_for(lambda: fault_logs(receiver))
            receiver.wait_for(lambda: points(receiver, "hw.errors"))
            agent.signal(signal.SIGTERM)
            assert agent.wait().returncode == 0, agent.stderr

    ((resource, record),) = fault_logs(receiver)
    said = attributes_of(record.attributes)
    assert (resource["process.pid"], record.severity_number) == (first, ERROR)
    assert (said["gpu.xid"], said["gpu.bus_id"], said["otel_gpu.severity"]) == (79, BUS_ID, "high")
    assert said["gpu.fault.message"] == f"pid={second}, b, Fell off"
    (fault,) = spans(receiver, "gpu.device.fault")
    assert fault.resource["process.pid"] == first
    assert fault.span.span_id == record.span_id
    # A busy host keeps programs waiting, too.
    incidents = [
        (span.resource["process.pid"], span.attributes["otel_gpu.severity"])
        for span in spans(receiver, "gpu.incident")
        if span.attributes["otel_gpu.cause.kind"] == "gpu_fault"
    ]
    assert incidents == [(first, "high")]
    (errors,) = points(receiver, "hw.errors", error__type="xid_79")
    assert (errors.point.as_int or errors.point.as_double) == 1
    assert losses(receiver).keys() <= CALL_BEFORE
    check_documents(recording, store, first)


def check_documents(recording: Path, store: Path, pid: int) -> None:
    documents = []
    for source in ((recording,), ("--store", store)):
        done = otel_gpu("explain", *source, "--json")
        assert done.returncode == 0, done.stderr
        # A store may have a note more: on what it did not keep of a busy host.
        documents.append(json.loads(done.stdout) | {"source": "", "notes": []})
    from_recording, from_store = documents
    assert from_store == from_recording
    ((severity, advice, of_pid),) = incidents_of(from_recording, "gpu_fault")
    assert (severity, of_pid) == ("high", pid)
    assert "restart the host" in advice
    rows = json.loads(
        otel_gpu("query", "--store", store, "--json", "SELECT xid, pid FROM v_device_faults").stdout
    )
    assert rows["rows"] == [[79, pid]]


def test_a_process_that_died_of_it_has_the_incident_all_the_same(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """Its end is there before the line that says why."""
    log = Log(tmp_path / "kmsg")
    environment = {"OTEL_GPU_DEVICES_KERNEL_LOG": str(log.path)}
    with steady(stubs) as other, steady(stubs) as pid:
        flags = [f"--pid={pid}", f"--pid={other}"]
        with Agent(receiver, flags=flags, env=environment) as agent:
            receiver.wait_for(
                lambda: all(points(receiver, "gpu.cuda.call.duration", one) for one in (pid, other))
            )
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            log.write(fell_off(pid, 31))
            receiver.wait_for(lambda: fault_logs(receiver))
            agent.signal(signal.SIGTERM)
            assert agent.wait().returncode == 0, agent.stderr

    ((resource, _),) = fault_logs(receiver)
    assert resource["process.pid"] == pid
    of_faults = [
        span.resource["process.pid"]
        for span in spans(receiver, "gpu.incident")
        if span.attributes["otel_gpu.cause.kind"] == "gpu_fault"
    ]
    assert of_faults == [pid]


def test_lines_of_user_programs_in_the_kernels_own_log_are_not_believed(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """The kernel's log itself, into which the test writes what looks like the driver's words."""
    if not os.access("/dev/kmsg", os.R_OK | os.W_OK):
        pytest.skip("the kernel's log cannot be read and written here")
    with steady(stubs) as pid, Agent(receiver, flags=[f"--pid={pid}"]) as agent:
        receiver.wait_for(lambda: points(receiver, "gpu.cuda.call.duration", pid))
        with Path("/dev/kmsg").open("w") as log:
            log.write(f"<7>{fell_off(pid)}\n")
        # All that was there by now is read with what follows.
        before = len(receiver.requests("metrics"))
        receiver.wait_for(lambda: len(receiver.requests("metrics")) > before + 2)
        agent.signal(signal.SIGTERM)
        assert agent.wait().returncode == 0, agent.stderr

    mine = [
        record for resource, record in fault_logs(receiver) if resource.get("process.pid") == pid
    ]
    assert mine == []
    assert spans(receiver, "gpu.device.fault", pid) == []


def test_a_log_that_cannot_be_read_breaks_nothing_and_nvml_is_asked(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """It does not say whose work it was: it is the host's, and nobody's incident."""
    said = tmp_path / "devices.txt"
    said.write_text("-1 count 1\n0 uuid GPU-1\n0 bus_id 00000000:4E:00.0\n0 power_mw 1\n")
    environment = {
        "LD_LIBRARY_PATH": str(stub_nvml().parent),
        "OTEL_GPU_STUB_NVML": str(said),
        "OTEL_GPU_DEVICES_INTERVAL_S": "1",
        "OTEL_GPU_DEVICES_KERNEL_LOG": str(tmp_path / "nowhere"),
    }
    with steady(stubs) as pid, Agent(receiver, flags=[f"--pid={pid}"], env=environment) as agent:
        receiver.wait_for(lambda: points(receiver, "hw.power"))
        with said.open("a") as file:
            file.write("0 xid 79\n")
        receiver.wait_for(lambda: fault_logs(receiver))
        receiver.wait_for(lambda: points(receiver, "hw.errors", error__type="xid_79"))
        agent.signal(signal.SIGTERM)
        assert agent.wait().returncode == 0, agent.stderr

    ((resource, record),) = fault_logs(receiver)
    assert resource["service.name"] == "otel-gpu"
    attributes = attributes_of(record.attributes)
    assert (attributes["gpu.fault.source"], attributes["hw.id"]) == ("nvml", "GPU-1")
    assert spans(receiver, "gpu.device.fault") == []
    assert losses(receiver).keys() <= CALL_BEFORE


class Hot(threading.Thread):
    """A device whose clocks are limited to a third by heat, all of the time."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self._path = path
        self.stopping = threading.Event()
        self.say()

    def say(self) -> None:
        """Count on."""
        said = "-1 count 1\n0 uuid GPU-1\n0 power_mw 1\n0 clock_mhz 660\n0 clock_limit_mhz 1980\n"
        said += f"0 field.74 5\n0 field.270 {time.monotonic_ns()}\n"
        fresh = self._path.with_suffix(".new")
        fresh.write_text(said)
        fresh.replace(self._path)

    def run(self) -> None:
        while not self.stopping.wait(0.02):
            self.say()


def test_a_wait_for_a_device_whose_clocks_are_limited_is_due_to_that(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """At a third of its clocks it does a third of its work: two thirds of the wait are lost."""
    device = Hot(tmp_path / "devices.txt")
    device.start()
    environment = {
        "LD_LIBRARY_PATH": str(stub_nvml().parent),
        "OTEL_GPU_STUB_NVML": str(tmp_path / "devices.txt"),
        "OTEL_GPU_DEVICES_INTERVAL_S": "1",
        "OTEL_GPU_SPANS_MODE": "full",
    }
    recording, store = tmp_path / "run.otelgpu", tmp_path / "store.db"
    asked = [*["2000000"] * 101, "step", "3000000000", *["2000000"] * 3, "step"]
    flags = [f"--record={recording}", f"--store={store}"]
    command = [workload("durations"), stubs.runtime, "sleep", *asked]
    environment["OTEL_GPU_STORE_ENABLED"] = "auto"
    with Agent(receiver, command, flags=flags, env=environment, stdin=subprocess.PIPE) as agent:
        for _ in range(101):
            agent.next_line()
        assert agent.next_line() == {"step": True}
        receiver.wait_for(lambda: len(points(receiver, "hw.power")) == 1)
        agent.send_line()
        slow = agent.next_line()
        for _ in range(3):
            agent.next_line()
        # Until the device was read again.
        before = len(receiver.requests("metrics"))
        receiver.wait_for(lambda: len(receiver.requests("metrics")) > before + 6)
        agent.send_line()
        assert agent.wait().returncode == 0, agent.stderr
    device.stopping.set()

    documents = []
    for source in ((recording,), ("--store", store)):
        done = otel_gpu("explain", *source, "--json")
        assert done.returncode == 0, done.stderr
        # A store may have a note more: on what it did not keep of a busy host.
        documents.append(json.loads(done.stdout) | {"source": "", "notes": []})
    assert documents[0] == documents[1]
    chain = max(documents[0]["chains"], key=lambda one: one["effect"]["duration_ns"])
    limited = next(cause for cause in chain["causes"] if cause["kind"] == "gpu_clocks")
    assert limited["trouble"] | {"device": ""} == {
        "device": "",
        "xid": 0,
        "uncorrected": 0,
        "reason": "hw_thermal",
        "clock_mhz": 660,
        "clock_limit_mhz": 1980,
    }
    assert 0.55 < limited["time_ns"] / slow["elapsed_ns"] < 0.7
    assert [one[0] for one in incidents_of(documents[0], "gpu_clocks")] == ["high"]
    (sent,) = [
        span
        for span in spans(receiver, "gpu.cause.gpu_clocks")
        if span.attributes["otel_gpu.cause.time"] > 1
    ]
    assert sent.attributes["gpu.clock.limit.reason"] == "hw_thermal"
    # What was sent live is what is found again.
    assert round(sent.attributes["otel_gpu.cause.time"] * 1e9) == limited["time_ns"]

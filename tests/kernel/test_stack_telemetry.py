"""Stacks as operators see them: on spans at a receiver, and from ``otel-gpu stacks``."""

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tests.kernel.agent import Agent, open_files, otel_gpu, spans
from tests.receiver import OtlpReceiver, ReceivedSpan, attributes_of
from tests.schemas import STACKS
from tests.stubs.build import WORKLOADS, StubLibraries, library

pytestmark = pytest.mark.kernel

MERGED, WAITS = WORKLOADS / "merged.py", WORKLOADS / "waits.py"
TIMES = 7


def line_of(script: Path, comment: str) -> int:
    """The line that ends with a comment."""
    lines = script.read_text(encoding="utf-8").splitlines()
    (number,) = (n for n, line in enumerate(lines, 1) if line.endswith(f"# {comment}"))
    return number


def stacktrace(span: ReceivedSpan) -> list[str]:
    (event,) = (event for event in span.span.events if event.name == "stack")
    attributes = attributes_of(event.attributes)
    lines = str(attributes["code.stacktrace"]).splitlines()
    assert len(lines) == len(attributes["otel_gpu.stack.frame_types"])
    return lines


def place(attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(
        attributes.get(name)
        for name in ("code.function.name", "code.file.path", "code.line.number")
    )


def test_calls_waits_and_hangs_say_where_they_are(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """
    The span of a call names the line that made it, that of a wait the line that waited, and that
    of a call that hangs the line that hangs, while it does.
    """
    env = {"OTEL_GPU_CAPTURE_OPEN_CALL_LIMIT_S": "0.3"}
    command = [sys.executable, WAITS, stubs.runtime]
    with Agent(receiver, command, flags=("--spans", "full"), env=env) as agent:
        pid = agent.next_line()["pid"]
        (hanging, *_) = receiver.wait_for(
            lambda: [
                span
                for span in spans(receiver, "gpu.cuda.call.open", pid)
                if span.attributes["gpu.cuda.api"] == "cudaStreamSynchronize"
            ]
        )
        os.kill(pid, signal.SIGKILL)
        agent.wait()

    (call,) = spans(receiver, "cudaDeviceSynchronize", pid)
    assert place(call.attributes) == ("inside", str(WAITS), line_of(WAITS, "calls"))
    assert stacktrace(call)[0] == "cudaDeviceSynchronize (libcudart.so.12)"
    assert f"outer ({WAITS}:{line_of(WAITS, 'in outer')})" in stacktrace(call)
    assert place(hanging.attributes) == ("hang", str(WAITS), line_of(WAITS, "hangs"))
    waits = {
        wait.attributes.get("code.function.name"): wait
        for wait in spans(receiver, "sched.blocked", pid)
        if wait.span.end_time_unix_nano - wait.span.start_time_unix_nano > 250_000_000
    }
    assert place(waits["pause"].attributes)[2] == line_of(WAITS, "pauses")
    assert place(waits["callback"].attributes)[2] == line_of(WAITS, "locks")
    assert waits["pause"].attributes["otel_gpu.stall.reason"] == "ipc"
    assert waits["callback"].attributes["otel_gpu.stall.reason"] == "lock"
    assert "otel_gpu.stack.complete" not in call.attributes


@pytest.mark.parametrize("mode", ["attribute", "log", "none"])
def test_the_text_goes_where_it_is_to_go(
    receiver: OtlpReceiver, stubs: StubLibraries, mode: str
) -> None:
    """Into an attribute, into a log record of the same span, or nowhere."""
    command = [sys.executable, MERGED, stubs.runtime, library("native"), "1"]
    with Agent(receiver, command, flags=("--spans", "full", "--stacks", mode)) as agent:
        (line,) = agent.wait().lines

    calls = {
        span.attributes["gpu.cuda.size"]: span
        for span in spans(receiver, "cudaMalloc", line["pid"])
        if "gpu.cuda.size" in span.attributes
    }
    call = calls[1000 * line["chains"]["nested"]]
    assert not call.span.events
    assert ("code.stacktrace" in call.attributes) == (mode == "attribute")
    assert ("otel_gpu.stack.id" in call.attributes) == (mode != "none")
    logs = {
        record.span_id: attributes_of(record.attributes)
        for request in receiver.requests("logs")
        for resource in ExportLogsServiceRequest.FromString(request.body).resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    }
    assert (call.span.span_id in logs) == (mode == "log")
    if mode == "log":
        assert place(logs[call.span.span_id])[2] == line_of(MERGED, "allocates")


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_is_opened_for_stacks_that_nobody_wants(
    stubs: StubLibraries, *, enabled: bool
) -> None:
    """The agent keeps the files of a program open for its stacks, and none where it takes none."""
    env = {"OTEL_GPU_STACKS_ENABLED": str(enabled)}
    with Agent(None, [sys.executable, WAITS, stubs.runtime], env=env) as agent:
        pid = agent.next_line()["pid"]
        held = set(open_files(agent.process.pid))
        os.kill(pid, signal.SIGKILL)
        agent.wait()

    assert (f"/proc/{pid}/maps" in held) is enabled
    assert (str(stubs.runtime.resolve()) in held) is enabled


def test_top_stacks_of_a_command(stubs: StubLibraries, tmp_path: Path) -> None:
    """
    Each chain of calls is a stack with as many calls as were made; the recording gives the same
    document, on a machine that has none of its files.
    """
    recording, output = tmp_path / "run.otelgpu", tmp_path / "stacks.json"
    page = tmp_path / "flames.html"
    command = [sys.executable, MERGED, stubs.runtime, library("native"), str(TIMES)]

    done = otel_gpu(
        *(
            "stacks",
            "--spans",
            "full",
            "--by",
            "calls",
            "--limit",
            "100",
            "--json",
            "--output",
            output,
        ),
        *("--record", recording, "--flamegraph", page, "--", *command),
    )

    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    document = json.loads(output.read_text(encoding="utf-8"))
    STACKS.validate(document)
    assert document["losses"] == {}
    assert document["coverage"]["without_stack"] == 0
    assert document["coverage"]["with_stack"] == document["coverage"]["counted"]
    nested = [
        stack["stand_for"]
        for stack in document["stacks"]
        if stack["name"] == "cudaMalloc"
        and any(frame.get("line") == line_of(MERGED, "in nested") for frame in stack["frames"])
    ]
    assert sum(nested) == TIMES
    assert {stack["pid"] for stack in document["stacks"]} == {said["pid"]}
    assert f"nested ({MERGED}:{line_of(MERGED, 'in nested')})" in page.read_text(encoding="utf-8")

    again = otel_gpu("stacks", "--by", "calls", "--limit", "100", "--json", recording)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == document | {"source": str(recording)}

"""A call that never returns is seen while it hangs, and leaves nothing behind."""

import os
import signal

import pytest

from tests.kernel.agent import (
    FIRST,
    Agent,
    bpf_objects,
    bpftool,
    losses,
    points,
    spans,
    wait_until,
)
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, workload

pytestmark = pytest.mark.kernel

API = "cudaStreamSynchronize"
SOON = {"OTEL_GPU_CAPTURE_OPEN_CALL_LIMIT_S": "0.3"}


def keys_of_map(agent_pid: int, name: str) -> set[int]:
    """The keys of one of the agent's maps, which are little-endian 32-bit numbers."""
    held = bpf_objects("map", agent_pid)
    (number,) = (m["id"] for m in bpftool("map", "list") if m["id"] in held and m["name"] == name)
    return {
        int.from_bytes(bytes(int(byte, 16) for byte in entry["key"]), "little")
        for entry in bpftool("map", "dump", "id", str(number))
    }


def test_a_hanging_call_is_visible_while_it_hangs(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """A gauge shows its age and a span names the thread and the API, before it ever returns."""
    command = [workload("hang"), stubs.runtime]
    with Agent(receiver, command, env=SOON, inside=FIRST) as agent:
        line = agent.next_line()
        (age,) = receiver.wait_for(
            lambda: points(receiver, "gpu.cuda.call.open.age", line["pid"], gpu__cuda__api=API)
        )
        span = receiver.wait_for(lambda: spans(receiver, "gpu.cuda.call.open", line["pid"]))[0]
        os.kill(line["pid"], signal.SIGKILL)
        finished = agent.wait()

    assert 0.3 <= age.point.as_double < 20
    assert span.attributes["gpu.cuda.api"] == API
    assert span.attributes["otel_gpu.thread.tid"] == line["tid"]
    assert span.attributes["thread.name"] == "stuck"
    assert abs(span.span.start_time_unix_nano - line["before_unix_ns"]) < 50_000_000
    assert finished.returncode == 128 + signal.SIGKILL
    assert losses(receiver) == {"exit_inside_call": 1}


def test_sigkill_in_the_middle_of_a_call_leaks_nothing(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """After the process was killed the kernel's maps know neither its threads nor itself."""
    script = f"{workload('hang')} {stubs.runtime}; echo '{{\"ended\": true}}'; read line"
    with Agent(receiver, ["sh", "-c", script], env=SOON, stdin=-1) as agent:
        line = agent.next_line()
        receiver.wait_for(lambda: spans(receiver, "gpu.cuda.call.open", line["pid"]))
        holder = agent.process.pid
        assert {line["pid"], line["tid"]} <= keys_of_map(holder, "threads")
        assert line["pid"] in keys_of_map(holder, "processes")
        os.kill(line["pid"], signal.SIGKILL)
        assert agent.next_line() == {"ended": True}

        wait_until(
            lambda: not {line["pid"], line["tid"]} & keys_of_map(holder, "threads"),
            "forgetting the threads",
        )
        assert line["pid"] not in keys_of_map(holder, "processes")
        agent.send_line()
        finished = agent.wait()

    assert finished.returncode == 0

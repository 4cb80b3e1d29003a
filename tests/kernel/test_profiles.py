"""OTLP profiles of a real capture, as a real receiver gets them."""

from collections import Counter
from pathlib import Path

import pytest

from otel_gpu.demo.build import build
from otel_gpu.demo.busy import STEP_NS
from otel_gpu.demo.loop import STEPS
from tests.kernel.agent import FIRST, Agent
from tests.profiles import read
from tests.receiver import OtlpReceiver
from tests.scenarios.all_scenarios import SCENARIOS
from tests.scenarios.truth import read_truth

pytestmark = pytest.mark.kernel

ENVIRONMENT = {
    "OTEL_GPU_EXPORT_PROFILES": "true",
    # Several in the seconds that it takes.
    "OTEL_GPU_EXPORT_PROFILE_INTERVAL_S": "0.5",
    "OTEL_GPU_CAPTURE_SNAPSHOT_INTERVAL_S": "0.2",
    # What the loop does inside calls is short.
    "OTEL_GPU_SAMPLES_RATE_HZ": "997",
    "OTEL_GPU_SAMPLES_STACKS_PER_SECOND": "1994",
}
NO_LINK = (b"", b"")


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_receiver_gets_where_time_on_cpus_went(
    receiver: OtlpReceiver, tmp_path: Path, protocol: str
) -> None:
    """
    Most of a loader's time on CPUs is in the line that it works in, and what the loop did inside
    CUDA calls is linked to their spans.
    """
    command = build(SCENARIOS["busy-loader"], tmp_path)
    how = {"flags": ("--spans=full",), "env": ENVIRONMENT, "inside": FIRST}
    with Agent(receiver, command, protocol=protocol, **how) as agent:
        finished = agent.wait()
    (line,) = finished.stdout.splitlines()
    (loss,) = read_truth(line).losses
    assert loss.via is not None
    assert loss.via.place is not None

    weights_ns: Counter[tuple[str, str, int]] = Counter()
    links = set()
    profile_ids = Counter[bytes]()
    for request in receiver.requests("profiles"):
        profile, samples = read(request.body)
        profile_ids[profile.profile_id] += 1
        links |= {one.link for one in samples}
        for one in samples:
            if one.attributes["thread.name"] != "loader":
                continue
            for frame in one.frames:
                if frame.kind == "cpython":
                    key = frame.function, Path(frame.file).name, frame.line
                    weights_ns[key] += sum(weight_ns for _, weight_ns in one.values)
                    break

    place = loss.via.place
    spans = {(one.span.trace_id, one.span.span_id): one for one in receiver.spans()}
    assert weights_ns[place.function, place.file, place.last_line] > weights_ns.total() / 2
    # However long it takes, it is on a CPU for so long, and some batches more.
    assert 0.8 < weights_ns.total() / (STEPS * STEP_NS) < 1.2
    assert len(profile_ids) > 2
    assert set(profile_ids.values()) == {1}
    assert links - {NO_LINK}
    assert links - {NO_LINK} <= spans.keys()
    dropped = [
        key
        for key, found in receiver.metrics().items()
        if key.name == "otel_gpu.spans.dropped" and found.point.as_int
    ]
    assert dropped == []

"""What a trace of torch.profiler is in Jaeger, asked through its own API."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.backends.conftest import send
from tests.backends.jaeger import Jaeger, JaegerSpan
from tests.backends.processes import wait_for
from tests.unit.importers.traces import LOADER, T0_US, trace, training, write

pytestmark = pytest.mark.backends

SERVICE = "resnet"
STEPS, KERNELS = 7, 4
# What Jaeger is asked for is of 2026; the profiler's clock began before.
FIRST_US = 200 * 86_400 * 1_000_000
STEP_US = 30_000
T0 = (T0_US + FIRST_US) * 1_000


class Shown(NamedTuple):
    """A run of two ranks in Jaeger, and all of its spans."""

    jaeger: Jaeger
    spans: list[JaegerSpan]

    def named(self, name: str) -> list[JaegerSpan]:
        """Spans of one name."""
        return sorted((one for one in self.spans if one.name == name), key=lambda one: one.times)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """The ranks, imported straight into Jaeger; the second one began a step later."""
    folder: Path = tmp_path_factory.mktemp("traces")
    for rank in range(2):
        events = training(
            STEPS, length_us=STEP_US, first_us=FIRST_US + rank * STEP_US, kernels=KERNELS
        )
        run = {"rank": rank, "world_size": 2}
        write(folder / f"rank{rank}.json", trace(events, distributedInfo=run))
    with Jaeger() as jaeger:
        # Jaeger takes no metrics.
        env = {"OTEL_SERVICE_NAME": SERVICE, "OTEL_METRICS_EXPORTER": "none"}
        send(folder, f"http://{jaeger.endpoint}", "--otlp", verb=("import", "torch-trace"), env=env)
        # A run; of each step itself, its phase, the gap that it begins with, a copy and its kernels.
        expected = 2 * (1 + STEPS * (4 + KERNELS))
        assert wait_for(lambda: SERVICE in jaeger.services())
        assert wait_for(lambda: len(jaeger.find(SERVICE)) >= expected)
        spans = jaeger.find(SERVICE)
        assert len(spans) == expected
        yield Shown(jaeger, spans)


def steps_from(rank: int) -> list[tuple[int, int]]:
    begin = T0 + rank * STEP_US * 1_000
    return [
        (begin + at * STEP_US * 1_000, begin + (at + 1) * STEP_US * 1_000) for at in range(STEPS)
    ]


def test_steps_are_at_their_original_times(shown: Shown) -> None:
    """To the nanosecond, of each rank, and below its run."""
    runs = shown.named("gpu.run")
    assert [run.resource["otel_gpu.rank"] for run in runs] == [0, 1]
    for rank, run in enumerate(runs):
        steps = [one for one in shown.named("gpu.step") if one.trace_id == run.trace_id]

        assert [step.times for step in steps] == steps_from(rank)
        assert {step.parent_id for step in steps} == {run.span_id}
        assert [step.attributes["otel_gpu.step.name"] for step in steps] == [
            f"ProfilerStep#{at}" for at in range(STEPS)
        ]


def test_gaps_are_found_by_how_long_they_are(shown: Shown) -> None:
    """Half of each step the device waits for the loader; nothing waits longer."""
    half = f"{STEP_US // 2}us"
    found = shown.jaeger.find(SERVICE, "gpu.idle", duration_min=half)
    gaps = [one for one in found if one.name == "gpu.idle"]

    assert len(gaps) == 2 * STEPS
    for gap in gaps:
        assert gap.attributes["otel_gpu.idle.cause"] == "data_loader"
        assert gap.attributes["otel_gpu.host.operation"] == LOADER
    assert shown.jaeger.find(SERVICE, "gpu.idle", duration_min=f"{STEP_US // 2 + 1}us") == []


def test_each_step_holds_what_took_long_in_it(shown: Shown) -> None:
    """Its phase, its copy and its kernels, none of which lies outside of it."""
    for step in shown.named("gpu.step"):
        below = [one for one in shown.spans if one.parent_id == step.span_id]

        names = [one.name for one in below if one.name != "gpu.idle"]
        assert sorted(names) == ["gpu.copy", *["gpu.kernel"] * KERNELS, "gpu.phase"]
        for one in below:
            assert step.start_unix_ns <= one.start_unix_ns
            assert one.end_unix_ns <= step.end_unix_ns


def test_jaeger_finds_nothing_wrong_with_it(shown: Shown) -> None:
    """No missing parent, no doubled id; and one trace for each rank."""
    warned = {key for span in shown.spans for key in span.attributes if "warning" in key}
    ids = {span.span_id for span in shown.spans}

    assert warned == set()
    assert len(ids) == len(shown.spans)
    assert {span.parent_id for span in shown.spans} <= {"", *ids}
    assert len({span.trace_id for span in shown.spans}) == 2
    assert {span.scope for span in shown.spans} == {"otel_gpu.device"}

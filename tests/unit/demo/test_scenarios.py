"""The table of scenarios against what there is of them."""

from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

from otel_gpu.capture.recording import read_recording
from otel_gpu.demo.busy import tokenise
from otel_gpu.demo.loop import Function
from otel_gpu.demo.scenarios import RECORDINGS
from otel_gpu.demo.scenarios import SCENARIOS as DEMO
from otel_gpu.enrich.activities import SampleActivity
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.wire.decoder import decode
from tests.scenarios import all_scenarios, busy
from tests.scenarios.all_scenarios import SCENARIOS


def test_every_scenario_says_what_it_does() -> None:
    """The list that users choose from is made of the docstrings of what is done."""
    assert all(one.about and not one.about.endswith(".") for one in SCENARIOS.values())
    assert {path.stem for path in RECORDINGS.glob("*.otelgpu")} == set(DEMO)
    assert {path.stem for path in all_scenarios.RECORDINGS.glob("*.otelgpu")} == set(
        all_scenarios.MORE
    )


@pytest.mark.parametrize("name", DEMO)
def test_the_recording_of_a_scenario_is_small(name: str) -> None:
    """Every user downloads all of them."""
    assert 0 < SCENARIOS[name].recording.stat().st_size < 100_000


@pytest.mark.parametrize(
    ("name", "comm", "worker"),
    [
        ("busy-loader", "loader", busy.slow_augment),
        ("slow-python", "trainer", tokenise),
        ("gil-holder", "holder", tokenise),
        ("garbage-collection", "trainer", busy.collect_garbage),
    ],
)
def test_most_samples_are_where_the_work_is(name: str, comm: str, worker: Function) -> None:
    """A recording has the samples that its explanation is to be made of."""
    records = chain.from_iterable(read_recording(SCENARIOS[name].recording))
    weights_ns: Counter[tuple[str, str]] = Counter()
    for activity in Enricher().enrich(decode(records, Counter())):
        if isinstance(activity, SampleActivity) and activity.event.comm == comm:
            place = activity.stack.place if activity.stack else None
            if place is not None:
                weights_ns[place.function, Path(place.file).name] += activity.event.weight_ns

    ((found, most_ns),) = weights_ns.most_common(1)
    assert found == (worker.__code__.co_name, "busy.py")
    assert most_ns > weights_ns.total() / 2

"""The walk through the rooms, where one of them fails."""

from collections import Counter
from pathlib import Path

import pytest

import otel_gpu
from otel_gpu import pipeline
from otel_gpu.capture.recording import read_recording
from otel_gpu.config import Config
from otel_gpu.enrich.activities import AggregatesActivity
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.explain.explainer import Explainer
from otel_gpu.faults import Faults, Isolated

RECORDING = Path(otel_gpu.__file__).parent / "demo" / "recordings" / "two-causes.otelgpu"


class Collected:
    """Keeps what it is handed, and fails when it is told to."""

    def __init__(self, fails_at=lambda _: False):
        self.activities, self.chains = [], []
        self._fails_at = fails_at

    def observe(self, activity):
        if self._fails_at(activity):
            raise RuntimeError(activity)
        self.activities.append(activity)

    def observe_chain(self, chain):
        if self._fails_at(chain):
            raise RuntimeError(chain)
        self.chains.append(chain)

    def observe_incident(self, incident):
        return


def play(faults, *parts):
    batches = read_recording(RECORDING)
    pipeline.process(batches, Enricher(), list(parts), Counter(), faults)


@pytest.fixture(scope="module")
def undisturbed():
    """What the recording holds."""
    seen = Collected()
    blame = pipeline.ExplainStage(Config(), seen)
    play(None, seen, blame.observe)
    blame.close()
    assert seen.activities
    assert seen.chains
    return seen


def test_what_one_observer_fails_at_the_others_have(undisturbed):
    """
    Every second activity and every chain is an error of the first: the other keeper, and what is
    explained, are as they would be.
    """
    faults = Faults()
    turn = iter(range(1_000_000))
    bad, good = Collected(lambda _: next(turn) % 2 == 0), Collected()
    keepers = [Isolated(faults, "bad", bad), Isolated(faults, "good", good)]
    blame = pipeline.ExplainStage(Config(), *keepers)
    play(faults, *keepers, Isolated(faults, "explain", blame))
    blame.close()

    assert len(good.activities) == len(undisturbed.activities)
    assert [chain.id for chain in good.chains] == [chain.id for chain in undisturbed.chains]
    given = len(good.activities) + len(good.chains)
    status = faults.status()
    assert status["errors"]["bad"] + len(bad.activities) + len(bad.chains) == given
    assert status["errors"].keys() == {"bad"}


def test_a_record_that_enrich_fails_at_is_dropped_and_counted(undisturbed, monkeypatch):
    """The stream goes on behind it."""
    faults = Faults()
    turn = iter(range(1_000_000))
    original = Enricher._enrich_call

    def fail(self, event):
        if next(turn) % 3 == 0:
            raise KeyError(event)
        return original(self, event)

    monkeypatch.setattr(Enricher, "_enrich_call", fail)
    seen = Collected()
    play(faults, seen)

    lost = faults.status()["errors"]["enrich"]
    assert lost > 0
    assert len(seen.activities) == len(undisturbed.activities) - lost


def test_a_tool_that_runs_once_ends_with_the_error(monkeypatch):
    """Nobody would see that something is missing in what it wrote."""
    with pytest.raises(RuntimeError):
        play(None, Collected(lambda _: True))

    def fail(self, event):
        raise KeyError(event)

    monkeypatch.setattr(Enricher, "_enrich_call", fail)
    with pytest.raises(KeyError):
        play(None, Collected())


def test_an_explainer_that_fails_is_begun_anew(undisturbed, monkeypatch):
    """The keepers have all activities, and chains again when it works."""
    faults = Faults()
    turn = iter(range(1_000_000))
    original = Explainer.push

    def fail(self, activity):
        if next(turn) < 10:
            raise ValueError(activity)
        return original(self, activity)

    monkeypatch.setattr(Explainer, "push", fail)
    seen = Collected()

    def explain(_=None):
        return pipeline.ExplainStage(Config(), seen)

    part = Isolated(faults, "explain", first := explain(), explain)
    play(faults, seen, part)
    part.call(pipeline.ExplainStage.close)

    assert part.part is not first
    assert faults.status()["errors"] == {"explain": 10}
    assert len(seen.activities) == len(undisturbed.activities)
    assert seen.chains


def test_an_observer_gets_only_what_it_observes(undisturbed):
    """Whoever says which types they are is not called for others."""
    some = Collected()
    some.observes = frozenset({AggregatesActivity})
    everything = Collected()
    play(None, some, everything)

    assert len(everything.activities) == len(undisturbed.activities)
    assert some.activities
    assert some.activities == [
        activity for activity in everything.activities if isinstance(activity, AggregatesActivity)
    ]

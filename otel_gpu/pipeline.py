"""
The walk through the rooms: the only module that joins them all.

Live capture and replay run the same function, and nothing in it asks which it is.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from otel_gpu.config import Config
from otel_gpu.decode.decoder import decode
from otel_gpu.decode.events import Event
from otel_gpu.enrich.activities import Activity
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.explain.chains import Chain, Incident
from otel_gpu.explain.explainer import Explainer
from otel_gpu.explain.settings import Settings

_NS_PER_MS = 1_000_000


class BlameExports(Protocol):
    """Where chains and incidents go: ``Exports`` of ``export``, ``StoreWriter`` of ``store``."""

    def observe_chain(self, chain: Chain) -> None:
        """Take a chain, after the spans of its effect."""

    def observe_incident(self, incident: Incident) -> None:
        """Take an incident, after its chains."""


class Keeper(BlameExports, Protocol):
    """Takes all there is: activities, and what they add up to."""

    def observe(self, activity: Activity) -> None:
        """Take one activity, in the order of the stream."""


class Blame:
    """
    Explains activities, and hands what it finds to each of the exports.

    Observes after the exports did, so that the span of an effect comes before its chain.
    """

    def __init__(self, config: Config, *exports: BlameExports) -> None:
        self._explainer = (
            Explainer(explain_settings(config), keeps_ended=False)
            if config.explain.enabled
            else None
        )
        self._exports = exports

    def observe(self, activity: Activity) -> None:
        """Take one activity in."""
        if self._explainer is not None:
            self._hand_on(self._explainer.push(activity))

    def close(self) -> None:
        """Hand on what was still waiting for more to happen; before the exports end."""
        if self._explainer is not None:
            self._hand_on(self._explainer.close())

    def _hand_on(self, chains: Iterable[Chain]) -> None:
        for chain in chains:
            for exports in self._exports:
                exports.observe_chain(chain)
        if self._explainer is not None:
            for incident in self._explainer.closed_incidents():
                for exports in self._exports:
                    exports.observe_incident(incident)


def explain_settings(config: Config) -> Settings:
    """Return what the configuration says about blame."""
    return Settings(high_lost_ns=round(config.explain.high_lost_ms * _NS_PER_MS))


def process(
    batches: Iterable[Sequence[bytes]],
    enricher: Enricher,
    observers: Sequence[Callable[[Activity], object]],
    rejected: Counter[str],
) -> None:
    """
    Take records through decode and enrich, and hand each activity to every observer.

    Observers see an activity in the order in which they are given. What cannot be
    decoded is counted in ``rejected`` by reason.
    """
    records = itertools.chain.from_iterable(batches)
    process_events(decode(records, rejected), enricher, observers)


def process_events(
    events: Iterable[Event], enricher: Enricher, observers: Sequence[Callable[[Activity], object]]
) -> None:
    """Take events from anywhere through enrich, and on as ``process`` does."""
    for activity in enricher.enrich(events):
        for observe in observers:
            observe(activity)

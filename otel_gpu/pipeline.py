"""
The pipeline from records to observers: decode, enrich, explain.

Live capture and replay run the same function, which does not know which of them it serves.
"""

import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from otel_gpu.config import Config
from otel_gpu.enrich.activities import Activity, CallActivity, DeviceTraceActivity
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.enrich.identity.identities import Program
from otel_gpu.explain.budget import ChainBudget, ChainLimit, Decision
from otel_gpu.explain.chains import Chain, Incident
from otel_gpu.explain.explainer import Explainer
from otel_gpu.explain.settings import Settings
from otel_gpu.faults import Faults, Observer, Stage
from otel_gpu.wire.events import Event

_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000 * _NS_PER_MS
# During a capture there is less memory than for a report: 5 MB for stalls, and 5 MB for calls.
_MAX_INTERVALS = 6_144


class Sink(Observer, Protocol):
    """Gets activities, chains and incidents: ``Exports``, or the ``StoreWriter`` of a store."""

    def observe_chain(self, chain: Chain) -> None:
        """Process a chain; it comes after the spans of its effect."""

    def limit_chains(self, reason: ChainLimit, count: int) -> None:
        """Count chains that are not kept, or not even made."""

    def observe_incident(self, incident: Incident) -> None:
        """Process an incident; it comes after its chains."""


class ExplainStage:
    """
    Explains activities, and passes chains and incidents to the sinks.

    It decides once for all sinks which chains are kept. It observes an activity after the sinks, so
    that the span of an effect comes before its chain.
    """

    def __init__(self, config: Config, *sinks: Stage[Any] | Sink) -> None:
        settings = bounded_settings(config)
        wanted = config.explain.enabled
        self._explainer = Explainer(settings, keeps_closed=False) if wanted else None
        self._budget = ChainBudget(config.explain.chains_per_second, settings.settle_ns)
        self._sinks = [_as_part(sink) for sink in sinks]

    def observe(self, activity: Activity) -> None:
        """Explain one activity."""
        explainer = self._explainer
        if explainer is None:
            return
        # Nearly all activities have no result, and each has a budget of a few microseconds.
        if chains := explainer.push(activity):
            self._add(chains)
        if explainer.now_unix_ns >= self._budget.due_unix_ns:
            self._hand_on(self._budget.advance(explainer.now_unix_ns))
            self._count_left_out(explainer)
        # A chain or a reading closes an incident; a call alone does not.
        if chains or type(activity) is not CallActivity:
            self._hand_on_incidents(explainer)

    def close(self) -> None:
        """Pass on what is still open; call it before the sinks end."""
        if self._explainer is not None:
            self._add(self._explainer.close())
            self._hand_on(self._budget.close())
            self._count_left_out(self._explainer)
            self._hand_on_incidents(self._explainer)

    def take_cut(self) -> Counter[Program | None]:
        """Return by program the effects cut in favour of other users since the last call."""
        cut = self._budget.cut.take()
        return cut + self._explainer.take_cut() if self._explainer is not None else cut

    def _add(self, chains: Iterable[Chain]) -> None:
        for chain in chains:
            self._hand_on(self._budget.add(chain))

    def _hand_on(self, decisions: Iterable[Decision]) -> None:
        for chain, limited in decisions:
            if limited:
                self._call("limit_chains", limited, 1)
            else:
                self._call("observe_chain", chain)

    def _count_left_out(self, explainer: Explainer) -> None:
        for reason, count in explainer.take_left_out().items():
            self._call("limit_chains", reason, count)

    def _hand_on_incidents(self, explainer: Explainer) -> None:
        for incident in explainer.closed_incidents():
            self._call("observe_incident", incident)

    def _call(self, method: str, *found: object) -> None:
        for sink in self._sinks:
            sink.call(operator.methodcaller(method, *found))


def explain_settings(config: Config) -> Settings:
    """Return the settings of ``explain`` that the configuration has."""
    explain = config.explain
    return Settings(
        high_lost_ns=round(explain.high_lost_ms * _NS_PER_MS),
        chronic_share=explain.chronic_share,
        chronic_lost_ns=round(explain.chronic_lost_ms * _NS_PER_MS),
        chronic_window_ns=round(explain.chronic_window_s * _NS_PER_S),
    )


def bounded_settings(config: Config) -> Settings:
    """Return settings for a live capture, which explains only the worst effects of each second."""
    per_second = config.explain.chains_per_second
    return replace(
        explain_settings(config), effects_per_second=per_second, max_intervals=_MAX_INTERVALS
    )


AnyObserver = Stage[Any] | Observer | Callable[[Activity], object]


def process(
    batches: Iterable[Sequence[bytes]],
    enricher: Enricher,
    observers: Sequence[AnyObserver],
    rejected: Counter[str],
    faults: Faults | None = None,
) -> None:
    """
    Decode and enrich records, and pass each activity to all observers, in their order.

    Args:
        batches: The records.
        enricher: Turns events into activities.
        observers: An error of one that is not ``Isolated`` is raised.
        rejected: Counts records that cannot be decoded, by reason.
        faults: Counts errors of decode and enrich; without it they are raised.
    """
    # An import has no records.
    from otel_gpu.wire.decoder import decode  # noqa: PLC0415

    records = itertools.chain.from_iterable(batches)
    process_events(decode(records, rejected, faults), enricher, observers=observers, faults=faults)


def process_events(
    events: Iterable[Event],
    enricher: Enricher,
    observers: Sequence[AnyObserver],
    faults: Faults | None = None,
) -> None:
    """Enrich events, and pass activities on as ``process`` does."""
    parts = [_as_part(observer) for observer in observers]
    # Most activities are calls, which some observers do not observe.
    wanting: dict[type, list[Stage[Any]]] = {}
    for activity in enricher.enrich(events, faults):
        kind = type(activity)
        if kind not in wanting:
            wanting[kind] = [
                part for part in parts if kind in getattr(part.part, "observes", {kind})
            ]
        for part in wanting[kind]:
            # A try is free until something is raised.
            try:
                part.observe(activity)
            except Exception as error:  # noqa: BLE001 -- handled by each part
                part.failed(error)
        if kind is DeviceTraceActivity:
            # Of imported traces only.
            from otel_gpu.explain.traces.device_use import forget_examined  # noqa: PLC0415

            forget_examined()


class _Plain:
    def __init__(self, observe: Callable[[Activity], object]) -> None:
        self.observe = observe


def _as_part(observer: AnyObserver) -> Stage[Any]:
    if isinstance(observer, Stage):
        return observer
    return Stage(_Plain(observer) if callable(observer) else observer)

"""What becomes a span of what was explained, and which spans those lead to."""

from otel_gpu.explain.chains import Chain, Culprit, Evidence, Incident
from otel_gpu.export import causal, semconv
from otel_gpu.export.exported import ExportedSpans, SpanReference
from otel_gpu.export.finished import FinishedSpan
from otel_gpu.export.resources import Origins
from otel_gpu.export.stack_events import Stacks

_MAX_OF_CULPRIT = 4


class Explanations:
    """
    Turns the chains and incidents of one capture into finished spans.

    Whoever exports another span adds it to ``exported``.
    """

    def __init__(self, seed: bytes, origins: Origins, stacks: Stacks) -> None:
        self.exported = ExportedSpans()
        self._seed = seed
        self._origins = origins
        self._stacks = stacks

    def missing_spans(self, chain: Chain) -> frozenset[bytes]:
        """Return the ids of the spans that the chain refers to and that were not exported."""
        return frozenset(
            span_id
            for span_id in causal.evidence_span_ids(chain.causes)
            if span_id not in self.exported
        )

    def chain_spans(self, chain: Chain) -> tuple[FinishedSpan, ...]:
        """Return the spans of a chain, which are to be exported."""
        self.exported.add_chain(causal.chain_reference(chain).span_id)
        origin = self._origins.of(chain.effect.process, semconv.SCOPE_CAUSAL)
        return causal.chain_spans(chain, origin, self._find_spans, self._stacks.place)

    def incident_span(self, incident: Incident) -> FinishedSpan:
        """Return the span of an incident; it leads to those of its chains that have spans."""
        origin = self._origins.of(incident.processes[0], semconv.SCOPE_CAUSAL)
        references = [(chain, causal.chain_reference(chain)) for chain in incident.chains]
        exported = [pair for pair in references if self.exported.has_chain(pair[1].span_id)]
        return causal.incident_span(incident, self._seed, origin, exported, self._stacks.place)

    def _find_spans(self, evidence: Evidence, culprit: Culprit | None) -> list[SpanReference]:
        found = []
        if evidence.span_id and (own := self.exported.find(evidence.span_id)):
            found.append(own)
        if culprit is not None and culprit.tid:
            theirs = self.exported.of_thread(
                culprit.tid, evidence.start_unix_ns, evidence.end_unix_ns
            )
            found.extend(reference for reference in theirs if reference not in found)
        return found[: 1 + _MAX_OF_CULPRIT]

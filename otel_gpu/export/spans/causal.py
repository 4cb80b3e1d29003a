"""
Causal chains and incidents as spans.

A chain is a child span of its effect, over the same time, so the reasons of a slow call are
below it:

    cudaStreamSynchronize         |=====================|
      sched.blocked               |=========|
      sched.run_queue_wait                  |===========|
      gpu.causal_chain            |=====================|
        gpu.cause.run_queue                 |===========|    link: the hog's spans
          sched.run_queue_wait              |===========|    link: the same wait above
        gpu.cause.lock            |=========|                culprit: who held the lock
          sched.blocked           |=========|
          gpu.cause.run_queue       |====|                   what delayed the holder

A cause lasts from the first to the last of its intervals, or as long as the effect where only
its total is known. ``otel_gpu.cause.time`` is less than that if there are other causes in
between.
The intervals have the same names as in their own thread's trace, and the scope
``otel_gpu.causal``. A count of stalls by spans has to exclude that scope; a single trace
contains the stalls of all its threads.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from otel_gpu.enrich import ids, stack_text
from otel_gpu.enrich.clock import clamp_unix_ns
from otel_gpu.enrich.identity.identities import CallStack
from otel_gpu.explain.chains import (
    OWN_TIME,
    Cause,
    Chain,
    Culprit,
    DeviceTrouble,
    Evidence,
    Incident,
    stack_of_cause,
)
from otel_gpu.explain.examples import kinds_like
from otel_gpu.explain.incidents import leading_cause
from otel_gpu.explain.kinds import CauseKind, EffectKind, EvidenceKind
from otel_gpu.export import semconv
from otel_gpu.export.spans.descriptions import (
    Pairs,
    add_culprit,
    add_resource,
    add_thread,
    add_wait,
)
from otel_gpu.export.spans.exported import SpanReference
from otel_gpu.export.spans.finished import Attributes, FinishedSpan, Origin, SpanEvent, SpanLink

_SPAN_OF_EVIDENCE = {
    EvidenceKind.BLOCKED: semconv.SPAN_CAUSE_BLOCKED,
    EvidenceKind.RUN_QUEUE: semconv.SPAN_CAUSE_RUN_QUEUE_WAIT,
}
# People read a chain: causes beyond these bounds are only counted.
_MAX_SPANS = 64
_MAX_LINKS = 16
_MAX_DEPTH = 8
_HZ_PER_MHZ = 1_000_000
_MAX_ADVICE = 16
_MAX_LINES = 5
# One incident can be thousands of calls; this is OpenTelemetry's default limit of links.
_MAX_INCIDENT_LINKS = 128
_MAX_WAITS_OF_EXAMPLE = 8

# Attributes of a stack's code location.
DescribePlace = Callable[[CallStack | None], Attributes]
# Spans to link to, for an interval and its culprit.
FindSpans = Callable[[Evidence, Culprit | None], Sequence[SpanReference]]


def chain_reference(chain: Chain) -> SpanReference:
    """Return the ids of a chain's span, exported or not."""
    trace_id, span_id = chain.effect.trace_id, chain.effect.span_id
    return SpanReference(trace_id, ids.chain_span_id(chain.id, trace_id, span_id))


def chain_spans(
    chain: Chain, origin: Origin, find_spans: FindSpans, describe_place: DescribePlace
) -> tuple[FinishedSpan, ...]:
    """Return the spans of a chain: its own first, then its causes in order."""
    return _ChainSpans(
        chain, origin, _find_spans=find_spans, _describe_place=describe_place
    ).build()


@dataclass(eq=False)
class _ChainSpans:
    _chain: Chain
    _origin: Origin
    _find_spans: FindSpans
    _describe_place: DescribePlace
    _spans: list[FinishedSpan] = field(default_factory=list)
    _dropped: int = 0

    def __post_init__(self) -> None:
        self._trace_id, self._span_id = chain_reference(self._chain)
        effect = self._chain.effect
        self._end_unix_ns = clamp_unix_ns(effect.start_unix_ns + effect.duration_ns)

    def build(self) -> tuple[FinishedSpan, ...]:
        effect = self._chain.effect
        whole = (effect.start_unix_ns, self._end_unix_ns)
        events, links = self._causes(
            self._chain.causes, parent_id=self._span_id, path=(), end_unix_ns=self._end_unix_ns
        )
        own = (self._span_id, effect.span_id)
        pairs = self._describe(links)
        chain = self._span(
            ids=own,
            name=semconv.SPAN_CAUSAL_CHAIN,
            times_unix_ns=whole,
            pairs=pairs,
            links=links,
            events=events,
        )
        return (chain, *self._spans)

    def _span(
        self,
        ids: tuple[bytes, bytes],
        name: str,
        times_unix_ns: tuple[int, int],
        pairs: Pairs,
        links: tuple[SpanLink, ...],
        events: Iterable[SpanEvent] = (),
    ) -> FinishedSpan:
        whole = (self._origin, self._trace_id, *ids, name, *times_unix_ns, tuple(pairs))
        return FinishedSpan(*whole, links=links, events=tuple(events))

    def _describe(self, links: Iterable[SpanLink]) -> Pairs:
        chain, effect = self._chain, self._chain.effect
        pairs: Pairs = [
            (semconv.OTEL_GPU_EFFECT_KIND, effect.kind),
            (semconv.OTEL_GPU_SEVERITY, chain.severity),
            (semconv.OTEL_GPU_EXCESS_TIME, effect.excess_ns / 1e9),
        ]
        # Without a call that hangs with it, a hung collective's name is not a call.
        if effect.api and effect.kind != EffectKind.HUNG_COLLECTIVE:
            is_gap = effect.kind in (EffectKind.SLOW_GAP, EffectKind.USUAL_GAP)
            name = semconv.OTEL_GPU_GAP_NEXT_API if is_gap else semconv.GPU_CUDA_API
            if effect.kind == EffectKind.NETWORK_EVENT:
                name = semconv.ERROR_TYPE
            pairs.append((name, effect.api))
        _add_leading(pairs, leading_cause(chain))
        unexplained_share = chain.unexplained_ns / max(1, effect.duration_ns)
        pairs.append((semconv.OTEL_GPU_UNEXPLAINED_SHARE, unexplained_share))
        _add_links(pairs, links)
        if self._dropped:
            pairs.append((semconv.OTEL_GPU_CAUSE_DROPPED, self._dropped))
        pairs.extend(self._describe_place(effect.stack))
        if effect.tid:
            add_thread(pairs, effect.tid, effect.comm)
        elif effect.comm:
            pairs.append((semconv.THREAD_NAME, effect.comm))
        return pairs

    def _causes(
        self, causes: Sequence[Cause], parent_id: bytes, path: tuple[int, ...], end_unix_ns: int
    ) -> tuple[list[SpanEvent], tuple[SpanLink, ...]]:
        # Adds the spans of causes; returns events and links of their parent.
        events: list[SpanEvent] = []
        links: list[SpanLink] = []
        for number, cause in enumerate(causes):
            if not cause.evidence:
                pairs = tuple(_describe_cause(cause))
                events.append(SpanEvent(semconv.EVENT_CAUSE, end_unix_ns, pairs))
            elif len(self._spans) >= _MAX_SPANS or len(path) >= _MAX_DEPTH:
                self._dropped += _count(cause)
            else:
                links.extend(self._cause(cause, parent_id, (*path, number)))
        return events, _each_once(links)

    def _cause(self, cause: Cause, parent_id: bytes, path: tuple[int, ...]) -> tuple[SpanLink, ...]:
        span_id = ids.cause_span_id(self._span_id, path)
        start_unix_ns = min(evidence.start_unix_ns for evidence in cause.evidence)
        end_unix_ns = max(map(self._end_of, cause.evidence))
        name = semconv.SPAN_CAUSE_PREFIX + cause.kind
        # It stands before all that lies below it.
        place = len(self._spans)
        own, times = (span_id, parent_id), (start_unix_ns, end_unix_ns)
        self._spans.append(self._span(own, name, times_unix_ns=times, pairs=[], links=()))
        found: list[SpanLink] = []
        for number, evidence in enumerate(cause.evidence):
            links = self._links(evidence, cause)
            found.extend(links)
            self._interval(evidence, links, parent_id=span_id, path=(*path, -1 - number))
        events, _ = self._causes(cause.via, parent_id=span_id, path=path, end_unix_ns=end_unix_ns)
        kept = _each_once(found)
        pairs = _describe_cause(cause)
        if cause.is_counted:
            counted = tuple(evidence.reason for evidence in cause.evidence)
            pairs.append((semconv.OTEL_GPU_CAUSE_COUNTED, counted))
        self._add_lines(pairs, cause)
        _add_links(pairs, kept)
        self._spans[place] = self._span(
            ids=own, name=name, times_unix_ns=times, pairs=pairs, links=kept, events=events
        )
        return kept

    def _add_lines(self, pairs: Pairs, cause: Cause) -> None:
        lines = cause.lines
        place = self._describe_place(lines.first.stack) if lines.first else ()
        if not place:
            # No line is known, or stacks are off.
            return
        if cause.kind in OWN_TIME:
            # For other causes, their intervals have the code location.
            pairs.extend(place)
        described = (
            f"{stack_text.describe_place(line.stack.place)}: {lines.share_of(line):.0%}"
            for line in lines.each[:_MAX_LINES]
            if line.stack.place is not None
        )
        pairs.append((semconv.OTEL_GPU_CAUSE_LINES, tuple(described)))
        pairs.append((semconv.OTEL_GPU_CAUSE_SAMPLES, lines.samples))
        if lines.work:
            pairs.append((semconv.OTEL_GPU_CAUSE_WORK, lines.work))

    def _interval(
        self,
        evidence: Evidence,
        links: tuple[SpanLink, ...],
        parent_id: bytes,
        path: tuple[int, ...],
    ) -> None:
        name = _SPAN_OF_EVIDENCE.get(evidence.kind)
        # A call or a fork is linked, not repeated.
        if name is None or len(self._spans) >= _MAX_SPANS:
            self._dropped += name is not None
            return
        pairs: Pairs = []
        if evidence.kind == EvidenceKind.BLOCKED:
            add_wait(pairs, evidence.reason, functions=evidence.functions, waker=evidence.waker)
            pairs.extend(self._describe_place(evidence.stack))
        elif evidence.culprit is not None:
            add_culprit(pairs, *evidence.culprit)
        _add_links(pairs, links)
        times = (evidence.start_unix_ns, self._end_of(evidence))
        own = (ids.cause_span_id(self._span_id, path), parent_id)
        self._spans.append(self._span(own, name, times_unix_ns=times, pairs=pairs, links=links))

    def _end_of(self, evidence: Evidence) -> int:
        # Another thread's activity can continue after the effect; that part does not count.
        latest_unix_ns = max(evidence.start_unix_ns, self._end_unix_ns)
        return min(evidence.end_unix_ns, latest_unix_ns)

    def _links(self, evidence: Evidence, cause: Cause) -> tuple[SpanLink, ...]:
        culprit = evidence.culprit or cause.culprit
        return tuple(
            SpanLink(*reference, attributes=((semconv.OTEL_GPU_CAUSE_KIND, cause.kind),))
            for reference in self._find_spans(evidence, culprit)
            # The effect is the parent; a link adds nothing.
            if reference.span_id != self._chain.effect.span_id
        )[:_MAX_LINKS]


def _each_once(links: Iterable[SpanLink]) -> tuple[SpanLink, ...]:
    found: dict[tuple[object, ...], SpanLink] = {}
    for link in links:
        found.setdefault(link[:2], link)
    return tuple(found.values())[:_MAX_LINKS]


def incident_span(
    incident: Incident,
    seed: bytes,
    origin: Origin,
    chains: Iterable[tuple[Chain, SpanReference]],
    describe_place: DescribePlace,
    examples: Iterable[Chain] = (),
    find_spans: FindSpans = lambda *_: (),
) -> FinishedSpan:
    """
    Return the span of an incident.

    ``chains`` are its chains that have spans, with their references; ``examples`` those of its
    examples whose call or gap has a span; ``find_spans`` finds the spans of waits in them.

    The status stays unset. An incident is about time, and its calls did what they were asked to do.
    An error status would count towards the error rate of the service and raise alarms about work
    that succeeded. Alarms belong on ``otel_gpu.severity``.
    """
    trace_id, span_id = ids.incident_ids(seed, incident.id)
    pairs: Pairs = [
        (semconv.OTEL_GPU_SEVERITY, incident.severity),
        (semconv.OTEL_GPU_LOST_TIME, incident.lost_ns / 1e9),
        (semconv.OTEL_GPU_INCIDENT_EFFECTS, incident.effects or len(incident.chains)),
        (semconv.OTEL_GPU_INCIDENT_CHRONIC, incident.chronic),
        (semconv.OTEL_GPU_UNEXPLAINED_TIME, incident.unexplained_ns / 1e9),
    ]
    leading = incident.causes[0] if incident.causes else None
    _add_leading(pairs, leading)
    if incident.chronic and leading is not None:
        # Without chains, this is the only code location.
        pairs.extend(describe_place(stack_of_cause(leading)))
    if leading is not None and leading.resource is not None:
        add_resource(pairs, leading.resource)
    if incident.advice:
        pairs.append((semconv.OTEL_GPU_ADVICE, incident.advice[:_MAX_ADVICE]))
    # The most expensive ones first: the worst of each trace, then the others.
    worst = sorted(chains, key=lambda pair: -pair[0].effect.excess_ns)
    first = {reference.trace_id: reference for _, reference in reversed(worst)}
    worst.sort(key=lambda pair: first[pair[1].trace_id] != pair[1])
    links = []
    for chain, reference in worst[:_MAX_INCIDENT_LINKS]:
        kind = (semconv.OTEL_GPU_EFFECT_KIND, chain.effect.kind)
        excess = (semconv.OTEL_GPU_EXCESS_TIME, chain.effect.excess_ns / 1e9)
        links.append(SpanLink(*reference, (kind, excess)))
    links += (link for chain in examples for link in _example_links(chain, incident, find_spans))
    times = (incident.start_unix_ns, incident.end_unix_ns)
    whole = (origin, trace_id, span_id, b"", semconv.SPAN_INCIDENT, *times, tuple(pairs))
    dropped = max(0, len(worst) - _MAX_INCIDENT_LINKS)
    return FinishedSpan(*whole, links=tuple(links), dropped_links=dropped)


def _example_links(chain: Chain, incident: Incident, find_spans: FindSpans) -> Iterator[SpanLink]:
    # Its call or gap, its causal chain, and the longest waits in it that have the incident's cause.
    effect = chain.effect
    pairs = ((semconv.OTEL_GPU_EFFECT_KIND, effect.kind),)
    yield SpanLink(effect.trace_id, effect.span_id, pairs)
    yield SpanLink(*chain_reference(chain), pairs)
    kinds = kinds_like(incident.causes[0].kind) if incident.causes else ()
    waits = [
        (item, cause)
        for cause in chain.causes
        for item in cause.evidence
        if cause.kind in kinds and item.span_id not in (b"", effect.span_id)
    ]
    waits.sort(key=lambda one: (one[0].start_unix_ns - one[0].end_unix_ns, one[0].id))
    for item, cause in waits[:_MAX_WAITS_OF_EXAMPLE]:
        for reference in find_spans(item, cause.culprit):
            yield SpanLink(*reference, ((semconv.OTEL_GPU_CAUSE_KIND, cause.kind),))


def _describe_cause(cause: Cause) -> Pairs:
    pairs: Pairs = [
        (semconv.OTEL_GPU_CAUSE_KIND, cause.kind),
        (semconv.OTEL_GPU_CAUSE_TIME, cause.time_ns / 1e9),
        (semconv.OTEL_GPU_CAUSE_SHARE, cause.share),
    ]
    # With several culprits, the resource's name covers all of them.
    if cause.culprit is not None and not cause.others:
        add_culprit(pairs, *cause.culprit)
    if cause.trouble is not None:
        pairs.extend(_describe_trouble(cause.trouble))
    return pairs


def _describe_trouble(trouble: DeviceTrouble) -> Pairs:
    pairs = (
        (semconv.GPU_XID, trouble.xid),
        (semconv.GPU_CLOCK_LIMIT_REASON, trouble.reason),
        (semconv.GPU_CLOCK_FREQUENCY_READ, trouble.clock_mhz * _HZ_PER_MHZ),
        (semconv.GPU_CLOCK_LIMIT_READ, trouble.clock_limit_mhz * _HZ_PER_MHZ),
    )
    return [pair for pair in pairs if pair[1]]


def _add_leading(pairs: Pairs, cause: Cause | None) -> None:
    if cause is not None:
        pairs.extend(_describe_cause(cause))
    else:
        pairs.append((semconv.OTEL_GPU_CAUSE_KIND, CauseKind.UNEXPLAINED.value))


def _add_links(pairs: Pairs, links: Iterable[SpanLink]) -> None:
    # Some backends show no links.
    if span_ids := tuple(link.span_id.hex() for link in links):
        pairs.append((semconv.OTEL_GPU_CAUSE_SPAN_ID, span_ids))


def _count(cause: Cause) -> int:
    return 1 + sum(map(_count, cause.via))

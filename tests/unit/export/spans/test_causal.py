import pytest

from otel_gpu.explain.chains import (
    Cause,
    Chain,
    Culprit,
    Effect,
    Evidence,
    Incident,
    stack_of_cause,
)
from otel_gpu.export import semconv
from otel_gpu.export.resources import Origins, ProcessResources
from otel_gpu.export.spans import causal
from otel_gpu.export.spans.exported import SpanReference
from otel_gpu.export.spans.finished import STATUS_UNSET
from otel_gpu.export.spans.stack_events import Stacks
from otel_gpu.wire.frames import Frame
from tests.activities import call_stack, lines_at
from tests.unit.export import samples
from tests.unit.export.samples import BOOT_UNIX_NS as T0

MS = 1_000_000
SEED = b"capture1"
HOG = Culprit(90, 91, "hog")
HOLDER = Culprit(42, 45, "holder")
TRACE, SPAN = bytes(range(16)), bytes(range(8))
ORIGIN = Origins("9.8.7", ProcessResources({})).of(samples.PROCESS)[semconv.SCOPE_CAUSAL]
EFFECT = Effect(
    "slow_call",
    samples.PROCESS,
    "cudaStreamSynchronize",
    44,
    "worker",
    T0,
    10 * MS,
    8 * MS,
    TRACE,
    SPAN,
)


def waited(start_ms, end_ms, culprit=HOG, span_id=b""):
    start, end = T0 + round(start_ms * MS), T0 + round(end_ms * MS)
    return Evidence(f"run_queue-{start}", "run_queue", start, end, culprit, None, "", (), span_id)


def blocked(start_ms, end_ms, waker=HOLDER, reason="lock", span_id=b""):
    start, end = T0 + round(start_ms * MS), T0 + round(end_ms * MS)
    functions = ("futex_wait_queue", "futex_wait")
    return Evidence(
        f"blocked-{start}", "blocked", start, end, None, waker, reason, functions, span_id
    )


def interval(kind, start_ms, end_ms, span_id=b""):
    return Evidence(kind, kind, T0 + start_ms * MS, T0 + end_ms * MS, HOG, None, "", (), span_id)


def cause(kind, time_ms, *evidence, culprit=None, via=()):
    return Cause(kind, round(time_ms * MS), time_ms / 10, culprit, evidence, via)


def chain(*causes, unexplained_ms=0.0, effect=EFFECT, name="c1"):
    return Chain(name, effect, causes, round(unexplained_ms * MS), "high")


def spans_of(chain, exported=()):
    """The spans, where ``exported`` says which spans there are to link to."""
    return causal.chain_spans(
        chain,
        ORIGIN,
        lambda evidence, culprit: [
            reference
            for reference in exported
            if reference.span_id == evidence.span_id
            or (culprit == HOG and reference.trace_id == bytes(15) + b"h")
        ],
        lambda _: (),
    )


def tree(spans):
    """Name, start and end in milliseconds of each span, below its parent."""
    names = {span.span_id: span.name for span in spans}
    return [
        (
            names.get(span.parent_span_id, ""),
            span.name,
            (span.start_unix_ns - T0) / MS,
            (span.end_unix_ns - T0) / MS,
        )
        for span in spans
    ]


def test_a_slow_call_has_the_waterfall_of_its_causes_below_it():
    """The chain covers the effect, each cause its interval, and what caused it lies inside."""
    starved = cause("run_queue", 2, waited(1, 3), culprit=HOG)
    spans = spans_of(
        chain(
            cause("lock", 4, blocked(0, 4), culprit=HOLDER, via=(starved,)),
            cause("preemption", 3, waited(4, 7), culprit=HOG),
            unexplained_ms=3,
        )
    )

    assert tree(spans) == [
        ("", "gpu.causal_chain", 0, 10),
        ("gpu.causal_chain", "gpu.cause.lock", 0, 4),
        ("gpu.cause.lock", "sched.blocked", 0, 4),
        ("gpu.cause.lock", "gpu.cause.run_queue", 1, 3),
        ("gpu.cause.run_queue", "sched.run_queue_wait", 1, 3),
        ("gpu.causal_chain", "gpu.cause.preemption", 4, 7),
        ("gpu.cause.preemption", "sched.run_queue_wait", 4, 7),
    ]
    assert {span.trace_id for span in spans} == {TRACE}
    assert spans[0].parent_span_id == SPAN
    assert {span.origin.scope.name for span in spans} == {"otel_gpu.causal"}
    assert len({span.span_id for span in spans}) == 7
    assert {span.status_code for span in spans} == {STATUS_UNSET}


def test_a_chain_says_where_in_the_program_it_was():
    """The effect's place is on the chain, and that of a wait on its interval."""
    place = Stacks("event", None).place
    waiting = call_stack(0xAB, (Frame("cpython", "get", "/app/loader.py", 9),), complete=False)
    wait = blocked(0, 4)._replace(stack=waiting)
    effect = EFFECT._replace(stack=call_stack())

    spans = causal.chain_spans(
        chain(cause("lock", 4, wait), effect=effect), ORIGIN, lambda *_: [], place
    )

    said = [
        {
            key: value
            for key, value in span.attributes
            if key.startswith(("code.", "otel_gpu.stack."))
        }
        for span in spans
    ]
    assert said == [
        {
            "code.function.name": "fragmentation_pattern",
            "code.file.path": "/app/train.py",
            "code.line.number": 74,
            "otel_gpu.stack.id": "9c1fb4e17d2a6b03",
        },
        {},
        {
            "code.function.name": "get",
            "code.file.path": "/app/loader.py",
            "code.line.number": 9,
            "otel_gpu.stack.id": "00000000000000ab",
            "otel_gpu.stack.complete": False,
        },
    ]
    assert [span.events for span in spans] == [(), (), ()]


def test_a_chain_says_what_happened_and_whose_fault_it_was():
    """The attributes of the chain are those of its leading cause."""
    span, *_ = spans_of(chain(cause("preemption", 6, waited(1, 7), culprit=HOG), unexplained_ms=4))

    assert dict(span.attributes) == {
        "otel_gpu.effect.kind": "slow_call",
        "otel_gpu.severity": "high",
        "otel_gpu.excess.time": 0.008,
        "gpu.cuda.api": "cudaStreamSynchronize",
        "otel_gpu.cause.kind": "preemption",
        "otel_gpu.cause.time": 0.006,
        "otel_gpu.cause.share": 0.6,
        "otel_gpu.culprit.pid": 90,
        "otel_gpu.culprit.tid": 91,
        "otel_gpu.culprit.comm": "hog",
        "otel_gpu.unexplained.share": 0.4,
        "otel_gpu.thread.tid": 44,
        "thread.name": "worker",
    }


def test_a_slow_gap_names_the_call_that_it_delayed():
    """A gap is no call, and must not be found by the name of one."""
    span, *_ = spans_of(chain(effect=EFFECT._replace(kind="slow_gap")))

    attributes = dict(span.attributes)
    assert attributes["otel_gpu.gap.next_api"] == "cudaStreamSynchronize"
    assert "gpu.cuda.api" not in attributes


def test_what_nothing_explains_is_unexplained():
    """A chain without causes says so."""
    (span,) = spans_of(chain(unexplained_ms=10))

    assert dict(span.attributes)["otel_gpu.cause.kind"] == "unexplained"
    assert dict(span.attributes)["otel_gpu.unexplained.share"] == 1.0


def test_a_cause_of_several_intervals_spans_them_all():
    """Its time is less than its length where something else lies between them."""
    spans = spans_of(chain(cause("preemption", 3, waited(1, 2), waited(5, 7), culprit=HOG)))

    assert tree(spans)[1:] == [
        ("gpu.causal_chain", "gpu.cause.preemption", 1, 7),
        ("gpu.cause.preemption", "sched.run_queue_wait", 1, 2),
        ("gpu.cause.preemption", "sched.run_queue_wait", 5, 7),
    ]
    assert dict(spans[1].attributes)["otel_gpu.cause.time"] == 0.003


def test_an_interval_has_the_details_of_its_kind():
    """Blocked: on what, and who ended it; waiting for a CPU: who had it."""
    spans = spans_of(
        chain(
            cause("lock", 4, blocked(0, 4), culprit=HOLDER),
            cause("run_queue", 2, waited(4, 6), culprit=HOG),
        )
    )

    by_name = {span.name: dict(span.attributes) for span in spans}
    assert by_name["sched.blocked"] == {
        "otel_gpu.stall.reason": "lock",
        "otel_gpu.kernel.functions": ("futex_wait_queue", "futex_wait"),
        "otel_gpu.waker.pid": 42,
        "otel_gpu.waker.tid": 45,
        "otel_gpu.waker.comm": "holder",
    }
    assert by_name["sched.run_queue_wait"] == {
        "otel_gpu.culprit.pid": 90,
        "otel_gpu.culprit.tid": 91,
        "otel_gpu.culprit.comm": "hog",
    }


def test_links_lead_to_the_evidence_and_to_the_culprit():
    """From the interval, its cause and the chain; mirrored where links are not shown."""
    own = SpanReference(bytes(15) + b"w", b"waiting!")
    hogs = SpanReference(bytes(15) + b"h", b"hogspan!")
    spans = spans_of(
        chain(cause("preemption", 3, waited(4, 7, span_id=own.span_id), culprit=HOG)), (own, hogs)
    )

    for span in spans:
        assert [(link.trace_id, link.span_id) for link in span.links] == [own, hogs]
        assert dict(span.attributes)["otel_gpu.cause.span_id"] == (
            b"waiting!".hex(),
            b"hogspan!".hex(),
        )
    assert spans[0].links[0].attributes == (("otel_gpu.cause.kind", "preemption"),)


def test_nothing_links_to_the_effect_itself():
    """It is the parent of it all."""
    effect_itself = SpanReference(TRACE, SPAN)
    spans = spans_of(chain(cause("gpu_wait", 9, interval("call", 0, 10, SPAN))), (effect_itself,))

    assert tree(spans)[1:] == [("gpu.causal_chain", "gpu.cause.gpu_wait", 0, 10)]
    assert [span.links for span in spans] == [(), ()]


def test_a_fork_is_linked_and_not_repeated():
    """Only intervals of the scheduler are shown again in the trace of the effect."""
    fork = SpanReference(bytes(15) + b"f", b"forkspan")
    spans = spans_of(chain(cause("fork", 2, interval("fork", 1, 3, fork.span_id))), (fork,))

    assert tree(spans)[1:] == [("gpu.causal_chain", "gpu.cause.fork", 1, 3)]
    assert [link.span_id for link in spans[1].links] == [b"forkspan"]


def test_a_cause_without_an_interval_is_an_event():
    """What is known by its total only has no place in time, and is not lost."""
    (span,) = spans_of(chain(cause("gpu_wait", 9)))

    (event,) = span.events
    assert event.name == "gpu.cause"
    assert dict(event.attributes) == {
        "otel_gpu.cause.kind": "gpu_wait",
        "otel_gpu.cause.time": 0.009,
        "otel_gpu.cause.share": 0.9,
    }


def test_what_begins_before_the_effect_keeps_its_beginning_and_nothing_outlasts_it():
    """A worker's stall can begin before the gap that it made; what comes after is no cause."""
    spans = spans_of(chain(cause("fork", 12, interval("fork", -2, 14), blocked(-1, 12))))

    assert tree(spans)[1:] == [
        ("gpu.causal_chain", "gpu.cause.fork", -2, 10),
        ("gpu.cause.fork", "sched.blocked", -1, 10),
    ]


def test_a_chain_is_bounded_and_says_what_it_left_out():
    """Whatever explained it: spans, links and depth have an end."""
    deep = cause("lock", 1, blocked(0, 1))
    for _ in range(20):
        deep = cause("lock", 1, blocked(0, 1), via=(deep,))
    wide = [cause("run_queue", 0.1, waited(n / 10, n / 10 + 0.1)) for n in range(100)]

    spans = spans_of(chain(deep, *wide))

    assert len(spans) == 65
    shown = sum(span.name.startswith("gpu.cause.") for span in spans)
    intervals = sum(span.name.startswith("sched.") for span in spans)
    dropped = dict(spans[0].attributes)["otel_gpu.cause.dropped"]
    # What was left out is counted too where it is an interval of a cause that is shown.
    intervals_left_out = shown - intervals
    assert shown + dropped == 21 + 100 + intervals_left_out


def test_ids_repeat_and_differ_between_chains():
    """A replay gives the same ids; two chains of one effect do not share any."""
    one = chain(cause("lock", 4, blocked(0, 4)))

    assert spans_of(one) == spans_of(one)
    ids_of_one = {span.span_id for span in spans_of(one)}
    assert not ids_of_one & {span.span_id for span in spans_of(one._replace(id="c2"))}


@pytest.fixture
def incident():
    worst = EFFECT._replace(start_unix_ns=T0 + 50 * MS, excess_ns=90 * MS)
    lead = cause("preemption", 300, waited(1, 2), culprit=HOG)._replace(share=0.75)
    chains = (chain(name="c1"), chain(name="c2", effect=worst))
    return Incident(
        "i1",
        "high",
        T0,
        T0 + 900 * MS,
        350 * MS,
        (lead,),
        20 * MS,
        ("Give it a CPU.", "Move the hog."),
        chains,
        37,
    )


def test_an_incident_is_a_root_that_leads_to_its_chains(incident):
    """The worst first; it has no error status, since slow work has not failed."""
    places = [(one, causal.chain_reference(one)) for one in incident.chains]

    span = causal.incident_span(incident, SEED, ORIGIN, places, lambda _: ())

    assert (span.name, span.parent_span_id) == ("gpu.incident", b"")
    assert (span.start_unix_ns, span.end_unix_ns) == (T0, T0 + 900 * MS)
    assert span.trace_id != TRACE
    assert span.status_code == STATUS_UNSET
    assert dict(span.attributes) == {
        "otel_gpu.severity": "high",
        "otel_gpu.lost.time": 0.35,
        "otel_gpu.incident.effects": 37,
        "otel_gpu.incident.chronic": False,
        "otel_gpu.unexplained.time": 0.02,
        "otel_gpu.cause.kind": "preemption",
        "otel_gpu.cause.time": 0.3,
        "otel_gpu.cause.share": 0.75,
        "otel_gpu.culprit.pid": 90,
        "otel_gpu.culprit.tid": 91,
        "otel_gpu.culprit.comm": "hog",
        "otel_gpu.advice": ("Give it a CPU.", "Move the hog."),
    }
    assert [(link.trace_id, link.span_id) for link in span.links] == [places[1][1], places[0][1]]
    assert dict(span.links[0].attributes) == {
        "otel_gpu.effect.kind": "slow_call",
        "otel_gpu.excess.time": 0.09,
    }


def test_a_chronic_incident_says_where_and_needs_no_chains(incident):
    """Of what is always slow, no effect tells."""
    chronic = incident._replace(chronic=True, effects=0, chains=())
    asked = []

    span = causal.incident_span(
        chronic, SEED, ORIGIN, (), lambda stack: asked.append(stack) or (("code.line.number", 7),)
    )

    attributes = dict(span.attributes)
    assert (attributes["otel_gpu.incident.chronic"], attributes["code.line.number"]) == (True, 7)
    assert asked == [stack_of_cause(chronic.causes[0])]
    assert span.links == ()


def test_an_incident_of_thousands_links_to_the_worst(incident):
    """As many as backends take; how many there are more is said."""
    places = [
        (
            one := chain(name=str(n), effect=EFFECT._replace(excess_ns=n)),
            causal.chain_reference(one),
        )
        for n in range(1_003)
    ]

    span = causal.incident_span(incident, SEED, ORIGIN, places, lambda _: ())

    assert len(span.links) == 128
    assert span.dropped_links == 875
    assert span.links[0].span_id == places[-1][1].span_id


def test_an_incident_links_to_each_trace_that_it_hurt(incident):
    """Before it links to one of them again, however much more that cost."""
    places = [
        (
            one := chain(name=str(n), effect=EFFECT._replace(excess_ns=n, trace_id=trace)),
            causal.chain_reference(one),
        )
        for n in range(500)
        for trace in [bytes([1 + (n < 7)]) * 15 + bytes([n if n < 7 else 0])]
    ]

    span = causal.incident_span(incident, SEED, ORIGIN, places, lambda _: ())

    assert len({link.trace_id for link in span.links}) == 8
    costs = [dict(link.attributes)["otel_gpu.excess.time"] * 1e9 for link in span.links]
    assert [round(cost) for cost in costs[:10]] == [499, 6, 5, 4, 3, 2, 1, 0, 498, 497]
    assert len(span.links) == 128


def attributes_of(span):
    return dict(span.attributes)


def test_work_names_its_lines():
    """The first as code, all as counts; how long it was is measured and not counted."""
    lines = lines_at(("slow_augment", 88, 39), ("load", 40, 4), work="image decoding")
    worked = cause("host_work", 8, interval("gap", 0, 10))._replace(lines=lines)
    place = Stacks("event", None).place

    _, span = causal.chain_spans(chain(worked), ORIGIN, lambda *_: [], place)

    said = attributes_of(span)
    assert said[semconv.OTEL_GPU_CAUSE_TIME] == 0.008
    assert said["code.function.name"] == "slow_augment"
    assert said["code.file.path"] == "/app/pictures.py"
    assert said["code.line.number"] == 88
    assert said["otel_gpu.cause.lines"] == (
        "pictures.py:88 slow_augment: 91%",
        "pictures.py:40 load: 9%",
    )
    assert (said["otel_gpu.cause.samples"], said["otel_gpu.cause.work"]) == (43, "image decoding")


def test_who_had_the_cpu_has_lines_and_its_victim_keeps_its_place():
    """The culprit's line is not the code of the span, which is about who waited."""
    taken = cause("preemption", 3, waited(4, 7), culprit=HOG)._replace(
        lines=lines_at(("spin", 3, 2))
    )
    place = Stacks("event", None).place

    _, span, _ = causal.chain_spans(chain(taken), ORIGIN, lambda *_: [], place)

    said = attributes_of(span)
    assert said["otel_gpu.cause.lines"] == ("pictures.py:3 spin: 100%",)
    assert not [name for name in said if name.startswith("code.")]


def test_without_stacks_there_are_no_lines():
    """``stacks.mode`` none: telemetry names no code."""
    worked = cause("host_work", 8, interval("gap", 0, 10))._replace(lines=lines_at(("f", 1, 9)))

    _, span = causal.chain_spans(chain(worked), ORIGIN, lambda *_: [], Stacks("none", None).place)

    assert not [
        name for name in attributes_of(span) if name.startswith(("code.", "otel_gpu.cause.l"))
    ]

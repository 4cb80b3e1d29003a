"""What our spans are in Jaeger, asked through its own API."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest

from tests.backends.conftest import Replay
from tests.backends.jaeger import Jaeger, JaegerSpan
from tests.backends.otelcol import Otelcol
from tests.backends.processes import wait_for
from tests.backends.traces import traces_of
from tests.backends.truth import SERVICE, Stall, Times, Truth, truth_of

pytestmark = pytest.mark.backends

EFFECT = "cudaLaunchKernel"


class Shown(NamedTuple):
    """A scenario in Jaeger, and what its recording says."""

    jaeger: Jaeger
    truth: Truth
    cause: str

    @property
    def slow(self) -> list[JaegerSpan]:
        """The slow calls' traces, found as a user would find them."""
        return self.jaeger.find(SERVICE, EFFECT, duration_min="20ms")


@pytest.fixture(scope="module", params=["lock", "preemption"])
def shown(request: pytest.FixtureRequest, replay: Replay) -> Iterator[Shown]:
    """One scenario, sent through jaeger.yaml; each in a Jaeger of its own."""
    truth = truth_of(request.param)
    with Jaeger() as jaeger, Otelcol("jaeger", env={"OTELCOL_JAEGER": jaeger.endpoint}) as otelcol:
        replay(truth.path, otelcol.endpoint)
        sent = sum(map(len, traces_of(truth.path).values()))
        # Requests may overtake one another on the way.
        assert wait_for(lambda: stored(jaeger) >= sent)
        yield Shown(jaeger, truth, request.param)


def stored(jaeger: Jaeger) -> int:
    return len(jaeger.find(SERVICE)) if SERVICE in jaeger.services() else 0


def children(spans: Sequence[JaegerSpan], parent: JaegerSpan) -> list[JaegerSpan]:
    return [span for span in spans if span.parent_id == parent.span_id]


def intervals(spans: Sequence[JaegerSpan]) -> dict[str, list[Times]]:
    found: dict[str, list[Times]] = {}
    for span in spans:
        if span.name.startswith("sched."):
            found.setdefault(span.name, []).append(span.times)
    return {name: sorted(times) for name, times in found.items()}


def expected_intervals(stalls: Sequence[Stall]) -> dict[str, list[Times]]:
    parts = {
        "sched.blocked": sorted(stall.blocked for stall in stalls if stall.blocked),
        "sched.run_queue_wait": sorted(stall.run_queue for stall in stalls if stall.run_queue),
    }
    return {name: times for name, times in parts.items() if times}


def test_every_slow_call_is_found_by_service_name_and_least_duration(shown: Shown) -> None:
    """The four calls that the scenario made slow are found, to the nanosecond, and no others."""
    slow = sorted(call.times for call in shown.truth.of_api(EFFECT) if call.duration_ns >= 20e6)

    found = sorted(span.times for span in shown.slow if span.name == EFFECT)

    assert len(slow) == 4
    assert found == slow


def test_a_least_duration_that_nothing_reaches_finds_nothing(shown: Shown) -> None:
    """The search is by the duration that Jaeger computes: above the slowest there is nothing."""
    slowest_ns = max(call.duration_ns for call in shown.truth.of_api(EFFECT))

    just_above = shown.jaeger.find(SERVICE, EFFECT, duration_min=f"{slowest_ns + 1}ns")

    assert just_above == []
    assert shown.jaeger.find(SERVICE, EFFECT, duration_min=f"{slowest_ns}ns") != []


def test_children_of_a_slow_call_are_its_chain_and_its_intervals(shown: Shown) -> None:
    """Below the call are the stretches in which its thread was off the CPU, and one chain."""
    calls = {call.times: call for call in shown.truth.of_api(EFFECT)}
    for effect in (span for span in shown.slow if span.name == EFFECT):
        below = children(shown.slow, effect)
        stalls = shown.truth.stalls_in(calls[effect.times])

        assert stalls
        assert intervals(below) == expected_intervals(stalls)
        (chain,) = (span for span in below if span.name == "gpu.causal_chain")
        assert chain.times == effect.times
        assert chain.attributes["otel_gpu.cause.kind"] == shown.cause
        assert len(below) == 1 + sum(len(times) for times in intervals(below).values())


def test_intervals_below_a_cause_are_the_recorded_ones(shown: Shown) -> None:
    """
    Whichever thread an interval of a chain is of, the kernel saw it with just these times.

    Of a wait of another thread only the part within the slow call counts.
    """
    recorded = expected_intervals(shown.truth.stalls)
    spans = shown.slow
    named = set()
    for effect in (span for span in spans if span.name == EFFECT):
        trace = [span for span in spans if span.trace_id == effect.trace_id]
        causes = [span for span in trace if span.name.startswith("gpu.cause.")]
        below = intervals([child for cause in causes for child in children(trace, cause)])

        assert below
        for name, times in below.items():
            assert set(times) <= {within(effect.times, each) for each in recorded[name]}
        named |= {cause.name for cause in causes}

    assert f"gpu.cause.{shown.cause}" in named


def within(outer: Times, inner: Times) -> Times:
    return max(outer[0], inner[0]), min(outer[1], inner[1])


def test_all_that_is_sent_is_there(shown: Shown) -> None:
    """Each recorded call is a span with its own times, whether it was slow or not."""
    for api in (EFFECT, "cudaStreamSynchronize"):
        found = [span.times for span in shown.jaeger.find(SERVICE, api) if span.name == api]

        assert sorted(found) == sorted(call.times for call in shown.truth.of_api(api))
        assert len(found) == 60


def test_links_of_chains_and_incidents_lead_to_spans_that_are_there(shown: Shown) -> None:
    """Every link of the explanation can be followed within Jaeger; none is to a span of nowhere."""
    incidents = shown.jaeger.find(SERVICE, "gpu.incident")
    chains = [span for span in shown.slow if span.name == "gpu.causal_chain"]

    followed = 0
    for span in (*incidents, *chains):
        for trace_id, span_id in span.links:
            assert span_id in {target.span_id for target in shown.jaeger.trace(trace_id)}
            followed += 1

    (incident,) = incidents
    assert {link[1] for link in incident.links} == {chain.span_id for chain in chains}
    assert followed >= 2 * len(chains)


def test_the_resource_is_the_watched_process(shown: Shown) -> None:
    """Every span is of the program that was slow: not of otel-gpu, not of the Collector."""
    for span in (*shown.slow, *shown.jaeger.find(SERVICE, "gpu.incident")):
        assert span.resource["service.name"] == SERVICE
        assert span.resource["process.pid"] == shown.truth.pid
        assert span.resource["process.executable.path"] == "/usr/bin/python3"
        assert span.resource["process.command_args"][-1] == shown.cause
        assert span.resource["host.name"] == "gpu-host"
    assert shown.jaeger.services() == {SERVICE}


def test_each_span_keeps_its_scope(shown: Shown) -> None:
    """A user can tell a measured interval from the same one repeated below a cause."""
    scopes = {
        (span.name.split(".")[0] if span.name.startswith("sched") else span.name, span.scope)
        for span in shown.slow
    }

    assert ("sched", "otel_gpu.sched") in scopes
    assert ("sched", "otel_gpu.causal") in scopes
    assert (EFFECT, "otel_gpu.cuda") in scopes
    assert ("gpu.causal_chain", "otel_gpu.causal") in scopes


def test_jaeger_finds_nothing_wrong_with_our_traces(shown: Shown) -> None:
    """No span comes back with a warning: no missing parent, no doubled id, no invalid link."""
    warned = {
        (span.name, warning)
        for span in (*shown.slow, *shown.jaeger.find(SERVICE, "gpu.incident"))
        for key, warning in span.attributes.items()
        if "warning" in key
    }
    ids = [span.span_id for span in shown.slow]

    assert warned == set()
    assert len(ids) == len(set(ids))

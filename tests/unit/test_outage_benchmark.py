"""The bookkeeping of the outage benchmark: what it compares is all of the same spans."""

from types import SimpleNamespace

from benchmarks.outage import ENV, Spans, count_spans
from otel_gpu.config import load
from tests.receiver import MetricKey

HOUR_MS = 3_600_000


class Receiver:
    """What arrived at a receiver, as the benchmark asks for it."""

    def __init__(self, scopes, counters):
        self._spans = [SimpleNamespace(scope=scope) for scope in scopes]
        self._counters = counters

    def spans(self):
        return self._spans

    def metrics(self):
        return {
            MetricKey("otel-gpu", None, name, frozenset(attributes.items())): SimpleNamespace(
                point=SimpleNamespace(as_int=count, as_double=0.0)
            )
            for name, attributes, count in self._counters
        }


def test_spans_are_counted_whatever_they_are_of():
    """A dropped span does not say whether it was of a call or of a gap: 7 + 2 are 4 + 5."""
    receiver = Receiver(
        ["otel_gpu.cuda", "otel_gpu.cuda", "otel_gpu.cuda", "otel_gpu.sched"],
        [
            ("otel_gpu.spans.chosen", {"otel_gpu.span.source": "call"}, 7),
            ("otel_gpu.spans.chosen", {"otel_gpu.span.source": "gap"}, 2),
            ("otel_gpu.spans.dropped", {"reason": "queue_full"}, 4),
            ("otel_gpu.spans.dropped", {"reason": "rejected"}, 1),
        ],
    )

    assert count_spans(receiver) == Spans(chosen=9, arrived=4, dropped=5)


def test_the_agent_makes_spans_of_what_the_kernel_chose_only():
    """A chain of causes is several spans, and no counter says of how many were dropped."""
    config = load(None, ENV, {})

    assert not config.explain.enabled
    assert config.spans.mode == "full"
    assert config.spans.stall_floor_ms == HOUR_MS
    assert config.spans.call_stall_floor_ms == HOUR_MS

"""
Spans and a histogram of the steps of a training loop.

A step ends after the optimizer's step, where the next one begins. Its span is never made current,
because the program can open and close spans anywhere in its loop. Readers of the thread context still
see it. Every step, with or without a span, is reported to an agent.
"""

import threading
import time
from typing import Final

from opentelemetry.metrics import Meter
from opentelemetry.trace import Span, Tracer, set_span_in_context

from otel_gpu import wire
from otel_gpu.instrumentation.marks import mark_step, prepare_marks
from otel_gpu.instrumentation.published import identity_of, publish_span
from otel_gpu.instrumentation.rate import Rate

STEP: Final = "gpu.training.step"
STEP_DURATION: Final = "gpu.training.step.duration"
LOADER_WAIT: Final = "gpu.training.loader.wait"
STEP_NUMBER: Final = "gpu.training.step.number"
STEP_LOADER_WAIT: Final = "gpu.training.step.loader_wait"

# A step longer than the mean so far by this factor always gets a span, made at its end if needed.
_SLOW: Final = 2.0
_KEPT: Final = 0.95
# Shorter waits have no span.
_SHORT_WAIT_NS: Final = 1_000_000
_MAX_WAIT_SPANS: Final = 16
_NS_PER_S: Final = 1_000_000_000


class OptimizerSteps:
    """
    The steps of each thread that runs an optimizer.

    Args:
        tracer: Makes a span of each step within the rate.
        meter: Makes a histogram of all steps, and one of waits for the loader.
    """

    def __init__(self, tracer: Tracer, meter: Meter) -> None:
        self._tracer = tracer
        self._durations = meter.create_histogram(
            STEP_DURATION, "s", "From the end of one step of the optimizer to the end of the next"
        )
        self._waits = meter.create_histogram(
            LOADER_WAIT, "s", "What the training loop waited for a batch of its loader"
        )
        self._threads = _Threads()
        prepare_marks()

    def end_step(self, optimizer: object) -> None:
        """End the step of this thread. Only its first optimizer counts."""
        thread = self._threads
        if thread.optimizer is None:
            thread.optimizer = id(optimizer)
        elif thread.optimizer != id(optimizer):
            return
        now_ns, ktime_ns = time.time_ns(), time.monotonic_ns()
        if thread.number:
            self._finish(thread, now_ns, ktime_ns)
        thread.number += 1
        thread.waited_ns = thread.wait_spans = 0
        thread.began_ns, thread.began_ktime_ns = now_ns, ktime_ns
        # Only a span that exists now can be published as a parent.
        thread.span = self._begin(thread) if thread.rate.allows(now_ns) else None
        publish_span(thread.span)

    def waited(self, duration_ns: int) -> None:
        """Count a wait for a batch of the loader in the current step."""
        self._waits.record(duration_ns / _NS_PER_S)
        thread = self._threads
        thread.waited_ns += duration_ns
        if thread.span is None or duration_ns < _SHORT_WAIT_NS:
            return
        if thread.wait_spans < _MAX_WAIT_SPANS:
            thread.wait_spans += 1
            now_ns = time.time_ns()
            self._tracer.start_span(
                LOADER_WAIT,
                context=set_span_in_context(thread.span),
                start_time=now_ns - duration_ns,
            ).end(now_ns)

    def stop(self) -> None:
        """Drop the current step of this thread, whose end will not be seen."""
        self._threads.optimizer, self._threads.span, self._threads.number = None, None, 0
        publish_span(None)

    def _finish(self, thread: "_Threads", now_ns: int, ktime_ns: int) -> None:
        duration_s = (ktime_ns - thread.began_ktime_ns) / _NS_PER_S
        self._durations.record(duration_s)
        is_slow = thread.mean_s > 0 and duration_s > _SLOW * thread.mean_s
        thread.mean_s = (
            _KEPT * thread.mean_s + (1 - _KEPT) * duration_s if thread.mean_s else duration_s
        )
        span = thread.span or (self._begin(thread) if is_slow else None)
        if span is not None:
            span.set_attribute(STEP_LOADER_WAIT, thread.waited_ns / _NS_PER_S)
            span.end(now_ns)
        mark_step(
            thread.number,
            thread.began_ktime_ns,
            ktime_ns,
            loader_wait_ns=thread.waited_ns,
            identity=None if span is None else identity_of(span),
            kind=wire.STEP_TRAINING,
        )

    def _begin(self, thread: "_Threads") -> Span:
        return self._tracer.start_span(
            STEP, start_time=thread.began_ns, attributes={STEP_NUMBER: thread.number}
        )


class _Threads(threading.local):
    def __init__(self) -> None:
        self.optimizer: int | None = None
        self.span: Span | None = None
        self.number = 0
        self.began_ns = 0
        self.began_ktime_ns = 0
        self.waited_ns = 0
        self.wait_spans = 0
        self.mean_s = 0.0
        self.rate = Rate()

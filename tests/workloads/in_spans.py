"""
Makes CUDA calls inside spans of its own OpenTelemetry SDK, nested at random, on several threads.

    in_spans.py otel|ddtrace LIBRARY SPANS THREADS FILE

Each call allocates a number of bytes that no other call has, so that it can be told which one a span
of the agent's is. Writes to FILE, for each of these numbers, the trace and the span that it was made
in, as hexadecimal digits, or nulls; prints one line of JSON when it is done.
"""

import ctypes
import itertools
import json
import os
import random
import sys
import threading
from pathlib import Path

publisher, library, spans, threads, file = (
    *sys.argv[1:3],
    int(sys.argv[3]),
    int(sys.argv[4]),
    sys.argv[5],
)
MAX_DEPTH = 6

if publisher == "otel":
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider, sampling

    from otel_gpu.instrumentation.distro import publish_context, publish_provider

    publish_context()
    provider = TracerProvider(sampler=sampling.TraceIdRatioBased(0.5))
    publish_provider(provider)
    open_span = provider.get_tracer("workload").start_as_current_span

    def current():
        """Return trace, span and whether that is sampled; None: in no span."""
        span = trace.get_current_span().get_span_context()
        is_sampled = span.trace_flags.sampled
        return (span.trace_id, span.span_id, is_sampled) if span.is_valid else None
else:
    from ddtrace.trace import tracer

    open_span = tracer.trace

    def current():
        """Return trace, span and whether that is sampled; None: in no span."""
        span = tracer.current_span()
        return (span.trace_id, span.span_id, True) if span else None


cuda = ctypes.CDLL(library)
numbers = itertools.count(1)
lock = threading.Lock()
made = {}


def call():
    """Make one call, and note in which span."""
    with lock:
        number = next(numbers)
    span = current()
    made[number] = [f"{span[0]:032x}", f"{span[1]:016x}", span[2]] if span else [None, None, True]
    cuda.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(number))


def nest(chance, budget, depth):
    """Open a span and others in it; returns how many may still be opened."""
    with open_span("work"):
        budget -= 1
        call()
        while budget and depth < MAX_DEPTH and chance.random() < 0.5:
            budget = nest(chance, budget, depth + 1)
            call()
    return budget


def work(seed, budget):
    """Open as many spans as the budget says, one tree after the other."""
    chance = random.Random(seed)  # noqa: S311 - any will do
    while budget:
        call()
        budget = nest(chance, budget, 1)
    call()


workers = [
    threading.Thread(target=work, args=(seed, spans // threads + (seed < spans % threads)))
    for seed in range(threads)
]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
Path(file).write_text(json.dumps(made), encoding="utf-8")
print(json.dumps({"pid": os.getpid(), "calls": len(made)}), flush=True)  # noqa: T201
# A tracer without an intake would try to reach it at the end.
os._exit(0)

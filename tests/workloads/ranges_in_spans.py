"""
Marks ranges with the package ``nvtx``, in spans of its own OpenTelemetry SDK and around them.

    ranges_in_spans.py LIBRARY

The package has NVTX's own code that loads what NVTX_INJECTION64_PATH names. Each call allocates a
number of bytes that says where it was made; prints one line of JSON with the spans.
"""

import ctypes
import json
import os
import sys

import nvtx
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from otel_gpu.instrumentation.distro import publish_context, publish_provider

publish_context()
cuda = ctypes.CDLL(sys.argv[1])
provider = TracerProvider()
publish_provider(provider)
tracer = provider.get_tracer("workload")
spans = {}


def call(number):
    """Make one call."""
    cuda.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(number))


def opened(name):
    """Open a span, and note it."""
    span = tracer.start_span(name)
    context = span.get_span_context()
    spans[name] = [f"{context.trace_id:032x}", f"{context.span_id:016x}"]
    return span


def surrounded_by(span):
    """Make it current."""
    return trace.use_span(span, end_on_exit=True)


with surrounded_by(opened("request")):
    call(1)
    nvtx.push_range("forward")
    call(2)
    with surrounded_by(opened("layer")):
        call(3)
        nvtx.push_range("kernel")
        call(4)
        nvtx.pop_range()
        call(5)
    call(6)
    nvtx.pop_range()
    call(7)
with nvtx.annotate("alone", domain="own"):
    call(8)
    with surrounded_by(opened("in a range")):
        call(9)
    call(10)
call(11)
print(json.dumps({"pid": os.getpid(), "spans": spans}))  # noqa: T201

"""
CUDA calls at the edges of spans: children of fork and exec, gaps, and a context that is nonsense.

    span_edges.py LIBRARY

Waits of a thread that makes no calls are in a span, and one call hangs in a span until something is
written to standard input. Each call allocates a number of bytes that says where it was made; prints one line of JSON with the
spans that it was in, as hexadecimal digits, and the pids.
"""

import ctypes
import json
import os
import sys
import threading
import time

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from otel_gpu.instrumentation import thread_context
from otel_gpu.instrumentation.distro import publish_context, publish_provider

GAP_S = 0.05
EXEC = (
    "import ctypes, sys; ctypes.CDLL(sys.argv[1]).cudaMalloc(ctypes.byref(ctypes.c_void_p()), {})"
)

library = sys.argv[1]
publish_context()
provider = TracerProvider()
publish_provider(provider)
tracer = provider.get_tracer("workload")
cuda = ctypes.CDLL(library)
said = {}


def note(name):
    """Note the span that this thread is in."""
    span = trace.get_current_span().get_span_context()
    said[name] = [f"{span.trace_id:032x}", f"{span.span_id:016x}"] if span.is_valid else None


def call(number, name):
    """Make one call, and note the span."""
    note(name)
    cuda.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(number))


def child(work):
    """Do something in a child of fork, and wait for it."""
    pid = os.fork()
    if not pid:
        work()
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def in_child():
    """Make a call in no span, and one in a span of the child's own."""
    cuda.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(101))
    with tracer.start_as_current_span("child"):
        span = trace.get_current_span().get_span_context()
        os.write(told, f"{span.trace_id:032x} {span.span_id:016x}".encode())
        cuda.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(102))


with tracer.start_as_current_span("outer"):
    call(1, "gap")
    time.sleep(GAP_S)
    call(2, "gap")
with tracer.start_as_current_span("next"):
    time.sleep(GAP_S)
    call(3, "next")
    asked, told = os.pipe()
    forked = child(in_child)
    said["forked"] = os.read(asked, 200).decode().split()
    execed = child(
        lambda: os.execv(sys.executable, [sys.executable, "-c", EXEC.format(103), library])  # noqa: S606
    )
    # Whoever forges its context is in no span, or in another one of its own making.
    pointer = ctypes.c_void_p.in_dll(
        ctypes.CDLL(str(thread_context.library_path())), "otel_thread_ctx_v1"
    )
    right, pointer.value = pointer.value, 0xDEAD
    call(4, "nonsense")
    pointer.value = right
    call(5, "right again")


def wait_only():
    """Wait in a span, and make no calls."""
    said["waiter"] = threading.get_native_id()
    with tracer.start_as_current_span("waiting"):
        note("waiting")
        time.sleep(GAP_S)


def call_and_wait():
    """Make one call in a span, wait in it, and end."""
    with tracer.start_as_current_span("last"):
        call(6, "last")
        time.sleep(GAP_S)


for work in (wait_only, call_and_wait):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
with tracer.start_as_current_span("hanging"):
    note("hanging")
    cuda.stub_call_inside(b"cudaStreamSynchronize", ctypes.CDLL(None).getchar, None)
    line = {"pid": os.getpid(), "forked": forked, "execed": execed, "said": said}
    print(json.dumps(line), flush=True)  # noqa: T201
    cuda.cudaStreamSynchronize(None)

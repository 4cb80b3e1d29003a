"""Ranges of the real ``nvtx`` package, with no profiler, and of a stand-in for ``torch.cuda.nvtx``."""

import importlib
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from opentelemetry import trace

from otel_gpu.instrumentation import ranges
from otel_gpu.instrumentation.nvtx import NvtxInstrumentor
from otel_gpu.instrumentation.nvtx_library import library_path
from otel_gpu.instrumentation.published import publish_context, publish_span
from tests.unit.instrumentation.published_record import published
from tests.unit.instrumentation.telemetry import Telemetry, installed

FOLDER = Path(__file__).parents[2] / "workloads" / "instrumented"
DROPPED = "otel_gpu.spans.dropped"


@pytest.fixture
def telemetry(monkeypatch):
    with installed(monkeypatch, Telemetry()) as made:
        publish_context()
        NvtxInstrumentor().instrument(tracer_provider=made.tracers, meter_provider=made.meters)
        yield made
        NvtxInstrumentor().uninstrument()


@pytest.fixture
def nvtx(telemetry):
    return importlib.import_module("nvtx")


@pytest.fixture
def torch_nvtx(telemetry, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module("torch.cuda.nvtx")
    for name in [name for name in sys.modules if name.split(".")[0] == "torch"]:
        del sys.modules[name]


def identity(span):
    found = span.get_span_context()
    return found.trace_id, found.span_id, found.trace_flags


def family(telemetry):
    """Each span's name with its parent's."""
    spans = telemetry.spans()
    names = {span.context.span_id: span.name for span in spans}
    return [(span.name, span.parent and names[span.parent.span_id]) for span in spans]


def test_what_is_pushed_nests_as_it_is_pushed(telemetry, nvtx):
    """And below the span that is current; what is current stays so."""
    with telemetry.tracers.get_tracer("test").start_as_current_span("request") as request:
        nvtx.push_range("outer")
        nvtx.push_range(message="inner")
        assert trace.get_current_span() is request
        nvtx.pop_range()
        nvtx.push_range("second")
        nvtx.pop_range()
        nvtx.pop_range()

    assert family(telemetry) == [
        ("inner", "outer"),
        ("second", "outer"),
        ("outer", "request"),
        ("request", None),
    ]


def test_the_innermost_range_is_published_and_nothing_after_it(telemetry, nvtx):
    """CUDA calls become its children; a span that is made current in it is further in."""
    said = [published()]
    nvtx.push_range("outer")
    said.append(published())
    with telemetry.tracers.get_tracer("test").start_as_current_span("span"):
        said.append(published())
        with nvtx.annotate("inner"):
            said.append(published())
        said.append(published())
    said.append(published())
    nvtx.pop_range()
    said.append(published())

    inner, span, outer = (identity(found) for found in telemetry.spans())
    assert said == [None, outer, span, inner, span, outer, None]


def test_a_range_lies_in_the_step_that_a_loop_is_in(telemetry, nvtx):
    """Whose span is never current either; the step may end first."""
    tracer = telemetry.tracers.get_tracer("test")
    first, second = tracer.start_span("first step"), tracer.start_span("second step")
    publish_span(first)
    nvtx.push_range("range")
    publish_span(second)
    nvtx.pop_range()

    (found,) = telemetry.spans("range")
    assert found.parent == first.get_span_context()
    assert published() == identity(second)
    publish_span(None)


def test_annotations_are_ranges(telemetry, nvtx):
    """As a context, and as a decorator that names its function; what they return and raise is theirs."""

    @nvtx.annotate(domain="models")
    def forward(value):
        return value + 1

    @nvtx.annotate("named", "red")
    def fail():
        raise ValueError

    with nvtx.annotate("block", domain="models"):
        assert forward(1) == 2
    with pytest.raises(ValueError):  # noqa: PT011 - the program's own
        fail()

    assert family(telemetry) == [("forward", "block"), ("block", None), ("named", None)]
    domains = [span.attributes.get("gpu.nvtx.domain") for span in telemetry.spans()]
    assert domains == ["models", "models", None]
    assert published() is None
    assert pickle.loads(pickle.dumps(nvtx.annotate("kept"))).init_args[0] == "kept"  # noqa: S301


def test_domains_have_stacks_of_their_own(telemetry, nvtx):
    """What is popped is the last of its domain; a pop too many is nothing."""
    nvtx.push_range("first", domain="a")
    nvtx.push_range("second", domain="b")
    nvtx.pop_range(domain="a")
    nvtx.pop_range(domain="a")
    (second,) = [nvtx.pop_range("b")] and telemetry.spans("second")

    assert [span.name for span in telemetry.spans()] == ["first", "second"]
    assert second.parent is not None
    assert published() is None


def test_a_range_that_is_started_ends_in_any_thread(telemetry, nvtx):
    """Such ranges may lie across each other, and are not published."""
    first, second = nvtx.start_range("first"), nvtx.start_range("second", domain="a")
    assert published() is None
    other = threading.Thread(target=nvtx.end_range, args=(first,))
    other.start()
    other.join()
    nvtx.end_range(second)

    assert family(telemetry) == [("first", None), ("second", None)]


def test_ranges_of_pytorch_are_spans_and_reach_nvtx_as_before(telemetry, torch_nvtx):
    """What it returns and is given is what it was."""
    assert torch_nvtx.range_push("pushed") == 1
    with torch_nvtx.range("batch {}", 3):
        pass
    torch_nvtx.range_pop()
    started = torch_nvtx.range_start(msg="started")
    assert started == 0
    torch_nvtx.range_end(started)

    assert family(telemetry) == [("batch 3", "pushed"), ("pushed", None), ("started", None)]
    assert torch_nvtx.calls == [
        ("push", "pushed"),
        ("push", "batch 3"),
        ("pop",),
        ("pop",),
        ("start", "started"),
        ("end", 0),
    ]


def test_both_packages_share_the_stack_of_the_default_domain(telemetry, nvtx, torch_nvtx):
    """As in NVTX itself."""
    nvtx.push_range("outer")
    torch_nvtx.range_push("inner")
    nvtx.pop_range()
    torch_nvtx.range_pop()

    assert family(telemetry) == [("inner", "outer"), ("outer", None)]


def test_ranges_are_spans_at_a_bounded_rate_and_the_rest_is_counted(telemetry, nvtx, monkeypatch):
    """50 at once, where time stands still; nesting stays right."""
    monkeypatch.setattr(ranges.time, "time_ns", lambda: 10**18)
    done = threading.Thread(target=_push_many, args=(nvtx, 1009))
    done.start()
    done.join()

    assert len(telemetry.spans()) == 50
    (dropped,) = telemetry.points(DROPPED)
    assert (dropped.value, dict(dropped.attributes)) == (959, {"reason": "rate"})


def _push_many(nvtx, count):
    for number in range(count):
        nvtx.push_range(f"range {number}")
        nvtx.pop_range()
    assert published() is None


def test_what_is_never_popped_is_bounded(telemetry, nvtx, monkeypatch):
    """64 deep; what is deeper is counted, and popped first."""
    monkeypatch.setattr(ranges, "Rate", _Always)
    NvtxInstrumentor().uninstrument()
    NvtxInstrumentor().instrument(
        tracer_provider=telemetry.tracers, meter_provider=telemetry.meters
    )
    for _ in range(100):
        nvtx.push_range("deep")
    for _ in range(101):
        nvtx.pop_range()

    assert len(telemetry.spans()) == 64
    (dropped,) = telemetry.points(DROPPED)
    assert (dropped.value, dict(dropped.attributes)) == (36, {"reason": "depth"})
    assert published() is None


class _Always:
    def allows(self, _):
        return True


def test_what_is_no_longer_instrumented_passes_on_what_it_is_given(telemetry, nvtx):
    """Programs keep the functions that they imported, and what these returned."""
    started = nvtx.start_range("started")
    nvtx.push_range("open")
    NvtxInstrumentor().uninstrument()
    nvtx.push_range("later")
    with nvtx.annotate("later"):
        pass
    nvtx.end_range(started)
    nvtx.end_range(nvtx.start_range("later"))

    assert [span.name for span in telemetry.spans()] == ["started"]
    NvtxInstrumentor().instrument(
        tracer_provider=telemetry.tracers, meter_provider=telemetry.meters
    )
    with nvtx.annotate("again"):
        pass
    assert [span.name for span in telemetry.spans()] == ["started", "again"]


PROGRAM = """
from nvtx import annotate, pop_range, push_range
@annotate()
def forward():
    push_range("pushed")
    pop_range()
forward()
"""


def test_ranges_are_left_to_the_library_where_nvtx_loads_it(monkeypatch):
    """They would be spans twice."""
    monkeypatch.setenv("NVTX_INJECTION64_PATH", str(library_path()))
    with installed(monkeypatch, Telemetry()) as made:
        publish_context()
        NvtxInstrumentor().instrument(tracer_provider=made.tracers, meter_provider=made.meters)
        try:
            found = importlib.import_module("nvtx")
            found.push_range("once")
            found.pop_range()
        finally:
            NvtxInstrumentor().uninstrument()

        assert list(made.spans()) == []
    assert library_path().exists()


@pytest.mark.parametrize("disabled", ["", "1"])
def test_the_whole_of_it_works_by_environment_variables(disabled):
    """And where the user has switched NVTX off, there are no ranges."""
    done = subprocess.run(
        [
            Path(sys.executable).parent / "opentelemetry-instrument",
            sys.executable,
            "-c",
            PROGRAM,
        ],
        env={
            "PATH": os.environ["PATH"],
            "OTEL_TRACES_EXPORTER": "console",
            "OTEL_METRICS_EXPORTER": "none",
            **({"NVTX_DISABLE": disabled} if disabled else {}),
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    for name in ("forward", "pushed"):
        assert (f'"name": "{name}"' in done.stdout) is not bool(disabled)

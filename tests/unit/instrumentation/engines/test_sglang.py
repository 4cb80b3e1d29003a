"""Steps of SGLang, as its scheduler runs batches (0.5.23)."""

import logging

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from otel_gpu.instrumentation.engines import plugins
from tests.unit.instrumentation.published_record import published
from tests.unit.instrumentation.telemetry import installed

STEP = "gpu.inference.step"


def asked_by(number):
    """Return what SGLang keeps of who asked for a request."""
    found = SpanContext(
        number, number + 1000, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED)
    )
    return trace.set_span_in_context(NonRecordingSpan(found))


@pytest.fixture
def scheduler(telemetry):
    from sglang.srt.managers.scheduler import run_scheduler_process  # noqa: PLC0415 - the stand-in

    said = []
    made = run_scheduler_process(lambda mode: said.append((mode, published())) or mode)
    made.said = said
    return made


def batch(mode, tokens=None, *, count=3, decoding=(), traced=True):
    from sglang.srt.managers.schedule_batch import (  # noqa: PLC0415 - the stand-in
        Req,
        ScheduleBatch,
        TraceNullContext,
        TraceReqContext,
    )
    from sglang.srt.model_executor.forward_batch_info import ForwardMode  # noqa: PLC0415

    requests = [
        Req(f"r{number}", TraceReqContext(asked_by(number)) if traced else TraceNullContext())
        for number in range(1, count + 1)
    ]
    return ScheduleBatch(
        requests, ForwardMode[mode], tokens, [requests[index] for index in decoding] or None
    )


def counted(step):
    names = ("requests", "prefill_tokens", "decode_tokens", "phase")
    return tuple(step.attributes[f"gpu.inference.batch.{name}"] for name in names)


def test_a_batch_is_one_step_that_links_to_each_request_and_has_no_parent(telemetry, scheduler):
    """Three requests: one span, three links; what it launches becomes its child."""
    with telemetry.tracers.get_tracer("test").start_as_current_span("serving"):
        assert scheduler.run_batch(batch("EXTEND", [5, 3, 2])) == "EXTEND"

    (step,) = telemetry.spans(STEP)
    assert step.parent is None
    assert [link.context.trace_id for link in step.links] == [1, 2, 3]
    assert [link.attributes["otel_gpu.batch.token_share"] for link in step.links] == [0.5, 0.3, 0.2]
    assert step.attributes["gpu.inference.engine"] == "sglang"
    found = step.get_span_context()
    identity = found.trace_id, found.span_id, found.trace_flags
    assert scheduler.said == [("EXTEND", identity)]
    assert published() is None


def test_prefill_and_decode_are_told_apart(telemetry, scheduler):
    """In a batch of both, those that decode are named."""
    scheduler.run_batch(batch("EXTEND", [5, 3, 2]))
    scheduler.run_batch(batch("MIXED", [9, 1, 1], decoding=(1, 2)), pp_proxy_tensors=None)
    scheduler.run_batch(batch=batch("DECODE"))

    assert [counted(step) for step in telemetry.spans(STEP)] == [
        (3, 10, 0, "prefill"),
        (3, 9, 2, "mixed"),
        (3, 0, 3, "decode"),
    ]
    numbers = [step.attributes["gpu.inference.step.number"] for step in telemetry.spans(STEP)]
    assert numbers == [1, 2, 3]
    assert len(telemetry.points("gpu.inference.step.duration")) == 3


@pytest.mark.parametrize(("mode", "count"), [("IDLE", 0), ("IDLE", 3), ("PREBUILT", 3)])
def test_what_runs_nothing_of_a_request_is_no_step(telemetry, scheduler, mode, count):
    """To keep in step with other ranks, or where others have run it."""
    scheduler.run_batch(batch(mode, count=count))

    assert scheduler.said == [(mode, None)]
    assert telemetry.spans(STEP) == []


def test_requests_that_are_not_traced_are_counted_and_not_linked(telemetry, scheduler):
    """SGLang has something in the place of their context that is everything."""
    scheduler.run_batch(batch("DECODE", traced=False))

    (step,) = telemetry.spans(STEP)
    assert step.links == ()
    assert counted(step) == (3, 0, 3, "decode")


def test_what_the_engine_raises_is_an_error_of_its_step_and_of_nothing_else(telemetry, scheduler):
    """It reaches the engine as it was."""

    def fail(_mode):
        raise MemoryError

    scheduler.launch = fail
    with pytest.raises(MemoryError):
        scheduler.run_batch(batch("DECODE"))

    (step,) = telemetry.spans(STEP)
    assert step.attributes["error.type"] == "MemoryError"
    assert published() is None


def test_what_we_cannot_read_is_said_once_and_never_felt_by_the_engine(
    telemetry, scheduler, caplog
):
    """A version whose batches look otherwise."""
    with caplog.at_level(logging.WARNING, "otel_gpu"):
        for _ in range(3):
            other = batch("EXTEND", [1, 1, 1])
            other.extend_lens = None
            assert scheduler.run_batch(other) == "EXTEND"

    assert telemetry.spans(STEP) == []
    assert len(caplog.messages) == 1


def test_an_unknown_version_is_said_once_and_left_alone(telemetry, caplog):
    """One line that says what is missing."""
    from sglang.srt.managers.scheduler import Scheduler  # noqa: PLC0415 - the stand-in

    del Scheduler.run_batch
    with caplog.at_level(logging.WARNING, "otel_gpu"):
        plugins.watch_sglang()
        plugins.watch_sglang()

    (said,) = caplog.messages
    assert "sglang.srt.managers.scheduler.Scheduler.run_batch" in said


def test_without_an_sdk_nothing_is_done(monkeypatch, scheduler):
    """The batch runs as it would."""
    with installed(monkeypatch, None):
        scheduler.run_batch(batch("DECODE"))
        assert scheduler.said == [("DECODE", None)]

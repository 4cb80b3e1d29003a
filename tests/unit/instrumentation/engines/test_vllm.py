"""Steps of vLLM, as its engine's core and its workers have them (0.12.0; 0.11.0 samples as it executes)."""

import functools
import importlib
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import TraceFlags

from otel_gpu.instrumentation.engines import plugins
from tests.unit.instrumentation.engines.conftest import ENGINES
from tests.unit.instrumentation.published_record import published
from tests.unit.instrumentation.telemetry import Telemetry, installed

STEP = "gpu.inference.step"
PROMPTS = {1: 5, 2: 3, 3: 2}


def headers(number):
    return {"traceparent": f"00-{number:032x}-{number + 1000:016x}-01"}


class Executor:
    """Executes in this process, as with one device, and notes what is published meanwhile."""

    def __init__(self):
        self.outputs, self.said, self.launched = [], [], lambda: None
        # As a worker is made: after the plugins were loaded.
        worker = importlib.import_module("vllm.v1.worker.gpu_worker").Worker(self._launch)
        self._worker = worker

    def _launch(self, call):
        self.said.append((call, published()))
        self.launched()
        return 7

    def execute_model(self, scheduler_output):
        self.outputs.append(scheduler_output)
        return self._worker.execute_model(scheduler_output)

    def sample_tokens(self, grammar_output):
        return self._worker.sample_tokens(grammar_output)


def engine(prompts, *, tokens=2, queue=1, budget=1 << 20, said=headers, executor=Executor):
    """Return an engine core with one request for each prompt."""
    from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415 - the stand-in
    from vllm.v1.engine.core import EngineCore  # noqa: PLC0415
    from vllm.v1.request import Request  # noqa: PLC0415

    scheduler = Scheduler(budget)
    for number, length in prompts.items():
        scheduler.add_request(Request(f"r{number}", [0] * length, tokens, said(number)))
    return EngineCore(scheduler, executor(), queue)


def identity(span):
    found = span.get_span_context()
    return found.trace_id, found.span_id, found.trace_flags


def test_a_batch_is_one_step_that_links_to_each_request_and_has_no_parent(telemetry):
    """Three requests: one span, three links, whatever span is current where it runs."""
    core = engine(PROMPTS)
    with telemetry.tracers.get_tracer("test").start_as_current_span("serving"):
        core.step_fn()

    (step,) = telemetry.spans(STEP)
    assert step.parent is None
    linked = [(link.context.trace_id, link.context.span_id) for link in step.links]
    assert linked == [(number, number + 1000) for number in PROMPTS]
    assert [link.attributes["otel_gpu.batch.token_share"] for link in step.links] == [0.5, 0.3, 0.2]
    assert dict(step.attributes) == {
        "gpu.inference.engine": "vllm",
        "gpu.inference.step.number": 1,
        "gpu.inference.batch.phase": "prefill",
        "gpu.inference.batch.requests": 3,
        "gpu.inference.batch.size": 10,
        "gpu.inference.batch.prefill_tokens": 10,
        "gpu.inference.batch.decode_tokens": 0,
        "otel_gpu.batch.shares.estimated": True,
    }


def test_prefill_and_decode_are_told_apart(telemetry):
    """Prompts of 5, 3 and 2 tokens, at most 7 in a step: the second one is cut."""
    core = engine(PROMPTS, tokens=3, budget=7)
    while core.step_fn()[1]:
        pass

    steps = [step.attributes for step in telemetry.spans(STEP)]
    counted = [
        tuple(
            step[f"gpu.inference.batch.{name}"]
            for name in ("phase", "prefill_tokens", "decode_tokens")
        )
        for step in steps
    ]
    assert counted == [
        ("prefill", 7, 0),
        ("mixed", 3, 1),
        ("decode", 0, 3),
        ("decode", 0, 2),
    ]
    assert [step["gpu.inference.step.number"] for step in steps] == [1, 2, 3, 4]
    durations = {
        point.attributes["gpu.inference.batch.phase"]: point.count
        for point in telemetry.points("gpu.inference.step.duration")
    }
    assert durations == {"prefill": 1, "mixed": 1, "decode": 2}


def test_what_a_preemption_makes_it_compute_again_is_prefill(telemetry):
    """All but the newest token was known before."""
    core = engine({1: 5}, tokens=4)
    core.step_fn()
    core.step_fn()
    core.scheduler.requests["r1"].num_computed_tokens = 0
    core.step_fn()

    last = telemetry.spans(STEP)[-1].attributes
    assert last["gpu.inference.batch.prefill_tokens"] == 6
    assert last["gpu.inference.batch.decode_tokens"] == 1


def test_200_requests_have_as_many_links_as_the_limit_allows_and_the_rest_is_said(telemetry):
    """128 links and 72 without; the next steps link to those first, so that all are linked in the end."""
    core = engine(dict.fromkeys(range(1, 201), 1), tokens=3)
    while core.step_fn()[1]:
        pass

    steps = telemetry.spans(STEP)
    assert [len(step.links) for step in steps] == [128, 128, 128]
    assert [step.attributes["gpu.inference.batch.links.left_out"] for step in steps] == [72, 72, 72]
    assert [step.dropped_links for step in steps] == [0, 0, 0]
    assert {step.attributes["gpu.inference.batch.requests"] for step in steps} == {200}
    assert len({link.context.trace_id for step in steps for link in step.links}) == 200


@pytest.mark.parametrize("by", ["variable", "provider"])
def test_the_limit_is_the_users(monkeypatch, engines, by):
    """By its variable, or by a provider that has another one."""
    if by == "variable":
        monkeypatch.setenv("OTEL_SPAN_LINK_COUNT_LIMIT", "10")
    limits = SpanLimits(max_links=10)
    telemetry = Telemetry(span_limits=limits)
    with installed(monkeypatch, telemetry):
        engine(dict.fromkeys(range(1, 15), 1)).step_fn()

    (step,) = telemetry.spans(STEP)
    assert len(step.links) == 10
    assert step.attributes["gpu.inference.batch.links.left_out"] == 4


def test_the_largest_share_is_linked_first(monkeypatch, engines):
    """One prompt of 100 tokens among 200 requests is never the one that is left out."""
    telemetry = Telemetry()
    with installed(monkeypatch, telemetry):
        engine(dict.fromkeys(range(1, 201), 1) | {77: 100}).step_fn()

    (step,) = telemetry.spans(STEP)
    assert step.links[0].context.trace_id == 77
    assert step.links[0].attributes["otel_gpu.batch.token_share"] == pytest.approx(100 / 299)


@pytest.mark.parametrize(
    "said",
    [
        None,
        {},
        {"traceparent": "nonsense"},
        {"traceparent": f"00-{0:032x}-{5:016x}-01"},
        {"traceparent": "00-" + "a" * 500},
        {"traceparent": 5},
    ],
)
def test_a_request_without_a_context_is_counted_and_not_linked(telemetry, said):
    """Nobody asked for it whom we know."""
    engine({1: 4, 2: 4}, said=lambda number: headers(1) if number == 1 else said).step_fn()

    (step,) = telemetry.spans(STEP)
    assert [link.context.trace_id for link in step.links] == [1]
    assert step.links[0].attributes["otel_gpu.batch.token_share"] == 0.5
    assert step.attributes["gpu.inference.batch.requests"] == 2
    assert "gpu.inference.batch.links.left_out" not in step.attributes


def test_the_step_is_published_as_long_as_it_lasts(telemetry):
    """What it launches, in either call of the worker, becomes its child; nothing before or after it."""
    core = engine(PROMPTS)
    assert published() is None
    core.step_fn()
    assert published() is None

    (step,) = telemetry.spans(STEP)
    assert core.model_executor.said == [
        ("execute_model", identity(step)),
        ("sample_tokens", identity(step)),
    ]


def test_links_are_made_when_the_device_has_its_work(telemetry):
    """They take longest, and nobody waits for them then."""
    begun, links = [], []
    telemetry.tracers.add_span_processor(_Begun(begun))
    core = engine(PROMPTS)
    core.model_executor.launched = lambda: links.append(len(begun[-1].links))
    core.step_fn()

    assert links == [0, 3]


class _Begun(SpanProcessor):
    def __init__(self, begun):
        self._begun = begun

    def on_start(self, span, parent_context=None):
        self._begun.append(span)


def test_batches_in_flight_are_steps_of_their_own(telemetry):
    """Two in a queue: each lasts until it has results, and the worker publishes the one that it runs."""
    core = engine(PROMPTS, tokens=1, budget=5, queue=2)
    core.step_fn()
    assert telemetry.spans(STEP) == []
    core.step_fn()
    core.step_fn()

    steps = telemetry.spans(STEP)
    assert [step.attributes["gpu.inference.step.number"] for step in steps] == [1, 2]
    first, second = steps
    assert second.start_time < first.end_time
    assert [said for _, said in core.model_executor.said] == [
        *[identity(first)] * 2,
        *[identity(second)] * 2,
    ]
    assert published() is None


def test_a_step_that_is_not_sampled_is_published_as_such(monkeypatch, engines):
    """What it launches is not sampled either; the histogram has it all the same."""
    telemetry = Telemetry(sampler=ALWAYS_OFF)
    with installed(monkeypatch, telemetry):
        core = engine(PROMPTS)
        core.step_fn()

    assert telemetry.spans() == []
    assert [said[2] & TraceFlags.SAMPLED for _, said in core.model_executor.said] == [0, 0]
    assert telemetry.points("gpu.inference.step.duration")[0].count == 1


def test_what_the_engine_raises_is_an_error_of_its_step_and_of_nothing_else(telemetry):
    """It reaches the engine as it was."""
    core = engine(PROMPTS)
    core.model_executor.sample_tokens = functools.partial(_fail, RuntimeError("out of memory"))
    with pytest.raises(RuntimeError, match="out of memory"):
        core.step_fn()

    (step,) = telemetry.spans(STEP)
    assert step.status.status_code is trace.StatusCode.ERROR
    assert step.attributes["error.type"] == "RuntimeError"
    assert published() is None


def _fail(error, *_):
    raise error


WORKER = """
import pickle, sys
sys.path[:0] = sys.argv[1:]
from vllm.plugins import load_general_plugins
load_general_plugins()
from vllm.v1.worker.gpu_worker import Worker
from tests.unit.instrumentation.published_record import published

worker = Worker(lambda call: print(call, published()))
for output in pickle.load(sys.stdin.buffer):
    worker.execute_model(output)
    worker.sample_tokens(None)
    print("after", published())
print("opentelemetry.sdk" in sys.modules)
"""


def test_a_worker_in_another_process_publishes_the_step_that_came_with_its_batch(telemetry):
    """Without an SDK of its own; what came without a step has none."""
    core = engine(PROMPTS)
    while core.step_fn()[1]:
        pass
    outputs = core.model_executor.outputs
    plain = pickle.loads(pickle.dumps(outputs[0]))  # noqa: S301 - our own
    del plain._otel_gpu_step
    ran = subprocess.run(
        [sys.executable, "-c", WORKER, ENGINES, Path(__file__).parents[4]],
        input=pickle.dumps([*outputs, plain]),
        capture_output=True,
        check=True,
        timeout=60,
    )

    first, second = (identity(step) for step in telemetry.spans(STEP))
    assert ran.stdout.decode().splitlines() == [
        f"execute_model {first}",
        f"sample_tokens {first}",
        "after None",
        f"execute_model {second}",
        f"sample_tokens {second}",
        "after None",
        "execute_model None",
        "sample_tokens None",
        "after None",
        "False",
    ]


FORKED = """
import os, sys
sys.path[:0] = sys.argv[1:]
from opentelemetry import trace
from vllm.plugins import load_general_plugins

load_general_plugins()
with trace.get_tracer("api").start_as_current_span("request"):
    pid = os.fork()
if not pid:
    from tests.unit.instrumentation.engines.test_vllm import PROMPTS, engine

    core = engine(PROMPTS)
    while core.step_fn()[1]:
        pass
    trace.get_tracer_provider().force_flush()
    print(*(said and said[1] for _, said in core.model_executor.said), flush=True)
    os._exit(0)
sys.exit(os.waitpid(pid, 0)[1])
"""


def test_an_engine_core_that_is_forked_off_has_the_plugin_of_its_parent(receiver):
    """As vLLM may start it: plugins are loaded before, and what is current in the parent is not here."""
    ran = subprocess.run(
        [
            Path(sys.executable).parent / "opentelemetry-instrument",
            *(sys.executable, "-c", FORKED, ENGINES, Path(__file__).parents[4]),
        ],
        env={
            "PATH": os.environ["PATH"],
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.http_endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_METRICS_EXPORTER": "none",
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    first, second = (one.span for one in receiver.spans() if one.span.name == STEP)
    assert (first.parent_span_id, second.parent_span_id) == (b"", b"")
    said = [int(number).to_bytes(8, "big") for number in ran.stdout.split()]
    assert said == [first.span_id, first.span_id, second.span_id, second.span_id]


def test_without_an_sdk_nothing_is_done(monkeypatch, engines):
    """Not even the scheduler is looked at."""
    with installed(monkeypatch, None):
        core = engine(PROMPTS)
        core.step_fn()

    assert "schedule" not in vars(core.scheduler)
    assert not hasattr(core.model_executor.outputs[0], "_otel_gpu_step")
    assert [said for _, said in core.model_executor.said] == [None, None]


def test_a_disabled_sdk_leaves_the_engine_as_it_is(monkeypatch, telemetry):
    """Nothing of it is wrapped."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    core = engine(PROMPTS)
    core.step_fn()

    assert not hasattr(type(core).step, "__wrapped__")
    assert telemetry.spans() == []


def test_a_plugin_that_is_loaded_twice_sees_each_step_once(telemetry):
    """As vLLM says that it may be."""
    plugins.watch_vllm()
    core = engine(PROMPTS)
    plugins.watch_vllm()
    core.step_fn()

    assert len(telemetry.spans(STEP)) == 1


@pytest.mark.parametrize(
    ("module", "owner", "name"),
    [
        ("vllm.v1.engine.core", "EngineCore", "step"),
        ("vllm.v1.worker.gpu_worker", "Worker", "execute_model"),
    ],
)
def test_an_unknown_version_is_said_once_and_left_alone(telemetry, caplog, module, owner, name):
    """One line that says what is missing."""
    found = getattr(importlib.import_module(module), owner)
    delattr(found, name)
    with caplog.at_level(logging.WARNING, "otel_gpu"):
        plugins.watch_vllm()

    (said,) = caplog.messages
    assert f"{module}.{owner}.{name}" in said


def test_what_we_cannot_read_is_said_once_and_never_felt_by_the_engine(telemetry, caplog):
    """A version whose batches look otherwise: they run as they would, and there are no spans."""
    core = engine(PROMPTS)
    schedule = core.scheduler.schedule

    def renamed():
        output = schedule()
        output.new_requests = vars(output).pop("scheduled_new_reqs")
        return output

    core.scheduler.schedule = renamed
    with caplog.at_level(logging.WARNING, "otel_gpu"):
        ran = [core.step_fn() for _ in range(2)]

    assert [sorted(outputs) for outputs, _ in ran] == [["r1", "r2", "r3"]] * 2
    assert telemetry.spans(STEP) == []
    assert len(caplog.messages) == 1
    assert published() is None


def test_an_engine_whose_batches_take_no_attribute_runs_all_the_same(
    telemetry, monkeypatch, caplog
):
    """Its steps are there, and its workers say nothing."""
    from vllm.v1.core.sched import scheduler as module  # noqa: PLC0415 - the stand-in

    class Slotted(module.SchedulerOutput):
        def __setattr__(self, name, value):
            if name.startswith("_"):
                raise AttributeError(name)
            super().__setattr__(name, value)

    monkeypatch.setattr(module, "SchedulerOutput", Slotted)
    core = engine(PROMPTS)
    while core.step_fn()[1]:
        pass

    assert len(telemetry.spans(STEP)) == 2
    assert len(caplog.messages) == 1

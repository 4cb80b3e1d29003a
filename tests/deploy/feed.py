"""
Backends as the overlay daemonset-collector fills them: agents that watch programs, a gateway.

Two agents watch the same programs, since a kernel counts in one layout of buckets at a time, and
the dashboards are for both: exponential histograms, which Prometheus has as native ones, and
explicit buckets. Each has a gateway and a Prometheus of its own.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from otel_gpu.demo.build import build
from otel_gpu.demo.scenarios import SCENARIOS
from tests.backends.engines import Engines
from tests.backends.jaeger import Jaeger
from tests.backends.otelcol import Otelcol
from tests.backends.processes import wait_for
from tests.backends.prometheus import Prometheus
from tests.backends.test_gateway import QUICK, inner_port
from tests.deploy.dashboards import Question, filled_in, questions
from tests.deploy.traceql import find_matches
from tests.kernel.agent import Agent
from tests.stubs.build import stub_libraries, workload
from tools.grafana.memory import ALLOCATED

HERE = Path(__file__).resolve().parent
LAYOUTS = ("exponential", "explicit")
SCENARIO = "scenarios"
CLUSTER = "prod-7"
# Rates in the tests are over this; in Grafana the interval follows from the data source's.
RATE_S = 20
# Half a minute where the machine is idle.
FILL_TIMEOUT_S = 180.0
# What takes longest to have a rate: it needs a second chain, fork or incident.
COUNTERS = (
    "otel_gpu_chains_total",
    "otel_gpu_chains_rate_limited_total",
    "otel_gpu_incidents_total",
    'traces_span_metrics_calls_total{span_name="gpu.causal_chain"}',
    "process_forks_total",
    "gpu_cuda_host_register_bytes_total",
    "tgi_request_count_total",
)
WORST = 'sum(increase(otel_gpu_incidents_total{otel_gpu_severity="high"}[10m])) > 0'


class Unordered(Prometheus):
    """Prometheus that takes samples out of order, as docs/dashboards.md has it."""

    def __init__(self) -> None:
        super().__init__()
        config = "storage: {tsdb: {out_of_order_time_window: 10m}}\n"
        (self.folder / "prometheus.yml").write_text(config, encoding="utf-8")


class Feed(NamedTuple):
    """The backends, filled, and when they were."""

    prometheus: Mapping[str, Prometheus]
    jaeger: Jaeger
    unix_s: float

    def exemplars(self, question: Question) -> list[str]:
        """The traces that exemplars of a panel name, in either layout."""
        return [trace for each in self.prometheus.values() for trace in _exemplars(each, question)]


@contextmanager
def feed(folder: Path) -> Iterator[Feed]:
    """Run everything until all is there that a dashboard can show, and end the programs."""
    library, hang = str(stub_libraries().runtime), str(workload("hang"))
    scenario = build(SCENARIOS["lock"], folder)
    node = [sys.executable, HERE / "node.py", library, hang, *scenario]
    with ExitStack() as backends:
        jaeger = backends.enter_context(Jaeger())
        prometheus = {layout: backends.enter_context(Unordered()) for layout in LAYOUTS}
        with ExitStack() as agents:
            engines = agents.enter_context(Engines())
            first, second = (
                agents.enter_context(_gateway(jaeger, prometheus[layout], engines))
                for layout in LAYOUTS
            )
            starting = _agent(first, LAYOUTS[0], *node)
            starter = agents.enter_context(starting)
            pid = starter.next_line()["pid"]
            agents.enter_context(_agent(second, LAYOUTS[1], pid=pid))
            starter.send_line()
            for each in prometheus.values():
                _wait_for(each, f"sum(rate(gpu_cuda_kernel_launch_calls_total[{RATE_S}s])) > 0")
            # Both agents see its only call begin.
            starter.send_line()
            for each in prometheus.values():
                for counter in COUNTERS:
                    _wait_for(each, f"sum(rate({counter}[{RATE_S}s])) > 0")
                _wait_for(each, "gpu_cuda_call_open_age_seconds")
                # A rate of buckets reaches back to before the first sample, and one of a counter does not.
                _wait_for(each, f"{ALLOCATED} offset {RATE_S}s")
                # The first one has no increase: there has to be another.
                wait_for(partial(_ask, each, WORST), FILL_TIMEOUT_S)
            # Of the chains of a second few are sent, which may be the other program's.
            for found in (
                lambda: jaeger.find(SCENARIO, "gpu.incident"),
                lambda: jaeger.find(SCENARIO, "gpu.causal_chain", duration_min="10ms"),
            ):
                assert wait_for(found, FILL_TIMEOUT_S)
            # An incident of high severity may be the other program's, and the next one of this is.
            for question in questions("tempo"):
                find = partial(find_matches, jaeger, SCENARIO, question)
                assert wait_for(find, FILL_TIMEOUT_S), str(question)
            for question in (each for each in questions("prometheus") if each.target["exemplar"]):
                shown = prometheus.values()
                assert wait_for(
                    lambda question=question, shown=shown: any(
                        _exemplars(each, question) for each in shown
                    ),
                    FILL_TIMEOUT_S,
                ), str(question)
            unix_s = time.time()
        yield Feed(prometheus, jaeger, unix_s)


def _gateway(jaeger: Jaeger, prometheus: Prometheus, engines: Engines) -> Otelcol:
    env = engines.environment(vllm=SCENARIO) | {
        "OTELCOL_TRACES": jaeger.endpoint,
        "OTELCOL_REMOTE_WRITE": prometheus.remote_write,
        "OTELCOL_INFERENCE_EXPORTER": "prometheus_remote_write",
        "OTELCOL_SAMPLING_PERCENTAGE": "100",
    }
    return Otelcol("gateway", "inference", env=env, sets=QUICK | inner_port())


def _agent(gateway: Otelcol, layout: str, *command: str | Path, pid: int = 0) -> Agent:
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": gateway.endpoint,
        "OTEL_METRIC_EXPORT_INTERVAL": "2000",
        "OTEL_RESOURCE_ATTRIBUTES": f"k8s.cluster.name={CLUSTER}",
        "OTEL_GPU_HISTOGRAMS_LAYOUT": layout,
        "OTEL_GPU_CAPTURE_OPEN_CALL_LIMIT_S": "1",
        # One for a request for memory of the trainer, of which six fail in each second, and few others.
        "OTEL_GPU_EXPLAIN_CHAINS_PER_SECOND": "3",
    }
    flags = ("--summary", "never", *(("--pid", str(pid)) if pid else ()))
    return Agent(None, command, flags=flags, env=env, stdin=subprocess.PIPE)


def _exemplars(prometheus: Prometheus, question: Question) -> list[str]:
    now_s = time.time()
    found = prometheus.get(
        "/api/v1/query_exemplars",
        query=filled_in(question.target["expr"], RATE_S, RATE_S),
        start=f"{now_s - 600:.3f}",
        end=f"{now_s + 600:.3f}",
    )["data"]
    return [one["labels"]["trace_id"] for series in found for one in series["exemplars"]]


def _ask(prometheus: Prometheus, question: str) -> object:
    return prometheus.query(question, time.time())


def _wait_for(prometheus: Prometheus, question: str) -> None:
    found = wait_for(partial(_ask, prometheus, question), FILL_TIMEOUT_S)
    assert found, f"no answer to {question}"

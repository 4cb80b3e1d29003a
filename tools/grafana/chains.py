"""Why calls were slow: causal chains and incidents."""

from tools.grafana.model import JAEGER, TEMPO, Dashboard, Panel, Query, Row
from tools.grafana.promql import AGENTS, of, or_zero, rate, total
from tools.grafana.variables import CLUSTER, NODE, SERVICE, source

# From the connector span_metrics of collector-config/gateway.yaml.
SPANS = "traces_span_metrics_calls_total"
TIMES = "traces_span_metrics_duration_seconds_sum"
SEVERITY = "otel_gpu_severity"
CAUSE = "otel_gpu_cause_kind"
OF_SERVICE = 'resource.service.name =~ "$service"'


def dashboard() -> Dashboard:
    """Return the dashboard."""
    return Dashboard(
        "otel-gpu-chains",
        "GPU programs: causal chains",
        "Why CUDA calls and the gaps between them were slow, and whose doing it was.",
        (source("prometheus"), CLUSTER, NODE, SERVICE, source("tempo"), source("jaeger")),
        (
            Row("How many", _counts()),
            Row("Causes (from the gateway's span metrics)", _causes()),
            Row("Which, in Tempo", _tempo()),
            Row("Which, in Jaeger", _jaeger(), collapsed=True),
        ),
    )


def _counts() -> tuple[Panel, ...]:
    chains, incidents, limited = (
        total(of(rate(f"otel_gpu_{name}_total"), AGENTS), [label])
        for name, label in (
            ("chains", SEVERITY),
            ("incidents", SEVERITY),
            ("chains_rate_limited", "reason"),
        )
    )
    return (
        Panel(
            "Chains by severity",
            "By lost time, and by how much of it the host is to blame for. A wait for the GPU alone is "
            "never high.",
            "ops",
            [Query(chains, f"{{{{{SEVERITY}}}}}")],
            width=8,
            stacked="normal",
        ),
        Panel(
            "Incidents by severity",
            "Chains with the same leading cause, process and culprit; each hour.",
            "short",
            [Query(f"3600 * {incidents}", f"{{{{{SEVERITY}}}}}")],
            width=8,
            stacked="normal",
        ),
        Panel(
            "Chains rate-limited",
            "Explained, and not exported as spans, to keep to explain.chains_per_second.",
            "ops",
            [Query(or_zero(limited), "{{reason}}")],
            width=8,
        ),
    )


def _causes() -> tuple[Panel, ...]:
    service = 'service_name=~"$service"'
    chains = f'{service}, span_name="gpu.causal_chain"'
    causes = f'{service}, span_name=~"gpu.cause.*"'
    return (
        Panel(
            "Chains by leading cause",
            "What most of the effect's time went to.",
            "ops",
            [Query(total(rate(SPANS, chains), [CAUSE]), f"{{{{{CAUSE}}}}}")],
            stacked="normal",
        ),
        Panel(
            "Length of causes",
            "Seconds per second from the first to the last interval of each cause, so a little more "
            "than the time that it took.",
            "short",
            [Query(total(rate(TIMES, causes), [CAUSE]), f"{{{{{CAUSE}}}}}")],
            stacked="normal",
        ),
        Panel(
            "Chains by service",
            "Which services have something to explain.",
            "ops",
            [Query(total(rate(SPANS, chains), ["service_name"]), "{{service_name}}")],
        ),
        Panel(
            "Calls that failed, as spans",
            "By service and operation.",
            "ops",
            [
                Query(
                    or_zero(
                        total(
                            rate(SPANS, f'{service}, status_code="STATUS_CODE_ERROR"'),
                            ["service_name", "span_name"],
                        )
                    ),
                    "{{service_name}} {{span_name}}",
                )
            ],
        ),
    )


def _tempo() -> tuple[Panel, ...]:
    chain, incident = '&& name = "gpu.causal_chain"', '&& name = "gpu.incident"'
    return (
        Panel(
            "Incidents of high severity",
            "Each says what it cost and what can be done; its links lead to the worst chains.",
            "short",
            [_traceql(f'{incident} && span.otel_gpu.severity = "high"')],
            "table",
        ),
        Panel("All incidents", "By time.", "short", [_traceql(incident)], "table"),
        Panel(
            "Chains with the host to blame",
            "Someone else had the CPU, or held what the thread waited for.",
            "short",
            [
                _traceql(
                    f"{chain} && span.otel_gpu.cause.kind =~ "
                    '"preemption|run_queue|cpu_quota|lock|gil|io|ipc|page_fault|reclaim|fork"'
                )
            ],
            "table",
        ),
        Panel(
            "Chains longer than 10 ms",
            "The effects that took longest.",
            "short",
            [_traceql(f"{chain} && duration > 10ms")],
            "table",
        ),
    )


def _traceql(rest: str) -> Query:
    return Query(f"{{ {OF_SERVICE} {rest} }}", source=TEMPO)


def _jaeger() -> tuple[Panel, ...]:
    return tuple(
        Panel(
            title,
            "Jaeger searches one service at a time: choose one above.",
            "short",
            [Query(operation, source=JAEGER, more={"service": "$service"})],
            "table",
        )
        for title, operation in (
            ("Incidents", "gpu.incident"),
            ("Calls with a causal chain", "gpu.causal_chain"),
        )
    )

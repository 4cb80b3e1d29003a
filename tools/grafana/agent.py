"""The agent's own metrics: losses, sampling and cost."""

from tools.grafana.model import Dashboard, Panel, Query, Row, red_above_zero, table
from tools.grafana.promql import (
    AGENTS,
    increase,
    of,
    or_zero,
    rate,
    records_lost,
    total,
    with_label,
)
from tools.grafana.variables import CLUSTER, NODE, source


def dashboard() -> Dashboard:
    """Return the dashboard."""
    return Dashboard(
        "otel-gpu-agent",
        "otel-gpu: the agents",
        "What the agents lost, left out on purpose, and cost.",
        (source("prometheus"), CLUSTER, NODE),
        (
            Row("Losses: ought to be 0", _losses()),
            Row("Left out on purpose", _left_out()),
            Row("Seen", _seen()),
            Row("Cost", _cost()),
            Row("Stacks", _stacks()),
            Row("Who", (_agents(), _coverage())),
        ),
    )


def _by(metric: str, label: str) -> str:
    return total(of(rate(metric), AGENTS), [label])


def _rates(title: str, about: str, metric: str, label: str = "reason") -> Panel:
    queries = [Query(or_zero(_by(metric, label)), f"{{{{{label}}}}}")]
    return Panel(title, about, "ops", queries, width=8)


def _losses() -> tuple[Panel, ...]:
    red = red_above_zero(decimals=0)
    return (
        Panel(
            "Records lost",
            "What the kernel side saw and could not count or hand over, in the time that is shown. "
            "Metrics are exact where this is 0. Samples of stacks are not in it.",
            "short",
            [Query(records_lost())],
            "stat",
            8,
            4,
            config=red,
        ),
        Panel(
            "Spans dropped",
            "Finished, and not exported: the endpoint was down or slow for longer than "
            "export.queue_bytes last.",
            "short",
            [Query(or_zero(total(of(increase("otel_gpu_spans_dropped_total"), AGENTS))))],
            "stat",
            8,
            4,
            config=red,
        ),
        Panel(
            "Series dropped",
            "Of ended processes, given up before they could be exported.",
            "short",
            [Query(or_zero(total(of(increase("otel_gpu_series_dropped_total"), AGENTS))))],
            "stat",
            8,
            4,
            config=red,
        ),
        _rates(
            "Records lost, by reason",
            "ring_full: raise capture.ring_buffer_bytes. series_full, threads_full, processes_full: "
            "raise the capture.max_… of that name. no_entry: a call had begun before its probe.",
            "otel_gpu_records_lost_total",
        ),
        _rates(
            "Spans dropped, by reason",
            "endpoint_down, queue_full: look at the Collector.",
            "otel_gpu_spans_dropped_total",
        ),
        _rates(
            "Records rejected, by reason",
            "Records that could not be understood: a bug of ours, or a recording that is not one.",
            "otel_gpu_records_rejected_total",
        ),
        _rates(
            "Errors inside the agents, by place",
            "A part of an agent failed and lost what it was doing: a bug of ours; its log has the "
            "traceback.",
            "otel_gpu_errors_total",
            "otel_gpu_place",
        ),
    )


def _left_out() -> tuple[Panel, ...]:
    return (
        _rates(
            "Spans rate-limited",
            "Deserved a span and got none, to keep to spans.rate_per_process. They are counted all "
            "the same.",
            "otel_gpu_spans_rate_limited_total",
        ),
        _rates(
            "Chains rate-limited",
            "To keep to explain.chains_per_second.",
            "otel_gpu_chains_rate_limited_total",
        ),
        _rates(
            "Stacks rate-limited",
            "Not taken, to keep to a limit.",
            "otel_gpu_stacks_rate_limited_total",
        ),
        _rates(
            "Times without details",
            "Counted without who was waited for: raise capture.max_times.",
            "otel_gpu_times_folded_total",
        ),
    )


def _seen() -> tuple[Panel, ...]:
    return (
        _rates(
            "Probes",
            "How often probes fired for watched processes.",
            "otel_gpu_probe_hits_total",
            "otel_gpu_probe_type",
        ),
        _rates(
            "Spans chosen",
            "Calls, gaps and stalls that were handed over to become spans.",
            "otel_gpu_spans_chosen_total",
            "otel_gpu_span_source",
        ),
        _rates("Chains", "By severity.", "otel_gpu_chains_total", "otel_gpu_severity"),
    )


def _cost() -> tuple[Panel, ...]:
    cpu = with_label(rate("otel_gpu_overhead_time_seconds_total"), "host_name", AGENTS)
    memory = with_label("otel_gpu_overhead_memory_bytes", "host_name", AGENTS)
    return (
        Panel(
            "CPU",
            "Of the agents' user-space side, in CPUs. What probes cost the programs is not in it; see "
            "docs/overhead.md.",
            "short",
            [Query(total(cpu, ["host_name"]), "{{host_name}}")],
        ),
        Panel(
            "Memory",
            "Resident; maps in the kernel come on top.",
            "bytes",
            [Query(total(memory, ["host_name"]), "{{host_name}}")],
        ),
    )


def _stacks() -> tuple[Panel, ...]:
    found = _by("otel_gpu_stacks_resolved_total", "otel_gpu_stack_complete")
    return (
        Panel(
            "Stacks",
            "Taken by the kernel side, and found for spans: complete or not.",
            "ops",
            [
                Query(total(of(rate("otel_gpu_stacks_taken_total"), AGENTS)), "taken"),
                Query(found, "complete: {{otel_gpu_stack_complete}}"),
            ],
            width=8,
        ),
        _rates(
            "Stacks not used",
            "unused: the wait that it was taken for was too short to be told of.",
            "otel_gpu_stacks_dropped_total",
        ),
        Panel(
            "Different stacks",
            "Since the agent began.",
            "short",
            [
                Query(
                    total(of("otel_gpu_stacks_distinct_total", AGENTS), ["instance"]),
                    "{{instance}}",
                )
            ],
            width=8,
        ),
    )


def _agents() -> Panel:
    labels = ("host_name", "instance", "service_version", "process_pid")
    return Panel(
        "Agents",
        "One on each node.",
        "short",
        [Query(f"max by ({', '.join(labels)}) ({AGENTS})")],
        "table",
        12,
        transformations=table(
            {
                "host_name": "Node",
                "instance": "Instance",
                "service_version": "Version",
                "process_pid": "Process",
            },
            ("Time", "Value", "Value #A"),
        ),
    )


def _coverage() -> Panel:
    told = with_label("otel_gpu_coverage_ratio", "host_name", AGENTS)
    return Panel(
        "Coverage",
        "Share of a library's known CUDA symbols that carry probes. Less than 1: some could not be "
        "attached.",
        "percentunit",
        [Query(f"min by (host_name, otel_gpu_library_path) ({told})")],
        "table",
        12,
        transformations=table(
            {"host_name": "Node", "otel_gpu_library_path": "Library", "Value": "Coverage"}
        ),
    )

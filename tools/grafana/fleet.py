"""All nodes at a glance: who waits for something other than the GPU, and where."""

from tools.grafana.model import Dashboard, Panel, Query, Row, link, red_above_zero, table
from tools.grafana.promql import (
    AGENTS,
    PROCESSES,
    STALLED,
    counted,
    increase,
    of,
    or_zero,
    quantile,
    rate,
    records_lost,
    share,
    total,
    with_label,
)
from tools.grafana.variables import PLACE

TIME = "gpu_cuda_thread_time_seconds_total"
CALLS = "gpu_cuda_call_duration_seconds"
LAUNCHES = 'gpu_cuda_api=~"cu(da)?(Launch|Graph).*"'


def stalled(by: str = "") -> str:
    """Return the share of threads' time that is neither waiting for the GPU nor working for it."""
    if not by:
        return share(total(of(rate(TIME, f'state=~"{STALLED}"'))), total(of(rate(TIME))))
    part, whole = rate(TIME, f'state=~"{STALLED}"'), rate(TIME)
    if by == "job":
        return share(total(of(part), [by]), total(of(whole), [by]))
    return share(total(with_label(part, by), [by]), total(with_label(whole, by), [by]))


def dashboard() -> Dashboard:
    """Return the dashboard."""
    return Dashboard(
        "otel-gpu-fleet",
        "GPU programs: fleet",
        "What programs that use CUDA do with their time, on all nodes.",
        PLACE,
        (
            Row("Now", _now()),
            Row(
                "Time",
                (
                    Panel(
                        "What threads do that make CUDA calls",
                        "gpu_wait is waiting for the device inside a synchronizing call, api other "
                        "CUDA calls, host the program's own work; all others are time off the CPU.",
                        "percentunit",
                        [Query(total(of(rate(TIME)), ["state"]), "{{state}}")],
                        stacked="percent",
                    ),
                    Panel(
                        "Stalled share by service",
                        "Share of that time in which a thread was off the CPU and did not wait for "
                        "the GPU. The ten worst.",
                        "percentunit",
                        [Query(f"topk(10, {stalled('job')})", "{{job}}")],
                    ),
                ),
            ),
            Row("Nodes", (_nodes(),)),
            Row("Calls", _calls()),
        ),
    )


def _now() -> tuple[Panel, ...]:
    incidents = 'otel_gpu_severity="high"'
    return (
        Panel(
            "Nodes reporting",
            "Nodes whose agent has reported within five minutes.",
            "short",
            [Query(f"count(count by (host_name) ({AGENTS}))")],
            "stat",
            4,
            4,
        ),
        Panel(
            "Processes",
            "Processes that made a CUDA call and were seen within five minutes.",
            "short",
            [Query(f"count(count by (job, instance) ({of(TIME)}))")],
            "stat",
            4,
            4,
        ),
        Panel(
            "Stalled share",
            "Share of the time of threads that make CUDA calls in which they were off the CPU and "
            "did not wait for the GPU.",
            "percentunit",
            [Query(stalled())],
            "stat",
            4,
            4,
        ),
        Panel(
            "Incidents of high severity",
            "In the time that is shown. Each is explained in the dashboard of causal chains.",
            "short",
            [Query(or_zero(total(of(increase("otel_gpu_incidents_total", incidents), AGENTS))))],
            "stat",
            4,
            4,
            config=red_above_zero(decimals=0),
        ),
        Panel(
            "Calls that hang",
            "CUDA calls that have not returned for longer than capture.open_call_limit_s.",
            "short",
            [Query(or_zero(f"count({of('gpu_cuda_call_open_age_seconds')})"))],
            "stat",
            4,
            4,
            config=red_above_zero(),
        ),
        Panel(
            "Records lost",
            "What the agents saw and could not count, in the time that is shown. Samples of stacks "
            "are left out: spans then lack a stack, and nothing else.",
            "short",
            [Query(records_lost())],
            "stat",
            4,
            4,
            config=red_above_zero(decimals=0),
        ),
    )


def _nodes() -> Panel:
    processes = f"count by (host_name) (max by (job, instance, host_name) ({PROCESSES}))"
    memory = with_label("gpu_cuda_memory_in_use_bytes", "host_name")
    losses = with_label(increase("otel_gpu_records_lost_total"), "host_name", AGENTS)
    return Panel(
        "Nodes",
        "Follow a node to its processes.",
        "short",
        [
            Query(processes),
            Query(stalled("host_name")),
            Query(total(memory, ["host_name"])),
            Query(total(losses, ["host_name"])),
        ],
        "table",
        24,
        config={"links": [link("Node", "otel-gpu-node", node="${__data.fields.host_name}")]},
        transformations=table(
            {
                "host_name": "Node",
                "Value #A": "Processes",
                "Value #B": "Stalled share",
                "Value #C": "Device memory in use, bytes",
                "Value #D": "Records lost",
            }
        ),
    )


def _calls() -> tuple[Panel, ...]:
    return (
        Panel(
            "Calls by service",
            "CUDA calls each second. Exact: the kernel counts every call.",
            "ops",
            [Query(counted(CALLS, ["job"]), "{{job}}")],
        ),
        Panel(
            "Launches: 99th percentile by service",
            "Time to enqueue a kernel or a graph. A launch that takes long waits for a full queue, "
            "which is the GPU's, or for the host.",
            "s",
            [Query(quantile(0.99, CALLS, ["job"], LAUNCHES), "{{job}}", exemplars=True)],
        ),
        Panel(
            "Failed calls by service",
            "Calls that returned an error, each second.",
            "ops",
            [Query(or_zero(counted(CALLS, ["job"], 'error_type!=""')), "{{job}}")],
        ),
        Panel(
            "Incidents by severity",
            "Effects with the same cause in one stretch of time, each hour.",
            "short",
            [
                Query(
                    f"3600 * {total(of(rate('otel_gpu_incidents_total'), AGENTS), ['otel_gpu_severity'])}",
                    "{{otel_gpu_severity}}",
                )
            ],
        ),
    )

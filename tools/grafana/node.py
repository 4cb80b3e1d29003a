"""One node: its processes, and delays by its scheduler."""

from tools.grafana.fleet import CALLS, TIME, stalled
from tools.grafana.model import Dashboard, Panel, Query, Row, link, table, traces_of
from tools.grafana.promql import (
    AGENTS,
    PROCESSES,
    STALLED,
    counted,
    of,
    quantile,
    rate,
    share,
    total,
)
from tools.grafana.variables import PLACE, source

EACH = ("job", "instance")
RUN_QUEUE = "process_scheduler_run_queue_duration_seconds"
OFF_CPU = "process_scheduler_off_cpu_duration_seconds"


def dashboard() -> Dashboard:
    """Return the dashboard."""
    return Dashboard(
        "otel-gpu-node",
        "GPU programs: node",
        "The processes of a node that use CUDA, and what its scheduler did to them.",
        (*PLACE, source("tempo")),
        (
            Row("Processes", (_processes(),)),
            Row("Time", _time()),
            Row("Scheduler", _scheduler()),
            Row("Agent", _agent()),
        ),
    )


def _processes() -> Panel:
    facts = ("host_name", "process_pid", "process_command", "k8s_namespace_name", "k8s_pod_name")
    part, whole = rate(TIME, f'state=~"{STALLED}"'), rate(TIME)
    known = f"max by (job, instance, {', '.join(facts)}) ({of(PROCESSES, TIME)})"
    return Panel(
        "Processes",
        "Follow a process to its calls, or to its traces. The stalled share is the time off the CPU "
        "in which its threads did not wait for the GPU.",
        "short",
        [
            Query(known),
            Query(share(total(of(part), EACH), total(of(whole), EACH))),
            Query(counted(CALLS, EACH)),
            Query(total(of("gpu_cuda_memory_in_use_bytes"), EACH)),
        ],
        "table",
        24,
        10,
        config={
            "links": [
                link(
                    "Process",
                    "otel-gpu-process",
                    service="${__data.fields.job}",
                    instance="${__data.fields.instance}",
                ),
                traces_of("${__data.fields.job}"),
            ]
        },
        transformations=table(
            {
                "job": "Service",
                "instance": "Instance",
                "host_name": "Node",
                "process_pid": "Process",
                "process_command": "Command",
                "k8s_namespace_name": "Namespace",
                "k8s_pod_name": "Pod",
                "Value #B": "Stalled share",
                "Value #C": "Calls per second",
                "Value #D": "Device memory in use, bytes",
            },
            ("Time", "Value #A"),
        ),
    )


def _time() -> tuple[Panel, ...]:
    return (
        Panel(
            "What threads do that make CUDA calls",
            "In threads: two threads that wait all the time are 2.",
            "short",
            [Query(total(of(rate(TIME)), ["state"]), "{{state}}")],
            stacked="normal",
        ),
        Panel(
            "Stalled share by service",
            "Share of that time off the CPU in which threads did not wait for the GPU.",
            "percentunit",
            [Query(stalled("job"), "{{job}}")],
        ),
    )


def _scheduler() -> tuple[Panel, ...]:
    switch = "process_context_switch_type"
    return (
        Panel(
            "Waits for a CPU: 99th percentile",
            "Threads that could run and did not, by whether they had been preempted (involuntary) or "
            "woken (voluntary). Long ones mean too few CPUs, a quota, or a noisy neighbour.",
            "s",
            [Query(quantile(0.99, RUN_QUEUE, [switch]), f"{{{{{switch}}}}}")],
        ),
        Panel(
            "Times off the CPU: 99th percentile",
            "From switching out to switching in.",
            "s",
            [Query(quantile(0.99, OFF_CPU, [switch]), f"{{{{{switch}}}}}")],
        ),
        Panel(
            "Context switches",
            "Of threads of watched processes.",
            "ops",
            [Query(counted(OFF_CPU, [switch]), f"{{{{{switch}}}}}")],
        ),
        Panel(
            "Forks by service",
            "Each copies page tables while the program holds its memory lock: a large process that "
            "forks stands still.",
            "ops",
            [Query(total(of(rate("process_forks_total")), ["job"]), "{{job}}")],
        ),
    )


def _agent() -> tuple[Panel, ...]:
    return (
        Panel(
            "CPU of the agent",
            "Of its user-space side, in CPUs.",
            "short",
            [
                Query(
                    total(of(rate("otel_gpu_overhead_time_seconds_total"), AGENTS), ["instance"]),
                    "{{instance}}",
                )
            ],
        ),
        Panel(
            "Memory of the agent",
            "Resident; its maps in the kernel come on top.",
            "bytes",
            [Query(of("otel_gpu_overhead_memory_bytes", AGENTS), "{{instance}}")],
        ),
    )

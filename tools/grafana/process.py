"""One program: its calls, the gaps between them, and where its threads' time goes."""

from tools.grafana.fleet import CALLS, TIME
from tools.grafana.model import (
    TEMPO,
    Dashboard,
    Panel,
    Query,
    Row,
    red_above_zero,
    table,
    traces_of,
)
from tools.grafana.node import OFF_CPU, RUN_QUEUE
from tools.grafana.promql import (
    PROCESSES,
    counted,
    of,
    or_zero,
    quantile,
    rate,
    summed,
    total,
)
from tools.grafana.variables import INSTANCE, PLACE, SERVICE, choice, source

STALLED = "gpu_cuda_thread_stall_time_seconds_total"
_CULPRIT = ("otel_gpu_culprit_comm", "otel_gpu_culprit_state")
CHOSEN = 'job=~"$service", instance=~"$instance"'
API = choice(
    "api",
    "Call",
    'label_values({__name__=~"gpu_cuda_call_duration_seconds(_count)?", job=~"$service"}, gpu_cuda_api)',
)


def dashboard() -> Dashboard:
    """Return the dashboard."""
    return Dashboard(
        "otel-gpu-process",
        "GPU programs: process",
        "One program's CUDA calls, and what kept it from making them sooner.",
        (*PLACE, SERVICE, INSTANCE, API, source("tempo")),
        (
            Row("Time", _time()),
            Row("Calls", _calls()),
            Row("Scheduler", _scheduler()),
            Row("Who", (_who(), _traces())),
        ),
    )


def _time() -> tuple[Panel, ...]:
    gap = "gpu_cuda_launch_gap_seconds"
    return (
        Panel(
            "What its threads do",
            "In threads. gpu_wait is waiting for the device inside a synchronizing call, api other CUDA "
            "calls, host the program's own work between them; all others are time off the CPU. "
            "The GPU starves where host and those outweigh gpu_wait.",
            "short",
            [Query(total(of(rate(TIME, CHOSEN)), ["state"]), "{{state}}")],
            stacked="normal",
        ),
        Panel(
            "Who kept its threads waiting",
            "In threads, by the end of each wait: what kept launching threads from going on, and what the "
            "waker did at that time. Smaller ones are other. Waits for the device are not included.",
            "short",
            [
                Query(
                    total(of(rate(STALLED, CHOSEN)), ["state", *_CULPRIT]),
                    "{{state}}: {{otel_gpu_culprit_comm}} {{otel_gpu_culprit_state}}",
                )
            ],
            stacked="normal",
        ),
        Panel(
            "Gaps before launches",
            "From the return of a thread's last CUDA call to its next launch.",
            "s",
            [
                Query(quantile(0.99, gap, (), CHOSEN), "99th percentile"),
                Query(quantile(0.5, gap, (), CHOSEN), "median"),
            ],
        ),
    )


def _calls() -> tuple[Panel, ...]:
    match = f'{CHOSEN}, gpu_cuda_api=~"$api"'
    by = ["gpu_cuda_api"]
    native = total(of(rate(CALLS, match)))
    classic = total(of(rate(f"{CALLS}_bucket", match)), ["le"])
    return (
        Panel(
            "Calls",
            "Exact: the kernel counts every call. A driver call inside a runtime call is a call of its "
            "own.",
            "ops",
            [Query(counted(CALLS, by, match), "{{gpu_cuda_api}}")],
        ),
        Panel(
            "Failed calls",
            "Calls that returned an error.",
            "ops",
            [
                Query(
                    or_zero(counted(CALLS, [*by, "error_type"], f'{match}, error_type!=""')),
                    "{{gpu_cuda_api}} {{error_type}}",
                )
            ],
        ),
        Panel(
            "Duration: 99th percentile",
            "Host time from entry to return, not time on the device. Dots are calls that became spans.",
            "s",
            [Query(quantile(0.99, CALLS, by, match), "{{gpu_cuda_api}}", exemplars=True)],
            config={"links": [traces_of("${service:regex}")]},
        ),
        Panel(
            "Duration: median",
            "Host time from entry to return, not time on the device.",
            "s",
            [Query(quantile(0.5, CALLS, by, match), "{{gpu_cuda_api}}")],
        ),
        Panel(
            "Time in calls",
            "Seconds inside each API per second.",
            "short",
            [Query(summed(CALLS, by, match), "{{gpu_cuda_api}}")],
            stacked="normal",
        ),
        Panel(
            "Durations of the chosen calls",
            "How many calls took how long.",
            "short",
            [Query(f"{native} or {classic}", "{{le}}")],
            "heatmap",
        ),
        Panel(
            "Calls that hang",
            "Age of the longest-open call that has not returned for longer than "
            "capture.open_call_limit_s. 0: none.",
            "s",
            [
                Query(
                    or_zero(of(f"gpu_cuda_call_open_age_seconds{{{CHOSEN}}}")),
                    "{{gpu_cuda_api}}",
                )
            ],
            config=red_above_zero(),
        ),
        Panel(
            "Forks",
            "A large process stands still while it forks.",
            "ops",
            [Query(total(of(rate("process_forks_total", CHOSEN))), "forks")],
        ),
    )


def _scheduler() -> tuple[Panel, ...]:
    switch = "process_context_switch_type"
    return (
        Panel(
            "Waits for a CPU: 99th percentile",
            "Threads that could run and did not.",
            "s",
            [Query(quantile(0.99, RUN_QUEUE, [switch], CHOSEN), f"{{{{{switch}}}}}")],
        ),
        Panel(
            "Times off the CPU: 99th percentile",
            "From switching out to switching in.",
            "s",
            [Query(quantile(0.99, OFF_CPU, [switch], CHOSEN), f"{{{{{switch}}}}}")],
        ),
    )


def _who() -> Panel:
    facts = {
        "host_name": "Node",
        "process_pid": "Process",
        "process_command_args": "Command",
        "process_owner": "User",
        "process_creation_time": "Since",
        "k8s_namespace_name": "Namespace",
        "k8s_pod_name": "Pod",
        "container_id": "Container",
    }
    own = PROCESSES.replace("{", f"{{{CHOSEN}, ", 1)
    return Panel(
        "Processes",
        "What is known of them.",
        "short",
        [Query(f"max by (job, instance, {', '.join(facts)}) ({own})")],
        "table",
        24,
        6,
        transformations=table(
            {"job": "Service", "instance": "Instance", **facts}, ("Time", "Value", "Value #A")
        ),
    )


def _traces() -> Panel:
    query = '{ resource.service.name =~ "$service" && name = "gpu.causal_chain" }'
    return Panel(
        "Calls with a causal chain",
        "Follow a trace to the waterfall of what its time went to.",
        "short",
        [Query(query, source=TEMPO)],
        "table",
        24,
        8,
    )

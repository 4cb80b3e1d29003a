"""Ranks of jobs: missing ranks, late ranks, and their cost."""

from tools.grafana.model import Dashboard, Panel, Query, Row, red_above_zero, table
from tools.grafana.promql import (
    PROCESSES,
    increase,
    of,
    or_zero,
    rate,
    total,
    with_label,
)
from tools.grafana.variables import PLACE, choice

COMMUNICATOR = choice(
    "comm",
    "Communicator",
    'label_values(gpu_nccl_sequence{gpu_nccl_state="called"}, gpu_nccl_comm)',
)
COMM = "gpu_nccl_comm"
CHOSEN = f'{COMM}=~"$comm"'
CALLED = f'gpu_nccl_sequence{{{CHOSEN}, gpu_nccl_state="called"}}'
WAITED = rate("gpu_nccl_wait_time_seconds_total", CHOSEN)
# Duration of a collective, by each rank's own clock.
WAIT = f"{WAITED} / ({rate('gpu_nccl_completions_total', CHOSEN)} > 0)"
RANK = "{{otel_gpu_job_name}}, rank {{gpu_nccl_rank}}"
JOB = "otel_gpu_job_name"


def dashboard() -> Dashboard:
    """Return the dashboard."""
    return Dashboard(
        "otel-gpu-ranks",
        "GPU programs: ranks",
        "Which rank of a job is missing, which one comes last, and what that costs the others.",
        (*PLACE, COMMUNICATOR),
        (Row("Progress", _progress()), Row("Waits", _waits()), Row("Reasons", _reasons())),
    )


def _of_job(expression: str, *more: str) -> str:
    """Return the series with the name of their job, and nothing of the process."""
    return f"max by ({', '.join((JOB, 'gpu_nccl_rank', *more))}) ({with_label(expression, JOB)})"


def _progress() -> tuple[Panel, ...]:
    behind = (
        f"max by ({COMM}) ({CALLED}) - on ({COMM}) group_right () {CALLED} > 0"
        f" and on ({COMM}) max by ({COMM}) (gpu_nccl_pending_age_seconds) > 2"
    )
    return (
        Panel(
            "Missing ranks",
            "Collectives that a rank has not called, and that others have waited in for two seconds and "
            "more. Empty is good.",
            "short",
            [Query(_of_job(f"({behind})"), RANK)],
            kind="table",
            config=red_above_zero(),
            transformations=table(
                {JOB: "Job", "gpu_nccl_rank": "Rank", "Value": "Collectives behind"}
            ),
        ),
        Panel(
            "Pending for",
            "How long the oldest collective has been under way, of the ranks where it is longest. A line that "
            "rises without end is a hang.",
            "s",
            [Query(_of_job(f"topk(10, gpu_nccl_pending_age_seconds{{{CHOSEN}}})"), RANK)],
        ),
        Panel(
            "Collectives",
            "Calls each second, of all ranks.",
            "ops",
            [
                Query(
                    total(of(rate("gpu_nccl_collectives_total", CHOSEN)), ["gpu_nccl_operation"]),
                    "{{gpu_nccl_operation}}",
                )
            ],
        ),
        Panel(
            "Bytes",
            "As the calls have them, each second, of all ranks.",
            "Bps",
            [
                Query(
                    total(of(rate("gpu_nccl_bytes_total", CHOSEN)), ["gpu_nccl_operation"]),
                    "{{gpu_nccl_operation}}",
                )
            ],
        ),
    )


def _waits() -> tuple[Panel, ...]:
    lost = f"{WAITED} - on ({COMM}) group_left () min by ({COMM}) ({WAITED})"
    return (
        Panel(
            "Who waits least",
            "What a collective takes by each rank's own clock, of the three ranks of each communicator that wait "
            "least. One that is far below its neighbours is the one that all others wait for.",
            "s",
            [Query(_of_job(f"bottomk by ({COMM}) (3, {WAIT})"), RANK)],
        ),
        Panel(
            "Usual wait",
            "The median of the ranks of each communicator.",
            "s",
            [Query(f"quantile by ({COMM}) (0.5, {of(WAIT)})", "{{gpu_nccl_comm}}")],
        ),
        Panel(
            "Ranks lost to waiting",
            "As much time is lost as if so many ranks did nothing. Where communication and computation "
            "overlap, less.",
            "short",
            [Query(total(with_label(f"({lost})", JOB), [JOB]), "{{otel_gpu_job_name}}")],
        ),
        Panel(
            "Errors of NCCL",
            "Calls that failed, and asynchronous errors that programs were told, in the time that is shown.",
            "short",
            [
                Query(
                    or_zero(total(of(increase("gpu_nccl_errors_total", CHOSEN)), ["error_type"])),
                    "{{error_type}}",
                )
            ],
        ),
    )


def _reasons() -> tuple[Panel, ...]:
    incidents = 'max_over_time(traces_span_metrics_calls_total{span_name="gpu.incident"}[$__range])'
    ranks = f'{PROCESSES[:-1]}, otel_gpu_rank!=""}}'
    by = f"{JOB}, otel_gpu_rank, otel_gpu_cause_kind, otel_gpu_culprit_comm"
    told = f"max by (job, instance, {JOB}, otel_gpu_rank) ({ranks})"
    return (
        Panel(
            "Incidents of ranks",
            "By cause and culprit, in the time that is shown; the agent of the rank's own node found them. The "
            "late rank's are why it is late.",
            "short",
            [
                Query(
                    f"sum by ({by}) ({incidents} * on (job, instance) "
                    f"group_left ({JOB}, otel_gpu_rank) {told}) > 0"
                )
            ],
            kind="table",
            transformations=table(
                {
                    JOB: "Job",
                    "otel_gpu_rank": "Rank",
                    "otel_gpu_cause_kind": "Cause",
                    "otel_gpu_culprit_comm": "Culprit",
                    "Value": "Incidents",
                }
            ),
        ),
        Panel(
            "Clocks limited",
            "Share of the time in which a device's clocks were lower than they might have been, by reason.",
            "percentunit",
            [
                Query(
                    "max by (hw_id, gpu_clock_limit_reason) ("
                    f"{of(rate('gpu_clock_limited_time_seconds_total'))} > 0)",
                    "{{hw_id}} {{gpu_clock_limit_reason}}",
                )
            ],
        ),
    )

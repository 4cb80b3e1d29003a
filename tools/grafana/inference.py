"""Inference engines: latencies of their users, beside the causes that delay their CUDA work."""

from tools.grafana.chains import CAUSE, SEVERITY, SPANS
from tools.grafana.fleet import TIME
from tools.grafana.model import Dashboard, Panel, Query, Row, traces_of
from tools.grafana.process import STALLED
from tools.grafana.promql import AGENTS, of, or_zero, rate, selected, total
from tools.grafana.variables import PLACE, SERVICE, source

OF_SERVICE = 'job=~"$service"'
_TRT_LLM = "nv_trt_llm_{}"


def dashboard() -> Dashboard:
    """Return the dashboard."""
    return Dashboard(
        "otel-gpu-inference",
        "GPU programs: inference",
        "What vLLM, SGLang, TGI and Triton say of themselves (collector-config/inference.yaml), above "
        "what their threads do and what is in their way.",
        (*PLACE, SERVICE, source("tempo")),
        (
            Row("What users wait for, as the engines say", _waits()),
            Row("How full they are", _load()),
            Row("What is in the way of their CUDA work", _causes()),
        ),
    )


def _waits() -> tuple[Panel, ...]:
    return (
        Panel(
            "Time to the first token: 99th percentile",
            "From a request's arrival to its first token. TGI does not say it, Triton says it of "
            "decoupled models.",
            "s",
            [
                _percentile("vllm:time_to_first_token_seconds"),
                _percentile("sglang:time_to_first_token_seconds"),
                _percentile("nv_inference_first_response_histogram_ms", " / 1000"),
            ],
            width=8,
            config={"links": [traces_of("${service:regex}")]},
        ),
        Panel(
            "Time per token: 99th percentile",
            "Between two tokens of a request; of TGI the mean of each request. A step that something holds "
            "up is a late token for each request of the batch.",
            "s",
            [
                _percentile("vllm:inter_token_latency_seconds"),
                _percentile("sglang:inter_token_latency_seconds"),
                _percentile("tgi_request_mean_time_per_token_duration"),
            ],
            width=8,
        ),
        Panel(
            "Time in the queue: 99th percentile",
            "Before a request is scheduled for the first time; of Triton the mean.",
            "s",
            [
                _percentile("vllm:request_queue_time_seconds"),
                _percentile("sglang:queue_time_seconds"),
                _percentile("tgi_request_queue_duration"),
                Query(_mean_queue_s(), "{{job}}"),
            ],
            width=8,
        ),
    )


def _load() -> tuple[Panel, ...]:
    requests = _TRT_LLM.format("request_metrics")
    return (
        Panel(
            "Requests that wait",
            "They grow where more arrives than is served: if the KV cache is full as well, more memory "
            "helps, and if not, look below.",
            "short",
            [
                _sum("vllm:num_requests_waiting"),
                _sum("sglang:num_queue_reqs"),
                _sum("tgi_queue_size"),
                _sum("nv_inference_pending_request_count"),
            ],
            width=8,
        ),
        Panel(
            "Requests in a batch",
            "Those that are served at a time.",
            "short",
            [
                _sum("vllm:num_requests_running"),
                _sum("sglang:num_running_reqs"),
                _sum("tgi_batch_current_size"),
                _sum(requests, 'request_type="active"'),
            ],
            width=8,
        ),
        Panel(
            "KV cache in use",
            "The fullest of each service. At 1 requests are preempted, and computed again. TGI does not say "
            "it, Triton says it of TensorRT-LLM.",
            "percentunit",
            [
                _most("vllm:kv_cache_usage_perc"),
                _most("sglang:token_usage"),
                _most(_TRT_LLM.format("kv_cache_block_metrics"), 'kv_cache_block_type="fraction"'),
            ],
            width=8,
            config={"max": 1},
        ),
    )


def _causes() -> tuple[Panel, ...]:
    incidents = total(of(rate("otel_gpu_incidents_total"), AGENTS), [SEVERITY])
    chains = rate(SPANS, 'service_name=~"$service", span_name="gpu.causal_chain"')
    return (
        Panel(
            "What its threads do",
            "In threads: launching threads of all processes of the service. gpu_wait is waiting for "
            "the device; all but that, api and host is time off the CPU.",
            "short",
            [Query(total(of(rate(TIME, OF_SERVICE)), ["state"]), "{{state}}")],
            width=6,
            stacked="normal",
        ),
        Panel(
            "Who kept its threads waiting",
            "In threads, by what kept the launching threads from going on.",
            "short",
            [
                Query(
                    total(of(rate(STALLED, OF_SERVICE)), ["state", "otel_gpu_culprit_comm"]),
                    "{{state}}: {{otel_gpu_culprit_comm}}",
                )
            ],
            width=6,
            stacked="normal",
        ),
        Panel(
            "Incidents by severity",
            "Of all programs on these nodes, each hour.",
            "short",
            [Query(f"3600 * {incidents}", f"{{{{{SEVERITY}}}}}")],
            width=6,
            stacked="normal",
        ),
        Panel(
            "Chains by leading cause",
            "What most of the time of slow calls and gaps went to (from the gateway's span metrics).",
            "ops",
            [Query(or_zero(total(chains, [CAUSE])), f"{{{{{CAUSE}}}}}")],
            width=6,
            stacked="normal",
        ),
    )


def _percentile(metric: str, scale: str = "") -> Query:
    # Engines count in explicit buckets only.
    buckets = total(of(rate(f"{metric}_bucket", OF_SERVICE)), ["job", "le"])
    return Query(f"histogram_quantile(0.99, {buckets}){scale}", "{{job}}")


def _mean_queue_s() -> str:
    time_us, requests = (
        total(of(rate(f"nv_inference_{name}_total", OF_SERVICE)), ["job"])
        for name in ("queue_duration_us", "request_success")
    )
    return f"{time_us} / ({requests} > 0) / 1e6"


def _sum(metric: str, match: str = "") -> Query:
    return Query(total(of(_chosen(metric, match)), ["job"]), "{{job}}")


def _most(metric: str, match: str = "") -> Query:
    return Query(f"max by (job) ({of(_chosen(metric, match))})", "{{job}}")


def _chosen(metric: str, match: str) -> str:
    return selected(metric, f"{OF_SERVICE}, {match}" if match else OF_SERVICE)

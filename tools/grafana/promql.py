"""
PromQL as the dashboards need it.

Names are those of the Collector's remote write: dots become underscores, units and ``_total`` are added.
``job`` is the service, ``instance`` its instance id. Other attributes of a process are only on
``target_info``.
"""

# Some facts about these queries
# ------------------------------
#
# Processes are selected by labels of target_info with "and on (job, instance)", not with a product. A
# process whose target_info changed recently (the Collector got its pod's name) has two of them for five
# minutes. A product refuses that as many-to-many; "and" works, also with histograms. To have a label of
# target_info in the result, a product is needed: all other labels are aggregated away first.
#
# otel-gpu has exponential histograms, which are native ones in Prometheus, or explicit buckets, which are
# classic ones. Of two halves of an "or", exactly one has data.

from collections.abc import Iterable

INTERVAL = "$__rate_interval"
# The processes that the variables of a dashboard select. "All" matches absent labels, too.
PROCESSES = (
    'target_info{k8s_cluster_name=~"$cluster", host_name=~"$node", '
    'k8s_namespace_name=~"$namespace"}'
)
# The agents on the same nodes, which are in another namespace.
AGENTS = 'target_info{job="otel-gpu", k8s_cluster_name=~"$cluster", host_name=~"$node"}'
# Threads that neither wait for the GPU nor work for it.
STALLED = "run_queue|lock|gil|io|ipc|sleep|paging|stopped|other"


def selected(metric: str, match: str = "") -> str:
    """Return a selector; ``match`` is the text between the braces."""
    return f"{metric}{{{match}}}" if match else metric


def rate(metric: str, match: str = "") -> str:
    """Return the rate of a counter or a histogram per second."""
    return f"rate({selected(metric, match)}[{INTERVAL}])"


def increase(metric: str, match: str = "") -> str:
    """Return the increase of a counter in the shown time range."""
    return f"increase({selected(metric, match)}[$__range])"


def of(expression: str, targets: str = PROCESSES) -> str:
    """Return the series that belong to some targets."""
    return f"{expression} and on (job, instance) {targets}"


def with_label(expression: str, label: str, targets: str = PROCESSES) -> str:
    """Return the series with a label of their targets."""
    told = f"max by (job, instance, {label}) ({targets})"
    return f"{expression} * on (job, instance) group_left ({label}) {told}"


def total(expression: str, by: Iterable[str] = ()) -> str:
    """Return the sum by labels."""
    labels = ", ".join(by)
    return f"sum by ({labels}) ({expression})" if labels else f"sum({expression})"


def share(part: str, whole: str) -> str:
    """Return a quotient, without a value where the divisor is 0."""
    return f"{part} / ({whole} > 0)"


def or_zero(expression: str) -> str:
    """Return 0 for no data, as for a loss that never happened."""
    return f"{expression} or on () vector(0)"


def quantile(
    rank: float, metric: str, by: Iterable[str] = (), match: str = "", targets: str = PROCESSES
) -> str:
    """Return a quantile of a native or a classic histogram."""
    native = total(of(rate(metric, match), targets), by)
    classic = total(of(rate(f"{metric}_bucket", match), targets), (*by, "le"))
    return f"histogram_quantile({rank}, {native}) or histogram_quantile({rank}, {classic})"


def counted(metric: str, by: Iterable[str] = (), match: str = "", targets: str = PROCESSES) -> str:
    """Return the number of values that a histogram gets per second."""
    native = f"histogram_count({total(of(rate(metric, match), targets), by)})"
    return f"{native} or {total(of(rate(f'{metric}_count', match), targets), by)}"


def summed(metric: str, by: Iterable[str] = (), match: str = "", targets: str = PROCESSES) -> str:
    """Return the sum of the values that a histogram gets per second."""
    native = f"histogram_sum({total(of(rate(metric, match), targets), by)})"
    return f"{native} or {total(of(rate(f'{metric}_sum', match), targets), by)}"


def records_lost() -> str:
    """Return the number of records that the agents lost, without stack samples."""
    return or_zero(total(of(increase("otel_gpu_records_lost_total", 'reason!="sample"'), AGENTS)))

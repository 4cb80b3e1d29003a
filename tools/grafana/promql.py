"""
PromQL as the dashboards need it.

Names are those after the Collector's remote write: dots become underscores, units and
``_total`` are added. ``job`` is the service, ``instance`` its instance id; what else is known of
a process is on ``target_info`` alone.
"""

# Some facts about these queries
# ------------------------------
#
# Selecting processes by what target_info says takes "and on (job, instance)" and no product: a
# process whose target_info changed lately (the Collector learned its pod's name) has two of them
# for five minutes, which a product refuses as many-to-many, and "and" does not mind. It takes
# histograms as well. Where a label of target_info is wanted in the result, a product is needed;
# then all labels but the wanted one are aggregated away first.
#
# otel-gpu counts in exponential histograms, which are native ones in Prometheus, or in explicit
# buckets, which are classic ones: one of two halves of an "or" has data, never both.

from collections.abc import Iterable

INTERVAL = "$__rate_interval"
# The processes that a dashboard is about, by its variables. "All" matches absent labels too.
PROCESSES = (
    'target_info{k8s_cluster_name=~"$cluster", host_name=~"$node", '
    'k8s_namespace_name=~"$namespace"}'
)
# The agents on the same nodes. They run in a namespace of their own.
AGENTS = 'target_info{job="otel-gpu", k8s_cluster_name=~"$cluster", host_name=~"$node"}'
# Threads that neither wait for the GPU nor work for it: something else keeps them.
STALLED = "run_queue|lock|gil|io|ipc|sleep|paging|stopped|other"


def selected(metric: str, match: str = "") -> str:
    """Return a selector; ``match`` is what stands between the braces."""
    return f"{metric}{{{match}}}" if match else metric


def rate(metric: str, match: str = "") -> str:
    """Return how fast a counter grows, or a histogram fills, each second."""
    return f"rate({selected(metric, match)}[{INTERVAL}])"


def increase(metric: str, match: str = "") -> str:
    """Return by how much a counter grew in the time that is shown."""
    return f"increase({selected(metric, match)}[$__range])"


def of(expression: str, targets: str = PROCESSES) -> str:
    """Return the series that belong to some targets."""
    return f"{expression} and on (job, instance) {targets}"


def with_label(expression: str, label: str, targets: str = PROCESSES) -> str:
    """Return the series with a label of their targets."""
    told = f"max by (job, instance, {label}) ({targets})"
    return f"{expression} * on (job, instance) group_left ({label}) {told}"


def total(expression: str, by: Iterable[str] = ()) -> str:
    """Return the sum, told apart by labels."""
    labels = ", ".join(by)
    return f"sum by ({labels}) ({expression})" if labels else f"sum({expression})"


def share(part: str, whole: str) -> str:
    """Return a quotient; nothing where the whole is 0."""
    return f"{part} / ({whole} > 0)"


def or_zero(expression: str) -> str:
    """Return 0 where there is nothing: a loss that never happened is no missing datum."""
    return f"{expression} or on () vector(0)"


def quantile(
    rank: float, metric: str, by: Iterable[str] = (), match: str = "", targets: str = PROCESSES
) -> str:
    """Return a quantile of a histogram, of whichever kind."""
    native = total(of(rate(metric, match), targets), by)
    classic = total(of(rate(f"{metric}_bucket", match), targets), (*by, "le"))
    return f"histogram_quantile({rank}, {native}) or histogram_quantile({rank}, {classic})"


def counted(metric: str, by: Iterable[str] = (), match: str = "", targets: str = PROCESSES) -> str:
    """Return how many values a histogram takes in each second."""
    native = f"histogram_count({total(of(rate(metric, match), targets), by)})"
    return f"{native} or {total(of(rate(f'{metric}_count', match), targets), by)}"


def summed(metric: str, by: Iterable[str] = (), match: str = "", targets: str = PROCESSES) -> str:
    """Return the sum of the values that a histogram takes in each second."""
    native = f"histogram_sum({total(of(rate(metric, match), targets), by)})"
    return f"{native} or {total(of(rate(f'{metric}_sum', match), targets), by)}"


def records_lost() -> str:
    """Return how many records the agents lost; samples of stacks are left out."""
    return or_zero(total(of(increase("otel_gpu_records_lost_total", 'reason!="sample"'), AGENTS)))

"""Variables of the dashboards: data sources, and filters."""

from tools.grafana.model import PROMETHEUS, Json


def source(kind: str) -> Json:
    """Return the variable of a data source, named after its kind."""
    return {
        "name": kind,
        "label": kind.capitalize(),
        "type": "datasource",
        "query": kind,
        "refresh": 1,
        "hide": 0,
    }


def choice(name: str, label: str, query: str, *, several: bool = True) -> Json:
    """
    Return a variable whose values are those of a label.

    Args:
        name: Name of the variable.
        label: Label in Grafana.
        query: ``label_values(…)``.
        several: Whether more than one can be chosen, or all.
    """
    variable: Json = {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": dict(PROMETHEUS),
        "query": {"query": query, "refId": "variable"},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": several,
        "includeAll": several,
    }
    if several:
        variable |= {"allValue": ".*", "current": {"text": "All", "value": "$__all"}}
    return variable


CLUSTER = choice("cluster", "Cluster", "label_values(target_info, k8s_cluster_name)")
NODE = choice("node", "Node", 'label_values(target_info{k8s_cluster_name=~"$cluster"}, host_name)')
NAMESPACE = choice(
    "namespace",
    "Namespace",
    'label_values(target_info{k8s_cluster_name=~"$cluster"}, k8s_namespace_name)',
)
SERVICE = choice("service", "Service", "label_values(gpu_cuda_thread_time_seconds_total, job)")
INSTANCE = choice(
    "instance",
    "Instance",
    'label_values(gpu_cuda_thread_time_seconds_total{job=~"$service"}, instance)',
)
# Prometheus first, because other variables query it. All dashboards have these, so links keep them.
PLACE = (source("prometheus"), CLUSTER, NODE, NAMESPACE)

"""What NCCL's own service says of a job, as metrics; see ``decode.ras_bodies``."""

from collections.abc import Iterator, Mapping
from typing import Any

from otel_gpu.enrich.activities import RasActivity
from otel_gpu.export import semconv
from otel_gpu.export.points import Measurement

_ANSWERING = "answering"


class Ras:
    """The latest that the service said; of a job that is gone nothing is left."""

    def __init__(self) -> None:
        self._failed: Mapping[str, int] = {}
        self._info: Mapping[str, Any] = {}

    def observe(self, activity: RasActivity) -> None:
        """Take in a newer answer, or that there was none."""
        info = activity.info
        self._failed = info.get("failed", self._failed)
        if "is_there" in info:
            self._info = info if info["is_there"] else {}

    def measurements(self) -> Iterator[Measurement]:
        """Yield what is known of the job, and of the questions themselves."""
        if self._info:
            count = self._info.get("communicators_count", 0)
            yield Measurement(semconv.METRIC_GPU_NCCL_RAS_COMMUNICATORS, (), "job", count)
            timeouts = self._info.get("timeouts", 0)
            yield Measurement(semconv.METRIC_GPU_NCCL_RAS_TIMEOUTS, (), "job", timeouts)
        for one in self._info.get("communicators", ()):
            yield from _of_communicator(one)
        for name, count in self._failed.items():
            attributes = ((semconv.ERROR_TYPE, name),)
            yield Measurement(semconv.METRIC_OTEL_GPU_RAS_FAILED, attributes, name, count)


def _of_communicator(one: Mapping[str, Any]) -> Iterator[Measurement]:
    name = one["id"]
    comm = (semconv.GPU_NCCL_COMM, name)
    # A rank that comes back leaves the other states: each is said, also at zero.
    ranks = dict.fromkeys(("unresponsive", "dead", "missing"), 0) | dict(one.get("silent", {}))
    for state, count in {_ANSWERING: one.get("answering", 0), **ranks}.items():
        attributes = (comm, (semconv.GPU_NCCL_RAS_STATE, state))
        yield Measurement(semconv.METRIC_GPU_NCCL_RAS_RANKS, attributes, (name, state), count)
    lag = max((most - least for least, most in one.get("calls", {}).values()), default=0)
    yield Measurement(semconv.METRIC_GPU_NCCL_RAS_LAG, (comm,), name, lag)
    for error, count in one.get("errors", {}).items():
        attributes = (comm, (semconv.ERROR_TYPE, error))
        yield Measurement(semconv.METRIC_GPU_NCCL_RAS_ERRORS, attributes, (name, error), count)

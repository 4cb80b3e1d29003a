"""
The reader: exports what was aggregated elsewhere, through the SDK's standard exporters.

It is a PeriodicExportingMetricReader that can be given to a MeterProvider, whose own
metrics are then sent along; it needs none. Exports happen on its one thread, so that
a dead endpoint delays nothing else: whoever waits for an export says for how long.
"""

import math
import threading
import time
from typing import Any

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, attach, detach, set_value
from opentelemetry.sdk.metrics.export import (
    DataPointT,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
    ResourceMetrics,
)

from otel_gpu.export.batches import merge, points_in, split
from otel_gpu.export.producer import MetricProducer
from otel_gpu.faults import Faults

MAX_REQUEST_BYTES = 3_500_000
# A failure that took no longer was an answer. After a longer one the endpoint may be
# dead, and the rest of the requests would wait for it one by one.
_QUICK_ANSWER_S = 1.0
# What is left of a shutdown's time for the thread to notice that its exporter is shut.
_FAREWELL_S = 0.25


class PreAggregatedReader(PeriodicExportingMetricReader):
    """
    Exports a producer's metrics together with those of the SDK's instruments.

    Without ``interval_s`` only when flushed and at the end. Requests are split so as to be no
    larger than ``max_request_bytes``. After an error that is not an endpoint's, which ``faults``
    counts, the next export has what this one had.
    """

    def __init__(
        self,
        exporter: MetricExporter,
        producer: MetricProducer,
        *,
        interval_s: float | None,
        timeout_s: float = 30.0,
        max_request_bytes: int = MAX_REQUEST_BYTES,
        faults: Faults | None = None,
    ) -> None:
        # The base class would start a thread that cannot be asked to export now.
        super().__init__(
            exporter, export_interval_millis=math.inf, export_timeout_millis=timeout_s * 1e3
        )
        self._faults = faults or Faults()
        self._producer = producer
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._max_request_bytes = max_request_bytes
        self._received = False
        self._condition = threading.Condition()
        self._requested = 0
        self._served = 0
        self._good = True
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="otel-gpu-metrics", daemon=True)
        self._thread.start()

    def request(self) -> None:
        """Export soon, without waiting for it; nothing new if one is asked for already."""
        with self._condition:
            if self._requested == self._served:
                self._requested += 1
                self._condition.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Export now; False when not all of it arrived within the time."""
        with self._condition:
            self._requested += 1
            mine = self._requested
            self._condition.notify_all()
            served = self._condition.wait_for(
                lambda: self._served >= mine or not self._thread.is_alive(), timeout_s
            )
            return served and self._served >= mine and self._good

    def stop(self, timeout_s: float) -> bool:
        """
        Export once more and end; False when not all of it arrived within the time.

        An export that is still under way when the time is nearly up is broken off.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._condition:
            if self._stopping:
                return self._good
            self._stopping = True
            self._condition.notify_all()
        self._thread.join(max(0.0, timeout_s - _FAREWELL_S))
        good = self._good and not self._thread.is_alive()
        self._exporter.shutdown()
        self._thread.join(max(0.0, deadline_s - time.monotonic()))
        return good

    # What the SDK calls.

    def collect(self, timeout_millis: float = 10_000) -> None:  # type: ignore[misc]
        """
        Collect and export, also where there is nothing to collect from the SDK.

        The SDK's own method, which it means to be final, never calls
        ``_receive_metrics`` when no SDK instrument has data.
        """
        self._received = False
        if self._collect is not None:
            super().collect(timeout_millis)
        if not self._received:
            self._receive_metrics(MetricsData([]), timeout_millis)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Do what ``flush`` does, in the SDK's words."""
        return self.flush(timeout_millis / 1e3)

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:  # noqa: ANN401
        """Do what ``stop`` does, in the SDK's words."""
        self.stop(timeout_millis / 1e3)

    def _receive_metrics(
        self,
        metrics_data: MetricsData,
        timeout_millis: float = 10_000,
        **_: Any,  # noqa: ANN401 - as in the SDK
    ) -> None:
        self._received = True
        with self._export_lock:
            merged = merge([*metrics_data.resource_metrics, *self._producer.produce()])
            self._good = self._export_all(merged, timeout_millis)

    def _export_all(self, merged: list[ResourceMetrics], timeout_millis: float) -> bool:
        good = True
        token = attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, value=True))
        try:
            for request in split(merged, self._max_request_bytes):
                begin_s = time.monotonic()
                result = self._exporter.export(request, timeout_millis=timeout_millis)
                if result is MetricExportResult.SUCCESS:
                    points: list[DataPointT] = list(points_in(request))
                    self._producer.commit(points)
                    continue
                good = False
                if self._stopping or time.monotonic() - begin_s > _QUICK_ANSWER_S:
                    break
        finally:
            detach(token)
        return good

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(
                    lambda: self._stopping or self._requested > self._served, self._interval_s
                )
                stopping, ticket = self._stopping, self._requested
            try:
                self.collect(self._timeout_s * 1e3)
            except Exception as error:  # noqa: BLE001 -- the thread must outlive one failed export
                self._good = False
                self._faults.add("export.metrics", error)
            with self._condition:
                self._served = ticket
                self._condition.notify_all()
            if stopping:
                return

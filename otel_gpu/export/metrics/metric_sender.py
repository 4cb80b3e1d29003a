"""
The sender of metrics: exports through the SDK's standard exporters.

Exports happen on its one thread, so that a dead endpoint delays nothing else: callers that wait for
an export pass a timeout. What did not arrive is in the next export.
"""

import threading
import time

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, attach, set_value
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult

from otel_gpu.export.metrics.producer import MetricProducer
from otel_gpu.export.metrics.requests import request_of, split
from otel_gpu.faults import Faults

# A failure within this time was an answer. After a longer one the endpoint may be dead, and each
# further request would wait for it.
_QUICK_ANSWER_S = 1.0
# The part of a shutdown's time in which the thread notices that its exporter is shut.
_FAREWELL_S = 0.25


class MetricSender:
    """
    Exports a producer's metrics: every ``interval_s`` (None: never), on request, and at the end.
    """

    def __init__(
        self,
        exporter: MetricExporter,
        producer: MetricProducer,
        *,
        interval_s: float | None,
        timeout_s: float,
        max_request_bytes: int,
        faults: Faults | None = None,
    ) -> None:
        self._exporter = exporter
        self._producer = producer
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._max_request_bytes = max_request_bytes
        self._faults = faults or Faults()
        self._condition = threading.Condition()
        self._requested = 0
        self._served = 0
        self._good = True
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="otel-gpu-metrics", daemon=True)
        self._thread.start()

    def flush(self, timeout_s: float) -> bool:
        """Export now; False: not all of it arrived in time."""
        with self._condition:
            self._requested += 1
            mine = self._requested
            self._condition.notify_all()
            self._condition.wait_for(
                lambda: self._served >= mine or not self._thread.is_alive(), timeout_s
            )
            return self._served >= mine and self._good

    def shutdown(self, timeout_s: float) -> bool:
        """Export once more and end; False: not all of it arrived in time."""
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

    def _export(self) -> bool:
        good = True
        for points in split(self._producer.produce(), self._max_request_bytes):
            begin_s = time.monotonic()
            request = request_of(points)
            result = self._exporter.export(request, timeout_millis=self._timeout_s * 1e3)
            if result is MetricExportResult.SUCCESS:
                self._producer.commit(points)
                continue
            good = False
            if self._stopping or time.monotonic() - begin_s > _QUICK_ANSWER_S:
                break
        return good

    def _run(self) -> None:
        # Instrumentation of gRPC and HTTP makes no spans of this thread's requests.
        attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, value=True))
        stopping = False
        while not stopping:
            with self._condition:
                self._condition.wait_for(
                    lambda: self._stopping or self._requested > self._served, self._interval_s
                )
                stopping, ticket = self._stopping, self._requested
            try:
                self._good = self._export()
            except Exception as error:  # noqa: BLE001 -- the thread must outlive one failed export
                self._good = False
                self._faults.add("export.metrics", error)
            with self._condition:
                self._served = ticket
                self._condition.notify_all()

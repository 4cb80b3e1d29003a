"""
Metric export: from activities to the standard OTLP exporters.

``OTEL_METRICS_EXPORTER``, ``OTEL_METRIC_EXPORT_*``, ``OTEL_METRICS_EXEMPLAR_FILTER``, the protocol
and ``OTEL_SDK_DISABLED`` are read here. The SDK's exporters read endpoint, headers, TLS,
compression and temporality themselves.
"""

import logging
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk import environment_variables as otel
from opentelemetry.sdk.metrics import Histogram, ObservableCounter
from opentelemetry.sdk.metrics import export as sdk

from otel_gpu.config import Config
from otel_gpu.enrich.activities import Activity, ExitActivity
from otel_gpu.errors import ConfigError
from otel_gpu.export.metrics.exemplars import IsSampled
from otel_gpu.export.metrics.metric_sender import MetricSender
from otel_gpu.export.metrics.metric_store import MetricStore
from otel_gpu.export.metrics.producer import MetricProducer, Temporality
from otel_gpu.export.otlp import environment
from otel_gpu.export.otlp.file import OtlpFile
from otel_gpu.export.otlp.span_limits import TraceSampler
from otel_gpu.faults import Faults
from otel_gpu.lean_imports import import_grpc

if TYPE_CHECKING:
    from otel_gpu.export.spans.device_runs import DeviceRun

_logger = logging.getLogger(__name__)

_REPLAY_TIMEOUT_S = 30.0
# However few series the kernel side can hold at a time, those of ended processes add up between two
# exports.
_LEAST_WAITING_SERIES = 4096
# An export begins early at this part of the series that can wait.
_EARLY_EXPORTS = 4
# While a request is made, its points take about ten times as much.
_MAX_REQUEST_BYTES = 1 << 19
_MAX_INTERVAL_MS = 86_400_000.0


class MetricExports:
    """
    Turns activities into metrics for all endpoints.

    A replay (not ``live``) has no timers, and metrics carry the times of the recording, so that two
    replays give the same bytes. ``file`` gets every request, too. ConfigError: a variable has an
    unknown value.
    """

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        *,
        live: bool,
        file: OtlpFile | None = None,
        faults: Faults | None = None,
    ) -> None:
        interval_s = _read_ms(environ, otel.OTEL_METRIC_EXPORT_INTERVAL, 60_000.0) / 1e3
        timeout_s = _read_ms(environ, otel.OTEL_METRIC_EXPORT_TIMEOUT, 30_000.0) / 1e3
        is_sampled = _exemplar_filter(environ)
        exporters = open_exporters(environ, timeout_s)
        if file is not None:
            exporters.append(_FileExporter(file))
        _, endpoint = environment.otlp_endpoint(environ, "METRICS")
        self._place = f"OTEL_EXPORTER_OTLP_ENDPOINT ({endpoint or 'not set'})"
        self._live = live
        self._config = config
        self._replay_delivers = True
        self._max_series = max(config.capture.max_series, _LEAST_WAITING_SERIES)
        self._store = MetricStore(environ, max_series=self._max_series, is_sampled=is_sampled)
        self.count = self._store.count
        self.set_dropped = self._store.set_dropped
        self._senders = [
            MetricSender(
                exporter,
                MetricProducer(self._store, preferred_temporality(exporter)),
                interval_s=interval_s if live else None,
                timeout_s=timeout_s,
                max_request_bytes=min(config.export.batch_bytes, _MAX_REQUEST_BYTES),
                faults=faults,
            )
            for exporter in exporters
        ]

    def observe(self, activity: Activity) -> None:
        """Process one activity; a live one never waits for an endpoint."""
        if not self._senders:
            return
        self._store.observe(activity)
        if (
            type(activity) is ExitActivity
            and self._store.count_final_series() > self._max_series // _EARLY_EXPORTS
        ):
            self._export_early()

    @property
    def is_sent(self) -> bool:
        """Whether there is an exporter of metrics."""
        return bool(self._senders)

    def observe_run(self, run: "DeviceRun") -> None:
        """Add the measurements of an imported device trace."""
        if self._senders:
            # An import uses the configured layout.
            from otel_gpu.wire.histogram_layout import duration_bounds_ns  # noqa: PLC0415

            measurements = list(run.measurements(duration_bounds_ns(self._config)))
            self._store.observe_run(run.process, measurements, run.end_unix_ns)

    def _export_early(self) -> None:
        if self._live:
            # Before the timer, or series of ended processes would be evicted.
            self.flush(0.0)
        elif self._replay_delivers:
            # No timer empties the store in a replay. One failure is enough to learn that an
            # endpoint is dead.
            self._replay_delivers = self.flush(_REPLAY_TIMEOUT_S)

    def flush(self, timeout_s: float) -> bool:
        """Export now; False: not all of it arrived in time."""
        deadline_s = time.monotonic() + timeout_s
        results = [
            sender.flush(max(0.0, deadline_s - time.monotonic())) for sender in self._senders
        ]
        return all(results)

    def shutdown(self, timeout_s: float) -> bool:
        """Export once more and end; False: not all of it arrived in time."""
        deadline_s = time.monotonic() + timeout_s
        results = [
            sender.shutdown(max(0.0, deadline_s - time.monotonic())) for sender in self._senders
        ]
        if not all(results):
            _logger.warning(
                "the last metrics were not delivered in time; check %s, and that a receiver "
                "listens there",
                self._place,
            )
        return all(results)


def open_exporters(environ: Mapping[str, str], timeout_s: float) -> list[sdk.MetricExporter]:
    """Open the exporters that ``OTEL_METRICS_EXPORTER`` names; see ``exporter_names``."""
    exporters: list[sdk.MetricExporter] = []
    for name in environment.exporter_names(environ, "METRICS", choices=("otlp", "console", "none")):
        if name == "otlp":
            with environment.standing_in(environ):
                exporters.append(_open_otlp(environ, timeout_s))
        elif name == "console":
            # Standard output belongs to the command that is run.
            exporters.append(sdk.ConsoleMetricExporter(out=sys.stderr))
    return exporters


def _exemplar_filter(environ: Mapping[str, str]) -> IsSampled | None:
    names = ("always_on", "always_off", "trace_based")
    name = environment.choose(
        environ, otel.OTEL_METRICS_EXEMPLAR_FILTER, choices=names, default="trace_based"
    )
    if name == "always_off":
        return lambda _trace_id, _name: False
    sampler = TraceSampler.of_environment(environ)
    return None if name == "always_on" or sampler.takes_all else sampler.wants_trace


def _open_otlp(environ: Mapping[str, str], timeout_s: float) -> sdk.MetricExporter:
    # The stock exporters apply only their own timeout.
    timeout_s = min(timeout_s, environment.otlp_timeout_s(environ, "METRICS"))
    # Each takes tens of milliseconds to import, and one is enough.
    if environment.otlp_protocol(environ, "METRICS") == "grpc":
        import_grpc()
        from grpc import Compression  # type: ignore[import-untyped] # noqa: PLC0415
        from opentelemetry.exporter.otlp.proto.grpc import metric_exporter  # noqa: PLC0415

        # The stock exporter does not accept "none".
        uncompressed = environment.otlp_compression(environ, "METRICS") == "none"
        compression = Compression.NoCompression if uncompressed else None
        return metric_exporter.OTLPMetricExporter(timeout=timeout_s, compression=compression)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415

    from otel_gpu.export.otlp.http import bound_answers  # noqa: PLC0415

    exporter = OTLPMetricExporter(timeout=timeout_s)
    bound_answers(exporter)
    return exporter


def preferred_temporality(exporter: sdk.MetricExporter) -> Temporality:
    """
    Return an exporter's ``OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE`` by kind of
    instrument.
    """
    preferred = exporter._preferred_temporality or {}  # noqa: SLF001 - as the SDK's reader does
    kinds = {"counter": ObservableCounter, "histogram": Histogram}
    return {kind: preferred[known] for kind, known in kinds.items() if known in preferred}


class _FileExporter(sdk.MetricExporter):
    def __init__(self, file: OtlpFile) -> None:
        super().__init__()
        self._file = file

    def export(self, metrics_data: sdk.MetricsData, *_: Any, **__: Any) -> sdk.MetricExportResult:  # noqa: ANN401 - as in the SDK
        self._file.write(encode_metrics(metrics_data))
        return sdk.MetricExportResult.SUCCESS

    def force_flush(self, *_: Any, **__: Any) -> bool:  # noqa: ANN401 - as in the SDK
        return True

    def shutdown(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - as in the SDK
        # The owner of the file closes it.
        ...


def _read_ms(environ: Mapping[str, str], name: str, default_ms: float) -> float:
    value_ms = environment.read_number(environ, name, default=default_ms)
    if value_ms > _MAX_INTERVAL_MS:
        raise ConfigError(f"{name}: {value_ms:g} ms is more than a day", hint="give milliseconds")
    return value_ms

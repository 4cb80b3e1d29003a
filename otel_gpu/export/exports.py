"""The exports of a capture: activities, chains and incidents become telemetry that is sent."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from opentelemetry.sdk.environment_variables import OTEL_SDK_DISABLED, OTEL_SERVICE_NAME
from opentelemetry.sdk.resources import Resource

from otel_gpu import __version__
from otel_gpu.config import Config
from otel_gpu.enrich import ids
from otel_gpu.enrich.activities import (
    Activity,
    CaptureActivity,
    ContextActivity,
    DeviceFaultActivity,
    DevicesActivity,
    DeviceTraceActivity,
)
from otel_gpu.enrich.identity.identities import Program
from otel_gpu.enrich.marks import RangeActivity
from otel_gpu.errors import ConfigError
from otel_gpu.explain.budget import ChainLimit
from otel_gpu.explain.chains import Chain, Culprit, Evidence, Incident
from otel_gpu.explain.devices.xids import meaning_of
from otel_gpu.export import semconv
from otel_gpu.export.metrics.collectives import PendingCollectives
from otel_gpu.export.metrics.exporter import MetricExports
from otel_gpu.export.otlp.environment import exporter_names, is_true, otlp_compression, setting
from otel_gpu.export.otlp.file import OtlpFile
from otel_gpu.export.otlp.sender import DropReason, Sender
from otel_gpu.export.otlp.signals import LOGS, SPANS, Signal
from otel_gpu.export.otlp.sinks import open_senders
from otel_gpu.export.otlp.span_encoder import WARN, SpanLog
from otel_gpu.export.otlp.span_limits import SpanSizeLimits, TraceSampler
from otel_gpu.export.resources import (
    Origins,
    ProcessResources,
    agent_resource,
    capture_version,
    scope,
)
from otel_gpu.export.spans import causal
from otel_gpu.export.spans.activity_spans import SpanBuilder
from otel_gpu.export.spans.device_faults import SEVERITIES, fault_log
from otel_gpu.export.spans.exported import ExportedSpans, SpanReference
from otel_gpu.export.spans.finished import FinishedSpan, Origin, SpanEvent
from otel_gpu.export.spans.stack_events import Stacks
from otel_gpu.faults import Faults
from otel_gpu.options import SpansMode, StacksMode
from otel_gpu.state.device_states import DeviceStates

if TYPE_CHECKING:
    from otel_gpu.export.profiles.profiles import Profiles

_logger = logging.getLogger(__name__)

_PROFILES = "PROFILES"
# How much longer than its timeout a part can take to close its connections.
_JOIN_GRACE_S = 1.0
# The part of the time at the end that a dead endpoint for spans cannot take from the metrics.
_METRICS_SHARE = 0.25

_Part: TypeAlias = Sender[object] | MetricExports


class Exports:
    """
    Turns activities into telemetry and sends it.

    Every finished span goes to all span exporters, its log records to those of logs, and every
    activity into the metrics.
    """

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        file: OtlpFile | None,
        *,
        live: bool,
        faults: Faults | None,
    ) -> None:
        self._live = live
        self._limits = SpanSizeLimits.of_environment(environ)
        self._sampler = TraceSampler.of_environment(environ)
        wants_spans = config.spans.mode != SpansMode.NONE
        wants_logs = wants_spans and config.stacks.mode == StacksMode.LOG
        self._pending_s = config.nccl.pending_seconds
        value_length = self._limits.log_value_length if wants_logs else self._limits.value_length
        self._stacks = Stacks(config.stacks.mode, value_length)
        self._environ = environ
        self._resources = ProcessResources(environ)
        self._service_name = setting(environ, OTEL_SERVICE_NAME)[1]
        with ExitStack() as failing:
            self._metrics = MetricExports(config, environ, live=live, file=file, faults=faults)
            failing.callback(self._metrics.shutdown, 0.0)
            senders: dict[str, list[Sender[Any]]] = {}
            for signal in _signals(config):
                senders[signal.name] = open_senders(
                    signal,
                    config=config.export,
                    environ=environ,
                    file=file,
                    live=live,
                    faults=faults,
                )
                for sender in senders[signal.name]:
                    failing.callback(sender.shutdown, 0.0)
            failing.pop_all()
        self._sinks: list[Sender[FinishedSpan]] = senders.get(SPANS.name, [])
        self._logs: list[Sender[SpanLog]] = senders.get(LOGS.name, [])
        self._profile_sinks: list[Sender[object]] = senders.get(_PROFILES, [])
        self._export = config.export
        if config.export.profiles and not self._profile_sinks:
            _logger.warning(
                "export.profiles is true and no endpoint for profiles is set: they are not exported"
            )
        if wants_logs and self._sinks and not self._logs:
            _logger.warning(
                "stacks.mode is log and no endpoint for logs is set: stacks are not exported"
            )
        self._puts = [sink.put for sink in self._sinks]
        self._explains = config.explain.enabled and bool(self._sinks)
        self._capture = (ids.NO_SEED, __version__)
        self._agent: Resource | None = None
        self._begin()
        self._profiles = self._open_profiles()
        self._not_sampled = 0
        self._ended = False

    def observe(self, activity: Activity) -> None:
        """Export one activity, in the order of the stream; a live one never waits for a network."""
        if type(activity) is CaptureActivity:
            self._flush_profiles()
            self._capture = (activity.seed, capture_version(activity))
            self._begin()
            self._profiles = self._open_profiles()
            self._agent = agent_resource(activity, self._environ)
        if isinstance(activity, ContextActivity | RangeActivity):
            self._sampler.learn(activity.event)
        if type(activity) is DeviceTraceActivity:
            if self._sinks or self._metrics.is_sent:
                self._observe_run(activity)
        elif self._sinks:
            self._add(self._builder.spans(activity), self._remember)
        self._observe_logged(activity)
        if self._profiles is not None and type(activity) in self._profiles.observes:
            self._profiles.observe(activity)
        self._metrics.observe(activity)

    def _observe_logged(self, activity: Activity) -> None:
        # Log records that belong to no span.
        if type(activity) is DevicesActivity:
            self._devices.observe(activity)
        elif type(activity) is DeviceFaultActivity:
            self._log_fault(activity)
        if self._logs and type(activity) in self._pending.observes:
            for process, log in self._pending.observe(activity):
                self._log(self._origins.of(process)[semconv.SCOPE_NCCL], log, WARN)

    def _log_fault(self, activity: DeviceFaultActivity) -> None:
        process, span_ids = activity.process, (b"", b"")
        if process is not None:
            origin = self._origins.of(process)[semconv.SCOPE_HARDWARE]
            span_ids = (activity.trace_id, activity.span_id) if self._sinks else span_ids
        elif self._agent is not None:
            # No known process had it: the host's.
            origin = Origin(self._agent, scope(semconv.SCOPE_HARDWARE, self._capture[1]))
        else:
            return
        log = fault_log(activity, self._devices.uuid_at(activity.event.bus_id))
        severity = SEVERITIES[meaning_of(activity.event.xid).severity]
        self._log(origin, log, severity=severity, span_ids=span_ids)

    def _log(
        self,
        origin: Origin,
        log: SpanEvent,
        severity: int,
        span_ids: tuple[bytes, bytes] = (b"", b""),
    ) -> None:
        bounded = self._limits.apply_to_log(log)
        for sender in self._logs:
            sender.put(SpanLog(origin, *span_ids, bounded, severity))

    def _observe_run(self, activity: DeviceTraceActivity) -> None:
        # Only imported traces need it, and a capture starts without it.
        from otel_gpu.export.spans.device_runs import DeviceRun  # noqa: PLC0415

        run = DeviceRun(activity, self._capture[0], self._service_name)
        if self._sinks:
            spans = run.spans(lambda process: self._origins.of(process)[semconv.SCOPE_DEVICE])
            self._add(map(self._limits.apply, spans))
        self._metrics.observe_run(run)

    def observe_chain(self, chain: Chain) -> None:
        """Export a causal chain that is kept, after the activities that it was made from."""
        if self._wants(chain):
            self._metrics.count(
                semconv.METRIC_OTEL_GPU_CHAINS, semconv.OTEL_GPU_SEVERITY, chain.severity
            )
            self._exported.add_chain(causal.chain_reference(chain).span_id)
            origin = self._origins.of(chain.effect.process)[semconv.SCOPE_CAUSAL]
            spans = causal.chain_spans(
                chain, origin, find_spans=self._exported.find, describe_place=self._stacks.place
            )
            self._add(map(self._limits.apply, spans))

    def limit_chains(self, reason: ChainLimit, count: int) -> None:
        """Count causal chains that become no spans."""
        if self._explains:
            name = semconv.METRIC_OTEL_GPU_CHAINS_RATE_LIMITED
            self._metrics.count(name, attribute=semconv.REASON, value=reason, count=count)

    def _wants(self, chain: Chain) -> bool:
        name = semconv.SPAN_CAUSAL_CHAIN
        is_sampled = self._sampler.wants_trace(chain.effect.trace_id, name)
        self._not_sampled += self._explains and not is_sampled
        return self._explains and is_sampled

    def observe_incident(self, incident: Incident) -> None:
        """Export an incident, after its chains."""
        if not self._explains:
            return
        origin = self._origins.of(incident.processes[0])[semconv.SCOPE_CAUSAL]
        references = [(chain, causal.chain_reference(chain)) for chain in incident.chains]
        linked = [pair for pair in references if self._exported.has_chain(pair[1].span_id)]
        examples = list(filter(self._is_exported, incident.examples))
        for chain in examples:
            self._add_example(chain)
        seed, place = self._capture[0], self._stacks.place
        more = (examples, self._find_recorded)
        span = causal.incident_span(incident, seed, origin, linked, place, *more)
        if self._add([self._limits.apply(span)]):
            self._metrics.count(
                semconv.METRIC_OTEL_GPU_INCIDENTS, semconv.OTEL_GPU_SEVERITY, incident.severity
            )

    def _is_exported(self, chain: Chain) -> bool:
        return self._was_sampled(chain.effect.trace_id, chain.effect.span_id)

    def _was_sampled(self, trace_id: bytes, span_id: bytes) -> bool:
        return bool(span_id) and self._sampler.wants_trace(trace_id, semconv.SPAN_CAUSAL_CHAIN)

    def _find_recorded(self, item: Evidence, _: Culprit | None) -> list[SpanReference]:
        # It can be older than the spans in `self._exported`.
        reference = SpanReference(item.trace_id, item.span_id)
        return [reference] if self._was_sampled(*reference) else []

    def _add_example(self, chain: Chain) -> None:
        # Several incidents can have the same example: it is exported once.
        reference = causal.chain_reference(chain)
        if not self._exported.has_chain(reference.span_id):
            self._exported.add_chain(reference.span_id)
            origin = self._origins.of(chain.effect.process)[semconv.SCOPE_CAUSAL]
            spans = causal.chain_spans(
                chain, origin, find_spans=self._find_recorded, describe_place=self._stacks.place
            )
            self._add(map(self._limits.apply, spans))

    def renew(self) -> "Exports":
        """Forget the spans kept for links, after errors; counts and what waits to be sent stay."""
        self._begin()
        return self

    def shutdown(self, timeout_s: float) -> bool:
        """Send what is left and end; False: not all arrived in time, and the rest is dropped."""
        if self._ended:
            return True
        self._ended = True
        self._flush_profiles()
        deadline_s = time.monotonic() + timeout_s
        senders: list[Sender[Any]] = [*self._sinks, *self._logs, *self._profile_sinks]
        if not self._live:
            # One after the other, so that a file has the same order every time.
            parts: list[_Part] = [*senders, self._metrics]
            ends = [part.shutdown(max(0.0, deadline_s - time.monotonic())) for part in parts]
            return all(ends)
        metrics_s = timeout_s * _METRICS_SHARE
        is_complete = _end(senders, timeout_s - metrics_s)
        # The counts of drops are final now, and nothing is exported after these.
        self._metrics.set_dropped(self.dropped())
        remaining_s = max(metrics_s, deadline_s - time.monotonic())
        return _end([self._metrics], remaining_s) and is_complete

    def dropped(self) -> Mapping[str, int]:
        """Return how many spans were not exported, by reason."""
        total: Counter[str] = Counter()
        for sink in self._sinks:
            total += sink.counts().dropped
        for prefix, sinks in (("log", self._logs), ("profile", self._profile_sinks)):
            for beside in sinks:
                for reason, count in beside.counts().dropped.items():
                    total[f"{prefix}_{reason}"] += count
        if self._not_sampled:
            total[DropReason.NOT_SAMPLED] = self._not_sampled
        return dict(total)

    def take_cut(self) -> Counter[Program | None]:
        """
        Return how many items each program lost to make space for others, since the last call; None:
        no program.
        """
        cut: Counter[Program | None] = Counter()
        senders: list[Sender[Any]] = [*self._sinks, *self._logs, *self._profile_sinks]
        for sender in senders:
            cut += sender.take_cut()
        return cut

    def exported(self) -> int:
        """Return how many spans arrived; with several exporters, the sum over them."""
        return sum(sink.counts().exported for sink in self._sinks)

    def _begin(self) -> None:
        self._origins = Origins(self._capture[1], self._resources)
        self._builder = SpanBuilder(self._origins, self._limits, self._stacks)
        self._exported = ExportedSpans()
        self._devices = DeviceStates()
        self._pending = PendingCollectives(self._pending_s)
        is_asked = self._explains or (self._profile_sinks and self._sinks)
        self._remember = self._exported.add if is_asked else None

    def _open_profiles(self) -> "Profiles | None":
        if not self._profile_sinks:
            return None
        from otel_gpu.export.profiles.profiles import Profiles  # noqa: PLC0415 -- as in _signals

        def put(profile: object) -> None:
            for sink in self._profile_sinks:
                sink.put(profile)

        return Profiles(
            seed=self._capture[0],
            origin_of=lambda process: self._origins.of(process)[semconv.SCOPE_CPU],
            is_exported=lambda span_id: span_id in self._exported,
            put=put,
            interval_ns=round(self._export.profile_interval_s * 1e9),
            most_bytes=self._export.batch_bytes // 2,
        )

    def _flush_profiles(self) -> None:
        if self._profiles is not None:
            self._profiles.flush()

    def _add(
        self,
        spans: Iterable[FinishedSpan],
        remember: Callable[[FinishedSpan], object] | None = None,
    ) -> bool:
        # Whether the last span was sampled.
        is_wanted = False
        for span in spans:
            is_wanted = self._sampler.takes_all or self._sampler.wants_trace(
                span.trace_id, span.name
            )
            if not is_wanted:
                self._not_sampled += 1
                continue
            for put in self._puts:
                put(span)
            if remember is not None:
                remember(span)
            for log_sink in self._logs:
                for log in map(self._limits.apply_to_log, span.logs):
                    log_sink.put(SpanLog(*span[:3], log))
        return is_wanted


def _signals(config: Config) -> Iterator[Signal]:
    if config.spans.mode != SpansMode.NONE:
        yield SPANS
    yield LOGS
    if config.export.profiles:
        try:
            # In development: other versions of the package can lack it or change it.
            from otel_gpu.export.profiles.profile_encoder import PROFILES  # noqa: PLC0415
        except ImportError as error:
            hint = "set export.profiles to false, or install another opentelemetry-proto"
            raise ConfigError(f"OTLP profiles are not available: {error}", hint=hint) from error
        yield PROFILES


def _end(parts: Sequence[_Part], timeout_s: float) -> bool:
    # Side by side, so that none takes another's time; False: not everything arrived.
    done: list[bool] = []
    threads = [
        threading.Thread(
            target=lambda part=part: done.append(part.shutdown(timeout_s)), daemon=True
        )
        for part in parts
    ]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + timeout_s + _JOIN_GRACE_S
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return len(done) == len(threads) and all(done)


@contextmanager
def open_exports(
    config: Config, environ: Mapping[str, str], *, live: bool, faults: Faults | None = None
) -> Iterator[Exports]:
    """
    Open what the configuration and environment name; close it at the end.

    A replay (not ``live``) has no timers: batches are made by size alone and what is left is sent
    at the end, so that the same recording gives the same output. ``faults`` counts errors in export
    threads that are not an endpoint's. ConfigError: a variable has a value that cannot work.
    """
    path = config.export.otlp_file
    if path is not None and is_true(environ, OTEL_SDK_DISABLED):
        _logger.warning("%s is true: nothing is written to %s", OTEL_SDK_DISABLED, path)
        path = None
    for name in ("TRACES", "METRICS", "LOGS", *([_PROFILES] if config.export.profiles else ())):
        if "otlp" in exporter_names(environ, name):
            otlp_compression(environ, name)
    with ExitStack() as closing:
        file = None
        if path is not None:
            file = OtlpFile(path)
            closing.callback(file.close)
        exports = Exports(config, environ, file, live=live, faults=faults)
        closing.callback(exports.shutdown, config.export.shutdown_timeout_s)
        yield exports

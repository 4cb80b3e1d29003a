"""
The metric store: the latest of everything that is counted, until it was exported.

The kernel side hands over cumulative values, so the store replaces and never adds.
Its size follows the number of series, not of calls, and stays bounded when nothing
can be exported: what is given up then is counted.
"""

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.resources import Resource

from otel_gpu.enrich.activities import (
    Activity,
    AggregatesActivity,
    CallActivity,
    CaptureActivity,
    CountersActivity,
    ExitActivity,
    ImageKey,
    OpenCallActivity,
    ProbesActivity,
    ProcessImage,
    StatusActivity,
    TimesActivity,
    key_of,
)
from otel_gpu.explain.verdicts import state_of
from otel_gpu.export import semconv
from otel_gpu.export.exemplars import ExemplarReservoir, IsSampled
from otel_gpu.export.measures import measure, measure_thread_times, open_call_attributes
from otel_gpu.export.observed_image import ObservedImage
from otel_gpu.export.points import Attributes, Layouts, Measurement
from otel_gpu.export.resources import Resources, agent_resource, capture_version
from otel_gpu.export.selftelemetry import SelfTelemetry
from otel_gpu.export.semconv import Instrument
from otel_gpu.ledger.accounts import Accounts
from otel_gpu.ledger.differences import without_waits

# Stands for the agent's own Resource among the images.
AGENT: ImageKey = (0, 0)

# The last series of an image come with the first reading after its end. Where nothing
# changed there is none, and counters go on coming.
_LAST_SERIES_SNAPSHOTS = 3
_MAX_RELEASED = 4096


class Snapshot(NamedTuple):
    """
    What one Resource has to say now.

    ``is_final`` says that nothing will be added, so that it may be forgotten once
    every sink has it.
    """

    key: ImageKey
    resource: Resource
    measurements: list[Measurement]
    exemplars: dict[tuple[str, Attributes], list[Exemplar]]
    start_unix_ns: int
    time_unix_ns: int
    is_final: bool


class MetricStore:
    """
    Takes activities in on one thread and hands snapshots out on others.

    Args:
        environ: The agent's environment.
        max_series: How many series of ended processes may wait for an export.
        with_exemplars: Whether to keep exemplars.
        is_sampled: Whether a trace is exported: its calls are examples. None: all are.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        max_series: int,
        with_exemplars: bool = True,
        is_sampled: IsSampled | None = None,
    ) -> None:
        self._environ = environ
        self._resources = Resources(environ)
        self._with_exemplars = with_exemplars
        self._is_sampled = is_sampled
        self._lock = threading.Lock()
        # Images whose end was not seen stay no longer than that: the kernel side holds max_series.
        self._images = Accounts(
            self._open_image, most=2 * max_series, most_ended=max_series, give_up=self._give_up
        )
        self._image_of_pid: dict[int, ImageKey] = {}
        self._released: OrderedDict[ImageKey, None] = OrderedDict()
        self._ending: deque[ImageKey] = deque()
        self._final_series = 0
        self._with_open_calls: set[ImageKey] = set()
        self._self = SelfTelemetry()
        self._dropped_series: Counter[str] = Counter()
        self._agent: Resource | None = None
        self._start_unix_ns = 0
        self._unix_ns = 0
        # Of the aggregates; one reading can be several activities of the same moment.
        self._readings = 0
        self._reading_unix_ns = -1
        self._complete_readings = 0
        # Of the counters, which come whether they changed or not.
        self._snapshots = 0
        self._sinks = 0
        self.layouts: Layouts | None = None
        self.version = ""
        self.exemplars_seen = 0

    def add_sink(self) -> int:
        """Return the number of one more sink that needs every final series."""
        self._sinks += 1
        return self._sinks - 1

    def count_final_series(self) -> int:
        """Return how many series will not change and wait for a sink to take them."""
        with self._lock:
            while self._ending:
                image = self._images.get(self._ending[0])
                if image is not None:
                    if not self._is_final(image):
                        break
                    image.final_series = len(image.series)
                    self._final_series += image.final_series
                self._ending.popleft()
            return self._final_series

    def observe(self, activity: Activity) -> None:
        """Take in one activity; those that say nothing about metrics are ignored."""
        with self._lock:
            match activity:
                case CallActivity():
                    self._observe_call(activity)
                case AggregatesActivity():
                    self._observe_aggregates(activity)
                case TimesActivity():
                    self._observe_times(activity)
                case OpenCallActivity():
                    self._observe_open_call(activity)
                case ExitActivity():
                    self._observe_exit(activity)
                case CountersActivity() | StatusActivity() | ProbesActivity():
                    self._advance(activity.unix_ns)
                    self._self.observe(activity)
                    if isinstance(activity, CountersActivity):
                        self._snapshots += 1
                        self._forget_returned_calls()
                case CaptureActivity() if self.layouts is None:
                    self._agent = agent_resource(activity, self._environ)
                    self._start_unix_ns = self._unix_ns = activity.unix_ns
                    self.version = capture_version(activity)
                    self.layouts = Layouts.of_capture(activity)

    def observe_calls(self, calls: Iterable[CallActivity]) -> None:
        """Take in calls, in their order."""
        with self._lock:
            for call in calls:
                self._observe_call(call)

    def snapshots(self, sink: int, exemplars_after: int) -> Iterator[Snapshot]:
        """
        Yield what every Resource has to say to a sink, the agent's own first.

        Args:
            sink: Its number, from ``add_sink``.
            exemplars_after: Number of the last exemplar that the sink was given.
        """
        with self._lock:
            if self._agent is None or self.layouts is None:
                return
            knows_freed = self.layouts.knows_freed_bytes
            snapshots = [self._agent_snapshot(self._agent)]
            raw = [
                (
                    self._image_snapshot(key, image, exemplars_after),
                    list(image.series.values()),
                    dict(image.devices),
                )
                for key, image in self._images.items()
                if sink not in image.finished
            ]
        yield from snapshots
        # Measuring takes longer than copying references, so observers need not wait.
        for snapshot, series, devices in raw:
            for one in series:
                known = devices.get(one.key.device)
                snapshot.measurements.extend(measure(one, known, knows_freed))
            yield snapshot

    def release(self, key: ImageKey, sink: int) -> None:
        """Note that a sink has the final series of an image; forget it after the last sink."""
        with self._lock:
            image = self._images.get(key)
            if image is None:
                return
            image.finished.add(sink)
            if len(image.finished) == self._sinks:
                self._images.forget(key)
                self._release(image)

    def holds(self, key: ImageKey) -> bool:
        """Tell whether anything is kept of an image, or ``AGENT``."""
        return key == AGENT or self._images.get(key) is not None

    # Taking in.

    def _image(self, process: ProcessImage) -> ObservedImage | None:
        # As key_of(…), of which every span asks.
        key = (process.pid, process.image_ktime_ns)
        image = self._images.get(key)
        if image is None and key not in self._released:
            image = self._images.find(process)
            self._order_images_of_pid(key, image)
        return image

    def _open_image(self, process: ProcessImage) -> ObservedImage:
        exemplars = ExemplarReservoir(self._is_sampled)
        resource = self._resources.of(process)
        return ObservedImage(process, resource=resource, exemplars=exemplars)

    def _order_images_of_pid(self, key: ImageKey, image: ObservedImage) -> None:
        # An image ends without an exit when its process executes another program.
        newest = self._image_of_pid.get(key[0])
        if newest is not None and newest > key:
            self._end(image, self._unix_ns)
            return
        self._image_of_pid[key[0]] = key
        replaced = self._images.get(newest) if newest is not None else None
        if replaced is not None and replaced.end_unix_ns is None:
            self._end(replaced, image.process.start_unix_ns)

    def _end(self, image: ObservedImage, unix_ns: int) -> None:
        key = key_of(image.process)
        if image.end_unix_ns is None:
            self._ending.append(key)
        self._with_open_calls.discard(key)
        image.end_unix_ns = unix_ns
        image.end_readings = self._readings
        image.end_snapshots = self._snapshots
        image.open_calls.clear()
        self._images.end(key)

    def _advance(self, unix_ns: int) -> None:
        # Not the greatest time but the latest: the host's clock can be set back.
        if unix_ns != self._unix_ns:
            self._complete_readings = self._readings
            self._unix_ns = unix_ns

    def _observe_aggregates(self, activity: AggregatesActivity) -> None:
        self._advance(activity.unix_ns)
        if activity.unix_ns != self._reading_unix_ns:
            self._reading_unix_ns = activity.unix_ns
            self._readings += 1
        for series in activity.series:
            image = self._image(series.process)
            if image is None:
                self._dropped_series["late"] += 1
                continue
            self._touch(image, activity.unix_ns)
            if not self._images.put(image, series):
                self._dropped_series["stale"] += 1
            if series.device is not None:
                image.devices[series.key.device] = series.device

    def _observe_times(self, activity: TimesActivity) -> None:
        self._advance(activity.unix_ns)
        for process, times in groupby(activity.times, attrgetter("process")):
            feeding = [time for time in times if state_of(*time.kind[:3]) and time.time_ns]
            if feeding and (image := self._image(process)):
                image.stalls.take(feeding)
        for time in without_waits(activity.times):
            kind = time.kind
            image = self._image(time.process) if state_of(*kind[:3]) and time.time_ns else None
            if image is None:
                continue
            self._touch(image, activity.unix_ns)
            known = image.times.get(kind)
            # What a thread was blocked on can become known later, and counters only rise.
            if known is None or known.time_ns < time.time_ns:
                image.times[kind] = time

    def _touch(self, image: ObservedImage, unix_ns: int) -> None:
        if image.updated_unix_ns != unix_ns:
            image.updated_unix_ns = unix_ns
            self._images.find(image.process)

    def count(self, instrument: Instrument, value: str) -> None:
        """Count something that was explained; see ``SelfTelemetry.count``."""
        with self._lock:
            self._self.count(instrument, value)

    def _observe_call(self, call: CallActivity) -> None:
        image = self._image(call.process)
        if image is None or self._agent is None:
            return
        if image.open_calls:
            image.open_calls.pop((call.event.tid, call.event.start_ktime_ns), None)
        if self._with_exemplars:
            self.exemplars_seen += 1
            image.exemplars.offer(call, self.exemplars_seen)
            if call.device is not None:
                image.devices[call.event.device] = call.device

    def _observe_open_call(self, call: OpenCallActivity) -> None:
        image = self._image(call.process)
        if image is None or image.end_unix_ns is not None:
            return
        image.hang(call)
        self._with_open_calls.add(key_of(call.process))

    def _forget_returned_calls(self) -> None:
        for image_key in tuple(self._with_open_calls):
            image = self._images.get(image_key)
            if image is not None:
                image.forget_returned_calls(self._unix_ns)
            if image is None or not image.open_calls:
                self._with_open_calls.discard(image_key)

    def _observe_exit(self, activity: ExitActivity) -> None:
        # Also of an image that is not known yet: its only series may come after it.
        image = self._image(activity.process)
        if image is not None:
            self._end(image, activity.end_unix_ns)

    def _give_up(self, image: ObservedImage, has_ended: bool) -> None:
        self._dropped_series["endpoint_down" if has_ended else "stale"] += len(image.series)
        self._release(image)

    def _release(self, image: ObservedImage) -> None:
        key = key_of(image.process)
        self._final_series -= image.final_series
        self._with_open_calls.discard(key)
        self._resources.forget(image.process)
        if self._image_of_pid.get(key[0]) == key:
            del self._image_of_pid[key[0]]
        self._released[key] = None
        if len(self._released) > _MAX_RELEASED:
            self._released.popitem(last=False)

    # Handing out.

    def _agent_snapshot(self, agent: Resource) -> Snapshot:
        measurements = list(self._self.measurements(self._dropped_series))
        return Snapshot(
            AGENT, agent, measurements, {}, self._start_unix_ns, self._unix_ns, is_final=False
        )

    def _image_snapshot(
        self, key: ImageKey, image: ObservedImage, exemplars_after: int
    ) -> Snapshot:
        time_unix_ns = self._unix_ns
        if image.end_unix_ns is not None:
            time_unix_ns = max(image.updated_unix_ns, image.end_unix_ns)
        ages = [
            Measurement(
                semconv.METRIC_GPU_CUDA_CALL_OPEN_AGE,
                open_call_attributes(call),
                source,
                call.seen_unix_ns - call.start_unix_ns,
            )
            for source, (call, _) in image.open_calls.items()
        ]
        times = measure_thread_times(image.times.values())
        return Snapshot(
            key,
            image.resource,
            [*ages, *times, *image.stalls.measurements()],
            image.exemplars.newer_than(exemplars_after, image.devices),
            image.process.start_unix_ns,
            time_unix_ns,
            self._is_final(image),
        )

    def _is_final(self, image: ObservedImage) -> bool:
        return image.end_unix_ns is not None and (
            self._complete_readings > image.end_readings
            or self._snapshots - image.end_snapshots >= _LAST_SERIES_SNAPSHOTS
        )

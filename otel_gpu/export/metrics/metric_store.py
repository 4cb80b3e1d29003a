"""
The metric store: the latest of everything that is counted, until it was exported.

The kernel side hands over cumulative values, so the store replaces and never adds.
Its size follows the number of series, not of calls, and stays bounded when nothing
can be exported: what is given up then is counted.
"""

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any, get_args

from otel_gpu.enrich.activities import (
    Activity,
    AggregatesActivity,
    BlocksActivity,
    CallActivity,
    CaptureActivity,
    CommunicatorActivity,
    CountersActivity,
    ExitActivity,
    OpenCallActivity,
    OutOfMemoryActivity,
    TimesActivity,
)
from otel_gpu.enrich.identity.identities import ProcessKey, Program, key_of
from otel_gpu.enrich.marks import StepActivity
from otel_gpu.explain.accounting.verdicts import state_of
from otel_gpu.export.metrics.collectives import measure_collectives
from otel_gpu.export.metrics.exemplars import ExemplarReservoir, IsSampled
from otel_gpu.export.metrics.host_figures import HostFigures, OfHost
from otel_gpu.export.metrics.measures import measure, measure_open_call, measure_thread_times
from otel_gpu.export.metrics.observed_program import ObservedProgram
from otel_gpu.export.metrics.points import Measurement, read_layouts
from otel_gpu.export.metrics.snapshots import Agent, Snapshot
from otel_gpu.export.resources import ProcessResources, agent_resource, capture_version
from otel_gpu.export.semconv import Instrument
from otel_gpu.state.differences import without_waits
from otel_gpu.state.time_accounting import Accounts

# Stands for the agent's own Resource among the images; no record has such a pid.
AGENT: ProcessKey = (-1, 0)

# The last series of an image come with the first reading after its end. Where nothing
# changed there is none, and counters go on coming.
_LAST_SERIES_SNAPSHOTS = 3
_MAX_RELEASED = 4096
_CALLS_AT_A_TIME = 128


class MetricStore:
    """Takes activities in, and hands snapshots out on other threads; bounded by ``max_series``."""

    def __init__(
        self, environ: Mapping[str, str], *, max_series: int, is_sampled: IsSampled | None = None
    ) -> None:
        self._environ = environ
        self._resources = ProcessResources(environ)
        self._is_sampled = is_sampled
        self._lock = threading.Lock()
        # Images whose end was not seen stay no longer than that: the kernel side holds max_series.
        self._images = Accounts(
            self._open_image, most=2 * max_series, most_ended=max_series, give_up=self._give_up
        )
        self._image_of_pid: dict[int, ProcessKey] = {}
        self._released: OrderedDict[ProcessKey, None] = OrderedDict()
        self._ending: deque[ProcessKey] = deque()
        self._final_series = 0
        self._host = HostFigures()
        self._dropped_series: Counter[str] = Counter()
        self._unix_ns = 0
        # Of the aggregates; one reading can be several activities of the same moment.
        self._readings = 0
        self._reading_unix_ns = -1
        self._complete_readings = 0
        # Of the counters, which come whether they changed or not.
        self._snapshots = 0
        self._sinks = 0
        self._exemplars_seen = 0
        # Every span makes one; they wait for the next activity of another kind.
        self._calls: deque[CallActivity] = deque()
        self._observers: dict[type, Callable[[Any], None]] = {
            AggregatesActivity: self._observe_aggregates,
            BlocksActivity: self._observe_blocks,
            CommunicatorActivity: self._observe_communicator,
            OutOfMemoryActivity: self._observe_failure,
            StepActivity: self._observe_step,
            TimesActivity: self._observe_times,
            OpenCallActivity: self._observe_open_call,
            ExitActivity: self._observe_exit,
            **dict.fromkeys(get_args(OfHost), self._observe_host),
            CountersActivity: self._observe_counters,
            CaptureActivity: self._observe_capture,
        }
        self.agent: Agent | None = None

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
        if type(activity) is CallActivity:
            self._calls.append(activity)
            # They are examples, and one lock is enough for many of them.
            if len(self._calls) >= _CALLS_AT_A_TIME:
                with self._lock:
                    self._observe_calls()
        elif observe := self._observers.get(type(activity)):
            with self._lock:
                self._observe_calls()
                observe(activity)

    def snapshots(self, sink: int, exemplars_after: int) -> Iterator[Snapshot]:
        """
        Yield what each Resource has to say, the agent first; exemplars after the last it has.

        Of users, those with few programs come first: where there is no time for all, as at the end, one
        that has started thousands is late, and nobody else.
        """
        with self._lock:
            self._observe_calls()
            if self.agent is None:
                return
            images = [image for image in self._images.values() if sink not in image.finished]
            programs = Counter(image.process.user for image in images)
            images.sort(key=lambda image: programs[image.process.user])
            snapshots = [
                (self._image_snapshot(self.agent, image, exemplars_after), [*image.series.values()])
                for image in images
            ]
            of_agent = self._agent_snapshot(self.agent)
        yield of_agent
        # Measuring takes longer than copying references, so observers need not wait.
        for snapshot, series in snapshots:
            for one in series:
                device = snapshot.devices.get(one.key.device)
                snapshot.measurements.extend(measure(one, device))
            yield snapshot

    def release(self, key: ProcessKey, sink: int) -> None:
        """Note that a sink has the final series of an image; forget it after the last sink."""
        with self._lock:
            if image := self._images.get(key):
                image.finished.add(sink)
                if len(image.finished) == self._sinks:
                    self._images.forget(key)
                    self._release(image)

    def holds(self, key: ProcessKey) -> bool:
        """Tell whether anything is kept of an image, or ``AGENT``."""
        return key == AGENT or self._images.get(key) is not None

    def _image(self, process: Program) -> ObservedProgram | None:
        # As key_of(…), of which every span asks.
        key = (process.pid, process.program_ktime_ns)
        image = self._images.get(key)
        if image is None and key not in self._released:
            image = self._images.find(process)
            self._order_images_of_pid(key, image)
        return image

    def _open_image(self, process: Program) -> ObservedProgram:
        exemplars = ExemplarReservoir(self._is_sampled)
        return ObservedProgram(process, resource=self._resources.of(process), exemplars=exemplars)

    def _order_images_of_pid(self, key: ProcessKey, image: ObservedProgram) -> None:
        # An image ends without an exit when its process executes another program.
        newest = self._image_of_pid.get(key[0], key)
        if newest > key:
            self._end(image, self._unix_ns)
            return
        self._image_of_pid[key[0]] = key
        replaced = self._images.get(newest) if newest != key else None
        if replaced is not None and replaced.end_unix_ns is None:
            self._end(replaced, image.process.start_unix_ns)

    def _end(self, image: ObservedProgram, unix_ns: int) -> None:
        key = key_of(image.process)
        if image.end_unix_ns is None:
            self._ending.append(key)
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

    def _observe_blocks(self, activity: BlocksActivity) -> None:
        self._advance(activity.unix_ns)
        image = self._image(activity.process) if activity.totals is not None else None
        if image is not None:
            self._touch(image, activity.unix_ns)
            image.hold(activity.number, activity.device, activity.totals)

    def _observe_communicator(self, activity: CommunicatorActivity) -> None:
        self._advance(activity.unix_ns)
        if (image := self._image(activity.process)) is not None:
            self._touch(image, activity.unix_ns)
            if not image.join(activity):
                self._dropped_series["communicators"] += 1

    def _observe_failure(self, activity: OutOfMemoryActivity) -> None:
        if (image := self._image(activity.process)) is not None:
            image.hold(activity.event.device, activity.device, None)

    def _observe_step(self, activity: StepActivity) -> None:
        image = self._image(activity.process)
        if image is not None and self.agent is not None:
            image.steps.add(activity, self.agent.layouts["s"])

    def _observe_times(self, activity: TimesActivity) -> None:
        self._advance(activity.unix_ns)
        for process, times in groupby(activity.times, attrgetter("process")):
            feeding = [time for time in times if state_of(*time.kind[:3]) and time.time_ns]
            if feeding and (image := self._image(process)):
                image.stalls.take(feeding)
        for time in without_waits(activity.times):
            state = state_of(time.state, time.context, time.reason)
            image = self._image(time.process) if state and time.time_ns else None
            if image is not None:
                self._touch(image, activity.unix_ns)
                # What a thread was blocked on can become known later, and counters only rise.
                if image.times.get(time.kind, time).time_ns <= time.time_ns:
                    self._images.put_time(image, time)

    def _touch(self, image: ObservedProgram, unix_ns: int) -> None:
        if image.updated_unix_ns != unix_ns:
            image.updated_unix_ns = unix_ns
            self._images.find(image.process)

    def observe_run(
        self, process: Program, measurements: list[Measurement], end_unix_ns: int
    ) -> None:
        """Take in all that will ever be measured of a process, which ended then."""
        with self._lock:
            self._advance(end_unix_ns)
            if measurements and (image := self._image(process)) is not None:
                self._touch(image, end_unix_ns)
                image.of_run = measurements
                self._end(image, end_unix_ns)

    def count(self, instrument: Instrument, attribute: str, value: str, count: int = 1) -> None:
        """Count chains or incidents, by the value of the attribute of their instrument."""
        with self._lock:
            self._host.agent.explained[instrument, attribute, value] += count

    def tell_dropped(self, counts: Mapping[str, int]) -> None:
        """Take in how many spans were dropped, by reason; newer than the agent's last figures."""
        with self._lock:
            agent = self._host.agent
            agent.status = {**agent.status, "dropped": counts}

    def _observe_calls(self) -> None:
        # More may arrive meanwhile: one thread observes, others collect.
        while self._calls:
            call = self._calls.popleft()
            if (image := self._image(call.process)) is not None:
                if image.open_calls:
                    image.open_calls.pop((call.event.tid, call.event.start_ktime_ns), None)
                self._exemplars_seen += 1
                image.exemplars.offer(call, self._exemplars_seen)
                if call.device is not None:
                    image.devices[call.event.device] = call.device

    def _observe_open_call(self, call: OpenCallActivity) -> None:
        image = self._image(call.process)
        if image is not None and image.end_unix_ns is None:
            image.hang(call)

    def _observe_host(self, activity: OfHost) -> None:
        self._advance(activity.unix_ns)
        self._host.observe(activity)

    def _observe_counters(self, activity: CountersActivity) -> None:
        self._observe_host(activity)
        self._snapshots += 1
        for image in [image for _, image in self._images.items() if image.open_calls]:
            image.forget_returned_calls(self._unix_ns)

    def _observe_capture(self, activity: CaptureActivity) -> None:
        if self.agent is None:
            self._unix_ns = activity.unix_ns
            resource = agent_resource(activity, self._environ)
            version, layouts = capture_version(activity), read_layouts(activity)
            self.agent = Agent(resource, version, layouts, activity.unix_ns)

    def _observe_exit(self, activity: ExitActivity) -> None:
        # Also of an image that is not known yet: its only series may come after it.
        if (image := self._image(activity.process)) is not None:
            self._end(image, activity.end_unix_ns)

    def _give_up(self, image: ObservedProgram, has_ended: bool) -> None:
        self._dropped_series["endpoint_down" if has_ended else "stale"] += len(image.series)
        self._release(image)

    def _release(self, image: ObservedProgram) -> None:
        key = key_of(image.process)
        self._final_series -= image.final_series
        self._resources.forget(image.process)
        if self._image_of_pid.get(key[0]) == key:
            del self._image_of_pid[key[0]]
        self._released[key] = None
        if len(self._released) > _MAX_RELEASED:
            self._released.popitem(last=False)

    def _agent_snapshot(self, agent: Agent) -> Snapshot:
        measurements = self._host.measurements(self._dropped_series)
        times_unix_ns = (agent.start_unix_ns, self._unix_ns)
        return Snapshot(
            AGENT, agent.resource, agent, {}, measurements, {}, self._exemplars_seen, *times_unix_ns
        )

    def _image_snapshot(self, agent: Agent, image: ObservedProgram, after: int) -> Snapshot:
        time_unix_ns = self._unix_ns
        if image.end_unix_ns is not None:
            time_unix_ns = max(image.updated_unix_ns, image.end_unix_ns)
        ages = (measure_open_call(call) for call, _ in image.open_calls.values())
        is_alive = image.end_unix_ns is None
        return Snapshot(
            key_of(image.process),
            image.resource,
            agent,
            dict(image.devices),
            [
                *ages,
                *measure_thread_times(image.times.values()),
                *image.stalls.measurements(),
                *image.steps.measurements(),
                *image.memory_measurements(),
                *measure_collectives(image.communicators, time_unix_ns, is_alive=is_alive),
                *(self._host.devices.of_process(image.process.pid) if is_alive else ()),
                *image.of_run,
            ],
            image.exemplars.newer_than(after, image.devices),
            self._exemplars_seen,
            image.process.start_unix_ns,
            time_unix_ns,
            self._is_final(image),
        )

    def _is_final(self, image: ObservedProgram) -> bool:
        return image.end_unix_ns is not None and (
            self._complete_readings > image.end_readings
            or self._snapshots - image.end_snapshots >= _LAST_SERIES_SNAPSHOTS
        )

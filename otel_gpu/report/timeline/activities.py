"""Draws activities of threads and devices as slices."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from otel_gpu import wire
from otel_gpu.enrich.activities import (
    AggregatesActivity,
    CallActivity,
    CaptureActivity,
    DeviceTraceActivity,
    ExitActivity,
    ForkActivity,
    GapActivity,
    OpenCallActivity,
    PressureActivity,
    StallActivity,
)
from otel_gpu.enrich.identity.identities import CallStack, Program
from otel_gpu.enrich.stack_text import cut_frames
from otel_gpu.report.document import Culprit, Window
from otel_gpu.report.timeline.tracks import (
    Arrow,
    ArrowEnd,
    Details,
    Drawing,
    Instant,
    Level,
    Slice,
    Track,
)
from otel_gpu.report.wording.formats import (
    describe_resource,
    describe_thread,
    frame_line,
    service_of,
    shorten,
)
from otel_gpu.state.capture_state import CaptureState, SeriesDelta
from otel_gpu.state.differences import grown
from otel_gpu.state.traces.kernel_kinds import KernelKind, kinds_of
from otel_gpu.wire.device_activity import DeviceTrace, HostWork, Work

MAX_OPEN = 4_096
MAX_FRAMES = 24
OTHERS = 1 << 30
"""Process numbers from here on are not pids: devices, and pids that occur twice."""
COMMUNICATION = "communication"
"""The category of work that several devices do together."""
HOST = OTHERS
"""The process number of the host: its counters."""

Lasting = TypeVar("Lasting", CallActivity, GapActivity, ForkActivity)

_NS_PER_S = 1_000_000_000
_DEVICE_WORK = {Work.KERNEL: "kernel", Work.COPY: "copy", Work.FILL: "fill", Work.GRAPH: "graph"}
_HOST_WORK = {
    HostWork.OPERATION: "operation",
    HostWork.CALL: "cuda",
    HostWork.ANNOTATION: "annotation",
    HostWork.PYTHON: "python",
}


class ActivityTracks:
    """
    Draws activities: what threads did, their waits, and counters.

    Args:
        drawing: Receives the slices.
        window: Only this time is drawn.
        pids: Only these processes; empty: all.
        only_slices: Draw no counters, and no details of slices.
    """

    def __init__(
        self,
        drawing: Drawing,
        window: Window,
        pids: Sequence[int] = (),
        *,
        only_slices: bool = False,
    ) -> None:
        self._drawing, self._window, self._pids = drawing, window, frozenset(pids)
        self._only_slices = only_slices
        # Only the growth of its counters is used.
        self._state = CaptureState(window, follow=self._follow)
        self._sums: defaultdict[Program, Counter[str]] = defaultdict(Counter)
        self._since_unix_ns = 0
        self._open: dict[tuple[int, int, int], OpenCallActivity] = {}
        self._traces = DeviceTracks(drawing)

    def observe(self, activity: object) -> None:
        """Draw one activity."""
        match activity:
            case CallActivity():
                self._open.pop(_key_of(activity), None)
                self._draw(
                    activity=activity, name=activity.api.name, category="cuda", describe=_of_call
                )
            case GapActivity():
                self._draw(activity=activity, name="gap", category="gap", describe=_of_gap)
            case StallActivity():
                self._draw_stall(activity)
            case ForkActivity():
                self._draw(activity=activity, name="fork", category="process", describe=_of_fork)
            case OpenCallActivity() if len(self._open) < MAX_OPEN:
                self._open[_key_of(activity)] = activity
            case ExitActivity():
                self._draw_exit(activity)
            case CaptureActivity() | AggregatesActivity() if not self._only_slices:
                self._state.observe(activity)
                self._draw_levels(activity)
            case PressureActivity() if not self._pids:
                self._draw_load(activity)
            case DeviceTraceActivity():
                self._traces.draw(activity.trace)
            case _:
                pass

    def close(self) -> None:
        """Draw the calls that never returned."""
        for activity in self._open.values():
            start_ns, end_ns = activity.start_unix_ns, activity.seen_unix_ns
            if self._wants(activity.process.pid, end_ns, start_ns):
                event = activity.event
                track = track_of(activity.process, event.tid, event.comm)
                details = {"returned": False, "stack": stack_lines(activity.stack)}
                name = f"{activity.api.name} (open)"
                self._drawing.ended(
                    Slice(
                        track=track,
                        name=name,
                        category="cuda",
                        start_unix_ns=start_ns,
                        end_unix_ns=end_ns,
                        details=details,
                    )
                )
        self._open.clear()

    def _wants(self, pid: int, end_unix_ns: int, start_unix_ns: int | None = None) -> bool:
        start_unix_ns = end_unix_ns if start_unix_ns is None else start_unix_ns
        is_its = not self._pids or pid in self._pids
        return is_its and self._window.overlaps(start_unix_ns, end_unix_ns)

    def _draw(
        self,
        activity: Lasting,
        name: str,
        category: str,
        describe: Callable[[Lasting], Details],
    ) -> None:
        start_ns, end_ns, event = activity.start_unix_ns, activity.end_unix_ns, activity.event
        if self._wants(activity.process.pid, end_ns, start_ns):
            track = track_of(activity.process, event.tid, event.comm)
            details = None if self._only_slices else describe(activity)
            self._drawing.ended(
                Slice(
                    track=track,
                    name=name,
                    category=category,
                    start_unix_ns=start_ns,
                    end_unix_ns=end_ns,
                    details=details,
                )
            )

    def _draw_exit(self, activity: ExitActivity) -> None:
        process, unix_ns = activity.process, activity.end_unix_ns
        if self._wants(process.pid, unix_ns):
            track = track_of(process, process.pid, process.comm)
            details = {"exit_code": activity.exit_code}
            self._drawing.instant(
                Instant(
                    track=track, name="exit", category="process", unix_ns=unix_ns, details=details
                )
            )

    def _draw_load(self, activity: PressureActivity) -> None:
        load = activity.info.get("load1")
        if load is not None and self._wants(HOST, activity.unix_ns):
            values = {"threads": load}
            self._drawing.level(
                Level(
                    process=HOST,
                    process_name="host",
                    name="load",
                    unix_ns=activity.unix_ns,
                    values=values,
                )
            )

    def _draw_stall(self, activity: StallActivity) -> None:
        if not self._wants(activity.process.pid, activity.end_unix_ns, activity.start_unix_ns):
            return
        event = activity.event
        track = track_of(activity.process, event.tid, event.comm)
        runnable_ns = min(
            max(activity.runnable_unix_ns, activity.start_unix_ns), activity.end_unix_ns
        )
        if runnable_ns > activity.start_unix_ns:
            name = f"blocked: {activity.reason}" if activity.reason else "blocked"
            details = None if self._only_slices else _of_wait(activity)
            self._drawing.ended(
                Slice(
                    track=track,
                    name=name,
                    category="wait",
                    start_unix_ns=activity.start_unix_ns,
                    end_unix_ns=runnable_ns,
                    details=details,
                )
            )
        if activity.end_unix_ns > runnable_ns:
            who = Culprit(event.culprit_pid, event.culprit_tid, event.culprit_comm)
            queued: dict[str, object] = {"cpu": event.cpu}
            if event.culprit_tid:
                queued["had the CPU"] = describe_thread(who)
            if event.flags & wire.STALL_IDLE_CPU:
                queued["had the CPU"] = "nobody"
            self._drawing.ended(
                Slice(
                    track=track,
                    name="run queue",
                    category="wait",
                    start_unix_ns=runnable_ns,
                    end_unix_ns=activity.end_unix_ns,
                    details=queued,
                )
            )

    def _follow(self, growth: SeriesDelta) -> None:
        (process, key, api, _, now), before = growth.series, growth.before
        if self._pids and process.pid not in self._pids:
            return
        sums = self._sums[process]
        if key.metric == wire.METRIC_RUN_QUEUE:
            sums["run queue ms/s"] += grown(now.sum, before.sum if before else 0) // 1_000_000
        elif api is not None and not key.nested:
            sums["calls/s"] += grown(now.counted, before.counted if before else 0)

    def _begin_capture(self, unix_ns: int) -> None:
        # Rates of the previous capture end with its last reading.
        for process, sums in self._sums.items():
            for name in sums:
                self._drawing.level(
                    _level(process=process, name=name, unix_ns=self._since_unix_ns, value=0)
                )
        self._sums.clear()
        self._since_unix_ns = unix_ns

    def _draw_levels(self, activity: CaptureActivity | AggregatesActivity) -> None:
        unix_ns = activity.unix_ns
        if isinstance(activity, CaptureActivity):
            self._begin_capture(unix_ns)
            return
        since_ns, self._since_unix_ns = self._since_unix_ns, unix_ns
        counted, self._sums = self._sums, defaultdict(Counter)
        if not since_ns or unix_ns <= since_ns or not self._window.overlaps(unix_ns, unix_ns):
            return
        for process, sums in counted.items():
            for name, total in sums.items():
                rate = round(total * _NS_PER_S / (unix_ns - since_ns), 3)
                # From the previous reading on: the rate covers that time.
                self._drawing.level(
                    _level(process=process, name=name, unix_ns=since_ns, value=rate)
                )
                if total:
                    # Without a further reading, the rate falls to 0.
                    self._sums[process][name] = 0


class DeviceTracks:
    """
    Draws traces: threads of the host, streams of devices, and arrows from launches to their work.
    """

    def __init__(self, drawing: Drawing) -> None:
        self._drawing = drawing
        self._pids: set[int] = set()
        self._others = OTHERS

    def draw(self, trace: DeviceTrace) -> None:
        """Draw a trace."""
        enqueued = set(trace.activities.correlations) - {0}
        calls: dict[int, tuple[ArrowEnd, int]] = {}
        host = trace.host
        tracks = self._host_tracks(trace)
        for row in _in_order(host.starts_ns, host.durations_ns):
            track = tracks[host.threads[row]]
            kind = HostWork(host.kinds[row])
            start_ns = trace.base_unix_ns + host.starts_ns[row]
            shape = trace.shapes[host.shapes[row]]
            place = self._drawing.began(
                Slice(
                    track=track,
                    name=trace.names[host.names[row]],
                    category=_HOST_WORK[kind],
                    start_unix_ns=start_ns,
                    end_unix_ns=start_ns + host.durations_ns[row],
                    details={"shapes": shape} if shape else {},
                )
            )
            correlation = host.correlations[row]
            if place and kind is HostWork.CALL and correlation in enqueued:
                calls[correlation] = (place, start_ns)
        self._draw_devices(trace, calls)

    def _host_tracks(self, trace: DeviceTrace) -> dict[int, Track]:
        processes: dict[int, int] = {}
        tracks: dict[int, Track] = {}
        for number in sorted(set(trace.host.threads)):
            pid, tid, name = trace.threads[number]
            if pid not in processes:
                processes[pid] = self._process(pid)
            title = f"{trace.source} ({pid})"
            tracks[number] = Track(
                process=processes[pid], process_name=title, thread=tid, thread_name=name or "thread"
            )
        return tracks

    def _device_tracks(self, trace: DeviceTrace) -> dict[tuple[int, int], Track]:
        done = trace.activities
        processes: dict[int, int] = {}
        tracks: dict[tuple[int, int], Track] = {}
        for device, stream in sorted(set(zip(done.devices, done.streams, strict=True))):
            if device not in processes:
                processes[device] = self._process(0)
            model = trace.models.get(device)
            title = device_title(device, model.name if model else "", trace.source)
            name = f"stream {stream}" if stream >= 0 else "unknown stream"
            tracks[device, stream] = Track(
                process=processes[device],
                process_name=title,
                thread=stream,
                thread_name=name,
                is_device=True,
            )
        return tracks

    def _draw_devices(self, trace: DeviceTrace, calls: dict[int, tuple[ArrowEnd, int]]) -> None:
        done = trace.activities
        kinds = kinds_of(trace.names, done)
        tracks = self._device_tracks(trace)
        for row in _in_order(done.starts_ns, done.durations_ns):
            track = tracks[done.devices[row], done.streams[row]]
            start_ns = trace.base_unix_ns + done.starts_ns[row]
            details: dict[str, object] = {}
            if done.sizes_bytes[row]:
                details["bytes"] = done.sizes_bytes[row]
            if done.collectives[row]:
                details["collective"] = trace.collectives[done.collectives[row]].name
            communicates = kinds[done.names[row]] is KernelKind.COMMUNICATION
            is_shared = done.collectives[row] or communicates
            work = COMMUNICATION if is_shared else _DEVICE_WORK[Work(done.kinds[row])]
            name = trace.names[done.names[row]] or work
            end_ns = start_ns + done.durations_ns[row]
            place = self._drawing.began(
                Slice(
                    track=track,
                    name=name,
                    category=work,
                    start_unix_ns=start_ns,
                    end_unix_ns=end_ns,
                    details=details,
                )
            )
            call = calls.get(done.correlations[row])
            # Work that begins before its launch comes from clocks that do not agree: no arrow.
            if place and call and call[1] <= start_ns:
                self._drawing.arrow(Arrow("enqueued", "launch", *call, place, start_ns))

    def _process(self, pid: int) -> int:
        if 0 < pid < OTHERS and pid not in self._pids:
            self._pids.add(pid)
            return pid
        self._others += 1
        return self._others


def device_title(device: int, model: str, source: str) -> str:
    """Return the title of a device's rows."""
    return f"device {device}{f', {model}' if model else ''} ({source})"


def track_of(process: Program, tid: int, comm: str, role: str = "") -> Track:
    """Return the track of a thread."""
    return Track(
        process=process.pid,
        process_name=service_of(process),
        thread=tid,
        thread_name=comm,
        role=role,
    )


def stack_lines(stack: CallStack | None) -> list[str]:
    """Return the frames of a stack as text, innermost first."""
    return [frame_line(frame) for frame in cut_frames(stack.frames, MAX_FRAMES)] if stack else []


def _in_order(starts_ns: Sequence[int], durations_ns: Sequence[int]) -> Iterator[int]:
    # Rows by start; of equals the longest first.
    # Two stable sorts need less memory than one by pairs.
    rows = sorted(range(len(starts_ns)), key=durations_ns.__getitem__, reverse=True)
    rows.sort(key=starts_ns.__getitem__)
    yield from array("I", rows)


def _level(process: Program, name: str, unix_ns: int, value: float) -> Level:
    return Level(
        process=process.pid,
        process_name=service_of(process),
        name=f"CUDA {name}",
        unix_ns=unix_ns,
        values={name: value},
    )


def _key_of(activity: CallActivity | OpenCallActivity) -> tuple[int, int, int]:
    event = activity.event
    return event.pid, event.tid, event.start_ktime_ns


def _of_call(activity: CallActivity) -> Details:
    event = activity.event
    details: dict[str, object] = {
        "layer": activity.api.layer_name,
        "blocked_ns": event.blocked_ns,
        "run_queue_ns": event.run_queue_ns,
        "bytes": event.size_bytes,
        "stream": f"{event.stream:#x}" if event.stream else 0,
        "status": event.status,
        "stands_for_calls": event.weight,
        "stack": stack_lines(activity.stack),
        "span_id": activity.span_id.hex(),
    }
    if any(event.grid) and activity.api.layer != wire.LAYER_NCCL:
        details |= {"grid": list(event.grid), "block": list(event.block)}
    if activity.device is not None:
        details["device"] = activity.device.index
    return {name: value for name, value in details.items() if value not in (0, "", [])}


def _of_gap(activity: GapActivity) -> Details:
    event = activity.event
    return {
        "after": activity.previous_api.name,
        "before": activity.next_api.name,
        "blocked_ns": event.blocked_ns,
        "run_queue_ns": event.run_queue_ns,
    }


def _of_fork(activity: ForkActivity) -> Details:
    return {"child": activity.child.pid, "comm": shorten(activity.child.comm)}


def _of_wait(activity: StallActivity) -> Details:
    event = activity.event
    details: dict[str, object] = {
        "waited for": describe_resource(activity.resource) if activity.resource else "",
        "woken by": describe_thread(Culprit(event.waker_pid, event.waker_tid, event.waker_comm))
        if event.waker_tid
        else "",
        "kernel": list(activity.functions),
        "stack": stack_lines(activity.stack),
    }
    return {name: value for name, value in details.items() if value}

"""Draws activities of threads as slices."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
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
from otel_gpu.report.timeline.device_tracks import OTHERS, DeviceTracks
from otel_gpu.report.timeline.tracks import (
    Details,
    Drawing,
    Instant,
    Level,
    Slice,
    SliceCategory,
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

MAX_OPEN = 4_096
MAX_FRAMES = 24
HOST = OTHERS
"""The process number of the host: its counters."""

Lasting = TypeVar("Lasting", CallActivity, GapActivity, ForkActivity)

_NS_PER_S = 1_000_000_000


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
                    activity=activity,
                    name=activity.api.name,
                    category=SliceCategory.CALL,
                    describe=_of_call,
                )
            case GapActivity():
                self._draw(
                    activity=activity, name="gap", category=SliceCategory.GAP, describe=_of_gap
                )
            case StallActivity():
                self._draw_stall(activity)
            case ForkActivity():
                self._draw(
                    activity=activity,
                    name="fork",
                    category=SliceCategory.PROCESS,
                    describe=_of_fork,
                )
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
                        category=SliceCategory.CALL,
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
        category: SliceCategory,
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
                    track=track,
                    name="exit",
                    category=SliceCategory.PROCESS,
                    unix_ns=unix_ns,
                    details=details,
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
                    category=SliceCategory.WAIT,
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
                    category=SliceCategory.WAIT,
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

"""Draws traces of devices: work of streams and of host threads, as slices."""

from array import array
from collections.abc import Iterator, Sequence

from otel_gpu.report.timeline.tracks import Arrow, ArrowEnd, Drawing, Slice, SliceCategory, Track
from otel_gpu.state.traces.kernel_kinds import KernelKind, kinds_of
from otel_gpu.wire.device_activity import DeviceTrace, HostWork, Work

OTHERS = 1 << 30
"""Process numbers from here on are not pids: devices, and pids that occur twice."""

_DEVICE_WORK = {
    Work.KERNEL: SliceCategory.KERNEL,
    Work.COPY: SliceCategory.COPY,
    Work.FILL: SliceCategory.FILL,
    Work.GRAPH: SliceCategory.GRAPH,
}
_HOST_WORK = {
    HostWork.OPERATION: SliceCategory.OPERATION,
    HostWork.CALL: SliceCategory.CALL,
    HostWork.ANNOTATION: SliceCategory.ANNOTATION,
    HostWork.PYTHON: SliceCategory.PYTHON,
}


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
            work = SliceCategory.COMMUNICATION if is_shared else _DEVICE_WORK[Work(done.kinds[row])]
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


def _in_order(starts_ns: Sequence[int], durations_ns: Sequence[int]) -> Iterator[int]:
    # Rows by start; of equals the longest first.
    # Two stable sorts need less memory than one by pairs.
    rows = sorted(range(len(starts_ns)), key=durations_ns.__getitem__, reverse=True)
    rows.sort(key=starts_ns.__getitem__)
    yield from array("I", rows)

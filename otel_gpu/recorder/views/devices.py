"""The views of device activity from traces of other tools; their times are device time."""

from otel_gpu.recorder.tables.columns import View
from otel_gpu.recorder.views.view_sql import ms, utc
from otel_gpu.wire.device_activity import HostWork, Work

_OWNER = "t.source, t.rank, e.device"
_OF = "JOIN device_traces t ON t.seq = e.trace"
_STARTED = "(t.base_unix_ns + e.start_ns)"
_SHARED = {
    "source": "name of the imported file",
    "rank": "rank of the process in its run; NULL: unknown",
    "device": "index of the device as its process sees it; -1: unknown",
}


def _words(column: str, words: type[Work | HostWork]) -> str:
    cases = " ".join(f"WHEN {one.value} THEN '{one.name.lower()}'" for one in words)
    return f"CASE {column} {cases} END"


DEVICE_VIEWS: tuple[View, ...] = (
    View(
        "v_device_time",
        "Device time of each program and device, by activity.",
        f"""
        SELECT e.seq, {utc("e.start_unix_ns")} AS time, {_OWNER}, m.name AS device_model,
          {ms("e.window_ns")} AS window_ms, {ms("e.compute_ns")} AS compute_ms,
          {ms("e.exposed_communication_ns")} AS exposed_communication_ms,
          {ms("e.exposed_copy_ns")} AS exposed_copy_ms, {ms("e.idle_ns")} AS idle_ms, e.steps,
          e.verdict, round(e.useful, 6) AS useful, t.tool, e.start_unix_ns
        FROM device_uses e {_OF}
          LEFT JOIN device_models m ON m.trace = e.trace AND m.device = e.device
        """,
        **_SHARED,
        window_ms=("time of its steps, or from its first to its last activity", "ms"),
        compute_ms=("time in which it computed", "ms"),
        exposed_communication_ms=("time in which it communicated, and did not compute", "ms"),
        exposed_copy_ms=("time in which it copied, and neither computed nor communicated", "ms"),
        idle_ms=("idle time; NULL: unknown", "ms"),
        steps=("number of steps", "{step}"),
        verdict="what bounds the program",
        useful="share of the window in which it computed; NULL: unknown",
        tool="tool that recorded it",
    ),
    View(
        "v_device_activities",
        "Device activities, with names.",
        f"""
        SELECT e.seq, {utc(_STARTED)} AS time, {ms("e.duration_ns")} AS duration_ms,
          {_words("e.kind", Work)} AS kind, coalesce(n.name, '') AS name, {_OWNER}, e.stream,
          e.size_bytes, coalesce(c.name, '') AS collective, e.correlation,
          {_STARTED} AS start_unix_ns
        FROM device_activities e {_OF} LEFT JOIN device_names n ON n.seq = e.name
          LEFT JOIN device_collectives c ON c.seq = e.collective
        """,
        **_SHARED,
        duration_ms=("duration on the device", "ms"),
        kind="kernel, copy, fill or graph",
        name="name of the kernel, or direction of the copy",
        stream="stream of the device; -1: unknown",
        size_bytes=("bytes of copies and fills; 0: unknown", "bytes"),
        collective="collective; empty: none",
        correlation="correlation of the enqueuing call in host_operations; 0: unknown",
    ),
    View(
        "v_device_steps",
        "Steps of programs on devices; the parts of the device's time add up to the step.",
        f"""
        SELECT e.seq, {utc("e.start_unix_ns")} AS time, e.name, {ms("e.duration_ns")} AS duration_ms,
          {ms("e.compute_ns")} AS compute_ms,
          {ms("e.exposed_communication_ns")} AS exposed_communication_ms,
          {ms("e.exposed_copy_ns")} AS exposed_copy_ms, {ms("e.idle_ns")} AS idle_ms,
          {ms("(e.parts ->> 'data_loader')")} AS data_loader_ms, {ms("e.host_ns")} AS host_ms,
          e.set_aside, {_OWNER}, e.parts, e.start_unix_ns
        FROM device_steps e {_OF}
        """,
        **_SHARED,
        name="name of the step",
        compute_ms=("time in which the device computed", "ms"),
        exposed_communication_ms=("time in which it communicated, and did not compute", "ms"),
        exposed_copy_ms=("time in which it copied, and neither computed nor communicated", "ms"),
        idle_ms=("idle time", "ms"),
        data_loader_ms=("host time in the data loader while the device was idle", "ms"),
        host_ms=("duration on the host", "ms"),
        set_aside="why medians exclude it; empty: they include it",
        parts="the step's time by cause, in ns, as a JSON object",
    ),
    View(
        "v_device_idle",
        "All idle time of devices, by cause.",
        f"""
        SELECT e.seq, e.cause, {ms("e.time_ns")} AS idle_ms,
          round(e.time_ns * 1.0 / nullif(u.window_ns, 0), 6) AS share, e.name, e.python, {_OWNER}
        FROM device_waits e {_OF}
          LEFT JOIN device_uses u ON u.trace = e.trace AND u.device = e.device
        """,
        **_SHARED,
        cause="data_loader, sync, allocator, host_op, python, host_other, launch_latency, "
        "module_loading, dependency, not_recorded, no_launch or noise (gaps of less than 5 µs)",
        idle_ms=("time of all gaps together", "ms"),
        share="share of the device's window",
        name="operation of the thread that launched next; empty: unknown",
        python="Python function; empty: unknown",
    ),
    View(
        "v_device_gaps",
        "The longest idle gaps of devices, 50 per device.",
        f"""
        SELECT e.seq, {utc("e.start_unix_ns")} AS time, {ms("e.duration_ns")} AS duration_ms, e.cause,
          e.name, e.python, {_OWNER}, e.start_unix_ns
        FROM device_gaps e {_OF}
        """,
        **_SHARED,
        cause="as in v_device_idle",
        name="operation of the thread that launched next; empty: unknown",
        python="Python function; empty: unknown",
    ),
    View(
        "v_host_operations",
        "Operations of host threads, with names.",
        f"""
        SELECT e.seq, {utc(_STARTED)} AS time, {ms("e.duration_ns")} AS duration_ms,
          {_words("e.kind", HostWork)} AS kind, coalesce(n.name, '') AS name,
          coalesce(s.shapes, '') AS shapes, t.source, t.rank, h.pid, h.tid, h.name AS thread,
          e.correlation, {_STARTED} AS start_unix_ns
        FROM host_operations e {_OF} LEFT JOIN device_names n ON n.seq = e.name
          LEFT JOIN device_shapes s ON s.seq = e.shapes
          LEFT JOIN device_threads h ON h.seq = e.thread
        """,
        source=_SHARED["source"],
        rank=_SHARED["rank"],
        kind="operation, call (of the CUDA runtime or driver), annotation or python",
        name="name of the operator, call, annotation or function",
        shapes="shapes of its inputs; empty: unknown",
        correlation="of calls: the same as that of the enqueued work in v_device_activities",
    ),
)

"""The views of what devices did, as traces of other tools have it; times are device time."""

from otel_gpu.recorder.tables.columns import View
from otel_gpu.recorder.views.view_sql import ms, utc
from otel_gpu.wire.device_activity import HostWork, Work

_OWNER = "t.source, t.rank, e.device"
_OF = "JOIN device_traces t ON t.seq = e.trace"
_STARTED = "(t.base_unix_ns + e.start_ns)"
_SHARED = {
    "source": "the file that it was imported from, as it was called",
    "rank": "which process of a run it is; NULL: not known",
    "device": "index of the device as its process sees it; -1: not known",
}


def _words(column: str, words: type[Work | HostWork]) -> str:
    cases = " ".join(f"WHEN {one.value} THEN '{one.name.lower()}'" for one in words)
    return f"CASE {column} {cases} END"


DEVICE_VIEWS: tuple[View, ...] = (
    View(
        "v_device_time",
        "How a program used each device, in device time.",
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
        window_ms=("its steps, or from its first to its last activity", "ms"),
        compute_ms=("time in which it computed", "ms"),
        exposed_communication_ms=("time in which it communicated, and did not compute", "ms"),
        exposed_copy_ms=("time in which it copied, and did neither", "ms"),
        idle_ms=("time in which it did nothing; NULL: not known", "ms"),
        steps=("how many there are", "{step}"),
        verdict="what bounds the program",
        useful="share of the window in which it computed; NULL: not known",
        tool="who recorded it",
    ),
    View(
        "v_device_activities",
        "What devices did, one by one, with names.",
        f"""
        SELECT e.seq, {utc(_STARTED)} AS time, {ms("e.duration_ns")} AS duration_ms,
          {_words("e.kind", Work)} AS kind, coalesce(n.name, '') AS name, {_OWNER}, e.stream,
          e.size_bytes, coalesce(c.name, '') AS collective, e.correlation,
          {_STARTED} AS start_unix_ns
        FROM device_activities e {_OF} LEFT JOIN device_names n ON n.seq = e.name
          LEFT JOIN device_collectives c ON c.seq = e.collective
        """,
        **_SHARED,
        duration_ms=("how long it took on the device", "ms"),
        kind="kernel, copy, fill or graph",
        name="of the kernel, or from where to where a copy is",
        stream="stream of the device; -1: not known",
        size_bytes=("of copies and fills; 0: not known", "bytes"),
        collective="what several devices did together; empty: none",
        correlation="of the call that enqueued it, in host_operations; 0: not known",
    ),
    View(
        "v_device_steps",
        "Steps of programs on devices; the parts of the device's time are the step.",
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
        name="of the step",
        compute_ms=("time in which the device computed", "ms"),
        exposed_communication_ms=("time in which it communicated, and did not compute", "ms"),
        exposed_copy_ms=("time in which it copied, and did neither", "ms"),
        idle_ms=("time in which it did nothing", "ms"),
        data_loader_ms=("time of the host in the data loader while the device did nothing", "ms"),
        host_ms=("how long the host says that it took", "ms"),
        set_aside="why it counts in no median; empty: it does",
        parts="the time of the step by who had it, in ns, as a JSON object",
    ),
    View(
        "v_device_idle",
        "Why devices were idle: all of their idle time, by what they waited for.",
        f"""
        SELECT e.seq, e.cause, {ms("e.time_ns")} AS idle_ms,
          round(e.time_ns * 1.0 / nullif(u.window_ns, 0), 6) AS share, e.name, e.python, {_OWNER}
        FROM device_waits e {_OF}
          LEFT JOIN device_uses u ON u.trace = e.trace AND u.device = e.device
        """,
        **_SHARED,
        cause="data_loader, sync, allocator, host_op, python, host_other, launch_latency, "
        "module_loading, dependency, not_recorded, no_launch or noise (gaps of less than 5 µs)",
        idle_ms=("how long, of all gaps together", "ms"),
        share="of the window of the device",
        name="what the thread did that launched next; empty: not known",
        python="in which function of Python; empty: not known",
    ),
    View(
        "v_device_gaps",
        "The longest stretches in which devices did nothing, 50 of each.",
        f"""
        SELECT e.seq, {utc("e.start_unix_ns")} AS time, {ms("e.duration_ns")} AS duration_ms, e.cause,
          e.name, e.python, {_OWNER}, e.start_unix_ns
        FROM device_gaps e {_OF}
        """,
        **_SHARED,
        cause="as in v_device_idle",
        name="what the thread did that launched next; empty: not known",
        python="in which function of Python; empty: not known",
    ),
    View(
        "v_host_operations",
        "What threads of the host did meanwhile, one by one, with names.",
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
        name="of the operator, the call, the stretch or the function",
        shapes="of its inputs; empty: not known",
        correlation="of calls: what they enqueued has the same one, in v_device_activities",
    ),
)

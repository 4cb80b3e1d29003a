"""
The views of a store: tables with names instead of numbers, for queries of people.

Durations are in milliseconds. The columns that are needed most come first. Every row has the ``seq`` of
its source row, so an answer can cite it.
"""

from collections.abc import Mapping

from otel_gpu.recorder.tables.columns import Meaning, View
from otel_gpu.recorder.tables.communicators import COMMUNICATOR_VIEWS
from otel_gpu.recorder.views.devices import DEVICE_VIEWS
from otel_gpu.recorder.views.memory import MEMORY_VIEWS
from otel_gpu.recorder.views.threads import THREAD_VIEWS
from otel_gpu.recorder.views.view_sql import CHOICES as _CHOICES
from otel_gpu.recorder.views.view_sql import OWNER as _OWNER
from otel_gpu.recorder.views.view_sql import PLACE as _PLACE
from otel_gpu.recorder.views.view_sql import PROGRAM as _PROGRAM
from otel_gpu.recorder.views.view_sql import ms as _ms
from otel_gpu.recorder.views.view_sql import utc as _utc

_ERROR = "CASE e.status WHEN 0 THEN '' ELSE coalesce(n.name, 'error ' || e.status) END"
# Meanings of columns that are the same in every view.
MEANINGS: Mapping[str, Meaning] = {
    "seq": "number of the source row; cite it",
    "time": "start, UTC",
    "start_unix_ns": ("start, in Unix time", "ns"),
    "unix_ns": ("time of the reading, in Unix time", "ns"),
    "duration_ms": ("duration", "ms"),
    "blocked_ms": ("part of that in which the thread was blocked", "ms"),
    "run_queue_ms": ("part of that in which the thread was runnable and had no CPU", "ms"),
    "unexplained_ms": ("time that no cause accounts for", "ms"),
    "service": "service name of the process",
    "pid": "process id",
    "tid": "thread id",
    "thread": "name of the thread",
    "api": "the CUDA API",
    "layer": "runtime (libcudart), driver (libcuda), which it calls, nccl (libnccl) or verbs (libibverbs)",
    "reason": "why threads were blocked; empty: not blocked",
    "error": "name of the error; empty: success",
    "nested": "1: calls inside another CUDA call",
    "copy_kind": "direction of a copy; empty: no copy",
    "size_bytes": ("bytes copied, allocated or freed", "bytes"),
    "chosen_for": "why it was recorded",
    "device": "index of the device as the process sees it",
    "device_model": "model of the device; NULL: not observed",
    "severity": "high, medium or low",
    "cause": "kind of the most expensive cause; cause_kinds has advice",
    "cause_ms": ("time that it took", "ms"),
    "culprit_comm": "the culprit; NULL: none",
    "culprit_pid": "process of the culprit; NULL: none",
    "id": "id, the same in all outputs",
    "place": "place in the program: file, line and function; empty: unknown",
    "stack_id": "id of the whole stack, see stacks.id; empty: unknown",
}


def meaning_of(view: View, column: str) -> tuple[str, str]:
    """Return the meaning of a view's column, and its unit."""
    meaning = view.columns.get(column) or MEANINGS[column]
    return (meaning, "") if isinstance(meaning, str) else meaning


# Sorting by one number takes a fifth of the time of sorting by two, hence "owner" below.
VIEWS: tuple[View, ...] = (
    View(
        "v_counts",
        "All calls of each API by each process, with the number of those that have a row in calls.",
        f"""
        WITH counted AS (
          SELECT series, sum(count) AS calls, sum(sum) AS total, max(max) AS most,
            sum(size_bytes) AS size FROM aggregates GROUP BY series),
        kept AS (
          SELECT process << 16 | api AS owner, count(*) AS stored FROM calls GROUP BY owner)
        SELECT {_OWNER}, a.name AS api, a.layer AS layer, sum(g.calls) AS calls,
          sum(CASE WHEN s.status THEN g.calls ELSE 0 END) AS errors,
          {_ms("sum(g.total)")} AS total_ms,
          {_ms("sum(g.total) / max(1, sum(g.calls))")} AS mean_ms,
          {_ms("max(g.most)")} AS max_ms, sum(g.size) AS size_bytes,
          coalesce(k.stored, 0) AS stored
        FROM counted g JOIN series s ON s.series = g.series AND s.metric = 1
          JOIN processes p ON p.process = s.process LEFT JOIN apis a ON a.api = s.api
          LEFT JOIN kept k ON k.owner = s.process << 16 | s.api
        GROUP BY s.process, s.api
        """,
        errors=("number of failed calls", "{call}"),
        total_ms=("sum of their durations", "ms"),
        mean_ms=("their mean duration", "ms"),
        size_bytes=("bytes of the successful ones", "bytes"),
        calls=("exact number of calls, including those that are not stored", "{call}"),
        max_ms=("longest call; NULL: it was before the oldest chunk", "ms"),
        stored=("number of rows in calls", "{row}"),
    ),
    View(
        "v_calls",
        "Recorded calls, with names.",
        f"""
        SELECT e.seq, {_utc("e.start_unix_ns")} AS time, {_ms("e.duration_ns")} AS duration_ms,
          a.name AS api, {_OWNER}, e.tid, e.comm AS thread, {_ms("e.blocked_ns")} AS blocked_ms,
          {_ms("e.run_queue_ns")} AS run_queue_ms, {_ERROR} AS error, e.size_bytes,
          coalesce(k.name, '') AS copy_kind, {_CHOICES} AS chosen_for, a.layer AS layer,
          d.cuda_index AS device, d.model AS device_model, {_PLACE}, e.start_unix_ns
        FROM calls e LEFT JOIN processes p ON p.process = e.process
          LEFT JOIN apis a ON a.api = e.api {_PROGRAM}
          LEFT JOIN errors n ON n.layer = a.layer AND n.status = e.status
          LEFT JOIN copy_kinds k ON k.copy_kind = e.copy_kind AND e.copy_kind <> 255
          LEFT JOIN devices d ON d.cuda_device = e.cuda_device
        """,
        duration_ms=("host time inside the call", "ms"),
    ),
    View(
        "v_launches",
        "Recorded launches of kernels with a known name.",
        f"""
        SELECT e.seq, {_utc("e.start_unix_ns")} AS time, {_ms("e.duration_ns")} AS duration_ms,
          json_extract(l.frames, '$[0]') AS kernel, a.name AS api, {_OWNER}, e.tid,
          e.comm AS thread, {_PLACE}, e.start_unix_ns
        FROM launches n JOIN calls e ON e.seq = n.seq LEFT JOIN stacks l ON l.stack = n.kernel
          LEFT JOIN processes p ON p.process = e.process LEFT JOIN apis a ON a.api = e.api
          {_PROGRAM}
        """,
        duration_ms=("host time to enqueue it", "ms"),
        kernel="demangled name",
    ),
    *THREAD_VIEWS,
    View(
        "v_series",
        "Counts of each series, reading by reading, with names.",
        f"""
        SELECT g.seq, {_utc("r.unix_ns")} AS time, {_OWNER}, m.name AS metric,
          CASE s.metric WHEN 1 THEN a.name WHEN 3 THEN w.name WHEN 4 THEN w.name ELSE '' END AS what,
          CASE WHEN s.metric <> 1 OR s.status = 0 THEN ''
            ELSE coalesce(n.name, 'error ' || s.status) END AS error,
          s.nested, coalesce(k.name, '') AS copy_kind, g.count, g.sum, m.unit, g.size_bytes,
          g.max, g.buckets, r.unix_ns
        FROM aggregates g LEFT JOIN readings r ON r.seq = g.seq
          LEFT JOIN series s ON s.series = g.series
          LEFT JOIN processes p ON p.process = s.process
          LEFT JOIN metrics m ON m.metric = s.metric LEFT JOIN apis a ON a.api = s.api
          LEFT JOIN switch_types w ON w.switch_type = s.api
          LEFT JOIN errors n ON n.layer = a.layer AND n.status = s.status
          LEFT JOIN copy_kinds k ON k.copy_kind = s.copy_kind AND s.copy_kind <> 255
        """,
        time="time of the reading, UTC",
        metric="name of the metric",
        count=("number since the previous reading", "{event}"),
        unit="unit of sum and max",
        max=("largest value so far, if it is new; else NULL", "see unit"),
        buckets="counts by number of the bucket, as JSON; see buckets",
        what="the API, or the switch type of the threads",
        sum=("sum of durations or sizes since the previous reading", "see unit"),
    ),
    *MEMORY_VIEWS,
    *DEVICE_VIEWS,
    *COMMUNICATOR_VIEWS,
    View(
        "v_chains",
        "Causal chains with their most expensive cause.",
        f"""
        SELECT e.seq, {_utc("e.start_unix_ns")} AS time, e.severity, e.kind, e.api,
          {_ms("e.duration_ns")} AS duration_ms, {_ms("e.excess_ns")} AS excess_ms,
          c.kind AS cause, {_ms("c.time_ns")} AS cause_ms, round(c.share, 4) AS cause_share,
          c.culprit_comm, c.culprit_pid, {_ms("e.unexplained_ns")} AS unexplained_ms,
          {_OWNER}, e.tid, e.comm AS thread, {_PLACE}, e.id, e.trace_id, e.span_id,
          e.start_unix_ns
        FROM chains e LEFT JOIN processes p ON p.process = e.process
          LEFT JOIN causes c ON c.seq = e.seq AND c.cause = 0 {_PROGRAM}
        """,
        kind="slow_call, slow_gap, hung_call, failed_call, killed_call, out_of_memory, device_fault, network_event or "
        "hung_collective",
        api="the call, or the call that a gap delayed",
        cause_share="share of the duration that it took, 0 to 1",
        trace_id="id of the span that shows it",
        span_id="id of the span that shows it",
        excess_ms=("time above the median", "ms"),
    ),
    View(
        "v_incidents",
        "Incidents with their most expensive cause.",
        f"""
        SELECT e.seq, {_utc("e.start_unix_ns")} AS time, e.severity,
          {_ms("e.end_unix_ns - e.start_unix_ns")} AS length_ms, {_ms("e.lost_ns")} AS lost_ms,
          e.effects, e.chronic, e.pid, c.kind AS cause, {_ms("c.time_ns")} AS cause_ms,
          c.culprit_comm, c.culprit_pid, e.advice, e.id, e.start_unix_ns
        FROM incidents e LEFT JOIN causes c ON c.seq = e.seq AND c.cause = 0
        """,
        length_ms=("from its start to its end", "ms"),
        lost_ms=("time lost to the causes", "ms"),
        effects=("number of its chains", "{chain}"),
        chronic="1: covers all time of the launching threads, not only effects",
        advice="what to do, as a JSON list",
    ),
    View(
        "v_losses",
        "All losses, in the kernel side, the agent and the store.",
        """
        SELECT 'kernel side' AS place, reason, sum(most) AS count
        FROM (
          SELECT substr(c.name, 14) AS reason, max(c.value) AS most
          FROM counters c WHERE c.name GLOB 'counter_lost_*'
          GROUP BY c.name, (SELECT max(capture) FROM captures WHERE captures.seq <= c.seq)
        ) GROUP BY reason HAVING sum(most) > 0
        UNION ALL SELECT 'agent', reason, sum(most) FROM (
          SELECT CASE f.key WHEN 'errors' THEN 'error_' WHEN 'skipped' THEN 'skipped_' ELSE '' END
            || e.key AS reason, max(e.value) AS most
          FROM statuses s, json_each(s.info) f, json_each(f.value) e
          WHERE f.key IN ('errors', 'skipped', 'devices', 'preload', 'files')
          GROUP BY f.key, e.key, (SELECT max(capture) FROM captures WHERE captures.seq <= s.seq)
          UNION ALL SELECT 'still_running', max(s.info ->> '$.still_running') FROM statuses s
          GROUP BY (SELECT max(capture) FROM captures WHERE captures.seq <= s.seq)
        ) GROUP BY reason HAVING sum(most) > 0
        UNION ALL SELECT 'store', reason, rows FROM losses WHERE rows > 0
        """,
        place="where it was lost",
        reason="reason",
        count="number of events or rows",
    ),
    View(
        "v_steps",
        "Steps of threads, marked by their program or detected by the agent.",
        f"""
        SELECT e.seq, {_utc("e.start_unix_ns")} AS time, {_ms("e.duration_ns")} AS duration_ms,
          e.number, {_ms("e.loader_wait_ns")} AS loader_wait_ms,
          CASE e.kind WHEN 1 THEN 'training' WHEN 2 THEN 'evaluation' WHEN 3 THEN 'prefill'
            WHEN 4 THEN 'decode' ELSE '' END AS kind,
          CASE e.source WHEN 1 THEN 'program' ELSE 'agent' END AS source, e.confidence_percent,
          e.name, {_OWNER}, e.tid, e.comm AS thread, lower(hex(e.trace_id)) AS trace_id,
          lower(hex(e.span_id)) AS span_id, e.start_unix_ns
        FROM steps e LEFT JOIN processes p ON p.process = e.process
        """,
        number="number of the step, from the program; of a detected step from 1",
        loader_wait_ms=("time waiting for the data loader, as the program reports it", "ms"),
        kind="training, evaluation, prefill, decode; empty: unknown",
        source="program: it marked the step; agent: detected from repeating calls",
        confidence_percent=("confidence that the step exists", "%"),
        name="name in the program",
        trace_id="id of the program's own span; empty: none",
        span_id="id of the program's own span; empty: none",
    ),
    View(
        "v_device_readings",
        "Readings of the host's devices, one by one.",
        f"""
        SELECT e.seq, {_utc("e.unix_ns")} AS time, json_extract(g.value, '$.index') AS device,
          json_extract(g.value, '$.uuid') AS uuid, json_extract(g.value, '$.model') AS model,
          json_extract(g.value, '$.is_lost') AS is_lost,
          json_extract(g.value, '$.utilization.general') AS utilization_percent,
          json_extract(g.value, '$.memory_bytes.usage') AS memory_bytes,
          json_extract(g.value, '$.memory_bytes.limit') AS memory_limit_bytes,
          json_extract(g.value, '$.power_mw') / 1e3 AS power_w,
          json_extract(g.value, '$.temperature_c') AS temperature_c,
          json_extract(g.value, '$.clock_mhz') AS clock_mhz,
          json_extract(g.value, '$.clock_limit_mhz') AS clock_limit_mhz, e.unix_ns
        FROM device_readings e, json_each(e.info, '$.gpus') g
        """,
        time="time of the reading, UTC",
        device="number of the device, as NVML counts them",
        uuid="UUID, as DCGM prints it",
        model="model of the device",
        is_lost="1: it fell off its bus; figures are then missing",
        utilization_percent=(
            "share of the driver's last sampling period in which any kernel ran",
            "%",
        ),
        memory_bytes=("memory in use by all processes", "By"),
        memory_limit_bytes=("total memory", "By"),
        power_w=("power draw", "W"),
        temperature_c=("temperature of the device", "Cel"),
        clock_mhz=("clock of the streaming multiprocessors", "MHz"),
        clock_limit_mhz=("maximum of this clock", "MHz"),
    ),
    View(
        "v_device_faults",
        "Errors of devices (XIDs), with the process that caused them.",
        f"""
        SELECT e.seq, {_utc("e.unix_ns")} AS time, e.xid, e.bus_id, {_OWNER}, e.reported_pid, e.reported_name,
          e.times, e.message, e.reported_by, e.unix_ns
        FROM device_faults e LEFT JOIN processes p ON p.process = e.process
        """,
        time="time of the reading, UTC",
        xid="NVIDIA's error number (XID)",
        bus_id="PCI address: domain, bus and device",
        reported_pid="process whose work failed, in the initial pid namespace; 0: not reported",
        reported_name="name of that process, which it chose itself",
        times="number of equal messages of the driver within a second",
        message="rest of the driver's message",
        reported_by="kernel_log or nvml; NVML does not name the process",
        unix_ns=("time of the reading, in Unix time", "ns"),
    ),
    View(
        "v_fabric_readings",
        "Counters of the ports of network adapters that do RDMA since their start, reading by reading.",
        f"""
        SELECT e.seq, {_utc("e.unix_ns")} AS time, json_extract(p.value, '$.adapter') AS adapter,
          json_extract(p.value, '$.port') AS port, json_extract(p.value, '$.state') AS state,
          json_extract(p.value, '$.link_layer') AS link_layer, c.key AS counter, c.value AS value,
          e.unix_ns
        FROM fabric_readings e, json_each(e.info, '$.ports') p,
          json_each(p.value, '$.counters') c
        """,
        time="time of the reading, UTC",
        adapter="name of the adapter",
        port="number of the port",
        state="state of the port; active: usable",
        link_layer="InfiniBand, or Ethernet for RoCE",
        counter="the driver's name of the counter",
        value="value; less than before: the adapter was reset",
    ),
    View(
        "v_pressure",
        "The load of the host, reading by reading.",
        f"""
        SELECT e.seq, {_utc("e.unix_ns")} AS time, json_extract(e.info, '$.load1') AS load1,
          json_extract(e.info, '$.cpus') AS cpus,
          json_extract(e.info, '$.psi.cpu.some_avg10') AS cpu_some_percent,
          json_extract(e.info, '$.psi.io.some_avg10') AS io_some_percent,
          json_extract(e.info, '$.psi.memory.some_avg10') AS memory_some_percent, e.unix_ns
        FROM pressure e
        """,
        time="time of the reading, UTC",
        cpus="CPUs of the host",
        load1="load average of one minute",
        cpu_some_percent=("share of 10 s in which some thread waited for a CPU", "%"),
        io_some_percent=("share of 10 s in which some thread waited for I/O", "%"),
        memory_some_percent=("share of 10 s in which some thread waited for memory", "%"),
    ),
)

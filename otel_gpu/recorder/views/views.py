"""
The views: the tables with names instead of numbers, for people and their questions.

Durations are in milliseconds and begin with what is asked most. Every row keeps its
``seq``, so that an answer can be cited.
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
# What columns say whose names mean the same in every view.
MEANINGS: Mapping[str, Meaning] = {
    "seq": "number of the row that this is made of; cite it",
    "time": "when it began, UTC",
    "start_unix_ns": ("when it began, in Unix time", "ns"),
    "unix_ns": ("when it was read, in Unix time", "ns"),
    "duration_ms": ("how long it took", "ms"),
    "blocked_ms": ("how long of that the thread waited for something", "ms"),
    "run_queue_ms": ("how long of that the thread was ready and had no CPU", "ms"),
    "unexplained_ms": ("time that no cause accounts for", "ms"),
    "service": "name of the process in backends",
    "pid": "process id",
    "tid": "thread id",
    "thread": "name of the thread",
    "api": "the CUDA API",
    "layer": "runtime (libcudart), driver (libcuda), which it calls, nccl (libnccl) or verbs (libibverbs)",
    "reason": "what threads were blocked on; empty: they were not",
    "error": "empty: it succeeded",
    "nested": "1: calls inside another CUDA call",
    "copy_kind": "direction of a copy; empty: it is none",
    "size_bytes": ("bytes copied, allocated or freed", "bytes"),
    "chosen_for": "why it was kept",
    "device": "index of the device as the process sees it",
    "device_model": "its name; NULL: not observed",
    "severity": "high, medium or low",
    "cause": "kind of the cause that cost most; see cause_kinds for what to do",
    "cause_ms": ("time that it took", "ms"),
    "culprit_comm": "the thread to blame; NULL: nobody is",
    "culprit_pid": "its process; NULL: nobody is",
    "id": "name, the same wherever it is shown",
    "place": "where in its program it was: file, line and function; empty: not known",
    "stack_id": "its whole stack, see stacks.id; empty: not known",
}


def meaning_of(view: View, column: str) -> tuple[str, str]:
    """Return what a column of a view means, and its unit."""
    meaning = view.columns.get(column) or MEANINGS[column]
    return (meaning, "") if isinstance(meaning, str) else meaning


# Sorting by one number takes a fifth of the time of sorting by two: hence "owner" below.
VIEWS: tuple[View, ...] = (
    View(
        "v_counts",
        "True counts beside stored counts: all calls of each API by each process, and how many "
        "rows of calls show some of them.",
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
        errors=("how many of them failed", "{call}"),
        total_ms=("their durations together", "ms"),
        mean_ms=("their mean duration", "ms"),
        size_bytes=("bytes of the successful ones", "bytes"),
        calls=("exact, also where few are stored", "{call}"),
        max_ms=("longest call; NULL: it was before the oldest chunk", "ms"),
        stored=("how many rows of calls there are", "{row}"),
    ),
    View(
        "v_calls",
        "Calls that were kept, with names.",
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
        "Launches that were kept, with the name of the kernel where it is known.",
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
        "What each series counted, reading by reading, with names.",
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
        time="when it was read, UTC",
        metric="what was counted",
        count=("how many since the reading before", "{event}"),
        unit="of sum and max",
        max=("the largest one so far, where it is new; else NULL", "as unit says"),
        buckets="counts by number of the bucket, as JSON; see buckets",
        what="the API, or how threads left their CPU",
        sum=("of durations or sizes since the reading before", "as unit says"),
    ),
    *MEMORY_VIEWS,
    *DEVICE_VIEWS,
    *COMMUNICATOR_VIEWS,
    View(
        "v_chains",
        "Causal chains with the cause that cost most.",
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
        cause_share="part of the duration that it took, 0 to 1",
        trace_id="of the span that shows it",
        span_id="of the span that shows it",
        excess_ms=("how much longer than usual", "ms"),
    ),
    View(
        "v_incidents",
        "Incidents with the cause that cost most.",
        f"""
        SELECT e.seq, {_utc("e.start_unix_ns")} AS time, e.severity,
          {_ms("e.end_unix_ns - e.start_unix_ns")} AS length_ms, {_ms("e.lost_ns")} AS lost_ms,
          e.effects, e.chronic, e.pid, c.kind AS cause, {_ms("c.time_ns")} AS cause_ms,
          c.culprit_comm, c.culprit_pid, e.advice, e.id, e.start_unix_ns
        FROM incidents e LEFT JOIN causes c ON c.seq = e.seq AND c.cause = 0
        """,
        length_ms=("from its beginning to its end", "ms"),
        lost_ms=("time lost to the causes", "ms"),
        effects=("how many chains it is made of", "{chain}"),
        chronic="1: of all time of feeding threads, not only of effects",
        advice="what to do, as a JSON list",
    ),
    View(
        "v_losses",
        "Everything that was lost, in the kernel side and on the way here.",
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
        reason="why",
        count="how many events or rows",
    ),
    View(
        "v_steps",
        "Steps of threads, as their program says or as they were found.",
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
        number="which one it is, as the program counts; of one that was found, from 1",
        loader_wait_ms=("of it for the data loader, as the program says", "ms"),
        kind="training, evaluation, prefill, decode; empty: not known",
        source="program: it says so itself; agent: its calls repeat themselves",
        confidence_percent=("how sure that is", "%"),
        name="what the program calls it",
        trace_id="of the program's own span; empty: it has none",
        span_id="of the program's own span; empty: it has none",
    ),
    View(
        "v_device_readings",
        "What the devices of the host said of themselves, reading by reading.",
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
        time="when it was read, UTC",
        device="number of the device, as NVML counts them",
        uuid="its name, as DCGM prints it",
        model="what it is",
        is_lost="1: it fell off its bus; figures are missing then",
        utilization_percent=("of the last moments, in which any kernel ran", "%"),
        memory_bytes=("in use, by whomever", "By"),
        memory_limit_bytes=("of all", "By"),
        power_w=("that it draws", "W"),
        temperature_c=("of the device", "Cel"),
        clock_mhz=("of the streaming multiprocessors", "MHz"),
        clock_limit_mhz=("that this can be", "MHz"),
    ),
    View(
        "v_device_faults",
        "Errors of devices (XIDs), with whose work it was.",
        f"""
        SELECT e.seq, {_utc("e.unix_ns")} AS time, e.xid, e.bus_id, {_OWNER}, e.said_pid, e.said_name,
          e.times, e.message, e.told_by, e.unix_ns
        FROM device_faults e LEFT JOIN processes p ON p.process = e.process
        """,
        time="when it was read, UTC",
        xid="NVIDIA's number of the kind of error",
        bus_id="where the device is: domain, bus and device of PCI",
        said_pid="whose work it was, in the initial pid namespace; 0: not said",
        said_name="name of that process, which it chose itself",
        times="how often the driver said the same within a second",
        message="what else the driver said",
        told_by="kernel_log or nvml, which does not say whose work it was",
        unix_ns=("when it was read, in Unix time", "ns"),
    ),
    View(
        "v_fabric_readings",
        "What the ports of network adapters that do RDMA counted since they began, reading by reading.",
        f"""
        SELECT e.seq, {_utc("e.unix_ns")} AS time, json_extract(p.value, '$.adapter') AS adapter,
          json_extract(p.value, '$.port') AS port, json_extract(p.value, '$.state') AS state,
          json_extract(p.value, '$.link_layer') AS link_layer, c.key AS counter, c.value AS value,
          e.unix_ns
        FROM fabric_readings e, json_each(e.info, '$.ports') p,
          json_each(p.value, '$.counters') c
        """,
        time="when it was read, UTC",
        adapter="name of the adapter",
        port="number of the port",
        state="active: it can be used",
        link_layer="InfiniBand, or Ethernet for RoCE",
        counter="the driver's name of it",
        value="what it stands at; less than before: the adapter was reset",
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
        time="when it was read, UTC",
        cpus="CPUs of the host",
        load1="load average of one minute",
        cpu_some_percent=("of 10 s: some thread waited for a CPU", "%"),
        io_some_percent=("of 10 s: some thread waited for I/O", "%"),
        memory_some_percent=("of 10 s: some thread waited for memory", "%"),
    ),
)

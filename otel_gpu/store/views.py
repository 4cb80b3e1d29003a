"""
The views: the tables with names instead of numbers, for people and their questions.

Durations are in milliseconds and begin with what is asked most. Every row keeps its
``seq``, so that an answer can be cited.
"""

from collections.abc import Mapping

from otel_gpu import wire
from otel_gpu.store.columns import Meaning, View
from otel_gpu.store.device_views import DEVICE_VIEWS
from otel_gpu.store.memory_tables import TOTALS_MEANINGS
from otel_gpu.store.view_sql import ms as _ms
from otel_gpu.store.view_sql import utc as _utc

_OWNER = "p.service_name AS service, p.pid AS pid"
_ERROR = "CASE e.status WHEN 0 THEN '' ELSE coalesce(n.name, 'error ' || e.status) END"
_CHOICES = (
    "(SELECT group_concat(name, ', ') FROM (SELECT name FROM choices WHERE e.choices & choice "
    "ORDER BY choice))"
)

_RESOURCE = "w.waited_for ->> 'kind' || iif(w.waited_for ->> 'name' = '', '', ' ' || (w.waited_for ->> 'name'))"
_PLACE = "coalesce(u.place, '') AS place, coalesce(u.id, '') AS stack_id"
_PROGRAM = "LEFT JOIN stacks u ON u.stack = e.program_stack"

_SHOWN_TOTALS = (
    *("allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "peak_reserved_bytes"),
    *("allocations", "frees", "handed_out_bytes", "unsampled_bytes", "withheld_bytes"),
)

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
    "layer": "runtime (libcudart) or driver (libcuda), which it calls",
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
    View(
        "v_stalls",
        "Times off the CPU, with names.",
        f"""
        SELECT e.seq, {_utc("e.start_unix_ns")} AS time, {_ms("e.duration_ns")} AS duration_ms,
          {_ms("e.blocked_ns")} AS blocked_ms, e.reason, {_ms("e.run_queue_ns")} AS run_queue_ms,
          {_OWNER}, e.tid, e.comm AS thread, coalesce(a.name, '') AS in_call,
          e.culprit_comm AS cpu_was_with, e.culprit_pid,
          e.flags & {wire.STALL_IDLE_CPU} <> 0 AS cpu_was_idle, e.waker_comm AS woken_by,
          e.waker_pid, coalesce(json_extract(e.waited_for, '$.kind'), '') AS waited_for,
          coalesce(json_extract(e.waited_for, '$.name'), '') AS waited_for_name,
          coalesce(t.frames, '[]') AS functions, {_PLACE}, e.start_unix_ns
        FROM stalls e LEFT JOIN processes p ON p.process = e.process
          LEFT JOIN apis a ON a.api = e.call_api LEFT JOIN stacks t ON t.stack = e.stack
          {_PROGRAM}
        """,
        culprit_pid="its process; 0: idle or unknown",
        waker_pid="its process; 0: none, or an interrupt",
        in_call="the CUDA call that it was in; empty: in none",
        cpu_was_with="the thread that had the CPU meanwhile",
        cpu_was_idle="1: no thread had the CPU that it waited for",
        woken_by="the thread that ended the wait",
        waited_for="what its system call was about: file, tcp, pipe, ...; empty: unknown",
        waited_for_name="its path, or the address and port of the peer",
        functions="kernel stack, innermost first",
    ),
    View(
        "v_gaps",
        "Gaps between two CUDA calls of a thread that were kept, with names.",
        f"""
        SELECT e.seq, {_utc("e.start_unix_ns")} AS time, {_ms("e.duration_ns")} AS duration_ms,
          {_ms("e.blocked_ns")} AS blocked_ms, {_ms("e.run_queue_ns")} AS run_queue_ms,
          before.name AS after_call, after.name AS before_call, {_OWNER}, e.tid,
          e.comm AS thread, {_CHOICES} AS chosen_for, e.start_unix_ns
        FROM gaps e LEFT JOIN processes p ON p.process = e.process
          LEFT JOIN apis before ON before.api = e.previous_api
          LEFT JOIN apis after ON after.api = e.next_api
        """,
        after_call="the CUDA call before it",
        before_call="the CUDA call that it delayed",
    ),
    View(
        "v_forks",
        "Forks, with names.",
        f"""
        SELECT e.seq, {_utc("e.start_unix_ns")} AS time, {_ms("e.duration_ns")} AS duration_ms,
          {_OWNER}, e.tid, c.service_name AS child_service, e.child_pid, e.start_unix_ns
        FROM forks e LEFT JOIN processes p ON p.process = e.process
          LEFT JOIN processes c ON c.process = e.child
        """,
        child_service="name of the new process in backends",
        child_pid="its process id",
    ),
    View(
        "v_open_calls",
        "Calls that had not returned when they were looked at, with names.",
        f"""
        SELECT e.seq, {_utc("e.start_unix_ns")} AS time, {_ms("e.age_ns")} AS age_ms,
          a.name AS api, {_OWNER}, e.tid, e.comm AS thread, {_ms("e.blocked_ns")} AS blocked_ms,
          {_utc("e.seen_unix_ns")} AS seen, {_PLACE}
        FROM open_calls e LEFT JOIN processes p ON p.process = e.process
          LEFT JOIN apis a ON a.api = e.api {_PROGRAM}
        """,
        age_ms=("for how long it was open by then", "ms"),
        seen="when it was looked at, UTC",
    ),
    View(
        "v_samples",
        "Where threads were that were on a CPU, sample by sample, with names.",
        f"""
        SELECT e.seq, {_utc("e.unix_ns")} AS time, {_ms("e.weight_ns")} AS weight_ms, {_OWNER},
          e.tid, e.comm AS thread, {_PLACE}, c.name AS context,
          CASE WHEN e.context IN ({wire.CONTEXT_CALL}, {wire.CONTEXT_SYNCHRONIZE})
            THEN coalesce(a.name, '') ELSE '' END AS in_call,
          coalesce(t.frames, '[]') AS functions, e.cpu, e.unix_ns
        FROM samples e LEFT JOIN processes p ON p.process = e.process
          LEFT JOIN apis a ON a.api = e.api LEFT JOIN contexts c ON c.context = e.context
          LEFT JOIN stacks t ON t.stack = e.stack {_PROGRAM}
        """,
        time="when the clock of its CPU ticked, UTC",
        weight_ms=("time on CPUs that it stands for: add these up, do not count rows", "ms"),
        context="where in its work the thread was; see contexts. NULL: not known",
        in_call="the outermost CUDA call that it was in; empty: in none",
        functions="kernel stack, innermost first; empty: it was in user space, or not known",
        cpu="CPU that it ran on",
    ),
    View(
        "v_thread_times",
        "Where the time of threads went, reading by reading, with names.",
        f"""
        SELECT e.seq, {_utc("r.unix_ns")} AS time, {_OWNER}, s.name AS state, c.name AS context,
          e.reason, {_ms("e.time_ns")} AS time_ms, {_ms("e.ended_ns")} AS ended_ms, e.count,
          coalesce(a.name, '') AS api, w.who_comm, w.who_pid, w.end_comm, w.end_pid,
          coalesce(d.name, '') AS end_state, coalesce(w.end_reason, '') AS end_reason,
          coalesce({_RESOURCE}, '') AS waited_for, r.unix_ns
        FROM thread_times e LEFT JOIN readings r ON r.seq = e.seq
          LEFT JOIN processes p ON p.process = e.process
          LEFT JOIN states s ON s.state = e.state LEFT JOIN contexts c ON c.context = e.context
          LEFT JOIN waits w ON w.wait = e.wait LEFT JOIN apis a ON a.api = w.api
          LEFT JOIN states d ON d.state = w.end_state
        """,
        time="when it was read, UTC",
        state="what the threads did",
        context="where in their work they were",
        time_ms=("time of all threads since the reading before", "ms"),
        ended_ms=("of waits that ended since then: the whole of each", "ms"),
        api="the CUDA call that was open, or the one before the gap; empty: none",
        who_comm="who had the CPU, or ended the wait; NULL: nobody, or not known",
        who_pid="its process; NULL: as who_comm",
        end_comm="the last of those who waited for each other; NULL: not known",
        end_pid="its process; NULL: not known",
        end_state="what that one did meanwhile; empty: not known",
        end_reason="what that one was blocked on; empty: it was not",
        waited_for="kind and name of what was waited for; empty: not known",
        count=("how many intervals", "{interval}"),
    ),
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
    View(
        "v_memory",
        "What allocators of frameworks said of devices, reading by reading, with names.",
        f"""
        SELECT e.seq, {_utc("e.unix_ns")} AS time, {_OWNER}, e.device, d.model AS device_model,
          e.allocated_bytes, e.reserved_bytes, e.peak_allocated_bytes, e.peak_reserved_bytes,
          max(0, e.before_bytes - e.before_freed_bytes) AS before_bytes,
          round(1 - e.unequal * 1.0 / nullif(e.allocations + e.frees, 0), 6) AS coverage,
          e.allocations, e.frees, e.handed_out_bytes, e.unsampled_bytes, e.withheld_bytes, e.unix_ns
        FROM memory_readings e LEFT JOIN processes p ON p.process = e.process
          LEFT JOIN devices d ON d.cuda_device = e.cuda_device
        WHERE e.allocated_bytes IS NOT NULL
        """,
        time="when it was read, UTC",
        before_bytes=("in use since before the attach", "bytes"),
        coverage="share of reports whose total was what had been seen. NULL: not known",
        **{name: TOTALS_MEANINGS[name] for name in _SHOWN_TOTALS},
    ),
    View(
        "v_memory_holders",
        "What each line of a program held when it was read last, and ever allocated, with names.",
        f"""
        WITH latest AS (
          SELECT r.process, r.device, h.place_key, max(h.seq) AS seq
          FROM memory_holders h JOIN memory_readings r ON r.seq = h.seq GROUP BY 1, 2, 3)
        SELECT l.seq, {_utc("r.unix_ns")} AS time, {_OWNER}, l.device, {_PLACE},
          sum(e.live_bytes) AS live_bytes, sum(e.live_blocks) AS live_blocks,
          sum(e.allocated_bytes) AS allocated_bytes, sum(e.allocated_blocks) AS allocated_blocks,
          r.unix_ns
        FROM latest l JOIN memory_holders e ON e.seq = l.seq AND e.place_key = l.place_key
          JOIN memory_readings r ON r.seq = l.seq
          LEFT JOIN processes p ON p.process = l.process {_PROGRAM}
        GROUP BY l.process, l.device, u.stack
        """,
        time="when it was read, UTC",
        live_bytes=("in use; sampled blocks count as what they stand for", "bytes"),
        live_blocks=("how many blocks that is, about", "{block}"),
        allocated_bytes=("ever allocated there", "bytes"),
        allocated_blocks=("how many blocks that were, about", "{block}"),
    ),
    View(
        "v_out_of_memory",
        "Requests for device memory that failed, with names.",
        f"""
        SELECT e.seq, {_utc("e.unix_ns")} AS time, {_OWNER}, e.tid, e.comm AS thread, e.asked_bytes,
          e.device_free_bytes, e.allocated_bytes, e.reserved_bytes, e.device_total_bytes, e.device,
          coalesce(a.name, '') AS api, {_PLACE}, e.unix_ns
        FROM out_of_memory e LEFT JOIN processes p ON p.process = e.process
          LEFT JOIN apis a ON a.api = e.api AND e.api <> 0 {_PROGRAM}
        """,
        time="when it failed, UTC",
        unix_ns=("when it failed, in Unix time", "ns"),
        api="the call that failed; empty: the allocator said so",
        asked_bytes=("what was asked for", "bytes"),
        allocated_bytes=("in use then", "bytes"),
        reserved_bytes=("taken from the device then", "bytes"),
        device_free_bytes=("what the device had free", "bytes"),
        device_total_bytes=("what the device has; 0: not known", "bytes"),
    ),
    *DEVICE_VIEWS,
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
        kind="slow_call, slow_gap, hung_call, failed_call or out_of_memory",
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
          SELECT 'error_' || e.key AS reason, max(e.value) AS most
          FROM statuses s, json_each(s.info, '$.errors') e
          GROUP BY e.key, (SELECT max(capture) FROM captures WHERE captures.seq <= s.seq)
        ) GROUP BY reason
        UNION ALL SELECT 'store', reason, rows FROM losses WHERE rows > 0
        """,
        place="where it was lost",
        reason="why",
        count="how many events or rows",
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

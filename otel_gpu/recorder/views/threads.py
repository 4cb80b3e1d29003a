"""The views of threads: stalls, gaps, forks, open calls, samples and times."""

from otel_gpu import wire
from otel_gpu.recorder.tables.columns import View
from otel_gpu.recorder.views.view_sql import CHOICES, OWNER, PLACE, PROGRAM, ms, utc

_RESOURCE = "w.waited_for ->> 'kind' || iif(w.waited_for ->> 'name' = '', '', ' ' || (w.waited_for ->> 'name'))"

THREAD_VIEWS: tuple[View, ...] = (
    View(
        "v_stalls",
        "Intervals off the CPU, with names.",
        f"""
        SELECT e.seq, {utc("e.start_unix_ns")} AS time, {ms("e.duration_ns")} AS duration_ms,
          {ms("e.blocked_ns")} AS blocked_ms, e.reason, {ms("e.run_queue_ns")} AS run_queue_ms,
          {OWNER}, e.tid, e.comm AS thread, coalesce(a.name, '') AS in_call,
          e.culprit_comm AS cpu_was_with, e.culprit_pid,
          e.flags & {wire.STALL_IDLE_CPU} <> 0 AS cpu_was_idle, e.waker_comm AS woken_by,
          e.waker_pid, coalesce(json_extract(e.waited_for, '$.kind'), '') AS waited_for,
          coalesce(json_extract(e.waited_for, '$.name'), '') AS waited_for_name,
          coalesce(t.frames, '[]') AS functions, {PLACE}, e.start_unix_ns
        FROM stalls e LEFT JOIN processes p ON p.process = e.process
          LEFT JOIN apis a ON a.api = e.call_api LEFT JOIN stacks t ON t.stack = e.stack
          {PROGRAM}
        """,
        culprit_pid="its process; 0: idle or unknown",
        waker_pid="its process; 0: none, or an interrupt",
        in_call="the CUDA call that it was in; empty: in none",
        cpu_was_with="thread that had the CPU during the wait",
        cpu_was_idle="1: no thread had the CPU that it waited for",
        woken_by="the thread that ended the wait",
        waited_for="kind of file of its system call: file, tcp, pipe, ...; empty: unknown",
        waited_for_name="its path, or the address and port of the peer",
        functions="kernel stack, innermost first",
    ),
    View(
        "v_gaps",
        "Recorded gaps between two CUDA calls of a thread, with names.",
        f"""
        SELECT e.seq, {utc("e.start_unix_ns")} AS time, {ms("e.duration_ns")} AS duration_ms,
          {ms("e.blocked_ns")} AS blocked_ms, {ms("e.run_queue_ns")} AS run_queue_ms,
          before.name AS after_call, after.name AS before_call, {OWNER}, e.tid,
          e.comm AS thread, {CHOICES} AS chosen_for, e.start_unix_ns
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
        SELECT e.seq, {utc("e.start_unix_ns")} AS time, {ms("e.duration_ns")} AS duration_ms,
          {OWNER}, e.tid, c.service_name AS child_service, e.child_pid, e.start_unix_ns
        FROM forks e LEFT JOIN processes p ON p.process = e.process
          LEFT JOIN processes c ON c.process = e.child
        """,
        child_service="service name of the new process",
        child_pid="its process id",
    ),
    View(
        "v_open_calls",
        "Calls that had not returned when they were reported, with names.",
        f"""
        SELECT e.seq, {utc("e.start_unix_ns")} AS time, {ms("e.age_ns")} AS age_ms,
          a.name AS api, {OWNER}, e.tid, e.comm AS thread, {ms("e.blocked_ns")} AS blocked_ms,
          {utc("e.seen_unix_ns")} AS seen, {PLACE}
        FROM open_calls e LEFT JOIN processes p ON p.process = e.process
          LEFT JOIN apis a ON a.api = e.api {PROGRAM}
        """,
        age_ms=("age at that time", "ms"),
        seen="time of the report, UTC",
    ),
    View(
        "v_samples",
        "Samples of threads on a CPU, with names.",
        f"""
        SELECT e.seq, {utc("e.unix_ns")} AS time, {ms("e.weight_ns")} AS weight_ms, {OWNER},
          e.tid, e.comm AS thread, {PLACE}, c.name AS context,
          CASE WHEN e.context IN ({wire.CONTEXT_CALL}, {wire.CONTEXT_SYNCHRONIZE})
            THEN coalesce(a.name, '') ELSE '' END AS in_call,
          coalesce(t.frames, '[]') AS functions, e.cpu, e.unix_ns
        FROM samples e LEFT JOIN processes p ON p.process = e.process
          LEFT JOIN apis a ON a.api = e.api LEFT JOIN contexts c ON c.context = e.context
          LEFT JOIN stacks t ON t.stack = e.stack {PROGRAM}
        """,
        time="when the clock of its CPU ticked, UTC",
        weight_ms=("time on CPUs that it represents: add these up, do not count rows", "ms"),
        context="context of the thread; see contexts. NULL: unknown",
        in_call="the outermost CUDA call that it was in; empty: in none",
        functions="kernel stack, innermost first; empty: in user space, or unknown",
        cpu="CPU that it ran on",
    ),
    View(
        "v_thread_times",
        "Time of threads by state, reading by reading, with names.",
        f"""
        SELECT e.seq, {utc("r.unix_ns")} AS time, {OWNER}, s.name AS state, c.name AS context,
          e.reason, {ms("e.time_ns")} AS time_ms, {ms("e.ended_ns")} AS ended_ms, e.count,
          coalesce(a.name, '') AS api, w.who_comm, w.who_pid, w.end_comm, w.end_pid,
          coalesce(d.name, '') AS end_state, coalesce(w.end_reason, '') AS end_reason,
          coalesce({_RESOURCE}, '') AS waited_for, r.unix_ns
        FROM thread_times e LEFT JOIN readings r ON r.seq = e.seq
          LEFT JOIN processes p ON p.process = e.process
          LEFT JOIN states s ON s.state = e.state LEFT JOIN contexts c ON c.context = e.context
          LEFT JOIN waits w ON w.wait = e.wait LEFT JOIN apis a ON a.api = w.api
          LEFT JOIN states d ON d.state = w.end_state
        """,
        time="time of the reading, UTC",
        state="state of the threads",
        context="context of the threads",
        time_ms=("time of all threads since the previous reading", "ms"),
        ended_ms=("total duration of the waits that ended since then", "ms"),
        api="the CUDA call that was open, or the one before the gap; empty: none",
        who_comm="thread that had the CPU, or ended the wait; NULL: none, or unknown",
        who_pid="its process; NULL: as who_comm",
        end_comm="the last of the threads that waited for each other; NULL: unknown",
        end_pid="its process; NULL: unknown",
        end_state="state of that thread; empty: unknown",
        end_reason="why that thread was blocked; empty: not blocked",
        waited_for="kind and name of the file that was waited for; empty: unknown",
        count=("number of intervals", "{interval}"),
    ),
)

"""Figures of a window: calls, time budgets and verdicts, and the balance of device memory."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from otel_gpu.mcp.answers import Listing, first_of, micros, name_of
from otel_gpu.mcp.arguments import rows
from otel_gpu.mcp.captures import ServedDocument
from otel_gpu.mcp.code_locations import lines_of
from otel_gpu.mcp.tool import Answer, fields_of, service, share, since, table, tool
from otel_gpu.report.document import Document, ProcessReport, Program, TimeBucket
from otel_gpu.report.memory.memory_calls import ROLES
from otel_gpu.report.time_tree import describe_bound, time_rows
from otel_gpu.report.wording.phases import phase_of
from otel_gpu.report.wording.phrases import CONTEXTS
from otel_gpu.report.wording.sentences import plain, sentence_of
from otel_gpu.report.wording.shares import largest_first

_MAX_VERDICTS = 50
_MAX_TREES = 4
_MAX_CHRONIC = 10
_MAX_UNCOVERED = 50
_OF_TREES = ("pid", "depth", "share", "time_us", "state", "what", "their_command")
# Fewer points have no first and last third.
_LEAST = 3


@tool("Calls per API")
def get_trace_stats(
    served: ServedDocument, limit: Annotated[int, rows(500, "rows of APIs")] = 30
) -> Answer:
    """
    How a run went. apis: for each process and CUDA API the number of calls and errors (exact,
    including calls that were not recorded individually), median, 99th percentile, maximum and sum
    of host time in microseconds, and bytes. over_time: the same over time, with a phase for each
    row. A launch returns when the kernel is queued, so its time is never the kernel's. lost_us
    counts only time with a known cause; over_time counts all lost time. Parts of the window without
    a capture have no rows: no_capture lists their begin and end, and what happened there is not
    known.
    """
    document, health = served.document, served.health
    return {
        "calls": sum(row.calls for row in document.apis),
        "errors": sum(row.errors for row in document.apis),
        "lost_us": micros(sum(incident.lost_ns for incident in document.incidents)),
        "incidents": len(document.incidents),
        "apis": table(
            document.apis,
            "pid service api layer calls errors p50_us p99_us p99_to_p50 max_us sum_us bytes",
            limit,
            p99_to_p50=lambda row: round(row.p99_ns / row.p50_ns, 1) if row.p50_ns > 0 else None,
        ),
        "over_time": table(
            document.buckets_of(None),
            "at_us calls mean_us allocating_calls allocating_mean_us run_queue_us lost_us phase",
            at_us=lambda bucket: since(bucket.start_unix_ns, document),
            calls=lambda bucket: round(bucket.calls, 1),
            mean_us=lambda bucket: micros(bucket.call_ns / bucket.calls) if bucket.calls else None,
            allocating_calls=lambda bucket: round(bucket.allocate_calls, 1),
            allocating_mean_us=_allocating_mean_us,
            run_queue_us=lambda bucket: micros(bucket.run_queue_ns),
            phase=lambda bucket: str(phase_of(bucket)),
        ),
        "no_capture": [
            [since(one.start_unix_ns or 0, document), since(one.end_unix_ns or 0, document)]
            for one in document.uncovered[:_MAX_UNCOVERED]
        ],
        "losses": dict(document.losses) if health.counters or document.losses else None,
    }


def _allocating_mean_us(bucket: TimeBucket) -> float | None:
    return micros(bucket.allocate_ns / bucket.allocate_calls) if bucket.allocate_calls else None


@tool("Time budget and verdict")
def get_time_budget(
    served: ServedDocument, limit: Annotated[int, rows(200, "rows of each list")] = 25
) -> Answer:
    """
    Why the GPU is not busy. time_tree: all time of the launching threads, of the processes with
    most of it. A row is a part of the nearest row above it with less depth; share is of the
    process's tree. Depth 0: what they did; 1: what, or which thread, they waited for; 2: what that thread did
    in the same time; below work: its lines, by share of on-CPU samples. their_command is written
    once. chronic: causes that take much of that time, unusual or not. verdicts: what bounds each
    process (gpu-bound, data-bound, ...; cpu-bound: its own code ran, cpu-starved: another thread
    had its CPU; mixed: the first two bounds are nearly equal), with the shares that the verdict
    compares; bounds: its classes, each with its main culprit; its time by state; and the lines of
    the work behind the first class. off_cpu: how long threads were off the CPU, by reason.
    kept_waiting_by: the threads that delayed slow calls and gaps; by_thread is empty or "other" if
    the name is not known. Time off the CPU of threads without calls is not a problem in itself.
    in_calls is the time of all threads inside CUDA calls; it can exceed the window if several
    threads call.
    """
    document = served.document
    return {
        "time_tree": _time_tree(document, limit),
        "chronic": first_of(list(_chronic(document)), _MAX_CHRONIC),
        "verdicts": first_of(list(map(_verdict, document.judged)), _MAX_VERDICTS),
        "off_cpu": table(
            document.off_cpu,
            "pid service threads state reason time_us times",
            limit,
            threads=lambda row: CONTEXTS.get(row.context, row.context),
        ),
        "kept_waiting_by": table(
            document.culprit_times,
            "pid service by_thread by_pid by_tid how time_us effects",
            limit,
            by_thread=lambda row: row.culprit.comm,
            by_pid=lambda row: row.culprit.pid,
            by_tid=lambda row: row.culprit.tid,
            how=lambda row: row.kind,
        ),
        "in_calls": first_of(
            _in_calls(document), limit, ("pid", "service", "in_calls_us", "share_of_window")
        ),
        "notes": list(_notes(served)),
    }


def _time_tree(document: Document, most: int) -> Listing:
    # The largest trees, at most ``most`` rows of each.
    trees = [(one.process.pid, one.time_tree) for one in document.judged if one.time_tree]
    ranked = sorted(trees, key=lambda tree: (-tree[1].time_ns, tree[0]))
    shown: list[list[object]] = []
    more = 0
    for number, (pid, tree) in enumerate(ranked):
        grown = list(time_rows(tree))
        kept = most if number < _MAX_TREES else 0
        more += len(grown[kept:])
        written: set[str] = set()
        for node, depth, _, sentence in grown[:kept]:
            command = node.who.command if node.who else ""
            shown.append(
                [
                    *(pid, depth, share(node.share), micros(node.time_ns), name_of(node.state)),
                    *(plain(sentence), "" if command in written else name_of(command)),
                ]
            )
            written.add(command)
    return Listing(shown, _OF_TREES, more)


def _chronic(document: Document) -> Iterator[dict[str, object]]:
    for incident in document.incidents:
        if incident.chronic:
            yield {
                **fields_of(incident, "id severity severity_reason lost_us"),
                "share": share(incident.causes[0].share),
                "pids": [program.pid for program in incident.processes],
                "what": plain(sentence_of(incident)),
                "advice": incident.advice,
            }


def _notes(served: ServedDocument) -> Iterator[str]:
    if not served.document.judged:
        yield (
            "No process has a verdict: the capture has no times of threads. in_calls is the "
            "time inside calls; the time outside of them is not known."
            if not served.health.seen["Times"]
            else "This window has no launching thread, so no process has a verdict."
        )


def _in_calls(document: Document) -> list[list[object]]:
    # Time inside outermost calls, of all threads together.
    in_calls_ns: Counter[Program] = Counter()
    for bucket in document.time_buckets:
        if bucket.process is not None:
            in_calls_ns[bucket.process] += round(bucket.call_ns)
    ranked = sorted(in_calls_ns.items(), key=lambda item: (-item[1], item[0].pid))
    return [
        [
            program.pid,
            service(program),
            micros(time_ns),
            share(time_ns / max(1, document.length_ns)),
        ]
        for program, time_ns in ranked
        if time_ns
    ]


def _verdict(judged: ProcessReport) -> dict[str, object]:
    return fields_of(judged, "pid service verdict") | {
        "shares": {name: share(part) for name, part in largest_first(judged.verdict_shares)},
        "bounds": [
            {
                "class": name_of(one.name),
                "share": share(one.share),
                "what": plain(describe_bound(one)),
            }
            for one in judged.verdict_bounds
        ],
        "budget_us": {name: micros(time) for name, time in largest_first(judged.budget_ns)},
        **lines_of(judged.lines),
    }


@tool("Device memory balance")
def get_memory_balance(
    served: ServedDocument, limit: Annotated[int, rows(200, "rows of each list")] = 30
) -> Answer:
    """
    Allocations against frees of device memory, per process: successful calls, bytes, and how much
    more is held at the end of the window than at its beginning; per API, with latency; and whether
    allocating and freeing got slower over time (growth: mean of the last third over mean of the
    first; a change from allocating to freeing looks the same: check the APIs). More allocations
    than frees can be an intended cache: it is a leak only if it continues to grow.
    """
    document = served.document
    apis = [row for row in document.apis if row.api in ROLES]
    note = "" if apis else "No allocating or freeing call was counted."
    if apis and not document.balances:
        note = "No call succeeded: no balance."
    return {
        "balance": table(
            document.balances,
            "pid service allocations frees allocations_not_freed allocated_bytes freed_bytes "
            "bytes_in_use_more_at_end",
            limit,
            allocations_not_freed=lambda row: row.allocations - row.frees,
            bytes_in_use_more_at_end=lambda row: row.allocated_bytes - row.freed_bytes,
        ),
        "apis": table(
            apis,
            "pid api does calls errors p50_us p99_us max_us bytes",
            limit,
            does=lambda row: ROLES[row.api],
        ),
        "latency": first_of(_growth(document), limit),
        "note": note,
    }


def _growth(document: Document) -> list[dict[str, Any]]:
    found = []
    for program in document.programs:
        if not (buckets := [one for one in document.buckets_of(program) if one.allocate_calls]):
            continue
        third = max(1, len(buckets) // 3)
        first, last = _mean_ns(buckets[:third]), _mean_ns(buckets[-third:])
        points = table(
            buckets,
            "at_us calls mean_us",
            at_us=lambda bucket: since(bucket.start_unix_ns, document),
            calls=lambda bucket: round(bucket.allocate_calls, 1),
            mean_us=_allocating_mean_us,
        )
        shown = {"pid": program.pid, "service": service(program)}
        means = {"first_third_mean_us": micros(first), "last_third_mean_us": micros(last)}
        growth = round(last / first, 2) if first and len(buckets) >= _LEAST else None
        found.append(shown | means | {"growth": growth, "over_time": points})
    return sorted(found, key=lambda row: (-(row["growth"] or 0), row["pid"]))


def _mean_ns(buckets: Sequence[TimeBucket]) -> float:
    calls = sum(bucket.allocate_calls for bucket in buckets)
    return sum(bucket.allocate_ns for bucket in buckets) / calls if calls else 0.0

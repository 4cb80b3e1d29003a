"""Notes: sentences on what a report does not know."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from otel_gpu.capture.steps.detector import DetectionState
from otel_gpu.capture.steps.period_search import Reason
from otel_gpu.limits.shares import ShareBound, of_user
from otel_gpu.report.wording.formats import count_of, format_time, printable
from otel_gpu.state.agent_health import AgentReadings
from otel_gpu.state.capture_state import CaptureState
from otel_gpu.state.window import Window
from otel_gpu.wire.readings import Aggregate

NO_CALLS: Final = "No CUDA call was counted."
"""The beginning of a note; the reason follows, if it is known."""
_MOST_LIBRARIES: Final = 8

# Of threads, as the agent counts them.
_WITHOUT_STEPS: Final[Mapping[str, str]] = {
    Reason.NO_ITERATIONS: "do not repeat themselves",
    Reason.BY_CHANCE: "repeat themselves no more than by chance",
    Reason.NO_EDGES: "do not tell where an iteration of them begins and ends",
    Reason.UNSURE: "have periods that differ too much",
    DetectionState.TOO_SHORT: "make iterations of less than a millisecond",
    DetectionState.LOST: "no longer make the steps that were found",
}

# Requests that were refused to a program that used up its share, by bound.
_OVER_SHARE: Final[Mapping[str, str]] = {
    ShareBound.FILES: "files got no probes",
    ShareBound.SERIES: "calls are not counted, as each would be the first of its series",
    ShareBound.TIMES: "waits are counted without details",
    ShareBound.FOLDED_TIMES: "waits are not counted",
    ShareBound.PROCESSES: "processes are not watched",
    ShareBound.THREADS: "threads are not followed",
    ShareBound.KERNEL_STACKS: "waits have no kernel stack",
    ShareBound.LIFECYCLE_RING: "forks, execs, ends, libraries, devices and kernels are not known",
    ShareBound.RING: "records of spans did not fit into the buffer",
    ShareBound.SPANS: "spans were rate-limited",
    ShareBound.BLOCK_STACKS: "stacks of blocks of device memory were not taken",
    ShareBound.CHAINS: "slow or failed calls and gaps were not explained",
    ShareBound.EXPORT_QUEUE: "spans, log records or profiles were dropped from the export queue",
    ShareBound.LOG_LINES: "lines of the log were left out",
}

_NOT_WATCHED = "counter_lost_not_watched_from_start"
# Fewer repairs change nothing that a reader would notice.
_REPAIRED_SHARE = 0.001


def reason_without_calls(notes: Iterable[str]) -> str | None:
    """Return the reason in the note that no call was counted; empty: not known; None: no such note."""
    found = (note.removeprefix(NO_CALLS) for note in notes if note.startswith(NO_CALLS))
    return next((reason.strip() for reason in found), None)


def why_no_calls(agent: AgentReadings) -> str:
    """Return why no call was counted, from the libraries that had probes; empty: not known."""
    if not agent.counters and not agent.status:
        return ""
    names = sorted(agent.libraries)
    shown = ", ".join(map(printable, names[:_MOST_LIBRARIES]))
    more = f" and {len(names) - _MOST_LIBRARIES:,} more" if len(names) > _MOST_LIBRARIES else ""
    if not names:
        return (
            "No program that was watched loaded a CUDA library (libcuda.so.1, libcudart.so): "
            "otel-gpu doctor --pid PID shows what one has loaded."
        )
    if not any(name.startswith("libcuda.so") for name in names):
        return (
            f"Loaded: {shown}{more}, but not the driver, libcuda.so.1: without one on the host, "
            "or in the container, programs use no GPU."
        )
    return f"Loaded and probed: {shown}{more}. No program called a probed function of them."


def write_notes(
    calls: Collection[Aggregate],
    state: CaptureState,
    agent: AgentReadings,
    *,
    failed_symbols: Mapping[str, int],
    chains_left_out: int,
    given_up: Mapping[str, int],
    of_calls: bool = True,
) -> Iterator[str]:
    """
    Yield the notes that a reader needs to read the figures correctly.

    Args:
        calls: Counts of calls.
        state: The state of the capture's counters.
        agent: The agent's reports.
        failed_symbols: Counts of symbols without a probe, by library.
        chains_left_out: Count of chains that are not listed.
        given_up: Counts of what the explainer evicted.
        of_calls: Whether calls and threads were recorded, not only devices.
    """
    if state.middles_ns and any(one.counted for one in calls):
        yield (
            "Times of calls are host time: a launch ends when the kernel is queued, not when it "
            "has run. How long the device worked is not known."
        )
        yield (
            "Percentiles are read from histogram buckets; with the default layout they are "
            "within 9 %. Counts, errors, totals and bytes are exact."
        )
    elif of_calls:
        yield f"{NO_CALLS} {why_no_calls(agent)}".rstrip()
    if of_calls and not state.is_accounted:
        yield (
            "The times of threads were not recorded: what bounds a process, and what it waited for outside of the recorded calls, is not known."
        )
    if state.window != Window():
        yield _counts_note(state)
    yield from _notes_on_the_capture(agent)
    yield from _notes_on_steps(agent.status.get("steps", {}))
    for library, count in sorted(failed_symbols.items()):
        yield (
            f"{count_of(count, 'symbol')} of {printable(library)} could not be probed: calls of "
            "that kind are not seen."
        )
    if chains_left_out:
        yield (
            f"{count_of(chains_left_out, 'causal chain')} not listed: those that lost "
            "least. The figures of incidents hold them."
        )
    if readings := state.left_out + state.forgotten:
        yield f"{count_of(readings, 'reading')} found no room in the figures."
    for what, counts in (
        (
            "Errors inside the agent; each lost the record that was being handled",
            agent.status.get("errors", {}),
        ),
        ("Items evicted while causes were searched", given_up),
    ):
        if listed := [f"{printable(name)} {n:,}" for name, n in sorted(counts.items()) if n]:
            yield f"{what}: {', '.join(listed)}."


def describe_losses(agent: AgentReadings) -> Iterator[str]:
    """Yield the processes and reasons of losses, where known."""
    yield from _describe_missed_starts(agent)
    yield from _describe_unread(agent)
    yield from _describe_over_share(agent)
    for reason, pid in sorted(agent.status.get("unknown_interpreters", {}).items()):
        yield (
            f"Stacks of process {pid} have no lines of Python: {printable(reason)}. "
            f"otel-gpu doctor --pid {pid} says what can be done."
        )


def _describe_unread(agent: AgentReadings) -> Iterator[str]:
    for one in agent.status.get("unread", ()):
        yield (
            f"Of process {printable(one.get('name', '') or 'process')} ({one.get('pid', 0)}) "
            f"{of_user(one.get('uid', -1))}, {printable(one.get('what', ''))} was not read: "
            f"{printable(one.get('reason', ''))}."
        )


def _describe_missed_starts(agent: AgentReadings) -> Iterator[str]:
    count = agent.counters.get(_NOT_WATCHED, 0)
    if not count:
        return
    named = [
        f"{printable(one.get('name', '') or 'process')} ({one.get('pid', 0)}): "
        f"{printable(one.get('reason', ''))}"
        + (f", {printable(one['file'])}" if one.get("file") else "")
        for one in agent.status.get("missed_starts", ())
    ]
    rest = [f"and {count - len(named):,} more"] if named and count > len(named) else []
    yield (
        f"Calls of {count:,} process{'' if count == 1 else 'es'} are missing or may be, as "
        f"{'it was' if count == 1 else 'they were'} not watched from the start"
        f"{': ' if named else ''}{'; '.join(named + rest)}."
    )


def _describe_over_share(agent: AgentReadings) -> Iterator[str]:
    for one in agent.status.get("over_share", ()):
        pid = one.get("pid", 0)
        who = f"{printable(one.get('name', '') or 'process')} ({pid})" if pid else "all programs"
        bound = one.get("bound", "")
        yield (
            f"{who} {of_user(printable(one.get('user', '')))} used up its share of the limits for all programs: {one.get('count', 0):,} {_OVER_SHARE.get(bound, printable(bound))}."
        )


def _notes_on_the_capture(agent: AgentReadings) -> Iterator[str]:
    yield from describe_losses(agent)
    if limited := agent.counters.get("counter_spans_rate_limited", 0):
        yield (
            f"{count_of(limited, 'span')} rate-limited: these calls are "
            "counted, but if they were slow, why is not known."
        )
    if limited := agent.counters.get("counter_step_threads_rate_limited", 0):
        yield f"Steps were not looked for in {count_of(limited, 'thread')}: there is room for 64 at one time."
    if limited := agent.counters.get("counter_steps_rate_limited", 0):
        yield f"{count_of(limited, 'step')} rate-limited, of 1,000 in a second of a thread."
    switches = agent.counters.get("counter_scheduler_switches", 0)
    repaired = agent.counters.get("counter_switches_repaired", 0)
    if repaired > _REPAIRED_SHARE * switches:
        yield (
            f"{repaired:,} of {switches:,} context switches of the "
            "capture were repaired: the kernel did not report that a thread ran again, as happens while other programs attach to its tracepoints. The scheduler's accounting gives that time to within a tick (1 to 10 ms), so these times off the CPU can be that much too long or too short."
        )


def _notes_on_steps(threads: Mapping[str, int]) -> Iterator[str]:
    # Why threads have no steps; threads with few calls are not counted.
    for reason, words in _WITHOUT_STEPS.items():
        if count := threads.get(reason, 0):
            yield f"No steps were found of {count_of(count, 'thread')}, whose calls {words}."


def _counts_note(state: CaptureState) -> str:
    start_unix_ns, end_unix_ns = state.start_unix_ns, state.end_unix_ns
    begin = "the beginning" if start_unix_ns is None else f"{format_time(start_unix_ns)} UTC"
    end = "the end" if end_unix_ns is None else f"{format_time(end_unix_ns)} UTC"
    return (
        f"Counters are read about once a second: calls are counted from {begin} to {end}. Where a "
        "process's longest call is from before that, the longest of the window is an estimate."
    )
